//! The native backend: one program behind namespaces, limits and a list of system calls, on Linux. `Job` is what the keeper
//! holds of it. The order in which the walls go up is in `init`; nothing here knows of grants, orders or money.

pub(crate) mod calls;
pub(crate) mod checkpoint;
pub(crate) mod exec;
mod furnish;
mod init;
mod limits;
pub(crate) mod mounts;
pub(crate) mod namespaces;
pub(crate) mod seccomp;

pub(crate) use checkpoint::MOST_ENTRIES;
pub(crate) use furnish::{ROOT, TOP};
pub(crate) use init::InitSays;
pub(crate) use limits::last_at_the_disk;
pub(crate) use namespaces::{Side, fork};

use crate::error::OrFault as _;
use crate::first_process::{self, FirstProcess, Outputs};
use crate::keeper::wire::{Egress, Fault, FaultCode, JobPlan};
use crate::scratch::Disk;
use init::{GO_ON, Inherited, LONGEST_PACKET};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use rustix::time::Timespec;
use seccomp::Filters;
use sela_protocol::confidential::Confidential;
use sela_protocol::units::Bytes;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// Less memory than this, and not even the job's init would start.
const LEAST_MEMORY: Bytes = Bytes::from_mib(16);
/// Less, and a file system has no room left for files.
const LEAST_DISK: Bytes = Bytes::from_mib(16);
/// Init, program, and something to work with.
const LEAST_PIDS: u32 = 4;
/// Least descriptors: three streams and what a loader opens.
const LEAST_FILES: u64 = 16;

/// A job's init, from its birth on.
#[derive(Debug)]
pub(crate) struct Job {
    pid: Pid,
    pidfd: OwnedFd,
    channel: OwnedFd,
    outputs: Outputs,
    /// Held until nothing is mounted from it any more.
    _disk: Option<Disk>,
}

/// What is kept open of a job's folders: they can be read after its last process is gone.
#[derive(Debug)]
pub(crate) struct Folders {
    pub(crate) out: OwnedFd,
    pub(crate) checkpoint: OwnedFd,
    pub(crate) user_namespace: OwnedFd,
}

/// Contradictions that can be seen before anything is made.
pub(crate) fn check(plan: &JobPlan) -> Result<(), Fault> {
    let refuse = |message: String| Err(Fault::new(FaultCode::BadPlan, message));
    let limits = &plan.limits;
    if plan.layers.is_empty() && plan.engine.is_none() {
        return refuse("the image has no layers: there is nothing to run".to_owned());
    }
    if plan.engine.is_some() && limits.disk.is_some() {
        let message = "a container engine gives a job no encrypted disk: its scratch is memory";
        return Err(Fault::new(FaultCode::Isolation, message));
    }
    for id in [plan.program.user, plan.program.group] {
        if plan.ids.outside(id).is_none() {
            return refuse(format!(
                "the image's user or group {id} is not mapped: ids below {} are",
                plan.ids.count
            ));
        }
    }
    if !plan.ids.is_for_jobs(crate::rootless::is_inside(Path::new("/proc"))) {
        return refuse(format!(
            "the ids {}+{} are not subordinate ids",
            plan.ids.first, plan.ids.count
        ));
    }
    if limits.memory < LEAST_MEMORY {
        return refuse(format!(
            "{} of memory is too little: {LEAST_MEMORY} is the least",
            limits.memory
        ));
    }
    if limits.pids < LEAST_PIDS || limits.open_files < LEAST_FILES || limits.wall_ms.0 == 0 {
        return refuse(format!(
            "{} processes, {} open files, {} of time: at least {LEAST_PIDS}, {LEAST_FILES} and 1 ms are needed",
            limits.pids, limits.open_files, limits.wall_ms
        ));
    }
    if limits.disk.is_some_and(|disk| disk < LEAST_DISK) {
        return refuse(format!("a scratch disk holds at least {LEAST_DISK}"));
    }
    if limits.shm_size > limits.memory {
        return refuse(format!(
            "shm_size {} is above the memory limit {}",
            limits.shm_size, limits.memory
        ));
    }
    Ok(())
}

