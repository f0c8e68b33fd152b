//! Limits by cgroup version 1 on a machine whose version 2 hierarchy is mounted beside it, without controllers. For labs
//! only: version 1 kills one process where version 2 kills the group, and its controllers are moved between separately.

use super::{CgroupError, Limit, MemoryFiles, Share, make_folder};
use crate::keeper::wire::Limits;
use std::path::Path;

/// The folder of the version 2 hierarchy in a hybrid layout.
pub const UNIFIED: &str = "unified";

/// Controllers of version 1 that a job is put into.
pub const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];

/// Makes the folder in each hierarchy: the unified one, and those of the controllers.
pub(super) fn make(root: &Path, inside: &Path) -> Result<(), CgroupError> {
    for hierarchy in NEEDED.into_iter().chain([UNIFIED]) {
        let mut folder = root.join(hierarchy);
        for part in inside.components() {
            folder.push(part);
            make_folder(&folder)?;
        }
    }
    Ok(())
}

/// What must be written into the folders, in this order, and where their use is read.
pub(super) fn limits(root: &Path, inside: &Path, limits: &Limits) -> (Vec<Limit>, MemoryFiles) {
    let memory = root.join("memory").join(inside);
    let pids = root.join("pids").join(inside);
    let cpu = root.join("cpu").join(inside);
    let set = vec![
        Limit::must(memory.join("memory.limit_in_bytes"), limits.memory.0),
        // Memory and swap together, so equal means no swap. Must not be below the limit that was just set.
        Limit::where_present(memory.join("memory.memsw.limit_in_bytes"), limits.memory.0),
        Limit::must(memory.join("memory.swappiness"), 0),
        Limit::must(pids.join("pids.max"), limits.pids),
        Limit::where_present(cpu.join("cpu.idle"), 1),
    ];
    let files = MemoryFiles {
        current: memory.join("memory.usage_in_bytes"),
        peak: memory.join("memory.max_usage_in_bytes"),
        kills: memory.join("memory.oom_control"),
        pids: pids.join("pids.current"),
    };
    (set, files)
}

/// Where CPU time is shared out at one level.
pub(super) fn share(root: &Path, level: &Path) -> Share {
    let folder = root.join("cpu").join(level);
    Share {
        idle: folder.join("cpu.idle"),
        weight: folder.join("cpu.shares"),
        most: 262_144,
    }
}
