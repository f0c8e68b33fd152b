//! The whole exchange without sockets, disk, clock and randomness: one state, one [`Floor::step`]. The server, the simulator
//! and the tests run this very code.

use crate::effect::Effect;
use crate::input::{Entropy, Input};
use crate::record::Record;
use sela_protocol::blob::BlobId;
use sela_protocol::envelope::PublicKey;
use sela_protocol::id::{JobId, LeaseId, NodeId, TenantId};
use sela_protocol::tenant::{JobView, TenantAccount};
use sela_protocol::units::Now;
use std::collections::BTreeSet;

/// What an exchange is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloorConfig {
    /// The exchange's share of what is due, in hundredths of a percent, 0 to 10 000. Applies to leases awarded from now on.
    pub fee_basis_points: u32,
    /// Whether simulated cards and weakly isolating nodes are admitted. Money of a lab is not money.
    pub lab: bool,
}

/// The market. Every change comes in by [`Floor::step`]; everything else only reads.
#[derive(Debug, Clone)]
pub struct Floor {
    config: FloorConfig,
}

/// Why records do not rebuild a floor: the store was changed by something else, or is of a newer program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {number} does not follow from those before it: {problem}; the store was changed by something else, so restore it from a copy"
)]
pub struct RestoreError {
    /// Its place in the list, from 0.
    pub number: u64,
    /// What is wrong.
    pub problem: String,
}

/// What a lease's token opens while the lease lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseAccess {
    /// Which lease.
    pub lease: LeaseId,
    /// Of which job: its logs may be appended to.
    pub job: JobId,
    /// Whose job it is.
    pub tenant: TenantId,
    /// What may be read: image archive, inputs, the checkpoint to go on from, and what the lease itself stored.
    pub readable: BTreeSet<BlobId>,
}

impl Floor {
    /// A market in which nothing has happened yet.
    pub fn new(config: FloorConfig) -> Self {
        todo!("{config:?}")
    }

    /// The market as it was after the last of these records. Open leases live on: `now` counts as if each node had just been
    /// heard, so nobody is lost by the exchange's own absence, while the time that nodes may bill is only what renewals
    /// cover (`lease::Coverage`). Nodes are not connected, and nothing is offered until they say so again.
    ///
    /// # Errors
    /// Where a record does not follow from those before it.
    pub fn restore(
        config: FloorConfig,
        now: Now,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RestoreError> {
        todo!("{config:?} {now:?} {}", records.into_iter().count())
    }

    /// Takes one input and says what is to be done, in order. Total: no input panics, each unacceptable one is answered.
    /// Deterministic: the same state, time, randomness and input give the same effects.
    pub fn step(&mut self, now: Now, entropy: Entropy, input: Input) -> Vec<Effect> {
        todo!("{now:?} {entropy:?} {input:?}")
    }

    /// Whose API key this is.
    pub fn tenant_by_key(&self, api_key: &str) -> Option<TenantId> {
        todo!("{api_key}")
    }

    /// Which node has this key.
    pub fn node_by_key(&self, key: &PublicKey) -> Option<NodeId> {
        todo!("{key}")
    }

    /// What a lease's token opens; `None` for an unknown one and once the lease is over.
    pub fn lease_access(&self, token: &str) -> Option<LeaseAccess> {
        todo!("{token}")
    }

    /// A tenant's account.
    pub fn tenant_account(&self, tenant: TenantId) -> Option<TenantAccount> {
        todo!("{tenant}")
    }

    /// A job as its tenant sees it; `None` where it is another's.
    pub fn job_view(&self, tenant: TenantId, job: JobId, now: Now) -> Option<JobView> {
        todo!("{tenant} {job} {now:?}")
    }

    /// All jobs of a tenant, oldest first.
    pub fn job_views(&self, tenant: TenantId, now: Now) -> Vec<JobView> {
        todo!("{tenant} {now:?}")
    }
}
