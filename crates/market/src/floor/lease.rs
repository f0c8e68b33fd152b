//! One lease as its node and the exchange talk about it: taken or not, how far, what it used, what it saved, how it ended. The
//! money of it moves in `money`, what becomes of the job is in `job`.

use super::node::refuse;
use super::{Floor, Turn};
use crate::books::{Job, Lease};
use crate::lease::Coverage;
use crate::record::Record;
use sela_protocol::blob::BlobId;
use sela_protocol::envelope::Envelope;
use sela_protocol::id::{LeaseId, NodeId};
use sela_protocol::lease::{EndCause, EndedBy, FencingToken, LeasePhase, MeterNote};
use sela_protocol::node::ExchangeMessage;
use sela_protocol::units::Millis;

/// A card whose node did not take an award is left alone for this long; its node as a whole for longer with each further award that
/// it does not take, doubled up to an hour: each one is a handful of records for ever, and time that a job waits.
pub(super) const AWARD_PAUSE: Millis = Millis(10_000);
const LONGEST_PAUSE: Millis = Millis(3_600_000);

/// For so long after a lease its receipts are sent again to a node that starts a new session.
const RECEIPTS_AGAIN: Millis = crate::billing::LATE_NOTES;

/// So many of them at a time, and more with each heartbeat: a session keeps 1,024 messages that its node has not acknowledged, and a
/// node that has done many short jobs has more receipts than that.
pub(super) const RECEIPTS_AT_ONCE: usize = 128;

/// A node may end a job this much before its wall limit and say that the limit was reached: timers are not exact.
const WALL_LIMIT_TOLERANCE: Millis = Millis(1_000);

impl Floor {
    /// The lease, if it is this node's and the token is its token. It may be over.
    pub(super) fn held(&self, node: NodeId, id: LeaseId, fencing: FencingToken) -> Result<&Lease, String> {
        let lease = self.books.leases.get(&id).filter(|lease| lease.terms.node == node);
        let lease = lease.ok_or_else(|| format!("{id} is no lease of this node"))?;
        if lease.terms.fencing == fencing {
            Ok(lease)
        } else {
            Err(format!(
                "{} is not the fencing token of {id}: nothing was done",
                fencing.0
            ))
        }
    }

    /// The lease, if besides it still goes on; otherwise the node is told.
    fn open(&self, turn: &mut Turn, node: NodeId, id: LeaseId, fencing: FencingToken) -> Option<&Lease> {
        let problem = match self.held(node, id, fencing) {
            Ok(lease) => match &lease.end {
                None => return Some(lease),
                Some(end) => format!("{id} is over ({:?}): nothing was done", end.cause),
            },
            Err(problem) => problem,
        };
        refuse(turn, node, Some(id), problem);
        None
    }

    pub(super) fn accept(&mut self, turn: &mut Turn, node: NodeId, id: LeaseId, fencing: FencingToken) {
        match self.held(node, id, fencing) {
            Err(problem) => refuse(turn, node, Some(id), problem),
            Ok(lease) if lease.end.is_some() => {
                // Too late: the reservation has run out, or the job was cancelled meanwhile.
                turn.send(
                    node,
                    ExchangeMessage::Cancel {
                        lease: id,
                        fencing,
                        cause: EndCause::LeaseExpired,
                        save: false,
                    },
                );
            }
            Ok(lease) if lease.accepted.is_some() => {}
            Ok(_) => {
                let at_utc_ms = turn.now.utc_ms;
                if self.record(turn, Record::LeaseAccepted { lease: id, at_utc_ms })
                    && let Some(live) = self.live.leases.get_mut(&id)
                {
                    live.coverage = Some(Coverage::accepted(turn.now.boot_ms));
                    live.marked_at = Some(turn.now.boot_ms);
                    live.posted_at = turn.now.boot_ms;
                    live.phase = LeasePhase::Fetching;
                }
                if let Some(live) = self.live.nodes.get_mut(&node) {
                    live.not_taken = 0;
                }
            }
        }
    }

