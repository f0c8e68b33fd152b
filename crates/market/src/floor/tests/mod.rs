//! Tests of the whole market through `Floor::step`, and the world that they share: it passes the time in, keeps the records as a
//! store would, and after every step holds the rules that must always hold.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test that looks for one kind of message does not care which others there are"
)]

mod away;
mod clocks;
mod jobs;
mod leases;
mod money;
mod network;
mod nodes;
mod paces;
mod random;
mod restarts;

use super::{Floor, FloorConfig};
use crate::effect::{Answer, Effect, Refusal};
use crate::input::{Ask, ConnectionId, Entropy, Input, RequestId};
use crate::ledger::{self, Account};
use crate::record::{LeaseTerms, Record};
use ed25519_dalek::SigningKey;
use sela_protocol::blob::BlobId;
use sela_protocol::card::{CardDescription, Reading};
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{GpuUuid, JobId, LeaseId, NodeId, OwnerId, TenantId};
use sela_protocol::job::JobSpec;
use sela_protocol::lease::{EndCause, EndedBy, FencingToken, LeasePhase, MeterNote, Receipt};
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::node::{ExchangeMessage, Isolation, LeaseBeat, NodeMessage, Offer, RefusalCode};
use sela_protocol::tenant::{JobState, JobView, LedgerCheck};
use sela_protocol::units::{BootMs, Bytes, Millis, Now, UtcMs};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const LAB: FloorConfig = FloorConfig {
    fee_basis_points: 1_000,
    lab: true,
};

#[derive(Debug)]
pub(super) struct World {
    pub(super) floor: Floor,
    pub(super) now: Now,
    steps: u64,
    /// Takes each step twice from the same state, to see that it decides the same.
    pub(super) twice: bool,
    /// What a store would have.
    pub(super) records: Vec<Record>,
    /// Messages to nodes since they were last taken.
    sent: Vec<(NodeId, ExchangeMessage)>,
    pub(super) receipts: Vec<Receipt>,
}

