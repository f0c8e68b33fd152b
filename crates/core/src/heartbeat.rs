//! When heartbeats are due, and when those that were acknowledged had been sent: a lease lives from there.

use crate::wake::Wake;
use sela_protocol::node::HEARTBEAT_INTERVAL;
use sela_protocol::units::BootMs;
use std::collections::VecDeque;

/// Heartbeats whose acknowledgement may still come; older ones could not renew anything any more.
const REMEMBERED: usize = 16;

/// The node's heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    last: Option<BootMs>,
    counter: u64,
    sent: VecDeque<(u64, BootMs)>,
}

impl Heartbeats {
    /// In a new connection the next heartbeat is due at once.
    pub(crate) const fn session_opened(&mut self) {
        self.last = None;
    }

    /// The number of the newest heartbeat; 0 before the first.
    pub(crate) const fn said(&self) -> u64 {
        self.counter
    }

    /// The number of the heartbeat to send now, if one is due.
    pub(crate) fn due(&mut self, now: BootMs, wake: &mut Wake) -> Option<u64> {
        let due = self.last.map_or(now, |last| last.plus(HEARTBEAT_INTERVAL));
        if !wake.due(now, due) {
            return None;
        }
        wake.at(now.plus(HEARTBEAT_INTERVAL));
        self.last = Some(now);
        self.counter += 1;
        self.sent.push_back((self.counter, now));
        if self.sent.len() > REMEMBERED {
            self.sent.pop_front();
        }
        Some(self.counter)
    }

    /// When an acknowledged heartbeat was sent. `None` for one that is not remembered: a lease is never renewed on a guess.
    pub(crate) fn acknowledged(&mut self, beat: u64) -> Option<BootMs> {
        let (_, sent) = *self.sent.iter().find(|(number, _)| *number == beat)?;
        self.sent.retain(|(number, _)| *number > beat);
        Some(sent)
    }
}
