//! Limits by cgroup version 2: one folder, every controller in it.

use super::{CgroupError, Limit, MemoryFiles, Share, make_folder, write};
use crate::keeper::wire::Limits;
use std::fs;
use std::path::Path;

/// Controllers that a job cannot go without.
pub const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];

/// Where an agent's own processes go when its delegated group must have none (no internal processes).
pub(crate) const AGENT_LEAF: &str = "sela-agent";

/// Makes `root/inside`, the controllers handed down to it.
pub(super) fn make(root: &Path, inside: &Path) -> Result<(), CgroupError> {
    let mut folder = root.to_owned();
    for part in inside.components() {
        hand_down(&folder, root)?;
        folder.push(part);
        make_folder(&folder)?;
    }
    Ok(())
}

/// Enables the controllers for the children of `folder`. In a delegated group that still holds processes the kernel refuses
/// this; they are moved to a leaf first.
fn hand_down(folder: &Path, root: &Path) -> Result<(), CgroupError> {
    let control = folder.join("cgroup.subtree_control");
    let wanted: Vec<&str> = NEEDED
        .iter()
        .chain(&["io"])
        .copied()
        .filter(|name| offered(folder, name))
        .collect();
    let line: String = wanted.iter().map(|name| format!("+{name} ")).collect();
    let first = write(&control, line.trim_end());
    if first.is_ok() || folder != root {
        return first;
    }
    let leaf = folder.join(AGENT_LEAF);
    make_folder(&leaf)?;
    let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines() {
        write(&leaf.join("cgroup.procs"), pid)?;
    }
    write(&control, line.trim_end())
}

/// Whether a controller can be used below this folder.
pub fn offered(folder: &Path, controller: &str) -> bool {
    fs::read_to_string(folder.join("cgroup.controllers"))
        .is_ok_and(|text| text.split_whitespace().any(|name| name == controller))
}

/// `1` here, and when memory runs out the kernel kills the whole group.
pub(super) const OOM_GROUP: &str = "memory.oom.group";

/// What must be written into the folder, and where its use is read.
pub(super) fn limits(root: &Path, inside: &Path, limits: &Limits) -> (Vec<Limit>, MemoryFiles) {
    let folder = root.join(inside);
    let set = vec![
        Limit::must(folder.join("memory.max"), limits.memory.0),
        // Absent where the kernel counts no swap. Without it a job could swap the owner's disk full.
        Limit::where_present(folder.join("memory.swap.max"), 0),
        Limit::must(folder.join(OOM_GROUP), 1),
        Limit::must(folder.join("pids.max"), limits.pids),
        Limit::must(folder.join("cpu.idle"), 1),
        Limit::where_present(folder.join("io.bfq.weight"), "default 1"),
    ];
    let memory = MemoryFiles {
        current: folder.join("memory.current"),
        peak: folder.join("memory.peak"),
        kills: folder.join("memory.events"),
        pids: folder.join("pids.current"),
    };
    (set, memory)
}

/// Where CPU time is shared out at one level.
pub(super) fn share(root: &Path, level: &Path) -> Share {
    let folder = root.join(level);
    Share {
        idle: folder.join("cpu.idle"),
        weight: folder.join("cpu.weight"),
        most: 10_000,
    }
}
