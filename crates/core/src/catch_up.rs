//! What had ended before a session began and is told in it: so many leases at a time, and more only as the exchange answers. However
//! much there is, the session does not overflow, the loop signs no thousand notes at once, and a heartbeat never waits behind all of it.

use crate::effect::Effect;
use crate::state::State;
use sela_protocol::id::{LeaseId, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// Leases that may be told and not yet answered. Two messages each, of which the exchange reads 128 a second at least, so that a
/// heartbeat waits a second for them at most.
const MOST_UNANSWERED: usize = 64;

/// How far the telling is in the present session.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    /// Not told yet, oldest first.
    waiting: VecDeque<LeaseId>,
    /// Told, each with the number of the last heartbeat before it.
    unanswered: BTreeMap<LeaseId, u64>,
}

impl CatchUp {
    /// Begins anew: in a new session the exchange may know nothing of what was told in the last one.
    fn of(leases: impl Iterator<Item = LeaseId>) -> Self {
        Self {
            waiting: leases.collect(),
            unanswered: BTreeMap::new(),
        }
    }

    /// The exchange said something about a lease.
    pub(crate) fn answered(&mut self, lease: LeaseId) {
        self.unanswered.remove(&lease);
    }

    /// The exchange answered a heartbeat: it has taken all that was told before that one, and has no more to say about it.
    pub(crate) fn heard_up_to(&mut self, beat: u64) {
        self.unanswered.retain(|_, before| *before >= beat);
    }

    fn next(&mut self, last_beat: u64) -> Option<LeaseId> {
        if self.unanswered.len() >= MOST_UNANSWERED {
            return None;
        }
        let lease = self.waiting.pop_front()?;
        self.unanswered.insert(lease, last_beat);
        Some(lease)
    }
}

impl State {
    /// Begins to tell what has ended and is not settled. What was earned at another exchange is none of this one's business.
    pub(crate) fn tell_ended_anew(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let of_here = self.unsettled.values().filter(|ended| ended.note.node == node);
        self.catch_up = CatchUp::of(of_here.map(|ended| ended.note.lease));
        self.tell_ended(effects);
    }

    /// Tells as much more as may be unanswered.
    pub(crate) fn tell_ended(&mut self, effects: &mut Vec<Effect>) {
        while let Some(lease) = self.catch_up.next(self.beats.said()) {
            // A receipt may have come before its turn.
            let Some(ended) = self.unsettled.get(&lease) else {
                self.catch_up.answered(lease);
                continue;
            };
            effects.push(Effect::SendMeter(ended.note.clone()));
            self.say_result(ended, effects);
        }
    }
}
