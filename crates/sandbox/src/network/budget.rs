//! How much of the owner's line a job may use: rates of the job's own and of all jobs together, a total, and a halt while the
//! owner wants the machine. Every byte through a tunnel is counted here before it passes.

use super::bucket::Bucket;
use super::refusal::Refusal;
use sela_protocol::network::{HostRule, JobNetwork, NetworkShare};
use sela_protocol::units::{Bytes, Microseconds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Which way bytes go, as the job sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To the job.
    Down,
    /// From the job.
    Up,
}

/// What an owner lets jobs use of the line, and how much all of them use of it. One for each agent; clones are the same line.
#[derive(Debug, Clone)]
pub struct OwnersLine(Arc<Mutex<Lent>>);

#[derive(Debug)]
struct Lent {
    share: NetworkShare,
    down: Bucket,
    up: Bucket,
}

impl OwnersLine {
    /// A line of which this much is lent.
    pub fn new(share: NetworkShare) -> Self {
        let now = sela_clock::boot_us();
        Self(Arc::new(Mutex::new(Lent {
            down: Bucket::new(share.down_per_s, now),
            up: Bucket::new(share.up_per_s, now),
            share,
        })))
    }

    /// The owner lends another share of it: holds at once, for running jobs, too. Connections that are open stay open.
    pub fn set(&self, share: NetworkShare) {
        let now = sela_clock::boot_us();
        let mut lent = self.lent();
        lent.down.set(share.down_per_s, now);
        lent.up.set(share.up_per_s, now);
        lent.share = share;
    }

    /// Whether any rule of the owner's is content with this.
    pub(super) fn allows(&self, rule: impl Fn(&HostRule) -> bool) -> bool {
        self.lent().share.hosts.iter().any(rule)
    }

    fn job_bytes(&self) -> Bytes {
        self.lent().share.job_bytes
    }

