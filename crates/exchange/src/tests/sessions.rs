//! Who is let in as a node, who is not and why, and that a broken connection loses and doubles nothing.

use super::Lab;
use super::client::{Caller, Node};
use crate::session::socket::Pace;
use ed25519_dalek::SigningKey;
use sela_protocol::envelope::Envelope;
use sela_protocol::node::{ExchangeMessage, FRAME_LIMIT, HelloReply, NodeMessage, RefusalCode};
use sela_protocol::session::Frame;
use sela_protocol::tenant::{MarketView, NodeView};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

/// Refused with this code and a message that says this.
fn refused(entered: Result<Node, (RefusalCode, String)>, code: RefusalCode, says: &str) {
    let Err((found, message)) = entered else {
        panic!("let in instead of {code:?}");
    };
    assert_eq!(found, code, "{message}");
    assert!(message.contains(says), "{message} should say {says}");
}

#[tokio::test]
async fn an_invited_node_is_let_in_and_known_from_then_on() {
    let lab = Lab::start().await;
    let invited = lab.operator.invite().await;
    let mut node = Node::enter(lab.address(), &key(1), Some(&invited.invitation))
        .await
        .expect("let in");
    assert_eq!(node.owner, invited.owner);
    assert!(node.greeting.lab);
    node.offer("0.100000").await;
    node.settled().await;
    let market: MarketView = lab.operator.get("/v1/market").await.json();
    assert_eq!((market.nodes, market.offers, market.lab), (1, 1, true));
    assert_eq!(market.exchange, node.greeting.exchange);
    let nodes: Vec<NodeView> = lab.operator.get("/v1/admin/nodes").await.json();
    assert!(nodes[0].connected && nodes[0].cards[0].name.contains("SIMULATED"));

    let (first, lab) = (node.node, lab.restart().await);
    let again = Node::enter(lab.address(), &key(1), None).await.expect("known");
    assert_eq!((again.node, again.owner), (first, invited.owner));
}

#[tokio::test]
async fn who_has_no_good_invitation_is_refused_with_what_to_do() {
    let lab = Lab::start().await;
    let none = Node::enter(lab.address(), &key(1), None).await;
    refused(none, RefusalCode::NotInvited, "ask the operator for an invitation");
    let wrong = Node::enter(lab.address(), &key(1), Some("sela_invite_x")).await;
    refused(wrong, RefusalCode::NotInvited, "typing mistake");
    let invited = lab.operator.invite().await;
    let first = Node::enter(lab.address(), &key(1), Some(&invited.invitation)).await;
    assert!(first.is_ok());
    let second = Node::enter(lab.address(), &key(2), Some(&invited.invitation)).await;
    refused(second, RefusalCode::NotInvited, "ask the operator for one more");
}

