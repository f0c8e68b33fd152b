//! How many threads a workload computes with. Candle asks the environment only, and would otherwise take every core of the
//! machine and spin on them, whatever share of the CPU the job was given.

use std::num::NonZeroUsize;

/// Environment variable with the number of threads that the job may compute with.
const CPU_THREADS: &str = "SELA_CPU_THREADS";

/// A number of threads, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCount(NonZeroUsize);

impl ThreadCount {
    /// Reads `SELA_CPU_THREADS`; 1 where it is not set.
    ///
    /// # Errors
    /// A sentence, where it is set to something that is no number from 1 upwards.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var_os(CPU_THREADS) {
            None => Ok(ThreadCount(NonZeroUsize::MIN)),
            Some(text) => Self::from_setting(&text.to_string_lossy()),
        }
    }

    fn from_setting(text: &str) -> Result<Self, String> {
        text.parse()
            .map(ThreadCount)
            .map_err(|_| format!("{CPU_THREADS} is {text:?}, which is not a whole number from 1 upwards"))
    }
}

/// Makes candle and rayon compute with so many threads.
///
/// # Safety
/// Must be called while the process has only one thread: the environment may not change under a reader.
#[expect(
    clippy::disallowed_methods,
    reason = "candle reads its number of threads from the environment and nowhere else"
)]
pub unsafe fn limit_threads(threads: ThreadCount) {
    let count = threads.0.to_string();
    for name in ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
        // SAFETY: the caller promises that no other thread exists.
        unsafe { std::env::set_var(name, &count) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_threads_is_a_whole_number_from_one_upwards() {
        assert!(ThreadCount::from_setting("1").is_ok());
        assert!(ThreadCount::from_setting("16").is_ok());
        for bad in ["0", "-1", "two", ""] {
            let error = ThreadCount::from_setting(bad).unwrap_err();
            assert!(error.contains("SELA_CPU_THREADS"), "{error}");
        }
    }
}
