//! Everything that can happen to the agent. Nothing else changes [`crate::State`]; a recorded list of these replays every
//! decision.

use crate::policy::Policy;
use crate::record::{OpenLease, UnsettledLease};
use crate::schedule::calendar::Calendar;
use sela_protocol::blob::BlobId;
use sela_protocol::card::{CardDescription, CardReading};
use sela_protocol::id::{GpuUuid, LeaseId, NodeId};
use sela_protocol::lease::{EndCause, FencingToken, Receipt};
use sela_protocol::local::{CardWiped, Command, Earned, ImageTransfer, IsolationState, MarketLink, Pause};
use sela_protocol::network::NetworkUse;
use sela_protocol::node::{Award, Scratch};
use sela_protocol::presence::Signals;
use sela_protocol::units::{Bytes, Millis, Percent};
use serde::{Deserialize, Serialize};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// The agent has swept what its last run left and may serve. Nothing is offered before this.
    Started {
        /// Simulated cards, money of no worth.
        lab: bool,
        /// How jobs are isolated, or why they cannot be.
        isolation: IsolationState,
        /// Where a job's scratch can lie.
        scratch: Scratch,
        /// The pause in force when the agent last ran.
        pause: Option<Pause>,
        /// Leases that were open when the agent last ran, with what the keeper left written of them.
        open: Vec<RecoveredLease>,
        /// Leases that had ended but were not yet receipted as closed.
        unsettled: Vec<UnsettledLease>,
    },
    /// The moment asked for by [`crate::State::next_wake`] has come.
    Tick,
    /// `agent.toml` was read.
    Policy(Policy),
    /// `agent.toml` cannot be read (the last good policy stays), or can again (`None`).
    SettingsProblem(Option<String>),
    /// What is seen of the owner. Sent on every change, and at least each second while a job runs, else each ten: silence
    /// is a reason to hold.
    Signals(Signals),
    /// A calendar was read, or could not be.
    Calendar {
        /// Under which name the owner's schedule has it.
        name: String,
        /// What came of it, or why nothing did.
        attempt: Result<Calendar, String>,
    },
    /// The cards that there are.
    Cards(Vec<CardDescription>),
    /// What the cards report; a card that is missing here while known did not answer.
    Readings(Vec<CardReading>),
    /// A card, or the driver as a whole (`gpu` is `None`), does not answer.
    CardUnreadable {
        /// Which.
        gpu: Option<GpuUuid>,
        /// What the driver said.
        why: String,
    },
    /// What the job of a lease uses of its card, asked for by [`crate::Effect::WatchCard`].
    CardUse {
        /// Which card.
        gpu: GpuUuid,
        /// Whose job.
        lease: LeaseId,
        /// Memory held by processes of the job.
        vram: Bytes,
        /// Share of the card that they use.
        utilisation: Percent,
    },
    /// The owner told the agent something over the local interface.
    Command {
        /// To answer by [`crate::Effect::Reply`].
        request: u64,
        /// What.
        command: Command,
    },
    /// The machine goes to sleep, or has woken up.
    Sleep {
        /// Which of the two.
        asleep: bool,
    },
    /// The machine shuts down.
    Shutdown,
    /// From the exchange.
    Market(MarketInput),
    /// From an executor of a lease.
    Lease {
        /// Which.
        lease: LeaseId,
        /// What.
        event: LeaseEvent,
    },
    /// Sums of the store, after a change.
    Earned(Earned),
}

/// From the exchange, signatures and session checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarketInput {
    /// The link changed.
    Link(MarketLink),
    /// A session is open. If it is not a resumed one the node sends its whole state.
    Session {
        /// Who this machine is at the exchange.
        node: NodeId,
        /// Whether an earlier session goes on.
        resumed: bool,
    },
    /// A lease is offered.
    Award(Box<Award>),
    /// A heartbeat was acknowledged.
    Renew {
        /// Which.
        beat: u64,
        /// Leases that are not ours any more.
        end: Vec<LeaseId>,
    },
    /// A lease is to be ended.
    Cancel {
        /// Which.
        lease: LeaseId,
        /// Its token.
        fencing: FencingToken,
        /// Why.
        cause: EndCause,
        /// Whether the job may save.
        save: bool,
    },
    /// A receipt, verified; the edge has stored its envelope.
    Receipt(Box<Receipt>),
    /// Something that this node said was not acted on.
    Refused {
        /// About which lease.
        lease: Option<LeaseId>,
        /// Why.
        message: String,
    },
}

/// From the executors of a lease: fetch, keeper, upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseEvent {
    /// Image, inputs and checkpoint are here.
    Fetched,
    /// They cannot be had, or the sandbox cannot be set up; nothing runs and nothing is left.
    Failed {
        /// A [`EndCause::JobFault`] or [`EndCause::NodeFault`].
        cause: EndCause,
    },
    /// The job's program runs: billed from here.
    Started,
    /// The job stands frozen.
    Frozen,
    /// The job could not be frozen in time.
    FreezeFailed,
    /// The job runs again.
    Thawed,
    /// What it has used so far.
    Usage {
        /// Thawed time.
        thawed_ms: Millis,
        /// Frozen time.
        frozen_ms: Millis,
    },
    /// What its job has used of the network so far.
    Network(NetworkUse),
    /// How far the transfer of its image is: a few times a second at most.
    Transfer(ImageTransfer),
    /// The card's memory was wiped for its job.
    CardWiped(CardWiped),
    /// A checkpoint is stored at the exchange.
    CheckpointStored {
        /// Where.
        blob: BlobId,
        /// Thawed time when it was taken.
        thawed_ms: Millis,
    },
    /// No process, mount or cgroup of the job is left on this machine.
    Ended {
        /// Why, as the keeper saw it.
        cause: EndCause,
        /// Thawed time in all.
        thawed_ms: Millis,
        /// Frozen time in all.
        frozen_ms: Millis,
    },
    /// Results are stored at the exchange, or cannot be.
    Uploaded {
        /// The tar of `/out`, if there was anything in it.
        output: Option<BlobId>,
        /// Why what the job left in `/out` is not stored, if it is not: a [`EndCause::JobFault`] where it was too much, a
        /// [`EndCause::NodeFault`] where it could not be brought to the exchange.
        problem: Option<EndCause>,
    },
}

/// A lease that was open when the agent last stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredLease {
    /// As it was accepted.
    pub lease: OpenLease,
    /// What the keeper wrote when the job ended, else what the newest note said.
    pub thawed_ms: Millis,
    /// The same for frozen time.
    pub frozen_ms: Millis,
    /// The keeper's cause where it wrote one, else [`EndCause::AgentRestarted`].
    pub cause: EndCause,
}
