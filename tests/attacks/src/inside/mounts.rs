//! Mounts, roots and namespaces: what would show a job another machine than its own.

use super::{ask, at, child, owned, wait_for};
use crate::arena::{Arena, Side};
use crate::catalogue::Control::Bare;
use crate::catalogue::Probe;
use crate::catalogue::promise::{IMAGE, OWN_CALLS, OWN_IDS};
use crate::verdict::{Held, Outcome};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;

const NAMESPACES: &str = "nested namespaces";

pub(crate) const PROBES: &[Probe] = &[
    Probe::inside("mount", "a job mounts a file system", OWN_CALLS, Bare, |arena| {
        mount(Some(c"tmpfs"), &place(arena)?, Some(c"tmpfs"), 0)?;
        Ok("mounted a tmpfs".to_owned())
    }),
    Probe::inside("mount", "a job mounts by the newer calls", OWN_CALLS, Bare, |_| {
        let context = owned(ask(libc::SYS_fsopen, &[at(c"tmpfs"), 0])?)?;
        const CREATE: libc::c_long = 6;
        let number = libc::c_long::from(context.as_raw_fd());
        ask(libc::SYS_fsconfig, &[number, CREATE, 0, 0, 0])?;
        drop(owned(ask(libc::SYS_fsmount, &[number, 0, 0])?)?);
        Ok("made a mount".to_owned())
    }),
    Probe::inside("mount", "a job clones a tree of mounts", OWN_CALLS, Bare, |_| {
        const CLONE: libc::c_long = 1;
        let tree = ask(
            libc::SYS_open_tree,
            &[libc::c_long::from(libc::AT_FDCWD), at(c"/proc"), CLONE],
        )?;
        drop(owned(tree)?);
        Ok("cloned /proc".to_owned())
    }),
    Probe::inside("mount", "a job makes its root writable", IMAGE, Bare, |_| {
        mount(None, c"/", None, libc::MS_REMOUNT | libc::MS_BIND)?;
        Ok("remounted /".to_owned())
    }),
    Probe::inside(
        "mount",
        "a job shows itself a device of another mount",
        OWN_CALLS,
        Bare,
        |arena| {
            let target = arena.writable.join("bound");
            File::create(&target)?;
            let name = CString::new(target.as_os_str().as_bytes()).map_err(|_| Held::nothing("no such name"))?;
            mount(Some(c"/dev/null"), &name, None, libc::MS_BIND)?;
            Ok("bound /dev/null elsewhere".to_owned())
        },
    ),
    Probe::inside(
        "mount",
        "a job takes away what covers parts of its /proc",
        OWN_CALLS,
        Bare,
        |arena| {
            if arena.side == Side::Control {
                mount(Some(c"/proc/sys"), c"/proc/sys", None, libc::MS_BIND)?;
            }
            ask(
                libc::SYS_umount2,
                &[at(c"/proc/sys"), libc::c_long::from(libc::MNT_DETACH)],
            )?;
            Ok("uncovered /proc/sys".to_owned())
        },
    ),
    Probe::inside(
        "pivot_root",
        "a job takes another root by pivot_root",
        OWN_CALLS,
        Bare,
        |arena| {
            if arena.side == Side::Control {
                ask(libc::SYS_unshare, &[libc::c_long::from(libc::CLONE_NEWNS)])?;
                let place = place(arena)?;
                mount(Some(c"tmpfs"), &place, Some(c"tmpfs"), 0)?;
                ask(libc::SYS_chdir, &[at(place.as_c_str())])?;
            }
            ask(libc::SYS_pivot_root, &[at(c"."), at(c".")])?;
            Ok("stands in another root".to_owned())
        },
    ),
    Probe::inside(
        "pivot_root",
        "a job takes another root by chroot",
        OWN_CALLS,
        Bare,
        |_| {
            ask(libc::SYS_chroot, &[at(c".")])?;
            Ok("stands in another root".to_owned())
        },
    ),
    Probe::inside(
        NAMESPACES,
        "a job makes a user namespace of its own",
        OWN_IDS,
        Bare,
        |_| unshare(libc::CLONE_NEWUSER),
    ),
    Probe::inside(
        NAMESPACES,
        "a job makes a mount namespace of its own",
        OWN_CALLS,
        Bare,
        |_| unshare(libc::CLONE_NEWNS),
    ),
    Probe::inside(
        NAMESPACES,
        "a job makes a network namespace of its own",
        OWN_CALLS,
        Bare,
        |_| unshare(libc::CLONE_NEWNET),
    ),
    Probe::inside(
        NAMESPACES,
        "a job is born into a user namespace of its own",
        OWN_IDS,
        Bare,
        |_| {
            let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
            born(ask(libc::SYS_clone, &[flags])?)
        },
    ),
    Probe::inside(
        NAMESPACES,
        "a job is born into a user namespace by the newer call",
        OWN_IDS,
        Bare,
        |_| {
            // struct clone_args of clone3(2): flags first, exit_signal fifth.
            let mut arguments = [0_u64; 11];
            arguments[0] = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
            arguments[4] = u64::from(libc::SIGCHLD.unsigned_abs());
            born(ask(libc::SYS_clone3, &[at(&arguments), 88])?)
        },
    ),
    Probe::inside(
        NAMESPACES,
        "a job enters the namespaces of its first process",
        OWN_CALLS,
        Bare,
        |arena| {
            let network = File::open(format!("/proc/{}/ns/net", arena.first_pid))?;
            ask(
                libc::SYS_setns,
                &[
                    libc::c_long::from(network.as_raw_fd()),
                    libc::c_long::from(libc::CLONE_NEWNET),
                ],
            )?;
            Ok("entered its network".to_owned())
        },
    ),
    Probe::inside(
        NAMESPACES,
        "a job enters a namespace that it holds already",
        OWN_CALLS,
        Bare,
        |_| {
            let names = File::open("/proc/self/ns/uts")?;
            ask(
                libc::SYS_setns,
                &[
                    libc::c_long::from(names.as_raw_fd()),
                    libc::c_long::from(libc::CLONE_NEWUTS),
                ],
            )?;
            Ok("setns answers".to_owned())
        },
    ),
];

pub(super) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
) -> std::io::Result<()> {
    let text = |text: Option<&CStr>| text.map_or(0, at);
    let flags = libc::c_long::try_from(flags).unwrap_or(0);
    ask(libc::SYS_mount, &[text(source), at(target), text(kind), flags, 0]).map(drop)
}

/// A folder to mount on.
fn place(arena: &Arena) -> Result<CString, Held> {
    let place = arena.writable.join("mounted");
    fs::create_dir_all(&place)?;
    CString::new(place.as_os_str().as_bytes()).map_err(|_| Held::nothing("no such name"))
}

fn unshare(flag: libc::c_int) -> Outcome {
    // In a child: what comes after must find this process as it was.
    let status = wait_for(child(|| match ask(libc::SYS_unshare, &[libc::c_long::from(flag)]) {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(255),
    })?)?;
    match libc::WEXITSTATUS(status) {
        0 => Ok("has it".to_owned()),
        errno => Err(std::io::Error::from_raw_os_error(errno).into()),
    }
}

/// The end of a `clone` by hand: the child leaves at once.
fn born(answer: libc::c_long) -> Outcome {
    if answer == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    }
    wait_for(libc::pid_t::try_from(answer).unwrap_or(-1))?;
    Ok("has a child in one".to_owned())
}
