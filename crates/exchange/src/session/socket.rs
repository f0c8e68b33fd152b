//! One node's WebSocket: greeting, Hello, frames in and out, liveness. It checks what needs no state (signature, nonce,
//! version, size, shape); everything else is the floor's. The session itself is in `table` and outlives this.

use crate::door::{Arrival, Door};
use crate::keys;
use crate::session::allowance::Allowance;
use crate::session::table::OUTBOX;
use crate::session::{Farewell, Outgoing};
use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use sela_market::input::ConnectionId;
use sela_protocol::envelope::{Envelope, EnvelopeError, PublicKey};
use sela_protocol::node::{FRAME_LIMIT, Greeting, Hello, HelloReply, NodeMessage, PROTOCOL, RefusalCode};
use sela_protocol::session::Frame;
use sela_protocol::units::{BootMs, Millis};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The oldest protocol that is served.
const PROTOCOL_FROM: u32 = 1;
/// How large a message the socket takes in at all: larger than a frame may be, so that one that is somewhat too large is
/// refused with a reason and not by a broken connection.
pub(crate) const SOCKET_LIMIT: usize = 4 << 20;
/// How long a peer may take to answer a Close.
pub(crate) const CLOSING: Duration = Duration::from_secs(2);

/// How quickly things are expected of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// A Hello must come within.
    pub(crate) hello: Duration,
    /// A ping is sent this often.
    pub(crate) ping: Duration,
    /// A connection on which nothing came for so long is dead.
    pub(crate) dead: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            ping: Duration::from_secs(3),
            dead: Duration::from_secs(10),
        }
    }
}

/// What a connection needs to know of the exchange.
#[derive(Clone)]
pub(crate) struct Host {
    /// The way in.
    pub(crate) door: Door,
    /// The exchange's key.
    pub(crate) key: PublicKey,
    /// The exchange's name.
    pub(crate) name: String,
    /// Whether it is a lab.
    pub(crate) lab: bool,
    /// What is expected of nodes.
    pub(crate) pace: Pace,
}

/// Serves one connection until it ends.
pub(crate) async fn serve(socket: WebSocket, connection: ConnectionId, host: Host) {
    let (mut sink, mut stream) = socket.split();
    let farewell = match greet(&mut sink, &mut stream, &host).await {
        Ok(Some(hello)) => {
            let (outgoing, outbox) = mpsc::channel(OUTBOX);
            let arrival = Arrival::Hello {
                connection,
                hello: Box::new(hello),
                outgoing,
            };
            if host.door.send(arrival).await.is_err() {
                Some(Farewell::Stopping)
            } else {
                let mut conversation = Conversation {
                    connection,
                    sink: &mut sink,
                    stream: &mut stream,
                    outbox,
                    host: &host,
                };
                let farewell = conversation.hold().await;
                // Where the loop is gone there is nobody left to tell.
                let _ = host.door.send(Arrival::Gone { connection }).await;
                farewell
            }
        }
        Ok(None) => None,
        Err(refused) => {
            tracing::warn!(code = ?refused.code, message = refused.message, "node refused");
            let code = refused.code;
            let reply = HelloReply::Refused {
                code,
                message: refused.message,
            };
            let text = serde_json::to_string(&reply).unwrap_or_default();
            let _ = timeout(CLOSING, sink.send(Message::Text(text.into()))).await;
            Some(Farewell::Refused(code))
        }
    };
    if let Some(farewell) = farewell {
        close(&mut sink, &mut stream, &farewell).await;
    }
}

/// Why a Hello is not taken.
pub(crate) struct Refused {
    /// For programs.
    pub(crate) code: RefusalCode,
    /// For people: what to do.
    pub(crate) message: String,
}

