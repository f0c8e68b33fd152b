//! From the order to start to the program's first instruction. Whatever goes wrong here leaves nothing behind and is nobody's
//! to pay for.

use super::contain;
use super::desk::{Desk, Heard};
use super::guard::Watch;
use super::later;
use super::meter::Meter;
use super::wiping;
use super::wire::{Fault, FaultCode, JobPlan, Order, Report};
use crate::cgroup::Cgroup;
use crate::docker;
use crate::error::OrFault as _;
use crate::first_process::FirstProcess;
use crate::native::{self, Folders, InitSays, Job, ROOT, TOP};
use rustix::event::PollFlags;
use sela_protocol::confidential::Confidential;
use sela_protocol::units::Microseconds;
use std::fs;

/// How long the walls may take to stand, a checkpoint of gigabytes unpacked included.
pub(super) const PATIENCE: Microseconds = Microseconds(120_000_000);
/// How long the kernel may take to let go of a cgroup whose processes are gone.
const REMOVAL: Microseconds = Microseconds(5_000_000);
/// How often that is looked at.
pub(super) const GLANCE: Microseconds = Microseconds(1_000);

/// Wipes the card's memory, makes the cgroups, bears the job, leads it through its steps and reports `Started`.
pub(super) fn set_up<'a>(
    desk: &mut Desk,
    plan: &'a JobPlan,
    mut confidential: Confidential,
) -> Result<Watch<'a>, Fault> {
    native::check(plan)?;
    let _wiper = wiping::wipe(desk, plan, &mut confidential)?;
    if let Some(engine) = &plan.engine {
        return contain::contain(desk, plan, engine, confidential);
    }
    let made = Cgroup::create(&plan.cgroups, plan.lease, &plan.limits);
    let cgroup = made.map_err(|error| Fault::new(FaultCode::Cgroup, error.to_string()))?;
    // SAFETY: `run` has seen that this process has one thread, and nothing here starts another.
    let job = match unsafe { Job::bear(plan, &mut confidential, desk.agent()) } {
        Ok(job) => {
            // The job's init has a copy, which it hands on and wipes. Here only the key is of use from now on.
            confidential.secrets.clear();
            job
        }
        Err(fault) => {
            undo(desk, plan, &cgroup, None);
            return Err(fault);
        }
    };
    match lead(desk, plan, &cgroup, &job) {
        Ok((meter, folders)) => {
            desk.report(&Report::Started {
                init_pid: job.pid(),
                started_boot_us: meter.started(),
                cgroup: cgroup.folder().to_owned(),
            });
            Ok(Watch::new(
                plan,
                confidential.result_key.clone(),
                cgroup,
                Box::new(job),
                folders,
                meter,
            ))
        }
        Err(fault) => {
            undo(desk, plan, &cgroup, Some(&job));
            Err(fault)
        }
    }
}

/// Step by step, from the cgroups to the program.
fn lead(desk: &mut Desk, plan: &JobPlan, cgroup: &Cgroup, job: &Job) -> Result<(Meter, Folders), Fault> {
    // Until the program begins it is our own code that runs there, for a few milliseconds. On a machine that is busy with other
    // things it would otherwise stand for seconds behind them. A checkpoint is another matter: it may take minutes.
    cgroup.set_hurry(plan.resume_from.is_none());
    cgroup
        .add(job.pid())
        .or_fault(FaultCode::Cgroup, "put the job into its cgroups")?;
    job.go_on()?;
    let patience = later(PATIENCE);
    let mut released = None;
    loop {
        desk.wait(&[(job.channel(), PollFlags::IN)], patience)
            .or_fault(FaultCode::Isolation, "wait for the job's init")?;
        while let Some(heard) = desk.hear() {
            stop_at(heard)?;
        }
        match (job.hear(), released.take()) {
            (Ok(Some(InitSays::NeedsIds)), None) => {
                job.give_ids(plan)?;
                job.go_on()?;
            }
            (Ok(Some(InitSays::Ready)), None) => {
                cgroup.set_hurry(false);
                cgroup
                    .verify()
                    .map_err(|differs| Fault::new(FaultCode::LimitDiffers, differs.to_string()))?;
                let folders = job.folders()?;
                let meter = Meter::start(sela_clock::boot_us(), plan.limits.wall_ms, cgroup.frozen_time());
                job.go_on()?;
                released = Some((meter, folders));
            }
            (Ok(Some(InitSays::Runs)), Some(released)) => return Ok(released),
            (Ok(Some(InitSays::CannotStart { fault })), _) => return Err(fault),
            (Ok(None), before) => released = before,
            (Ok(Some(InitSays::NeedsIds | InitSays::Ready | InitSays::Runs | InitSays::ProgramEnded { .. })), _)
            | (Err(_), _) => return Err(died(cgroup, plan)),
        }
        if sela_clock::boot_us() >= patience {
            return Err(Fault::new(
                FaultCode::Isolation,
                "the job's walls did not stand within two minutes",
            ));
        }
    }
}

