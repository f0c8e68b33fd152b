//! Watches a running job: orders, limits, time, output, checkpoints. Ends with the first reason to stop; what follows from it
//! is in `end`.

use super::collect::Collector;
use super::desk::{Desk, Heard};
use super::log::LogBudget;
use super::meter::{Meter, Times};
use super::set_up::GLANCE;
use super::wire::{Collected, FREEZE_LIMIT, JobPlan, LogBytes, LogStream, Order, ProgramEnd, Report, Usage};
use crate::cgroup::Cgroup;
use crate::first_process::FirstProcess;
use crate::native::{Folders, InitSays};
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use sela_protocol::blob::BlobId;
use sela_protocol::confidential::SealingKey;
use sela_protocol::lease::EndCause;
use sela_protocol::sealed::Purpose;
use sela_protocol::units::{BootUs, Microseconds};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// How often use is reported and limits are read back.
const TICK: Microseconds = Microseconds(1_000_000);
/// Archives of checkpoints that may wait for the agent.
const WAITING_CHECKPOINTS: usize = 2;
/// Bytes read of an output at a time, and how often before something else has its turn.
const PART: usize = 16 << 10;
const PARTS: usize = 4;
/// Bytes that are let go of at a time: all that a pipe can hold.
const DROPPED: usize = 1 << 20;

/// Everything that is known of a running job.
pub(super) struct Watch<'a> {
    pub(super) plan: &'a JobPlan,
    /// Seals what the job leaves.
    pub(super) key: SealingKey,
    pub(super) cgroup: Cgroup,
    pub(super) job: Box<dyn FirstProcess>,
    pub(super) folders: Folders,
    pub(super) meter: Meter,
    pub(super) exit: Option<ProgramEnd>,
    pub(super) collector: Option<Collector>,
    /// The state in which `/checkpoint` was last archived.
    pub(super) saved: Option<BlobId>,
    log: LogBudget,
    /// Where output goes that is above the limit. Opened when it is needed.
    nowhere: Option<OwnedFd>,
    motion: Motion,
    checkpoints: u32,
    next_tick: BootUs,
    next_checkpoint: Option<BootUs>,
}

/// What the job is doing.
enum Motion {
    Runs,
    /// Told to stand still; it does not yet.
    Freezing {
        asked: BootUs,
        cause: EndCause,
    },
    Frozen,
    /// Told to save.
    Saving {
        until: BootUs,
        cause: EndCause,
    },
}

/// The first reason to stop.
pub(super) struct Reason {
    pub(super) cause: EndCause,
    pub(super) at: BootUs,
    /// Whether anybody wants what the job leaves.
    pub(super) collect: bool,
}

impl Reason {
    fn now(cause: EndCause) -> Self {
        Self {
            cause,
            at: sela_clock::boot_us(),
            collect: true,
        }
    }

