//! What has ended before a session is told in it whatever there is of it: through a real session with its bound, to an exchange that
//! answers with receipts, with refusals or not at all, and over connections that break.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks for a few kinds of effects among all"
)]

mod world;

use proptest::prelude::*;
use sela_core::{Effect, Input, MarketInput, Record, State, UnsettledLease};
use sela_protocol::id::{GpuUuid, IdSource, LeaseId, NodeId};
use sela_protocol::lease::{EndCause, FencingToken, MeterNote, Receipt};
use sela_protocol::local::MarketLink;
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::{HEARTBEAT_INTERVAL, NodeMessage};
use sela_protocol::session::{Frame, SessionSide};
use sela_protocol::units::{BootMs, Millis, Now, UtcMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// As the agent's and the exchange's sessions have it.
const SESSION_BOUND: usize = 1_024;
/// A heartbeat must not stand behind more than this: the exchange reads 128 frames a second of a node that has much to say, and a
/// lease that runs meanwhile lives by its heartbeats.
const MOST_BEFORE_A_HEARTBEAT: usize = 256;

/// How the exchange answers about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Receipt,
    Refusal,
    Nothing,
}

/// A node with leases that ended long ago, and an exchange at the other end of a real session.
struct Pair {
    state: State,
    now: Now,
    node: NodeId,
    answers: BTreeMap<LeaseId, Answer>,
    nodes_side: SessionSide<Effect, MarketInput>,
    exchanges_side: SessionSide<MarketInput, Effect>,
    to_exchange: VecDeque<Frame<Effect>>,
    to_node: VecDeque<Frame<MarketInput>>,
    /// Leases whose closing note and result have come to the exchange in the present session.
    noted: BTreeSet<LeaseId>,
    told: BTreeSet<LeaseId>,
    settled: BTreeSet<LeaseId>,
}

impl Pair {
    fn new(answers: &[Answer]) -> Self {
        let now = Now {
            boot_ms: BootMs(10_000_000),
            utc_ms: UtcMs(1_800_000_000_000),
        };
        let mut ids = IdSource::new(now.utc_ms, [3; 32]);
        let node = ids.draw();
        let leases: Vec<LeaseId> = answers.iter().map(|_| ids.draw()).collect();
        let mut pair = Self {
            state: State::new(sela_core::Policy::default(), now),
            now,
            node,
            answers: leases.iter().copied().zip(answers.iter().copied()).collect(),
            nodes_side: SessionSide::new(SESSION_BOUND),
            exchanges_side: SessionSide::new(SESSION_BOUND),
            to_exchange: VecDeque::new(),
            to_node: VecDeque::new(),
            noted: BTreeSet::new(),
            told: BTreeSet::new(),
            settled: BTreeSet::new(),
        };
        let mut unsettled: Vec<UnsettledLease> = leases.iter().map(|lease| ended(*lease, node)).collect();
        // At another exchange: nothing of it is told to this one.
        unsettled.push(ended(ids.draw(), ids.draw()));
        let Input::Started {
            lab,
            isolation,
            scratch,
            pause,
            open,
            unsettled: _,
        } = world::started()
        else {
            panic!("the world starts otherwise")
        };
        pair.step(Input::Started {
            lab,
            isolation,
            scratch,
            pause,
            open,
            unsettled,
        });
        pair.step(Input::Market(MarketInput::Link(MarketLink::Connected {
            url: "ws://127.0.0.1:7350".into(),
            exchange: "test".into(),
            node,
        })));
        pair.open_session();
        pair
    }

    /// A session begins from nothing.
    fn open_session(&mut self) {
        self.nodes_side = SessionSide::new(SESSION_BOUND);
        self.exchanges_side = SessionSide::new(SESSION_BOUND);
        self.to_exchange.clear();
        self.to_node.clear();
        self.noted.clear();
        self.told.clone_from(&self.settled);
        let node = self.node;
        self.step(Input::Market(MarketInput::Session { node, resumed: false }));
    }

    /// The connection breaks, and both go on with the session where they were.
    fn resume(&mut self) {
        let (nodes, exchanges) = (self.nodes_side.received(), self.exchanges_side.received());
        self.to_exchange = self.nodes_side.resume(exchanges).expect("resumes").into();
        self.to_node = self.exchanges_side.resume(nodes).expect("resumes").into();
        let node = self.node;
        self.step(Input::Market(MarketInput::Session { node, resumed: true }));
    }

    fn step(&mut self, input: Input) {
        for effect in self.state.step(self.now, input) {
            match &effect {
                Effect::Send(_) | Effect::SendMeter(_) => {
                    let frame = self
                        .nodes_side
                        .send(effect)
                        .expect("the session has room for what is said");
                    self.to_exchange.push_back(frame);
                }
                Effect::Append(Record::Settled { lease }) => assert!(self.settled.insert(*lease), "settled once"),
                _ => {}
            }
        }
        let before_a_heartbeat = self
            .to_exchange
            .iter()
            .position(|frame| matches!(frame.message, Some(Effect::Send(NodeMessage::Heartbeat { .. }))));
        let waiting = before_a_heartbeat.unwrap_or(self.to_exchange.len());
        assert!(
            waiting <= MOST_BEFORE_A_HEARTBEAT,
            "{waiting} frames stand before a heartbeat"
        );
    }

