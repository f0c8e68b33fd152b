//! One job's cgroups: made, filled, frozen, read, killed, removed. Freezing and killing always go through the version 2
//! hierarchy; limits are version 2's own (`v2`) or, on a hybrid machine in a lab, version 1's (`hybrid`). When to do any of
//! this is the keeper's to decide.

pub(crate) mod adopt;
pub mod hybrid;
pub mod v2;

use crate::keeper::wire::{CgroupLayout, CgroupPlace, Limits};
use sela_protocol::id::LeaseId;
use sela_protocol::units::{Bytes, Microseconds};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder under which every job of every agent has its cgroups: whoever is in it is a job's process.
pub const JOBS: &str = "sela-jobs";

/// What went wrong with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A file of it could not be read or written.
    #[error("cgroup: could not {what} {path}: {source}")]
    File {
        /// "write 1 to", "read", "make", "remove".
        what: String,
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of it holds something else than the kernel's documentation says.
    #[error("cgroup: {path} reads \"{text}\", which is not what it should")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// The agent's name is not fit to be one folder.
    #[error("cgroup: the agent's name \"{0}\" may hold letters, digits, - and _ only, 1 to 64 of them")]
    AgentName(String),
    /// A container's first process is in a group of somebody else's.
    #[error("cgroup: the container {container} is not in a group of its own but in {found}")]
    NotItsOwn {
        /// The engine's id of it.
        container: String,
        /// Where it is.
        found: String,
    },
}

impl CgroupError {
    fn is_missing(&self) -> bool {
        match self {
            Self::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Content { .. } | Self::AgentName(_) | Self::NotItsOwn { .. } => false,
        }
    }
}

/// A limit that is not what was set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the limit in {path} should read {expected} and reads {found}")]
pub struct LimitDiffers {
    /// The file.
    pub path: PathBuf,
    /// What was set.
    pub expected: String,
    /// What was read back.
    pub found: String,
}

/// One limit: the file and what it must read once set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    path: PathBuf,
    value: String,
    /// Whether the kernel may lack the file (no swap accounting, an older kernel): then it is skipped, and `probe` says so.
    optional: bool,
}

impl Limit {
    pub(crate) fn must(path: PathBuf, value: impl ToString) -> Self {
        Self {
            path,
            value: value.to_string(),
            optional: false,
        }
    }

    pub(crate) fn where_present(path: PathBuf, value: impl ToString) -> Self {
        Self {
            path,
            value: value.to_string(),
            optional: true,
        }
    }

    fn skipped(&self) -> bool {
        self.optional && !self.path.exists()
    }
}

/// The cgroups of one job. Dropping it removes nothing: see [`Cgroup::remove`].
#[derive(Debug)]
pub struct Cgroup {
    unified: PathBuf,
    /// Folders of the controllers of version 1; empty with version 2.
    controllers: Vec<PathBuf>,
    limits: Vec<Limit>,
    memory: MemoryFiles,
    /// Where CPU time is shared out: this job's folder first, then those above it, which other jobs are in, too.
    shares: Vec<Share>,
}

/// A folder in which CPU time is shared out.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// `1` here, and the group runs only when nobody else wants to.
    pub(crate) idle: PathBuf,
    /// The file with its share when it is not idle.
    pub(crate) weight: PathBuf,
    /// The largest share that may be written there.
    pub(crate) most: u32,
}

/// Where memory is read.
#[derive(Debug, Clone)]
pub(crate) struct MemoryFiles {
    pub(crate) current: PathBuf,
    pub(crate) peak: PathBuf,
    /// Holds a line `oom_kill N`.
    pub(crate) kills: PathBuf,
    pub(crate) pids: PathBuf,
}

/// What a cgroup has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Charged now.
    pub memory: Bytes,
    /// Charged at most.
    pub memory_peak: Option<Bytes>,
    /// Processes and threads.
    pub pids: u32,
    /// CPU time.
    pub cpu: Microseconds,
}

/// The page size that limits are rounded to.
const PAGE: u64 = 4096;
/// How often making a lease's folders is tried.
const ATTEMPTS: u32 = 10;

