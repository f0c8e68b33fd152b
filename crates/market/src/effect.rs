//! What a step of the market wants done: to be performed by the caller, in the order given. Nothing here does anything.

use crate::input::{ConnectionId, RequestId};
use crate::record::Record;
use sela_protocol::id::{JobId, LeaseId, NodeId, OwnerId, TenantId};
use sela_protocol::lease::Receipt;
use sela_protocol::money::Micros;
use sela_protocol::node::{ExchangeMessage, RefusalCode};
use sela_protocol::tenant::{JobView, OwnerInvited, Submitted, TenantAccount, TenantCreated};

/// One thing to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Store these, all or none, durably, before any later effect of this step is performed and before the input that led here
    /// is acknowledged. At most one per step, always the first. If it cannot be stored the process must end: the state in
    /// memory is ahead of the store, and a restart takes it back.
    Commit(Vec<Record>),
    /// Send to a node within its session; if it is not connected, the session keeps it until it is. A session that cannot be
    /// resumed may be forgotten with all that waits in it: what still matters is sent again after the next Hello.
    Send {
        /// To which node.
        node: NodeId,
        /// What.
        message: ExchangeMessage,
    },
    /// Sign with the exchange's key and send as [`ExchangeMessage::Receipt`]. The receipt itself has been committed.
    SendReceipt {
        /// To which node.
        node: NodeId,
        /// What was posted, cumulative.
        receipt: Receipt,
    },
    /// Answer a Hello with Welcome.
    Admit {
        /// On which connection.
        connection: ConnectionId,
        /// Who it is.
        node: NodeId,
        /// Who is paid.
        owner: OwnerId,
    },
    /// Answer a Hello with Refused and close.
    Refuse {
        /// Which connection.
        connection: ConnectionId,
        /// For programs.
        code: RefusalCode,
        /// For people: what to do.
        message: String,
    },
    /// Close a connection that was admitted: it is dead, and its node is back on another.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Answer a request.
    Reply {
        /// Which.
        request: RequestId,
        /// The answer.
        answer: Result<Answer, Refusal>,
    },
    /// A rule of the books would have been broken and was not: a defect of this program. Log it as an error; nothing was changed.
    Defect {
        /// What would have happened.
        message: String,
    },
}

/// What was asked for has been done.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The only time that the key is shown.
    TenantCreated(TenantCreated),
    /// The only time that the invitation is shown.
    OwnerInvited(OwnerInvited),
    /// The account after the deposit.
    Deposited(TenantAccount),
    /// The job waits for a card.
    Submitted(Submitted),
    /// The job is cancelled, or will be once its node has ended it.
    CancelTaken(Box<JobView>),
    /// The blob belongs to the lease now.
    BlobKept,
}

/// Why a request was not done. Nothing was changed. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such tenant.
    #[error("there is no tenant {0}: create it first, or check the id")]
    UnknownTenant(TenantId),
    /// No such job, or another tenant's: which of the two is not told.
    #[error("you have no job {0}: check the id; `sela job submit` prints it")]
    UnknownJob(JobId),
    /// The job has ended.
    #[error("job {job} has ended already ({how}): there is nothing to cancel")]
    JobEnded {
        /// Which.
        job: JobId,
        /// How.
        how: &'static str,
    },
    /// A name is empty or long.
    #[error("a name has 1 to 200 characters; this one has {characters}")]
    BadName {
        /// As sent.
        characters: usize,
    },
    /// A deposit of nothing, of less than nothing, or of more than can be counted.
    #[error("a deposit of {0} cannot be booked: send an amount above zero and below 1000000000.000000")]
    BadAmount(Micros),
    /// An idempotency key is empty or long.
    #[error("an idempotency key has 1 to 200 characters; this one has {characters}")]
    BadIdempotencyKey {
        /// As sent.
        characters: usize,
    },
    /// The key was used for another amount.
    #[error("this idempotency key was used for a deposit of {booked}, not of {asked}: use a new key for a new deposit")]
    IdempotencyKeyUsed {
        /// Booked then.
        booked: Micros,
        /// Asked now.
        asked: Micros,
    },
    /// Too many unfinished jobs of one tenant.
    #[error("{0} of your jobs are unfinished, the most that one tenant may have: wait for some, or cancel some")]
    TooManyJobs(usize),
    /// Jobs are submitted faster than one a second for long.
    #[error(
        "you submit jobs faster than this exchange takes them: wait {seconds} s, then send this one again; one a second is taken for \
         ever, and a thousand at once after a rest"
    )]
    TooFast {
        /// How long to wait.
        seconds: u64,
    },
    /// The lease is over, so that nothing can be stored under it any more.
    #[error("lease {0} is over: what it stores now belongs to nobody")]
    LeaseOver(LeaseId),
    /// Too many blobs under one lease.
    #[error("lease {lease} has stored {blobs} blobs, the most that one lease may: take checkpoints less often")]
    TooManyBlobs {
        /// Which.
        lease: LeaseId,
        /// How many.
        blobs: usize,
    },
    /// A defect of the exchange's, reported to its operator at the same time.
    #[error(
        "the exchange could not do this by a fault of its own, which its operator now knows of; nothing was changed"
    )]
    Defect,
}

impl Refusal {
    /// A short word for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownTenant(_) => "unknown_tenant",
            Self::UnknownJob(_) => "unknown_job",
            Self::JobEnded { .. } => "job_ended",
            Self::BadName { .. } => "bad_name",
            Self::BadAmount(_) => "bad_amount",
            Self::BadIdempotencyKey { .. } => "bad_idempotency_key",
            Self::IdempotencyKeyUsed { .. } => "idempotency_key_used",
            Self::TooManyJobs(_) => "too_many_jobs",
            Self::TooFast { .. } => "too_fast",
            Self::LeaseOver(_) => "lease_over",
            Self::TooManyBlobs { .. } => "too_many_blobs",
            Self::Defect => "defect",
        }
    }

    /// What kind of refusal it is, for a status code.
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::UnknownTenant(_) | Self::UnknownJob(_) => RefusalKind::NotFound,
            Self::JobEnded { .. } | Self::IdempotencyKeyUsed { .. } | Self::LeaseOver(_) => RefusalKind::Conflict,
            Self::BadName { .. } | Self::BadAmount(_) | Self::BadIdempotencyKey { .. } => RefusalKind::BadInput,
            Self::TooManyJobs(_) | Self::TooFast { .. } | Self::TooManyBlobs { .. } => RefusalKind::TooMany,
            Self::Defect => RefusalKind::Defect,
        }
    }
}

/// Kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// It is not there.
    NotFound,
    /// It is not in a state for this.
    Conflict,
    /// What was sent is wrong.
    BadInput,
    /// A bound is reached.
    TooMany,
    /// The exchange's own fault.
    Defect,
}
