//! A scripted node and a plain REST client, for tests only: real sockets, real signatures, no decisions. Shared with the
//! tests that start the real binary, so nothing of `sela-exchange` itself is used here.

use ed25519_dalek::SigningKey;
use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use sela_protocol::blob::BlobId;
use sela_protocol::card::{CardDescription, Reading};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{GpuUuid, NodeId, OwnerId};
use sela_protocol::lease::{EndCause, MeterNote, Receipt};
use sela_protocol::money::HourlyPrice;
use sela_protocol::node::{
    Award, ExchangeMessage, Greeting, Hello, HelloReply, Isolation, NodeMessage, Offer, PROTOCOL, RefusalCode, Resume,
};
use sela_protocol::session::{Frame, SessionSide};
use sela_protocol::tenant::{Deposit, NewOwner, NewTenant, OwnerInvited, TenantAccount, TenantCreated};
use sela_protocol::units::{Bytes, Millis, UtcMs};
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// Longest that a test waits for anything: then it fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// A reply of the REST interface.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, String::from_utf8_lossy(&self.body)))
    }

    /// The body of an error: its code and its sentence.
    pub(crate) fn problem(&self) -> (String, String) {
        let kind = self.headers.get("content-type").map(|value| value.as_bytes());
        assert_eq!(kind, Some(b"application/problem+json".as_slice()), "{}", self.status);
        let problem: sela_protocol::local::Problem = self.json();
        assert_eq!(problem.status, self.status.as_u16());
        (problem.code, problem.detail)
    }

    pub(crate) fn refused(&self, status: u16, code: &str) {
        let (found, detail) = self.problem();
        assert_eq!((self.status.as_u16(), found.as_str()), (status, code), "{detail}");
    }
}

/// The REST interface as somebody with a key sees it.
#[derive(Clone)]
pub(crate) struct Rest {
    client: reqwest::Client,
    address: SocketAddr,
    key: String,
}

