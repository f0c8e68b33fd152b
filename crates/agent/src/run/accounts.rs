//! What keepers wrote down of jobs that ended: with it a lease is paid to the millisecond even if the agent was killed.

use sela_protocol::id::LeaseId;
use sela_sandbox::keeper::wire::Stop;
use std::path::{Path, PathBuf};

/// Where a lease's account is.
pub(crate) fn path(folder: &Path, lease: LeaseId) -> PathBuf {
    folder.join(format!("{lease}.json"))
}

/// Reads an account; `None` where there is none, or none that reads.
pub(crate) fn read(path: &Path) -> Option<Stop> {
    let bytes = std::fs::read(path).ok()?;
    match serde_json::from_slice(&bytes) {
        Ok(stop) => Some(stop),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a keeper's account does not read; the newest note counts");
            None
        }
    }
}

/// Removes an account whose lease is closed in the store.
pub(crate) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "a keeper's account could not be removed");
    }
}
