//! What an agent does first after a start: whatever an earlier run of it left is killed and removed, and only then is a card
//! offered. It trusts nothing that says "running".

use crate::cgroup::{self, CgroupError, hybrid, jobs_folder};
use crate::docker;
use crate::keeper::wire::{CgroupLayout, CgroupPlace};
use rustix::event::{PollFd, poll};
use rustix::time::Timespec;
use sela_protocol::id::LeaseId;
use sela_protocol::units::Microseconds;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// How long the kernel may take to kill and let go.
const PATIENCE: Microseconds = Microseconds(10_000_000);
/// How often that is looked at.
const GLANCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Leases whose cgroups were left, by name.
    pub leases: Vec<String>,
    /// Processes that were still in them.
    pub processes: usize,
    /// Block devices whose file lay in the scratch folder.
    pub disks: usize,
    /// What lay in the scratch folder.
    pub scratch: Vec<PathBuf>,
}

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A cgroup could not be read or removed.
    #[error("sweep: {0}")]
    Cgroup(#[from] CgroupError),
    /// Processes that the kernel does not kill (they hang in a driver, say).
    #[error("sweep: {processes} processes of an earlier job are still in {folder}; restart the machine if they stay")]
    Unkillable {
        /// Their cgroup.
        folder: PathBuf,
        /// How many.
        processes: usize,
    },
    /// Something in the scratch folder could not be removed.
    #[error("sweep: could not remove {path}: {source}")]
    Scratch {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Kills and removes every cgroup under `sela-jobs/<agent>`, and everything in the folder of all scratch folders. Those of other
/// agents are not touched. Waits up to ten seconds for each cgroup.
///
/// # Errors
/// [`SweepError`]; whatever could be removed before has been.
pub fn sweep(place: &CgroupPlace, scratch: &Path) -> Result<Swept, SweepError> {
    let mut swept = Swept::default();
    let inside = jobs_folder(place)?;
    let mut leases = BTreeSet::new();
    for (index, hierarchy) in hierarchies(place).iter().enumerate() {
        let agent = hierarchy.join(&inside);
        for folder in folders_in(&agent) {
            if index == 0 {
                swept.processes += kill(&folder)?;
            }
            remove(&folder)?;
            leases.insert(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        remove(&agent)?;
        // Another agent's jobs may be in it.
        drop(fs::remove_dir(hierarchy.join(cgroup::JOBS)));
    }
    docker::clear_agent(place);
    swept.leases = leases.into_iter().collect();
    swept.disks = crate::scratch::detach_below(scratch);
    swept.scratch = empty(scratch)?;
    Ok(swept)
}

/// The same for the cgroups of one lease, whose keeper died: its job has died with it, and nobody else removes them. Its scratch
/// folder is left to the agent. Waits up to ten seconds.
///
/// # Errors
/// [`SweepError`].
pub fn sweep_lease(place: &CgroupPlace, lease: LeaseId) -> Result<(), SweepError> {
    let inside = jobs_folder(place)?.join(lease.to_string());
    for (index, hierarchy) in hierarchies(place).iter().enumerate() {
        let folder = hierarchy.join(&inside);
        if index == 0 {
            kill(&folder)?;
        }
        remove(&folder)?;
        for above in folder.ancestors().skip(1).take(2) {
            // Other jobs may be in it.
            drop(fs::remove_dir(above));
        }
    }
    // What an engine made besides, where there is more than one hierarchy; what is in use there is the next sweep's.
    crate::docker::clear_hierarchies(place, lease);
    Ok(())
}

/// Where cgroups lie, version 2's first: whoever is dead there is dead in all.
fn hierarchies(place: &CgroupPlace) -> Vec<PathBuf> {
    match place.layout {
        CgroupLayout::V2 => vec![place.root.clone()],
        CgroupLayout::LabCgroupV1 => std::iter::once(hybrid::UNIFIED)
            .chain(hybrid::NEEDED)
            .map(|name| place.root.join(name))
            .collect(),
    }
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Kills until nobody is left; says how many there were.
fn kill(folder: &Path) -> Result<usize, SweepError> {
    let members = || members_of(folder);
    let found = members();
    let patience = sela_clock::boot_us().plus(PATIENCE);
    while members() > 0 {
        cgroup::write(&folder.join("cgroup.kill"), "1")?;
        if sela_clock::boot_us() >= patience {
            return Err(SweepError::Unkillable {
                folder: folder.to_owned(),
                processes: members(),
            });
        }
        glance();
    }
    Ok(found)
}

/// Processes in a group and in those that an engine made below it.
fn members_of(folder: &Path) -> usize {
    let own = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    own.lines().count() + folders_in(folder).iter().map(|below| members_of(below)).sum::<usize>()
}

fn remove(folder: &Path) -> Result<(), SweepError> {
    let patience = sela_clock::boot_us().plus(PATIENCE);
    while !cgroup::remove(folder)? {
        if sela_clock::boot_us() >= patience {
            return Err(SweepError::Unkillable {
                folder: folder.to_owned(),
                processes: 0,
            });
        }
        glance();
    }
    Ok(())
}

fn glance() {
    let mut nothing: [PollFd<'_>; 0] = [];
    let _ = poll(&mut nothing, Some(&GLANCE));
}

fn empty(scratch: &Path) -> Result<Vec<PathBuf>, SweepError> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let result = if is_folder {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        result.map_err(|source| SweepError::Scratch {
            path: path.clone(),
            source,
        })?;
        removed.push(path);
    }
    removed.sort();
    Ok(removed)
}
