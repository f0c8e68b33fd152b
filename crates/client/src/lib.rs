//! The client of the agent's local interface: HTTP over its Unix socket, answers as `sela-protocol`'s types. Where the
//! socket lies is given by the caller; what to show of an answer, and any decision, is the caller's too.

mod connection;
mod events;
mod place;

pub use events::Events;
pub use place::{runtime_folder, socket};

use bytes::Bytes;
use connection::Connection;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use sela_protocol::local::{
    Command, CommandReply, DoctorLine, EarningsLine, JobLine, LOCAL_PROTOCOL, Page, Problem, Sample, Snapshot,
    StripRecord,
};
use sela_protocol::units::UtcMs;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// How long an answer may take. A self-test looks at drivers and takes seconds; an agent that is stopped would never answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Speaks to the agent whose socket lies at one path. Each call is a connection of its own, so that a restarted agent is
/// found again by itself.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    patience: Duration,
}

/// Why the agent did not answer as hoped.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("the agent is not running (nobody listens on {}); start it with `sela agent run`", .socket.display())]
    NotRunning {
        /// Where it would listen.
        socket: PathBuf,
    },
    /// The socket is somebody else's.
    #[error("{} may not be opened: only the user that runs the agent may; run this as that user", .socket.display())]
    NotAllowed {
        /// Whose.
        socket: PathBuf,
    },
    /// The agent answered, and said no.
    #[error("{}", .0.detail)]
    Refused(Problem),
    /// The agent speaks another version of this interface.
    #[error(
        "the agent speaks version {agent} of the local interface and this program {own}; update the older of the two"
    )]
    OtherVersion {
        /// The agent's.
        agent: u32,
        /// This program's.
        own: u32,
    },
    /// The connection broke off, or what came does not read.
    #[error("the agent's answer to {what} was cut off or does not read: {why}; `sela doctor` looks for the reason")]
    Broken {
        /// What was asked.
        what: String,
        /// What went wrong.
        why: String,
    },
}

impl Client {
    /// A client of the agent that listens at `socket`. Does not connect yet.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            patience: ANSWER,
        }
    }

    /// The socket that this client speaks to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Everything at this moment.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn snapshot(&self) -> Result<Snapshot, ClientError> {
        let snapshot: Snapshot = self.get("/v1/snapshot").await?;
        if snapshot.protocol == LOCAL_PROTOCOL {
            return Ok(snapshot);
        }
        Err(ClientError::OtherVersion {
            agent: snapshot.protocol,
            own: LOCAL_PROTOCOL,
        })
    }

    /// Tells the agent what its owner wants.
    ///
    /// # Errors
    /// See [`ClientError`]; a command that the agent understood and declined is an `Ok` of [`CommandReply::Refused`].
    pub async fn command(&self, command: &Command) -> Result<CommandReply, ClientError> {
        let body = serde_json::to_vec(command).map_err(|error| self.broken("the command", &error))?;
        self.ask(Method::POST, "/v1/commands", body).await
    }

    /// Past and open leases with what they earned, newest first; `cursor` is the last page's `next`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn earnings(&self, cursor: Option<&str>) -> Result<Page<EarningsLine>, ClientError> {
        self.get(&paged("/v1/earnings", cursor)).await
    }

    /// Past and open leases with how far each is, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn jobs(&self, cursor: Option<&str>) -> Result<Page<JobLine>, ClientError> {
        self.get(&paged("/v1/jobs", cursor)).await
    }

    /// What the cards reported, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn samples(&self, cursor: Option<&str>) -> Result<Page<Sample>, ClientError> {
        self.get(&paged("/v1/samples", cursor)).await
    }

    /// What became of the cards from `from` up to `to`; `None` from an agent that keeps no such record.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn strip(&self, from: UtcMs, to: UtcMs) -> Result<Option<StripRecord>, ClientError> {
        let path = format!("/v1/strip?from_utc_ms={}&to_utc_ms={}", from.0, to.0);
        match self.get(&path).await {
            Ok(record) => Ok(Some(record)),
            Err(ClientError::Refused(problem)) if problem.status == StatusCode::NOT_FOUND.as_u16() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The agent's self-test, as the agent sees it from inside.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn doctor(&self) -> Result<Vec<DoctorLine>, ClientError> {
        self.get("/v1/doctor").await
    }

    /// What happens from now on; the first event is a whole snapshot.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn events(&self) -> Result<Events, ClientError> {
        let request = self.request(Method::GET, "/v1/events", Bytes::new());
        let asking = async {
            let mut connection = Connection::open(&self.socket).await?;
            let response = connection.send(request).await;
            let response = response.map_err(|error| self.broken("/v1/events", &error))?;
            Ok((connection, response))
        };
        let (connection, response) = timeout(self.patience, asking)
            .await
            .map_err(|_| self.broken("/v1/events", &"no answer came"))??;
        if response.status() != StatusCode::OK {
            return Err(self.broken("/v1/events", &format!("status {}", response.status())));
        }
        Ok(Events::new(response.into_body(), connection))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Vec::new()).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T, ClientError> {
        timeout(self.patience, self.ask_patiently(method, path, body))
            .await
            .map_err(|_| self.broken(path, &format!("nothing came for {} s", self.patience.as_secs())))?
    }

    async fn ask_patiently<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, ClientError> {
        let request = self.request(method, path, Bytes::from(body));
        let mut connection = Connection::open(&self.socket).await?;
        let response = connection
            .send(request)
            .await
            .map_err(|error| self.broken(path, &error))?;
        let status = response.status();
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|error| self.broken(path, &error))?
            .to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| self.broken(path, &error));
        }
        Err(serde_json::from_slice(&bytes)
            .map_or_else(|_| self.broken(path, &format!("status {status}")), ClientError::Refused))
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        // Paths are this crate's own constants and the agent's own cursors, escaped: they always parse.
        *request.uri_mut() = path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(http::header::HOST, http::HeaderValue::from_static("agent"));
        headers.insert(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        );
        request
    }

    fn broken(&self, what: &str, why: &dyn std::fmt::Display) -> ClientError {
        ClientError::Broken {
            what: what.to_owned(),
            why: why.to_string(),
        }
    }
}

/// Cursors are made of letters, digits, `_` and `-`; anything else is left out rather than sent.
fn paged(path: &str, cursor: Option<&str>) -> String {
    let safe = |text: &str| -> String {
        text.chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-'))
            .collect()
    };
    cursor.map_or_else(|| path.to_owned(), |cursor| format!("{path}?cursor={}", safe(cursor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_is_stopped_keeps_nobody_waiting_for_ever() {
        let socket = std::env::temp_dir().join(format!("sela-client-{}.sock", std::process::id()));
        // The kernel takes connections for it; nobody reads them.
        let _stopped = std::os::unix::net::UnixListener::bind(&socket).expect("binds");
        let client = Client {
            patience: Duration::from_millis(100),
            ..Client::at(&socket)
        };
        let answers = [client.snapshot().await.map(drop), client.events().await.map(drop)];
        for answer in answers {
            assert!(matches!(answer, Err(ClientError::Broken { .. })), "{answer:?}");
        }
        std::fs::remove_file(&socket).expect("it was there");
    }
}
