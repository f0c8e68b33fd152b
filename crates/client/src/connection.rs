//! One HTTP connection over the agent's Unix socket. What is asked and how answers read is not decided here.

use crate::ClientError;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::io::ErrorKind;
use std::path::Path;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// A connection, closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    pub(crate) async fn open(socket: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|error| refused(socket, &error))?;
        let (requests, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ClientError::Broken {
                what: "the greeting".to_owned(),
                why: error.to_string(),
            })?;
        // An error of the driver also reaches whoever waits for the answer; there is nobody else to tell.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { requests, driver })
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.requests.send_request(request).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn refused(socket: &Path, error: &std::io::Error) -> ClientError {
    let socket = socket.to_owned();
    if error.kind() == ErrorKind::PermissionDenied {
        return ClientError::NotAllowed { socket };
    }
    ClientError::NotRunning { socket }
}
