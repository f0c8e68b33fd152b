//! A rate, held by counting: what passes is taken out, and who took more than there was waits until it has flowed in again. Pure;
//! time is passed in.

use sela_protocol::units::{BootUs, Bytes, Microseconds};

/// What may pass at once after a pause: a quarter of a second's worth.
const BURST_US: u64 = 250_000;
const SECOND_US: u64 = 1_000_000;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bucket {
    per_s: u64,
    /// Millionths of what may pass now; below zero where more has passed.
    level: i128,
    at: BootUs,
}

impl Bucket {
    /// Full. A rate of zero would hold for ever what passes: at least one in a second flows in.
    pub(super) fn new(per_s: Bytes, now: BootUs) -> Self {
        let per_s = per_s.0.max(1);
        Self {
            per_s,
            level: burst(per_s),
            at: now,
        }
    }

    /// Another rate from now on; what is owed stays owed.
    pub(super) fn set(&mut self, per_s: Bytes, now: BootUs) {
        self.flow(now);
        self.per_s = per_s.0.max(1);
        self.level = self.level.min(burst(self.per_s));
    }

    /// Takes `amount` out, and says how long to wait until it may pass.
    pub(super) fn take(&mut self, amount: u64, now: BootUs) -> Microseconds {
        self.flow(now);
        self.level -= i128::from(amount) * i128::from(SECOND_US);
        let owed = u128::try_from(-self.level).unwrap_or(0);
        let wait = owed.div_ceil(u128::from(self.per_s));
        Microseconds(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    fn flow(&mut self, now: BootUs) {
        let flowed = i128::from(now.since(self.at).0) * i128::from(self.per_s);
        self.level = (self.level + flowed).min(burst(self.per_s));
        self.at = self.at.max(now);
    }
}

fn burst(per_s: u64) -> i128 {
    i128::from(per_s) * i128::from(BURST_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_goes_beyond_the_burst_waits_for_its_share_of_the_rate() {
        let mut bucket = Bucket::new(Bytes(1_000), BootUs(0));
        for (amount, at, wait) in [
            (250, 0, 0),
            (100, 0, 100_000),
            (100, 0, 200_000),
            (0, 200_000, 0),
            (100, 200_000, 100_000),
            (250, 10_000_000, 0),
            (1, 10_000_000, 1_000),
        ] {
            assert_eq!(bucket.take(amount, BootUs(at)), Microseconds(wait), "{amount} at {at}");
        }
    }

    #[test]
    fn a_new_rate_holds_at_once_and_forgives_nothing() {
        let mut bucket = Bucket::new(Bytes(1_000), BootUs(0));
        bucket.take(1_250, BootUs(0));
        bucket.set(Bytes(100), BootUs(0));
        assert_eq!(bucket.take(0, BootUs(0)), Microseconds(10_000_000));
        bucket.set(Bytes(1_000_000), BootUs(0));
        assert_eq!(bucket.take(0, BootUs(0)), Microseconds(1_000));
        assert_eq!(
            Bucket::new(Bytes(0), BootUs(0)).take(1, BootUs(0)),
            Microseconds(750_000)
        );
    }

    proptest! {
        /// Whoever waits as told never passes more than burst + rate × time, whatever the order and the sizes.
        #[test]
        fn no_more_passes_than_the_rate_and_one_burst(per_s in 1_u64..10_000_000, amounts in proptest::collection::vec((0_u64..100_000, 0_u64..1_000_000), 1..50)) {
            let mut bucket = Bucket::new(Bytes(per_s), BootUs(0));
            let (mut now, mut passed) = (0_u64, 0_u128);
            for (amount, pause) in amounts {
                now += pause;
                let wait = bucket.take(amount, BootUs(now));
                now += wait.0;
                passed += u128::from(amount);
                let most = u128::from(per_s) * (u128::from(now) + u128::from(BURST_US));
                prop_assert!(passed * u128::from(SECOND_US) <= most);
            }
        }
    }
}
