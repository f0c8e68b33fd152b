//! Waiting for what happens elsewhere: by looking, never by sleeping for as long as it should take. How long it took is nobody's
//! assertion; that it never happens is a failure.

use anyhow::{Context, bail};
use std::time::{Duration, Instant};

/// Longest that anything here may take on a machine that is busy with other things; then it is taken for never.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Least time between two looks.
const BLINK: Duration = Duration::from_millis(10);

/// Looks until there is something.
///
/// # Errors
/// Whatever `look` fails with, or that [`PATIENCE`] is over.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().with_context(|| format!("while waiting for {what}"))? {
            return Ok(found);
        }
        if begun.elapsed() > PATIENCE {
            bail!("waited {} s in vain for {what}", PATIENCE.as_secs());
        }
        std::thread::sleep(BLINK);
    }
}
