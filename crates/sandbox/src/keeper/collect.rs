//! Archives what a job leaves, in a process of its own: the keeper must go on listening meanwhile, and whoever reads a
//! stranger's files should have no rights but over the stranger's. The process enters the job's user namespace first.

use super::archive::{self, Answer, Seal};
use super::wire::{Archive, Collected, Fault, FaultCode};
use crate::error::OrFault as _;
use crate::native::{Side, fork};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::SealingKey;
use sela_protocol::sealed::{Drawn, Purpose};
use sela_protocol::units::Bytes;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Nice value: the owner's programs come first.
const NICE: i32 = 19;

/// A process that archives one folder.
#[derive(Debug)]
pub(crate) struct Collector {
    pid: Pid,
    pidfd: OwnedFd,
    answer: OwnedFd,
    target: PathBuf,
}

/// What it found, and the state of the folder that it found it in.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) collected: Collected,
    pub(crate) state: Option<BlobId>,
}

impl Collector {
    /// Begins to archive `folder` into the new file `target`.
    ///
    /// # Safety
    /// The calling process must have one thread only.
    pub(crate) unsafe fn begin(
        folder: BorrowedFd<'_>,
        user_namespace: BorrowedFd<'_>,
        target: &Path,
        key: &SealingKey,
        purpose: Purpose,
        limit: Bytes,
        before: Option<BlobId>,
    ) -> Result<Self, Fault> {
        let mut drawn: Drawn = [0; size_of::<Drawn>()];
        getrandom::fill(&mut drawn).or_fault(FaultCode::Isolation, "draw randomness for an archive")?;
        let seal = Seal { key, purpose, drawn };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(target)
            .or_fault(FaultCode::Isolation, format_args!("make {}", target.display()))?;
        let (answer, writes) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).or_fault(FaultCode::Isolation, "make a pipe")?;
        // SAFETY: one thread, as promised by the caller.
        match unsafe { fork() }.or_fault(FaultCode::Isolation, "fork")? {
            Side::Child => {
                let work = || work(folder, user_namespace, file, &seal, limit, before);
                let said =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| Answer::Refused {
                        why: "the collector failed".to_owned(),
                    });
                let _ = rustix::io::write(&writes, &serde_json::to_vec(&said).unwrap_or_default());
                // SAFETY: ends this copy of the keeper without running what was meant for the keeper's own end.
                unsafe { libc::_exit(0) }
            }
            Side::Parent { child } => {
                let pidfd = rustix::process::pidfd_open(child, PidfdFlags::empty())
                    .or_fault(FaultCode::Isolation, "hold on to the collector")?;
                Ok(Self {
                    pid: child,
                    pidfd,
                    answer,
                    target: target.to_owned(),
                })
            }
        }
    }

    /// Becomes readable when it has ended.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Its answer, once it has ended; `None` before.
    pub(crate) fn answer(&self) -> Option<Found> {
        match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some(_)) | Err(_) => Some(self.read_answer()),
        }
    }

    /// Ends it and removes what it wrote.
    pub(crate) fn abandon(self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        while matches!(
            rustix::process::waitpid(Some(self.pid), WaitOptions::empty()),
            Err(Errno::INTR)
        ) {}
        drop(fs::remove_file(&self.target));
    }

    fn read_answer(&self) -> Found {
        let mut said = Vec::new();
        let mut part = [0; 4096];
        while let Ok(count) = rustix::io::read(&self.answer, &mut part) {
            if count == 0 {
                break;
            }
            said.extend_from_slice(&part[..count]);
        }
        let answer = serde_json::from_slice(&said).unwrap_or_else(|_| Answer::Refused {
            why: "the collector was killed".to_owned(),
        });
        let (collected, state) = match answer {
            Answer::Archived {
                size,
                blob,
                files,
                skipped,
                state,
            } => {
                let archive = Archive {
                    path: self.target.clone(),
                    size,
                    blob,
                    files,
                    skipped,
                };
                return Found {
                    collected: Collected::Archived { archive },
                    state: Some(state),
                };
            }
            Answer::Nothing => (Collected::Nothing, None),
            Answer::Refused { why } => (Collected::Refused { why }, None),
        };
        drop(fs::remove_file(&self.target));
        Found { collected, state }
    }
}

/// In the child.
fn work(
    folder: BorrowedFd<'_>,
    user_namespace: BorrowedFd<'_>,
    target: File,
    seal: &Seal<'_>,
    limit: Bytes,
    before: Option<BlobId>,
) -> Answer {
    match enter(user_namespace) {
        Ok(()) => archive::write(folder, target, seal, limit, before),
        Err(error) => Answer::Refused {
            why: format!("the collector could not give up its rights: {error}"),
        },
    }
}

/// Root over the job's ids, and nobody over the machine's.
fn enter(user_namespace: BorrowedFd<'_>) -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    rustix::process::setpriority_process(None, NICE)?;
    rustix::thread::move_into_link_name_space(user_namespace, Some(rustix::thread::LinkNameSpaceType::User))?;
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    rustix::thread::set_no_new_privs(true)?;
    // Last: changing ids forgets it. Archives of a keeper that is gone are of no use to anybody.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
}
