//! Hearing SIGTERM. The handler only sets a flag; the workload looks at it wherever it can stop and still leave a whole
//! checkpoint. A job is process 1 of its PID namespace, where SIGTERM without a handler does nothing at all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a workload that saved and left because it was told to: 128 + SIGTERM, as shells report it.
pub const EXIT_TERMINATED: u8 = 143;

/// Whether SIGTERM has come.
#[derive(Debug, Clone)]
pub struct Termination {
    asked: Arc<AtomicBool>,
}

impl Termination {
    /// Starts to listen for SIGTERM.
    ///
    /// # Errors
    /// When the kernel refuses the handler.
    pub fn listen() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&asked))?;
        Ok(Termination { asked })
    }

    /// Whether the workload has been told to go.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigterm_is_heard_and_does_not_kill() {
        let termination = Termination::listen().unwrap();
        assert!(!termination.is_asked());
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        assert!(termination.is_asked());
    }
}
