//! How long a lease lives without a word from its node, and how much time its node may bill: from the Accept to the last renewal
//! plus [`LEASE_TTL`], silences longer than that left out (market.md §6, §7). What follows from either is decided in `floor`.

use sela_protocol::node::{LEASE_LOST, LEASE_TTL, LEASE_UNKNOWN};
use sela_protocol::units::{BootMs, Millis, Now, UtcMs};

/// Renewals are written down when the last that was written is this old. After a restart a node gets the benefit of the doubt
/// for as long: heartbeats may have come that were not written down.
pub const MARK_INTERVAL: Millis = Millis(30_000);

/// The time since the Accept that heartbeats have covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    covered: Millis,
    renewed_at: BootMs,
    /// Silence before `renewed_at` that is not known to be covered: the exchange itself was away.
    away: Millis,
}

/// Whether a lease still has its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Heard within 30 s.
    Heard,
    /// Not heard for 30 s: nobody knows whether it runs.
    Unknown,
    /// Not heard for 75 s: the node has ended it 60 s after the last heartbeat that was answered.
    Lost,
}

impl Coverage {
    /// Accepted now.
    pub const fn accepted(at: BootMs) -> Self {
        Self {
            covered: Millis(0),
            renewed_at: at,
            away: Millis(0),
        }
    }

    /// After a restart of the exchange, from the last mark. The silence that decides about `Lost` starts anew, since it was the
    /// exchange that was away; the time that may be billed does not: a node that was not answered for 60 s has ended its job.
    pub fn restored(covered: Millis, marked_at: UtcMs, now: Now) -> Self {
        let silence = now.utc_ms.since(marked_at);
        let assumed = silence.min(MARK_INTERVAL);
        Self {
            covered: plus(covered, assumed),
            renewed_at: now.boot_ms,
            away: Millis(silence.0 - assumed.0),
        }
    }

    /// A heartbeat was received.
    pub fn renew(&mut self, at: BootMs) {
        let silence = plus(self.away, at.since(self.renewed_at));
        self.covered = plus(self.covered, silence.min(LEASE_TTL));
        self.renewed_at = at.max(self.renewed_at);
        self.away = Millis(0);
    }

    /// The time since the Accept that renewals cover.
    pub const fn covered(&self) -> Millis {
        self.covered
    }

    /// Most that the node may bill.
    pub fn billable(&self) -> Millis {
        billable(self.covered)
    }

    /// Whether the node is there.
    pub fn standing(&self, now: BootMs) -> Standing {
        let silence = now.since(self.renewed_at);
        if silence >= LEASE_LOST {
            Standing::Lost
        } else if silence >= LEASE_UNKNOWN {
            Standing::Unknown
        } else {
            Standing::Heard
        }
    }
}

/// Most that a node may bill when renewals cover `covered`.
pub fn billable(covered: Millis) -> Millis {
    plus(covered, LEASE_TTL)
}

const fn plus(one: Millis, other: Millis) -> Millis {
    Millis(one.0.saturating_add(other.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000;

    fn at(seconds: u64) -> Now {
        Now {
            boot_ms: BootMs(1_000_000 + seconds * SECOND),
            utc_ms: UtcMs(1_700_000_000_000).plus(Millis(seconds * SECOND)),
        }
    }

    #[test]
    fn standing_follows_the_silence() {
        let coverage = Coverage::accepted(at(0).boot_ms);
        for (seconds, standing) in [
            (0, Standing::Heard),
            (29, Standing::Heard),
            (30, Standing::Unknown),
            (74, Standing::Unknown),
            (75, Standing::Lost),
        ] {
            assert_eq!(coverage.standing(at(seconds).boot_ms), standing, "{seconds} s");
        }
    }

    #[test]
    fn heartbeats_cover_the_time_since_the_accept_but_not_silences_beyond_the_ttl() {
        // (heartbeats at, billable)
        for (beats, billable) in [
            (&[][..], 60),
            (&[10][..], 70),
            (&[10, 20, 30][..], 90),
            (&[10, 70][..], 130),
            (&[10, 84][..], 130),
            (&[10, 84, 94][..], 140),
        ] {
            let mut coverage = Coverage::accepted(at(0).boot_ms);
            for beat in beats {
                coverage.renew(at(*beat).boot_ms);
            }
            assert_eq!(coverage.billable(), Millis(billable * SECOND), "{beats:?}");
        }
    }

    #[test]
    fn a_restart_neither_loses_time_that_was_renewed_nor_grants_time_that_the_node_cannot_have_run() {
        // (marked at with coverage, restarted at, next heartbeat, covered at least = true time, billable at most)
        struct Case {
            marked: u64,
            restarted: u64,
            next_beat: Option<u64>,
            billable: u64,
        }
        for case in [
            // Back at once: as if nothing had happened.
            Case {
                marked: 100,
                restarted: 105,
                next_beat: Some(110),
                billable: 170,
            },
            // Away for half a minute after unmarked heartbeats.
            Case {
                marked: 100,
                restarted: 161,
                next_beat: Some(162),
                billable: 222,
            },
            // Away for ten minutes: the node ended its job 60 s after the last answered heartbeat, at most 130 + 60.
            Case {
                marked: 100,
                restarted: 700,
                next_beat: None,
                billable: 190,
            },
            // A node that claims to have run on all the while is not believed.
            Case {
                marked: 100,
                restarted: 700,
                next_beat: Some(701),
                billable: 250,
            },
        ] {
            let mut coverage =
                Coverage::restored(Millis(case.marked * SECOND), at(case.marked).utc_ms, at(case.restarted));
            assert_eq!(coverage.standing(at(case.restarted + 29).boot_ms), Standing::Heard);
            if let Some(beat) = case.next_beat {
                coverage.renew(at(beat).boot_ms);
            }
            assert_eq!(
                coverage.billable(),
                Millis(case.billable * SECOND),
                "restart at {}",
                case.restarted
            );
        }
    }

    #[test]
    fn a_wrong_clock_or_another_boot_never_makes_time_negative() {
        let back_in_time = Now {
            boot_ms: BootMs(5),
            utc_ms: UtcMs(0),
        };
        let mut coverage = Coverage::restored(Millis(7), at(0).utc_ms, back_in_time);
        assert_eq!(coverage.covered(), Millis(7));
        coverage.renew(BootMs(0));
        assert_eq!(coverage.covered(), Millis(7));
    }
}