impl Job {
    /// Prepares the scratch folder and forks the job's init, which waits to be put into its cgroups.
    ///
    /// # Safety
    /// The calling process must have one thread only.
    pub(crate) unsafe fn bear(
        plan: &JobPlan,
        confidential: &mut Confidential,
        agent: BorrowedFd<'_>,
    ) -> Result<Self, Fault> {
        furnish::furnish(plan, !confidential.secrets.is_empty())?;
        let disk = plan
            .limits
            .disk
            .map(|size| Disk::make(&plan.scratch, size))
            .transpose()?;
        let filters = Filters::compile()?;
        let checkpoint = plan.resume_from.as_deref().map(open_archive).transpose()?;
        let agent = match plan.egress {
            Egress::None => None,
            Egress::Proxy => Some(
                agent
                    .try_clone_to_owned()
                    .or_fault(FaultCode::Isolation, "copy a socket")?,
            ),
        };
        let (outputs, [write_out, write_err]) = Outputs::pipes()?;
        let (channel, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .or_fault(FaultCode::Isolation, "make the socket of a job")?;
        // SAFETY: one thread, as promised by the caller.
        match unsafe { namespaces::fork_isolated() }.or_fault(
            FaultCode::Isolation,
            "make the job's namespaces (is the agent root, and are namespaces allowed here?)",
        )? {
            Side::Child => {
                let inherited = Inherited {
                    channel: theirs,
                    out: write_out,
                    err: write_err,
                    checkpoint,
                    agent,
                };
                let live = std::panic::AssertUnwindSafe(|| {
                    keep_only(&inherited);
                    init::live(plan, confidential, disk.as_ref(), &filters, inherited)
                });
                init::leave(std::panic::catch_unwind(live).unwrap_or(101))
            }
            Side::Parent { child } => {
                let pidfd = rustix::process::pidfd_open(child, PidfdFlags::empty())
                    .or_fault(FaultCode::Isolation, "hold on to the job's init")?;
                Ok(Self {
                    pid: child,
                    pidfd,
                    channel,
                    outputs,
                    _disk: disk,
                })
            }
        }
    }

    /// Lets init go on to its next step.
    pub(crate) fn go_on(&self) -> Result<(), Fault> {
        rustix::net::send(&self.channel, GO_ON, SendFlags::NOSIGNAL)
            .map(drop)
            .or_fault(FaultCode::Isolation, "speak to the job's init")
    }

    /// Gives init the ids that it waits for.
    pub(crate) fn give_ids(&self, plan: &JobPlan) -> Result<(), Fault> {
        namespaces::write_id_maps(self.pid, plan.ids).or_fault(FaultCode::Isolation, "map the job's ids")
    }

    /// Holds on to what is read after the job is gone. Only once init has said `Ready`.
    pub(crate) fn folders(&self) -> Result<Folders, Fault> {
        let open = |name: &str, flags: OFlags| {
            let path = format!("/proc/{}/{name}", self.pid());
            rustix::fs::open(&path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .or_fault(FaultCode::Isolation, format_args!("open {path}"))
        };
        let folder = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(Folders {
            out: open("root/out", folder)?,
            checkpoint: open("root/checkpoint", folder)?,
            user_namespace: open("ns/user", OFlags::empty())?,
        })
    }
}

impl FirstProcess for Job {
    fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn outputs(&mut self) -> &mut Outputs {
        &mut self.outputs
    }

    fn open_outputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.outputs.open()
    }

    fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn hear(&self) -> Result<Option<InitSays>, Errno> {
        let mut packet = vec![0; LONGEST_PACKET];
        let heard = first_process::next_packet(&self.channel, &mut packet)?;
        // Init is a stranger's from the moment that the program runs: what it says is read, never trusted to be well formed.
        Ok(heard.and_then(|count| serde_json::from_slice(&packet[..count]).ok()))
    }

    fn terminate(&self) {
        // An init that is dead needs no signal.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::TERM);
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn is_dead(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// The kernel takes mounts and namespaces down with the process.
    fn is_removed(&mut self) -> bool {
        true
    }

    fn reap(&self) {
        while matches!(
            rustix::process::waitpid(Some(self.pid), WaitOptions::empty()),
            Err(Errno::INTR)
        ) {}
    }
}

fn open_archive(path: &Path) -> Result<OwnedFd, Fault> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).or_fault(
        FaultCode::BadCheckpoint,
        format_args!("open the checkpoint {}", path.display()),
    )
}

/// In the child: standard streams go nowhere, and of the keeper's descriptors only these stay open.
fn keep_only(inherited: &Inherited) {
    let Inherited {
        channel,
        out,
        err,
        checkpoint,
        agent,
    } = inherited;
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let mut kept: Vec<RawFd> = [Some(channel), Some(out), Some(err), checkpoint.as_ref(), agent.as_ref()]
        .into_iter()
        .flatten()
        .map(|fd| fd.as_raw_fd())
        .collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        close_range(first, fd - 1);
        first = fd + 1;
    }
    close_range(first, RawFd::MAX);
}