    /// The exchange takes so many frames and answers.
    fn exchange_takes(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(frame) = self.to_exchange.pop_front() else {
                break;
            };
            let message = self.exchanges_side.receive(frame).expect("in order");
            let answer = message.and_then(|message| self.answer(&message));
            if let Some(answer) = answer {
                let frame = self.exchanges_side.send(answer).expect("room at the exchange");
                self.to_node.push_back(frame);
            }
        }
        self.to_node.push_back(self.exchanges_side.acknowledge());
    }

    fn answer(&mut self, message: &Effect) -> Option<MarketInput> {
        match message {
            Effect::SendMeter(note) => {
                assert!(note.closing.is_some() && note.node == self.node);
                self.noted.insert(note.lease);
                None
            }
            Effect::Send(NodeMessage::Result { lease, .. }) => {
                assert!(self.noted.contains(lease), "the closing note comes before the result");
                assert!(self.told.insert(*lease), "told twice in one session");
                match self.answers.get(lease).expect("a lease of this node") {
                    Answer::Receipt => Some(MarketInput::Receipt(Box::new(receipt(*lease, self.node)))),
                    Answer::Refusal => Some(MarketInput::Refused {
                        lease: Some(*lease),
                        message: "it is no lease of this node".into(),
                    }),
                    Answer::Nothing => None,
                }
            }
            Effect::Send(NodeMessage::Heartbeat { beat, .. }) => Some(MarketInput::Renew {
                beat: *beat,
                end: Vec::new(),
            }),
            _ => None,
        }
    }

    fn node_takes(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(frame) = self.to_node.pop_front() else {
                return;
            };
            if let Some(input) = self.nodes_side.receive(frame).expect("in order") {
                self.step(Input::Market(input));
            }
        }
        let acknowledged = Frame {
            seq: 0,
            ack: self.nodes_side.received(),
            message: None,
        };
        self.to_exchange.push_back(acknowledged);
    }

    /// Both take all that there is, until neither has anything to say.
    fn talk(&mut self) {
        loop {
            self.exchange_takes(usize::MAX);
            let said = self.nodes_side.waiting();
            self.node_takes(usize::MAX);
            if self.nodes_side.waiting() == said && self.to_exchange.iter().all(|frame| frame.message.is_none()) {
                return;
            }
        }
    }

    /// A heartbeat's time passes.
    fn pass(&mut self) {
        self.now.boot_ms = self.now.boot_ms.plus(HEARTBEAT_INTERVAL);
        self.now.utc_ms = self.now.utc_ms.plus(HEARTBEAT_INTERVAL);
        self.step(Input::Tick);
    }

    fn with(&self, answer: Answer) -> BTreeSet<LeaseId> {
        let of_kind = self.answers.iter().filter(|(_, kind)| **kind == answer);
        of_kind.map(|(lease, _)| *lease).collect()
    }
}

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

fn receipt(lease: LeaseId, node: NodeId) -> Receipt {
    let mut ids = IdSource::new(UtcMs(6), [8; 32]);
    Receipt {
        receipt: ids.draw(),
        lease,
        job: ids.draw(),
        node,
        gpu: GpuUuid(world::GPU.into()),
        owner: ids.draw(),
        price: HourlyPrice(Micros(1)),
        billed_ms: Millis(61_000),
        gross: Micros(0),
        fee: Micros(0),
        net: Micros(0),
        closed: Some(EndCause::Exited { code: 0 }),
        issued_utc_ms: UtcMs(6),
        lab: true,
    }
}

#[test]
fn five_thousand_unsettled_leases_are_told_and_settled_in_one_session() {
    let mut pair = Pair::new(&[Answer::Receipt; 5_000]);
    pair.talk();
    assert_eq!(pair.settled.len(), 5_000);
    assert_eq!(pair.settled, pair.with(Answer::Receipt));
}

#[test]
fn an_exchange_that_answers_nothing_about_leases_is_told_of_all_of_them_by_the_heartbeat() {
    let mut pair = Pair::new(&[Answer::Nothing; 2_000]);
    let mut before = 0;
    while pair.told.len() < 2_000 {
        pair.pass();
        pair.talk();
        assert!(pair.told.len() > before, "each heartbeat that is answered brings more");
        before = pair.told.len();
    }
    assert_eq!(pair.settled.len(), 0);
}

/// One random thing that happens between the two.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Exchange(usize),
    Node(usize),
    Pass,
    Resume,
    NewSession,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (1..400_usize).prop_map(Happening::Exchange),
        6 => (1..400_usize).prop_map(Happening::Node),
        3 => Just(Happening::Pass),
        1 => Just(Happening::Resume),
        1 => Just(Happening::NewSession),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![4 => Just(Answer::Receipt), 1 => Just(Answer::Refusal), 1 => Just(Answer::Nothing)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// However many there are, however the exchange answers and wherever the connection breaks: the session never overflows, no
    /// heartbeat waits long, each lease is told once in a session, and in the end all are told and what was receipted is settled.
    #[test]
    fn everything_that_ended_is_told_whatever_there_is_of_it(
        answers in prop::collection::vec(answer(), 0..1_500),
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let mut pair = Pair::new(&answers);
        for what in happenings {
            match what {
                Happening::Exchange(frames) => pair.exchange_takes(frames),
                Happening::Node(frames) => pair.node_takes(frames),
                Happening::Pass => pair.pass(),
                Happening::Resume => pair.resume(),
                Happening::NewSession => pair.open_session(),
            }
        }
        pair.talk();
        for _ in 0..answers.len() {
            if pair.told.len() == answers.len() {
                break;
            }
            pair.pass();
            pair.talk();
        }
        prop_assert_eq!(pair.told.len(), answers.len());
        prop_assert_eq!(&pair.settled, &pair.with(Answer::Receipt));
    }
}
