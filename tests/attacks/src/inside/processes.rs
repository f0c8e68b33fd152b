//! Processes of the owner's and the job's own init: their secrets, their memory, their lives. And what /proc and /sys tell.

use super::{ask, at, at_mut, child, owned, wait_for};
use crate::arena::Side;
use crate::catalogue::Control::{Bare, Emulated};
use crate::catalogue::Probe;
use crate::catalogue::promise::{AS_A_WHOLE, MEMORY, NO_RIGHTS, OWN_CALLS, OWN_PROCESSES};
use crate::verdict::{Held, Outcome};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;

const SECRETS: &str = "secrets in /proc and /sys";

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside(
        SECRETS,
        "a job finds a program of the owner's in the list of processes",
        OWN_PROCESSES,
        Bare,
        |arena| {
            let mut count = 0;
            for entry in fs::read_dir("/proc")?.flatten() {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                count += u32::from(!line.is_empty());
                if String::from_utf8_lossy(&line).contains(&arena.owner_word) {
                    return Ok(format!("process {}", entry.file_name().display()));
                }
            }
            Err(Held::nothing(format!("{count} processes, all of them its own")))
        },
    ),
    Probe::inside(
        SECRETS,
        "a job reads the environment of a program of the owner's",
        OWN_PROCESSES,
        Bare,
        |arena| {
            let environment = fs::read(format!("/proc/{}/environ", arena.owner_pid))?;
            if String::from_utf8_lossy(&environment).contains(&format!("OWNER_TOKEN={}", arena.secret)) {
                Ok("read the owner's token".to_owned())
            } else {
                Err(Held::nothing("another process has that number"))
            }
        },
    ),
    Probe::inside(
        SECRETS,
        "a job reads the environment of its first process",
        OWN_PROCESSES,
        Bare,
        |arena| opened(&format!("/proc/{}/environ", arena.first_pid)),
    ),
    Probe::inside(
        SECRETS,
        "a job opens the memory of its first process",
        OWN_PROCESSES,
        Bare,
        |arena| {
            File::open(format!("/proc/{}/mem", arena.first_pid))?;
            Ok("opened it".to_owned())
        },
    ),
    Probe::inside(
        SECRETS,
        "a job opens the program file of its first process",
        OWN_PROCESSES,
        Bare,
        |arena| opened(&format!("/proc/{}/exe", arena.first_pid)),
    ),
    Probe::inside(
        SECRETS,
        "a job lists the descriptors of its first process",
        OWN_PROCESSES,
        Bare,
        |arena| {
            let count = fs::read_dir(format!("/proc/{}/fd", arena.first_pid))?.count();
            Ok(format!("{count} descriptors"))
        },
    ),
    Probe::inside(
        SECRETS,
        "a job counts the machine's interrupts",
        OWN_PROCESSES,
        Bare,
        |_| opened("/proc/interrupts"),
    ),
    Probe::inside(
        SECRETS,
        "a job reads the machine's kernel keys",
        OWN_PROCESSES,
        Bare,
        |_| opened("/proc/keys"),
    ),
    Probe::inside(
        SECRETS,
        "a job reads where the kernel lies in memory",
        OWN_PROCESSES,
        Bare,
        |_| {
            let symbols = fs::read_to_string("/proc/kallsyms").map_err(absent_is_lacking)?;
            match symbols.lines().find(|line| !line.starts_with("0000000000000000 ")) {
                Some(line) => Ok(line.to_owned()),
                None => Err(Held::nothing("every address reads 0")),
            }
        },
    ),
    Probe::inside(
        SECRETS,
        "a job reads the kernel's log by the call for it",
        OWN_CALLS,
        Bare,
        |_| {
            const READ_ALL: libc::c_long = 3;
            let mut text = vec![0_u8; 4096];
            let count = ask(libc::SYS_syslog, &[READ_ALL, at_mut(text.as_mut_slice()), 4096])?;
            Ok(format!("{count} bytes"))
        },
    ),
    Probe::inside(
        SECRETS,
        "a job reads the machine's devices in /sys",
        OWN_PROCESSES,
        Bare,
        |_| {
            let count = fs::read_dir("/sys/class")?.count();
            if count == 0 {
                return Err(Held::nothing("/sys is empty"));
            }
            Ok(format!("{count} classes of devices"))
        },
    ),
    Probe::inside(SECRETS, "a job reaches the cgroups that limit it", MEMORY, Bare, |_| {
        for folder in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"] {
            if fs::metadata(format!("{folder}/cgroup.procs")).is_ok() {
                return Ok(folder.to_owned());
            }
        }
        Err(Held::nothing("there are none in its /sys"))
    }),
    Probe::inside(
        SECRETS,
        "a job tells the kernel which program to run as root for a crash",
        OWN_PROCESSES,
        Bare,
        |_| {
            // The helper of the class of escapes by core_pattern, release_agent and modprobe. Opened only, never written.
            File::options().write(true).open("/proc/sys/kernel/core_pattern")?;
            Ok("may write /proc/sys/kernel/core_pattern".to_owned())
        },
    ),
    Probe::inside(
        SECRETS,
        "a job opens the door by which the machine is restarted",
        OWN_PROCESSES,
        Emulated,
        |_| {
            let file = File::options().write(true).open("/proc/sysrq-trigger")?;
            is_of_proc(&file)?;
            Ok("may write /proc/sysrq-trigger".to_owned())
        },
    ),
    Probe::inside(
        SECRETS,
        "a job makes itself the last that the machine kills when memory runs out",
        NO_RIGHTS,
        Bare,
        |_| {
            if fs::read_to_string("/proc/self/status")?
                .lines()
                .any(lacks_resource_right)
            {
                // Some machines' root may not either: then nothing is shown here.
                let lower = fs::write("/proc/self/oom_score_adj", "-1000");
                return Err(lower.err().map_or_else(
                    || Held::nothing("lowered without a right"),
                    |_| io::Error::from_raw_os_error(libc::EOPNOTSUPP).into(),
                ));
            }
            fs::write("/proc/self/oom_score_adj", "-1000")?;
            Ok("oom_score_adj is -1000".to_owned())
        },
    ),
    Probe::inside("ptrace", "a job traces its first process", OWN_CALLS, Bare, |arena| {
        const SEIZE: libc::c_long = 0x4206;
        ask(libc::SYS_ptrace, &[SEIZE, libc::c_long::from(arena.first_pid)])?;
        Ok("attached".to_owned())
    }),
    Probe::inside("ptrace", "a job traces a child of its own", OWN_CALLS, Bare, |_| {
        let errno = status_of(child(|| match ask(libc::SYS_ptrace, &[0]) {
            Ok(_) => 0,
            Err(error) => error.raw_os_error().unwrap_or(255),
        })?)?;
        went_through(errno, "a child is traced")
    }),
    Probe::inside(
        "ptrace",
        "a job reads another process's memory by the call for it",
        OWN_CALLS,
        Bare,
        |_| {
            let (read, mut word) = (*b"memory", *b"......");
            let sleeper = child(|| {
                std::thread::park();
                0
            })?;
            let local = libc::iovec {
                iov_base: word.as_mut_ptr().cast(),
                iov_len: word.len(),
            };
            let remote = libc::iovec {
                iov_base: read.as_ptr().cast_mut().cast(),
                iov_len: read.len(),
            };
            let answer = ask(
                libc::SYS_process_vm_readv,
                &[libc::c_long::from(sleeper), at(&local), 1, at(&remote), 1, 0],
            );
            // SAFETY: the call takes numbers only.
            unsafe { libc::kill(sleeper, libc::SIGKILL) };
            wait_for(sleeper)?;
            answer?;
            Ok(String::from_utf8_lossy(&word).into_owned())
        },
    ),
    Probe::inside(
        "ptrace",
        "a job takes a descriptor out of its first process",
        OWN_CALLS,
        Bare,
        |arena| {
            let of_process = owned(ask(libc::SYS_pidfd_open, &[libc::c_long::from(arena.first_pid), 0])?)?;
            let taken = ask(
                libc::SYS_pidfd_getfd,
                &[libc::c_long::from(of_process.as_raw_fd()), 0, 0],
            )?;
            drop(owned(taken)?);
            Ok("took its standard input".to_owned())
        },
    ),
    Probe::inside(
        "ptrace",
        "a job compares what two processes have open",
        OWN_CALLS,
        Bare,
        |arena| {
            let first = libc::c_long::from(arena.first_pid);
            ask(libc::SYS_kcmp, &[first, first, 0, 0, 0])?;
            Ok("kcmp answers".to_owned())
        },
    ),
    Probe::inside(
        "signals",
        "a job kills a program of the owner's",
        AS_A_WHOLE,
        Bare,
        |arena| {
            let pid = match arena.side {
                Side::Job => arena.first_pid,
                Side::Control => arena.spare_pid,
            };
            ask(
                libc::SYS_kill,
                &[libc::c_long::from(pid), libc::c_long::from(libc::SIGKILL)],
            )?;
            // A first process takes no signal from inside that it has no handler for, although the call says that it went well.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                Ok("it is dead".to_owned())
            } else {
                Err(Held::contained(
                    "the first process of the job lives on, and there is no other of the owner's",
                ))
            }
        },
    ),
    Probe::inside(
        "signals",
        "a job sets a limit on its first process",
        OWN_CALLS,
        Bare,
        |arena| {
            // By a limit on its processor time or memory a job could kill the init that guards it, and blame the node.
            let limit = libc::rlimit {
                rlim_cur: 512,
                rlim_max: 512,
            };
            ask(
                libc::SYS_prlimit64,
                &[
                    libc::c_long::from(arena.first_pid),
                    libc::c_long::from(libc::RLIMIT_NOFILE),
                    at(&limit),
                    0,
                ],
            )?;
            Ok("it may open 512 files now".to_owned())
        },
    ),
];

