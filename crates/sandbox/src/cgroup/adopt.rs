//! The cgroup of a container whose engine lets nobody else choose where it lies (systemd's scopes): found by the container's
//! first process, limited and read like one of ours, removed by the engine.

use super::{Cgroup, CgroupError, Limit, PAGE, hybrid, v2, write};
use crate::keeper::wire::{CgroupLayout, Limits};
use sela_protocol::units::Bytes;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// How the engine's folders that hold jobs, and those of ours, begin: in these CPU time is shared out to jobs alone.
const OURS: &str = "sela";

impl Cgroup {
    /// Finds the group of the container `id` by its first process `pid`, and sets every limit there. `root` is where cgroups are
    /// mounted. When memory runs out there, the kernel kills one process, not all: a container that dies as a whole takes its
    /// group along, and the word of why with it. The keeper ends the rest.
    ///
    /// # Errors
    /// [`CgroupError::NotItsOwn`] where the process is in no folder named after the container; [`CgroupError::File`].
    pub(crate) fn adopt(
        layout: CgroupLayout,
        root: &Path,
        (pid, id): (u32, &str),
        limits: &Limits,
    ) -> Result<Self, CgroupError> {
        let inside = place_of(Path::new("/proc"), pid, id)?;
        let rounded = Limits {
            memory: Bytes(limits.memory.0 / PAGE * PAGE),
            ..limits.clone()
        };
        let levels = inside.ancestors().filter(|level| is_jobs_only(level, &inside));
        let adopted = match layout {
            CgroupLayout::V2 => {
                let (limits, memory) = v2::limits(root, &inside, &rounded);
                Self {
                    unified: root.join(&inside),
                    controllers: Vec::new(),
                    limits: limits.into_iter().filter(|limit| !kills_as_a_whole(limit)).collect(),
                    memory,
                    shares: levels.map(|level| v2::share(root, level)).collect(),
                }
            }
            CgroupLayout::LabCgroupV1 => {
                let (limits, memory) = hybrid::limits(root, &inside, &rounded);
                Self {
                    unified: root.join(hybrid::UNIFIED).join(&inside),
                    controllers: hybrid::NEEDED.map(|name| root.join(name).join(&inside)).to_vec(),
                    limits,
                    memory,
                    shares: levels.map(|level| hybrid::share(root, level)).collect(),
                }
            }
        };
        adopted.set_limits()?;
        Ok(adopted)
    }
}

fn kills_as_a_whole(limit: &Limit) -> bool {
    limit.path.ends_with(v2::OOM_GROUP)
}

/// The container's own folder, and those above it that no other programs are in.
fn is_jobs_only(level: &Path, own: &Path) -> bool {
    level == own
        || level
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(OURS))
}

/// Puts the process `pid` into every group that `like` is in and that jobs are counted by.
///
/// # Errors
/// [`CgroupError::File`].
pub(crate) fn join(layout: CgroupLayout, root: &Path, pid: u32, like: u32) -> Result<(), CgroupError> {
    for line in groups_of(Path::new("/proc"), like)?.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let hierarchy = match (layout, controllers) {
            (CgroupLayout::V2, "") => root.to_owned(),
            (CgroupLayout::LabCgroupV1, "") => root.join(hybrid::UNIFIED),
            (CgroupLayout::LabCgroupV1, name) if hybrid::NEEDED.contains(&name) => root.join(name),
            (CgroupLayout::V2 | CgroupLayout::LabCgroupV1, _) => continue,
        };
        let folder = hierarchy.join(path.trim_start_matches('/'));
        write(&folder.join("cgroup.procs"), &pid.to_string())?;
    }
    Ok(())
}

fn groups_of(proc: &Path, pid: u32) -> Result<String, CgroupError> {
    let path = proc.join(pid.to_string()).join("cgroup");
    fs::read_to_string(&path).map_err(|source| CgroupError::File {
        what: "read".to_owned(),
        path,
        source,
    })
}

/// The folder that is named after the container, below the root of the version 2 hierarchy. An engine may make groups within it.
fn place_of(proc: &Path, pid: u32, id: &str) -> Result<PathBuf, CgroupError> {
    let text = groups_of(proc, pid)?;
    let found = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    let leaf = PathBuf::from(found);
    let mut own = PathBuf::new();
    for part in leaf.components() {
        let Component::Normal(name) = part else { break };
        own.push(name);
        if !id.is_empty() && name.to_string_lossy().contains(id) {
            return Ok(own);
        }
    }
    Err(CgroupError::NotItsOwn {
        container: id.to_owned(),
        found: format!("/{found}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_found_by_its_name_and_in_nobody_elses_group() {
        let proc = tempfile::tempdir().unwrap();
        let folder = proc.path().join("7");
        fs::create_dir(&folder).unwrap();
        for (cgroups, expected) in [
            (
                "0::/sela.slice/sela-jobs.slice/docker-abc.scope\n",
                Some("sela.slice/sela-jobs.slice/docker-abc.scope"),
            ),
            (
                "4:memory:/x\n0::/machine.slice/libpod-abc.scope/container\n",
                Some("machine.slice/libpod-abc.scope"),
            ),
            ("0::/\n", None),
            ("0::/system.slice/docker.service\n", None),
            ("0::/../docker-abc.scope\n", None),
            ("4:memory:/docker/abc\n", None),
        ] {
            fs::write(folder.join("cgroup"), cgroups).unwrap();
            let found = place_of(proc.path(), 7, "abc").ok();
            assert_eq!(found, expected.map(PathBuf::from), "{cgroups}");
        }
    }

    #[test]
    fn only_folders_that_are_jobs_alone_become_idle() {
        let own = Path::new("sela.slice/sela-jobs.slice/docker-abc.scope");
        let levels: Vec<_> = own.ancestors().filter(|level| is_jobs_only(level, own)).collect();
        assert_eq!(levels.len(), 3);
        let own = Path::new("machine.slice/libpod-abc.scope");
        assert_eq!(own.ancestors().filter(|level| is_jobs_only(level, own)).count(), 1);
    }
}