impl Cgroup {
    /// Makes the cgroups of a lease, empty, every limit set. Nothing stays where it fails.
    ///
    /// # Errors
    /// [`CgroupError`].
    pub fn create(place: &CgroupPlace, lease: LeaseId, limits: &Limits) -> Result<Self, CgroupError> {
        let inside = jobs_folder(place)?.join(lease.to_string());
        let rounded = Limits {
            memory: Bytes(limits.memory.0 / PAGE * PAGE),
            ..limits.clone()
        };
        let (unified, controllers, (limits, memory), shares) = match place.layout {
            CgroupLayout::V2 => {
                let limits = v2::limits(&place.root, &inside, &rounded);
                let shares = levels(&inside).map(|level| v2::share(&place.root, level)).collect();
                (place.root.join(&inside), Vec::new(), limits, shares)
            }
            CgroupLayout::LabCgroupV1 => {
                let folder = |hierarchy: &str| place.root.join(hierarchy).join(&inside);
                let limits = hybrid::limits(&place.root, &inside, &rounded);
                let shares = levels(&inside).map(|level| hybrid::share(&place.root, level)).collect();
                (
                    folder(hybrid::UNIFIED),
                    hybrid::NEEDED.map(folder).to_vec(),
                    limits,
                    shares,
                )
            }
        };
        let cgroup = Self {
            unified,
            controllers,
            limits,
            memory,
            shares,
        };
        let mut attempt = 1;
        loop {
            match cgroup.make(place, &inside) {
                Ok(()) => return Ok(cgroup),
                // Another job's keeper may have removed the folder above, which was empty, while we made ours in it.
                Err(error) if error.is_missing() && attempt < ATTEMPTS => attempt += 1,
                Err(error) => {
                    drop(cgroup.remove());
                    return Err(error);
                }
            }
        }
    }

    fn make(&self, place: &CgroupPlace, inside: &Path) -> Result<(), CgroupError> {
        match place.layout {
            CgroupLayout::V2 => v2::make(&place.root, inside)?,
            CgroupLayout::LabCgroupV1 => hybrid::make(&place.root, inside)?,
        }
        self.set_limits()
    }

    fn set_limits(&self) -> Result<(), CgroupError> {
        for limit in self.limits.iter().filter(|limit| !limit.skipped()) {
            write(&limit.path, &limit.value)?;
        }
        self.set_hurry(false);
        Ok(())
    }

    /// Stopping and dying take CPU time, too: every thread must come to run once more. A group that only gets what nobody else
    /// wants would do neither while the owner's game uses every core, so for that moment, and no longer, it goes first.
    /// Where this cannot be done it only takes longer, which is seen: hence no error.
    pub fn set_hurry(&self, hurry: bool) {
        for share in &self.shares {
            if hurry {
                drop(fs::write(&share.idle, "0"));
                drop(fs::write(&share.weight, share.most.to_string()));
            } else {
                drop(fs::write(&share.idle, "1"));
            }
        }
    }

    /// The folder in the version 2 hierarchy.
    pub fn folder(&self) -> &Path {
        &self.unified
    }

    /// Puts a process in.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        for folder in self.controllers.iter().chain([&self.unified]) {
            write(&folder.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Reads every limit back.
    ///
    /// # Errors
    /// The first that differs, or could not be read.
    pub fn verify(&self) -> Result<(), LimitDiffers> {
        for limit in self.limits.iter().filter(|limit| !limit.skipped()) {
            let found = match fs::read_to_string(&limit.path) {
                Ok(text) => text.trim().to_owned(),
                Err(error) => error.to_string(),
            };
            if found != limit.value {
                return Err(LimitDiffers {
                    path: limit.path.clone(),
                    expected: limit.value.clone(),
                    found,
                });
            }
        }
        Ok(())
    }

    /// Asks for every thread to stop, or to go on. Returns before they have.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn set_frozen(&self, frozen: bool) -> Result<(), CgroupError> {
        write(&self.unified.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    /// Whether every thread stands still.
    ///
    /// # Errors
    /// [`CgroupError`].
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        Ok(keyed(&self.unified.join("cgroup.events"), "frozen")? == 1)
    }

    /// Whether any process is left, zombies not counted.
    ///
    /// # Errors
    /// [`CgroupError`].
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        Ok(keyed(&self.unified.join("cgroup.events"), "populated")? == 1)
    }

    /// The kernel's own record of frozen time, from asking to freeze to asking to thaw; `None` before Linux 6.18.
    pub fn frozen_time(&self) -> Option<Microseconds> {
        keyed(&self.unified.join("cgroup.stat.local"), "frozen_usec")
            .ok()
            .map(Microseconds)
    }

