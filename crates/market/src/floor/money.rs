//! The money of leases: posting what is due, ending a lease, holding what late meter notes may still claim, settling. The sums
//! are `billing`'s; here they become transfers.

use super::live::LiveLease;
use super::{Floor, Turn};
use crate::billing::{self, LATE_NOTES};
use crate::books::Lease;
use crate::effect::Effect;
use crate::lease::billable;
use crate::ledger::{Account, Transfer};
use crate::record::Record;
use sela_protocol::blob::BlobId;
use sela_protocol::id::LeaseId;
use sela_protocol::lease::{EndCause, Receipt};
use sela_protocol::money::Micros;
use sela_protocol::units::Millis;

/// What is due is posted this often while a lease goes on.
pub(super) const POSTING_INTERVAL: Millis = Millis(60_000);

/// While money is held it is written down this often how long the exchange has been up: what passed since does not count after a crash.
const UPTIME_INTERVAL: Millis = Millis(600_000);

impl Floor {
    /// The lease is over: its card is free, its money is closed (or what late notes may claim is held), and its job goes on.
    pub(super) fn end_lease(&mut self, turn: &mut Turn, id: LeaseId, cause: EndCause, output: Option<BlobId>) {
        let Some(lease) = self.books.leases.get(&id).filter(|lease| lease.end.is_none()) else {
            return;
        };
        let job = lease.terms.job;
        let live = self.live.leases.get(&id);
        // A node that says itself that the lease is over, and never said that the program ran, has nothing to claim.
        let may_have_run = cause == EndCause::Lost || lease.noted() > Millis(0) || live.is_some_and(LiveLease::has_run);
        let awaits_notes = lease.accepted.is_some() && lease.closing().is_none() && may_have_run;
        if let Some(coverage) = live.and_then(|live| live.coverage) {
            // Exactly, since from now on it decides what the last and any late notes may claim.
            self.mark(turn, id, coverage.covered());
        }
        let uptime = self.live.uptime(turn.now.boot_ms);
        let record = Record::LeaseEnded {
            lease: id,
            cause: cause.clone(),
            at_utc_ms: turn.now.utc_ms,
            held_until_utc_ms: awaits_notes.then(|| turn.now.utc_ms.plus(LATE_NOTES)),
            held_until_uptime_ms: awaits_notes.then(|| Millis(uptime.0.saturating_add(LATE_NOTES.0))),
        };
        if awaits_notes {
            self.mark_uptime(turn, Millis(0));
        }
        if !self.record(turn, record) {
            return;
        }
        if awaits_notes {
            self.hold(turn, id);
        } else {
            self.close(turn, id);
        }
        self.after_lease(turn, job, id, cause, output);
    }

    /// Gives back what no late note has claimed in its time. On the exchange's uptime, not on UTC: a clock that is set ahead must not
    /// take a node's money away.
    pub(super) fn release_held(&mut self, turn: &mut Turn) {
        let held_until = |lease: &Lease| lease.end.as_ref().and_then(|end| end.held_until);
        let uptime = self.live.uptime(turn.now.boot_ms);
        let held = self.leases_where(&self.books.unsettled_leases, |lease, _| held_until(lease).is_some());
        if !held.is_empty() {
            self.mark_uptime(turn, UPTIME_INTERVAL);
        }
        for id in held {
            if self
                .books
                .leases
                .get(&id)
                .and_then(held_until)
                .is_some_and(|until| uptime >= until)
            {
                self.close(turn, id);
            }
        }
    }

    /// Writes down how long the exchange has been up, if that is more than so much above what is written.
    fn mark_uptime(&mut self, turn: &mut Turn, more: Millis) {
        let uptime_ms = self.live.uptime(turn.now.boot_ms);
        if uptime_ms.0 > self.books.uptime.0.saturating_add(more.0) {
            let at_utc_ms = turn.now.utc_ms;
            // A refused record was reported; it is tried again at the next tick.
            let _recorded = self.record(turn, Record::UptimeMarked { uptime_ms, at_utc_ms });
        }
    }

    /// Posts what is noted, keeps what late notes may claim at most, and returns the rest.
    fn hold(&mut self, turn: &mut Turn, id: LeaseId) {
        self.post(turn, id, None);
        let Some(lease) = self.books.leases.get(&id) else {
            return;
        };
        let claimable = self.billable_of(lease).min(lease.terms.limit_ms);
        let keep = lease.terms.price.due(claimable) - lease.paid();
        let tenant = lease.terms.tenant;
        if keep <= Micros::ZERO {
            return self.close(turn, id);
        }
        if let Some(transfer) = self.return_escrow(turn, id, Account::TenantAvailable(tenant), keep) {
            // A refused record was reported; the money stays in escrow until the lease is settled.
            let _recorded = self.record(turn, Record::EscrowReturned { lease: id, transfer });
        }
    }

