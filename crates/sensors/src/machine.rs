//! What this machine has besides cards: processor, memory, disks, through sysinfo. Read when asked, never watched.

use sela_protocol::units::Bytes;
use std::path::PathBuf;
use sysinfo::{CpuRefreshKind, Disks, MemoryRefreshKind, RefreshKind, System};

/// This machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The processor's name; empty where the system does not tell.
    pub processor: String,
    /// Logical cores.
    pub cores: usize,
    /// Main memory in all.
    pub memory: Bytes,
    /// Main memory that could be used now.
    pub memory_free: Bytes,
    /// Disks that are mounted.
    pub disks: Vec<Disk>,
}

/// One mounted disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Where.
    pub mounted_at: PathBuf,
    /// Its size.
    pub size: Bytes,
    /// What is free on it.
    pub free: Bytes,
}

/// The system does not tell what this machine is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot see this machine's processor, memory or disks: {0}")]
pub struct MachineError(String);

impl From<sysinfo::Error> for MachineError {
    fn from(error: sysinfo::Error) -> Self {
        Self(error.to_string())
    }
}

impl Machine {
    /// Looks once.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn look() -> Result<Self, MachineError> {
        let system = System::new_with_specifics(
            RefreshKind::nothing()
                .with_cpu(CpuRefreshKind::nothing())
                .with_memory(MemoryRefreshKind::nothing().with_ram()),
        )?;
        let disks = Disks::new_with_refreshed_list()?;
        Ok(Self {
            processor: system
                .cpus()
                .first()
                .map(|cpu| cpu.brand().trim().to_owned())
                .unwrap_or_default(),
            cores: system.cpus().len(),
            memory: Bytes(system.total_memory()),
            memory_free: Bytes(system.available_memory()),
            disks: disks
                .iter()
                .map(|disk| Disk {
                    mounted_at: disk.mount_point().to_owned(),
                    size: Bytes(disk.total_space()),
                    free: Bytes(disk.available_space()),
                })
                .collect(),
        })
    }

    /// The disk that holds `path`: the longest mount point above it.
    pub fn disk_of(&self, path: &std::path::Path) -> Option<&Disk> {
        self.disks
            .iter()
            .filter(|disk| path.starts_with(&disk.mounted_at))
            .max_by_key(|disk| disk.mounted_at.as_os_str().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_core_memory_and_a_root_disk() {
        let machine = Machine::look().expect("Linux tells");
        assert!(machine.cores >= 1 && machine.memory.0 > machine.memory_free.0 / 2);
        assert!(machine.memory_free.0 > 0);
    }

    #[test]
    fn the_disk_of_a_path_is_the_nearest_mount_above_it() {
        let disk = |at: &str| Disk {
            mounted_at: at.into(),
            size: Bytes(1),
            free: Bytes(1),
        };
        let machine = Machine {
            processor: String::new(),
            cores: 1,
            memory: Bytes(1),
            memory_free: Bytes(1),
            disks: vec![disk("/"), disk("/home"), disk("/home/a")],
        };
        let found = machine.disk_of(std::path::Path::new("/home/ab/c")).expect("a disk");
        assert_eq!(found.mounted_at, PathBuf::from("/home"));
    }
}
