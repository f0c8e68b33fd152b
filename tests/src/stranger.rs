//! A node that a test speaks for, over a real WebSocket: it can say what no agent of ours would ever say.

use crate::PATIENCE;
use anyhow::{Context, bail};
use ed25519_dalek::SigningKey;
use sela_protocol::card::{CardDescription, Reading};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{GpuUuid, NodeId};
use sela_protocol::lease::{EndCause, MeterNote};
use sela_protocol::money::HourlyPrice;
use sela_protocol::node::{
    Award, ExchangeMessage, Greeting, Hello, HelloReply, Isolation, NodeMessage, Offer, PROTOCOL, RefusalCode, Resume,
};
use sela_protocol::session::{Frame, SessionSide};
use sela_protocol::units::{Bytes, Millis, UtcMs};
use serde::de::DeserializeOwned;
use std::net::TcpStream;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// A key made of one byte: as good as any for a node of a test.
pub fn key_from(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

/// A connection before its Hello.
#[derive(Debug)]
pub struct Caller {
    socket: WebSocket<TcpStream>,
    /// What the exchange said first.
    pub greeting: Greeting,
}

impl Caller {
    /// Connects.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn connect(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (mut socket, _) = tungstenite::client(format!("ws://{address}/v1/nodes/session"), stream)?;
        let greeting = read(&mut socket)?;
        Ok(Self { socket, greeting })
    }

    /// The Hello that an honest node would say here.
    pub fn hello(&self, key: &SigningKey, invitation: Option<&str>, resume: Option<Resume>) -> Hello {
        Hello {
            protocol: PROTOCOL,
            nonce: self.greeting.nonce.clone(),
            exchange: self.greeting.exchange,
            key: PublicKey::of(key),
            invitation: invitation.map(str::to_owned),
            name: "a stranger".to_owned(),
            resume,
        }
    }

    /// Says any text in place of a Hello and gives the answer.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn say(mut self, text: String, key: &SigningKey) -> anyhow::Result<Result<Node, (RefusalCode, String)>> {
        self.socket.send(Message::text(text))?;
        match read(&mut self.socket)? {
            HelloReply::Welcome { node, session, .. } => Ok(Ok(Node {
                socket: self.socket,
                key: key.clone(),
                node,
                resume: Resume { session, received: 0 },
                side: SessionSide::new(1_000),
            })),
            HelloReply::Refused { code, message } => Ok(Err((code, message))),
        }
    }

    /// Says this Hello, signed by `key`.
    ///
    /// # Errors
    /// Where the exchange does not answer.
    pub fn enter(self, hello: &Hello, key: &SigningKey) -> anyhow::Result<Result<Node, (RefusalCode, String)>> {
        let text = serde_json::to_string(&Envelope::seal(hello, key)?)?;
        self.say(text, key)
    }
}

/// A node that was let in.
#[derive(Debug)]
pub struct Node {
    socket: WebSocket<TcpStream>,
    key: SigningKey,
    /// Who it is.
    pub node: NodeId,
    /// Where its session goes on after a break.
    pub resume: Resume,
    side: SessionSide<NodeMessage, ExchangeMessage>,
}

impl Node {
    /// A new node with an invitation.
    ///
    /// # Errors
    /// Where it is not let in.
    pub fn join(address: &str, key: &SigningKey, invitation: &str) -> anyhow::Result<Self> {
        let caller = Caller::connect(address)?;
        let hello = caller.hello(key, Some(invitation), None);
        match caller.enter(&hello, key)? {
            Ok(node) => Ok(node),
            Err((code, message)) => bail!("refused: {code:?}: {message}"),
        }
    }

    /// Sends a message in its frame, and gives the frame as it went over the wire.
    ///
    /// # Errors
    /// Where the connection is broken.
    pub fn send(&mut self, message: NodeMessage) -> anyhow::Result<String> {
        let text = serde_json::to_string(&self.side.send(message)?)?;
        self.say(text.clone())?;
        Ok(text)
    }

    /// Sends any text.
    ///
    /// # Errors
    /// Where the connection is broken.
    pub fn say(&mut self, text: String) -> anyhow::Result<()> {
        Ok(self.socket.send(Message::text(text))?)
    }

