//! What the keeper holds of a job in a container: the clerk, the socket to the first process, the two outputs. The order in
//! which the walls are asked for and looked at is the keeper's (`keeper::contain`).

use super::clerk::{Clerk, ClerkSays};
use super::door::{Channel, Door};
use super::engine::EnginePlan;
use super::{order, within};
use crate::error::OrFault as _;
use crate::first_process::{FirstProcess, Outputs};
use crate::ids::IdRange;
use crate::keeper::wire::{Fault, FaultCode, JobPlan};
use crate::native::exec::Executable;
use crate::native::{Folders, InitSays};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use sela_protocol::confidential::{Confidential, SecretName, SecretValue};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

/// A job in a container, from the order on.
pub(crate) struct Container {
    clerk: Clerk,
    door: Option<Door>,
    executable: Executable,
    outputs: Outputs,
    theirs: Option<[OwnedFd; 2]>,
    first: Option<First>,
    channel: Option<Channel>,
}

/// The first process, once there is one.
struct First {
    pid: u32,
    pidfd: OwnedFd,
    id: String,
}

/// What happened next, on the way to a program that runs.
pub(crate) enum Step {
    /// The container's first process is there, and in groups of its own.
    Born,
    /// It calls.
    Called,
    /// It said something.
    Said(InitSays),
}

impl Container {
    /// Asks the engine for a container.
    ///
    /// # Safety
    /// The calling process must have one thread only.
    pub(crate) unsafe fn ask_for(
        plan: &JobPlan,
        engine: &EnginePlan,
        confidential: &mut Confidential,
    ) -> Result<Self, Fault> {
        let executable = Executable::of(plan)?;
        let door = Door::open(order::door(plan))?;
        let (outputs, theirs) = Outputs::pipes()?;
        // SAFETY: one thread, as promised by the caller.
        let clerk = unsafe { Clerk::hire(plan, engine, confidential) }?;
        Ok(Self {
            clerk,
            door: Some(door),
            executable,
            outputs,
            theirs: Some(theirs),
            first: None,
            channel: None,
        })
    }