    /// Kills every process, frozen ones too. Returns before they are gone.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn kill(&self) -> Result<(), CgroupError> {
        write(&self.unified.join("cgroup.kill"), "1")
    }

    /// How often the kernel killed a process in it because memory ran out.
    ///
    /// # Errors
    /// [`CgroupError`].
    pub fn memory_kills(&self) -> Result<u64, CgroupError> {
        let own = keyed(&self.memory.kills, "oom_kill")?;
        // Version 1 counts where the process was: in a container's group below this one.
        let (Some(folder), Some(name)) = (self.memory.kills.parent(), self.memory.kills.file_name()) else {
            return Ok(own);
        };
        let below = fs::read_dir(folder).into_iter().flatten().flatten();
        let below = below.filter_map(|entry| keyed(&entry.path().join(name), "oom_kill").ok());
        Ok(own.max(below.sum()))
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// [`CgroupError`].
    pub fn usage(&self) -> Result<CgroupUsage, CgroupError> {
        Ok(CgroupUsage {
            memory: Bytes(number(&self.memory.current)?),
            memory_peak: number(&self.memory.peak).ok().map(Bytes),
            pids: u32::try_from(number(&self.memory.pids)?).unwrap_or(u32::MAX),
            cpu: Microseconds(keyed(&self.unified.join("cpu.stat"), "usage_usec")?),
        })
    }

    /// Removes the folders, and those above that are then empty; `false` while a process that is being torn down still keeps
    /// one of them (ask again).
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn remove(&self) -> Result<bool, CgroupError> {
        let mut gone = true;
        for folder in self.controllers.iter().chain([&self.unified]) {
            gone &= remove(folder)?;
            for above in folder.ancestors().skip(1).take(2) {
                // Other jobs may be in it.
                drop(fs::remove_dir(above));
            }
        }
        Ok(gone)
    }
}

/// `sela-jobs/<agent>`, checked.
///
/// # Errors
/// [`CgroupError::AgentName`].
pub(crate) fn jobs_folder(place: &CgroupPlace) -> Result<PathBuf, CgroupError> {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !(1..=64).contains(&place.agent.len()) || !place.agent.bytes().all(fit) {
        return Err(CgroupError::AgentName(place.agent.clone()));
    }
    Ok(Path::new(JOBS).join(&place.agent))
}

/// `sela-jobs`, `sela-jobs/<agent>`, `sela-jobs/<agent>/<lease>`: the folder and those above it that are ours.
pub(crate) fn levels(inside: &Path) -> impl Iterator<Item = &Path> {
    inside.ancestors().filter(|level| !level.as_os_str().is_empty())
}

pub(crate) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|source| CgroupError::File {
        what: format!("write {value} to"),
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn make_folder(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(CgroupError::File {
            what: "make".to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}

/// Removes one folder; `false` while it is busy. A folder that is not there counts as removed.
pub(crate) fn remove(path: &Path) -> Result<bool, CgroupError> {
    match fs::remove_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            // What an engine made below it and has not taken away yet. One that is in use stays, and so does this.
            let mut gone = false;
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    gone |= remove(&entry.path())?;
                }
            }
            Ok(gone && fs::remove_dir(path).is_ok())
        }
        Err(source) => Err(CgroupError::File {
            what: "remove".to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}

fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::File {
        what: "read".to_owned(),
        path: path.to_owned(),
        source,
    })
}

fn number(path: &Path) -> Result<u64, CgroupError> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| CgroupError::Content {
        path: path.to_owned(),
        text: text.trim().to_owned(),
    })
}

/// The number behind `key` in a file of lines "key number".
fn keyed(path: &Path, key: &str) -> Result<u64, CgroupError> {
    let text = read(path)?;
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| CgroupError::Content {
            path: path.to_owned(),
            text: text.trim().to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_name_that_would_leave_the_folder_is_refused() {
        for (agent, fits) in [
            ("agent-1", true),
            ("a", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            (&"x".repeat(65), false),
        ] {
            let place = CgroupPlace {
                layout: CgroupLayout::V2,
                root: PathBuf::from("/sys/fs/cgroup"),
                agent: agent.to_owned(),
            };
            assert_eq!(jobs_folder(&place).is_ok(), fits, "{agent:?}");
        }
    }

    #[test]
    fn keyed_files_are_read_by_whole_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cgroup.events");
        fs::write(&file, "populated 1\nfrozen 0\noom_kill_disable 7\noom_kill 3\n").unwrap();
        for (key, value) in [("populated", 1), ("frozen", 0), ("oom_kill", 3)] {
            assert_eq!(keyed(&file, key).unwrap(), value, "{key}");
        }
        assert!(keyed(&file, "thawed").is_err());
    }
}