/// Before the program runs, every reason to hold it is a reason not to start it.
pub(super) fn stop_at(heard: Heard) -> Result<(), Fault> {
    let told = |why: &str| {
        Err(Fault::new(
            FaultCode::Stopped,
            format!("ended before the program was started: {why}"),
        ))
    };
    match heard {
        Heard::Order(Order::End { .. } | Order::Save { .. } | Order::Freeze { .. }) => told("the agent said so"),
        Heard::Order(Order::Thaw | Order::Grant) => Ok(()),
        Heard::Order(Order::Start { .. }) => Err(Fault::new(FaultCode::Orders, "a keeper guards one job only")),
        Heard::AgentGone => told("the agent is gone"),
        Heard::GrantExpired => told("the agent fell silent"),
        Heard::Shutdown => told("the machine is shutting down"),
        Heard::Unreadable(why) => Err(Fault::new(
            FaultCode::Orders,
            format!("the agent's order could not be read: {why}"),
        )),
    }
}

pub(super) fn died(cgroup: &Cgroup, plan: &JobPlan) -> Fault {
    if cgroup.memory_kills().is_ok_and(|kills| kills > 0) {
        let message = format!(
            "the job's memory limit of {} is too small to set it up, its checkpoint included",
            plan.limits.memory
        );
        return Fault::new(FaultCode::BadPlan, message);
    }
    Fault::new(
        FaultCode::Isolation,
        "the job's init was killed while it built the walls",
    )
}

fn undo(desk: &mut Desk, plan: &JobPlan, cgroup: &Cgroup, job: Option<&Job>) {
    // Nothing is billed and nothing reported of a job that never ran, so what cannot be undone here is the sweep's.
    drop(cgroup.kill());
    if let Some(job) = job {
        job.kill();
        job.reap();
    }
    // The groups above are other jobs', too.
    cgroup.set_hurry(false);
    remove_cgroups(desk, cgroup);
    tidy(desk, plan);
}

/// Removes the cgroups of a job whose processes are gone; the kernel lets go of them a little later than of the processes.
pub(super) fn remove_cgroups(desk: &mut Desk, cgroup: &Cgroup) {
    let patience = later(REMOVAL);
    while !cgroup.remove().unwrap_or(false) && sela_clock::boot_us() < patience {
        if desk.wait(&[], later(GLANCE)).is_err() {
            return;
        }
    }
}

/// Removes what the scratch folder holds for the job; all of it, where no agent is left to want the archives.
pub(super) fn tidy(desk: &Desk, plan: &JobPlan) {
    if desk.agent_is_gone() {
        drop(fs::remove_dir_all(&plan.scratch));
        return;
    }
    for name in [TOP, ROOT, crate::scratch::MOUNT] {
        drop(fs::remove_dir_all(plan.scratch.join(name)));
    }
    for name in docker::LEFT {
        drop(fs::remove_file(plan.scratch.join(name)));
    }
}