    fn unwanted(cause: EndCause) -> Self {
        Self {
            collect: false,
            ..Self::now(cause)
        }
    }
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        plan: &'a JobPlan,
        key: SealingKey,
        cgroup: Cgroup,
        job: Box<dyn FirstProcess>,
        folders: Folders,
        meter: Meter,
    ) -> Self {
        let started = meter.started();
        Self {
            plan,
            key,
            cgroup,
            job,
            folders,
            meter,
            exit: None,
            collector: None,
            saved: None,
            log: LogBudget::new(plan.limits.log),
            nowhere: None,
            motion: Motion::Runs,
            checkpoints: 0,
            next_tick: started.plus(TICK),
            next_checkpoint: plan.checkpoint_every_ms.map(|every| started.plus(every.into())),
        }
    }

    /// The times so far, by the kernel's record where it keeps one.
    pub(super) fn times(&self, now: BootUs) -> Times {
        self.meter.times(now, self.cgroup.frozen_time())
    }

    /// Where the next archive of `/checkpoint` goes.
    pub(super) fn next_checkpoint_file(&mut self) -> PathBuf {
        self.checkpoints += 1;
        self.checkpoint_file(self.checkpoints)
    }

    fn checkpoint_file(&self, number: u32) -> PathBuf {
        self.plan.scratch.join(format!("checkpoint-{number}.sealed"))
    }

    /// Passes on what the program wrote. Called once more when it is gone: what lies in the pipes then is all there is.
    pub(super) fn read_output(&mut self, desk: &mut Desk) {
        for stream in [LogStream::Out, LogStream::Err] {
            for _ in 0..PARTS {
                if !desk.has_room() || !self.read_part(desk, stream) {
                    break;
                }
            }
        }
    }

    /// `false` where there is nothing to read now.
    pub(super) fn read_part(&mut self, desk: &mut Desk, stream: LogStream) -> bool {
        let slot = self.job.outputs().of(stream);
        let Some(pipe) = slot else { return false };
        if self.log.is_cut() {
            return self.drop_part(stream);
        }
        let mut part = vec![0; PART];
        match rustix::io::read(&*pipe, part.as_mut_slice()) {
            Ok(count) if count > 0 => {
                let (passed, cut) = self.log.pass(count);
                part.truncate(passed);
                if passed > 0 {
                    desk.report(&Report::Log {
                        stream,
                        bytes: LogBytes(part),
                    });
                }
                if cut {
                    let notice = LogBytes(self.log.notice().into_bytes());
                    desk.report(&Report::Log {
                        stream: LogStream::Err,
                        bytes: notice,
                    });
                }
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok(_) | Err(_) => {
                *slot = None;
                false
            }
        }
    }
}

impl Watch<'_> {
    /// Lets go of what lies in a pipe without looking at it: a job that writes without end must not keep the keeper, which comes before
    /// the owner's programs, at copying what nobody reads.
    fn drop_part(&mut self, stream: LogStream) -> bool {
        let slot = self.job.outputs().of(stream);
        let Some(pipe) = slot else { return false };
        let nowhere = match &self.nowhere {
            Some(nowhere) => nowhere,
            None => match rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
                Ok(opened) => self.nowhere.insert(opened),
                Err(_) => return false,
            },
        };
        match rustix::pipe::splice(&*pipe, None, nowhere, None, DROPPED, SpliceFlags::NONBLOCK) {
            Ok(count) if count > 0 => {
                self.log.pass(count);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok(_) | Err(_) => {
                *slot = None;
                false
            }
        }
    }
}

/// Watches until there is a reason to stop.
pub(super) fn guard<'a>(mut watch: Watch<'a>, desk: &mut Desk) -> (Watch<'a>, Reason) {
    loop {
        let reason = watch.turn(desk);
        if let Some(reason) = reason {
            return (watch, reason);
        }
    }
}

