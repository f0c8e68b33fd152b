//! Hearing SIGTERM. Until there is something to save it ends the process at once; from then on the handler only sets a flag,
//! and the workload looks at it wherever it can stop and still leave a whole checkpoint. A job is process 1 of its PID
//! namespace, where SIGTERM without a handler does nothing at all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGTERM;

/// The exit code of a workload that left because it was told to: 128 + SIGTERM, as shells report it.
pub const EXIT_TERMINATED: u8 = 143;

/// SIGTERM ends the process at once: there is nothing to save yet.
#[derive(Debug)]
#[must_use]
pub struct LeaveAtOnce {
    nothing_to_save: Arc<AtomicBool>,
    termination: Termination,
}

/// Whether SIGTERM has come since there is something to save.
#[derive(Debug)]
pub struct Termination {
    asked: Arc<AtomicBool>,
}

impl LeaveAtOnce {
    /// Starts to listen for SIGTERM.
    ///
    /// # Errors
    /// When the kernel refuses the handler.
    pub fn listen() -> io::Result<Self> {
        let nothing_to_save = Arc::new(AtomicBool::new(true));
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(
            SIGTERM,
            i32::from(EXIT_TERMINATED),
            Arc::clone(&nothing_to_save),
        )?;
        signal_hook::flag::register(SIGTERM, Arc::clone(&asked))?;
        Ok(LeaveAtOnce {
            nothing_to_save,
            termination: Termination { asked },
        })
    }

    /// From now on the workload itself leaves when it has saved.
    pub fn save_first(self) -> Termination {
        self.nothing_to_save.store(false, Ordering::SeqCst);
        self.termination
    }
}

impl Termination {
    /// Whether the workload has been told to go.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_there_is_something_to_save_sigterm_is_heard_and_does_not_kill() {
        let termination = LeaveAtOnce::listen().unwrap().save_first();
        assert!(!termination.is_asked());
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(termination.is_asked());
    }
}
