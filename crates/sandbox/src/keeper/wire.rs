//! What agent and keeper say to each other: one JSON object a line. Orders go to the keeper's standard input, reports come
//! from its standard output. Words only: no process, no file, no clock.

use crate::card::CardAccess;
use crate::docker::EnginePlan;
use crate::ids::IdRange;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::Confidential;
use sela_protocol::id::{JobId, LeaseId};
use sela_protocol::lease::EndCause;
use sela_protocol::units::{BootUs, Bytes, Microseconds, Millis};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::PathBuf;

/// How long a grant lasts, on `CLOCK_BOOTTIME`, from the moment that the keeper reads it. The agent renews every second.
pub const GRANT: Millis = Millis(5_000);

/// Time in which a cgroup must report itself frozen; longer, and the job is ended.
pub const FREEZE_LIMIT: Millis = Millis(250);

/// Longest order that a keeper reads, newline included.
pub const LONGEST_ORDER: usize = 4 << 20;

/// From agent to keeper. End of file on the pipe ends the job at once and leaves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Order {
    /// Set the job up and run it: the first order, once. It is a grant, too.
    Start {
        /// The whole job.
        plan: Box<JobPlan>,
        /// What only the job may read. Apart from the plan, which may be looked at and kept.
        confidential: Box<Confidential>,
    },
    /// The agent lives: run on for another [`GRANT`].
    Grant,
    /// Stop all of the job's threads.
    Freeze {
        /// The cause that the job ends with if it does not stand still within [`FREEZE_LIMIT`].
        cause: EndCause,
    },
    /// Let them run again.
    Thaw,
    /// Thaw, tell the program to save (SIGTERM) and give it this long; then end.
    Save {
        /// The cause that the job ends with.
        cause: EndCause,
        /// How long it may take.
        grace_ms: Millis,
    },
    /// Kill every process of the job, now.
    End {
        /// The cause that the job ends with.
        cause: EndCause,
    },
}

/// Everything that the keeper needs to know of a job. Paths are absolute paths of this machine unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlan {
    /// Names the cgroups.
    pub lease: LeaseId,
    /// For messages.
    pub job: JobId,
    /// The image's unpacked layers, the lowest first, owned by [`Self::ids`].
    pub layers: Vec<PathBuf>,
    /// What to run.
    pub program: Program,
    /// The ids that the job's are mapped to.
    pub ids: IdRange,
    /// Where its cgroups are made.
    pub cgroups: CgroupPlace,
    /// What it may use.
    pub limits: Limits,
    /// A folder that appears read only as `/in`. Readable by [`Self::ids`] (world readable is enough).
    pub inputs: Option<PathBuf>,
    /// A checkpoint of an earlier run, sealed with the job's key: opened and unpacked into `/checkpoint` before the program starts.
    pub resume_from: Option<PathBuf>,
    /// How often a changed `/checkpoint` is taken while the job runs; never, where absent. At the end it always is.
    pub checkpoint_every_ms: Option<Millis>,
    /// Its card; `None` for a job without one.
    pub card: Option<CardAccess>,
    /// How it reaches hosts of the network.
    #[serde(default)]
    pub egress: Egress,
    /// The container engine that builds the walls; where there is none, the keeper does.
    #[serde(default)]
    pub engine: Option<EnginePlan>,
    /// A folder of this lease's own, 0700: mount point, furnishings and archives lie here. The keeper removes what is of no use
    /// to the agent at the end, and all of it where the agent is gone.
    pub scratch: PathBuf,
    /// Where the keeper writes its [`Stop`] as JSON (a new file of mode 0600, synced, renamed into place) before it reports
    /// `Stopped`, whether or not the agent still listens: what a lease is owed if the agent was killed. It lies outside of
    /// [`Self::scratch`], nothing but the agent removes it, and a keeper that cannot write it goes on without.
    pub account: PathBuf,
}

/// How a job reaches hosts of the network. Whatever it is, the job's own network namespace has loopback only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// Not at all.
    #[default]
    None,
    /// By the proxy that listens at [`crate::network::PROXY`] inside: its socket goes to the agent (`Orders::door`), which serves it.
    Proxy,
}

/// What is executed. Names are already resolved to numbers, entrypoint and command already joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments; a program without a slash is looked for in the image along its `PATH`.
    pub arguments: Vec<String>,
    /// The whole environment, image's and job's merged. The keeper adds only what the card needs, and `PATH` and `HOME` where missing.
    pub environment: Vec<(String, String)>,
    /// Where it starts, inside the image; empty for its root.
    pub folder: PathBuf,
    /// User inside.
    pub user: u32,
    /// Group inside.
    pub group: u32,
}