impl Rest {
    pub(crate) fn new(address: SocketAddr, key: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            client: reqwest::Client::builder().timeout(PATIENCE).build().expect("a client"),
            address,
            key: key.to_owned(),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self {
            key: key.to_owned(),
            ..self.clone()
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client
            .request(method, format!("http://{}{path}", self.address))
            .bearer_auth(&self.key)
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Reply {
        Self::reply(self.request(method, path).body(body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        Self::reply(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &impl serde::Serialize) -> Reply {
        Self::reply(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn reply(request: reqwest::RequestBuilder) -> Reply {
        let response = request.send().await.expect("an answer");
        Reply {
            status: response.status(),
            headers: response.headers().clone(),
            body: response.bytes().await.expect("a body").to_vec(),
        }
    }

    /// As the operator: a tenant with money, as a client with its key.
    pub(crate) async fn new_tenant(&self, units: i64) -> (Self, TenantCreated) {
        let name = "a tenant".to_owned();
        let created: TenantCreated = self.post("/v1/admin/tenants", &NewTenant { name }).await.json();
        let deposit = Deposit {
            amount: sela_protocol::money::Micros::from_units(units),
            idempotency_key: "first".to_owned(),
        };
        let path = format!("/v1/admin/tenants/{}/deposits", created.tenant);
        let account: TenantAccount = self.post(&path, &deposit).await.json();
        assert_eq!(account.available, deposit.amount);
        (self.with_key(&created.api_key), created)
    }

    /// As the operator: an invitation.
    pub(crate) async fn invite(&self) -> OwnerInvited {
        let name = "an owner".to_owned();
        self.post("/v1/admin/owners", &NewOwner { name }).await.json()
    }

    pub(crate) async fn put_blob(&self, bytes: &'static [u8]) -> BlobId {
        let blob = BlobId::of(bytes);
        let reply = self.send(Method::PUT, &format!("/v1/blobs/{blob}"), bytes).await;
        assert_eq!(reply.status, StatusCode::CREATED);
        blob
    }
}

/// A job spec that every exchange takes once its image is stored.
pub(crate) fn job_spec(image: BlobId) -> serde_json::Value {
    serde_json::json!({
        "image": {"type": "archive", "blob": image}, "cap": "0.600000", "budget": "1.000000",
        "wall_limit_ms": 600_000, "output_limit": 1_048_576,
    })
}

/// A connection before its Hello.
pub(crate) struct Caller {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) greeting: Greeting,
}

impl Caller {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let (mut socket, _) = connect_async(format!("ws://{address}/v1/nodes/session"))
            .await
            .expect("connects");
        let greeting = match next(&mut socket).await {
            Heard::Text(text) => serde_json::from_str(&text).expect("a greeting"),
            Heard::Closed(why) => panic!("closed instead of a greeting: {why:?}"),
        };
        Self { socket, greeting }
    }

    pub(crate) fn hello(&self, key: &SigningKey, invitation: Option<&str>, resume: Option<Resume>) -> Hello {
        Hello {
            protocol: PROTOCOL,
            nonce: self.greeting.nonce.clone(),
            exchange: self.greeting.exchange,
            key: PublicKey::of(key),
            invitation: invitation.map(str::to_owned),
            name: "a node".to_owned(),
            resume,
        }
    }

    pub(crate) async fn say(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.expect("sent");
    }

    /// Says Hello and gives the answer.
    pub(crate) async fn enter(mut self, key: &SigningKey, hello: &Hello) -> Result<Node, (RefusalCode, String)> {
        let envelope = Envelope::seal(hello, key).expect("seals");
        self.say(serde_json::to_string(&envelope).expect("writes")).await;
        self.answer(key).await
    }

    pub(crate) async fn answer(mut self, key: &SigningKey) -> Result<Node, (RefusalCode, String)> {
        let reply = match next(&mut self.socket).await {
            Heard::Text(text) => serde_json::from_str(&text).expect("a reply"),
            Heard::Closed(why) => panic!("closed without a reply: {why:?}"),
        };
        match reply {
            HelloReply::Welcome {
                node,
                owner,
                session,
                received,
            } => Ok(Node {
                socket: self.socket,
                greeting: self.greeting,
                key: key.clone(),
                node,
                owner,
                resume: Resume { session, received: 0 },
                exchange_received: received,
                side: SessionSide::new(1_000),
                acknowledges: true,
            }),
            HelloReply::Refused { code, message } => {
                match next(&mut self.socket).await {
                    Heard::Closed(_) => {}
                    Heard::Text(text) => panic!("after a refusal came {text}"),
                }
                Err((code, message))
            }
        }
    }
}

/// A node that was let in.
pub(crate) struct Node {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) greeting: Greeting,
    pub(crate) key: SigningKey,
    pub(crate) node: NodeId,
    pub(crate) owner: OwnerId,
    pub(crate) resume: Resume,
    /// What the exchange said in Welcome that it has received.
    pub(crate) exchange_received: u64,
    pub(crate) side: SessionSide<NodeMessage, ExchangeMessage>,
    /// Whether what is heard is acknowledged at once.
    pub(crate) acknowledges: bool,
}

impl Node {
    /// A new node of an owner that the operator invites.
    pub(crate) async fn join(address: SocketAddr, operator: &Rest, seed: u8) -> Self {
        let invited = operator.invite().await;
        let key = SigningKey::from_bytes(&[seed; 32]);
        Self::enter(address, &key, Some(&invited.invitation))
            .await
            .expect("let in")
    }

    pub(crate) async fn enter(
        address: SocketAddr,
        key: &SigningKey,
        invitation: Option<&str>,
    ) -> Result<Self, (RefusalCode, String)> {
        let caller = Caller::connect(address).await;
        let hello = caller.hello(key, invitation, None);
        caller.enter(key, &hello).await
    }

    /// Comes back after a break.
    pub(crate) async fn come_back(self, address: SocketAddr) -> Self {
        let caller = Caller::connect(address).await;
        let hello = caller.hello(&self.key, None, Some(self.resume));
        let entered = caller.enter(&self.key, &hello).await.expect("let in again");
        entered.go_on(self).await
    }

    /// Goes on where `before` was, if the exchange does.
    pub(crate) async fn go_on(mut self, before: Self) -> Self {
        if self.resume.session == before.resume.session {
            self.resume = before.resume;
            self.side = before.side;
            let again = self.side.resume(self.exchange_received).expect("resumes");
            for frame in again {
                self.send_frame(&frame).await;
            }
        }
        self
    }

    /// Drops the connection without a word.
    pub(crate) async fn hang_up(&mut self) {
        if let MaybeTlsStream::Plain(stream) = self.socket.get_mut() {
            let _ = tokio::io::AsyncWriteExt::shutdown(stream).await;
        }
    }

    pub(crate) async fn say(&mut self, message: NodeMessage) {
        let frame = self.side.send(message).expect("room");
        self.send_frame(&frame).await;
    }

    pub(crate) async fn send_frame(&mut self, frame: &Frame<NodeMessage>) {
        self.send_text(serde_json::to_string(frame).expect("writes")).await;
    }

    pub(crate) async fn send_text(&mut self, text: String) {
        self.send_message(Message::text(text)).await;
    }

    pub(crate) async fn send_message(&mut self, message: Message) {
        self.socket.send(message).await.expect("sent");
    }

    /// The next message that is new.
    pub(crate) async fn hear(&mut self) -> ExchangeMessage {
        loop {
            let frame = match next(&mut self.socket).await {
                Heard::Text(text) => serde_json::from_str(&text).expect("a frame"),
                Heard::Closed(why) => panic!("closed: {why:?}"),
            };
            if let Some(message) = self.side.receive(frame).expect("in order") {
                self.resume.received = self.side.received();
                if self.acknowledges {
                    let frame = self.side.acknowledge();
                    self.send_frame(&frame).await;
                }
                return message;
            }
        }
    }

    /// The next message of a kind; others are skipped.
    pub(crate) async fn hear_until<T>(&mut self, mut wanted: impl FnMut(ExchangeMessage) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.hear().await) {
                return found;
            }
        }
    }

    /// Waits until all that was said is acknowledged, that is committed.
    pub(crate) async fn settled(&mut self) {
        while self.side.waiting() > 0 {
            match next(&mut self.socket).await {
                Heard::Text(text) => {
                    let frame = serde_json::from_str(&text).expect("a frame");
                    self.side.receive(frame).expect("in order");
                    self.resume.received = self.side.received();
                }
                Heard::Closed(why) => panic!("closed: {why:?}"),
            }
        }
    }

    /// Why the exchange closed the connection.
    pub(crate) async fn closed(&mut self) -> Option<CloseFrame> {
        loop {
            if let Heard::Closed(why) = next(&mut self.socket).await {
                return why;
            }
        }
    }

    /// Says what it has: one simulated card, offered.
    pub(crate) async fn offer(&mut self, floor: &str) {
        self.say(NodeMessage::Capability {
            cards: vec![CardDescription {
                uuid: GpuUuid("GPU-simulated-1".to_owned()),
                name: "SIMULATED RTX 3090".to_owned(),
                index: 0,
                simulated: true,
                vram_total: Bytes::from_gib(24),
                driver_version: "570.0".to_owned(),
                power_limits: Reading::NotSupported,
            }],
            isolation: Isolation::LabCgroupV1,
            architecture: "amd64".to_owned(),
            memory: Bytes::from_gib(32),
            scratch: sela_protocol::node::Scratch::Memory,
            agent_version: "0.1.0".to_owned(),
        })
        .await;
        self.say_offer(floor, true).await;
    }

    /// Offers its card, or takes the offer back.
    pub(crate) async fn say_offer(&mut self, floor: &str, available: bool) {
        self.say(NodeMessage::Offer(Offer {
            gpu: GpuUuid("GPU-simulated-1".to_owned()),
            floor: floor.parse::<HourlyPrice>().expect("a price"),
            available,
            network: Vec::new(),
        }))
        .await;
    }

    pub(crate) async fn award(&mut self) -> Box<Award> {
        self.hear_until(|message| match message {
            ExchangeMessage::Award(award) => Some(award),
            ExchangeMessage::Renew { .. }
            | ExchangeMessage::Cancel { .. }
            | ExchangeMessage::Receipt(_)
            | ExchangeMessage::Refused { .. }
            | ExchangeMessage::Time { .. }
            | ExchangeMessage::Unknown => None,
        })
        .await
    }

    /// The next receipt, whose signature is checked with the key of the greeting.
    pub(crate) async fn receipt(&mut self) -> Receipt {
        let signed = self
            .hear_until(|message| match message {
                ExchangeMessage::Receipt(signed) => Some(signed),
                ExchangeMessage::Award(_)
                | ExchangeMessage::Renew { .. }
                | ExchangeMessage::Cancel { .. }
                | ExchangeMessage::Refused { .. }
                | ExchangeMessage::Time { .. }
                | ExchangeMessage::Unknown => None,
            })
            .await;
        signed.open(&self.greeting.exchange).expect("signed by the exchange")
    }

    pub(crate) async fn accept(&mut self, award: &Award) {
        let (lease, fencing) = (award.lease, award.fencing);
        self.say(NodeMessage::Accept { lease, fencing }).await;
    }

    pub(crate) async fn meter(&mut self, award: &Award, thawed_ms: u64, closing: Option<EndCause>) {
        let note = MeterNote {
            lease: award.lease,
            fencing: award.fencing,
            node: self.node,
            thawed_ms: Millis(thawed_ms),
            frozen_ms: Millis(0),
            taken_utc_ms: UtcMs(1_700_000_000_000),
            closing,
            output: None,
        };
        let signed = Envelope::seal(&note, &self.key).expect("seals");
        self.say(NodeMessage::Meter(signed)).await;
    }

    pub(crate) async fn result(&mut self, award: &Award, cause: EndCause, output: Option<BlobId>) {
        self.say(NodeMessage::Result {
            lease: award.lease,
            fencing: award.fencing,
            cause,
            output,
        })
        .await;
    }
}

enum Heard {
    Text(String),
    Closed(Option<CloseFrame>),
}

async fn next(socket: &mut WebSocketStream<MaybeTlsStream<TcpStream>>) -> Heard {
    loop {
        let message = tokio::time::timeout(PATIENCE, socket.next()).await;
        match message.expect("the exchange says something in time") {
            Some(Ok(Message::Text(text))) => return Heard::Text(text.as_str().to_owned()),
            Some(Ok(Message::Close(why))) => return Heard::Closed(why),
            Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Err(_)) | None => return Heard::Closed(None),
        }
    }
}
