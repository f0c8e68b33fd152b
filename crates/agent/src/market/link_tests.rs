//! The link against an exchange that follows a script over a real WebSocket: what is said, resumed, repeated and refused.

use super::link::{Link, LinkNews, LinkSettings, SILENCE};
use crate::keys::ExchangeKeys;
use crate::settings::url_of_market::MarketUrl;
use ed25519_dalek::SigningKey;
use futures_util::{SinkExt as _, StreamExt as _};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{IdSource, SessionId};
use sela_protocol::local::MarketLink;
use sela_protocol::node::{ExchangeMessage, Greeting, Hello, HelloReply, NodeMessage, RefusalCode, Resume};
use sela_protocol::session::Frame;
use sela_protocol::units::UtcMs;
use serde::Serialize;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

pub(super) struct Script {
    listener: TcpListener,
    pub(super) ids: IdSource,
    pub(super) key: SigningKey,
    lab: bool,
    folder: tempfile::TempDir,
}

pub(super) struct Peer {
    socket: WebSocketStream<TcpStream>,
}

impl Script {
    pub(super) async fn new() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.expect("a port"),
            ids: IdSource::new(UtcMs(1), [4; 32]),
            key: SigningKey::from_bytes(&[9; 32]),
            lab: true,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn settings(&self) -> LinkSettings {
        let port = self.listener.local_addr().expect("bound").port();
        LinkSettings {
            url: MarketUrl::parse(&format!("http://127.0.0.1:{port}")).expect("loopback"),
            invitation: Some("please".into()),
            name: "node".into(),
            key: SigningKey::from_bytes(&[1; 32]),
            known: ExchangeKeys::at(self.folder.path().join("keys.json")),
            lab: true,
            silence: SILENCE,
        }
    }

    pub(super) fn start(&self) -> (Link, mpsc::Receiver<LinkNews>) {
        let (news, received) = mpsc::channel(64);
        (Link::start(self.settings(), news), received)
    }

    /// Takes a connection, greets it and reads its signed hello.
    pub(super) async fn meet(&self) -> (Peer, Hello) {
        let (stream, _) = self.listener.accept().await.expect("a connection");
        let socket = tokio_tungstenite::accept_async(stream).await.expect("a WebSocket");
        let mut peer = Peer { socket };
        let nonce = "00ff".to_owned();
        peer.send(&Greeting {
            protocol_from: 1,
            protocol_to: 1,
            exchange: PublicKey::of(&self.key),
            name: "script".into(),
            nonce: nonce.clone(),
            lab: self.lab,
        })
        .await;
        let envelope: Envelope<Hello> = serde_json::from_str(&peer.text().await).expect("an envelope");
        let node_key = PublicKey::of(&SigningKey::from_bytes(&[1; 32]));
        let hello = envelope.open(&node_key).expect("signed by the node");
        assert_eq!((&hello.nonce, hello.exchange), (&nonce, PublicKey::of(&self.key)));
        (peer, hello)
    }

    pub(super) async fn welcome(&self, peer: &mut Peer, session: SessionId, received: u64) {
        let mut ids = self.ids.clone();
        peer.send(&HelloReply::Welcome {
            node: ids.draw(),
            owner: ids.draw(),
            session,
            received,
        })
        .await;
    }
}

impl Peer {
    pub(super) async fn send(&mut self, value: &impl Serialize) {
        let text = serde_json::to_string(value).expect("writes");
        self.socket.send(Message::Text(text.into())).await.expect("sent");
    }

    async fn text(&mut self) -> String {
        loop {
            match self.socket.next().await.expect("open").expect("a message") {
                Message::Text(text) => return text.to_string(),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {}
            }
        }
    }

    pub(super) async fn frame(&mut self) -> Frame<NodeMessage> {
        serde_json::from_str(&self.text().await).expect("a frame")
    }

    async fn say(&mut self, seq: u64, beat: u64) {
        self.send(&Frame {
            seq,
            ack: 0,
            message: Some(ExchangeMessage::Renew { beat, end: Vec::new() }),
        })
        .await;
    }
}

