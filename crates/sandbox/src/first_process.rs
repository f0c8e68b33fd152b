//! What the keeper holds of a job's first process, whoever built the walls around it: the native backend, which forks it, or a
//! container engine, which is asked for it. Limits, freezing and counting are the cgroup's in both; what follows from what the
//! first process says is the keeper's.

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, LogStream};
use crate::native::InitSays;
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// See the module.
pub(crate) trait FirstProcess {
    /// As this machine sees it.
    fn pid(&self) -> u32;

    /// Where the program's outputs are read.
    fn outputs(&mut self) -> &mut Outputs;

    /// Those of them that are open.
    fn open_outputs(&self) -> [Option<BorrowedFd<'_>>; 2];

    /// Becomes readable when it says something, or is dead.
    fn channel(&self) -> BorrowedFd<'_>;

    /// What it said; `None` where it has not said anything, an error where it is dead.
    fn hear(&self) -> Result<Option<InitSays>, Errno>;

    /// Asks the program to save and end: the signal is passed on.
    fn terminate(&self);

    /// Kills it and with it the PID namespace.
    fn kill(&self);

    /// Whether it is dead, and with it everything in its PID namespace.
    fn is_dead(&self) -> bool;

    /// Takes note of its death, so call `kill` before; no zombie stays, and whoever made its walls is told to take them down.
    fn reap(&self);

    /// Whether nothing of the walls is left but the cgroups.
    fn is_removed(&mut self) -> bool;
}

/// The program's two outputs, until each is at its end.
#[derive(Debug)]
pub(crate) struct Outputs {
    out: Option<OwnedFd>,
    err: Option<OwnedFd>,
}

impl Outputs {
    /// Two pipes: the ends that are read, without waiting, and those that the program writes, output first.
    pub(crate) fn pipes() -> Result<(Self, [OwnedFd; 2]), Fault> {
        let what = "make the pipes of a job";
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (out, write_out) = rustix::pipe::pipe_with(flags).or_fault(FaultCode::Isolation, what)?;
        let (err, write_err) = rustix::pipe::pipe_with(flags).or_fault(FaultCode::Isolation, what)?;
        for pipe in [&out, &err] {
            rustix::io::ioctl_fionbio(pipe, true).or_fault(FaultCode::Isolation, what)?;
        }
        let outputs = Self {
            out: Some(out),
            err: Some(err),
        };
        Ok((outputs, [write_out, write_err]))
    }

    /// One of them.
    pub(crate) fn of(&mut self, stream: LogStream) -> &mut Option<OwnedFd> {
        match stream {
            LogStream::Out => &mut self.out,
            LogStream::Err => &mut self.err,
        }
    }

    /// Those that are open.
    pub(crate) fn open(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [&self.out, &self.err].map(|pipe| pipe.as_ref().map(OwnedFd::as_fd))
    }
}
