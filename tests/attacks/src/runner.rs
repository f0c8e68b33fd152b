//! Carries attacks out, each in a process of its own, and says how each went: one line of JSON an attack. The same code runs
//! inside a job and, as the control, outside of one.

use crate::arena::{Arena, Side};
use crate::catalogue::{Attack, Control, Probe};
use crate::verdict::{Held, Outcome, Said, Seen};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// No attack may take longer, in milliseconds: one that hangs was held by something.
const PATIENCE_MS: i32 = 8_000;

/// The user that a plain program of an image runs as.
pub const PLAIN_USER: u32 = 1000;

/// Carries out these attacks, one after another.
///
/// # Errors
/// Where no process can be made, or `out` cannot be written.
pub fn run(arena: &Arena, probes: &[Probe], mut out: impl Write) -> io::Result<()> {
    for probe in probes {
        let (Attack::Inside(attack) | Attack::InsideAsUser(attack)) = probe.attack else {
            continue;
        };
        let seen = apart(|| {
            prepare(arena, probe.control)
                .map_err(Held::from)
                .and_then(|()| attack(arena))
        })?;
        let said = Said {
            probe: probe.name.to_owned(),
            seen,
        };
        writeln!(out, "{}", serde_json::to_string(&said)?)?;
        out.flush()?;
    }
    Ok(())
}

/// Puts the calling process, which must have one thread, into mount and host name namespaces of its own: what a control does there
/// must not reach the machine.
///
/// # Errors
/// Where this process may not.
pub fn stand_apart() -> io::Result<()> {
    // SAFETY: the calls take numbers and texts that are there for ever.
    unsafe {
        succeed(libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWUTS))?;
        succeed(libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        ))
    }
}

/// Enters what a control is tried in. Nothing to do for a job: it is in it.
fn prepare(arena: &Arena, control: Control) -> io::Result<()> {
    match (arena.side, control) {
        (Side::Job, _) | (Side::Control, Control::Bare | Control::Own) => Ok(()),
        (Side::Control, Control::Emulated) => {
            if arena.module.is_some() {
                Ok(())
            } else {
                // This machine is somebody's: its kernel is not ours to change.
                Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
            }
        }
        (Side::Control, Control::InNetwork) => {
            let Some(network) = &arena.network else {
                return Err(io::Error::other("no network was made for it"));
            };
            let namespace = File::open(network)?;
            // SAFETY: the descriptor is open.
            succeed(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
        }
        (Side::Control, Control::InImage) => enter_image(&arena.image),
    }
}

/// As the simplest of containers: the image's folder as the root, and a plain user.
fn enter_image(image: &Path) -> io::Result<()> {
    let image = CString::new(image.as_os_str().as_bytes())?;
    // SAFETY: texts that live until the calls return, and numbers.
    unsafe {
        succeed(libc::chroot(image.as_ptr()))?;
        succeed(libc::chdir(c"/".as_ptr()))?;
        succeed(libc::setgroups(0, std::ptr::null()))?;
        succeed(libc::setgid(PLAIN_USER))?;
        succeed(libc::setuid(PLAIN_USER))
    }
}

fn succeed(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs one attack in a child, and says how it went, or how the child died.
fn apart(attack: impl FnOnce() -> Outcome) -> io::Result<Seen> {
    let mut ends = [0; 2];
    // SAFETY: the call writes both numbers.
    succeed(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: fresh descriptors that nothing else has.
    let (reads, writes) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: this program has one thread.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            drop(reads);
            let seen = Seen::from(attack());
            let text = serde_json::to_vec(&seen).unwrap_or_default();
            drop(File::from(writes).write_all(&text));
            // SAFETY: ends this copy without running what belongs to the first.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    };
    drop(writes);
    let mut waiting = libc::pollfd {
        fd: reads.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    let is_late = unsafe { libc::poll(&raw mut waiting, 1, PATIENCE_MS) } == 0;
    if is_late {
        // SAFETY: the call takes numbers only.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    let mut text = String::new();
    File::from(reads).read_to_string(&mut text)?;
    let mut status = 0;
    // SAFETY: `status` lives until the call returns.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| Seen::Refused {
        errno: None,
        what: if is_late {
            format!("it hung for {PATIENCE_MS} ms")
        } else if libc::WIFSIGNALED(status) {
            format!("it was killed by signal {}", libc::WTERMSIG(status))
        } else {
            "it ended without a word".to_owned()
        },
    }))
}
