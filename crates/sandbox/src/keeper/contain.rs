//! From the order to start to the program's first instruction, where a container engine builds the walls: asked for by `docker`,
//! looked at here, each through the kernel's own eyes. Whatever goes wrong leaves nothing behind and is nobody's to pay for.

use super::desk::Desk;
use super::end::{clear_away, take_down};
use super::guard::Watch;
use super::later;
use super::meter::Meter;
use super::set_up::{PATIENCE, died, remove_cgroups, stop_at, tidy};
use super::wire::{Egress, Fault, FaultCode, JobPlan, Report};
use crate::cgroup::Cgroup;
use crate::docker::{self, Container, EngineCgroups, EnginePlan, Step, Unpacking};
use crate::error::OrFault as _;
use crate::first_process::FirstProcess as _;
use crate::native::{Folders, InitSays, last_at_the_disk};
use rustix::event::PollFlags;
use sela_protocol::confidential::Confidential;
use sela_protocol::units::BootUs;
use std::os::fd::AsFd as _;

/// Has a container made, leads it through its steps and reports `Started`.
pub(super) fn contain<'a>(
    desk: &mut Desk,
    plan: &'a JobPlan,
    engine: &EnginePlan,
    mut confidential: Confidential,
) -> Result<Watch<'a>, Fault> {
    let mut cgroup = match engine.cgroups {
        EngineCgroups::Ours => Some(
            Cgroup::create(&plan.cgroups, plan.lease, &plan.limits)
                .map_err(|error| Fault::new(FaultCode::Cgroup, error.to_string()))?,
        ),
        EngineCgroups::BelowOurs | EngineCgroups::Systemds => None,
    };
    hurry(cgroup.as_ref());
    // SAFETY: `run` has seen that this process has one thread, and nothing here starts another.
    let container = unsafe { Container::ask_for(plan, engine, &mut confidential) };
    let mut container = match container {
        Ok(container) => container,
        Err(fault) => {
            undo(desk, plan, cgroup.as_ref(), None);
            return Err(fault);
        }
    };
    let led = lead(desk, plan, engine, &mut cgroup, &mut container, &mut confidential);
    match (led, cgroup) {
        (Ok((meter, folders)), Some(cgroup)) => {
            desk.report(&Report::Started {
                init_pid: container.pid(),
                started_boot_us: meter.started(),
                cgroup: cgroup.folder().to_owned(),
            });
            let key = confidential.result_key.clone();
            Ok(Watch::new(plan, key, cgroup, Box::new(container), folders, meter))
        }
        (led, cgroup) => {
            undo(desk, plan, cgroup.as_ref(), Some(&mut container));
            Err(led
                .err()
                .unwrap_or_else(|| Fault::new(FaultCode::Cgroup, "the container has no cgroup")))
        }
    }
}

/// An engine's own programs build the walls from inside the job's groups, where a busy machine would have them wait for minutes.
fn hurry(cgroup: Option<&Cgroup>) {
    if let Some(cgroup) = cgroup {
        cgroup.set_hurry(true);
    }
}

/// Step by step, from the order to the program.
fn lead(
    desk: &mut Desk,
    plan: &JobPlan,
    engine: &EnginePlan,
    cgroup: &mut Option<Cgroup>,
    container: &mut Container,
    confidential: &mut Confidential,
) -> Result<(Meter, Folders), Fault> {
    let patience = later(PATIENCE);
    let mut released = None;
    loop {
        let step = next_step(desk, container, patience, |why| {
            why.unwrap_or_else(|| match &*cgroup {
                Some(cgroup) => died(cgroup, plan),
                None => Fault::new(FaultCode::Isolation, "the container's first process was killed"),
            })
        })?;
        match (step, released.take()) {
            (Step::Born, None) => {
                if cgroup.is_none() {
                    let place = &plan.cgroups;
                    let found = (container.pid(), container.id());
                    let adopted = Cgroup::adopt(place.layout, &place.root, found, &plan.limits);
                    *cgroup = Some(adopted.map_err(|error| Fault::new(FaultCode::Cgroup, error.to_string()))?);
                    hurry(cgroup.as_ref());
                }
            }
            (Step::Called, None) => {}
            (Step::Said(InitSays::Ready), None) => {
                let Some(cgroup) = &*cgroup else { continue };
                let folders = furnish(desk, plan, engine, container, cgroup, confidential, patience)?;
                cgroup.set_hurry(false);
                cgroup
                    .verify()
                    .map_err(|differs| Fault::new(FaultCode::LimitDiffers, differs.to_string()))?;
                let meter = Meter::start(sela_clock::boot_us(), plan.limits.wall_ms, cgroup.frozen_time());
                container.release()?;
                released = Some((meter, folders));
            }
            (Step::Said(InitSays::Runs), Some(released)) => return Ok(released),
            (Step::Said(InitSays::CannotStart { fault }), _) => return Err(fault),
            (Step::Born | Step::Called | Step::Said(_), _) => {
                return Err(Fault::new(
                    FaultCode::Isolation,
                    "the container's first process said something out of turn",
                ));
            }
        }
    }
}

