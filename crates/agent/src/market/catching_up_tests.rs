//! A node with thousands of leases that nobody has settled, through the real link and a real WebSocket: all are told and settled over
//! one connection, within the bound that both ends keep.

use super::link::{Link, LinkNews};
use super::link_tests::{Peer, Script};
use ed25519_dalek::SigningKey;
use sela_core::{Effect, Input, MarketInput, Policy, Record, State, UnsettledLease};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{GpuUuid, IdSource, LeaseId, NodeId, SessionId};
use sela_protocol::lease::{EndCause, FencingToken, MeterNote, Receipt};
use sela_protocol::local::IsolationState;
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::{ExchangeMessage, Isolation, NodeMessage, Scratch};
use sela_protocol::session::SessionSide;
use sela_protocol::units::{Millis, UtcMs};
use tokio::sync::mpsc;

const LEASES: usize = 5_000;
/// As the exchange's sessions have it.
const SESSION_BOUND: usize = 1_024;

fn ended(lease: LeaseId, node: NodeId) -> UnsettledLease {
    let cause = EndCause::Exited { code: 0 };
    UnsettledLease {
        note: MeterNote {
            lease,
            fencing: FencingToken(1),
            node,
            thawed_ms: Millis(61_000),
            frozen_ms: Millis(0),
            taken_utc_ms: UtcMs(5),
            closing: Some(cause.clone()),
            output: None,
        },
        cause,
        output: None,
        energy_mwh: None,
        ended_utc_ms: UtcMs(5),
        lasted: Millis(61_000),
    }
}

fn receipt(note: MeterNote) -> Receipt {
    let mut ids = IdSource::new(UtcMs(6), [8; 32]);
    Receipt {
        receipt: ids.draw(),
        lease: note.lease,
        job: ids.draw(),
        node: note.node,
        gpu: GpuUuid("GPU-0".into()),
        owner: ids.draw(),
        price: HourlyPrice(Micros(1)),
        billed_ms: note.thawed_ms,
        gross: Micros(0),
        fee: Micros(0),
        net: Micros(0),
        closed: note.closing,
        issued_utc_ms: UtcMs(6),
        lab: true,
    }
}

/// An exchange that has every closing note receipted at once, and acknowledges what it took.
async fn settle_what_comes(peer: &mut Peer, key: &SigningKey) {
    let mut side: SessionSide<ExchangeMessage, NodeMessage> = SessionSide::new(SESSION_BOUND);
    let node_key = PublicKey::of(&SigningKey::from_bytes(&[1; 32]));
    loop {
        let message = side.receive(peer.frame().await).expect("in order");
        let answer = match message {
            Some(NodeMessage::Meter(note)) => {
                let note = note.open(&node_key).expect("signed by the node");
                let signed = Envelope::seal(&receipt(note), key).expect("seals");
                Some(ExchangeMessage::Receipt(signed))
            }
            Some(NodeMessage::Heartbeat { beat, .. }) => Some(ExchangeMessage::Renew { beat, end: Vec::new() }),
            Some(_) => None,
            None => continue,
        };
        match answer {
            Some(answer) => peer.send(&side.send(answer).expect("the node keeps up")).await,
            None => peer.send(&side.acknowledge()).await,
        }
    }
}

/// The loop's part: what the core decides is signed and said, and what the exchange said is acknowledged once it was acted on.
struct Node {
    state: State,
    link: Link,
    session: Option<SessionId>,
    exchange: PublicKey,
    settled: usize,
}

impl Node {
    fn step(&mut self, input: Input) {
        let key = SigningKey::from_bytes(&[1; 32]);
        for effect in self.state.step(sela_clock::now(), input) {
            let message = match effect {
                Effect::Send(message) => message,
                Effect::SendMeter(note) => NodeMessage::Meter(Envelope::seal(&note, &key).expect("seals")),
                Effect::Append(Record::Settled { .. }) => {
                    self.settled += 1;
                    continue;
                }
                Effect::Freeze { .. }
                | Effect::Thaw { .. }
                | Effect::Save { .. }
                | Effect::End { .. }
                | Effect::Grant { .. }
                | Effect::Append(_)
                | Effect::Fetch(_)
                | Effect::Start { .. }
                | Effect::Upload { .. }
                | Effect::WatchCard { .. }
                | Effect::Attention { .. }
                | Effect::Publish(_)
                | Effect::Reply { .. }
                | Effect::Exit => continue,
            };
            if let Some(session) = self.session {
                self.link.say(session, message);
            }
        }
    }

    fn hear(&mut self, news: LinkNews) {
        match news {
            LinkNews::State(link) => self.step(Input::Market(MarketInput::Link(link))),
            LinkNews::Session {
                session, node, resumed, ..
            } => {
                self.session = Some(session);
                self.step(Input::Market(MarketInput::Session { node, resumed }));
            }
            LinkNews::Message {
                session,
                number,
                message,
            } => {
                match *message {
                    ExchangeMessage::Receipt(signed) => {
                        let receipt = Box::new(signed.open(&self.exchange).expect("signed by the exchange"));
                        self.step(Input::Market(MarketInput::Receipt(receipt)));
                    }
                    ExchangeMessage::Renew { beat, end } => {
                        self.step(Input::Market(MarketInput::Renew { beat, end }));
                    }
                    ExchangeMessage::Award(_)
                    | ExchangeMessage::Cancel { .. }
                    | ExchangeMessage::Refused { .. }
                    | ExchangeMessage::Time { .. }
                    | ExchangeMessage::Unknown => {}
                }
                self.link.acted_on(session, number);
            }
        }
    }

    async fn settle_all(&mut self, news: &mut mpsc::Receiver<LinkNews>) {
        while self.settled < LEASES {
            let news = news.recv().await.expect("the link lives");
            self.hear(news);
        }
    }
}

#[tokio::test]
async fn five_thousand_unsettled_leases_are_settled_over_one_connection() {
    let mut script = Script::new().await;
    let session = script.ids.draw();
    // As the script's Welcome names it.
    let node: NodeId = script.ids.clone().draw();
    let mut ids = IdSource::new(UtcMs(7), [7; 32]);
    let (link, mut news) = script.start();
    let mut agent = Node {
        state: State::new(Policy::default(), sela_clock::now()),
        link,
        session: None,
        exchange: PublicKey::of(&script.key),
        settled: 0,
    };
    agent.step(Input::Started {
        lab: true,
        isolation: IsolationState::Ready {
            level: Isolation::LabCgroupV1,
        },
        scratch: Scratch::Memory,
        pause: None,
        open: Vec::new(),
        unsettled: (0..LEASES).map(|_| ended(ids.draw(), node)).collect(),
    });
    let (mut peer, _) = script.meet().await;
    script.welcome(&mut peer, session, 0).await;
    tokio::select! {
        () = agent.settle_all(&mut news) => {}
        () = settle_what_comes(&mut peer, &script.key) => {}
        again = script.meet() => panic!("it had to connect again: {:?}", again.1.resume),
    }
    assert_eq!(agent.settled, LEASES);
}
