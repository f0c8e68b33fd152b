//! Namespaces: the process that becomes a job's init is born into new ones, is given its id map, and gives up the rest. All
//! namespaces but the user namespace belong to the machine's own, so that not even a capability inside the job could change
//! a mount, the network or the host name.

use crate::ids::IdRange;
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;

/// The name by which a job knows its machine.
pub(crate) const HOST_NAME: &str = "sela-job";

/// Which side of a fork this is.
pub(crate) enum Side {
    /// The process that called.
    Parent {
        /// Its child.
        child: Pid,
    },
    /// The new process.
    Child,
}

/// Forks a process into new PID, mount, network, IPC and host name namespaces: it is the first process of its PID namespace.
///
/// # Safety
/// The calling process must have one thread only: the child goes on in a copy of it, locks held by other threads included.
pub(crate) unsafe fn fork_isolated() -> io::Result<Side> {
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    // SAFETY: as promised by the caller. No CLONE_VM and no stack: the child runs on its own copy of this one, like fork.
    unsafe { fork_with(flags) }
}

/// Forks as `fork` does, without handlers of other libraries.
///
/// # Safety
/// As [`fork_isolated`].
pub(crate) unsafe fn fork() -> io::Result<Side> {
    // SAFETY: as promised by the caller.
    unsafe { fork_with(0) }
}

/// # Safety
/// As [`fork_isolated`].
unsafe fn fork_with(flags: libc::c_int) -> io::Result<Side> {
    let null = std::ptr::null_mut::<libc::c_void>();
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: all arguments but the flags are null, which every architecture's order of them takes for "as the parent's".
    match unsafe { libc::syscall(libc::SYS_clone, flags, null, null, null, null) } {
        0 => Ok(Side::Child),
        child if child > 0 => i32::try_from(child)
            .ok()
            .and_then(Pid::from_raw)
            .map(|child| Side::Parent { child })
            .ok_or_else(|| io::Error::other("clone gave an impossible process id")),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives a process that has unshared its user namespace its ids. Written by the keeper, which has the right to.
pub(crate) fn write_id_maps(pid: Pid, ids: IdRange) -> io::Result<()> {
    let line = format!("0 {} {}\n", ids.first, ids.count);
    for file in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{file}", pid.as_raw_nonzero()), &line)?;
    }
    Ok(())
}

/// Names the machine and raises the loopback interface: the only one there is.
pub(crate) fn furnish_network() -> io::Result<()> {
    // SAFETY: the pointer and the length are those of one static text.
    if unsafe { libc::sethostname(HOST_NAME.as_ptr().cast(), HOST_NAME.len()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: `ifreq` is plain memory, for which zeroes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = libc::c_char::from_ne_bytes([*byte]);
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives until the call returns.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Leaves the machine's user namespace and hides where its cgroup lies. The id map must be written before ids are set.
///
/// # Safety
/// The calling process must have one thread only.
pub(crate) unsafe fn leave_user_namespace() -> Result<(), Errno> {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: one thread, as promised by the caller; file descriptors and memory stay shared with nobody.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWCGROUP)?;
        unshare_unsafe(UnshareFlags::NEWUSER)
    }
}
