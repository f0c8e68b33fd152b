//! How fast a node may speak: a bucket that fills with time and that each frame takes from. Whoever speaks faster is read
//! more slowly, so that the network pushes back and nothing is lost. Time is passed in.

use sela_protocol::units::{BootMs, Millis};

/// How many frames may come at once: a resumed session sends again all that was not acknowledged.
const BURST: u64 = 2_048;
/// How many come back per second.
const PER_SECOND: u64 = 128;
/// A frame counts as one more for each of these bytes.
const BYTES_PER_FRAME: u64 = 64 << 10;

/// One node's bucket, in thousandths of a frame.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u64,
    filled_at: BootMs,
}

impl Allowance {
    /// A full bucket.
    pub(crate) const fn new(now: BootMs) -> Self {
        Self {
            left: BURST * 1_000,
            filled_at: now,
        }
    }

    /// Takes a frame of so many bytes and says how long to wait before the next is read.
    pub(crate) fn take(&mut self, bytes: usize, now: BootMs) -> Millis {
        let filled = now.since(self.filled_at).0.saturating_mul(PER_SECOND);
        self.left = self.left.saturating_add(filled).min(BURST * 1_000);
        self.filled_at = now;
        let cost = (1 + bytes as u64 / BYTES_PER_FRAME) * 1_000;
        let missing = cost.saturating_sub(self.left);
        self.left = self.left.saturating_sub(cost);
        Millis(missing.div_ceil(PER_SECOND))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_node_is_read_at_the_steady_pace() {
        let mut allowance = Allowance::new(BootMs(0));
        for frame in 0..BURST {
            assert_eq!(allowance.take(100, BootMs(0)), Millis(0), "frame {frame}");
        }
        assert_eq!(allowance.take(100, BootMs(0)), Millis(8), "1000 / 128 rounded up");
        assert_eq!(allowance.take(100, BootMs(1_000)), Millis(0), "a second gives 128 more");
    }

    #[test]
    fn large_frames_take_more_and_a_long_silence_fills_no_more_than_the_bucket() {
        let mut allowance = Allowance::new(BootMs(0));
        for _ in 0..BURST / 17 {
            assert_eq!(allowance.take(1 << 20, BootMs(1 << 40)), Millis(0));
        }
        assert!(allowance.take(1 << 20, BootMs(1 << 40)) > Millis(0));
    }
}
