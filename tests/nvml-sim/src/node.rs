//! The simulated device node: a regular file whose length in bytes is the memory that can be allocated in MiB. An allocation is
//! a POSIX write lock on a range of it, one byte a MiB, held by a real process; only the kernel gives it back. Taking locks and
//! listing their holders live here; what they mean for a card lives in `card`.
//!
//! A process that holds memory must not open and close the same node a second time: closing any descriptor of a file drops
//! all POSIX locks that the process has on it. So the driver only ever calls `stat` on a node, and allocates nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where the marks of graphics contexts begin: one byte at this offset plus the process id, above any memory, says that the
/// process draws.
const GRAPHICS_MARKS: u64 = 1 << 40;

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// The node cannot be opened or locked.
    #[error("cannot use the simulated device node: {0}; was the lab created, and may this process write the node?")]
    Node(#[from] io::Error),
    /// No free range is large enough.
    #[error("out of simulated memory: {asked_mib} MiB asked, largest free range {largest_mib} MiB of {total_mib} MiB")]
    OutOfMemory {
        /// Asked for.
        asked_mib: u64,
        /// The largest that would have worked, as of the search.
        largest_mib: u64,
        /// All that can be allocated.
        total_mib: u64,
    },
    /// Nothing was asked for.
    #[error("an allocation must be at least 1 MiB")]
    Nothing,
}

/// Memory of a simulated card, held by this process until this is dropped or the process ends, whichever way it ends.
#[derive(Debug)]
pub struct Allocation {
    node: File,
}

impl Allocation {
    /// Takes `mib` MiB of the card behind `node`, wherever a range is free. A process makes one allocation a node: see the
    /// module's text for why a second would undo the first when it is dropped.
    pub fn take(node: &Path, mib: u64) -> Result<Self, AllocationError> {
        if mib == 0 {
            return Err(AllocationError::Nothing);
        }
        let node = File::options().read(true).write(true).open(node)?;
        let total_mib = node.metadata()?.len();
        loop {
            let (start, largest_mib) = first_fit(&node, mib, total_mib)?;
            let Some(start) = start else {
                return Err(AllocationError::OutOfMemory {
                    asked_mib: mib,
                    largest_mib,
                    total_mib,
                });
            };
            // Somebody may have taken the range since: then look again.
            if lock(&node, start, mib)? {
                return Ok(Self { node });
            }
        }
    }

    /// Marks this process as one that draws: NVML then lists it among the graphics processes, as it does games,
    /// and not among those that only compute.
    pub fn mark_graphics(&self) -> io::Result<()> {
        lock(&self.node, GRAPHICS_MARKS + u64::from(std::process::id()), 1).map(drop)
    }
}

/// A process that holds memory of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// In the PID namespace of the `/proc` that is mounted.
    pub pid: u32,
    /// MiB held.
    pub mib: u64,
    /// Whether it has a graphics context.
    pub graphics: bool,
}

/// All processes that hold memory of the card behind `node`, as the kernel's lock table lists them, by id. Holders that the
/// reader's PID namespace cannot see are not listed: inside a container one sees only one's own.
pub fn holders(node: &Path) -> io::Result<Vec<Holder>> {
    let metadata = std::fs::metadata(node)?;
    let file = LockedFile {
        major: rustix::fs::major(metadata.dev()),
        minor: rustix::fs::minor(metadata.dev()),
        inode: metadata.ino(),
    };
    Ok(read_lock_table(
        &std::fs::read_to_string("/proc/locks")?,
        file,
        metadata.len(),
    ))
}

/// A file as `/proc/locks` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LockedFile {
    major: u32,
    minor: u32,
    inode: u64,
}

/// Lines read `1: POSIX  ADVISORY  WRITE 4558 fe:00:1941505 0 EOF`; a waiter's has `->` after the number.
fn read_lock_table(table: &str, file: LockedFile, node_length: u64) -> Vec<Holder> {
    let mut holders: Vec<Holder> = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_, "POSIX", _, "WRITE", pid, place, start, end] = fields.as_slice() else {
            continue;
        };
        if parse_place(place) != Some(file) {
            continue;
        }
        let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>()) else {
            continue;
        };
        // The table's end is inclusive, and "EOF" for a lock without one.
        let end = end.parse::<u64>().map_or(u64::MAX, |last| last.saturating_add(1));
        let mib = end.min(node_length).saturating_sub(start);
        let graphics = start == GRAPHICS_MARKS + u64::from(pid);
        match holders.iter_mut().find(|holder| holder.pid == pid) {
            Some(holder) => {
                holder.mib += mib;
                holder.graphics |= graphics;
            }
            None => holders.push(Holder { pid, mib, graphics }),
        }
    }
    holders.retain(|holder| holder.mib > 0);
    holders.sort_by_key(|holder| holder.pid);
    holders
}

fn parse_place(place: &str) -> Option<LockedFile> {
    let mut parts = place.split(':');
    Some(LockedFile {
        major: u32::from_str_radix(parts.next()?, 16).ok()?,
        minor: u32::from_str_radix(parts.next()?, 16).ok()?,
        inode: parts.next()?.parse().ok()?,
    })
}

