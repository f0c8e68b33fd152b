//! Holds a program at the moment at which it opens something: by the kernel's own permission events (fanotify(7)), so that a test can do
//! what it likes to a program that stands exactly there. Needs root.

use crate::PATIENCE;
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Watches what is opened in some folders, each opening being held until it is answered. Dropped, it lets all through. Who has one must
/// not open anything in those folders.
#[derive(Debug)]
pub struct Gate {
    events: OwnedFd,
}

/// A program that is held. Dropped, it goes on, unless it was killed.
#[derive(Debug)]
pub struct Held<'a> {
    gate: &'a Gate,
    file: OwnedFd,
    /// Its process.
    pub pid: u32,
    /// What it opens.
    pub path: PathBuf,
}

impl Gate {
    /// Begins to hold whoever opens a file or folder that lies in one of `folders` themselves.
    ///
    /// # Errors
    /// Where there is no such folder, or the kernel has no permission events.
    pub fn at(folders: &[PathBuf]) -> anyhow::Result<Self> {
        // SAFETY: plain numbers in, a new descriptor or -1 out.
        let events = unsafe { libc::fanotify_init(libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC, libc::O_RDONLY as u32) };
        let error = || io::Error::last_os_error();
        if events < 0 {
            return Err(error()).context("no permission events");
        }
        // SAFETY: it is new, and nobody else's.
        let events = unsafe { OwnedFd::from_raw_fd(events) };
        for folder in folders {
            let path = CString::new(folder.as_os_str().as_bytes())?;
            let mask = libc::FAN_OPEN_PERM | libc::FAN_ONDIR | libc::FAN_EVENT_ON_CHILD;
            // SAFETY: the path is a C string that outlives the call.
            let marked = unsafe {
                libc::fanotify_mark(
                    events.as_raw_fd(),
                    libc::FAN_MARK_ADD,
                    mask,
                    libc::AT_FDCWD,
                    path.as_ptr(),
                )
            };
            if marked != 0 {
                return Err(error()).with_context(|| format!("{} cannot be watched", folder.display()));
            }
        }
        Ok(Self { events })
    }

    /// Waits for an opening that `wanted` says yes to, by process and path, and holds it. All others go through.
    ///
    /// # Errors
    /// Where none comes for long.
    pub fn hold(&self, what: &str, wanted: impl Fn(u32, &Path) -> bool) -> anyhow::Result<Held<'_>> {
        loop {
            let patience = Timespec {
                tv_sec: PATIENCE.as_secs().try_into()?,
                tv_nsec: 0,
            };
            if poll(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(&patience))? == 0 {
                bail!("waited {} s in vain for {what}", PATIENCE.as_secs());
            }
            let held = self.next()?;
            if wanted(held.pid, &held.path) {
                return Ok(held);
            }
        }
    }

    /// One at a time: the others wait in the kernel.
    fn next(&self) -> anyhow::Result<Held<'_>> {
        let mut event = MaybeUninit::<libc::fanotify_event_metadata>::uninit();
        let size = size_of::<libc::fanotify_event_metadata>();
        // SAFETY: the buffer has that size.
        let count = unsafe { libc::read(self.events.as_raw_fd(), event.as_mut_ptr().cast(), size) };
        if usize::try_from(count).ok() != Some(size) {
            return Err(io::Error::last_os_error()).context("an event does not read");
        }
        // SAFETY: the kernel has just filled all of it.
        let event = unsafe { event.assume_init() };
        // SAFETY: the kernel opened it for us.
        let file = unsafe { OwnedFd::from_raw_fd(event.fd) };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Held {
            gate: self,
            file,
            pid: u32::try_from(event.pid)?,
            path,
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let answer = libc::fanotify_response {
            fd: self.file.as_raw_fd(),
            response: libc::FAN_ALLOW,
        };
        let size = size_of::<libc::fanotify_response>();
        // SAFETY: the answer has that size. One for a program that is dead by now is refused, which is all the same.
        unsafe { libc::write(self.gate.events.as_raw_fd(), (&raw const answer).cast(), size) };
    }
}
