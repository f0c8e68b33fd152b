//! What the market knows for good: exactly what its records say. [`Books::apply`] is the only way to change it, while a step runs
//! as well as after a restart, so that the state after a restart is the state before it. No decision is made here; a record that
//! does not follow from those before it is refused.

use crate::auction::AwardRow;
use crate::billing::LATE_NOTES;
use crate::ledger::{Account, Ledger, LedgerError, Transfer};
use crate::record::{JobEnd, LeaseTerms, Record};
use crate::secret::SecretHash;
use sela_protocol::blob::BlobId;
use sela_protocol::envelope::PublicKey;
use sela_protocol::id::{JobId, LeaseId, NodeId, OwnerId, TenantId};
use sela_protocol::job::JobSpec;
use sela_protocol::lease::{EndCause, FencingToken, MeterNote, Receipt};
use sela_protocol::money::Micros;
use sela_protocol::units::{Millis, UtcMs};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// All that lasts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Books {
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    tenants_by_key: BTreeMap<SecretHash, TenantId>,
    deposits: BTreeMap<(TenantId, String), Micros>,
    owners: BTreeMap<OwnerId, String>,
    invitations: BTreeMap<SecretHash, Invitation>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    nodes_by_key: HashMap<PublicKey, NodeId>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    leases_by_token: BTreeMap<SecretHash, LeaseId>,
    /// Jobs without an end and without a lease that goes on.
    pub(crate) queue: BTreeSet<JobId>,
    /// Leases whose card is not free.
    pub(crate) open_leases: BTreeSet<LeaseId>,
    /// Leases whose money is not closed.
    pub(crate) unsettled_leases: BTreeSet<LeaseId>,
    pub(crate) ledger: Ledger,
    /// How long the exchange has been up, as last written down.
    pub(crate) uptime: Millis,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) jobs: Vec<JobId>,
    pub(crate) unfinished: usize,
    /// Set aside for all of its leases, money held for late notes included: kept along with each posting, since all leases of a tenant
    /// are too many to add up whenever somebody looks.
    pub(crate) escrow: Micros,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Invitation {
    pub(crate) owner: OwnerId,
    pub(crate) used: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) owner: OwnerId,
    pub(crate) key: PublicKey,
    pub(crate) name: String,
    pub(crate) leases: Vec<LeaseId>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    pub(crate) tenant: TenantId,
    pub(crate) spec: JobSpec,
    pub(crate) submitted: UtcMs,
    pub(crate) queued_since: UtcMs,
    pub(crate) cancel_asked: bool,
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) checkpoint: Option<BlobId>,
    /// Leases in a row that could not be started by a fault of a node's.
    pub(crate) node_faults: u32,
    /// Why its last lease ended, while it waits again.
    pub(crate) last_cause: Option<EndCause>,
    pub(crate) end: Option<JobEnd>,
    pub(crate) output: Option<BlobId>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lease {
    pub(crate) terms: LeaseTerms,
    /// The winner's own row of the award's table.
    pub(crate) row: AwardRow,
    /// The hash of that table.
    pub(crate) table_hash: String,
    /// From where the job went on.
    pub(crate) started_from: Option<BlobId>,
    pub(crate) accepted: Option<UtcMs>,
    /// Time covered by renewals as last written down, and when that was.
    pub(crate) mark: Option<(Millis, UtcMs)>,
    pub(crate) note: Option<MeterNote>,
    pub(crate) cancel: Option<EndCause>,
    pub(crate) blobs: BTreeSet<BlobId>,
    pub(crate) receipt: Option<Receipt>,
    pub(crate) end: Option<LeaseEnd>,
    pub(crate) settled: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LeaseEnd {
    pub(crate) cause: EndCause,
    pub(crate) at: UtcMs,
    /// The exchange's uptime up to which late notes are honoured.
    pub(crate) held_until: Option<Millis>,
}

impl Lease {
    /// Thawed time that counts so far.
    pub(crate) fn noted(&self) -> Millis {
        self.note.as_ref().map_or(Millis(0), |note| note.thawed_ms)
    }

    /// The cause on the closing note, once it is there.
    pub(crate) fn closing(&self) -> Option<&EndCause> {
        self.note.as_ref().and_then(|note| note.closing.as_ref())
    }

    /// Billed and posted so far.
    pub(crate) fn billed(&self) -> Millis {
        self.receipt.as_ref().map_or(Millis(0), |receipt| receipt.billed_ms)
    }

    /// Paid so far by the tenant.
    pub(crate) fn paid(&self) -> Micros {
        self.receipt.as_ref().map_or(Micros::ZERO, |receipt| receipt.gross)
    }
}

/// Why a record does not follow from those before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BooksError {
    #[error("{0} is not known")]
    Unknown(String),
    #[error("{0} is there already")]
    Repeated(String),
    #[error("{0}")]
    OutOfOrder(String),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Books {
    /// Takes one record, all of it or none.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<(), BooksError> {
        match record {
            Record::TenantCreated { tenant, name, key, .. } => self.tenant_created(*tenant, name, *key),
            Record::OwnerInvited {
                owner,
                name,
                invitation,
                ..
            } => self.owner_invited(*owner, name, *invitation),
            Record::NodeAdmitted {
                node,
                owner,
                key,
                name,
                invitation,
                ..
            } => self.node_admitted(*node, *owner, *key, name, *invitation),
            Record::Deposited {
                tenant,
                idempotency_key,
                transfer,
            } => self.deposited(*tenant, idempotency_key, transfer),
            Record::JobSubmitted {
                job,
                tenant,
                spec,
                at_utc_ms,
            } => self.job_submitted(*job, *tenant, spec, *at_utc_ms),
            Record::JobCancelAsked { job, .. } => self.unfinished_job(*job).map(|job| job.cancel_asked = true),
            Record::LeaseAwarded { terms, table, transfer } => {
                let row = table
                    .rows
                    .iter()
                    .find(|row| row.node == terms.node && row.gpu == terms.gpu);
                let row = row.ok_or_else(|| BooksError::Unknown(format!("the winner's row of {}", terms.award)))?;
                self.lease_awarded(terms, row, table.hash(), transfer.as_ref())
            }
            Record::LeaseAccepted { lease, at_utc_ms } => self.open_lease(*lease).map(|lease| {
                lease.accepted = Some(*at_utc_ms);
                lease.mark = Some((Millis(0), *at_utc_ms));
            }),
            Record::RenewalMarked {
                lease,
                covered_ms,
                at_utc_ms,
            } => self
                .open_lease(*lease)
                .map(|lease| lease.mark = Some((*covered_ms, *at_utc_ms))),
            Record::NoteTaken { note, .. } => self.note_taken(note),
            Record::Posted { receipt, transfer } => self.posted(receipt, transfer.as_ref()),
            Record::EscrowAdded {
                lease,
                limit_ms,
                transfer,
            } => {
                self.open_lease(*lease)?;
                self.book(Some(transfer))?;
                self.open_lease(*lease).map(|lease| lease.terms.limit_ms = *limit_ms)
            }
            Record::BlobKept { lease, blob } => {
                self.open_lease(*lease)?.blobs.insert(*blob);
                Ok(())
            }
            Record::CheckpointAccepted { lease, blob, .. } => {
                let job = self.open_lease(*lease)?.terms.job;
                self.unfinished_job(job).map(|job| job.checkpoint = Some(*blob))
            }
            Record::LeaseCancelAsked { lease, cause } => {
                self.open_lease(*lease).map(|lease| lease.cancel = Some(cause.clone()))
            }
            Record::LeaseEnded {
                lease,
                cause,
                at_utc_ms,
                held_until_utc_ms,
                held_until_uptime_ms,
            } => {
                // Where only the old field is there, late notes get their whole time once more.
                let from_now = Millis(self.uptime.0.saturating_add(LATE_NOTES.0));
                let held_until = held_until_uptime_ms.or(held_until_utc_ms.map(|_| from_now));
                self.open_lease(*lease)?.end = Some(LeaseEnd {
                    cause: cause.clone(),
                    at: *at_utc_ms,
                    held_until,
                });
                self.open_leases.remove(lease);
                Ok(())
            }
            Record::UptimeMarked { uptime_ms, .. } if *uptime_ms < self.uptime => {
                Err(BooksError::OutOfOrder("the exchange's uptime falls".to_owned()))
            }
            Record::UptimeMarked { uptime_ms, .. } => {
                self.uptime = *uptime_ms;
                Ok(())
            }
            Record::EscrowReturned { lease, transfer } => {
                self.unsettled_lease(*lease)?;
                self.book(Some(transfer))
            }
            Record::LeaseSettled { lease, transfer } => self.lease_settled(*lease, transfer.as_ref()),
            Record::JobRequeued {
                job,
                cause,
                node_faults,
                at_utc_ms,
            } => self.job_requeued(*job, cause, *node_faults, *at_utc_ms),
            Record::JobEnded { job, end, output, .. } => self.job_ended(*job, end, *output),
        }
    }

    pub(crate) fn tenant_by_key(&self, hash: SecretHash) -> Option<TenantId> {
        self.tenants_by_key.get(&hash).copied()
    }

    pub(crate) fn deposit(&self, tenant: TenantId, idempotency_key: &str) -> Option<Micros> {
        self.deposits.get(&(tenant, idempotency_key.to_owned())).copied()
    }

    pub(crate) fn invitation(&self, hash: SecretHash) -> Option<Invitation> {
        self.invitations.get(&hash).copied()
    }

    pub(crate) fn node_by_key(&self, key: &PublicKey) -> Option<NodeId> {
        self.nodes_by_key.get(key).copied()
    }

    pub(crate) fn lease_by_token(&self, hash: SecretHash) -> Option<&Lease> {
        self.leases_by_token.get(&hash).and_then(|lease| self.leases.get(lease))
    }

    pub(crate) fn available(&self, tenant: TenantId) -> Micros {
        self.ledger.balance(Account::TenantAvailable(tenant))
    }

    pub(crate) fn escrow(&self, lease: LeaseId) -> Micros {
        self.ledger.balance(Account::Escrow(lease))
    }

    /// What a job's budget leaves after what is paid and set aside.
    pub(crate) fn budget_left(&self, job: &Job) -> Micros {
        let spoken_for: Micros = self
            .leases_of(job)
            .map(|lease| lease.paid() + self.escrow(lease.terms.lease))
            .sum();
        job.spec.budget - spoken_for
    }

    /// The job's lease that goes on, if it has one.
    pub(crate) fn current_lease(&self, job: &Job) -> Option<&Lease> {
        let lease = job.leases.last().and_then(|lease| self.leases.get(lease))?;
        lease.end.is_none().then_some(lease)
    }

    pub(crate) fn leases_of<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a Lease> {
        job.leases.iter().filter_map(|lease| self.leases.get(lease))
    }

    fn tenant_created(&mut self, tenant: TenantId, name: &str, key: SecretHash) -> Result<(), BooksError> {
        if self.tenants.contains_key(&tenant) || self.tenants_by_key.contains_key(&key) {
            return Err(BooksError::Repeated(tenant.to_string()));
        }
        self.tenants_by_key.insert(key, tenant);
        let new = Tenant {
            name: name.to_owned(),
            jobs: Vec::new(),
            unfinished: 0,
            escrow: Micros::ZERO,
        };
        self.tenants.insert(tenant, new);
        Ok(())
    }

    fn owner_invited(&mut self, owner: OwnerId, name: &str, invitation: SecretHash) -> Result<(), BooksError> {
        if self.owners.contains_key(&owner) || self.invitations.contains_key(&invitation) {
            return Err(BooksError::Repeated(owner.to_string()));
        }
        self.owners.insert(owner, name.to_owned());
        self.invitations.insert(invitation, Invitation { owner, used: false });
        Ok(())
    }

    fn node_admitted(
        &mut self,
        node: NodeId,
        owner: OwnerId,
        key: PublicKey,
        name: &str,
        invitation: SecretHash,
    ) -> Result<(), BooksError> {
        if self.nodes.contains_key(&node) || self.nodes_by_key.contains_key(&key) {
            return Err(BooksError::Repeated(node.to_string()));
        }
        let invited = self.invitations.get_mut(&invitation);
        let invited = invited.ok_or_else(|| BooksError::Unknown(format!("the invitation of {node}")))?;
        if invited.used || invited.owner != owner {
            return Err(BooksError::OutOfOrder(format!(
                "{node} came with another's or a used invitation"
            )));
        }
        invited.used = true;
        self.nodes_by_key.insert(key, node);
        let new = Node {
            owner,
            key,
            name: name.to_owned(),
            leases: Vec::new(),
        };
        self.nodes.insert(node, new);
        Ok(())
    }

    fn deposited(&mut self, tenant: TenantId, idempotency_key: &str, transfer: &Transfer) -> Result<(), BooksError> {
        if !self.tenants.contains_key(&tenant) {
            return Err(BooksError::Unknown(tenant.to_string()));
        }
        let key = (tenant, idempotency_key.to_owned());
        if self.deposits.contains_key(&key) {
            return Err(BooksError::Repeated(format!("a deposit of {tenant}")));
        }
        let before = self.available(tenant);
        self.book(Some(transfer))?;
        self.deposits.insert(key, self.available(tenant) - before);
        Ok(())
    }

    fn job_submitted(&mut self, job: JobId, tenant: TenantId, spec: &JobSpec, at: UtcMs) -> Result<(), BooksError> {
        if self.jobs.contains_key(&job) {
            return Err(BooksError::Repeated(job.to_string()));
        }
        let submitter = self.tenants.get_mut(&tenant);
        let submitter = submitter.ok_or_else(|| BooksError::Unknown(tenant.to_string()))?;
        submitter.jobs.push(job);
        submitter.unfinished += 1;
        let new = Job {
            tenant,
            spec: spec.clone(),
            submitted: at,
            queued_since: at,
            cancel_asked: false,
            leases: Vec::new(),
            checkpoint: None,
            node_faults: 0,
            last_cause: None,
            end: None,
            output: None,
        };
        self.jobs.insert(job, new);
        self.queue.insert(job);
        Ok(())
    }

    fn lease_awarded(
        &mut self,
        terms: &LeaseTerms,
        row: &AwardRow,
        table_hash: String,
        transfer: Option<&Transfer>,
    ) -> Result<(), BooksError> {
        let id = terms.lease;
        if self.leases.contains_key(&id) || self.leases_by_token.contains_key(&terms.token) {
            return Err(BooksError::Repeated(id.to_string()));
        }
        let taken = self.open_leases.iter().filter_map(|lease| self.leases.get(lease));
        if taken
            .into_iter()
            .any(|lease| lease.terms.node == terms.node && lease.terms.gpu == terms.gpu)
        {
            return Err(BooksError::OutOfOrder(format!(
                "{} of {} is let already",
                terms.gpu, terms.node
            )));
        }
        if !self.queue.contains(&terms.job) || !self.nodes.contains_key(&terms.node) {
            return Err(BooksError::OutOfOrder(format!(
                "{id} is for a job that does not wait or an unknown node"
            )));
        }
        let newest = self.jobs.get(&terms.job).and_then(|job| self.newest_fencing(job));
        if newest.is_some_and(|newest| terms.fencing <= newest) {
            return Err(BooksError::OutOfOrder(format!(
                "the fencing token of {id} does not rise"
            )));
        }
        // The lease is not there yet: whose escrow it is, is counted at the end.
        transfer.map_or(Ok(()), |transfer| self.ledger.book(transfer))?;
        self.queue.remove(&terms.job);
        self.open_leases.insert(id);
        self.unsettled_leases.insert(id);
        self.leases_by_token.insert(terms.token, id);
        if let Some(node) = self.nodes.get_mut(&terms.node) {
            node.leases.push(id);
        }
        let mut started_from = None;
        if let Some(job) = self.jobs.get_mut(&terms.job) {
            job.leases.push(id);
            started_from = job.checkpoint;
        }
        let new = Lease {
            terms: terms.clone(),
            row: row.clone(),
            table_hash,
            started_from,
            accepted: None,
            mark: None,
            note: None,
            cancel: None,
            blobs: BTreeSet::new(),
            receipt: None,
            end: None,
            settled: false,
        };
        self.leases.insert(id, new);
        self.count_escrow(transfer);
        Ok(())
    }

    /// The token of the job's newest lease; the next one is above it.
    pub(crate) fn newest_fencing(&self, job: &Job) -> Option<FencingToken> {
        self.leases_of(job).map(|lease| lease.terms.fencing).max()
    }

    fn note_taken(&mut self, note: &MeterNote) -> Result<(), BooksError> {
        let lease = self.unsettled_lease(note.lease)?;
        if note.thawed_ms < lease.noted() {
            return Err(BooksError::OutOfOrder(format!(
                "the time noted for {} falls",
                note.lease
            )));
        }
        lease.note = Some(note.clone());
        Ok(())
    }

    fn posted(&mut self, receipt: &Receipt, transfer: Option<&Transfer>) -> Result<(), BooksError> {
        let lease = self.unsettled_lease(receipt.lease)?;
        let due = receipt.gross - lease.paid();
        if receipt.billed_ms < lease.billed() || due < Micros::ZERO {
            return Err(BooksError::OutOfOrder(format!(
                "the receipt of {} takes something back",
                receipt.lease
            )));
        }
        let before = self.escrow(receipt.lease);
        let given = transfer.map_or(Micros::ZERO, |transfer| {
            let of_escrow = |posting: &&crate::ledger::Posting| posting.account == Account::Escrow(receipt.lease);
            transfer
                .postings
                .iter()
                .filter(of_escrow)
                .map(|posting| posting.amount.negated())
                .sum()
        });
        if given != due {
            return Err(BooksError::OutOfOrder(format!(
                "the receipt of {} says {due} more, but {given} of {before} moved",
                receipt.lease
            )));
        }
        self.book(transfer)?;
        self.unsettled_lease(receipt.lease)?.receipt = Some(receipt.clone());
        Ok(())
    }

    fn lease_settled(&mut self, id: LeaseId, transfer: Option<&Transfer>) -> Result<(), BooksError> {
        if self.unsettled_lease(id)?.end.is_none() {
            return Err(BooksError::OutOfOrder(format!("{id} goes on and cannot be settled")));
        }
        self.book(transfer)?;
        self.unsettled_lease(id)?.settled = true;
        self.unsettled_leases.remove(&id);
        Ok(())
    }

    fn job_requeued(&mut self, id: JobId, cause: &EndCause, node_faults: u32, at: UtcMs) -> Result<(), BooksError> {
        self.holds_no_card(id)?;
        let job = self.unfinished_job(id)?;
        job.queued_since = at;
        job.node_faults = node_faults;
        job.last_cause = Some(cause.clone());
        self.queue.insert(id);
        Ok(())
    }

    fn job_ended(&mut self, id: JobId, end: &JobEnd, output: Option<BlobId>) -> Result<(), BooksError> {
        self.holds_no_card(id)?;
        let job = self.unfinished_job(id)?;
        job.end = Some(end.clone());
        job.output = output;
        let tenant = job.tenant;
        self.queue.remove(&id);
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.unfinished = tenant.unfinished.saturating_sub(1);
        }
        Ok(())
    }

    fn book(&mut self, transfer: Option<&Transfer>) -> Result<(), BooksError> {
        transfer.map_or(Ok(()), |transfer| self.ledger.book(transfer))?;
        self.count_escrow(transfer);
        Ok(())
    }

    fn count_escrow(&mut self, transfer: Option<&Transfer>) {
        for posting in transfer.iter().flat_map(|transfer| &transfer.postings) {
            if let Account::Escrow(lease) = posting.account
                && let Some(lease) = self.leases.get(&lease)
                && let Some(tenant) = self.tenants.get_mut(&lease.terms.tenant)
            {
                tenant.escrow = tenant.escrow + posting.amount;
            }
        }
    }

    fn holds_no_card(&self, id: JobId) -> Result<(), BooksError> {
        match self.jobs.get(&id).and_then(|job| self.current_lease(job)) {
            None => Ok(()),
            Some(lease) => Err(BooksError::OutOfOrder(format!("{} of {id} goes on", lease.terms.lease))),
        }
    }

    fn unfinished_job(&mut self, id: JobId) -> Result<&mut Job, BooksError> {
        let job = self.jobs.get_mut(&id).filter(|job| job.end.is_none());
        job.ok_or_else(|| BooksError::Unknown(format!("an unfinished {id}")))
    }

    fn open_lease(&mut self, id: LeaseId) -> Result<&mut Lease, BooksError> {
        let lease = self.leases.get_mut(&id).filter(|lease| lease.end.is_none());
        lease.ok_or_else(|| BooksError::Unknown(format!("an open {id}")))
    }

    fn unsettled_lease(&mut self, id: LeaseId) -> Result<&mut Lease, BooksError> {
        let lease = self.leases.get_mut(&id).filter(|lease| !lease.settled);
        lease.ok_or_else(|| BooksError::Unknown(format!("an unsettled {id}")))
    }
}
