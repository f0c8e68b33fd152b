//! Limits that a job runs into by itself, and does not survive by luck: it counts how far it came.

use super::ask;
use crate::arena::Arena;
use crate::catalogue::Control::Bare;
use crate::catalogue::Probe;
use crate::catalogue::promise::{IDLE_DISK, MEMORY, SIZES};
use crate::verdict::Held;
use std::fs::{self, File};
use std::io::Write as _;

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside("fd bombs", "a job opens files without end", SIZES, Bare, |arena| {
        let mut held = Vec::new();
        while held.len() as u64 <= arena.open_files {
            match File::open("/dev/null") {
                Ok(file) => held.push(file),
                Err(error) => return Err(Held::contained(format!("{} files, then: {error}", held.len()))),
            }
        }
        Ok(format!("{} files and no end", held.len()))
    }),
    Probe::inside(
        "fd bombs",
        "a job raises its own limit of open files",
        SIZES,
        Bare,
        |_| {
            // From wherever it is down to 512, and up again.
            for (files, is_raise) in [(512, false), (513, true)] {
                let limit = libc::rlimit {
                    rlim_cur: 64,
                    rlim_max: files,
                };
                // SAFETY: the call reads one limit, which lives until it returns.
                if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
                    let error = std::io::Error::last_os_error();
                    if is_raise && lacks_resource_right() {
                        return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP).into());
                    }
                    return Err(error.into());
                }
            }
            Ok("from 512 to 513".to_owned())
        },
    ),
    Probe::inside(
        "tmpfs bombs",
        "a job fills its shared memory without end",
        MEMORY,
        Bare,
        |arena| {
            let path = folder_of_shared_memory(arena).join("sela-attack-big");
            let mut file = File::create(&path)?;
            let part = vec![7; 1 << 20];
            let mut written = 0_u64;
            let end = loop {
                if written > arena.shm_size {
                    break Ok(format!("{written} bytes and no end"));
                }
                match file.write_all(&part) {
                    Ok(()) => written += part.len() as u64,
                    Err(error) => break Err(Held::contained(format!("{written} bytes, then: {error}"))),
                }
            };
            fs::remove_file(&path)?;
            end
        },
    ),
    Probe::inside(
        "priorities",
        "a job takes the disk before everybody else",
        IDLE_DISK,
        Bare,
        |_| {
            // Real time, the highest of it.
            ask(libc::SYS_ioprio_set, &[1, 0, 1 << 13])?;
            Ok("its class is real time".to_owned())
        },
    ),
    Probe::inside(
        "priorities",
        "a job takes the disk as any other program does",
        IDLE_DISK,
        Bare,
        |_| {
            // Best effort, in the middle: what programs have that nobody put into the idle class.
            ask(libc::SYS_ioprio_set, &[1, 0, (2 << 13) | 4])?;
            Ok("its class is best effort".to_owned())
        },
    ),
];

/// The machine's own in a control: a file there counts against nothing.
fn folder_of_shared_memory(_: &Arena) -> std::path::PathBuf {
    "/dev/shm".into()
}

/// Whether this is a root that may not raise limits, as on some rented machines.
fn lacks_resource_right() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set != 0 && set & (1 << 24) == 0)
}
