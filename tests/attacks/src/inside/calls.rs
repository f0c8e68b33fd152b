//! Calls that widen what a job can reach of the kernel, each asked for so that it would do its work if it were not refused.

use super::{ask, at, at_mut, owned};
use crate::arena::{Arena, Side};
use crate::catalogue::Control::{Bare, Emulated};
use crate::catalogue::Probe;
use crate::catalogue::promise::{NO_RIGHTS, NO_SWAP, OWN_CALLS};
use crate::verdict::{Held, Outcome};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside(
        "keyctl",
        "a job keeps a key in the kernel's keyring",
        OWN_CALLS,
        Bare,
        |_| {
            const PROCESS_KEYRING: libc::c_long = -2;
            let key = ask(
                libc::SYS_add_key,
                &[at(c"user"), at(c"sela-attack"), at(c"x"), 1, PROCESS_KEYRING],
            )?;
            Ok(format!("key {key}"))
        },
    ),
    Probe::inside("keyctl", "a job finds the session keyring", OWN_CALLS, Bare, |_| {
        const GET_KEYRING_ID: libc::c_long = 0;
        const SESSION_KEYRING: libc::c_long = -3;
        let ring = ask(libc::SYS_keyctl, &[GET_KEYRING_ID, SESSION_KEYRING, 1])?;
        Ok(format!("keyring {ring}"))
    }),
    Probe::inside(
        "bpf",
        "a job makes a map for a program in the kernel",
        OWN_CALLS,
        Bare,
        |_| {
            // union bpf_attr of BPF_MAP_CREATE: an array of one number.
            let mut attributes = [0_u32; 18];
            attributes[..4].copy_from_slice(&[2, 4, 4, 1]);
            drop(owned(ask(libc::SYS_bpf, &[0, at(&attributes), 72])?)?);
            Ok("has a map".to_owned())
        },
    ),
    Probe::inside(
        "perf",
        "a job measures the kernel by its counters",
        OWN_CALLS,
        Bare,
        |_| {
            // struct perf_event_attr: software, 112 bytes long, the processor's clock.
            let mut attributes = [0_u32; 28];
            attributes[..2].copy_from_slice(&[1, 112]);
            drop(owned(ask(
                libc::SYS_perf_event_open,
                &[at(&attributes), 0, -1, -1, 0],
            )?)?);
            Ok("has a counter".to_owned())
        },
    ),
    Probe::inside(
        "io_uring",
        "a job asks for rings of requests to the kernel",
        OWN_CALLS,
        Bare,
        |_| {
            let mut parameters = [0_u8; 120];
            drop(owned(ask(libc::SYS_io_uring_setup, &[1, at_mut(&mut parameters)])?)?);
            Ok("has a ring".to_owned())
        },
    ),
    Probe::inside(
        "userfaultfd",
        "a job handles its own page faults by the call",
        OWN_CALLS,
        Bare,
        |_| {
            drop(owned(ask(
                libc::SYS_userfaultfd,
                &[libc::c_long::from(libc::O_CLOEXEC)],
            )?)?);
            Ok("has a userfaultfd".to_owned())
        },
    ),
    Probe::inside(
        "userfaultfd",
        "a job handles its own page faults by the device",
        OWN_CALLS,
        Bare,
        |arena| {
            File::open("/dev/userfaultfd").map_err(|error| lacking_outside(arena, error))?;
            Ok("opened /dev/userfaultfd".to_owned())
        },
    ),
    Probe::inside("kexec", "a job replaces the kernel", OWN_CALLS, Emulated, |_| {
        // No segments: forgets what was loaded, which is nothing, and asks for the same right.
        ask(libc::SYS_kexec_load, &[0, 0, 0, 0])?;
        Ok("kexec_load answers".to_owned())
    }),
    Probe::inside(
        "modules",
        "a job loads a module by its bytes",
        OWN_CALLS,
        Emulated,
        |arena| {
            let module = module(arena)?;
            ask(
                libc::SYS_init_module,
                &[
                    at(module.as_slice()),
                    libc::c_long::try_from(module.len()).unwrap_or(0),
                    at(c""),
                ],
            )?;
            Ok("it is loaded".to_owned())
        },
    ),
    Probe::inside("modules", "a job unloads a module", OWN_CALLS, Emulated, |arena| {
        let module = module(arena)?;
        // What the probe before loaded is what this one unloads; where it is not there, it is loaded first.
        drop(ask(
            libc::SYS_init_module,
            &[
                at(module.as_slice()),
                libc::c_long::try_from(module.len()).unwrap_or(0),
                at(c""),
            ],
        ));
        ask(
            libc::SYS_delete_module,
            &[at(c"dummy"), libc::c_long::from(libc::O_NONBLOCK)],
        )?;
        Ok("it is gone".to_owned())
    }),
    Probe::inside(
        "modules",
        "a job loads a module by a descriptor",
        OWN_CALLS,
        Emulated,
        |arena| {
            let path = arena.writable.join("module.ko");
            fs::write(&path, module(arena)?)?;
            let file = File::open(&path)?;
            ask(
                libc::SYS_finit_module,
                &[libc::c_long::from(file.as_raw_fd()), at(c""), 0],
            )?;
            Ok("it is loaded".to_owned())
        },
    ),
    Probe::inside(
        "reboot",
        "a job changes what the keys for a restart do",
        OWN_CALLS,
        Emulated,
        |_| {
            // SAFETY: the call takes a number.
            if unsafe { libc::reboot(libc::RB_DISABLE_CAD) } != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            Ok("reboot answers".to_owned())
        },
    ),
    Probe::inside(
        "personality",
        "a job switches off the random layout of memory",
        OWN_CALLS,
        Bare,
        |_| {
            ask(libc::SYS_personality, &[libc::c_long::from(libc::ADDR_NO_RANDOMIZE)])?;
            Ok("memory is laid out the same each time".to_owned())
        },
    ),
    #[cfg(target_arch = "x86_64")]
    Probe::inside(
        "old calls",
        "a job reaches the kernel by its 32-bit door",
        OWN_CALLS,
        Bare,
        by_the_old_door,
    ),
    #[cfg(target_arch = "x86_64")]
    Probe::inside(
        "old calls",
        "a job changes its table of segments",
        OWN_CALLS,
        Bare,
        |_| {
            let mut table = [0_u8; 64];
            ask(libc::SYS_modify_ldt, &[0, at_mut(&mut table), 64])?;
            Ok("modify_ldt answers".to_owned())
        },
    ),
    #[cfg(target_arch = "x86_64")]
    Probe::inside(
        "old calls",
        "a job asks for the processor's ports",
        OWN_CALLS,
        Bare,
        |_| {
            ask(libc::SYS_iopl, &[3])?;
            Ok("may use every port".to_owned())
        },
    ),
    Probe::inside(
        "accounting",
        "a job switches the accounting of processes",
        OWN_CALLS,
        Bare,
        |_| {
            ask(libc::SYS_acct, &[0])?;
            Ok("acct answers".to_owned())
        },
    ),
    Probe::inside(
        "watching files",
        "a job watches what all programs open",
        OWN_CALLS,
        Bare,
        |_| {
            drop(owned(ask(libc::SYS_fanotify_init, &[0, 0])?)?);
            Ok("has a fanotify".to_owned())
        },
    ),
    Probe::inside("terminals", "a job types into a terminal", OWN_CALLS, Bare, |arena| {
        let terminal = match (File::options().read(true).write(true).open("/dev/ptmx"), arena.side) {
            (Ok(terminal), _) => Some(terminal),
            (Err(error), Side::Control) => return Err(lacking_outside(arena, error).into()),
            // Whatever it has, the request itself must be refused.
            (Err(_), Side::Job) => None,
        };
        let number = terminal
            .as_ref()
            .map_or(libc::STDOUT_FILENO, |terminal| terminal.as_raw_fd());
        ask(
            libc::SYS_ioctl,
            &[
                libc::c_long::from(number),
                libc::c_long::try_from(libc::TIOCSTI).unwrap_or(0),
                at(b"x"),
            ],
        )?;
        Ok("typed a letter".to_owned())
    }),
    Probe::inside(
        "clock and host name",
        "a job moves the machine's clock",
        OWN_CALLS,
        Bare,
        |_| {
            // SAFETY: plain memory, for which zeroes are valid.
            let mut change: libc::timex = unsafe { std::mem::zeroed() };
            const SET_OFFSET: libc::c_uint = 0x0100;
            // By nothing at all, which takes the same right.
            change.modes = SET_OFFSET;
            ask(
                libc::SYS_clock_adjtime,
                &[libc::c_long::from(libc::CLOCK_REALTIME), at_mut(&mut change)],
            )?;
            Ok("moved it by nothing".to_owned())
        },
    ),
    Probe::inside(
        "clock and host name",
        "a job sets the machine's time zone",
        OWN_CALLS,
        Bare,
        |_| {
            let mut zone = [0_i32; 2];
            ask(libc::SYS_gettimeofday, &[0, at_mut(&mut zone)])?;
            ask(libc::SYS_settimeofday, &[0, at(&zone)])?;
            Ok("set it to what it was".to_owned())
        },
    ),
    Probe::inside(
        "clock and host name",
        "a job renames the machine",
        OWN_CALLS,
        Bare,
        |_| {
            ask(libc::SYS_sethostname, &[at(c"mine"), 4])?;
            Ok("it is called mine".to_owned())
        },
    ),
    Probe::inside(
        "clock and host name",
        "a job renames the machine's domain",
        OWN_CALLS,
        Bare,
        |_| {
            ask(libc::SYS_setdomainname, &[at(c"mine"), 4])?;
            Ok("it is called mine".to_owned())
        },
    ),
    Probe::inside("swap", "a job turns on a swap of its own", NO_SWAP, Bare, swap_on),
    Probe::inside(
        "priorities",
        "a job asks for the processor before everybody else",
        NO_RIGHTS,
        Bare,
        |_| {
            let first = 1_i32;
            ask(
                libc::SYS_sched_setscheduler,
                &[0, libc::c_long::from(libc::SCHED_FIFO), at(&first)],
            )?;
            Ok("runs in real time".to_owned())
        },
    ),
    Probe::inside(
        "priorities",
        "a job takes back its low priority",
        NO_RIGHTS,
        Bare,
        |_| {
            ask(libc::SYS_setpriority, &[0, 0, -5])?;
            Ok("its nice value is -5".to_owned())
        },
    ),
];

