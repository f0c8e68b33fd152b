//! Ctrl-C and waiting: everything that a run waits for can be interrupted, and nothing is waited for without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// How often we look.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// Ctrl-C, SIGTERM and SIGHUP, looked at between steps.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens from now on.
    ///
    /// # Errors
    /// If somebody in this process does already.
    pub(crate) fn on_interrupt() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&asked);
        ctrlc::set_handler(move || seen.store(true, Ordering::Relaxed)).context("cannot listen for Ctrl-C")?;
        Ok(Self(asked))
    }

    /// Whether somebody wants us to end.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until `look` finds something, looking now and then.
    ///
    /// # Errors
    /// Those of `look`; an interrupt; or that it took longer than `longest`.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        longest: Duration,
        mut look: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            ensure!(!self.is_asked(), "interrupted while waiting for {what}");
            ensure!(
                begun.elapsed() < longest,
                "{what} took longer than {} s",
                longest.as_secs()
            );
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_what_is_found_with_an_interrupt_or_with_time() {
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let mut looks = 0;
        let found = stop.wait("a second look", Duration::from_secs(60), || {
            looks += 1;
            Ok((looks == 2).then_some(looks))
        });
        assert_eq!(found.unwrap(), 2);
        let late = stop
            .wait("the exchange", Duration::ZERO, || Ok(None::<()>))
            .unwrap_err()
            .to_string();
        assert_eq!(late, "the exchange took longer than 0 s");
        stop.0.store(true, Ordering::Relaxed);
        let interrupted = stop
            .wait("the jobs", Duration::from_secs(60), || Ok(None::<()>))
            .unwrap_err()
            .to_string();
        assert_eq!(interrupted, "interrupted while waiting for the jobs");
    }
}
