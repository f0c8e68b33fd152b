//! What the exchange must not forget: an append-only list of records, in the order in which they were committed. The list alone
//! rebuilds [`crate::books::Books`] exactly (event sourcing, one table, no other truth; a snapshot to shorten the replay can
//! come later). What is not here (connections, offers, heartbeats, why a job waits) is learned anew after a restart.

use crate::auction::AwardTable;
use crate::ledger::Transfer;
use crate::secret::SecretHash;
use sela_protocol::blob::BlobId;
use sela_protocol::envelope::{Envelope, PublicKey};
use sela_protocol::id::{AwardId, GpuUuid, JobId, LeaseId, NodeId, OwnerId, TenantId};
use sela_protocol::job::JobSpec;
use sela_protocol::lease::{EndCause, FencingToken, MeterNote, Receipt};
use sela_protocol::money::HourlyPrice;
use sela_protocol::units::{Millis, UtcMs};
use serde::{Deserialize, Serialize};

/// One thing that has happened and stays so. Written as JSON with a `type`; kinds and fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// A tenant was admitted.
    TenantCreated {
        /// Who.
        tenant: TenantId,
        /// For people.
        name: String,
        /// Of its API key.
        key: SecretHash,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// An owner was invited.
    OwnerInvited {
        /// Who.
        owner: OwnerId,
        /// For people.
        name: String,
        /// Of the invitation, which admits one node.
        invitation: SecretHash,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// A node came with an invitation, which is used up by that.
    NodeAdmitted {
        /// Who.
        node: NodeId,
        /// Who is paid.
        owner: OwnerId,
        /// By which it is known from now on.
        key: PublicKey,
        /// For people.
        name: String,
        /// The invitation.
        invitation: SecretHash,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// Money came in.
    Deposited {
        /// To whom.
        tenant: TenantId,
        /// So that it is booked once.
        idempotency_key: String,
        /// outside → tenant available.
        transfer: Transfer,
    },
    /// A job was submitted.
    JobSubmitted {
        /// Which.
        job: JobId,
        /// By whom.
        tenant: TenantId,
        /// As submitted.
        spec: Box<JobSpec>,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// Its tenant wants no more of it.
    JobCancelAsked {
        /// Which.
        job: JobId,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// A card was awarded, and the escrow set aside.
    LeaseAwarded {
        /// What was agreed.
        terms: Box<LeaseTerms>,
        /// How the award came about, all rows: for the operator's audit, and for each side its own row.
        table: AwardTable,
        /// tenant available → escrow of the lease; `None` where the price is zero.
        transfer: Option<Transfer>,
    },
    /// The node took the award.
    LeaseAccepted {
        /// Which.
        lease: LeaseId,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// Heartbeats came; marked now and then, so that after a restart it is known how much time a node may bill.
    RenewalMarked {
        /// Which.
        lease: LeaseId,
        /// Time since the Accept that renewals cover.
        covered_ms: Millis,
        /// When the last renewal was.
        at_utc_ms: UtcMs,
    },
    /// A meter note was checked and counts.
    NoteTaken {
        /// What counts from now on (cumulative; never less than before).
        note: MeterNote,
        /// As signed: the proof of what is posted.
        signed: Envelope<MeterNote>,
    },
    /// Money moved for used time.
    Posted {
        /// What is posted so far, to be signed and sent.
        receipt: Receipt,
        /// escrow → provider held, fees; `None` where nothing new is due and only the receipt is new.
        transfer: Option<Transfer>,
    },
    /// The tenant's account or budget gave more for a lease that was nearly used up.
    EscrowAdded {
        /// Which.
        lease: LeaseId,
        /// The most that it may bill now.
        limit_ms: Millis,
        /// tenant available → escrow of the lease.
        transfer: Transfer,
    },
    /// A node stored a blob under the lease.
    BlobKept {
        /// Which.
        lease: LeaseId,
        /// What.
        blob: BlobId,
    },
    /// A checkpoint from which the job can go on.
    CheckpointAccepted {
        /// Of which lease.
        lease: LeaseId,
        /// Where.
        blob: BlobId,
        /// Thawed time of that lease when it was taken.
        thawed_ms: Millis,
    },
    /// The exchange wants the lease ended.
    LeaseCancelAsked {
        /// Which.
        lease: LeaseId,
        /// Why.
        cause: EndCause,
    },
    /// The lease is over: the card is free, nothing more runs. Its money may still be open.
    LeaseEnded {
        /// Which.
        lease: LeaseId,
        /// As it counts.
        cause: EndCause,
        /// When.
        at_utc_ms: UtcMs,
        /// Until about when late meter notes are honoured, for people; `None`: the closing note is here.
        held_until_utc_ms: Option<UtcMs>,
        /// What decides: how long the exchange must have been up in all ([`Record::UptimeMarked`]). Not in records of before it.
        #[serde(default)]
        held_until_uptime_ms: Option<Millis>,
    },
    /// How long the exchange has been up since its first start. Marked now and then while money is held: no clock that is set wrong
    /// makes this pass sooner, and while the exchange is down no node can bring its notes.
    UptimeMarked {
        /// In all.
        uptime_ms: Millis,
        /// When, for people.
        at_utc_ms: UtcMs,
    },
    /// Escrow that can not be used any more went back while the rest is held for late meter notes.
    EscrowReturned {
        /// Which.
        lease: LeaseId,
        /// escrow → tenant available.
        transfer: Transfer,
    },
    /// The lease's money is closed; no note counts any more.
    LeaseSettled {
        /// Which.
        lease: LeaseId,
        /// What is left of the escrow → tenant available; `None` where nothing is left.
        transfer: Option<Transfer>,
    },
    /// The job waits for a card again.
    JobRequeued {
        /// Which.
        job: JobId,
        /// Why its last lease ended.
        cause: EndCause,
        /// How many leases in a row could not be started by a fault of a node's.
        node_faults: u32,
        /// When.
        at_utc_ms: UtcMs,
    },
    /// Nothing more happens to the job.
    JobEnded {
        /// Which.
        job: JobId,
        /// How.
        end: JobEnd,
        /// The tar of `/out`.
        output: Option<BlobId>,
        /// When.
        at_utc_ms: UtcMs,
    },
}

/// What a lease was agreed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTerms {
    /// This lease.
    pub lease: LeaseId,
    /// The award that opened it.
    pub award: AwardId,
    /// For which job.
    pub job: JobId,
    /// Of whom.
    pub tenant: TenantId,
    /// On which node.
    pub node: NodeId,
    /// Paid to whom.
    pub owner: OwnerId,
    /// On which card.
    pub gpu: GpuUuid,
    /// The card's model, for people; says SIMULATED where it is.
    pub card: String,
    /// The clearing price.
    pub price: HourlyPrice,
    /// Rises with each lease of the job.
    pub fencing: FencingToken,
    /// Longest thawed run.
    pub run_limit_ms: Millis,
    /// Most that may be billed: the run limit or 60 s, or what the escrow covers if that is less.
    pub limit_ms: Millis,
    /// Of the token that opens the job's blobs.
    pub token: SecretHash,
    /// The exchange's share of what is due, in hundredths of a percent, as it was at the award.
    pub fee_basis_points: u32,
    /// When it was awarded.
    pub awarded_utc_ms: UtcMs,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobEnd {
    /// With exit code 0.
    Done,
    /// Otherwise.
    Failed {
        /// Why.
        cause: EndCause,
        /// In words.
        message: String,
    },
    /// By its tenant.
    Cancelled,
}

impl Record {
    /// The movement of money in it: what a store keeps as postings too, checks to sum to zero, and never overdraws.
    pub const fn transfer(&self) -> Option<&Transfer> {
        match self {
            Self::Deposited { transfer, .. }
            | Self::EscrowAdded { transfer, .. }
            | Self::EscrowReturned { transfer, .. } => Some(transfer),
            Self::LeaseAwarded { transfer, .. }
            | Self::Posted { transfer, .. }
            | Self::LeaseSettled { transfer, .. } => transfer.as_ref(),
            Self::TenantCreated { .. }
            | Self::OwnerInvited { .. }
            | Self::NodeAdmitted { .. }
            | Self::JobSubmitted { .. }
            | Self::JobCancelAsked { .. }
            | Self::LeaseAccepted { .. }
            | Self::RenewalMarked { .. }
            | Self::NoteTaken { .. }
            | Self::BlobKept { .. }
            | Self::CheckpointAccepted { .. }
            | Self::LeaseCancelAsked { .. }
            | Self::LeaseEnded { .. }
            | Self::UptimeMarked { .. }
            | Self::JobRequeued { .. }
            | Self::JobEnded { .. } => None,
        }
    }
}
