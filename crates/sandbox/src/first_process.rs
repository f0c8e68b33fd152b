//! What the keeper holds of a job's first process, whoever built the walls around it: the native backend, which forks it, or a
//! container engine, which is asked for it. Limits, freezing and counting are the cgroup's in both; what follows from what the
//! first process says is the keeper's.

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, LogStream};
use crate::native::InitSays;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

/// Takes the next packet of a first process without waiting and gives its length; `None` where there is none yet, an error where there
/// will never be one.
///
/// Linux may say that the other side has gone though its last packet lies there: it looks for a packet, finds none, and asks only then
/// whether the other side is still there, which meanwhile has spoken and left. So it is asked twice.
pub(crate) fn next_packet(channel: impl AsFd, packet: &mut [u8]) -> Result<Option<usize>, Errno> {
    let mut take = || match rustix::net::recv(&channel, &mut *packet, RecvFlags::DONTWAIT) {
        Ok((count, _)) => Ok(Some(count.min(packet.len()))),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    };
    match take()? {
        Some(0) => match take()? {
            Some(0) | None => Err(Errno::PIPE),
            last => Ok(last),
        },
        heard => Ok(heard),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The kernel's window is a few instructions wide: asked once only, about one in four thousand is lost where two processors are free.
    const LIVES: usize = 20_000;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    #[test]
    fn the_last_word_of_one_that_leaves_at_once_is_heard() {
        let (life, theirs) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=LIVES {
                    while life.load(Ordering::Acquire) != number {
                        std::thread::yield_now();
                    }
                    let theirs: OwnedFd = theirs.lock().expect("nobody died").take().expect("it was put there");
                    // Another moment each time, so that some meet the one that matters.
                    (0..number % 300).for_each(|_| std::hint::spin_loop());
                    rustix::net::send(&theirs, b"gone", SendFlags::NOSIGNAL).expect("said");
                }
            });
            let mut lost = 0;
            for number in 1..=LIVES {
                let (ours, end) = pair();
                *theirs.lock().expect("nobody died") = Some(end);
                life.store(number, Ordering::Release);
                let mut packet = [0; 16];
                let heard = (1_u32..).find_map(|looks| {
                    if looks % 1_000 == 0 {
                        std::thread::yield_now();
                    }
                    next_packet(&ours, &mut packet).transpose()
                });
                lost += usize::from(heard != Some(Ok(4)));
            }
            assert_eq!(lost, 0, "of {LIVES}");
        });
    }

    #[test]
    fn one_that_left_without_a_word_is_gone_and_one_that_is_silent_is_not() {
        let (ours, theirs) = pair();
        assert_eq!(next_packet(&ours, &mut [0; 16]), Ok(None));
        drop(theirs);
        assert_eq!(next_packet(&ours, &mut [0; 16]), Err(Errno::PIPE));
    }

    #[test]
    fn a_packet_longer_than_the_room_for_it_is_cut() {
        let (ours, theirs) = pair();
        rustix::net::send(&theirs, &[7; 100], SendFlags::NOSIGNAL).expect("said");
        let mut packet = [0; 16];
        assert_eq!(next_packet(&ours, &mut packet), Ok(Some(16)));
        assert_eq!(packet, [7; 16]);
    }
}
