//! From the first reason to stop to nothing being left: kill, verify, account, archive, remove, report.

use super::collect::Collector;
use super::desk::{Desk, Heard};
use super::guard::{Reason, Watch};
use super::set_up::{GLANCE, remove_cgroups, tidy};
use super::wire::{Collected, JobPlan, LogStream, Report, Stop};
use super::{account, later};
use crate::docker;
use crate::first_process::FirstProcess;
use rustix::event::PollFlags;
use sela_protocol::blob::BlobId;
use sela_protocol::sealed::Purpose;
use sela_protocol::units::{BootUs, Microseconds};
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

/// How often a job that does not die is killed again.
const AGAIN: Microseconds = Microseconds(1_000_000);
/// How long an engine may take to remove a container.
const TAKE_DOWN: Microseconds = Microseconds(20_000_000);
/// How long what stood beside it may take to go: programs of the engine's own, which on a busy machine take their time to end.
const CLEAR_AWAY: Microseconds = Microseconds(20_000_000);

/// Ends a job for a reason.
pub(super) fn end((mut watch, reason): (Watch<'_>, Reason), desk: &mut Desk) {
    let times = watch.times(reason.at);
    // The group of a container may go as its last process does.
    let used_before = watch.cgroup.usage().ok();
    kill_all(&watch, desk);
    let gone_after_us = sela_clock::boot_us().since(reason.at);
    if let Some(collector) = watch.collector.take() {
        collector.abandon();
    }
    for stream in [LogStream::Out, LogStream::Err] {
        while watch.read_part(desk, stream) {}
    }
    let used = watch.cgroup.usage().ok().or(used_before);
    watch.job.reap();
    remove_cgroups(desk, &watch.cgroup);
    let stop = Stop {
        cause: reason.cause,
        exit: watch.exit,
        started_boot_us: watch.meter.started(),
        ended_boot_us: reason.at,
        frozen_us: times.frozen,
        frozen_source: times.source,
        thawed_ms: times.thawed,
        gone_after_us,
        cpu_us: used.map_or(Microseconds(0), |used| used.cpu),
        memory_peak: used.and_then(|used| used.memory_peak),
    };
    // A full disk must not keep the card: the agent still hears it, and the exchange has the notes of every second before.
    drop(account::write(&watch.plan.account, &stop));
    desk.report(&Report::Stopped { stop: stop.clone() });
    let mut wanted = reason.collect && !desk.agent_is_gone();
    let target = watch.plan.scratch.join("out.sealed");
    let outputs = collect(
        &watch,
        desk,
        watch.folders.out.as_fd(),
        &target,
        Purpose::Output,
        None,
        &mut wanted,
    );
    let target = watch.next_checkpoint_file();
    let checkpoint = collect(
        &watch,
        desk,
        watch.folders.checkpoint.as_fd(),
        &target,
        Purpose::Checkpoint,
        watch.saved,
        &mut wanted,
    );
    if wanted {
        tidy(desk, watch.plan);
    } else {
        // Nobody is left who knows of the scratch folder, or wants what is in it.
        drop(fs::remove_dir_all(&watch.plan.scratch));
    }
    if watch.plan.engine.is_some() {
        // Programs of the engine's own end in the jobs' groups, too, where a busy machine would not let them come to it.
        watch.cgroup.set_hurry(true);
    }
    take_down(desk, watch.job.as_mut());
    if watch.plan.engine.is_some() {
        clear_away(desk, watch.plan);
        watch.cgroup.set_hurry(false);
    }
    desk.report(&Report::Ended {
        stop,
        outputs,
        checkpoint,
    });
}

/// Waits until whoever made the walls has taken them down. An engine that does not is the sweep's at the next start.
pub(super) fn take_down(desk: &mut Desk, job: &mut dyn FirstProcess) {
    let patience = later(TAKE_DOWN);
    while !job.is_removed() && sela_clock::boot_us() < patience {
        if desk.wait(&[], later(GLANCE)).is_err() {
            return;
        }
    }
}

/// Removes what an engine leaves of its own in the agent's groups, which it may do a little later than it says.
pub(super) fn clear_away(desk: &mut Desk, plan: &JobPlan) {
    let patience = later(CLEAR_AWAY);
    while !docker::clear_hierarchies(&plan.cgroups, plan.lease) && sela_clock::boot_us() < patience {
        if desk.wait(&[], later(GLANCE)).is_err() {
            return;
        }
    }
}

/// Kills until no process is left. A process that the kernel cannot kill holds us here: as long as it lives, nothing may be
/// reported as stopped.
fn kill_all(watch: &Watch<'_>, desk: &mut Desk) {
    let mut again = BootUs(0);
    watch.cgroup.set_hurry(true);
    loop {
        if sela_clock::boot_us() >= again {
            drop(watch.cgroup.kill());
            watch.job.kill();
            again = later(AGAIN);
        }
        if !watch.cgroup.is_populated().unwrap_or(false) && watch.job.is_dead() {
            // The groups above are other jobs', too: these must not go before the owner's programs because this one was ended.
            watch.cgroup.set_hurry(false);
            return;
        }
        if desk.wait(&[], later(GLANCE)).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Archives one folder, unless the agent goes away meanwhile.
fn collect(
    watch: &Watch<'_>,
    desk: &mut Desk,
    folder: BorrowedFd<'_>,
    target: &Path,
    purpose: Purpose,
    before: Option<BlobId>,
    wanted: &mut bool,
) -> Collected {
    if !*wanted {
        return Collected::Nothing;
    }
    let namespace = watch.folders.user_namespace.as_fd();
    // SAFETY: `run` has seen that this process has one thread, and nothing here starts another.
    let begun = unsafe {
        Collector::begin(
            folder,
            namespace,
            target,
            &watch.key,
            purpose,
            watch.plan.limits.output,
            before,
        )
    };
    let collector = match begun {
        Ok(collector) => collector,
        Err(fault) => return Collected::Refused { why: fault.message },
    };
    loop {
        let waited = desk.wait(&[(collector.ended(), PollFlags::IN)], BootUs(u64::MAX));
        while let Some(heard) = desk.hear() {
            match heard {
                Heard::AgentGone | Heard::GrantExpired | Heard::Shutdown => *wanted = false,
                Heard::Order(_) | Heard::Unreadable(_) => {}
            }
        }
        if !*wanted || waited.is_err() {
            collector.abandon();
            return Collected::Nothing;
        }
        if let Some(found) = collector.answer() {
            return found.collected;
        }
    }
}
