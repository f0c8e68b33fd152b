//! What becomes of a job when a lease of it has ended, and the sentences that say so.

use super::lease::AWARD_PAUSE;
use super::live::Waiting;
use super::{Floor, Turn};
use crate::books::Job;
use crate::record::{JobEnd, Record};
use sela_protocol::blob::BlobId;
use sela_protocol::id::{JobId, LeaseId};
use sela_protocol::job::LEAST_BILLED;
use sela_protocol::lease::{EndCause, EndedBy};
use sela_protocol::units::Millis;

/// Leases in a row that may fail to start by a fault of a node's before the job is given up.
pub(super) const MOST_NODE_FAULTS: u32 = 3;

impl Floor {
    pub(super) fn after_lease(
        &mut self,
        turn: &mut Turn,
        id: JobId,
        lease: LeaseId,
        cause: EndCause,
        output: Option<BlobId>,
    ) {
        let Some(job) = self.books.jobs.get(&id) else {
            return;
        };
        match cause.ended_by() {
            EndedBy::Job => {
                let end = final_end(job, cause);
                self.end_job(turn, id, end, output);
            }
            EndedBy::Tenant | EndedBy::Exchange | EndedBy::Other if job.cancel_asked => {
                self.end_job(turn, id, JobEnd::Cancelled, output);
            }
            EndedBy::Tenant => {
                let end = final_end(job, cause);
                self.end_job(turn, id, end, output);
            }
            EndedBy::Exchange | EndedBy::Other => self.requeue(turn, id, lease, cause),
        }
    }

    fn requeue(&mut self, turn: &mut Turn, id: JobId, lease: LeaseId, cause: EndCause) {
        let Some((job, lease)) = self.books.jobs.get(&id).zip(self.books.leases.get(&lease)) else {
            return;
        };
        // A fault within the first minute is one of starting.
        let ran = self.ran(lease) >= LEAST_BILLED;
        // An award that was not taken says nothing about the job.
        let faulty = !ran && lease.accepted.is_some() && matches!(cause, EndCause::NodeFault { .. });
        let before = if ran { 0 } else { job.node_faults };
        let node_faults = before + u32::from(faulty);
        if node_faults >= MOST_NODE_FAULTS {
            let message = self.all_faults(job, node_faults);
            return self.end_job(turn, id, JobEnd::Failed { cause, message }, None);
        }
        let record = Record::JobRequeued {
            job: id,
            cause: cause.clone(),
            node_faults,
            at_utc_ms: turn.now.utc_ms,
        };
        if self.record(turn, record) {
            let pause = if faulty { AWARD_PAUSE } else { Millis(0) };
            let waiting = Waiting {
                why: "it waits for a card again".to_owned(),
                alone_not_before: turn.now.boot_ms.plus(pause),
            };
            self.live.jobs.insert(id, waiting);
        }
    }

    fn all_faults(&self, job: &Job, faults: u32) -> String {
        let newest = job.leases.iter().rev().filter_map(|lease| self.books.leases.get(lease));
        let faults = newest.filter(|lease| lease.accepted.is_some()).take(faults as usize);
        let each: Vec<String> = faults
            .filter_map(|lease| {
                lease
                    .end
                    .as_ref()
                    .map(|end| format!("{}: {}", lease.terms.node, describe(&end.cause)))
            })
            .collect();
        format!(
            "no node could start it, {} in a row; submit it again once these are mended, or with less demand: {}",
            each.len(),
            each.join("; ")
        )
    }

    pub(super) fn end_job(&mut self, turn: &mut Turn, id: JobId, end: JobEnd, output: Option<BlobId>) {
        let record = Record::JobEnded {
            job: id,
            end,
            output,
            at_utc_ms: turn.now.utc_ms,
        };
        if self.record(turn, record) {
            self.live.jobs.remove(&id);
        }
    }
}

/// How a job ends that ended by itself or by its tenant.
fn final_end(job: &Job, cause: EndCause) -> JobEnd {
    if cause == (EndCause::Exited { code: 0 }) {
        return JobEnd::Done;
    }
    if cause == EndCause::TenantCancelled {
        return JobEnd::Cancelled;
    }
    JobEnd::Failed {
        message: advice(job, &cause),
        cause,
    }
}

/// What a tenant can do about a failed job.
pub(super) fn advice(job: &Job, cause: &EndCause) -> String {
    let saved = if job.checkpoint.is_some() {
        "; its last checkpoint is kept"
    } else {
        ""
    };
    if *cause == EndCause::OutOfMemory {
        let memory = job.spec.memory.0;
        return format!(
            "it used more memory than the {memory} bytes it asked for: submit it again with more \"memory\""
        );
    }
    if *cause == EndCause::WallLimit {
        let limit = job.spec.wall_limit_ms.0;
        return format!("it ran for its wall_limit_ms of {limit}: submit it again with a higher one{saved}");
    }
    if *cause == EndCause::BudgetUsed {
        let budget = job.spec.budget;
        return format!(
            "its budget of {budget}, or what the account had for it, is used up: raise either and submit it again{saved}"
        );
    }
    if let EndCause::Exited { code } = cause {
        return format!("its program ended with exit code {code}: `sela job logs` shows what it wrote");
    }
    describe(cause)
}

/// A cause in words.
pub(super) fn describe(cause: &EndCause) -> String {
    match cause {
        EndCause::Exited { code } => format!("the program ended with exit code {code}"),
        EndCause::OutOfMemory => "the job used more memory than it asked for".to_owned(),
        EndCause::WallLimit => "the job reached its wall limit".to_owned(),
        EndCause::TenantCancelled => "its tenant cancelled it".to_owned(),
        EndCause::BudgetUsed => "the budget is used up".to_owned(),
        EndCause::Displaced => "a job of a higher tier took the card".to_owned(),
        EndCause::OwnerInput => "the owner came back to the machine".to_owned(),
        EndCause::OwnerProgram { name: Some(name) } => format!("the owner started {name}"),
        EndCause::OwnerProgram { name: None } => "a program of the owner's wanted the card".to_owned(),
        EndCause::OwnerCommand => "the owner paused sharing".to_owned(),
        EndCause::OwnerRule => "the owner's hours for sharing were over".to_owned(),
        EndCause::Shutdown => "the machine went to sleep or was shut down".to_owned(),
        EndCause::Hot => "the card became too hot".to_owned(),
        EndCause::SensorSilent { what } => format!("the machine could not watch {what} any more"),
        EndCause::CardLost => "the driver lost the card".to_owned(),
        EndCause::GrantExpired => "the agent on the machine fell silent".to_owned(),
        EndCause::LeaseExpired => "the machine lost its connection for too long".to_owned(),
        EndCause::Lost => "nothing was heard of the machine for 75 seconds".to_owned(),
        EndCause::AgentRestarted => "the agent on the machine was killed".to_owned(),
        EndCause::NodeFault { message } | EndCause::JobFault { message } => message.clone(),
        EndCause::Unknown => "for a reason that this exchange does not know yet".to_owned(),
    }
}
