//! What the market shows: to a tenant its account and jobs, to the edge whose key, token or node something is. Reads only.

use super::Floor;
use crate::auction::AwardRow;
use crate::books::{Job, Lease};
use crate::lease::Standing;
use crate::record::JobEnd;
use crate::secret::SecretHash;
use sela_protocol::blob::BlobId;
use sela_protocol::envelope::PublicKey;
use sela_protocol::id::{JobId, LeaseId, NodeId, OwnerId, TenantId};
use sela_protocol::job::ImageSource;
use sela_protocol::lease::LeasePhase;
use sela_protocol::tenant::{JobState, JobView, LeaseView, TenantAccount};
use sela_protocol::units::Now;
use std::collections::BTreeSet;

/// Jobs on one page of a list.
const MOST_JOBS_OF_PAGE: usize = 50;
/// A page ends with the job that brings its leases to this: a job that was often given back has many.
const MOST_LEASES_OF_PAGE: usize = 1_000;

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

/// What each side may see of an award.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwardView {
    /// The winner's own row.
    pub row: AwardRow,
    /// The hash of the whole table, in which that row stands.
    pub table_hash: String,
}

impl Floor {
    /// Whose API key this is.
    pub fn tenant_by_key(&self, api_key: &str) -> Option<TenantId> {
        self.books.tenant_by_key(SecretHash::of(api_key))
    }

    /// Which node has this key.
    pub fn node_by_key(&self, key: &PublicKey) -> Option<NodeId> {
        self.books.node_by_key(key)
    }

    /// A node's owner, key and name.
    pub fn node(&self, node: NodeId) -> Option<(OwnerId, PublicKey, &str)> {
        let entry = self.books.nodes.get(&node)?;
        Some((entry.owner, entry.key, &entry.name))
    }

    /// The jobs that may still get a lease, or have one.
    pub fn unfinished_jobs(&self) -> Vec<JobId> {
        let unfinished = self.books.jobs.iter().filter(|(_, job)| job.end.is_none());
        unfinished.map(|(id, _)| *id).collect()
    }

    /// The blobs that jobs which have not ended need: their images and inputs, the checkpoints that they go on from, and what their
    /// open leases have stored. Whoever removes one of these makes a job fail that was paid for.
    pub fn blobs_in_use(&self) -> BTreeSet<BlobId> {
        let unfinished = self.books.jobs.values().filter(|job| job.end.is_none());
        let mut needed = BTreeSet::new();
        for job in unfinished {
            needed.extend(job.spec.inputs.iter().map(|input| input.blob));
            if let ImageSource::Archive { blob } = &job.spec.image {
                needed.insert(*blob);
            }
            needed.extend(job.checkpoint);
            if let Some(lease) = self.books.current_lease(job) {
                needed.extend(lease.started_from);
                needed.extend(&lease.blobs);
            }
        }
        needed
    }

    /// What a lease's token opens; `None` for an unknown one and once the lease is over.
    pub fn lease_access(&self, token: &str) -> Option<LeaseAccess> {
        let lease = self.books.lease_by_token(SecretHash::of(token))?;
        if lease.end.is_some() {
            return None;
        }
        let spec = &self.books.jobs.get(&lease.terms.job)?.spec;
        let mut readable = lease.blobs.clone();
        readable.extend(spec.inputs.iter().map(|input| input.blob));
        readable.extend(lease.started_from);
        if let ImageSource::Archive { blob } = &spec.image {
            readable.insert(*blob);
        }
        Some(LeaseAccess {
            lease: lease.terms.lease,
            job: lease.terms.job,
            tenant: lease.terms.tenant,
            readable,
        })
    }

    /// A tenant's account.
    pub fn tenant_account(&self, tenant: TenantId) -> Option<TenantAccount> {
        let entry = self.books.tenants.get(&tenant)?;
        Some(TenantAccount {
            tenant,
            name: entry.name.clone(),
            available: self.books.available(tenant),
            escrow: entry.escrow,
            lab: self.config.lab,
        })
    }

