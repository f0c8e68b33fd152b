//! The one clock, and how a change is seen from outside without the looking itself being late.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;

/// How often a file of the kernel's is looked at.
const LOOK: Duration = Duration::from_micros(50);
/// Much longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets this thread, and none that it starts, run before all others: what is measured may use every processor, and who
/// measures must not wait for it. Where that is refused figures under load are larger, never smaller. Whoever starts this with a
/// priority of its own (`nice -n -20`) wants all that is started to have it, to see through what else a busy machine does.
pub(crate) fn go_first() {
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0) {
        return;
    }
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is to a live value of its type; a process id of 0 is this thread.
    let set =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters) };
    if set != 0 {
        let error = std::io::Error::last_os_error();
        crate::say(&format!(
            "measured at an ordinary priority, since another is refused: {error}"
        ));
    }
}

/// Milliseconds since then.
pub(crate) fn ms_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1_000.0
}

/// Looks until it is so.
///
/// # Errors
/// Those of `is_so`, or that it takes too long.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(
            begun.elapsed() < PATIENCE,
            "{what} takes longer than {} s",
            PATIENCE.as_secs()
        );
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Whether the file has this line; a file that is gone has none.
pub(crate) fn has_line(file: &Path, line: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(|found| found == line))
}