    /// Calls `with` with everything that may become readable on the way.
    pub(crate) fn with_interests<R>(&self, with: impl FnOnce(&[(BorrowedFd<'_>, PollFlags)]) -> R) -> R {
        let mut interests = Vec::new();
        match &self.first {
            None => interests.push((self.clerk.socket(), PollFlags::IN)),
            Some(first) => interests.push((first.pidfd.as_fd(), PollFlags::IN)),
        }
        match (&self.channel, &self.door) {
            (Some(channel), _) => interests.push((channel.as_fd(), PollFlags::IN)),
            (None, Some(door)) if self.first.is_some() => interests.push((door.listener(), PollFlags::IN)),
            (None, _) => {}
        }
        with(&interests)
    }

    /// The next step, if it has come. An error of `None` is the death of the first process.
    pub(crate) fn step(&mut self) -> Result<Option<Step>, Option<Fault>> {
        let Some(first) = &self.first else {
            return match self.clerk.hear() {
                Ok(Some(ClerkSays::Born { container, pid })) => {
                    self.first = Some(First::hold(container, pid)?);
                    Ok(Some(Step::Born))
                }
                Ok(Some(ClerkSays::CannotStart { fault })) => Err(Some(fault)),
                Ok(None) => Ok(None),
                Ok(Some(ClerkSays::Removed)) | Err(_) => Err(Some(Fault::new(
                    FaultCode::Isolation,
                    "the process that speaks to the engine is gone",
                ))),
            };
        };
        let Some(channel) = &self.channel else {
            let Some(door) = &self.door else { return Ok(None) };
            return match door.accept(first.pid)? {
                Some(channel) => {
                    self.channel = Some(channel);
                    // Nobody else is let in.
                    self.door = None;
                    Ok(Some(Step::Called))
                }
                None if first.is_dead() => Err(None),
                None => Ok(None),
            };
        };
        match channel.hear() {
            Ok(said) => Ok(said.and_then(|said| said.in_common(&self.executable)).map(Step::Said)),
            Err(_) => Err(None),
        }
    }

    /// The engine's id of the container; empty before there is one.
    pub(crate) fn id(&self) -> &str {
        self.first.as_ref().map_or("", |first| &first.id)
    }

    /// Asks the kernel whether the walls stand that the engine was asked for; says which ids the job has outside.
    ///
    /// # Errors
    /// [`FaultCode::LimitDiffers`] with the first that does not.
    pub(crate) fn read_back(&self, plan: &JobPlan, engine: &EnginePlan) -> Result<IdRange, Fault> {
        within::read_back(self.pid(), plan, engine)
    }

    /// Gives the job the places that it may write, and holds on to those that are read when it is gone.
    ///
    /// # Safety
    /// The calling process must have one thread only.
    pub(crate) unsafe fn folders(
        &self,
        plan: &JobPlan,
        engine: &EnginePlan,
        ids: IdRange,
        secrets: &BTreeMap<SecretName, SecretValue>,
    ) -> Result<Folders, Fault> {
        let owner = (ids.first + plan.program.user, ids.first + plan.program.group);
        let out = self.place("out", 0o755, owner)?;
        let checkpoint = self.place("checkpoint", 0o755, owner)?;
        drop(self.place("tmp", 0o1777, owner)?);
        if !secrets.is_empty() {
            let name = order::SECRETS.trim_start_matches('/');
            let folder = self.place(name, 0o700, owner)?;
            within::hand_over(&folder, secrets, owner)?;
            drop(self.place(name, 0o500, owner)?);
        }
        let user_namespace = if engine.remapped {
            self.open("ns/user", OFlags::empty())?
        } else {
            // SAFETY: one thread, as promised by the caller.
            unsafe { within::join_ids(ids) }?
        };
        Ok(Folders {
            out,
            checkpoint,
            user_namespace,
        })
    }

    /// A tmpfs of the job's, with the mode and the owner that an engine may not know how to give.
    fn place(&self, name: &str, mode: u32, (user, group): (u32, u32)) -> Result<OwnedFd, Fault> {
        let what = format!("give /{name} to the job");
        let root = self.open("root", OFlags::PATH | OFlags::DIRECTORY)?;
        // A link on the way that an image brought along leads to a place of the job's, never to one of the machine's.
        let folder = rustix::fs::openat2(
            &root,
            name,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
        .or_fault(FaultCode::Isolation, &what)?;
        let kind = rustix::fs::fstatfs(&folder)
            .or_fault(FaultCode::Isolation, &what)?
            .f_type;
        if kind != libc::TMPFS_MAGIC {
            return Err(Fault::new(
                FaultCode::LimitDiffers,
                format!("the engine was asked for memory at /{name} and gave something else"),
            ));
        }
        let give = || -> rustix::io::Result<()> {
            use rustix::fs::{Gid, Uid};
            rustix::fs::fchown(&folder, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode))
        };
        give().or_fault(FaultCode::Isolation, &what)?;
        Ok(folder)
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Fault> {
        let path = format!("/proc/{}/{name}", self.pid());
        rustix::fs::open(&path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .or_fault(FaultCode::Isolation, format_args!("open {path}"))
    }

    /// Lets the program begin.
    pub(crate) fn release(&mut self) -> Result<(), Fault> {
        match (&self.channel, self.theirs.take()) {
            (Some(channel), Some(outputs)) => channel.release(&self.executable, &outputs),
            (None, _) | (_, None) => Err(Fault::new(
                FaultCode::Isolation,
                "the container's first process is not there to be told to start",
            )),
        }
    }
}

impl First {
    fn hold(id: String, pid: u32) -> Result<Self, Fault> {
        let what = "hold on to the container's first process";
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw =
            raw.ok_or_else(|| Fault::new(FaultCode::Isolation, format!("could not {what}: {pid} is no process")))?;
        let pidfd = rustix::process::pidfd_open(raw, PidfdFlags::empty()).or_fault(FaultCode::Isolation, what)?;
        Ok(Self { pid, pidfd, id })
    }

    /// A first process that is dead has taken its whole PID namespace along: the kernel sees to that before it says so.
    fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl FirstProcess for Container {
    fn pid(&self) -> u32 {
        self.first.as_ref().map_or(0, |first| first.pid)
    }

    fn outputs(&mut self) -> &mut Outputs {
        &mut self.outputs
    }

    fn open_outputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.outputs.open()
    }

    fn channel(&self) -> BorrowedFd<'_> {
        match (&self.channel, &self.first) {
            (Some(channel), _) => channel.as_fd(),
            (None, Some(first)) => first.pidfd.as_fd(),
            (None, None) => self.clerk.socket(),
        }
    }

    fn hear(&self) -> Result<Option<InitSays>, Errno> {
        match &self.channel {
            Some(channel) => Ok(channel.hear()?.and_then(|said| said.in_common(&self.executable))),
            None => Err(Errno::PIPE),
        }
    }

    fn terminate(&self) {
        if let Some(channel) = &self.channel {
            channel.terminate();
        }
    }

    fn kill(&self) {
        if let Some(first) = &self.first {
            let _ = rustix::process::pidfd_send_signal(&first.pidfd, Signal::KILL);
        }
    }

    fn is_dead(&self) -> bool {
        self.first.as_ref().is_none_or(First::is_dead)
    }

    /// It is the engine's child, which reaps it; what is left of the container is the clerk's to remove.
    fn reap(&self) {
        self.clerk.dismiss();
    }

    fn is_removed(&mut self) -> bool {
        self.clerk.is_done()
    }
}

/// Whether two processes share a namespace.
pub(super) fn same_namespace(one: u32, name: &str) -> bool {
    let of = |process: &str| fs::read_link(Path::new("/proc").join(process).join("ns").join(name));
    match (of(&one.to_string()), of("self")) {
        (Ok(one), Ok(own)) => one == own,
        // What cannot be looked at is not taken for a wall.
        (Err(_), _) | (_, Err(_)) => true,
    }
}