/// How cgroups are laid out on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupLayout {
    /// All controllers in the one hierarchy of version 2.
    V2,
    /// Controllers in version 1, freezing and killing by an empty version 2 hierarchy: for labs only.
    LabCgroupV1,
}

/// Where a job's cgroups are made: `<root…>/sela-jobs/<agent>/<lease>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPlace {
    /// Which layout.
    pub layout: CgroupLayout,
    /// Where cgroups are mounted (`/sys/fs/cgroup`), or for a delegated version 2 the delegated group.
    pub root: PathBuf,
    /// A name that tells this agent from another on the same machine: letters, digits, `-`, `_`.
    pub agent: String,
}

/// What a job may use. Read back after the start and every second; one that differs ends the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Main memory, everything on `/tmp`, `/out` and `/checkpoint` (unless there is a [`Self::disk`]) and on `/dev/shm` included; no swap. Rounded down to whole pages.
    pub memory: Bytes,
    /// Processes and threads, the keeper's own init included.
    pub pids: u32,
    /// Open files of each process; a machine that allows this agent fewer gives fewer.
    pub open_files: u64,
    /// Size of `/dev/shm`.
    pub shm_size: Bytes,
    /// Bytes of standard output and error together; what comes after is read and thrown away, and a line says so.
    pub log: Bytes,
    /// Thawed time; then the job is ended.
    pub wall_ms: Millis,
    /// Bytes that an archive of `/out`, and one of `/checkpoint`, may hold.
    pub output: Bytes,
    /// Size of the encrypted disk that `/tmp`, `/out` and `/checkpoint` lie on together; where absent they lie in the job's memory.
    pub disk: Option<Bytes>,
}

/// From keeper to agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Report {
    /// All of the card's memory that was free was wiped; the job is set up next.
    CardWiped {
        /// How much that was.
        wiped: Bytes,
        /// How long it took, the driver's own start included.
        took_us: Microseconds,
    },
    /// The program runs, behind every wall, every limit read back.
    Started {
        /// The job's init as this machine sees it.
        init_pid: u32,
        /// The moment it was released: billing starts here.
        started_boot_us: BootUs,
        /// The job's cgroup in the version 2 hierarchy: its `cgroup.procs` lists every process of the job.
        cgroup: PathBuf,
    },
    /// Every thread of the job stands still.
    Frozen {
        /// From reading the order to seeing `frozen 1`.
        after_us: Microseconds,
    },
    /// The job runs again.
    Thawed,
    /// The program was told to save.
    Saving,
    /// What the program wrote.
    Log {
        /// Where.
        stream: LogStream,
        /// What: any bytes, not always whole lines.
        bytes: LogBytes,
    },
    /// Once a second.
    Usage {
        /// What was used so far.
        usage: Usage,
    },
    /// A changed `/checkpoint` was archived while the job runs. The agent removes the file when it is done with it; while two lie
    /// there, no further is taken.
    CheckpointReady {
        /// The archive.
        archive: Archive,
    },
    /// A changed `/checkpoint` could not be archived; the job runs on.
    CheckpointMissed {
        /// Why.
        why: String,
    },
    /// No process of the job is left. Archives are being made; close the pipe where they are not wanted.
    Stopped {
        /// How it went.
        stop: Stop,
    },
    /// The last report of a job that was started: nothing of it is left but the archives.
    Ended {
        /// The same as in `Stopped`.
        stop: Stop,
        /// What was in `/out`.
        outputs: Collected,
        /// What was in `/checkpoint`, where it changed since the last `CheckpointReady`.
        checkpoint: Collected,
    },
    /// The job was never started, or the orders could not be read; nothing of it is left.
    Failed {
        /// Why.
        fault: Fault,
    },
}

/// One of the program's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Bytes as they came, base64 on the wire.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct LogBytes(pub Vec<u8>);

/// As text: lists of numbers help nobody.
impl std::fmt::Debug for LogBytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LogBytes({:?})", String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for LogBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for LogBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// What a running job has used so far. Cumulative where it is a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Time since the start, frozen time taken off: what is billed.
    pub thawed_ms: Millis,
    /// Frozen time, open freeze included.
    pub frozen_us: Microseconds,
    /// Whose record of it.
    pub frozen_source: FrozenSource,
    /// Memory charged to the job now.
    pub memory: Bytes,
    /// The most that was charged at once; absent where the kernel does not say.
    pub memory_peak: Option<Bytes>,
    /// Processes and threads now.
    pub pids: u32,
    /// CPU time of all its threads.
    pub cpu_us: Microseconds,
    /// Bytes that it wrote to its outputs.
    pub log: Bytes,
}