impl Refused {
    fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Greets and waits for the Hello. `None`: the peer is gone.
async fn greet(
    sink: &mut SplitSink<WebSocket, Message>,
    stream: &mut SplitStream<WebSocket>,
    host: &Host,
) -> Result<Option<Hello>, Refused> {
    let Ok(nonce) = keys::random_bytes::<32>() else {
        return Ok(None);
    };
    let greeting = Greeting {
        protocol_from: PROTOCOL_FROM,
        protocol_to: PROTOCOL,
        exchange: host.key,
        name: host.name.clone(),
        nonce: hex::encode(nonce),
        lab: host.lab,
    };
    let text = serde_json::to_string(&greeting).unwrap_or_default();
    if sink.send(Message::Text(text.into())).await.is_err() {
        return Ok(None);
    }
    match timeout(host.pace.hello, next_text(stream)).await {
        Ok(Heard::Text(text)) => check_hello(&text, &greeting.nonce, greeting.exchange).map(Some),
        Ok(Heard::Gone) => Ok(None),
        Ok(Heard::NotText(why)) => Err(Refused::new(RefusalCode::ProtocolBroken, why)),
        Err(_) => Err(Refused::new(
            RefusalCode::ProtocolBroken,
            format!(
                "no Hello came within {} ms of the greeting",
                host.pace.hello.as_millis()
            ),
        )),
    }
}

/// Reads the first text of a connection that was greeted with `nonce` by the exchange of this key.
pub(crate) fn check_hello(text: &str, nonce: &str, exchange: PublicKey) -> Result<Hello, Refused> {
    let broken = |why: String| Refused::new(RefusalCode::ProtocolBroken, format!("this is no signed Hello: {why}"));
    let signature = |why: &str| Refused::new(RefusalCode::BadSignature, why);
    let envelope: Envelope<Hello> = serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
    let signer = envelope
        .claimed_signer()
        .ok_or_else(|| signature("the Hello carries no signature: sign it with the node's key"))?;
    let hello = envelope.open(&signer).map_err(|error| match error {
        EnvelopeError::BadSignature { .. } => signature(&error.to_string()),
        EnvelopeError::WrongType { .. } | EnvelopeError::Malformed(_) => broken(error.to_string()),
    })?;
    if hello.key != signer {
        return Err(signature("the Hello names another key than the one that signed it"));
    }
    if hello.exchange != exchange {
        return Err(signature(
            "the Hello was said to another exchange, and somebody passed it on: say it to this one",
        ));
    }
    if hello.nonce != nonce {
        return Err(signature(
            "the Hello answers another greeting than this connection's: it is a replay, or the node mixed up connections",
        ));
    }
    if !(PROTOCOL_FROM..=PROTOCOL).contains(&hello.protocol) {
        return Err(Refused::new(
            RefusalCode::ProtocolVersion,
            format!(
                "this exchange speaks protocol {PROTOCOL_FROM} to {PROTOCOL}, the node {}: update the older of the two",
                hello.protocol
            ),
        ));
    }
    Ok(hello)
}

/// Reads any later text.
pub(crate) fn read_frame(text: &str) -> Result<Frame<NodeMessage>, Farewell> {
    serde_json::from_str(text).map_err(|error| Farewell::ProtocolBroken(format!("this is no frame: {error}")))
}

enum Heard {
    Text(String),
    NotText(String),
    Gone,
}

/// The next text, skipping pings and pongs.
async fn next_text(stream: &mut SplitStream<WebSocket>) -> Heard {
    loop {
        match stream.next().await {
            Some(Ok(message)) => match heard(message) {
                Some(heard) => return heard,
                None => continue,
            },
            Some(Err(error)) => return broken(&error),
            None => return Heard::Gone,
        }
    }
}

/// `None` for what only shows that the peer lives.
fn heard(message: Message) -> Option<Heard> {
    match message {
        Message::Text(text) if text.len() as u64 > FRAME_LIMIT.0 => Some(Heard::NotText(format!(
            "a frame of {} bytes came; the most is {}: send bulk over HTTP",
            text.len(),
            FRAME_LIMIT.0
        ))),
        Message::Text(text) => Some(Heard::Text(text.as_str().to_owned())),
        Message::Binary(_) => Some(Heard::NotText("a binary message came; frames are text".to_owned())),
        Message::Close(_) => Some(Heard::Gone),
        Message::Ping(_) | Message::Pong(_) => None,
    }
}

/// A socket that broke, or a message that the WebSocket itself does not allow (too large, no UTF-8).
fn broken(error: &axum::Error) -> Heard {
    let text = error.to_string();
    if text.contains("too long") || text.contains("too big") || text.contains("Capacity") {
        return Heard::NotText(format!("a frame larger than {} bytes came", FRAME_LIMIT.0));
    }
    if text.contains("UTF-8") || text.contains("utf-8") {
        return Heard::NotText("a text that is not UTF-8 came".to_owned());
    }
    Heard::Gone
}

/// An admitted connection, or one about which the floor decides.
struct Conversation<'a> {
    connection: ConnectionId,
    sink: &'a mut SplitSink<WebSocket, Message>,
    stream: &'a mut SplitStream<WebSocket>,
    outbox: mpsc::Receiver<Outgoing>,
    host: &'a Host,
}