#[tokio::test]
async fn a_hello_with_a_bad_signature_is_refused() {
    let lab = Lab::start().await;
    let invited = lab.operator.invite().await;
    // Signed by one key, naming another.
    let caller = Caller::connect(lab.address()).await;
    let hello = caller.hello(&key(1), Some(&invited.invitation), None);
    refused(
        caller.enter(&key(2), &hello).await,
        RefusalCode::BadSignature,
        "another key",
    );
    // Changed after it was signed.
    let mut caller = Caller::connect(lab.address()).await;
    let hello = caller.hello(&key(1), Some(&invited.invitation), None);
    let mut signed = serde_json::to_value(Envelope::seal(&hello, &key(1)).expect("seals")).expect("writes");
    let other = Envelope::seal(&caller.hello(&key(1), None, None), &key(1)).expect("seals");
    signed["payload"] = serde_json::to_value(other).expect("writes")["payload"].clone();
    caller.say(signed.to_string()).await;
    refused(
        caller.answer(&key(1)).await,
        RefusalCode::BadSignature,
        "changed on the way",
    );
    // The invitation is still good.
    assert!(
        Node::enter(lab.address(), &key(1), Some(&invited.invitation))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_replayed_hello_is_refused() {
    let lab = Lab::start().await;
    let invited = lab.operator.invite().await;
    let first = Caller::connect(lab.address()).await;
    let hello = first.hello(&key(1), Some(&invited.invitation), None);
    drop(first);
    let second = Caller::connect(lab.address()).await;
    refused(second.enter(&key(1), &hello).await, RefusalCode::BadSignature, "replay");
}

/// An exchange to which a node says Hello could else pass it on to another one and be that node there.
#[tokio::test]
async fn a_hello_that_was_said_to_another_exchange_is_refused() {
    let lab = Lab::start().await;
    let invited = lab.operator.invite().await;
    let caller = Caller::connect(lab.address()).await;
    let mut hello = caller.hello(&key(1), Some(&invited.invitation), None);
    hello.exchange = sela_protocol::envelope::PublicKey::of(&key(9));
    refused(
        caller.enter(&key(1), &hello).await,
        RefusalCode::BadSignature,
        "another exchange",
    );
}

#[tokio::test]
async fn another_protocol_and_what_is_no_hello_are_refused() {
    let lab = Lab::start().await;
    let caller = Caller::connect(lab.address()).await;
    let mut hello = caller.hello(&key(1), None, None);
    hello.protocol = 999;
    refused(
        caller.enter(&key(1), &hello).await,
        RefusalCode::ProtocolVersion,
        "update the older",
    );
    for garbage in ["", "{}", "hello", r#"{"payloadType":"x","payload":"","signatures":[]}"#] {
        let mut caller = Caller::connect(lab.address()).await;
        caller.say(garbage.to_owned()).await;
        let Err((code, message)) = caller.answer(&key(1)).await else {
            panic!("let in by {garbage}");
        };
        let allowed = [RefusalCode::ProtocolBroken, RefusalCode::BadSignature];
        assert!(allowed.contains(&code), "{garbage}: {code:?} {message}");
    }
}

#[tokio::test]
async fn who_does_not_say_hello_is_refused_after_a_while() {
    let lab = Lab::start_with(|settings| settings.pace.hello = Duration::from_millis(20)).await;
    let caller = Caller::connect(lab.address()).await;
    refused(
        caller.answer(&key(1)).await,
        RefusalCode::ProtocolBroken,
        "no Hello came",
    );
}

#[tokio::test]
async fn a_second_connection_is_refused_while_the_first_lives() {
    let lab = Lab::start().await;
    let mut node = Node::join(lab.address(), &lab.operator, 1).await;
    let second = Node::enter(lab.address(), &key(1), None).await;
    refused(second, RefusalCode::IdentityInUse, "stop one of the two");
    // The first goes on undisturbed.
    node.offer("0.100000").await;
    node.settled().await;
}

#[tokio::test]
async fn a_dead_connection_is_dropped_and_its_node_let_in_again() {
    let pace = Pace {
        hello: Duration::from_secs(10),
        ping: Duration::from_millis(20),
        dead: Duration::from_millis(200),
    };
    let lab = Lab::start_with(|settings| settings.pace = pace).await;
    // It is open and never read from: pings stay unanswered.
    let silent = Node::join(lab.address(), &lab.operator, 1).await;
    let again = loop {
        match Node::enter(lab.address(), &key(1), None).await {
            Ok(node) => break node,
            Err((RefusalCode::IdentityInUse, _)) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(again.node, silent.node);
}

#[tokio::test]
async fn after_a_dropped_socket_the_session_goes_on_and_delivers_once() {
    let lab = Lab::start().await;
    let mut node = Node::join(lab.address(), &lab.operator, 1).await;
    let session = node.resume.session;
    node.offer("0.100000").await;
    node.say(NodeMessage::Heartbeat {
        beat: 1,
        leases: Vec::new(),
    })
    .await;
    node.settled().await;
    // Numbered and never sent: the break came first. And the Renew is not acknowledged, so it comes again.
    let lost = node
        .side
        .send(NodeMessage::Heartbeat {
            beat: 2,
            leases: Vec::new(),
        })
        .expect("room");
    let mut node = come_back_when_free(node, &lab).await;
    assert_eq!(node.resume.session, session, "the same session");
    // What was sent again and then once more by a confused node counts once.
    node.send_frame(&lost).await;
    node.say(NodeMessage::Heartbeat {
        beat: 3,
        leases: Vec::new(),
    })
    .await;
    let mut renewed = Vec::new();
    while renewed.last() != Some(&3) {
        let beat = node.hear_until(|message| match message {
            ExchangeMessage::Renew { beat, .. } => Some(beat),
            ExchangeMessage::Award(_)
            | ExchangeMessage::Cancel { .. }
            | ExchangeMessage::Receipt(_)
            | ExchangeMessage::Refused { .. }
            | ExchangeMessage::Time { .. }
            | ExchangeMessage::Unknown => None,
        });
        renewed.push(beat.await);
    }
    assert_eq!(renewed, [2, 3], "beat 1's Renew had been received before the break");
    let market: MarketView = lab.operator.get("/v1/market").await.json();
    assert_eq!(market.offers, 1, "the offer outlived the break");
}

/// The node's network changed: the exchange holds a connection on which nothing will ever come, and does not know it yet.
#[tokio::test]
async fn a_node_goes_on_with_its_session_though_its_old_connection_is_not_known_to_be_dead() {
    let lab = Lab::start().await;
    let mut old = Node::join(lab.address(), &lab.operator, 1).await;
    old.offer("0.100000").await;
    old.settled().await;
    let enter = async |resume| {
        let caller = Caller::connect(lab.address()).await;
        let hello = caller.hello(&key(1), None, resume);
        caller.enter(&key(1), &hello).await
    };
    refused(enter(None).await, RefusalCode::IdentityInUse, "another connection");
    let mut other = old.resume;
    other.session = sela_protocol::id::IdSource::new(sela_protocol::units::UtcMs(1), [7; 32]).draw();
    refused(
        enter(Some(other)).await,
        RefusalCode::IdentityInUse,
        "another connection",
    );
    let Ok(mut new) = enter(Some(old.resume)).await else {
        panic!("it has to wait");
    };
    assert_eq!(new.resume.session, old.resume.session);
    let farewell = old.closed().await.expect("said why");
    assert!(farewell.reason.starts_with("replaced:"), "{}", farewell.reason);
    new = new.go_on(old).await;
    new.settled().await;
    let market: MarketView = lab.operator.get("/v1/market").await.json();
    assert_eq!((market.nodes, market.offers), (1, 1));
}

#[tokio::test]
async fn after_a_restart_of_the_exchange_a_new_session_begins() {
    let lab = Lab::start().await;
    let mut node = Node::join(lab.address(), &lab.operator, 1).await;
    let session = node.resume.session;
    node.offer("0.100000").await;
    node.settled().await;
    let lab = lab.restart().await;
    let farewell = node.closed().await.expect("said why");
    assert_eq!(farewell.code, CloseCode::Away);
    assert!(farewell.reason.starts_with("stopping:"), "{}", farewell.reason);
    let node = node.come_back(lab.address()).await;
    assert_ne!(node.resume.session, session);
    assert_eq!(node.exchange_received, 0);
    let market: MarketView = lab.operator.get("/v1/market").await.json();
    assert_eq!(
        (market.nodes, market.offers),
        (1, 0),
        "nothing is offered until the node says so again"
    );
}

#[tokio::test]
async fn what_breaks_the_protocol_closes_the_connection_with_a_reason() {
    let lab = Lab::start().await;
    let large = format!("\"{}\"", "x".repeat(usize::try_from(FRAME_LIMIT.0).expect("fits")));
    let gap = Frame {
        seq: 7,
        ack: 0,
        message: Some(NodeMessage::Heartbeat {
            beat: 1,
            leases: Vec::new(),
        }),
    };
    let unsent = Frame::<NodeMessage> {
        seq: 0,
        ack: 9,
        message: None,
    };
    let cases = [
        (Message::text(large), "frame of 1048578 bytes"),
        (Message::binary(vec![1, 2, 3]), "binary message"),
        (Message::text("no frame"), "this is no frame"),
        (
            Message::text(serde_json::to_string(&gap).expect("writes")),
            "frame 1 is missing",
        ),
        (
            Message::text(serde_json::to_string(&unsent).expect("writes")),
            "was acknowledged",
        ),
    ];
    let mut node = Node::join(lab.address(), &lab.operator, 1).await;
    for (message, says) in cases {
        node.send_message(message).await;
        let farewell = node.closed().await.expect("said why");
        assert!(farewell.reason.starts_with("protocol_broken: "), "{}", farewell.reason);
        assert!(farewell.reason.contains(says), "{} should say {says}", farewell.reason);
        node = come_back_when_free(node, &lab).await;
    }
}

#[tokio::test]
async fn a_message_of_a_newer_node_is_ignored_and_acknowledged() {
    let lab = Lab::start().await;
    let mut node = Node::join(lab.address(), &lab.operator, 1).await;
    let frame = node.side.send(NodeMessage::Unknown).expect("room");
    let mut newer = serde_json::to_value(&frame).expect("writes");
    newer["message"] = serde_json::json!({"type": "telemetry", "of": "a newer node"});
    node.send_text(newer.to_string()).await;
    node.settled().await;
}

#[test]
fn what_is_refused_reads_as_the_protocol_writes_it() {
    let refused = HelloReply::Refused {
        code: RefusalCode::IdentityInUse,
        message: "why".to_owned(),
    };
    let json = serde_json::to_string(&refused).expect("writes");
    assert_eq!(json, r#"{"type":"refused","code":"identity_in_use","message":"why"}"#);
}

/// The exchange sees the end of the old socket a moment later than the node.
async fn come_back_when_free(node: Node, lab: &Lab) -> Node {
    let (key, resume) = (node.key.clone(), node.resume);
    let mut node = node;
    node.hang_up().await;
    loop {
        let caller = Caller::connect(lab.address()).await;
        let hello = caller.hello(&key, None, Some(resume));
        match caller.enter(&key, &hello).await {
            Ok(entered) => return entered.go_on(node).await,
            Err((RefusalCode::IdentityInUse, _)) => tokio::task::yield_now().await,
            Err(other) => panic!("{other:?}"),
        }
    }
}
