//! How a lease goes and ends, what is metered of it and what is receipted. The words only: who pays for what is decided in
//! `sela-market`, what the owner's side does about it in `sela-core`.

use crate::blob::BlobId;
use crate::envelope::Payload;
use crate::id::{GpuUuid, JobId, LeaseId, NodeId, OwnerId, ReceiptId};
use crate::money::{HourlyPrice, Micros};
use crate::units::{Millis, UtcMs};
use serde::{Deserialize, Serialize};

/// Rises with each lease of a job: a holder with an older token can do nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

/// How far a lease has come on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LeasePhase {
    /// Image, inputs and checkpoint are being fetched.
    Fetching,
    /// The sandbox is being set up.
    Starting,
    /// The job runs: billed.
    Running,
    /// The owner moved: frozen, not billed.
    Frozen,
    /// The job saves its state before it goes: thawed, billed.
    Saving,
    /// The job is being ended and the card checked.
    Ending,
    /// The job is gone; results are being stored.
    Uploading,
    /// A phase that a newer node knows.
    #[serde(other)]
    Unknown,
}

/// Who or what ended a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EndCause {
    /// The job's program ended by itself.
    Exited {
        /// Its exit code, 128 + signal where a signal ended it.
        code: i32,
    },
    /// The job used more memory than it asked for.
    OutOfMemory,
    /// The job reached its `wall_limit_ms`.
    WallLimit,
    /// The tenant cancelled it.
    TenantCancelled,
    /// The budget is used up.
    BudgetUsed,
    /// Displaced by a job of a higher tier.
    Displaced,
    /// The owner used keyboard, mouse or pad.
    OwnerInput,
    /// A program of the owner's wants the card.
    OwnerProgram {
        /// Its name, where it could be read.
        name: Option<String>,
    },
    /// The owner paused or pressed "end it now".
    OwnerCommand,
    /// A rule of the owner's says so: the schedule closed, the machine went on battery, the network costs.
    OwnerRule,
    /// The machine goes to sleep or shuts down, or the agent is quit.
    Shutdown,
    /// The card became too hot.
    Hot,
    /// A signal or sensor went silent.
    SensorSilent {
        /// Which.
        what: String,
    },
    /// The driver lost the card.
    CardLost,
    /// The agent fell silent: the keeper's grant ran out.
    GrantExpired,
    /// The exchange fell silent: the lease ran out.
    LeaseExpired,
    /// The exchange heard nothing of the node for too long.
    Lost,
    /// The agent was killed; found and cleaned up at its next start.
    AgentRestarted,
    /// Could not be started, or was ended, by a fault of the node's.
    NodeFault {
        /// What failed, in words for tenant and owner.
        message: String,
    },
    /// Could not be started by a fault of the job's: its image, spec or inputs.
    JobFault {
        /// What to mend.
        message: String,
    },
    /// A cause that a newer program knows.
    #[serde(other)]
    Unknown,
}

/// On whose account an end goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// The job itself: it is over, and the least billed time applies.
    Job,
    /// Its tenant, or the tenant's money: it is over, and the least billed time applies to a program that ran. A node says so only
    /// where the exchange asked for it.
    Tenant,
    /// The exchange, for another job: no least billed time; the job goes on elsewhere. A node says so only where it was asked for.
    Exchange,
    /// Owner, guard, node, or silence: no least billed time; the job goes on elsewhere.
    Other,
}

impl EndCause {
    /// Who ended it, for billing (market.md §5).
    pub const fn ended_by(&self) -> EndedBy {
        match self {
            Self::Exited { .. } | Self::OutOfMemory | Self::WallLimit | Self::JobFault { .. } => EndedBy::Job,
            Self::TenantCancelled | Self::BudgetUsed => EndedBy::Tenant,
            Self::Displaced => EndedBy::Exchange,
            Self::OwnerInput
            | Self::OwnerProgram { .. }
            | Self::OwnerCommand
            | Self::OwnerRule
            | Self::Shutdown
            | Self::Hot
            | Self::SensorSilent { .. }
            | Self::CardLost
            | Self::GrantExpired
            | Self::LeaseExpired
            | Self::Lost
            | Self::AgentRestarted
            | Self::NodeFault { .. }
            | Self::Unknown => EndedBy::Other,
        }
    }
}

/// What a lease has used so far, signed by the node. Cumulative: a later note contains every earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterNote {
    /// Which lease.
    pub lease: LeaseId,
    /// The lease's fencing token.
    pub fencing: FencingToken,
    /// By which node.
    pub node: NodeId,
    /// Thawed time since the program started: what is billed.
    pub thawed_ms: Millis,
    /// Time that it stood frozen: not billed.
    pub frozen_ms: Millis,
    /// When the note was taken.
    pub taken_utc_ms: UtcMs,
    /// Set on the last note of a lease.
    pub closing: Option<EndCause>,
    /// On the last note of a job that ended by itself: the stored tar of `/out`, so that this note alone says all of how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<BlobId>,
}

impl Payload for MeterNote {
    const TYPE: &'static str = "application/vnd.sela.meter-note.v1+json";
}

/// What the exchange has posted for a lease so far, signed by the exchange. Cumulative like the notes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// This receipt.
    pub receipt: ReceiptId,
    /// For which lease.
    pub lease: LeaseId,
    /// Of which job.
    pub job: JobId,
    /// Run by which node.
    pub node: NodeId,
    /// On which card.
    pub gpu: GpuUuid,
    /// For whom.
    pub owner: OwnerId,
    /// At which price.
    pub price: HourlyPrice,
    /// Billed time, cumulative.
    pub billed_ms: Millis,
    /// floor(price × billed / 3 600 000).
    pub gross: Micros,
    /// The exchange's share of it.
    pub fee: Micros,
    /// What the owner gets: gross − fee.
    pub net: Micros,
    /// Set on the last receipt of a lease.
    pub closed: Option<EndCause>,
    /// When it was issued.
    pub issued_utc_ms: UtcMs,
    /// Money of a lab is not money.
    pub lab: bool,
}

impl Payload for Receipt {
    const TYPE: &'static str = "application/vnd.sela.receipt.v1+json";
}