    /// A job as its tenant sees it; `None` where it is another's.
    pub fn job_view(&self, tenant: TenantId, job: JobId, now: Now) -> Option<JobView> {
        let entry = self.books.jobs.get(&job).filter(|entry| entry.tenant == tenant)?;
        Some(JobView {
            job,
            spec: entry.spec.clone(),
            state: self.job_state(job, entry, now),
            submitted_utc_ms: entry.submitted,
            leases: self.books.leases_of(entry).map(lease_view).collect(),
            checkpoint: entry.checkpoint,
            output: entry.output,
            paid: self.books.leases_of(entry).map(Lease::paid).sum(),
            escrow: self
                .books
                .leases_of(entry)
                .map(|lease| self.books.escrow(lease.terms.lease))
                .sum(),
        })
    }

    /// Jobs of a tenant, newest first, from the newest that was submitted before place `before` on; `None`: from the newest. So many
    /// that the loop is not held up, whatever a tenant has; gives the place where the next page starts, if there is one.
    pub fn job_page(&self, tenant: TenantId, before: Option<usize>, now: Now) -> (Vec<JobView>, Option<usize>) {
        let jobs = self.books.tenants.get(&tenant).map(|entry| entry.jobs.as_slice());
        let jobs = jobs.unwrap_or_default();
        let mut place = before.unwrap_or(jobs.len()).min(jobs.len());
        let (mut views, mut leases) = (Vec::new(), 0);
        while place > 0 && views.len() < MOST_JOBS_OF_PAGE && leases < MOST_LEASES_OF_PAGE {
            place -= 1;
            if let Some(view) = self.job_view(tenant, jobs[place], now) {
                leases += view.leases.len();
                views.push(view);
            }
        }
        (views, (place > 0).then_some(place))
    }

    /// How a lease's award came about, as far as its two sides may see it.
    pub fn award_view(&self, lease: LeaseId) -> Option<AwardView> {
        let lease = self.books.leases.get(&lease)?;
        Some(AwardView {
            row: lease.row.clone(),
            table_hash: lease.table_hash.clone(),
        })
    }

    fn job_state(&self, id: JobId, job: &Job, now: Now) -> JobState {
        match &job.end {
            Some(JobEnd::Done) => return JobState::Done,
            Some(JobEnd::Cancelled) => return JobState::Cancelled,
            Some(JobEnd::Failed { cause, message }) => {
                return JobState::Failed {
                    cause: cause.clone(),
                    message: message.clone(),
                };
            }
            None => {}
        }
        match self.books.current_lease(job) {
            Some(lease) => JobState::Leased {
                phase: self.phase(lease.terms.lease, now),
            },
            None => JobState::Queued { why: self.why(id, job) },
        }
    }

    fn phase(&self, lease: LeaseId, now: Now) -> LeasePhase {
        let Some(live) = self.live.leases.get(&lease) else {
            return LeasePhase::Unknown;
        };
        match live.coverage.map(|coverage| coverage.standing(now.boot_ms)) {
            Some(Standing::Unknown | Standing::Lost) => LeasePhase::Unknown,
            Some(Standing::Heard) | None => live.phase,
        }
    }

    fn why(&self, id: JobId, job: &Job) -> String {
        let waiting = self.live.jobs.get(&id).map_or("", |waiting| waiting.why.as_str());
        match &job.last_cause {
            None => waiting.to_owned(),
            Some(cause) => format!("{waiting} (its last lease ended: {})", super::job::describe(cause)),
        }
    }
}

fn lease_view(lease: &Lease) -> LeaseView {
    LeaseView {
        lease: lease.terms.lease,
        node: lease.terms.node,
        card: lease.terms.card.clone(),
        price: lease.terms.price,
        accepted_utc_ms: lease.accepted,
        billed_ms: lease.billed(),
        paid: lease.paid(),
        end: lease.end.as_ref().map(|end| end.cause.clone()),
    }
}