    /// The next message that `pick` takes; others are passed over.
    ///
    /// # Errors
    /// Where the exchange closes the connection or says nothing of the kind for long.
    pub fn hear<T>(&mut self, what: &str, pick: impl Fn(&ExchangeMessage) -> Option<T>) -> anyhow::Result<T> {
        loop {
            let frame: Frame<ExchangeMessage> =
                read(&mut self.socket).with_context(|| format!("waiting for {what}"))?;
            let message = self.side.receive(frame)?;
            self.resume.received = self.side.received();
            let acknowledge = serde_json::to_string(&self.side.acknowledge())?;
            self.say(acknowledge)?;
            if let Some(found) = message.as_ref().and_then(&pick) {
                return Ok(found);
            }
        }
    }

    /// What the exchange answers where it did not act on a message.
    ///
    /// # Errors
    /// Where it does not say so.
    pub fn hear_refusal(&mut self) -> anyhow::Result<String> {
        self.hear("a refusal", |message| match message {
            ExchangeMessage::Refused { message, .. } => Some(message.clone()),
            ExchangeMessage::Award(_)
            | ExchangeMessage::Renew { .. }
            | ExchangeMessage::Cancel { .. }
            | ExchangeMessage::Receipt(_)
            | ExchangeMessage::Time { .. }
            | ExchangeMessage::Unknown => None,
        })
    }

    /// Offers a SIMULATED card and waits for an award of it.
    ///
    /// # Errors
    /// Where none comes.
    pub fn offer_and_wait(&mut self, floor: HourlyPrice) -> anyhow::Result<Award> {
        let gpu = GpuUuid(format!("GPU-{}", self.node));
        self.send(NodeMessage::Capability {
            cards: vec![CardDescription {
                uuid: gpu.clone(),
                name: "a card of nobody's (SIMULATED)".to_owned(),
                index: 0,
                simulated: true,
                vram_total: Bytes::from_gib(24),
                driver_version: "1".to_owned(),
                power_limits: Reading::NotSupported,
            }],
            isolation: Isolation::LabCgroupV1,
            architecture: sela_oci_images::native_architecture().to_owned(),
            memory: Bytes::from_gib(8),
            scratch: sela_protocol::node::Scratch::Memory,
            agent_version: "0".to_owned(),
        })?;
        self.send(NodeMessage::Offer(Offer {
            gpu,
            floor,
            available: true,
            network: Vec::new(),
        }))?;
        self.hear("an award", |message| match message {
            ExchangeMessage::Award(award) => Some(Award::clone(award)),
            ExchangeMessage::Renew { .. }
            | ExchangeMessage::Cancel { .. }
            | ExchangeMessage::Receipt(_)
            | ExchangeMessage::Refused { .. }
            | ExchangeMessage::Time { .. }
            | ExchangeMessage::Unknown => None,
        })
    }

    /// A meter note about an award, signed by `key`.
    ///
    /// # Errors
    /// Never for a note, which always writes as JSON.
    pub fn note(
        &self,
        award: &Award,
        thawed_ms: u64,
        closing: Option<EndCause>,
        key: &SigningKey,
    ) -> anyhow::Result<NodeMessage> {
        let note = MeterNote {
            lease: award.lease,
            fencing: award.fencing,
            node: self.node,
            thawed_ms: Millis(thawed_ms),
            frozen_ms: Millis(0),
            taken_utc_ms: UtcMs(0),
            closing,
            output: None,
        };
        Ok(NodeMessage::Meter(Envelope::seal(&note, key)?))
    }

    /// The key that signs for this node.
    pub fn key(&self) -> SigningKey {
        self.key.clone()
    }
}

fn read<T: DeserializeOwned>(socket: &mut WebSocket<TcpStream>) -> anyhow::Result<T> {
    loop {
        match socket.read()? {
            Message::Text(text) => {
                return serde_json::from_str(&text).with_context(|| format!("the exchange said {text}"));
            }
            Message::Close(why) => bail!("the exchange closed the connection: {why:?}"),
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}
