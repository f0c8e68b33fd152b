//! The simulated device node: a regular file whose length in bytes is the memory that can be allocated in MiB. An allocation is
//! a POSIX write lock on a range of it, one byte a MiB, held by a real process; only the kernel gives it back. The bytes
//! themselves are what lies in the memory: they outlast whoever wrote them, until somebody wipes them. Taking locks and
//! listing their holders live here; what they mean for a card lives in `card`.
//!
//! A process that holds memory must not open and close the same node a second time: closing any descriptor of a file drops
//! all POSIX locks that the process has on it. So the driver never closes a node that it has opened to ask who holds memory, and
//! allocates nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

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
    range: Range<u64>,
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
                return Ok(Self {
                    node,
                    range: start..start + mib,
                });
            }
        }
    }

    /// Marks this process as one that draws: NVML then lists it among the graphics processes, as it does games,
    /// and not among those that only compute.
    pub fn mark_graphics(&self) -> io::Result<()> {
        lock(&self.node, GRAPHICS_MARKS + u64::from(std::process::id()), 1).map(drop)
    }

    /// Leaves `byte` in each MiB of this memory. It stays there when the memory is given back, as on a real card: 0 wipes it.
    pub fn fill(&self, byte: u8) -> io::Result<()> {
        let content = vec![byte; usize::try_from(self.range.end - self.range.start).unwrap_or(0)];
        self.node.write_all_at(&content, self.range.start)
    }

    /// What lies in each MiB of this memory, one byte a MiB: what whoever had it last left, 0 where nobody did or it was wiped.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let mut content = vec![0; usize::try_from(self.range.end - self.range.start).unwrap_or(0)];
        self.node.read_exact_at(&mut content, self.range.start)?;
        Ok(content)
    }
}

/// A process that holds memory of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// In the PID namespace of whoever asks.
    pub pid: u32,
    /// MiB held.
    pub mib: u64,
    /// Whether it has a graphics context.
    pub graphics: bool,
}

/// All processes that hold memory of the card behind `node`, by id. Holders that this process's PID namespace cannot see are not
/// listed: inside a container one sees only one's own.
///
/// Asks the kernel range by range and not `/proc/locks`: that table is handed out a page at a time, and a lock that somebody
/// drops between two pages, on any file of the machine, makes the next page skip another one.
pub fn holders(node: &Path) -> io::Result<Vec<Holder>> {
    let node = look_at(node)?;
    let memory = 0..node.metadata()?.len();
    let mut holders: Vec<Holder> = Vec::new();
    let mut unsearched = vec![memory];
    while let Some(within) = unsearched.pop() {
        let Some(held) = some_held(&node, &within)? else {
            continue;
        };
        let part = held.range.start.max(within.start)..held.range.end.min(within.end);
        unsearched.push(within.start..part.start);
        unsearched.push(part.end..within.end);
        let Some(pid) = held.pid else {
            continue;
        };
        let mib = part.end - part.start;
        match holders.iter_mut().find(|holder| holder.pid == pid) {
            Some(holder) => holder.mib += mib,
            None => {
                let mark = GRAPHICS_MARKS + u64::from(pid);
                let graphics = some_held(&node, &(mark..mark + 1))?.is_some();
                holders.push(Holder { pid, mib, graphics });
            }
        }
    }
    holders.sort_by_key(|holder| holder.pid);
    Ok(holders)
}

/// The stretches of a node's memory that nobody holds, this process included, in order.
pub(crate) fn free_stretches(path: &Path) -> io::Result<Vec<Range<u64>>> {
    let node = look_at(path)?;
    let memory = 0..node.metadata()?.len();
    let total = memory.end;
    let mut held = Vec::new();
    let mut unsearched = vec![memory];
    while let Some(within) = unsearched.pop() {
        let Some(found) = some_held(&node, &within)? else {
            continue;
        };
        let part = found.range.start.max(within.start)..found.range.end.min(within.end);
        unsearched.push(within.start..part.start);
        unsearched.push(part.end..within.end);
        held.push(part);
    }
    held.sort_by_key(|part| part.start);
    let mut free = Vec::new();
    let mut from = 0;
    for part in held {
        free.push(from..part.start);
        from = part.end;
    }
    free.push(from..total);
    free.retain(|stretch| !stretch.is_empty());
    Ok(free)
}