    pub(super) fn reject(
        &mut self,
        turn: &mut Turn,
        node: NodeId,
        id: LeaseId,
        fencing: FencingToken,
        message: String,
    ) {
        let Some(lease) = self.open(turn, node, id, fencing) else {
            return;
        };
        if lease.accepted.is_some() {
            let message = format!("{id} was accepted: end it with a closing note and a Result");
            return refuse(turn, node, Some(id), message);
        }
        self.leave_alone(turn, id);
        let message = format!("the node did not take the job: {message}");
        self.end_lease(turn, id, EndCause::NodeFault { message }, None);
    }

    /// No award to this card for a while, so that a node that does not take any does not stop the queue; none to its other cards
    /// either where it has not taken several in a row. A new session of the node's ends no such pause.
    pub(super) fn leave_alone(&mut self, turn: &Turn, id: LeaseId) {
        let now = turn.now.boot_ms;
        let Some(lease) = self.books.leases.get(&id) else {
            return;
        };
        let Some(live) = self.live.nodes.get_mut(&lease.terms.node) else {
            return;
        };
        if let Some(offer) = live.offers.get_mut(&lease.terms.gpu) {
            offer.not_before = now.plus(AWARD_PAUSE);
        }
        if live.not_taken > 0 {
            let doubled = AWARD_PAUSE.0.saturating_mul(1 << live.not_taken.min(16));
            live.not_before = now.plus(Millis(doubled).min(LONGEST_PAUSE));
        }
        live.not_taken = live.not_taken.saturating_add(1);
    }

    pub(super) fn progress(
        &mut self,
        turn: &mut Turn,
        node: NodeId,
        id: LeaseId,
        fencing: FencingToken,
        phase: LeasePhase,
    ) {
        if self.open(turn, node, id, fencing).is_some()
            && let Some(live) = self.live.leases.get_mut(&id)
        {
            // The estimate between meter notes stops and starts with the program.
            live.thawed = live.estimated(turn.now.boot_ms);
            live.thawed_at = turn.now.boot_ms;
            live.phase = phase;
        }
    }

    pub(super) fn meter(&mut self, turn: &mut Turn, node: NodeId, signed: Envelope<MeterNote>) {
        let note = match self.read_note(node, &signed) {
            Ok(note) => note,
            Err((lease, problem)) => return refuse(turn, node, lease, problem),
        };
        let id = note.lease;
        let lease = self.books.leases.get(&id);
        if lease.is_some_and(|lease| lease.accepted.is_none() && lease.end.is_none()) {
            // Its Accept was lost with the session that a restart of the exchange ended.
            self.accept(turn, node, id, note.fencing);
        }
        let Some(lease) = self.books.leases.get(&id) else {
            return;
        };
        let (noted, limit, lease_is_settled) = (lease.noted(), lease.terms.limit_ms, lease.settled);
        if lease.closing().is_some() || lease.settled {
            if note.thawed_ms > noted {
                let message = format!(
                    "{id} was closed at {noted}: a note of {} does not count",
                    note.thawed_ms
                );
                refuse(turn, node, Some(id), message);
            }
            if lease_is_settled {
                self.send_receipt_again(turn, id);
            }
            return;
        }
        // Cumulative: a note that says no more than what counts already is a repeat. A closing note closes in any case.
        if note.thawed_ms <= noted && note.closing.is_none() {
            return;
        }
        let counts = MeterNote {
            thawed_ms: note.thawed_ms.max(noted),
            ..note
        };
        if counts.closing.is_some() && counts.thawed_ms > limit {
            let message = format!("of {} that {id} ran, at most {limit} can be billed", counts.thawed_ms);
            refuse(turn, node, Some(id), message);
        }
        if !self.record(turn, Record::NoteTaken { note: counts, signed }) {
            return;
        }
        let ran = self.books.leases.get(&id).map_or(Millis(0), |lease| self.ran(lease));
        if let Some(live) = self.live.leases.get_mut(&id) {
            live.heard_thawed(ran, turn.now.boot_ms);
        }
        self.after_late_note(turn, id);
    }

    /// Opens a meter note and checks that it is by this node and about a lease of its.
    fn read_note(&self, node: NodeId, signed: &Envelope<MeterNote>) -> Result<MeterNote, (Option<LeaseId>, String)> {
        let entry = self
            .books
            .nodes
            .get(&node)
            .ok_or((None, format!("{node} is not known")))?;
        let note = signed.open(&entry.key).map_err(|error| (None, error.to_string()))?;
        let about = Some(note.lease);
        if note.node != node {
            return Err((
                about,
                format!("a meter note of {} does not count for {node}", note.node),
            ));
        }
        match self.held(node, note.lease, note.fencing) {
            Ok(_) => Ok(note),
            Err(problem) => Err((about, problem)),
        }
    }

