//! What a job leaves on a machine while it runs, looked for from outside: processes, cgroups, mounts, locks on the card's device
//! node, scratch folders. All of it must be gone when the job is.

use sela_protocol::id::LeaseId;
use std::fmt;
use std::path::{Path, PathBuf};

/// How deep below a cgroup mount `sela-jobs` is looked for: a delegated group of a user's service lies some levels down.
const DEEPEST: usize = 6;

/// Everything that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traces {
    found: Vec<String>,
}

impl Traces {
    /// Looks for what these leases left on this machine. `folder` is the world's own, which every process, mount and file of its
    /// agent names; `own_mount` is a mount that the world itself made in it.
    pub fn of(leases: &[LeaseId], folder: &Path, own_mount: Option<&Path>, nodes: &[PathBuf]) -> Self {
        let mut traces = Self::default();
        for cgroup in cgroups()
            .iter()
            .filter(|cgroup| leases.iter().any(|lease| is_of(cgroup, *lease)))
        {
            traces.add(format_args!(
                "cgroup {} of {:?}",
                cgroup.display(),
                processes_in(cgroup)
            ));
        }
        for pid in all_pids() {
            traces.look_at_process(pid, folder, own_mount);
        }
        for node in nodes {
            for holder in sela_nvml_sim::node::holders(node).unwrap_or_default() {
                traces.add(format_args!("lock of {} MiB by process {}", holder.mib, holder.pid));
            }
        }
        for entry in std::fs::read_dir(folder.join("data/scratch"))
            .into_iter()
            .flatten()
            .flatten()
        {
            traces.add(format_args!("scratch {}", entry.path().display()));
        }
        traces
    }

    /// Whether there is nothing.
    pub fn is_nothing(&self) -> bool {
        self.found.is_empty()
    }

    fn look_at_process(&mut self, pid: u32, folder: &Path, own_mount: Option<&Path>) {
        let folder = folder.to_string_lossy();
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        if command.contains("job-keeper") && String::from_utf8_lossy(&read("environ")).contains(&*folder) {
            self.add(format_args!("process {pid}: {command}"));
        }
        for line in String::from_utf8_lossy(&read("mountinfo"))
            .lines()
            .filter(|line| line.contains(&*folder))
        {
            let is_own = own_mount.is_some_and(|own| line.split(' ').nth(4) == own.to_str());
            // Every process of the machine's own mount namespace would show the same mount.
            if !is_own && !self.found.iter().any(|found| found.ends_with(line)) {
                self.add(format_args!("mount seen by {pid} ({command}): {line}"));
            }
        }
    }

    fn add(&mut self, what: fmt::Arguments<'_>) {
        self.found.push(what.to_string());
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.found.is_empty() { "nothing" } else { "" })?;
        out.write_str(&self.found.join("\n"))
    }
}

/// Every job's cgroup on this machine, in every hierarchy.
fn cgroups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), DEEPEST, &mut found);
    found
}

fn walk(folder: &Path, deepest: usize, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if entry.file_name() == "sela-jobs" {
            let agents = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let leases = agents.flat_map(|agent| std::fs::read_dir(agent.path()).into_iter().flatten().flatten());
            found.extend(leases.map(|lease| lease.path()).filter(|path| path.is_dir()));
        } else if deepest > 0 {
            walk(&path, deepest - 1, found);
        }
    }
}

fn is_of(cgroup: &Path, lease: LeaseId) -> bool {
    cgroup.file_name().is_some_and(|name| *name == *lease.to_string())
}

/// The cgroup of a lease's job in the version 2 hierarchy: the one that can freeze.
pub fn cgroup_of(lease: LeaseId) -> Option<PathBuf> {
    cgroups()
        .into_iter()
        .find(|cgroup| is_of(cgroup, lease) && cgroup.join("cgroup.freeze").exists())
}

/// The number behind `key` in a file of a cgroup.
pub fn number_in(cgroup: &Path, file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(cgroup.join(file)).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// The processes of a lease's job, its init first.
pub fn job_pids(lease: LeaseId) -> Vec<u32> {
    cgroup_of(lease).map(|cgroup| processes_in(&cgroup)).unwrap_or_default()
}

fn processes_in(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The keeper that an agent started, by the agent's process id.
pub fn keeper_of(agent: u32) -> Option<u32> {
    all_pids().into_iter().find(|pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{agent}"))
            && String::from_utf8_lossy(&command).contains("job-keeper")
    })
}

fn all_pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
