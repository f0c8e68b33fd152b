//! What a job may try by itself, one file a target. Each attack really attacks: it says that it went through only if it got
//! hold of what it was after. Each is run in a process of its own, and knows nothing of the others.

pub(crate) mod calls;
pub(crate) mod devices;
pub(crate) mod files;
pub(crate) mod image;
pub(crate) mod limits;
pub(crate) mod mounts;
pub(crate) mod network;
pub(crate) mod processes;
pub(crate) mod sockets;

use crate::verdict::Held;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// A system call by its number. What the numbers among the arguments point to is the caller's to keep alive.
fn ask(call: libc::c_long, arguments: &[libc::c_long]) -> io::Result<libc::c_long> {
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    // SAFETY: each caller passes numbers, or addresses of memory of the size that this call reads and writes.
    let answer = unsafe {
        libc::syscall(
            call,
            argument(0),
            argument(1),
            argument(2),
            argument(3),
            argument(4),
            argument(5),
        )
    };
    if answer == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// The address of something, as a call takes it.
fn at<T: ?Sized>(thing: &T) -> libc::c_long {
    std::ptr::from_ref(thing).cast::<u8>() as libc::c_long
}

/// The same of something that the call writes.
fn at_mut<T: ?Sized>(thing: &mut T) -> libc::c_long {
    std::ptr::from_mut(thing).cast::<u8>() as libc::c_long
}

/// A descriptor that a call just gave.
fn owned(descriptor: libc::c_long) -> Result<OwnedFd, Held> {
    let number = i32::try_from(descriptor).map_err(|_| Held::nothing("no descriptor"))?;
    // SAFETY: the kernel just gave it to this process, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Forks; the child runs `work` and ends with what it gives. Gives the child's id.
fn child(work: impl FnOnce() -> i32) -> io::Result<libc::pid_t> {
    // SAFETY: the probe program has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = work();
            // SAFETY: ends this copy without running what belongs to the first.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid),
    }
}

/// Waits for a child; its raw status.
fn wait_for(pid: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` lives until the call returns.
    if unsafe { libc::waitpid(pid, &raw mut status, 0) } == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(status)
    }
}