/// The node, open for questions about its locks. It stays open until the process ends: closing it would drop the memory that
/// this very process may hold.
fn look_at(node: &Path) -> io::Result<Arc<File>> {
    static LOOKED_AT: Mutex<BTreeMap<(u64, u64), Arc<File>>> = Mutex::new(BTreeMap::new());
    let metadata = std::fs::metadata(node)?;
    let mut looked_at = LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner);
    match looked_at.entry((metadata.dev(), metadata.ino())) {
        Entry::Occupied(known) => Ok(Arc::clone(known.get())),
        Entry::Vacant(vacant) => Ok(Arc::clone(vacant.insert(Arc::new(File::open(node)?)))),
    }
}

/// A stretch of a node that somebody holds.
struct Held {
    range: Range<u64>,
    /// `None` where the holder is no process that this one can see.
    pid: Option<u32>,
}

/// Any one of the stretches that reach into `within`; its own ends may lie outside. This process's own count too: the question
/// is put for the open file and not for the process.
fn some_held(node: &File, within: &Range<u64>) -> io::Result<Option<Held>> {
    if within.is_empty() {
        return Ok(None);
    }
    let answer = ask(node, libc::F_OFD_GETLK, within.start, within.end - within.start)?;
    Ok(answer.map(|answer| Held {
        range: locked_range(&answer),
        pid: u32::try_from(answer.l_pid).ok().filter(|&pid| pid != 0),
    }))
}

/// What the kernel says stands in the way of a write lock on `length` bytes from `start`, if anything does.
fn ask(node: &File, command: libc::c_int, start: u64, length: u64) -> io::Result<Option<libc::flock>> {
    let mut request = write_lock(start, length)?;
    // SAFETY: the descriptor is open for as long as `node` lives and `request` is a valid `flock` in both directions.
    if unsafe { libc::fcntl(node.as_raw_fd(), command, &raw mut request) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok((i32::from(request.l_type) != libc::F_UNLCK).then_some(request))
}

/// A length of 0 reaches to the end of any file.
fn locked_range(lock: &libc::flock) -> Range<u64> {
    let start = u64::try_from(lock.l_start).unwrap_or(0);
    match u64::try_from(lock.l_len).unwrap_or(0) {
        0 => start..u64::MAX,
        length => start..start.saturating_add(length),
    }
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
        let Some(answer) = ask(node, libc::F_GETLK, start, length)? else {
            break;
        };
        let taken = locked_range(&answer);
        found = Some((taken.start, taken.end));
        length = taken.start.saturating_sub(start);
    }
    Ok(found)
}

/// Gives a range back.
pub(crate) fn unlock(node: &File, start: u64, length: u64) -> io::Result<()> {
    let mut request = write_lock(start, length)?;
    request.l_type = libc::c_short::try_from(libc::F_UNLCK).unwrap_or(2);
    // SAFETY: the descriptor is open for as long as `node` lives and `request` is a valid `flock`.
    match unsafe { libc::fcntl(node.as_raw_fd(), libc::F_SETLK, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the range is ours now; `false` where another process has part of it.
pub(crate) fn lock(node: &File, start: u64, length: u64) -> io::Result<bool> {
    let mut request = write_lock(start, length)?;
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

fn write_lock(start: u64, length: u64) -> io::Result<libc::flock> {
    let offset = |value: u64| libc::off_t::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    // SAFETY: `flock` is plain numbers, for which all zero bits are a valid value; padding differs between targets.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::c_short::try_from(libc::F_WRLCK).unwrap_or(1);
    request.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0);
    request.l_start = offset(start)?;
    request.l_len = offset(length)?;
    Ok(request)
}