impl Watch<'_> {
    /// Waits for something to happen, and looks at everything that may have.
    fn turn(&mut self, desk: &mut Desk) -> Option<Reason> {
        let until = self.next_look(sela_clock::boot_us());
        let waited = desk.wait(&self.interests(desk.has_room()), until);
        if let Err(error) = waited {
            return Some(Reason::now(node_fault(format!("the keeper could not wait: {error}"))));
        }
        while let Some(heard) = desk.hear() {
            if let Some(reason) = self.obey(heard, desk) {
                return Some(reason);
            }
        }
        self.look_at_freeze(desk)
            .or_else(|| self.hear_init())
            .or_else(|| self.look_at_time(desk))
            .or_else(|| {
                self.read_output(desk);
                self.look_at_checkpoint(desk);
                None
            })
    }

    fn interests(&self, room: bool) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut interests = vec![(self.job.channel(), PollFlags::IN)];
        if room {
            interests.extend(
                self.job
                    .open_outputs()
                    .into_iter()
                    .flatten()
                    .map(|pipe| (pipe, PollFlags::IN)),
            );
        }
        interests.extend(
            self.collector
                .iter()
                .map(|collector| (collector.ended(), PollFlags::IN)),
        );
        interests
    }

    /// When to look again, whatever happens.
    fn next_look(&self, now: BootUs) -> BootUs {
        let motion = match &self.motion {
            Motion::Runs => now.plus(self.times(now).left),
            // The kernel's notice may come ten milliseconds late: look often instead.
            Motion::Freezing { .. } => now.plus(GLANCE),
            Motion::Frozen => BootUs(u64::MAX),
            Motion::Saving { until, .. } => (*until).min(now.plus(self.times(now).left)),
        };
        let checkpoint = self
            .next_checkpoint
            .filter(|_| self.collector.is_none())
            .unwrap_or(BootUs(u64::MAX));
        motion.min(self.next_tick).min(checkpoint)
    }

    fn obey(&mut self, heard: Heard, desk: &mut Desk) -> Option<Reason> {
        match heard {
            Heard::Order(Order::Freeze { cause }) => self.freeze(cause, desk),
            Heard::Order(Order::Thaw) => self.thaw(desk),
            Heard::Order(Order::Save { cause, grace_ms }) => self.save(cause, grace_ms.into(), desk),
            Heard::Order(Order::End { cause }) => Some(Reason::now(cause)),
            Heard::Order(Order::Grant) => None,
            Heard::Order(Order::Start { .. }) => {
                Some(Reason::now(node_fault("a keeper guards one job only".to_owned())))
            }
            Heard::AgentGone => Some(Reason::unwanted(EndCause::AgentRestarted)),
            Heard::GrantExpired => Some(Reason::unwanted(EndCause::GrantExpired)),
            Heard::Shutdown => Some(Reason::unwanted(EndCause::Shutdown)),
            Heard::Unreadable(why) => Some(Reason::now(node_fault(format!(
                "the agent's order could not be read: {why}"
            )))),
        }
    }

    /// While the job saves, it stays thawed: saving is the one exception, and it is short.
    fn freeze(&mut self, cause: EndCause, desk: &mut Desk) -> Option<Reason> {
        match self.motion {
            Motion::Runs => {
                let asked = sela_clock::boot_us();
                self.meter.freezing(asked);
                self.cgroup.set_hurry(true);
                if self.cgroup.set_frozen(true).is_err() {
                    return Some(Reason::now(cause));
                }
                self.motion = Motion::Freezing { asked, cause };
                self.look_at_freeze(desk)
            }
            Motion::Frozen => {
                desk.report(&Report::Frozen {
                    after_us: Microseconds(0),
                });
                None
            }
            Motion::Freezing { .. } | Motion::Saving { .. } => None,
        }
    }

    fn look_at_freeze(&mut self, desk: &mut Desk) -> Option<Reason> {
        let Motion::Freezing { asked, cause } = &self.motion else {
            return None;
        };
        let after = sela_clock::boot_us().since(*asked);
        if self.cgroup.is_frozen().unwrap_or(false) {
            self.motion = Motion::Frozen;
            self.cgroup.set_hurry(false);
            desk.report(&Report::Frozen { after_us: after });
            return None;
        }
        (after >= FREEZE_LIMIT.into()).then(|| Reason::now(cause.clone()))
    }

    fn thaw(&mut self, desk: &mut Desk) -> Option<Reason> {
        if matches!(self.motion, Motion::Freezing { .. } | Motion::Frozen) {
            if let Err(error) = self.cgroup.set_frozen(false) {
                return Some(Reason::now(node_fault(error.to_string())));
            }
            self.meter.thawed(sela_clock::boot_us());
            self.cgroup.set_hurry(false);
            self.motion = Motion::Runs;
        }
        if matches!(self.motion, Motion::Runs) {
            desk.report(&Report::Thawed);
        }
        None
    }

    fn save(&mut self, cause: EndCause, grace: Microseconds, desk: &mut Desk) -> Option<Reason> {
        if matches!(self.motion, Motion::Saving { .. }) {
            return None;
        }
        if matches!(self.motion, Motion::Freezing { .. } | Motion::Frozen) {
            let failed = self.thaw(desk);
            if failed.is_some() {
                return failed;
            }
        }
        self.job.terminate();
        self.motion = Motion::Saving {
            until: super::later(grace),
            cause,
        };
        desk.report(&Report::Saving);
        None
    }

    fn hear_init(&mut self) -> Option<Reason> {
        match self.job.hear() {
            Ok(Some(InitSays::ProgramEnded { end })) => {
                self.exit = Some(end);
                Some(Reason::now(self.cause_of_end(EndCause::Exited { code: end.code() })))
            }
            Ok(None) => None,
            // Whatever else it says now, it is not the init that was set up.
            Ok(Some(InitSays::NeedsIds | InitSays::Ready | InitSays::Runs | InitSays::CannotStart { .. })) | Err(_) => {
                Some(Reason::now(
                    self.cause_of_end(node_fault("the job's init was killed".to_owned())),
                ))
            }
        }
    }

    /// A job that was told to save ends for that cause, however it ends.
    fn cause_of_end(&self, otherwise: EndCause) -> EndCause {
        match &self.motion {
            Motion::Saving { cause, .. } => cause.clone(),
            Motion::Runs | Motion::Freezing { .. } | Motion::Frozen => {
                if self.ran_out_of_memory() {
                    EndCause::OutOfMemory
                } else {
                    otherwise
                }
            }
        }
    }

    fn ran_out_of_memory(&self) -> bool {
        self.cgroup.memory_kills().is_ok_and(|kills| kills > 0)
    }

    fn look_at_time(&mut self, desk: &mut Desk) -> Option<Reason> {
        let now = sela_clock::boot_us();
        if let Motion::Saving { until, cause } = &self.motion
            && now >= *until
        {
            return Some(Reason::now(cause.clone()));
        }
        if self.times(now).left.0 == 0 {
            return Some(Reason::now(EndCause::WallLimit));
        }
        if now < self.next_tick {
            return None;
        }
        self.next_tick = now.plus(TICK);
        if self.ran_out_of_memory() {
            return Some(Reason::now(EndCause::OutOfMemory));
        }
        // In the moment of a freeze the CPU share is not what it is otherwise.
        if !matches!(self.motion, Motion::Freezing { .. })
            && let Err(differs) = self.cgroup.verify()
        {
            return Some(Reason::now(node_fault(differs.to_string())));
        }
        self.report_usage(now, desk);
        None
    }

    fn report_usage(&self, now: BootUs, desk: &mut Desk) {
        let Ok(used) = self.cgroup.usage() else { return };
        let times = self.times(now);
        desk.report(&Report::Usage {
            usage: Usage {
                thawed_ms: times.thawed,
                frozen_us: times.frozen,
                frozen_source: times.source,
                memory: used.memory,
                memory_peak: used.memory_peak,
                pids: used.pids,
                cpu_us: used.cpu,
                log: self.log.written(),
            },
        });
    }

    fn look_at_checkpoint(&mut self, desk: &mut Desk) {
        if let Some(found) = self.collector.as_ref().and_then(Collector::answer) {
            self.collector = None;
            match found.collected {
                Collected::Archived { archive } => {
                    self.saved = found.state;
                    desk.report(&Report::CheckpointReady { archive });
                }
                Collected::Refused { why } => desk.report(&Report::CheckpointMissed { why }),
                Collected::Nothing => {}
            }
        }
        let (Some(next), Some(every)) = (self.next_checkpoint, self.plan.checkpoint_every_ms) else {
            return;
        };
        let now = sela_clock::boot_us();
        if now < next || self.collector.is_some() {
            return;
        }
        self.next_checkpoint = Some(now.plus(every.into()));
        let waiting = (1..=self.checkpoints)
            .filter(|number| self.checkpoint_file(*number).exists())
            .count();
        if waiting < WAITING_CHECKPOINTS {
            self.begin_checkpoint(desk);
        }
    }

    fn begin_checkpoint(&mut self, desk: &mut Desk) {
        let target = self.next_checkpoint_file();
        // SAFETY: `run` has seen that this process has one thread, and nothing here starts another.
        let begun = unsafe {
            Collector::begin(
                self.folders.checkpoint.as_fd(),
                self.folders.user_namespace.as_fd(),
                &target,
                &self.key,
                Purpose::Checkpoint,
                self.plan.limits.output,
                self.saved,
            )
        };
        match begun {
            Ok(collector) => self.collector = Some(collector),
            Err(fault) => desk.report(&Report::CheckpointMissed { why: fault.message }),
        }
    }
}

fn node_fault(message: String) -> EndCause {
    EndCause::NodeFault { message }
}