    fn take(&self, way: Way, amount: u64) -> Microseconds {
        let now = sela_clock::boot_us();
        let mut lent = self.lent();
        match way {
            Way::Down => lent.down.take(amount, now),
            Way::Up => lent.up.take(amount, now),
        }
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        // Numbers only: whoever panicked while holding it left them whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One job's part of the line.
#[derive(Debug)]
pub(super) struct Budget {
    line: OwnersLine,
    asked: Option<Bytes>,
    spent: Mutex<Spent>,
    halt: watch::Sender<bool>,
}

#[derive(Debug)]
struct Spent {
    down: u64,
    up: u64,
    down_rate: Option<Bucket>,
    up_rate: Option<Bucket>,
}

impl Budget {
    pub(super) fn new(network: &JobNetwork, line: OwnersLine) -> Self {
        let now = sela_clock::boot_us();
        let bucket = |rate: Option<Bytes>| rate.map(|rate| Bucket::new(rate, now));
        Self {
            line,
            asked: network.bytes,
            spent: Mutex::new(Spent {
                down: 0,
                up: 0,
                down_rate: bucket(network.down_per_s),
                up_rate: bucket(network.up_per_s),
            }),
            halt: watch::Sender::new(false),
        }
    }

    /// What has passed, down and up.
    pub(super) fn used(&self) -> (Bytes, Bytes) {
        let spent = self.spent();
        (Bytes(spent.down), Bytes(spent.up))
    }

    /// Nothing passes from now on, or again.
    pub(super) fn halt(&self, on: bool) {
        self.halt.send_replace(on);
    }

    /// Waits while nothing may pass.
    pub(super) async fn go_on(&self) {
        // Fails only where the sender is gone, and that is this.
        drop(self.halt.subscribe().wait_for(|halted| !halted).await);
    }

    /// Whether anything may pass at all.
    ///
    /// # Errors
    /// [`Refusal::UsedUp`].
    pub(super) fn left(&self) -> Result<u64, Refusal> {
        let limit = self.limit();
        let spent = self.spent();
        match limit.0.saturating_sub(spent.down.saturating_add(spent.up)) {
            0 => Err(Refusal::UsedUp { limit }),
            left => Ok(left),
        }
    }

    /// Counts `amount` bytes, at least one, that are about to pass, and waits until they may. Gives how many of them may.
    ///
    /// # Errors
    /// [`Refusal::UsedUp`] where none may.
    pub(super) async fn pass(&self, way: Way, amount: usize) -> Result<usize, Refusal> {
        let (passed, own) = self.count(way, amount)?;
        let wait = own.max(self.line.take(way, passed as u64));
        if wait > Microseconds(0) {
            tokio::time::sleep(Duration::from_micros(wait.0)).await;
        }
        self.go_on().await;
        Ok(passed)
    }

    fn count(&self, way: Way, amount: usize) -> Result<(usize, Microseconds), Refusal> {
        let limit = self.limit();
        let now = sela_clock::boot_us();
        let mut spent = self.spent();
        let left = limit.0.saturating_sub(spent.down.saturating_add(spent.up));
        let passed = usize::try_from(left).unwrap_or(usize::MAX).min(amount);
        if passed == 0 {
            return Err(Refusal::UsedUp { limit });
        }
        let counted = passed as u64;
        let rate = match way {
            Way::Down => {
                spent.down += counted;
                spent.down_rate.as_mut()
            }
            Way::Up => {
                spent.up += counted;
                spent.up_rate.as_mut()
            }
        };
        Ok((passed, rate.map_or(Microseconds(0), |rate| rate.take(counted, now))))
    }

    fn limit(&self) -> Bytes {
        let lent = self.line.job_bytes();
        self.asked.map_or(lent, |asked| asked.min(lent))
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bytes: Option<u64>) -> JobNetwork {
        JobNetwork {
            hosts: vec!["example.org".parse().expect("a rule")],
            down_per_s: None,
            up_per_s: None,
            bytes: bytes.map(Bytes),
        }
    }

    fn line(job_bytes: u64) -> OwnersLine {
        OwnersLine::new(NetworkShare {
            hosts: Vec::new(),
            down_per_s: Bytes(1 << 40),
            up_per_s: Bytes(1 << 40),
            job_bytes: Bytes(job_bytes),
        })
    }

    #[tokio::test]
    async fn what_passes_is_cut_at_the_smaller_limit_to_the_byte() {
        for (asked, lent) in [(Some(100), 1_000), (Some(1_000), 100), (None, 100)] {
            let budget = Budget::new(&job(asked), line(lent));
            assert_eq!(budget.pass(Way::Down, 60).await, Ok(60));
            assert_eq!(budget.pass(Way::Up, 60).await, Ok(40));
            let used_up = Refusal::UsedUp { limit: Bytes(100) };
            assert_eq!(budget.pass(Way::Up, 1).await, Err(used_up.clone()));
            assert_eq!(budget.left(), Err(used_up));
            assert_eq!(budget.used(), (Bytes(60), Bytes(40)));
        }
    }

    #[tokio::test]
    async fn an_owner_who_lends_more_or_less_is_obeyed_at_once() {
        let line = line(100);
        let budget = Budget::new(&job(None), line.clone());
        assert_eq!(budget.pass(Way::Down, 200).await, Ok(100));
        line.set(NetworkShare {
            job_bytes: Bytes(150),
            ..NetworkShare::default()
        });
        assert_eq!(budget.left(), Ok(50));
        line.set(NetworkShare {
            job_bytes: Bytes(50),
            ..NetworkShare::default()
        });
        assert_eq!(budget.left(), Err(Refusal::UsedUp { limit: Bytes(50) }));
    }

    /// Time is paused: it jumps to the next moment that anybody waits for, so that waiting is seen without waiting.
    #[tokio::test(start_paused = true)]
    async fn the_slower_of_the_two_rates_holds() {
        let slow = JobNetwork {
            down_per_s: Some(Bytes(1_000)),
            ..job(None)
        };
        let budget = Budget::new(&slow, line(1 << 30));
        let before = tokio::time::Instant::now();
        assert_eq!(budget.pass(Way::Down, 250 + 5_000).await, Ok(5_250));
        let waited = before.elapsed();
        assert!((4.5..=5.1).contains(&waited.as_secs_f64()), "{waited:?}");
        let before = tokio::time::Instant::now();
        assert_eq!(budget.pass(Way::Up, 1 << 20).await, Ok(1 << 20));
        assert_eq!(before.elapsed(), Duration::ZERO, "the other way is free");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_passes_while_halted_and_all_goes_on_after() {
        let budget = Arc::new(Budget::new(&job(None), line(1_000)));
        budget.halt(true);
        let passing = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.pass(Way::Down, 10).await }
        });
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(!passing.is_finished());
        budget.halt(false);
        assert_eq!(passing.await.expect("no panic"), Ok(10));
    }
}