    /// Posts the last of what is due and returns what is left of the escrow: no note counts any more.
    pub(super) fn close(&mut self, turn: &mut Turn, id: LeaseId) {
        let Some(lease) = self.books.leases.get(&id).filter(|lease| !lease.settled) else {
            return;
        };
        let tenant = lease.terms.tenant;
        let cause = lease.end.as_ref().map(|end| end.cause.clone());
        self.post(turn, id, cause);
        let transfer = self.return_escrow(turn, id, Account::TenantAvailable(tenant), Micros::ZERO);
        if self.record(turn, Record::LeaseSettled { lease: id, transfer }) {
            self.live.leases.remove(&id);
        }
    }

    fn return_escrow(&self, turn: &mut Turn, id: LeaseId, to: Account, keep: Micros) -> Option<Transfer> {
        let rest = self.books.escrow(id) - keep;
        if rest <= Micros::ZERO {
            return None;
        }
        Transfer::between(turn.ids.draw(), turn.now.utc_ms, Account::Escrow(id), to, rest)
    }

    /// Posts the difference between what is due now and what was posted, and sends a receipt. `closed` on the last one, which is
    /// sent even if nothing new is due.
    pub(super) fn post(&mut self, turn: &mut Turn, id: LeaseId, closed: Option<EndCause>) {
        let Some(lease) = self.books.leases.get(&id) else {
            return;
        };
        let terms = &lease.terms;
        let mut billed = billing::billed(lease.noted(), self.billable_of(lease), terms.limit_ms).max(lease.billed());
        if let Some(cause) = &closed
            && lease.closing().is_some()
        {
            billed = billing::billed_at_close(billed, lease.noted(), terms.limit_ms, cause);
        }
        let charge = billing::charge(terms.price, terms.fee_basis_points, billed);
        let posted_fee = lease.receipt.as_ref().map_or(Micros::ZERO, |receipt| receipt.fee);
        let (due, fee) = (charge.gross - lease.paid(), charge.fee - posted_fee);
        if due == Micros::ZERO && closed.is_none() {
            return;
        }
        let postings = [
            (Account::Escrow(id), due.negated()),
            (Account::OwnerHeld(terms.owner), due - fee),
            (Account::Fees, fee),
        ];
        let receipt = Receipt {
            receipt: turn.ids.draw(),
            lease: id,
            job: terms.job,
            node: terms.node,
            gpu: terms.gpu.clone(),
            owner: terms.owner,
            price: terms.price,
            billed_ms: billed,
            gross: charge.gross,
            fee: charge.fee,
            net: charge.net,
            closed,
            issued_utc_ms: turn.now.utc_ms,
            lab: self.config.lab,
        };
        let node = terms.node;
        let record = Record::Posted {
            receipt: receipt.clone(),
            transfer: Transfer::of(turn.ids.draw(), turn.now.utc_ms, postings),
        };
        let taken = lease.accepted.is_some();
        // A node that never took the lease hears of it only if it asks (`send_receipt_again`).
        if self.record(turn, record) && taken {
            turn.effects.push(Effect::SendReceipt { node, receipt });
        }
        if let Some(live) = self.live.leases.get_mut(&id) {
            live.posted_at = turn.now.boot_ms;
        }
    }

    /// A node that still speaks of a lease whose money is closed has not got the closing receipt.
    pub(super) fn send_receipt_again(&self, turn: &mut Turn, id: LeaseId) {
        if let Some(lease) = self.books.leases.get(&id)
            && let Some(receipt) = lease.receipt.clone()
        {
            let node = lease.terms.node;
            turn.effects.push(Effect::SendReceipt { node, receipt });
        }
    }

    /// A note for a lease that is over: the closing one closes its money, others are posted at their time.
    pub(super) fn after_late_note(&mut self, turn: &mut Turn, id: LeaseId) {
        let over = self.books.leases.get(&id).filter(|lease| lease.end.is_some());
        if over.is_some_and(|lease| lease.closing().is_some()) {
            self.close(turn, id);
            self.after_last_word(turn, id);
        }
    }

    /// How long the lease has run, as far as its node is believed: what is more than its renewals cover neither bills nor counts
    /// against the job's limits.
    pub(super) fn ran(&self, lease: &Lease) -> Millis {
        lease.noted().min(self.billable_of(lease))
    }

    /// Most that the lease's node may bill by its renewals.
    fn billable_of(&self, lease: &Lease) -> Millis {
        let marked = lease.mark.map_or(Millis(0), |(covered, _)| billable(covered));
        match self.live.leases.get(&lease.terms.lease).and_then(|live| live.coverage) {
            Some(coverage) if lease.end.is_none() => coverage.billable(),
            Some(_) | None => marked,
        }
    }
}
