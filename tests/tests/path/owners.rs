//! The owner wants the card: by a game, by a word, by quitting, or because it is too hot. Each time the card comes back, the
//! reason is named, and the tenant's job goes on later from where it was.

use anyhow::{Context, ensure};
use sela_nvml_sim::{CardFaults, Faults};
use sela_protocol::id::{JobId, LeaseId};
use sela_protocol::lease::EndCause;
use sela_protocol::tenant::{JobState, JobView};
use sela_tests::{Part, Plan, World, expected_result, in_a_world, program};
use std::process::Command;

/// A job that runs for some seconds, when it runs and has a checkpoint stored.
fn running_job(world: &mut World, steps: &str) -> anyhow::Result<(JobId, LeaseId)> {
    let job = world.submit(&["--steps", steps, "--step-ms", "50"])?;
    world.tenant.wait_until_it_says(job, "step 3 of")?;
    world.tenant.wait_for_a_checkpoint(job)?;
    Ok((job, world.lease_of(job)?))
}

/// Waits until the job's first lease has ended, and gives why.
fn first_end(world: &World, job: JobId) -> anyhow::Result<EndCause> {
    let view = world.tenant.wait(job, "the card to be given back", |view| {
        view.leases.first().is_some_and(|lease| lease.end.is_some())
    })?;
    view.leases[0].end.clone().context("it has ended")
}

/// Waits until the job is done, on a second lease, from its checkpoint.
fn done_on_a_second_lease(world: &World, job: JobId, steps: u64) -> anyhow::Result<JobView> {
    let view = world.tenant.wait_until_done(job)?;
    ensure!(
        view.leases.len() == 2,
        "it took {} leases: {:#?}",
        view.leases.len(),
        view.leases
    );
    ensure!(
        world.tenant.output(job)?["result"] == expected_result(steps).as_bytes(),
        "another result"
    );
    let log = world.tenant.log(job)?;
    ensure!(
        log.matches("begins after step 0 of").count() == 1,
        "it began anew: {log}"
    );
    Ok(view)
}

fn card_faults(world: &World, faults: CardFaults) -> anyhow::Result<()> {
    let card = [(world.lab.cards()[0].uuid.clone(), faults)].into();
    Ok(world.lab.set_faults(&Faults { driver: None, card })?)
}

#[test]
fn a_game_ends_the_job_and_why_names_it_until_it_is_over() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "60")?;
        let mut game = Part::new("game", world.folder().join("logs/game.log"));
        let mut command = Command::new(program("sela-sim-hold")?);
        command
            .arg("--device")
            .arg(world.device_node())
            .args(["--mib", "2048", "--graphics"]);
        game.start(&mut command)?;
        let end = first_end(world, job)?;
        let named = matches!(&end, EndCause::OwnerProgram { name } if name.as_deref() == Some("sela-sim-hold"));
        ensure!(named, "ended by {end:?}");
        let why = world.owner.why()?;
        ensure!(why.contains("sela-sim-hold") && why.contains("2048 MiB"), "{why}");
        ensure!(sela_tests::job_pids(lease).is_empty(), "the job is still there");
        game.kill()?;
        done_on_a_second_lease(world, job, 60).map(drop)
    });
}

#[test]
fn a_hot_reading_ends_the_job_and_the_card_rests_until_it_has_cooled() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "60")?;
        let hot = CardFaults {
            temperature_reads: Some(91),
            ..CardFaults::default()
        };
        card_faults(world, hot)?;
        let end = first_end(world, job)?;
        ensure!(end == EndCause::Hot, "ended by {end:?}");
        let why = world.owner.why()?;
        ensure!(why.contains("91 °C") && why.contains("65 °C"), "{why}");
        world.wait_until_nothing_is_left(&[lease])?;
        card_faults(world, CardFaults::default())?;
        world.owner.wait("the card to be cool", |snapshot| {
            snapshot.cards[0].availability.is_available()
        })?;
        done_on_a_second_lease(world, job, 60).map(drop)
    });
}

#[test]
fn a_card_that_is_lost_ends_the_job_and_is_shared_again_when_it_is_back() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "60")?;
        let lost = CardFaults {
            lost: true,
            ..CardFaults::default()
        };
        card_faults(world, lost)?;
        let end = first_end(world, job)?;
        ensure!(end == EndCause::CardLost, "ended by {end:?}");
        let why = world.owner.why()?;
        ensure!(why.contains("cannot be read"), "{why}");
        world.wait_until_nothing_is_left(&[lease])?;
        card_faults(world, CardFaults::default())?;
        done_on_a_second_lease(world, job, 60).map(drop)
    });
}

#[test]
fn pause_ends_the_job_and_resume_lets_it_go_on() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "60")?;
        world.owner.sela(&["pause"])?.good()?;
        let end = first_end(world, job)?;
        ensure!(end == EndCause::OwnerCommand, "ended by {end:?}");
        world.wait_until_nothing_is_left(&[lease])?;
        let why = world.owner.why()?;
        ensure!(why.contains("you paused it") && why.contains("sela resume"), "{why}");
        ensure!(world.owner.snapshot()?.pause.is_some(), "status shows no pause");
        ensure!(
            matches!(world.tenant.view(job)?.state, JobState::Queued { .. }),
            "it should wait"
        );
        world.owner.sela(&["resume"])?.good()?;
        done_on_a_second_lease(world, job, 60).map(drop)
    });
}

#[test]
fn end_takes_the_card_back_at_once_and_the_job_goes_on_after_the_cool_off() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "60")?;
        let other = "lease_01890a5d-ac96-774b-bcce-b302099a8057";
        let refused = world.owner.sela(&["end", other])?;
        ensure!(
            refused.code != Some(0) && refused.code != Some(2),
            "a lease that is not here: {refused:?}"
        );
        world.owner.sela(&["end", &lease.to_string()])?.good()?;
        let end = first_end(world, job)?;
        ensure!(end == EndCause::OwnerCommand, "ended by {end:?}");
        done_on_a_second_lease(world, job, 60).map(drop)
    });
}

#[test]
fn a_tenant_cancels_a_running_job_and_pays_for_what_it_ran() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "2000")?;
        world
            .tenant
            .rest
            .post_text(&format!("/v1/jobs/{job}/cancel"), "")?
            .good()?;
        let view = world.tenant.wait_for_end(job)?;
        ensure!(view.state == JobState::Cancelled, "ended as {:?}", view.state);
        ensure!(
            view.leases[0].end == Some(EndCause::TenantCancelled),
            "{:?}",
            view.leases
        );
        world.wait_until_nothing_is_left(&[lease])
    });
}

#[test]
fn an_agent_that_is_told_to_quit_ends_its_job_first_and_the_job_goes_on_with_the_next_agent() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, "60")?;
        let status = world.owner.agent.end()?;
        ensure!(status.success(), "the agent ended with {status}");
        let traces = world.traces(&[lease]);
        ensure!(traces.is_nothing(), "left by an agent that quit: {traces}");
        let end = first_end(world, job)?;
        ensure!(end == EndCause::Shutdown, "ended by {end:?}");
        world.owner.start_agent()?;
        done_on_a_second_lease(world, job, 60).map(drop)
    });
}