    pub(super) fn checkpoint(
        &mut self,
        turn: &mut Turn,
        node: NodeId,
        id: LeaseId,
        fencing: FencingToken,
        blob: BlobId,
        thawed_ms: Millis,
    ) {
        let Some(lease) = self.open(turn, node, id, fencing) else {
            return;
        };
        if !lease.blobs.contains(&blob) {
            let message =
                format!("checkpoint {blob} has not been stored under the token of {id}: store it, then say so");
            return refuse(turn, node, Some(id), message);
        }
        if self
            .books
            .jobs
            .get(&lease.terms.job)
            .is_some_and(|job| job.checkpoint == Some(blob))
        {
            return;
        }
        let record = Record::CheckpointAccepted {
            lease: id,
            blob,
            thawed_ms,
        };
        // A refused record was reported; the older checkpoint stands.
        let _recorded = self.record(turn, record);
    }

    pub(super) fn result(
        &mut self,
        turn: &mut Turn,
        node: NodeId,
        id: LeaseId,
        fencing: FencingToken,
        cause: EndCause,
        output: Option<BlobId>,
    ) {
        let lease = match self.held(node, id, fencing) {
            // Said again after a break: it counts once.
            Ok(lease) if lease.end.is_some() => {
                if lease.settled {
                    self.send_receipt_again(turn, id);
                }
                return;
            }
            Ok(lease) => lease,
            Err(problem) => return refuse(turn, node, Some(id), problem),
        };
        if let Some(output) = output.filter(|output| !lease.blobs.contains(output)) {
            let message = format!(
                "output {output} has not been stored under the token of {id}: store it, then send the Result again"
            );
            return refuse(turn, node, Some(id), message);
        }
        // What the node signed counts; the Result only says that it is all.
        let said = lease.closing().cloned().unwrap_or(cause);
        let cause = self.credible(lease, said);
        self.end_lease(turn, id, cause, output);
    }

    /// Nothing was heard of the node for too long. If its closing note is here and says that the job ended by itself, that is how it
    /// ended: nobody runs it, or pays for it, a second time because a Result is missing.
    pub(super) fn end_lost(&mut self, turn: &mut Turn, id: LeaseId) {
        let (cause, output) = self.last_word(id).unwrap_or((EndCause::Lost, None));
        self.end_lease(turn, id, cause, output);
    }

    /// How a job ended by itself, and what it left, in its node's signed words, as far as they are believed.
    fn last_word(&self, id: LeaseId) -> Option<(EndCause, Option<BlobId>)> {
        let lease = self.books.leases.get(&id)?;
        let cause = lease.closing().filter(|cause| cause.ended_by() == EndedBy::Job)?;
        let output = lease.note.as_ref().and_then(|note| note.output);
        let believed = self.credible(lease, cause.clone()) == *cause;
        let stored = output.is_none_or(|output| lease.blobs.contains(&output));
        (believed && stored).then(|| (cause.clone(), output))
    }

    /// A node that was lost brings the closing note of a job that had ended by itself. It counts while nobody else has begun: from
    /// the next award on only that lease's node speaks for the job (its fencing token is higher), and this one is paid for its time.
    pub(super) fn after_last_word(&mut self, turn: &mut Turn, id: LeaseId) {
        let Some((cause, output)) = self.last_word(id) else {
            return;
        };
        let Some(lease) = self.books.leases.get(&id) else {
            return;
        };
        let job = lease.terms.job;
        let was_lost = lease.end.as_ref().is_some_and(|end| end.cause == EndCause::Lost);
        let waits = |job: &Job| job.end.is_none() && job.leases.last() == Some(&id);
        if was_lost && self.books.jobs.get(&job).is_some_and(waits) {
            self.after_lease(turn, job, id, cause, output);
        }
    }