/// Waits for the next step; every reason to hold a job is a reason not to start it.
fn next_step(
    desk: &mut Desk,
    container: &mut Container,
    patience: BootUs,
    why: impl FnOnce(Option<Fault>) -> Fault,
) -> Result<Step, Fault> {
    loop {
        match container.step() {
            Ok(Some(step)) => return Ok(step),
            Ok(None) => {}
            Err(fault) => return Err(why(fault)),
        }
        if sela_clock::boot_us() >= patience {
            return Err(too_long());
        }
        container
            .with_interests(|interests| desk.wait(interests, patience))
            .or_fault(FaultCode::Isolation, "wait for the container")?;
        while let Some(heard) = desk.hear() {
            stop_at(heard)?;
        }
    }
}

fn too_long() -> Fault {
    Fault::new(
        FaultCode::Isolation,
        "the engine did not have the job's walls up within two minutes",
    )
}

/// The walls are looked at, the places to write given to the job, its secrets handed over, its checkpoint unpacked.
fn furnish(
    desk: &mut Desk,
    plan: &JobPlan,
    engine: &EnginePlan,
    container: &Container,
    cgroup: &Cgroup,
    confidential: &mut Confidential,
    patience: BootUs,
) -> Result<Folders, Fault> {
    let ids = container.read_back(plan, engine)?;
    // Its own list of system calls keeps the first process from doing so itself; what it starts inherits this.
    last_at_the_disk(container.pid())?;
    // SAFETY: `run` has seen that this process has one thread, and nothing here starts another.
    let folders = unsafe { container.folders(plan, engine, ids, &confidential.secrets) }?;
    confidential.secrets.clear();
    if plan.egress == Egress::Proxy {
        // SAFETY: as above.
        unsafe { docker::open_network(container.pid(), desk.agent()) }?;
    }
    let Some(archive) = &plan.resume_from else {
        return Ok(folders);
    };
    let unpacking = Unpacking {
        archive,
        key: &confidential.result_key,
        folder: folders.checkpoint.as_fd(),
        user_namespace: folders.user_namespace.as_fd(),
        user: (plan.program.user, plan.program.group),
        limit: plan.limits.output,
    };
    // SAFETY: as above.
    let mut unpacker = unsafe { docker::unpack_checkpoint(&unpacking, &plan.cgroups, container.pid()) }?;
    loop {
        match unpacker.outcome() {
            Some(Ok(())) => return Ok(folders),
            Some(Err(fault)) => return Err(fault.unwrap_or_else(|| died(cgroup, plan))),
            None if sela_clock::boot_us() >= patience => return Err(too_long()),
            None => {}
        }
        desk.wait(&[(unpacker.answer(), PollFlags::IN)], patience)
            .or_fault(FaultCode::Isolation, "wait for the checkpoint")?;
        while let Some(heard) = desk.hear() {
            stop_at(heard)?;
        }
    }
}

fn undo(desk: &mut Desk, plan: &JobPlan, cgroup: Option<&Cgroup>, container: Option<&mut Container>) {
    // Nothing is billed and nothing reported of a job that never ran, so what cannot be undone here is the sweep's.
    if let Some(cgroup) = cgroup {
        drop(cgroup.kill());
    }
    if let Some(container) = container {
        container.kill();
        container.reap();
        take_down(desk, container);
    }
    if let Some(cgroup) = cgroup {
        remove_cgroups(desk, cgroup);
    }
    clear_away(desk, plan);
    if let Some(cgroup) = cgroup {
        // The groups above are other jobs', too.
        cgroup.set_hurry(false);
    }
    tidy(desk, plan);
}
