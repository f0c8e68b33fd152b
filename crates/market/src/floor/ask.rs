//! What people ask for: tenants, owners, deposits, jobs and their cancellation, and blobs that a lease stores. Each request is
//! answered in its step.

use super::live::{SubmissionRate, Waiting};
use super::{Floor, Turn};
use crate::books::Job;
use crate::effect::{Answer, Refusal};
use crate::input::Ask;
use crate::ledger::{Account, Transfer};
use crate::record::{JobEnd, Record};
use crate::secret::{SecretHash, SecretKind};
use sela_protocol::blob::BlobId;
use sela_protocol::id::{JobId, LeaseId, TenantId};
use sela_protocol::job::{JobSpec, Tier};
use sela_protocol::lease::EndCause;
use sela_protocol::money::Micros;
use sela_protocol::tenant::{OwnerInvited, Submitted, TenantCreated};

/// Longest name or key that is taken.
const LONGEST_NAME: usize = 200;

/// Unfinished jobs that one tenant may have.
const MOST_UNFINISHED_JOBS: usize = 10_000;

/// Blobs that one lease may store: a checkpoint a minute for a fortnight.
const MOST_BLOBS: usize = 20_000;

/// Largest deposit.
const LARGEST_DEPOSIT: Micros = Micros::from_units(1_000_000_000);

type Answered = Result<Answer, Refusal>;

impl Floor {
    pub(super) fn ask(&mut self, turn: &mut Turn, ask: Ask) -> Answered {
        match ask {
            Ask::CreateTenant { name } => self.create_tenant(turn, name),
            Ask::InviteOwner { name } => self.invite_owner(turn, name),
            Ask::Deposit {
                tenant,
                amount,
                idempotency_key,
            } => self.deposit(turn, tenant, amount, idempotency_key),
            Ask::SubmitJob { tenant, spec } => self.submit_job(turn, tenant, spec),
            Ask::CancelJob { tenant, job } => self.cancel_job(turn, tenant, job),
            Ask::KeepBlob { lease, blob } => self.keep_blob(turn, lease, blob),
        }
    }

    fn create_tenant(&mut self, turn: &mut Turn, name: String) -> Answered {
        let name = good_name(name)?;
        let tenant = turn.ids.draw();
        let api_key = turn.secret(SecretKind::ApiKey);
        let record = Record::TenantCreated {
            tenant,
            name,
            key: SecretHash::of(&api_key),
            at_utc_ms: turn.now.utc_ms,
        };
        self.asked(turn, record)?;
        Ok(Answer::TenantCreated(TenantCreated { tenant, api_key }))
    }

    fn invite_owner(&mut self, turn: &mut Turn, name: String) -> Answered {
        let name = good_name(name)?;
        let owner = turn.ids.draw();
        let invitation = turn.secret(SecretKind::Invitation);
        let record = Record::OwnerInvited {
            owner,
            name,
            invitation: SecretHash::of(&invitation),
            at_utc_ms: turn.now.utc_ms,
        };
        self.asked(turn, record)?;
        Ok(Answer::OwnerInvited(OwnerInvited { owner, invitation }))
    }

    fn deposit(&mut self, turn: &mut Turn, tenant: TenantId, amount: Micros, idempotency_key: String) -> Answered {
        let characters = idempotency_key.chars().count();
        if characters == 0 || characters > LONGEST_NAME {
            return Err(Refusal::BadIdempotencyKey { characters });
        }
        if amount <= Micros::ZERO || amount >= LARGEST_DEPOSIT {
            return Err(Refusal::BadAmount(amount));
        }
        match self.books.deposit(tenant, &idempotency_key) {
            Some(booked) if booked == amount => {}
            Some(booked) => return Err(Refusal::IdempotencyKeyUsed { booked, asked: amount }),
            None => self.book_deposit(turn, tenant, amount, idempotency_key)?,
        }
        let account = self.tenant_account(tenant).ok_or(Refusal::UnknownTenant(tenant))?;
        Ok(Answer::Deposited(account))
    }

    fn book_deposit(
        &mut self,
        turn: &mut Turn,
        tenant: TenantId,
        amount: Micros,
        idempotency_key: String,
    ) -> Result<(), Refusal> {
        if !self.books.tenants.contains_key(&tenant) {
            return Err(Refusal::UnknownTenant(tenant));
        }
        let outside = self.books.ledger.balance(Account::Outside);
        if outside.checked_sub(amount).is_none() {
            return Err(Refusal::BadAmount(amount));
        }
        let to = Account::TenantAvailable(tenant);
        let transfer = Transfer::between(turn.ids.draw(), turn.now.utc_ms, Account::Outside, to, amount);
        let transfer = transfer.ok_or(Refusal::BadAmount(amount))?;
        self.asked(
            turn,
            Record::Deposited {
                tenant,
                idempotency_key,
                transfer,
            },
        )
    }