    /// A cause that the exchange can know better is taken at the node's word only where it agrees.
    fn credible(&self, lease: &Lease, said: EndCause) -> EndCause {
        let cancelled = self
            .books
            .jobs
            .get(&lease.terms.job)
            .is_some_and(|job| job.cancel_asked);
        let agrees = match said.ended_by() {
            EndedBy::Tenant | EndedBy::Exchange => {
                lease.cancel.as_ref() == Some(&said) || (said == EndCause::TenantCancelled && cancelled)
            }
            EndedBy::Job if said == EndCause::WallLimit => {
                let ran = self.ran(lease).0.saturating_add(WALL_LIMIT_TOLERANCE.0);
                ran >= lease.terms.run_limit_ms.0
            }
            EndedBy::Job | EndedBy::Other => true,
        };
        if agrees {
            return said;
        }
        EndCause::NodeFault {
            message: format!("the node ended the job and said {said:?}, which the exchange knows nothing of"),
        }
    }

    /// The owner wants the card back: no award to it until its node offers it anew.
    pub(super) fn reclaim(&mut self, turn: &mut Turn, node: NodeId, id: LeaseId, fencing: FencingToken) {
        let Some(gpu) = self.open(turn, node, id, fencing).map(|lease| lease.terms.gpu.clone()) else {
            return;
        };
        let live = self.live.nodes.get_mut(&node);
        if let Some(offer) = live.and_then(|live| live.offers.get_mut(&gpu)) {
            offer.available = false;
        }
    }

    /// Has the node end a lease that it runs. What was asked for first stays written down: the node ends the job for that, or for
    /// a later cancel of the tenant's, which is written down with the job.
    pub(super) fn cancel_lease(&mut self, turn: &mut Turn, id: LeaseId, cause: EndCause, save: bool) {
        if self.books.leases.get(&id).is_some_and(|lease| lease.cancel.is_some()) {
            return self.send_cancel(turn, id, cause, save);
        }
        let record = Record::LeaseCancelAsked {
            lease: id,
            cause: cause.clone(),
        };
        if !self.record(turn, record) {
            return;
        }
        if let Some(live) = self.live.leases.get_mut(&id) {
            live.cancel_asked_at.get_or_insert(turn.now.boot_ms);
        }
        self.send_cancel(turn, id, cause, save);
    }

    pub(super) fn send_cancel(&self, turn: &mut Turn, id: LeaseId, cause: EndCause, save: bool) {
        if let Some(lease) = self.books.leases.get(&id) {
            let message = ExchangeMessage::Cancel {
                lease: id,
                fencing: lease.terms.fencing,
                cause,
                save,
            };
            turn.send(lease.terms.node, message);
        }
    }

    /// In a new session: what may have been lost with the old one and still matters.
    pub(super) fn send_again(&mut self, turn: &mut Turn, node: NodeId) {
        let Some(entry) = self.books.nodes.get(&node) else {
            return;
        };
        let leases = || entry.leases.iter().filter_map(|id| self.books.leases.get(id));
        for lease in leases() {
            if let (Some(cause), None) = (&lease.cancel, &lease.end) {
                self.send_cancel(turn, lease.terms.lease, cause.clone(), *cause == EndCause::BudgetUsed);
            }
        }
        let due = |lease: &&Lease| {
            let recent = lease
                .end
                .as_ref()
                .is_none_or(|end| turn.now.utc_ms.since(end.at) < RECEIPTS_AGAIN);
            lease.accepted.is_some() && lease.receipt.is_some() && (recent || !lease.settled)
        };
        let receipts_due = leases().filter(due).map(|lease| lease.terms.lease).collect();
        if let Some(live) = self.live.nodes.get_mut(&node) {
            live.receipts_due = receipts_due;
        }
        self.send_receipts_due(turn, node);
    }

    /// The next of the receipts that a node is to be sent again.
    pub(super) fn send_receipts_due(&mut self, turn: &mut Turn, node: NodeId) {
        let Some(live) = self.live.nodes.get_mut(&node) else {
            return;
        };
        let at_once = live.receipts_due.len().min(RECEIPTS_AT_ONCE);
        let leases: Vec<LeaseId> = live.receipts_due.drain(..at_once).collect();
        for lease in leases {
            self.send_receipt_again(turn, lease);
        }
    }
}
