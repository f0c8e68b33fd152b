//! What happens because time passes: reservations and leases run out, held money goes back, postings fall due, budgets are
//! watched, jobs are matched.

use super::live::LiveLease;
use super::money::POSTING_INTERVAL;
use super::{Floor, Turn};
use crate::billing;
use crate::books::Lease;
use crate::lease::Standing;
use crate::ledger::{Account, Transfer};
use crate::record::Record;
use sela_protocol::id::LeaseId;
use sela_protocol::job::LEAST_BILLED;
use sela_protocol::lease::EndCause;
use sela_protocol::node::RESERVATION;
use sela_protocol::units::{BootMs, Millis};
use std::collections::BTreeSet;

/// A job is told to save and go when its escrow covers no more than this: time to hear of it, and to save.
const SAVE_MARGIN: Millis = Millis(15_000);

impl Floor {
    pub(super) fn tick(&mut self, turn: &mut Turn) {
        let now = turn.now.boot_ms;
        let not_taken =
            |_: &Lease, live: &LiveLease| live.coverage.is_none() && now.since(live.reserved_at) >= RESERVATION;
        for id in self.leases_where(&self.books.open_leases, not_taken) {
            self.withdraw(turn, id);
        }
        let lost = |_: &Lease, live: &LiveLease| {
            live.coverage
                .is_some_and(|coverage| coverage.standing(now) == Standing::Lost)
        };
        for id in self.leases_where(&self.books.open_leases, lost) {
            self.end_lost(turn, id);
        }
        self.release_held(turn);
        let due = |lease: &Lease, live: &LiveLease| {
            lease.noted() > lease.billed() && now.since(live.posted_at) >= POSTING_INTERVAL
        };
        for id in self.leases_where(&self.books.unsettled_leases, due) {
            self.post(turn, id, None);
        }
        for id in self.leases_where(&self.books.open_leases, |lease, live| runs_short(lease, live, now)) {
            self.escrow_is_short(turn, id);
        }
        self.match_jobs(turn);
    }

    pub(super) fn leases_where(
        &self,
        among: &BTreeSet<LeaseId>,
        holds: impl Fn(&Lease, &LiveLease) -> bool,
    ) -> Vec<LeaseId> {
        let with_state = among
            .iter()
            .filter_map(|id| Some((self.books.leases.get(id)?, self.live.leases.get(id)?)));
        with_state
            .filter(|(lease, live)| holds(lease, live))
            .map(|(lease, _)| lease.terms.lease)
            .collect()
    }

    /// An award that was not answered in time.
    fn withdraw(&mut self, turn: &mut Turn, id: LeaseId) {
        self.leave_alone(turn, id);
        let message = format!("the node did not answer the award within {} s", RESERVATION.0 / 1_000);
        self.end_lease(turn, id, EndCause::NodeFault { message }, None);
    }

    /// What budget and account have is added; if they have nothing more, the job saves and goes.
    fn escrow_is_short(&mut self, turn: &mut Turn, id: LeaseId) {
        let Some(lease) = self.books.leases.get(&id) else {
            return;
        };
        let terms = &lease.terms;
        let Some(job) = self.books.jobs.get(&terms.job) else {
            return;
        };
        let set_aside = lease.paid() + self.books.escrow(id);
        let missing = billing::full_escrow(terms.price, terms.run_limit_ms) - set_aside;
        let from = Account::TenantAvailable(terms.tenant);
        let more = missing
            .min(self.books.budget_left(job))
            .min(self.books.available(terms.tenant));
        let worth_it = more >= terms.price.due(LEAST_BILLED).min(missing);
        let limit_ms = billing::limit(terms.price, terms.run_limit_ms, set_aside + more);
        let transfer = Transfer::between(turn.ids.draw(), turn.now.utc_ms, from, Account::Escrow(id), more);
        match transfer.filter(|_| worth_it) {
            Some(transfer) => {
                // A refused record was reported; the next tick tries again or ends the job.
                let _recorded = self.record(
                    turn,
                    Record::EscrowAdded {
                        lease: id,
                        limit_ms,
                        transfer,
                    },
                );
            }
            None => self.cancel_lease(turn, id, EndCause::BudgetUsed, true),
        }
    }
}

/// Whether money, not its run limit, will end the lease soon.
fn runs_short(lease: &Lease, live: &LiveLease, now: BootMs) -> bool {
    let terms = &lease.terms;
    let cut_by_money = terms.limit_ms < terms.run_limit_ms.max(LEAST_BILLED);
    let soon = live.estimated(now).0.saturating_add(SAVE_MARGIN.0) >= terms.limit_ms.0;
    lease.cancel.is_none() && lease.accepted.is_some() && cut_by_money && soon
}