    fn submit_job(&mut self, turn: &mut Turn, tenant: TenantId, spec: Box<JobSpec>) -> Answered {
        let submitter = self.books.tenants.get(&tenant).ok_or(Refusal::UnknownTenant(tenant))?;
        if submitter.unfinished >= MOST_UNFINISHED_JOBS {
            return Err(Refusal::TooManyJobs(submitter.unfinished));
        }
        let now = turn.now.boot_ms;
        let rate = self.live.submissions.entry(tenant);
        let taken = rate.or_insert_with(|| SubmissionRate::new(now)).take(now);
        taken.map_err(|wait| Refusal::TooFast {
            seconds: wait.0.div_ceil(1_000),
        })?;
        let job = turn.ids.draw();
        let at_once = spec.tier == Tier::Gold;
        self.asked(
            turn,
            Record::JobSubmitted {
                job,
                tenant,
                spec,
                at_utc_ms: turn.now.utc_ms,
            },
        )?;
        let waiting = Waiting {
            why: "it was just submitted".to_owned(),
            alone_not_before: turn.now.boot_ms,
        };
        self.live.jobs.insert(job, waiting);
        if at_once {
            self.match_jobs(turn);
        }
        Ok(Answer::Submitted(Submitted { job }))
    }

    fn cancel_job(&mut self, turn: &mut Turn, tenant: TenantId, id: JobId) -> Answered {
        let known = self.books.jobs.get(&id).filter(|job| job.tenant == tenant);
        let job = known.ok_or(Refusal::UnknownJob(id))?;
        match &job.end {
            None if job.cancel_asked => {}
            None => self.cancel(turn, id)?,
            Some(JobEnd::Cancelled) => {}
            Some(JobEnd::Done) => return Err(Refusal::JobEnded { job: id, how: "done" }),
            Some(JobEnd::Failed { .. }) => return Err(Refusal::JobEnded { job: id, how: "failed" }),
        }
        let view = self.job_view(tenant, id, turn.now).ok_or(Refusal::UnknownJob(id))?;
        Ok(Answer::CancelTaken(Box::new(view)))
    }

    fn cancel(&mut self, turn: &mut Turn, id: JobId) -> Result<(), Refusal> {
        let at_utc_ms = turn.now.utc_ms;
        self.asked(turn, Record::JobCancelAsked { job: id, at_utc_ms })?;
        let current = |job: &Job| {
            self.books
                .current_lease(job)
                .map(|lease| (lease.terms.lease, lease.accepted))
        };
        match self.books.jobs.get(&id).and_then(current) {
            None => self.end_job(turn, id, JobEnd::Cancelled, None),
            // Not accepted yet: nothing has begun, so it ends here; the node is told in case its Accept is on the way.
            Some((lease, None)) => {
                self.send_cancel(turn, lease, EndCause::TenantCancelled, false);
                self.end_lease(turn, lease, EndCause::TenantCancelled, None);
            }
            Some((lease, Some(_))) => self.cancel_lease(turn, lease, EndCause::TenantCancelled, false),
        }
        Ok(())
    }

    fn keep_blob(&mut self, turn: &mut Turn, id: LeaseId, blob: BlobId) -> Answered {
        let open = self.books.leases.get(&id).filter(|lease| lease.end.is_none());
        let lease = open.ok_or(Refusal::LeaseOver(id))?;
        if lease.blobs.contains(&blob) {
            return Ok(Answer::BlobKept);
        }
        if lease.blobs.len() >= MOST_BLOBS {
            return Err(Refusal::TooManyBlobs {
                lease: id,
                blobs: lease.blobs.len(),
            });
        }
        self.asked(turn, Record::BlobKept { lease: id, blob })?;
        Ok(Answer::BlobKept)
    }

    /// Records what was asked for.
    fn asked(&mut self, turn: &mut Turn, record: Record) -> Result<(), Refusal> {
        if self.record(turn, record) {
            Ok(())
        } else {
            Err(Refusal::Defect)
        }
    }
}

fn good_name(name: String) -> Result<String, Refusal> {
    let characters = name.trim().chars().count();
    if characters == 0 || characters > LONGEST_NAME {
        return Err(Refusal::BadName { characters });
    }
    Ok(name.trim().to_owned())
}
