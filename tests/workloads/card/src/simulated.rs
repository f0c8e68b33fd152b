//! Memory of a SIMULATED card. Its device node is a file with one byte for each MiB that the card has; whoever uses n MiB
//! holds a POSIX write lock (`fcntl(2)`, F_SETLK) on n bytes of it. The kernel is the only judge: it frees the bytes when
//! the process is gone and not before, a frozen process keeps them, and the simulated driver can ask who holds which.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Why a SIMULATED card gave no memory.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The node is not there or not ours to use.
    #[error("could not {doing} the SIMULATED card {}: {source}", device.display())]
    Node {
        /// What was being done.
        doing: &'static str,
        /// The device node.
        device: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The node has no bytes.
    #[error("the SIMULATED card {} has no memory: its file must have one byte for each MiB", device.display())]
    NoMemory {
        /// The device node.
        device: PathBuf,
    },
    /// No gap is large enough.
    #[error(
        "card is full: {wanted_mib} MiB were asked of SIMULATED card {}, which has {card_mib} MiB and no free run longer \
         than {longest_free_mib} MiB; end another user of the card or ask for less",
        device.display()
    )]
    Full {
        /// The device node.
        device: PathBuf,
        /// What was asked for, MiB.
        wanted_mib: u64,
        /// What the card has, MiB.
        card_mib: u64,
        /// The longest run of free MiB that was seen.
        longest_free_mib: u64,
    },
}

/// A held range of a SIMULATED card's memory.
///
/// POSIX locks end when *any* descriptor of the file is closed by the process, so nothing else in a process may open the
/// node while it holds one of these.
#[derive(Debug)]
pub struct CardLock {
    device: PathBuf,
    offset_mib: u64,
    mib: u64,
    _held: File,
}

impl CardLock {
    /// Takes the first free `mib` MiB of the card.
    ///
    /// # Errors
    /// [`LockError::Full`] where no gap is large enough; nothing is held after an error.
    pub fn take(device: &Path, mib: u64) -> Result<Self, LockError> {
        let failed = |doing: &'static str| {
            let device = device.to_owned();
            move |source| LockError::Node { doing, device, source }
        };
        let node = File::options()
            .read(true)
            .write(true)
            .open(device)
            .map_err(failed("open"))?;
        let card_mib = node.metadata().map_err(failed("measure"))?.len();
        if card_mib == 0 {
            return Err(LockError::NoMemory {
                device: device.to_owned(),
            });
        }

        let mut offset: u64 = 0;
        let mut longest_free: u64 = 0;
        loop {
            let end = offset.saturating_add(mib);
            if end <= card_mib && try_lock(&node, offset, mib).map_err(failed("lock"))? {
                return Ok(CardLock {
                    device: device.to_owned(),
                    offset_mib: offset,
                    mib,
                    _held: node,
                });
            }
            let blocker = first_blocker(&node, offset, card_mib).map_err(failed("examine"))?;
            let Some(blocker) = blocker else {
                longest_free = longest_free.max(card_mib.saturating_sub(offset));
                // Free to the end and still not ours: either it is too short, or its holder left just now.
                if end <= card_mib {
                    continue;
                }
                return Err(LockError::Full {
                    device: device.to_owned(),
                    wanted_mib: mib,
                    card_mib,
                    longest_free_mib: longest_free,
                });
            };
            longest_free = longest_free.max(blocker.start.saturating_sub(offset));
            offset = blocker.end;
        }
    }

    /// Where the range starts, MiB from the start of the card.
    pub fn offset_mib(&self) -> u64 {
        self.offset_mib
    }
}

impl fmt::Display for CardLock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SIMULATED card {}, {} MiB", self.device.display(), self.mib)
    }
}

struct Range {
    start: u64,
    end: u64,
}

fn lock_description(start: u64, length: u64) -> io::Result<libc::flock> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    // SAFETY: `flock` is a plain C structure of integers, for which all zeros is a value.
    let mut description: libc::flock = unsafe { std::mem::zeroed() };
    description.l_type = libc::F_WRLCK as libc::c_short;
    description.l_whence = libc::SEEK_SET as libc::c_short;
    description.l_start = start.try_into().map_err(out_of_range)?;
    description.l_len = length.try_into().map_err(out_of_range)?;
    Ok(description)
}

/// Whether the range is now ours; false where somebody holds a part of it.
fn try_lock(node: &File, start: u64, length: u64) -> io::Result<bool> {
    let description = lock_description(start, length)?;
    // SAFETY: the descriptor is open for the whole call and `description` is a valid `flock` that the kernel only reads.
    let answer = unsafe { libc::fcntl(node.as_raw_fd(), libc::F_SETLK, &description) };
    if answer == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EAGAIN) => Ok(false),
        _ => Err(error),
    }
}

/// The first lock of somebody else at or after `start`.
fn first_blocker(node: &File, start: u64, card_mib: u64) -> io::Result<Option<Range>> {
    let Some(length) = card_mib.checked_sub(start).filter(|length| *length > 0) else {
        return Ok(None);
    };
    let mut description = lock_description(start, length)?;
    // SAFETY: the descriptor is open for the whole call and `description` is a valid `flock` that the kernel fills.
    let answer = unsafe { libc::fcntl(node.as_raw_fd(), libc::F_GETLK, &mut description) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    if description.l_type == libc::F_UNLCK as libc::c_short {
        return Ok(None);
    }
    let start = u64::try_from(description.l_start).unwrap_or(0);
    // A length of 0 means "to the end, however long the file grows".
    let end = match u64::try_from(description.l_len) {
        Ok(length) if length > 0 => start.saturating_add(length),
        _ => card_mib,
    };
    Ok(Some(Range { start, end }))
}