fn heartbeat(beat: u64) -> NodeMessage {
    NodeMessage::Heartbeat {
        beat,
        leases: Vec::new(),
    }
}

/// The next news that is not just about connecting.
async fn next(news: &mut mpsc::Receiver<LinkNews>) -> LinkNews {
    loop {
        match news.recv().await.expect("the link lives") {
            LinkNews::State(MarketLink::Connecting { .. } | MarketLink::Connected { .. }) => {}
            other @ (LinkNews::State(_) | LinkNews::Session { .. } | LinkNews::Message { .. }) => return other,
        }
    }
}

async fn session(news: &mut mpsc::Receiver<LinkNews>) -> (SessionId, bool) {
    match next(news).await {
        LinkNews::Session { session, resumed, .. } => (session, resumed),
        other @ (LinkNews::State(_) | LinkNews::Message { .. }) => panic!("{other:?}"),
    }
}

async fn message(news: &mut mpsc::Receiver<LinkNews>) -> (u64, ExchangeMessage) {
    match next(news).await {
        LinkNews::Message { number, message, .. } => (number, *message),
        other @ (LinkNews::State(_) | LinkNews::Session { .. }) => panic!("{other:?}"),
    }
}

async fn refusal(news: &mut mpsc::Receiver<LinkNews>) -> String {
    match next(news).await {
        LinkNews::State(MarketLink::Refused { message, .. }) => message,
        other @ (LinkNews::State(_) | LinkNews::Session { .. } | LinkNews::Message { .. }) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_message_is_acknowledged_only_after_it_was_acted_on() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (link, mut news) = script.start();
    let (mut peer, hello) = script.meet().await;
    assert_eq!((hello.resume, hello.invitation.as_deref()), (None, Some("please")));
    script.welcome(&mut peer, id, 0).await;
    assert_eq!(session(&mut news).await, (id, false));
    peer.say(1, 7).await;
    assert_eq!(message(&mut news).await.0, 1);
    link.say(id, heartbeat(1));
    let frame = peer.frame().await;
    assert_eq!((frame.seq, frame.ack), (1, 0), "received, not yet acted on");
    link.acted_on(id, 1);
    let frame = peer.frame().await;
    assert_eq!((frame.seq, frame.ack, frame.message), (0, 1, None));
}

#[tokio::test]
async fn after_a_break_the_session_goes_on_and_nothing_is_lost_or_doubled() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    session(&mut news).await;
    peer.say(1, 7).await;
    message(&mut news).await;
    link.say(id, heartbeat(1));
    link.say(id, heartbeat(2));
    peer.frame().await;
    drop(peer);
    let (mut peer, hello) = script.meet().await;
    let resume = Resume {
        session: id,
        received: 0,
    };
    assert_eq!(hello.resume, Some(resume), "frame 1 was not acted on");
    script.welcome(&mut peer, id, 1).await;
    let frame = peer.frame().await;
    assert_eq!(
        (frame.seq, frame.message),
        (2, Some(heartbeat(2))),
        "only what was not received"
    );
    assert_eq!(session(&mut news).await, (id, true));
    peer.say(1, 7).await;
    peer.say(2, 8).await;
    let (number, _) = message(&mut news).await;
    assert_eq!(number, 2, "frame 1 came twice and is told once");
}

/// The exchange's machine lost its power, or this one went to another network: no end of the connection ever comes.
#[tokio::test]
async fn a_connection_on_which_nothing_comes_is_left_though_the_node_goes_on_to_speak() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (news, mut received) = mpsc::channel(64);
    let settings = LinkSettings {
        silence: Duration::from_millis(400),
        ..script.settings()
    };
    let link = Link::start(settings, news);
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    session(&mut received).await;
    let speaks = async {
        for beat in 0.. {
            link.say(id, heartbeat(beat));
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    };
    let (_again, hello) = tokio::select! {
        () = speaks => unreachable!("it speaks on"),
        met = script.meet() => met,
    };
    assert!(hello.resume.is_some(), "the session goes on over a new connection");
}

