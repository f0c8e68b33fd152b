//! What a schedule says over a stretch of time, worked out once and asked often.

use super::slots::{Slot, Slots};
use sela_protocol::units::{Millis, UtcMs};

/// When it is open within a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    range: Slot,
    open: Slots,
    unsure: Vec<String>,
    notes: Vec<String>,
}

/// What it says at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Whether it is open.
    pub open: bool,
    /// When that changes, where it does within the range.
    pub until: Option<UtcMs>,
}

impl Outlook {
    pub(super) const fn new(range: Slot, open: Slots, unsure: Vec<String>, notes: Vec<String>) -> Self {
        Self {
            range,
            open,
            unsure,
            notes,
        }
    }

    /// The stretch of time that it is about.
    pub const fn range(&self) -> Slot {
        self.range
    }

    /// When it is open, in the range.
    pub const fn open(&self) -> &Slots {
        &self.open
    }

    /// Why more could be closed than is known: a calendar that closes could not be read, or not all of it. This holds.
    pub fn unsure(&self) -> &[String] {
        &self.unsure
    }

    /// What the owner should know and nothing holds for.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether it is open; outside the range nothing is.
    pub fn is_open(&self, at: UtcMs) -> bool {
        self.open.holding(at).is_some()
    }

    /// The first moment after one at which open becomes closed or closed open; `None` where there is none within the range.
    pub fn next_change(&self, after: UtcMs) -> Option<UtcMs> {
        let change = match self.open.holding(after) {
            Some(slot) => slot.to,
            None => self.open.next_after(after)?.from,
        };
        (change < self.range.to).then_some(change)
    }

    /// Both at once.
    pub fn standing(&self, at: UtcMs) -> Standing {
        Standing {
            open: self.is_open(at),
            until: self.next_change(at),
        }
    }

    /// Whether a moment is in the range, with so much of it still to come.
    pub const fn reaches(&self, at: UtcMs, ahead: Millis) -> bool {
        self.range.holds(at) && at.plus(ahead).0 <= self.range.to.0
    }
}
