//! Wipes all of a card's memory that is free, before a job gets the card: what its owner's programs and the last tenant left there
//! is nobody's to read. Done by a process of its own, forked from the keeper and with no rights over this machine, since it runs
//! the driver's library, which may hang or crash. When it is asked for, and what follows from a failure, is the keeper's.
//!
//! What other programs hold at that moment is theirs, and stays. How the driver is told is in `cuda`.

mod cuda;

use crate::card::CardWipe;
use crate::error::OrFault as _;
use crate::ids::IdRange;
use crate::keeper::wire::{Fault, FaultCode};
use crate::native::{Side, close_range, fork};
use cuda::Driver;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Gid, Pid, PidfdFlags, Signal, Uid, WaitOptions};
use rustix::time::Timespec;
use sela_protocol::confidential::Confidential;
use sela_protocol::units::Bytes;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use zeroize::Zeroize as _;

/// Nice value: that of any program. The keeper's own is lower.
const NICE: i32 = 0;

/// How long the kernel may take to end it: one that sits in a driver's call is not ended before that returns.
const LAST_BREATH: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wiped {
    /// Memory that was free.
    pub(crate) free: Bytes,
    /// Memory of it that was set to zero.
    pub(crate) wiped: Bytes,
}

/// What it says at its end.
type Answer = Result<Wiped, String>;

/// The keeper's hold of the process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Wiper {
    pid: Pid,
    pidfd: OwnedFd,
    goes: OwnedFd,
    answer: OwnedFd,
    said: Vec<u8>,
}

impl Wiper {
    /// Forks it; it waits to be told to [`go_on`](Self::go_on).
    ///
    /// # Safety
    /// The calling process must have one thread only.
    pub(crate) unsafe fn begin(wipe: &CardWipe, ids: IdRange, confidential: &mut Confidential) -> Result<Self, Fault> {
        let what = "start the wiping of the card's memory";
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).or_fault(FaultCode::Isolation, what);
        let ((answer, says), (waits, goes)) = (pipe()?, pipe()?);
        // SAFETY: one thread, as promised by the caller.
        match unsafe { fork() }.or_fault(FaultCode::Isolation, what)? {
            Side::Child => {
                // It runs a driver's library, which has no use for what only the job may read.
                confidential.secrets.clear();
                confidential.result_key.zeroize();
                let work = std::panic::AssertUnwindSafe(|| work(wipe, ids, &says, &waits));
                let answer = std::panic::catch_unwind(work).unwrap_or_else(|_| Err("it panicked".to_owned()));
                let _ = rustix::io::write(&says, &serde_json::to_vec(&answer).unwrap_or_default());
                // SAFETY: ends this copy of the keeper without running what was meant for the keeper's own end.
                unsafe { libc::_exit(0) }
            }
            Side::Parent { child } => {
                rustix::io::ioctl_fionbio(&answer, true).or_fault(FaultCode::Isolation, what)?;
                let pidfd = rustix::process::pidfd_open(child, PidfdFlags::empty())
                    .or_fault(FaultCode::Isolation, "hold on to the wiping of the card's memory")?;
                Ok(Self {
                    pid: child,
                    pidfd,
                    goes,
                    answer,
                    said: Vec::new(),
                })
            }
        }
    }

    /// As this machine sees it.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Lets it begin.
    pub(crate) fn go_on(&self) -> Result<(), Fault> {
        let told = rustix::io::write(&self.goes, b"g").map(drop);
        told.or_fault(FaultCode::CardNotWiped, "tell the wiping of the card's memory to begin")
    }

    /// Becomes readable when it says something, or is dead.
    pub(crate) fn answer(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }

    /// How it went, once it has: what it wiped, or why it could not.
    pub(crate) fn outcome(&mut self) -> Option<Answer> {
        let mut part = [0; 4096];
        loop {
            match rustix::io::read(&self.answer, &mut part) {
                Ok(0) => {
                    let said = serde_json::from_slice::<Answer>(&self.said);
                    return Some(said.unwrap_or_else(|_| Err("the driver's library ended it".to_owned())));
                }
                Ok(count) => self.said.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(error) => return Some(Err(error.to_string())),
            }
        }
    }

    /// Ends it; whether it is dead. Not yet forgotten by the kernel: whoever has just read in the driver's list that it holds the
    /// card can still see that it was a job's.
    pub(crate) fn end(&self) -> bool {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let mut dead = [PollFd::new(&self.pidfd, PollFlags::IN)];
        loop {
            match poll(&mut dead, Some(&LAST_BREATH)) {
                Ok(count) => return count > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Wiper {
    fn drop(&mut self) {
        // One that does not die is reaped by the system, once this process is gone, too.
        self.end();
        let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
    }
}

/// In the child.
fn work(wipe: &CardWipe, ids: IdRange, says: &OwnedFd, waits: &OwnedFd) -> Answer {
    keep_only([says.as_raw_fd(), waits.as_raw_fd()]);
    if rustix::io::read(waits, &mut [0; 1]) != Ok(1) {
        return Err("the keeper is gone".to_owned());
    }
    // SAFETY: this process has one thread, which has not loaded the driver yet.
    unsafe { furnish_environment(wipe) };
    let driver = Driver::load(&wipe.library).map_err(|error| error.to_string())?;
    give_up_rights(ids).map_err(|error| format!("it could not give up its rights: {error}"))?;
    driver.wipe(&wipe.card).map_err(|error| error.to_string())
}

/// Of the keeper's descriptors only these stay open.
fn keep_only(mut kept: [RawFd; 2]) {
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    kept.sort_unstable();
    let [low, high] = kept;
    close_range(3, low - 1);
    close_range(low + 1, high - 1);
    close_range(high + 1, RawFd::MAX);
}

/// The driver is told by variables which card it is about, and is to see none of the agent's.
///
/// # Safety
/// The calling process must have one thread only.
unsafe fn furnish_environment(wipe: &CardWipe) {
    let lab = wipe
        .lab
        .as_ref()
        .map(|folder| ("SELA_NVML_SIM_DIR", folder.as_os_str().to_owned()));
    let wanted = [
        // No other card is woken up, and none can be wiped by mistake.
        ("CUDA_VISIBLE_DEVICES", wipe.card.0.clone().into()),
        // It would be written to a folder of the user's.
        ("CUDA_CACHE_DISABLE", "1".into()),
    ];
    let names: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    #[expect(
        clippy::disallowed_methods,
        reason = "the driver is told by variables only, and this process has no thread but this one"
    )]
    // SAFETY: one thread, as promised by the caller.
    unsafe {
        for name in names {
            std::env::remove_var(name);
        }
        for (name, value) in wanted.into_iter().chain(lab) {
            std::env::set_var(name, value);
        }
    }
}

/// Nobody's ids, no capability, none to be had, and no core dump.
fn give_up_rights(ids: IdRange) -> rustix::io::Result<()> {
    // The last of the ids that are jobs': nothing belongs to it, not even an image's files.
    let nobody = ids.outside(ids.count - 1).ok_or(Errno::INVAL)?;
    rustix::process::setpriority_process(None, NICE)?;
    rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    let (user, group) = (Uid::from_raw(nobody), Gid::from_raw(nobody));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    let none = rustix::thread::CapabilitySet::empty();
    let none = rustix::thread::CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_capabilities(None, none)?;
    rustix::thread::set_no_new_privs(true)?;
    // Last: changing ids forgets it. A wiping whose keeper is gone holds a card for nobody.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
}