/// A file that is not there outside either is a kernel without it.
fn lacking_outside(arena: &Arena, error: std::io::Error) -> std::io::Error {
    if arena.side == Side::Control && error.kind() == std::io::ErrorKind::NotFound {
        std::io::Error::from_raw_os_error(libc::ENODEV)
    } else {
        error
    }
}

fn module(arena: &Arena) -> Result<Vec<u8>, Held> {
    match (&arena.module, arena.side) {
        (Some(path), _) => Ok(fs::read(path)?),
        // The call is refused before it looks at what it was given.
        (None, Side::Job) => Ok(vec![0; 64]),
        (None, Side::Control) => Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP).into()),
    }
}

/// A program for another processor mode: its numbers of calls mean others, which a list of numbers alone would confuse.
#[cfg(target_arch = "x86_64")]
fn by_the_old_door(_: &Arena) -> Outcome {
    const GETPID: libc::c_long = 20;
    let mut answer = GETPID;
    // SAFETY: asks for this process's id by the gate of 32-bit programs, which clobbers what is named.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") answer,
            lateout("r8") _,
            lateout("r9") _,
            lateout("r10") _,
            lateout("r11") _,
        );
    }
    if answer == libc::c_long::from(std::process::id()) {
        Ok("it answers".to_owned())
    } else {
        Err(std::io::Error::from_raw_os_error(i32::try_from(-answer).unwrap_or(libc::ENOSYS)).into())
    }
}