impl Conversation<'_> {
    /// Until the connection is to be closed (`Some`) or is gone (`None`).
    async fn hold(&mut self) -> Option<Farewell> {
        let now = || sela_clock::now().boot_ms;
        let mut admitted = false;
        let mut heard_at = now();
        let mut allowance = Allowance::new(heard_at);
        let mut pings = tokio::time::interval(self.host.pace.ping);
        loop {
            tokio::select! {
                outgoing = self.outbox.recv() => match outgoing? {
                    Outgoing::Admitted(text) => {
                        admitted = true;
                        heard_at = now();
                        self.send(Message::Text(text.into())).await?;
                    }
                    Outgoing::Text(text) => self.send(Message::Text(text.into())).await?,
                    Outgoing::Close(farewell) => return Some(farewell),
                },
                message = self.stream.next(), if admitted => {
                    heard_at = now();
                    match self.take(message, &mut allowance, heard_at).await {
                        // Where taking it took long, the peer's pongs wait unread.
                        Ok(()) => heard_at = now(),
                        Err(end) => return end,
                    }
                }
                _ = pings.tick() => {
                    if admitted && is_dead(heard_at, now(), self.host.pace.dead) {
                        tracing::info!(connection = self.connection.0, "connection is dead");
                        return None;
                    }
                    self.send(Message::Ping(axum::body::Bytes::new())).await?;
                }
            }
        }
    }

    /// Takes what came from the socket. `Err`: this connection ends, with or without a farewell.
    async fn take(
        &mut self,
        message: Option<Result<Message, axum::Error>>,
        allowance: &mut Allowance,
        now: BootMs,
    ) -> Result<(), Option<Farewell>> {
        let heard = match message {
            Some(Ok(message)) => heard(message),
            Some(Err(error)) => Some(broken(&error)),
            None => Some(Heard::Gone),
        };
        let text = match heard {
            Some(Heard::Text(text)) => text,
            Some(Heard::NotText(why)) => return Err(Some(Farewell::ProtocolBroken(why))),
            Some(Heard::Gone) => return Err(None),
            None => return Ok(()),
        };
        let frame = read_frame(&text).map_err(Some)?;
        let arrival = Arrival::Frame {
            connection: self.connection,
            frame: Box::new(frame),
        };
        let sent = self.host.door.send(arrival).await;
        sent.map_err(|_| Some(Farewell::Stopping))?;
        let Millis(pause) = allowance.take(text.len(), now);
        if pause > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Ok(())
    }

    /// `None`: the socket is gone, or its peer takes nothing any more.
    async fn send(&mut self, message: Message) -> Option<()> {
        timeout(self.host.pace.dead, self.sink.send(message)).await.ok()?.ok()
    }
}

fn is_dead(heard_at: BootMs, now: BootMs, dead: Duration) -> bool {
    u128::from(now.since(heard_at).0) > dead.as_millis()
}

/// Says farewell and reads on until the peer has closed too: closing a socket with unread bytes would tear the connection
/// down, and the peer might never see the reason.
async fn close(sink: &mut SplitSink<WebSocket, Message>, stream: &mut SplitStream<WebSocket>, farewell: &Farewell) {
    let frame = CloseFrame {
        code: farewell.code(),
        reason: farewell.reason().into(),
    };
    let say_and_drain = async {
        if sink.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = stream.next().await {}
        }
    };
    let _ = timeout(CLOSING, say_and_drain).await;
}
