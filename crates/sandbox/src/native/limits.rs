//! Limits that are a process's own and that its children inherit: files, core dumps, priorities. What a whole job may use is
//! its cgroup's.

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, Limits};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

/// Nice value of a job's processes.
const NICE: i32 = 19;
/// Bytes of a core dump. Not 0: that only keeps dumps out of files, while a machine that hands them to a program (systemd-coredump,
/// apport) would still get a stranger's memory. 1 is the one value at which the kernel gives up before either (core(5)).
const CORE_DUMP: u64 = 1;
/// Class 3 is idle: served when nobody else wants the disk. The kernel takes it shifted by 13 bits.
const IO_PRIORITY_IDLE: libc::c_int = 3 << 13;
const IO_PRIORITY_WHO_PROCESS: libc::c_int = 1;

/// Sets them for the calling process, while it still may, and says how many open files it gave: what was asked for, or what
/// this process may have where that is less (raising it further takes a right that not every agent has).
pub(super) fn apply(limits: &Limits) -> Result<u64, Fault> {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let files = limits.open_files.min(hard);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(files),
            maximum: Some(files),
        },
    )
    .or_fault(FaultCode::LimitDiffers, format_args!("allow {files} open files"))?;
    setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(CORE_DUMP),
            maximum: Some(CORE_DUMP),
        },
    )
    .or_fault(FaultCode::LimitDiffers, "forbid core dumps")?;
    rustix::process::setpriority_process(None, NICE).or_fault(FaultCode::LimitDiffers, "lower the priority")?;
    last_at_the_disk(0)?;
    // When memory runs out on the machine, a stranger's job goes before anything of the owner's.
    fs::write("/proc/self/oom_score_adj", "1000")
        .or_fault(FaultCode::LimitDiffers, "offer the job to the OOM killer first")?;
    Ok(files)
}

/// Has a process, and what it starts from now on, served by the disk when nobody else wants it; 0 is the calling one.
pub(crate) fn last_at_the_disk(process: u32) -> Result<(), Fault> {
    // SAFETY: the call takes three numbers and touches no memory of ours.
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, IO_PRIORITY_WHO_PROCESS, process, IO_PRIORITY_IDLE) };
    if set == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error()).or_fault(FaultCode::LimitDiffers, "lower the disk priority")
    }
}

/// Reads back from the calling process what [`apply`] set.
pub(super) fn verify(open_files: u64) -> Result<(), Fault> {
    for (resource, expected) in [(Resource::Nofile, open_files), (Resource::Core, CORE_DUMP)] {
        let found = getrlimit(resource);
        if found.current != Some(expected) || found.maximum != Some(expected) {
            let message = format!("the limit {resource:?} should be {expected} and reads {found:?}");
            return Err(Fault::new(FaultCode::LimitDiffers, message));
        }
    }
    Ok(())
}