/// Whose record of frozen time is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrozenSource {
    /// `frozen_usec` of the cgroup's own `cgroup.stat.local` (Linux 6.18 and later).
    Kernel,
    /// The keeper's measurement from before each freeze was asked for to after each thaw was: never less than the kernel's would be.
    Keeper,
}

/// How a job stopped, and what is billed for it. `thawed_ms` = ⌊(ended − started − frozen) / 1000⌋, at most the wall limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Why.
    pub cause: EndCause,
    /// How the program itself ended, where it had by the time the job was ended.
    pub exit: Option<ProgramEnd>,
    /// The moment it was released.
    pub started_boot_us: BootUs,
    /// The moment of the first reason to stop: its program's end was seen, an order was read, a limit was found reached.
    pub ended_boot_us: BootUs,
    /// Frozen time in between.
    pub frozen_us: Microseconds,
    /// Whose record of it.
    pub frozen_source: FrozenSource,
    /// What is billed.
    pub thawed_ms: Millis,
    /// From the reason to stop to the last process being gone.
    pub gone_after_us: Microseconds,
    /// CPU time of all its threads.
    pub cpu_us: Microseconds,
    /// The most memory that was charged at once.
    pub memory_peak: Option<Bytes>,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ProgramEnd {
    /// By itself.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// By a signal.
    Signalled {
        /// Its number.
        signal: i32,
    },
}

impl ProgramEnd {
    /// The exit code as shells give it: 128 + signal where a signal ended it.
    pub const fn code(self) -> i32 {
        match self {
            Self::Exited { code } => code,
            Self::Signalled { signal } => 128 + signal,
        }
    }
}

/// A tar archive of one of the job's folders, sealed with the job's key (`sela_protocol::sealed`) before its first byte reached the
/// disk. Owned by the agent's user, mode 0600.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// Where, in the lease's scratch folder.
    pub path: PathBuf,
    /// Its size, as it lies there.
    pub size: Bytes,
    /// Its hash, as it lies there, taken while it was written.
    pub blob: BlobId,
    /// Regular files in it.
    pub files: u32,
    /// Symbolic links, devices, sockets, pipes and what lies too deep, which were left out.
    pub skipped: u32,
}

/// What came of archiving a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Collected {
    /// There was nothing in it, or nothing new.
    Nothing,
    /// An archive.
    Archived {
        /// It.
        archive: Archive,
    },
    /// It could not be archived, and no part of it was kept.
    Refused {
        /// Why, in words for the tenant.
        why: String,
    },
}

/// Why a job could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which kind.
    pub code: FaultCode,
    /// What happened and what to do.
    pub message: String,
}

impl Fault {
    /// On whose account it goes, in the words of leases.
    pub fn end_cause(&self) -> EndCause {
        let message = self.message.clone();
        match self.code {
            FaultCode::ProgramMissing | FaultCode::ProgramUnusable | FaultCode::BadPlan | FaultCode::BadCheckpoint => {
                EndCause::JobFault { message }
            }
            FaultCode::Cgroup
            | FaultCode::LimitDiffers
            | FaultCode::Isolation
            | FaultCode::Card
            | FaultCode::CardNotWiped
            | FaultCode::Orders
            | FaultCode::Stopped => EndCause::NodeFault { message },
        }
    }
}

/// Kinds of fault. The first four are the job's, the rest the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultCode {
    /// The image has no such program.
    ProgramMissing,
    /// It is there and cannot be run: no permission, another architecture, its interpreter is missing.
    ProgramUnusable,
    /// The plan contradicts itself: no program, a user that is not mapped, memory too small.
    BadPlan,
    /// The checkpoint to go on from cannot be unpacked.
    BadCheckpoint,
    /// A cgroup could not be made or used.
    Cgroup,
    /// A limit read back differs from the one set.
    LimitDiffers,
    /// A namespace, mount, id map or seccomp filter was refused.
    Isolation,
    /// A device node or driver library is missing.
    Card,
    /// The card's memory could not be wiped, or not all that was free.
    CardNotWiped,
    /// The agent's orders could not be read.
    Orders,
    /// Told to end before the program was released.
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_the_wire() {
        let every: Vec<u8> = (0..=u8::MAX).collect();
        let report = Report::Log {
            stream: LogStream::Err,
            bytes: LogBytes(every),
        };
        let line = serde_json::to_string(&report).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }

    #[test]
    fn orders_are_tagged_by_type() {
        for (order, line) in [
            (Order::Grant, r#"{"type":"grant"}"#),
            (Order::Thaw, r#"{"type":"thaw"}"#),
            (
                Order::End { cause: EndCause::Hot },
                r#"{"type":"end","cause":{"type":"hot"}}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&order).unwrap(), line);
            assert_eq!(serde_json::from_str::<Order>(line).unwrap(), order);
        }
    }
}
