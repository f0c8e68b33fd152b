//! The permission to go on: given by the agent, for a few seconds at a time. Arithmetic only.

use super::wire::GRANT;
use sela_protocol::units::BootUs;

/// Until when the job may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    expires: BootUs,
}

impl Grant {
    /// A grant that was read at `now`.
    pub(crate) fn at(now: BootUs) -> Self {
        Self {
            expires: now.plus(GRANT.into()),
        }
    }

    /// The moment from which on it is none.
    pub(crate) const fn expires(self) -> BootUs {
        self.expires
    }

    /// Whether it is none any more.
    pub(crate) fn has_expired(self, now: BootUs) -> bool {
        now >= self.expires
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lasts_five_seconds_and_not_a_microsecond_longer() {
        let grant = Grant::at(BootUs(1_000));
        for (now, expired) in [(1_000, false), (5_000_999, false), (5_001_000, true), (u64::MAX, true)] {
            assert_eq!(grant.has_expired(BootUs(now)), expired, "{now}");
        }
    }
}