/// A file of ten pages that looks like a swap file (its signature ends the first page). A machine that lives in its memory brings
/// a block device instead.
fn swap_on(arena: &Arena) -> Outcome {
    const PAGE: usize = 4096;
    let file = arena.writable.join("swap");
    let path = match (&arena.swap_device, arena.side) {
        (Some(device), Side::Control) => device.clone(),
        (Some(_) | None, _) => file,
    };
    let mut content = vec![0_u8; 10 * PAGE];
    content[PAGE - 10..PAGE].copy_from_slice(b"SWAPSPACE2");
    // union swap_header: version 1, last page 9.
    content[1024..1032].copy_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0]);
    let mut file = File::create(&path)?;
    file.write_all(&content)?;
    file.sync_all()?;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Held::nothing("no such name"))?;
    match ask(libc::SYS_swapon, &[at(name.as_c_str()), 0]) {
        Ok(_) => {
            ask(libc::SYS_swapoff, &[at(name.as_c_str())])?;
            Ok("ten pages of swap were on".to_owned())
        }
        // A machine that lives in its memory has no file that could be swapped to.
        Err(error) if arena.side == Side::Control && error.raw_os_error() == Some(libc::EINVAL) => {
            Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP).into())
        }
        Err(error) => Err(error.into()),
    }
}
