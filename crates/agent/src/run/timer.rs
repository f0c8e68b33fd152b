//! One timer on `CLOCK_BOOTTIME`: it also runs out while the machine sleeps, so that after a resume what is overdue is done
//! first. Set anew after each step of the core; nothing ticks in between.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use sela_protocol::units::BootMs;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;

/// The timer.
#[derive(Debug)]
pub(crate) struct BootTimer {
    fd: AsyncFd<OwnedFd>,
    set: Option<BootMs>,
}

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl BootTimer {
    /// A timer that is not set. Must be called inside the runtime.
    ///
    /// # Errors
    /// Where the kernel gives none.
    pub(crate) fn new() -> std::io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on, and nothing closes or replaces it before that.
        let fd = unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)?;
        Ok(Self { fd, set: None })
    }

    /// Sets it to run out at a moment; a moment that is past runs out at once. `None` stops it.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub(crate) fn set(&mut self, at: Option<BootMs>) -> std::io::Result<()> {
        if at == self.set {
            return Ok(());
        }
        let moment = at.map_or(ZERO, |at| Timespec {
            tv_sec: i64::try_from(at.0 / 1000).unwrap_or(i64::MAX),
            // Never all zero: that would stop it.
            tv_nsec: i64::try_from(at.0 % 1000).unwrap_or(0) * 1_000_000 + 1,
        });
        let setting = Itimerspec {
            it_interval: ZERO,
            it_value: moment,
        };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &setting)?;
        self.set = at;
        Ok(())
    }

    /// Waits until it runs out. Safe to drop half-way.
    pub(crate) async fn ran_out(&mut self) {
        loop {
            let Ok(mut ready) = self.fd.readable().await else {
                // The descriptor is ours and stays open. Were it ever to fail, grants would stop and every job would end.
                return std::future::pending().await;
            };
            let read = rustix::io::read(self.fd.get_ref(), &mut [0; 8]);
            ready.clear_ready();
            if read.is_ok() {
                self.set = None;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::units::Millis;

    #[tokio::test]
    async fn a_moment_that_is_past_or_near_runs_out_and_one_that_was_taken_back_does_not() {
        let mut timer = BootTimer::new().expect("a timer");
        timer.set(Some(BootMs(0))).expect("set");
        timer.ran_out().await;
        let near = sela_clock::now().boot_ms.plus(Millis(5));
        timer.set(Some(near)).expect("set");
        timer.ran_out().await;
        assert!(sela_clock::now().boot_ms >= near, "not before its moment");
        timer.set(Some(BootMs(0))).expect("set");
        timer.set(None).expect("stopped");
        let waited = tokio::time::timeout(std::time::Duration::from_millis(20), timer.ran_out()).await;
        assert!(waited.is_err(), "it was taken back");
    }
}
