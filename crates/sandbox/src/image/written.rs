//! How much the images have cost the disk today: cheap drives wear out by writing, so a day has a cap. Counted before anything
//! is written, in UTC days, and kept over restarts of the agent.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sela_protocol::units::Bytes;
use serde::{Deserialize, Serialize};

use super::disk::write_whole;
use super::error::ImageError;

/// Written down at least this often; a crash forgets at most so much.
const STEP: u64 = 64 << 20;

const MILLISECONDS_OF_A_DAY: i64 = 86_400_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Day {
    /// Days since 1970.
    day: i64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    today: Day,
    saved: u64,
}

/// The day's writes.
#[derive(Debug)]
pub(crate) struct Writes {
    path: PathBuf,
    cap: Option<Bytes>,
    state: Mutex<State>,
}

impl Writes {
    /// Goes on where `path` says that the day stands; without a file nothing was written yet.
    pub(crate) fn open(path: PathBuf, cap: Option<Bytes>) -> Self {
        let found: Option<Day> = fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let today = found.unwrap_or_default();
        let state = State {
            saved: today.bytes,
            today,
        };
        let writes = Self {
            path,
            cap,
            state: Mutex::new(state),
        };
        writes.save_state(&mut writes.state_of(self::today()));
        writes
    }

    /// Counts bytes that are about to be written.
    ///
    /// # Errors
    /// [`ImageError::DailyWrites`] where that is more than is left of the day; then nothing is counted.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), ImageError> {
        let mut state = self.state_of(today());
        self.fits(&state, bytes)?;
        state.today.bytes = state.today.bytes.saturating_add(bytes);
        if state.today.bytes - state.saved >= STEP {
            self.save_state(&mut state);
        }
        Ok(())
    }

    /// Whether so much may still be written today.
    ///
    /// # Errors
    /// As [`Writes::take`].
    pub(crate) fn expect(&self, bytes: u64) -> Result<(), ImageError> {
        self.fits(&self.state_of(today()), bytes)
    }

    /// Writes the count down.
    pub(crate) fn save(&self) {
        let mut state = self.state_of(today());
        if state.today.bytes != state.saved {
            self.save_state(&mut state);
        }
    }

    fn fits(&self, state: &State, bytes: u64) -> Result<(), ImageError> {
        let Some(cap) = self.cap else { return Ok(()) };
        let left = cap.0.saturating_sub(state.today.bytes);
        if bytes > left {
            return Err(ImageError::DailyWrites {
                needed: Bytes(bytes),
                cap,
                left: Bytes(left),
            });
        }
        Ok(())
    }

    fn state_of(&self, day: i64) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.today.day != day {
            *state = State {
                today: Day { day, bytes: 0 },
                saved: 0,
            };
        }
        state
    }

    /// A count that cannot be written down is still a count.
    fn save_state(&self, state: &mut State) {
        state.saved = state.today.bytes;
        let bytes = serde_json::to_vec(&state.today).unwrap_or_default();
        if let Err(error) = write_whole(&self.path, &bytes) {
            tracing::warn!(%error, "the day's writes are not on the disk");
        }
    }
}

fn today() -> i64 {
    sela_clock::now().utc_ms.0.div_euclid(MILLISECONDS_OF_A_DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path, cap: u64) -> Writes {
        Writes::open(path.to_owned(), Some(Bytes(cap)))
    }

    #[test]
    fn a_days_writes_are_capped_also_over_a_restart_and_the_next_day_is_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("written");
        let writes = open(&path, 1000);
        writes.take(900).expect("within the cap");
        let error = writes.take(101).expect_err("over it").to_string();
        assert!(error.contains("of the 1.0 kB a day"), "{error}");
        writes.take(90).expect("what was refused is not counted");
        writes.save();
        let again = open(&path, 1000);
        assert!(again.expect(11).is_err() && again.expect(10).is_ok());

        let yesterday = Day {
            day: today() - 1,
            bytes: 1000,
        };
        fs::write(&path, serde_json::to_vec(&yesterday).expect("JSON")).expect("a file");
        open(&path, 1000).take(1000).expect("another day");
        assert!(Writes::open(path, None).take(u64::MAX).is_ok(), "no cap, no end");
    }
}