#[tokio::test]
async fn what_is_said_while_nobody_listens_is_sent_when_the_session_is_resumed() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    session(&mut news).await;
    drop(peer);
    link.say(id, heartbeat(1));
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    assert_eq!(peer.frame().await.message, Some(heartbeat(1)));
}

#[tokio::test]
async fn the_last_words_are_sent_before_the_agent_leaves() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    session(&mut news).await;
    for beat in 1..=3 {
        link.say(id, heartbeat(beat));
    }
    link.close().await;
    for beat in 1..=3 {
        assert_eq!(peer.frame().await.message, Some(heartbeat(beat)));
    }
}

#[tokio::test]
async fn a_new_session_starts_from_nothing_and_hears_nothing_of_the_old() {
    let mut script = Script::new().await;
    let (old, new) = (script.ids.draw(), script.ids.draw());
    let (link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, old, 0).await;
    session(&mut news).await;
    link.say(old, heartbeat(1));
    peer.frame().await;
    drop(peer);
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, new, 0).await;
    assert_eq!(session(&mut news).await, (new, false));
    link.say(old, heartbeat(2));
    link.say(new, heartbeat(3));
    let frame = peer.frame().await;
    assert_eq!((frame.seq, frame.message), (1, Some(heartbeat(3))));
}

#[tokio::test]
async fn a_frame_that_is_missing_ends_the_session() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (_link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    session(&mut news).await;
    peer.say(2, 7).await;
    let (_, hello) = script.meet().await;
    assert_eq!(hello.resume, None, "it cannot be resumed");
}

#[tokio::test]
async fn a_refusal_is_shown_in_the_exchanges_words() {
    let script = Script::new().await;
    let (_link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    peer.send(&HelloReply::Refused {
        code: RefusalCode::NotInvited,
        message: "ask the operator for an invitation".into(),
    })
    .await;
    assert_eq!(refusal(&mut news).await, "ask the operator for an invitation");
}

#[tokio::test]
async fn an_exchange_with_another_key_gets_no_hello() {
    let mut script = Script::new().await;
    let id = script.ids.draw();
    let (link, mut news) = script.start();
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, id, 0).await;
    session(&mut news).await;
    drop((link, peer, news));
    script.key = SigningKey::from_bytes(&[10; 32]);
    let (_link, mut news) = script.start();
    let (stream, _) = script.listener.accept().await.expect("a connection");
    let socket = tokio_tungstenite::accept_async(stream).await.expect("a WebSocket");
    let mut peer = Peer { socket };
    peer.send(&Greeting {
        protocol_from: 1,
        protocol_to: 1,
        exchange: PublicKey::of(&script.key),
        name: "script".into(),
        nonce: "00".into(),
        lab: true,
    })
    .await;
    let message = refusal(&mut news).await;
    assert!(
        message.contains("another key") && message.contains("keys.json"),
        "{message}"
    );
    let gone = peer.socket.next().await;
    assert!(
        !matches!(gone, Some(Ok(Message::Text(_)))),
        "no hello was sent: {gone:?}"
    );
}

#[tokio::test]
async fn an_agent_that_is_no_lab_refuses_money_of_no_worth() {
    let script = Script::new().await;
    let (news, mut received) = mpsc::channel(64);
    let settings = LinkSettings {
        lab: false,
        ..script.settings()
    };
    let _link = Link::start(settings, news);
    let (stream, _) = script.listener.accept().await.expect("a connection");
    let socket = tokio_tungstenite::accept_async(stream).await.expect("a WebSocket");
    let mut peer = Peer { socket };
    peer.send(&Greeting {
        protocol_from: 1,
        protocol_to: 1,
        exchange: PublicKey::of(&script.key),
        name: "script".into(),
        nonce: "00".into(),
        lab: true,
    })
    .await;
    assert!(refusal(&mut received).await.contains("--lab"));
}
