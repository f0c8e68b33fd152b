//! What is billed of a job: the time from its release to the first reason to stop, less the time that it stood frozen.
//! Arithmetic only; the kernel's record of freezes is passed in.

use super::wire::FrozenSource;
use sela_protocol::units::{BootUs, Microseconds, Millis};

/// Counts one job's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meter {
    started: BootUs,
    wall: Millis,
    /// What the kernel's record said when the job was released.
    kernel_before: Microseconds,
    /// Freezes that are over, as measured here.
    measured: Microseconds,
    /// When the one that is not over was asked for.
    frozen_since: Option<BootUs>,
}

/// The two times, and whose record of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) thawed: Millis,
    pub(crate) frozen: Microseconds,
    pub(crate) source: FrozenSource,
    /// Thawed time until the wall limit.
    pub(crate) left: Microseconds,
}

impl Meter {
    pub(crate) fn start(now: BootUs, wall: Millis, kernel: Option<Microseconds>) -> Self {
        Self {
            started: now,
            wall,
            kernel_before: kernel.unwrap_or_default(),
            measured: Microseconds(0),
            frozen_since: None,
        }
    }

    pub(crate) const fn started(&self) -> BootUs {
        self.started
    }

    /// A freeze is about to be asked for.
    pub(crate) fn freezing(&mut self, now: BootUs) {
        self.frozen_since.get_or_insert(now);
    }

    /// A thaw was asked for.
    pub(crate) fn thawed(&mut self, now: BootUs) {
        if let Some(since) = self.frozen_since.take() {
            self.measured.0 += now.since(since).0;
        }
    }

    /// The times at `now`, by the kernel's record where there is one.
    pub(crate) fn times(&self, now: BootUs, kernel: Option<Microseconds>) -> Times {
        let (frozen, source) = match kernel {
            Some(kernel) => (
                Microseconds(kernel.0.saturating_sub(self.kernel_before.0)),
                FrozenSource::Kernel,
            ),
            None => {
                let open = self.frozen_since.map_or(0, |since| now.since(since).0);
                (Microseconds(self.measured.0 + open), FrozenSource::Keeper)
            }
        };
        let wall = Microseconds::from(self.wall);
        let thawed = Microseconds(now.since(self.started).0.saturating_sub(frozen.0).min(wall.0));
        Times {
            thawed: thawed.in_ms(),
            frozen,
            source,
            left: Microseconds(wall.0 - thawed.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootUs = BootUs(10_000_000);

    fn meter(kernel: Option<u64>) -> Meter {
        Meter::start(START, Millis(60_000), kernel.map(Microseconds))
    }

    #[test]
    fn what_the_kernel_says_was_frozen_is_not_billed() {
        for (at, kernel, thawed) in [
            (10_000_000, 0, 0),
            (10_000_999, 0, 0),
            (10_001_000, 0, 1),
            (12_500_000, 1_000_000, 1_500),
            (12_500_000, 999_999, 1_500),
            (12_500_000, 1_000_001, 1_499),
            (12_500_000, 9_000_000, 0),
        ] {
            let times = meter(Some(0)).times(BootUs(at), Some(Microseconds(kernel)));
            assert_eq!(
                (times.thawed, times.source),
                (Millis(thawed), FrozenSource::Kernel),
                "{at} {kernel}"
            );
        }
    }

    #[test]
    fn freezes_before_the_release_do_not_count() {
        let times = meter(Some(700)).times(BootUs(11_000_000), Some(Microseconds(250_700)));
        assert_eq!((times.thawed, times.frozen), (Millis(750), Microseconds(250_000)));
    }

    #[test]
    fn without_the_kernels_record_the_keepers_own_counts() {
        let mut meter = meter(None);
        meter.freezing(BootUs(11_000_000));
        meter.freezing(BootUs(11_200_000));
        meter.thawed(BootUs(11_500_000));
        meter.thawed(BootUs(11_600_000));
        meter.freezing(BootUs(12_000_000));
        let times = meter.times(BootUs(12_250_000), None);
        assert_eq!(
            (times.frozen, times.source),
            (Microseconds(750_000), FrozenSource::Keeper)
        );
        assert_eq!(times.thawed, Millis(1_500));
    }

    #[test]
    fn never_more_than_the_wall_limit_is_billed() {
        let meter = Meter::start(START, Millis(2_000), Some(Microseconds(0)));
        for (at, thawed, left) in [(11_999_999, 1_999, 1), (12_000_000, 2_000, 0), (99_000_000, 2_000, 0)] {
            let times = meter.times(BootUs(at), Some(Microseconds(0)));
            assert_eq!((times.thawed, times.left), (Millis(thawed), Microseconds(left)), "{at}");
        }
    }
}
