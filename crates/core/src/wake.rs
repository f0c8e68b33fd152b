//! Collects the moments at which something becomes due, so that the loop sleeps exactly until the first of them.

use sela_protocol::units::BootMs;

/// The earliest moment asked for so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wake(Option<BootMs>);

impl Wake {
    /// Asks to be woken at `at`, unless something earlier was asked for.
    pub(crate) fn at(&mut self, at: BootMs) {
        self.0 = Some(self.0.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether `at` has come; if not, asks to be woken then.
    pub(crate) fn due(&mut self, now: BootMs, at: BootMs) -> bool {
        let due = now >= at;
        if !due {
            self.at(at);
        }
        due
    }

    /// The earliest.
    pub(crate) const fn earliest(self) -> Option<BootMs> {
        self.0
    }
}
