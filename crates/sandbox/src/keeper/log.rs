//! How much of a job's output is passed on. Counting only.

use sela_protocol::units::Bytes;

/// Counts what a job writes, and cuts it at the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogBudget {
    limit: u64,
    written: u64,
}

impl LogBudget {
    pub(crate) const fn new(limit: Bytes) -> Self {
        Self {
            limit: limit.0,
            written: 0,
        }
    }

    /// Everything that the job wrote, passed on or not.
    pub(crate) const fn written(&self) -> Bytes {
        Bytes(self.written)
    }

    /// How many of the next `count` bytes are passed on, and whether this is where the output is cut.
    pub(crate) fn pass(&mut self, count: usize) -> (usize, bool) {
        let left = self.limit.saturating_sub(self.written);
        let uncut = self.written <= self.limit;
        self.written = self.written.saturating_add(count as u64);
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(count);
        (passed, uncut && self.written > self.limit)
    }

    /// Whether everything from here on is counted only.
    pub(crate) const fn is_cut(&self) -> bool {
        self.written > self.limit
    }

    /// What the tenant reads where the output is cut.
    pub(crate) fn notice(&self) -> String {
        format!(
            "\n[sela] output cut here: the log limit of {} bytes is reached\n",
            self.limit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_once_at_the_limit() {
        let mut budget = LogBudget::new(Bytes(10));
        for (count, expected) in [(4, (4, false)), (6, (6, false)), (3, (0, true)), (3, (0, false))] {
            assert_eq!(budget.pass(count), expected);
        }
        assert_eq!(budget.written(), Bytes(16));
        assert!(budget.is_cut());
        assert_eq!(LogBudget::new(Bytes(2)).pass(5), (2, true));
    }
}