#[derive(Debug, Clone)]
pub(super) struct Machine {
    key: SigningKey,
    pub(super) connection: ConnectionId,
    pub(super) node: NodeId,
    pub(super) owner: OwnerId,
    cards: u8,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            floor: Floor::new(LAB),
            now: Now {
                boot_ms: BootMs(500_000),
                utc_ms: UtcMs(1_760_000_000_000),
            },
            steps: 0,
            twice: false,
            records: Vec::new(),
            sent: Vec::new(),
            receipts: Vec::new(),
        }
    }

    /// One step; its effects are carried out on this world and checked.
    pub(super) fn step(&mut self, input: Input) -> Vec<Effect> {
        self.steps += 1;
        let mut entropy = [0; 32];
        entropy[..8].copy_from_slice(&self.steps.to_le_bytes());
        let asks = matches!(input, Input::Request { .. });
        let again = self.twice.then(|| (self.floor.clone(), input.clone()));
        let effects = self.floor.step(self.now, Entropy(entropy), input);
        if let Some((mut floor, input)) = again {
            assert_eq!(floor.step(self.now, Entropy(entropy), input), effects, "the same again");
        }
        let mut replies = 0;
        for (place, effect) in effects.iter().enumerate() {
            match effect {
                Effect::Commit(records) => {
                    assert_eq!(place, 0, "a commit comes first, and once");
                    assert!(!records.is_empty());
                    self.records.extend(records.iter().cloned());
                }
                Effect::Send { node, message } => self.sent.push((*node, message.clone())),
                Effect::SendReceipt { receipt, .. } => self.receipts.push(receipt.clone()),
                Effect::Reply { .. } => replies += 1,
                Effect::Admit { .. } | Effect::Refuse { .. } | Effect::Close { .. } => {}
                Effect::Defect { message } => panic!("a defect: {message}"),
            }
        }
        assert_eq!(replies, usize::from(asks), "each request has one reply");
        effects
    }

    pub(super) fn ask(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        let request = RequestId(self.steps);
        let effects = self.step(Input::Request { request, ask });
        let reply = effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { request: of, answer } if of == request => Some(answer),
            _ => None,
        });
        reply.expect("a reply")
    }

    pub(super) fn tenant(&mut self, micros: i64) -> TenantId {
        let answer = self.ask(Ask::CreateTenant { name: "tenant".into() });
        let Ok(Answer::TenantCreated(created)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(self.floor.tenant_by_key(&created.api_key), Some(created.tenant));
        if micros > 0 {
            self.deposit(created.tenant, micros, "first").expect("a deposit");
        }
        created.tenant
    }

    pub(super) fn deposit(&mut self, tenant: TenantId, micros: i64, key: &str) -> Result<Answer, Refusal> {
        self.ask(Ask::Deposit {
            tenant,
            amount: Micros(micros),
            idempotency_key: key.into(),
        })
    }

    pub(super) fn invitation(&mut self) -> String {
        let answer = self.ask(Ask::InviteOwner { name: "owner".into() });
        let Ok(Answer::OwnerInvited(invited)) = answer else {
            panic!("{answer:?}")
        };
        invited.invitation
    }

    /// A connected node with one simulated card, offered at this floor.
    pub(super) fn machine(&mut self, floor: i64) -> Machine {
        let mut machine = self.silent_machine();
        machine.cards = 1;
        self.present(&machine, floor);
        machine
    }

    /// A connected node that has said nothing yet.
    pub(super) fn silent_machine(&mut self) -> Machine {
        let invitation = self.invitation();
        self.steps += 1;
        let mut seed = [9; 32];
        seed[..8].copy_from_slice(&self.steps.to_le_bytes());
        let key = SigningKey::from_bytes(&seed);
        let effects = self.hello(&key, Some(invitation), false);
        let admitted = effects.iter().find_map(|effect| match effect {
            Effect::Admit {
                connection,
                node,
                owner,
            } => Some((*connection, *node, *owner)),
            _ => None,
        });
        let (connection, node, owner) = admitted.expect("admitted");
        Machine {
            key,
            connection,
            node,
            owner,
            cards: 0,
        }
    }

    pub(super) fn hello(&mut self, key: &SigningKey, invitation: Option<String>, resumed: bool) -> Vec<Effect> {
        self.step(Input::NodeHello {
            connection: ConnectionId(self.steps),
            key: PublicKey::of(key),
            invitation,
            name: "gaming-pc".into(),
            resumed,
        })
    }

    /// Connects a known node again.
    pub(super) fn reconnect(&mut self, machine: &mut Machine, resumed: bool) -> Vec<Effect> {
        let connection = ConnectionId(self.steps);
        let key = machine.key.clone();
        let effects = self.hello(&key, None, resumed);
        machine.connection = connection;
        effects
    }

    pub(super) fn present(&mut self, machine: &Machine, floor: i64) {
        self.say(
            machine,
            NodeMessage::Capability {
                cards: (0..machine.cards).map(card).collect(),
                isolation: Isolation::LabCgroupV1,
                architecture: "amd64".into(),
                memory: Bytes::from_gib(16),
                scratch: sela_protocol::node::Scratch::Memory,
                agent_version: "0.1.0".into(),
            },
        );
        for number in 0..machine.cards {
            self.offer(machine, number, floor, true);
        }
    }

    pub(super) fn offer(&mut self, machine: &Machine, number: u8, floor: i64, available: bool) {
        let offer = Offer {
            gpu: card(number).uuid,
            floor: HourlyPrice(Micros(floor)),
            available,
            network: Vec::new(),
        };
        self.say(machine, NodeMessage::Offer(offer));
    }

    pub(super) fn say(&mut self, machine: &Machine, message: NodeMessage) -> Vec<Effect> {
        self.step(Input::NodeMessage {
            connection: machine.connection,
            message,
        })
    }

    pub(super) fn disconnect(&mut self, machine: &Machine) {
        self.step(Input::NodeDisconnected {
            connection: machine.connection,
        });
    }

    pub(super) fn submit(&mut self, tenant: TenantId, spec: JobSpec) -> JobId {
        let spec = Box::new(spec);
        let answer = self.ask(Ask::SubmitJob { tenant, spec });
        let Ok(Answer::Submitted(submitted)) = answer else {
            panic!("{answer:?}")
        };
        submitted.job
    }

    pub(super) fn cancel(&mut self, tenant: TenantId, job: JobId) -> Result<Answer, Refusal> {
        self.ask(Ask::CancelJob { tenant, job })
    }

    pub(super) fn pass(&mut self, millis: u64) {
        self.now.boot_ms = self.now.boot_ms.plus(Millis(millis));
        self.now.utc_ms = self.now.utc_ms.plus(Millis(millis));
    }

    pub(super) fn tick(&mut self) {
        self.step(Input::Tick);
    }

    /// Time passes in silence.
    pub(super) fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.pass(1_000);
            self.tick();
        }
    }

    /// A job's lease that goes on.
    pub(super) fn lease(&self, job: JobId) -> LeaseTerms {
        let entry = &self.floor.books.jobs[&job];
        let lease = self.floor.books.current_lease(entry);
        lease.unwrap_or_else(|| panic!("{job} has no lease")).terms.clone()
    }

    /// Submits a job, has it matched, and accepts it.
    pub(super) fn started(&mut self, machine: &Machine, tenant: TenantId, spec: JobSpec) -> (JobId, LeaseTerms) {
        let job = self.submit(tenant, spec);
        self.tick();
        let lease = self.lease(job);
        assert_eq!(lease.node, machine.node);
        self.accept(machine, &lease);
        (job, lease)
    }

    pub(super) fn accept(&mut self, machine: &Machine, lease: &LeaseTerms) {
        let (lease, fencing) = (lease.lease, lease.fencing);
        self.say(machine, NodeMessage::Accept { lease, fencing });
    }

    /// The lease runs for so long, with a heartbeat every 10 s; `thawed` is where its time stood before.
    pub(super) fn run(&mut self, machine: &Machine, lease: &LeaseTerms, thawed: u64, seconds: u64) {
        for second in 1..=seconds {
            self.pass(1_000);
            if second % 10 == 0 || second == seconds {
                self.beat(machine, lease, LeasePhase::Running, thawed + second * 1_000);
            }
            self.tick();
        }
    }

    pub(super) fn beat(&mut self, machine: &Machine, lease: &LeaseTerms, phase: LeasePhase, thawed: u64) {
        let beat = LeaseBeat {
            lease: lease.lease,
            fencing: lease.fencing,
            phase,
            thawed_ms: Millis(thawed),
        };
        self.beats(machine, vec![beat]);
    }

    pub(super) fn beats(&mut self, machine: &Machine, leases: Vec<LeaseBeat>) {
        self.say(machine, NodeMessage::Heartbeat { beat: 1, leases });
    }

    pub(super) fn note(
        &self,
        machine: &Machine,
        lease: &LeaseTerms,
        thawed: u64,
        closing: Option<EndCause>,
    ) -> MeterNote {
        MeterNote {
            lease: lease.lease,
            fencing: lease.fencing,
            node: machine.node,
            thawed_ms: Millis(thawed),
            frozen_ms: Millis(0),
            taken_utc_ms: self.now.utc_ms,
            closing,
            output: None,
        }
    }

    pub(super) fn meter(&mut self, machine: &Machine, lease: &LeaseTerms, thawed: u64, closing: Option<EndCause>) {
        let note = self.note(machine, lease, thawed, closing);
        self.signed(machine, &note);
    }

    pub(super) fn signed(&mut self, machine: &Machine, note: &MeterNote) {
        let envelope = Envelope::seal(note, &machine.key).expect("seals");
        self.say(machine, NodeMessage::Meter(envelope));
    }

    pub(super) fn result(&mut self, machine: &Machine, lease: &LeaseTerms, cause: EndCause, output: Option<BlobId>) {
        self.say(
            machine,
            NodeMessage::Result {
                lease: lease.lease,
                fencing: lease.fencing,
                cause,
                output,
            },
        );
    }

    /// The closing note and the Result, as an honest node sends them.
    pub(super) fn ended(&mut self, machine: &Machine, lease: &LeaseTerms, thawed: u64, cause: EndCause) {
        self.meter(machine, lease, thawed, Some(cause.clone()));
        self.result(machine, lease, cause, None);
    }

    pub(super) fn keep_blob(&mut self, lease: LeaseId, bytes: &str) -> Result<BlobId, Refusal> {
        let blob = BlobId::of(bytes.as_bytes());
        self.ask(Ask::KeepBlob { lease, blob }).map(|_| blob)
    }

    /// The exchange is killed and comes back after so long, on another boot of its machine.
    pub(super) fn restart(&mut self, seconds: u64) {
        self.pass(seconds * 1_000);
        self.now.boot_ms = BootMs(20_000);
        // As a store keeps them.
        let stored = serde_json::to_string(&self.records).expect("writes");
        let records: Vec<Record> = serde_json::from_str(&stored).expect("reads");
        let restored = Floor::restore(self.floor.config, self.now, records).expect("restores");
        assert_eq!(
            restored.books, self.floor.books,
            "nothing is lost or doubled by a restart"
        );
        self.floor = restored;
        self.sent.clear();
    }

    pub(super) fn take_sent(&mut self, machine: &Machine) -> Vec<ExchangeMessage> {
        let (to, rest) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|(node, _)| *node == machine.node);
        self.sent = rest;
        to.into_iter()
            .map(|(_, message): (NodeId, ExchangeMessage)| message)
            .collect()
    }

    /// The refusals that a node was sent.
    pub(super) fn refusals(&mut self, machine: &Machine) -> Vec<String> {
        let sent = self.take_sent(machine).into_iter();
        sent.filter_map(|message| match message {
            ExchangeMessage::Refused { message, .. } => Some(message),
            _ => None,
        })
        .collect()
    }

    pub(super) fn view(&self, job: JobId) -> JobView {
        let tenant = self.floor.books.jobs[&job].tenant;
        self.floor.job_view(tenant, job, self.now).expect("the job")
    }

    pub(super) fn state(&self, job: JobId) -> JobState {
        self.view(job).state
    }

    pub(super) fn why(&self, job: JobId) -> String {
        match self.state(job) {
            JobState::Queued { why } => why,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn available(&self, tenant: TenantId) -> i64 {
        self.floor.books.available(tenant).0
    }

    pub(super) fn earned(&self, machine: &Machine) -> i64 {
        self.floor.books.ledger.balance(Account::OwnerHeld(machine.owner)).0
    }

    pub(super) fn escrow(&self, lease: &LeaseTerms) -> i64 {
        self.floor.books.escrow(lease.lease).0
    }

    pub(super) fn ledger_check(&self) -> LedgerCheck {
        ledger::check(self.records.iter().filter_map(Record::transfer))
    }

    /// What must hold at every moment, computed from the records and not from what the floor keeps.
    pub(super) fn hold_invariants(&self) {
        let check = self.ledger_check();
        assert_eq!(check.postings_sum, Micros::ZERO);
        assert_eq!(
            (check.unbalanced.as_slice(), check.overdrawn.as_slice()),
            (&[][..], &[][..])
        );
        for balance in &check.balances {
            let account: Account = balance.account.parse().expect("an account");
            assert_eq!(self.floor.books.ledger.balance(account), balance.balance, "{account}");
        }
        let restored = Floor::restore(self.floor.config, self.now, self.records.clone()).expect("restores");
        assert_eq!(restored.books, self.floor.books);
        self.hold_lease_invariants();
    }

    fn hold_lease_invariants(&self) {
        let mut cards = BTreeSet::new();
        for id in &self.floor.books.open_leases {
            let terms = &self.floor.books.leases[id].terms;
            assert!(cards.insert((terms.node, &terms.gpu)), "two leases on one card");
        }
        let mut fencing: BTreeMap<JobId, FencingToken> = BTreeMap::new();
        let mut terms = BTreeMap::new();
        let mut posted: BTreeMap<LeaseId, (Micros, Micros)> = BTreeMap::new();
        for record in &self.records {
            match record {
                Record::LeaseAwarded { terms: of, table, .. } => {
                    let outcome = table.decide().expect("an award has a winner");
                    assert_eq!((outcome.winner.node, outcome.price), (of.node, of.price), "recomputes");
                    assert!(outcome.winner.floor <= of.price && of.price <= table.cap);
                    let newest = fencing.insert(of.job, of.fencing);
                    assert!(newest < Some(of.fencing), "fencing tokens rise");
                    terms.insert(of.lease, of.clone());
                }
                Record::Posted { receipt, transfer } => {
                    let terms = &terms[&receipt.lease];
                    assert_eq!(receipt.gross, terms.price.due(receipt.billed_ms), "posted is due");
                    assert_eq!(receipt.fee, receipt.gross.basis_points(terms.fee_basis_points));
                    assert_eq!(receipt.net, receipt.gross - receipt.fee);
                    let of = |wanted: Account| -> Micros {
                        let postings = transfer.iter().flat_map(|transfer| &transfer.postings);
                        postings
                            .filter(|posting| posting.account == wanted)
                            .map(|posting| posting.amount)
                            .sum()
                    };
                    let (gross, net) = posted.entry(receipt.lease).or_default();
                    *gross = *gross - of(Account::Escrow(receipt.lease));
                    *net = *net + of(Account::OwnerHeld(receipt.owner));
                    assert_eq!((*gross, *net), (receipt.gross, receipt.net), "nothing is posted twice");
                }
                _ => {}
            }
        }
        self.hold_last_words();
        for (tenant, entry) in &self.floor.books.tenants {
            let leases = self.floor.books.leases.values();
            let of_tenant = leases.filter(|lease| lease.terms.tenant == *tenant);
            let sum: Micros = of_tenant.map(|lease| self.floor.books.escrow(lease.terms.lease)).sum();
            assert_eq!(entry.escrow, sum, "{tenant}");
        }
        for lease in self.floor.books.leases.values().filter(|lease| lease.settled) {
            assert_eq!(
                self.floor.books.escrow(lease.terms.lease),
                Micros::ZERO,
                "settled is empty"
            );
        }
    }
}

impl World {
    /// A job that its node's signed word ended, while that node's lease was the newest, is let to nobody any more.
    fn hold_last_words(&self) {
        let mut newest: BTreeMap<JobId, LeaseId> = BTreeMap::new();
        let mut ended: BTreeMap<LeaseId, &EndCause> = BTreeMap::new();
        let mut over = BTreeSet::new();
        for record in &self.records {
            match record {
                Record::LeaseAwarded { terms, .. } => {
                    assert!(!over.contains(&terms.job), "{} is run and paid again", terms.job);
                    newest.insert(terms.job, terms.lease);
                }
                Record::LeaseEnded { lease, cause, .. } => drop(ended.insert(*lease, cause)),
                Record::NoteTaken { note, .. } => {
                    let of_job = note.closing.as_ref().map(EndCause::ended_by) == Some(EndedBy::Job);
                    let believed = of_job && note.closing != Some(EndCause::WallLimit);
                    let heard = ended.get(&note.lease).is_none_or(|cause| **cause == EndCause::Lost);
                    let job = self.floor.books.leases[&note.lease].terms.job;
                    if believed && heard && newest.get(&job) == Some(&note.lease) {
                        over.insert(job);
                    }
                }
                _ => {}
            }
        }
    }
}

pub(super) fn card(number: u8) -> CardDescription {
    CardDescription {
        uuid: GpuUuid(format!("GPU-SIM-{number}")),
        name: "SIMULATED RTX 3090".into(),
        index: u32::from(number),
        simulated: true,
        vram_total: Bytes::from_gib(24),
        driver_version: "1".into(),
        power_limits: Reading::NotSupported,
    }
}

/// Cap 0.60 an hour, budget 10.00, an hour at most: 0.01 a minute.
pub(super) fn spec() -> JobSpec {
    let json = serde_json::json!({
        "image": {"type": "archive", "blob": BlobId::of(b"image")},
        "cap": "0.600000", "budget": "10.000000", "wall_limit_ms": 3_600_000,
    });
    JobSpec::parse(&json.to_string()).expect("a good spec")
}

pub(super) fn refused_code(effects: &[Effect]) -> Option<RefusalCode> {
    effects.iter().find_map(|effect| match effect {
        Effect::Refuse { code, .. } => Some(*code),
        _ => None,
    })
}
