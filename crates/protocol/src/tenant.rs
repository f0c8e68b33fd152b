//! The exchange's REST bodies for tenants and operators. Paths and status codes are in `sela-exchange`.

use crate::blob::BlobId;
use crate::card::CardDescription;
use crate::confidential::SealingKey;
use crate::envelope::PublicKey;
use crate::id::{JobId, LeaseId, NodeId, OwnerId, TenantId};
use crate::job::JobSpec;
use crate::lease::{EndCause, LeasePhase};
use crate::money::{HourlyPrice, Micros};
use crate::node::Offer;
use crate::units::{Millis, UtcMs};
use crate::written::Fields;
use serde::{Deserialize, Serialize};

/// A job as its tenant sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// Which.
    pub job: JobId,
    /// As submitted.
    pub spec: JobSpec,
    /// How it is.
    pub state: JobState,
    /// When it was submitted.
    pub submitted_utc_ms: UtcMs,
    /// Its leases, oldest first.
    pub leases: Vec<LeaseView>,
    /// The newest accepted checkpoint.
    pub checkpoint: Option<BlobId>,
    /// The tar of `/out`, sealed with the job's key.
    pub output: Option<BlobId>,
    /// Paid so far.
    pub paid: Micros,
    /// Set aside for the lease that runs.
    pub escrow: Micros,
}

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobState {
    /// Waits for a card.
    Queued {
        /// Why it waits and what would start it.
        why: String,
    },
    /// Has a lease.
    Leased {
        /// How far it is there.
        phase: LeasePhase,
    },
    /// Ended with exit code 0.
    Done,
    /// Ended otherwise.
    Failed {
        /// Why.
        cause: EndCause,
        /// In words.
        message: String,
    },
    /// Cancelled by its tenant.
    Cancelled,
    /// Something newer.
    #[serde(other)]
    Unknown,
}

impl JobState {
    /// Whether nothing more will happen.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Done | Self::Failed { .. } | Self::Cancelled => true,
            Self::Queued { .. } | Self::Leased { .. } | Self::Unknown => false,
        }
    }
}

/// One lease as the tenant sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Which.
    pub lease: LeaseId,
    /// On which node.
    pub node: NodeId,
    /// On what kind of card; says SIMULATED where it is.
    pub card: String,
    /// At which price.
    pub price: HourlyPrice,
    /// When it was accepted.
    pub accepted_utc_ms: Option<UtcMs>,
    /// Billed so far.
    pub billed_ms: Millis,
    /// Paid so far.
    pub paid: Micros,
    /// How it ended; `None` while it is open.
    pub end: Option<EndCause>,
}

/// Reply to `POST /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// The new job.
    pub job: JobId,
}

/// Reply to `GET /v1/jobs/{job}/key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKey {
    /// Opens the job's output and checkpoints (`crate::sealed`).
    pub result_key: SealingKey,
}

/// Reply to `PUT /v1/blobs/{address}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Its address.
    pub blob: BlobId,
    /// Its size.
    pub bytes: u64,
}

/// Reply to `GET /v1/account`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantAccount {
    /// Who.
    pub tenant: TenantId,
    /// For people.
    pub name: String,
    /// Free to spend.
    pub available: Micros,
    /// Set aside for running jobs.
    pub escrow: Micros,
    /// Whether this is money of a lab.
    pub lab: bool,
}

/// `POST /v1/admin/tenants`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTenant {
    /// For people.
    pub name: String,
}

/// Reply to it: the only time that the key is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantCreated {
    /// Who.
    pub tenant: TenantId,
    /// The API key.
    pub api_key: String,
}

/// `POST /v1/admin/tenants/{tenant}/deposits`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deposit {
    /// How much comes in from outside.
    pub amount: Micros,
    /// The same key twice is one deposit.
    pub idempotency_key: String,
}

/// `POST /v1/admin/owners`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOwner {
    /// For people.
    pub name: String,
}

/// Reply to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInvited {
    /// Who.
    pub owner: OwnerId,
    /// To be written into the node's `agent.toml`; admits one node.
    pub invitation: String,
}

/// Reply to `GET /v1/admin/ledger/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerCheck {
    /// Sum of all postings: zero, always.
    pub postings_sum: Micros,
    /// Number of postings.
    pub postings: u64,
    /// Number of transfers.
    pub transfers: u64,
    /// Transfers whose postings do not sum to zero: none, always.
    pub unbalanced: Vec<String>,
    /// Accounts below zero that may not be: none, always.
    pub overdrawn: Vec<String>,
    /// Balances by kind of account.
    pub balances: Vec<AccountBalance>,
}

/// The balance of one account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountBalance {
    /// Its name: `tenant/ten_…/available`, `fees`, `outside`, …
    pub account: String,
    /// Its balance.
    pub balance: Micros,
}

/// Reply to `POST /v1/leases/{lease}/logs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// How many bytes of this stream are kept: from where to send on.
    pub next: u64,
}

/// Header of `GET /v1/jobs/{job}/logs`: from where to read on.
pub const LOG_NEXT_HEADER: &str = "sela-log-next";

/// Header of `GET /v1/jobs/{job}/logs`: `true` once nothing more will come.
pub const LOG_COMPLETE_HEADER: &str = "sela-log-complete";

/// Reply to `GET /v1/market`, for anybody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarketView {
    /// The exchange's name, for people.
    pub name: String,
    /// The key that signs its receipts.
    pub exchange: PublicKey,
    /// Whether this is a lab: simulated cards admitted, money of no worth.
    pub lab: bool,
    /// Nodes that are connected.
    pub nodes: u64,
    /// Cards that they offer now.
    pub offers: u64,
}

/// A node as the operator sees it: one of the list that `GET /v1/admin/nodes` replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Which.
    pub node: NodeId,
    /// Who is paid.
    pub owner: OwnerId,
    /// For people.
    pub name: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Its cards, as it last said.
    pub cards: Vec<CardDescription>,
    /// What it offers, as it last said.
    pub offers: Vec<Offer>,
}

/// One posting as the operator reads it: one of the list that `GET /v1/admin/ledger` replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostingView {
    /// Its number, rising.
    pub posting: i64,
    /// The transfer that it is part of.
    pub transfer: String,
    /// When.
    pub utc_ms: UtcMs,
    /// The kind of record that moved the money.
    pub reason: String,
    /// Whose.
    pub account: String,
    /// What it got; below zero: what it gave.
    pub amount: Micros,
    /// What it had after that.
    pub balance: Micros,
}

/// The names that a [`NewTenant`] and a [`NewOwner`] may use.
pub const NAME_FIELDS: Fields = Fields::flat(&["name"]);

/// The names that a [`Deposit`] may use.
pub const DEPOSIT_FIELDS: Fields = Fields::flat(&["amount", "idempotency_key"]);
