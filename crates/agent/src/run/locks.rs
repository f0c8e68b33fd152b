//! One card, one agent: a lock per card that the kernel releases with the process. Two users at one machine are two agents;
//! the card is offered by the one that holds its lock.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use sela_protocol::id::GpuUuid;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Locks of cards.
#[derive(Debug)]
pub(crate) struct CardLocks {
    folder: PathBuf,
    held: BTreeMap<GpuUuid, OwnedFd>,
}

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another agent has it.
    #[error("another agent on this machine shares this card; it is offered here when that agent lets go of it")]
    Taken,
    /// The file cannot be made or locked.
    #[error("the card's lock {path} cannot be taken: {source}")]
    File {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl CardLocks {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            held: BTreeMap::new(),
        }
    }

    /// Takes a card's lock, or keeps it.
    ///
    /// # Errors
    /// See [`LockError`].
    pub(crate) fn take(&mut self, gpu: &GpuUuid) -> Result<(), LockError> {
        if self.held.contains_key(gpu) {
            return Ok(());
        }
        // UUIDs of cards are letters, digits and dashes; anything else must not become a path.
        let safe: String = gpu
            .0
            .chars()
            .map(|letter| {
                if letter.is_ascii_alphanumeric() || letter == '-' {
                    letter
                } else {
                    '_'
                }
            })
            .collect();
        let lock = lock_file(&self.folder.join(format!("gpu-{safe}.lock")))?;
        self.held.insert(gpu.clone(), lock);
        Ok(())
    }

    pub(crate) fn holds(&self, gpu: &GpuUuid) -> bool {
        self.held.contains_key(gpu)
    }
}

/// Locks a file for as long as what is returned lives.
///
/// # Errors
/// See [`LockError`].
pub(crate) fn lock_file(path: &Path) -> Result<OwnedFd, LockError> {
    let failed = |source: rustix::io::Errno| LockError::File {
        path: path.display().to_string(),
        source: source.into(),
    };
    // Every user's agent must be able to open it, and a link that somebody put there must not be followed. In a sticky
    // folder O_CREAT on another user's file is refused, so what is there is opened without it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => open(path, flags | OFlags::CREATE, Mode::from_raw_mode(0o644)),
        other => other,
    }
    .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Taken),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_one_agents_until_that_agent_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let card = GpuUuid("GPU-1/../x".into());
        let mut first = CardLocks::new(folder.path().to_owned());
        let mut second = CardLocks::new(folder.path().to_owned());
        first.take(&card).expect("free");
        first.take(&card).expect("ours already");
        assert!(matches!(second.take(&card), Err(LockError::Taken)));
        drop(first);
        second.take(&card).expect("let go");
        assert!(second.holds(&card));
    }
}
