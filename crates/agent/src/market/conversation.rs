//! One WebSocket to the exchange, as JSON texts in both directions. Knows the wire and its bounds, nothing of what is said.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use sela_protocol::node::FRAME_LIMIT;
use sela_protocol::units::BootMs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

const CONNECT: Duration = Duration::from_secs(15);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// An open connection.
#[derive(Debug)]
pub(super) struct Conversation {
    sink: SplitSink<Socket, Message>,
    stream: SplitStream<Socket>,
    /// When something last came, and how long it may be silent. Kept here and not by each call: whoever says something while it
    /// listens drops the call and begins anew, and a connection that is dead would be listened to for ever.
    heard: BootMs,
    dead: Duration,
}

/// Why the connection is of no use any more, for people.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

impl Conversation {
    pub(super) async fn connect(url: &str, dead: Duration) -> Result<Self, Broken> {
        let limit = usize::try_from(FRAME_LIMIT.0).unwrap_or(usize::MAX);
        let config = WebSocketConfig::default()
            .max_message_size(Some(limit))
            .max_frame_size(Some(limit))
            .read_buffer_size(16 << 10);
        // Small messages that somebody waits for: no gathering.
        let connecting = connect_async_with_config(url, Some(config), true);
        let (socket, _) = timeout(CONNECT, connecting)
            .await
            .map_err(|_| Broken("nobody answered within 15 s".to_owned()))?
            .map_err(|error| Broken(in_words(&error)))?;
        let (sink, stream) = socket.split();
        Ok(Self {
            sink,
            stream,
            heard: sela_clock::now().boot_ms,
            dead,
        })
    }

    /// The next text. Safe to drop half-way: a message that is not whole yet stays in the socket's buffer.
    pub(super) async fn read<T: DeserializeOwned>(&mut self) -> Result<T, Broken> {
        loop {
            let silent = sela_clock::now().boot_ms.since(self.heard);
            let patience = self.dead.saturating_sub(Duration::from_millis(silent.0));
            let message = timeout(patience, self.stream.next())
                .await
                .map_err(|_| Broken(format!("nothing came for {} s", self.dead.as_secs())))?;
            self.heard = sela_clock::now().boot_ms;
            match message {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(&text)
                        .map_err(|error| Broken(format!("the exchange sent what does not read: {error}")));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => return Err(Broken("the exchange sent a binary message".to_owned())),
                Some(Ok(Message::Close(frame))) => {
                    let reason = frame
                        .map(|frame| frame.reason.to_string())
                        .filter(|reason| !reason.is_empty());
                    return Err(Broken(
                        reason.unwrap_or_else(|| "the exchange closed the connection".to_owned()),
                    ));
                }
                Some(Err(error)) => return Err(Broken(in_words(&error))),
                None => return Err(Broken("the connection was closed".to_owned())),
            }
        }
    }

    pub(super) async fn write(&mut self, value: &impl Serialize) -> Result<(), Broken> {
        let text = serde_json::to_string(value).map_err(|error| Broken(error.to_string()))?;
        if text.len() as u64 > FRAME_LIMIT.0 {
            return Err(Broken(format!(
                "a message of {} bytes is too large to be sent",
                text.len()
            )));
        }
        timeout(self.dead, self.sink.send(Message::Text(text.into())))
            .await
            .map_err(|_| Broken(format!("the exchange took nothing for {} s", self.dead.as_secs())))?
            .map_err(|error| Broken(in_words(&error)))
    }
}

fn in_words(error: &Error) -> String {
    match error {
        Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            "nobody listens there: the exchange is down, or market.url in agent.toml is wrong".to_owned()
        }
        Error::Http(response) => format!(
            "the server answered {} instead of opening a node's session: market.url in agent.toml may be wrong",
            response.status()
        ),
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Io(_)
        | Error::Tls(_)
        | Error::Capacity(_)
        | Error::Protocol(_)
        | Error::WriteBufferFull(_)
        | Error::Utf8(_)
        | Error::AttackAttempt
        | Error::Url(_)
        | Error::HttpFormat(_) => error.to_string(),
    }
}