/// Start of the first free range of `mib` bytes, if any, and the length of the largest free range seen on the way.
fn first_fit(node: &File, mib: u64, total_mib: u64) -> io::Result<(Option<u64>, u64)> {
    let mut start = 0;
    let mut largest = 0;
    while start < total_mib {
        let Some((taken_from, taken_to)) = first_taken(node, start, total_mib - start)? else {
            let free = total_mib - start;
            return Ok(((free >= mib).then_some(start), largest.max(free)));
        };
        let free = taken_from.saturating_sub(start);
        if free >= mib {
            return Ok((Some(start), free));
        }
        largest = largest.max(free);
        start = taken_to.max(start + 1);
    }
    Ok((None, largest))
}

/// The first range within `length` bytes from `start` that another process has locked. `F_GETLK` names any of them, so the
/// search narrows until nothing lies before the one it found.
fn first_taken(node: &File, start: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    let mut found = None;
    let mut length = length;
    while length > 0 {
        let mut request = range(start, length)?;
        // SAFETY: the descriptor is open for as long as `node` lives and `request` is a valid `flock` in both directions.
        if unsafe { libc::fcntl(node.as_raw_fd(), libc::F_GETLK, &raw mut request) } == -1 {
            return Err(io::Error::last_os_error());
        }
        if i32::from(request.l_type) == libc::F_UNLCK {
            break;
        }
        let from = u64::try_from(request.l_start).unwrap_or(0);
        let held = u64::try_from(request.l_len).unwrap_or(0);
        let to = if held == 0 { u64::MAX } else { from.saturating_add(held) };
        found = Some((from, to));
        length = from.saturating_sub(start);
    }
    Ok(found)
}

/// Whether the range is ours now; `false` where another process has part of it.
fn lock(node: &File, start: u64, length: u64) -> io::Result<bool> {
    let mut request = range(start, length)?;
    // SAFETY: the descriptor is open for as long as `node` lives and `request` is a valid `flock`.
    if unsafe { libc::fcntl(node.as_raw_fd(), libc::F_SETLK, &raw mut request) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EAGAIN) => Ok(false),
        Some(_) | None => Err(error),
    }
}

fn range(start: u64, length: u64) -> io::Result<libc::flock> {
    let offset = |value: u64| libc::off_t::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    // SAFETY: `flock` is plain numbers, for which all zero bits are a valid value; padding differs between targets.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::c_short::try_from(libc::F_WRLCK).unwrap_or(1);
    request.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0);
    request.l_start = offset(start)?;
    request.l_len = offset(length)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: LockedFile = LockedFile {
        major: 0xfe,
        minor: 0,
        inode: 42,
    };

    fn check(table: &str, expected: &[(u32, u64, bool)]) {
        let found: Vec<(u32, u64, bool)> = read_lock_table(table, FILE, 1000)
            .into_iter()
            .map(|holder| (holder.pid, holder.mib, holder.graphics))
            .collect();
        assert_eq!(found, expected, "{table}");
    }

    #[test]
    fn the_lock_table_tells_who_holds_how_much() {
        check("", &[]);
        check("1: POSIX  ADVISORY  WRITE 7 fe:00:42 0 511\n", &[(7, 512, false)]);
        check("1: POSIX  ADVISORY  WRITE 7 fe:00:42 990 EOF\n", &[(7, 10, false)]);
        check("1: POSIX  ADVISORY  WRITE 7 fe:00:42 990 5000\n", &[(7, 10, false)]);
        check(
            "1: POSIX  ADVISORY  WRITE 9 fe:00:42 0 9\n2: POSIX  ADVISORY  WRITE 7 fe:00:42 10 19\n3: POSIX  ADVISORY  WRITE 9 fe:00:42 30 39\n",
            &[(7, 10, false), (9, 20, false)],
        );
        check(
            "1: POSIX  ADVISORY  WRITE 7 fe:00:42 0 9\n2: POSIX  ADVISORY  WRITE 7 fe:00:42 1099511627783 1099511627783\n",
            &[(7, 10, true)],
        );
    }

    #[test]
    fn locks_of_other_files_kinds_and_waiters_hold_nothing() {
        check("1: POSIX  ADVISORY  WRITE 7 fe:00:43 0 9\n", &[]);
        check("1: POSIX  ADVISORY  WRITE 7 fd:00:42 0 9\n", &[]);
        check("1: POSIX  ADVISORY  READ  7 fe:00:42 0 9\n", &[]);
        check("1: FLOCK  ADVISORY  WRITE 7 fe:00:42 0 EOF\n", &[]);
        check("1: OFDLCK ADVISORY  WRITE -1 fe:00:42 0 9\n", &[]);
        check("1: -> POSIX  ADVISORY  WRITE 7 fe:00:42 0 9\n", &[]);
        check("1: POSIX  ADVISORY  WRITE 7 fe:00:42 2000 2009\n", &[]);
    }
}