/// Opened and not empty.
fn opened(path: &str) -> Outcome {
    let bytes = fs::read(path).map_err(absent_is_lacking)?;
    if bytes.is_empty() {
        return Err(Held::nothing(format!("{path} is empty")));
    }
    Ok(format!("{} bytes of {path}", bytes.len()))
}

/// A file of /proc that is not there is a kernel without it.
fn absent_is_lacking(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        io::Error::from_raw_os_error(libc::EOPNOTSUPP)
    } else {
        error
    }
}

/// Bit 24 of the effective set is CAP_SYS_RESOURCE; a job has none at all and is to be refused, so only a root that lacks just this
/// one counts.
fn lacks_resource_right(line: &str) -> bool {
    let set = line
        .strip_prefix("CapEff:")
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set != 0 && set & (1 << 24) == 0)
}

fn is_of_proc(file: &File) -> Result<(), Held> {
    const PROC: libc::c_long = 0x9fa0;
    // SAFETY: plain memory that the call fills.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `answer` lives until the call returns.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut answer) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    if answer.f_type == PROC {
        Ok(())
    } else {
        Err(Held::nothing("another file lies over it"))
    }
}

/// The exit status of a child that ends with 0 or an errno.
fn status_of(pid: libc::pid_t) -> io::Result<i32> {
    wait_for(pid).map(|status| {
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            0
        }
    })
}

fn went_through(errno: i32, what: &str) -> Outcome {
    if errno == 0 {
        Ok(what.to_owned())
    } else {
        Err(io::Error::from_raw_os_error(errno).into())
    }
}
