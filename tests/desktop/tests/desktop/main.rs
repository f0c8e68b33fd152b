//! The desktop shell from outside, story by story: what is seen in the tray, in the window and in notifications, and what a
//! click does to a real agent with a real job.

mod halves;
mod notices;
mod pictures;
mod starting;
mod tray;
mod window;

use anyhow::ensure;
use sela_desktop_tests::Desk;
use sela_protocol::id::LeaseId;
use sela_protocol::lease::LeasePhase;
use sela_tests::{Plan, World, in_a_world};
use std::path::Path;

/// Tells a story about a desktop without an agent.
fn at_a_desk(story: impl FnOnce(&mut Desk) -> anyhow::Result<()>) {
    let folder = tempfile::Builder::new()
        .prefix("sela-desk-")
        .tempdir()
        .expect("a folder");
    let told = told_at(folder.path(), &folder.path().join("runtime"), story);
    if let Err(error) = told {
        panic!("{error:#}");
    }
}

/// Tells a story about a desktop in a world with an exchange, a tenant and an agent.
fn in_a_world_with_a_desk(plan: &Plan, story: impl FnOnce(&mut World, &mut Desk) -> anyhow::Result<()>) {
    in_a_world(plan, |world| {
        let runtime = world.folder().join("runtime");
        let folder = world.folder().join("desk");
        told_at(&folder, &runtime, |desk| {
            story(world, desk)?;
            cancel_what_still_runs(world)
        })
    });
}

/// A world's books can be checked only when no job goes on.
fn cancel_what_still_runs(world: &World) -> anyhow::Result<()> {
    for job in world.tenant.jobs()?.iter().map(|view| view.job) {
        // One that is done already is none to cancel, and says so.
        world.tenant.rest.post_text(&format!("/v1/jobs/{job}/cancel"), "")?;
        world.tenant.wait_for_end(job)?;
    }
    Ok(())
}

fn told_at(folder: &Path, runtime: &Path, story: impl FnOnce(&mut Desk) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut desk = Desk::begin(folder, runtime)?;
    story(&mut desk).map_err(|error| error.context(format!("\n──── desktop.log\n{}\n────", desk.log())))
}

/// A job that runs for some minutes.
fn running_job(world: &mut World) -> anyhow::Result<LeaseId> {
    let job = world.submit(&["--steps", "6000", "--step-ms", "50"])?;
    world.tenant.wait_until_it_says(job, "step 3 of")?;
    world.lease_of(job)
}

/// Waits until the agent has no lease any more.
fn wait_until_no_job_runs(world: &World) -> anyhow::Result<()> {
    let snapshot = world.owner.wait("the job to be gone", |snapshot| {
        let phases = snapshot.cards.iter().filter_map(|card| card.lease.as_ref());
        phases
            .map(|lease| lease.phase)
            .all(|phase| phase != LeasePhase::Running)
    })?;
    ensure!(!snapshot.cards.is_empty(), "the card went too");
    Ok(())
}