/// Closes descriptors in a fresh copy of the keeper, which leaves by `_exit`.
pub(crate) fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: this is a fresh copy of the keeper, which leaves by `_exit`: whatever owned these never runs here.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::IdRange;
    use crate::keeper::wire::{CgroupLayout, CgroupPlace, Limits, Program};
    use sela_protocol::units::{Millis, UtcMs};
    use std::path::PathBuf;

    fn plan() -> JobPlan {
        let mut ids = sela_protocol::id::IdSource::new(UtcMs(1), [3; 32]);
        JobPlan {
            lease: ids.draw(),
            job: ids.draw(),
            layers: vec![PathBuf::from("/layer")],
            program: Program {
                arguments: vec!["/bin/true".to_owned()],
                environment: Vec::new(),
                folder: PathBuf::from("/"),
                user: 0,
                group: 0,
            },
            ids: IdRange {
                first: 200_000,
                count: 65_536,
            },
            cgroups: CgroupPlace {
                layout: CgroupLayout::V2,
                root: PathBuf::from("/sys/fs/cgroup"),
                agent: "test".to_owned(),
            },
            limits: Limits {
                memory: Bytes::from_mib(64),
                pids: 32,
                open_files: 1024,
                shm_size: Bytes::from_mib(8),
                log: Bytes::from_mib(1),
                wall_ms: Millis::from_secs(60),
                output: Bytes::from_mib(16),
                disk: None,
            },
            inputs: None,
            resume_from: None,
            checkpoint_every_ms: None,
            card: None,
            egress: Egress::None,
            engine: None,
            scratch: PathBuf::from("/scratch"),
            account: PathBuf::from("/account"),
        }
    }

    #[test]
    fn contradictory_plans_are_refused_before_anything_is_made() {
        assert_eq!(check(&plan()), Ok(()));
        type Spoil = fn(&mut JobPlan);
        let cases: [(&str, Spoil); 7] = [
            ("no layers", |plan| plan.layers.clear()),
            ("not mapped", |plan| plan.program.user = 65_536),
            ("not subordinate", |plan| plan.ids.first = 0),
            ("too little", |plan| plan.limits.memory = Bytes::from_mib(1)),
            ("processes", |plan| plan.limits.pids = 1),
            ("1 ms", |plan| plan.limits.wall_ms = Millis(0)),
            ("shm_size", |plan| plan.limits.shm_size = Bytes::from_mib(65)),
        ];
        for (reason, spoil) in cases {
            let mut plan = plan();
            spoil(&mut plan);
            let fault = check(&plan).unwrap_err();
            assert_eq!(fault.code, FaultCode::BadPlan);
            assert!(fault.message.contains(reason), "{} for {reason}", fault.message);
        }
    }
}
