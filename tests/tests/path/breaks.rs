//! Parts that die: killed at the worst moment, stopped, started late. Whatever is left of a job is gone by itself, every lease is
//! paid exactly once, and the job goes on.

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sela_protocol::id::{JobId, LeaseId};
use sela_protocol::lease::EndCause;
use sela_protocol::local::MarketLink;
use sela_protocol::tenant::JobView;
use sela_protocol::units::Millis;
use sela_tests::{Gate, Plan, World, boot_us, expected_result, in_a_world, job_pids, keeper_of};

/// Steps of a job that runs for four seconds, and of one that outlasts a grant.
const SHORT: u64 = 80;
const LONG: u64 = 200;

/// A job of so many steps of a twentieth of a second, when it runs and has a checkpoint stored.
fn running_job(world: &mut World, steps: u64) -> anyhow::Result<(JobId, LeaseId)> {
    let job = world.submit(&["--steps", &steps.to_string(), "--step-ms", "50"])?;
    world.tenant.wait_until_it_says(job, "step 3 of")?;
    world.tenant.wait_for_a_checkpoint(job)?;
    Ok((job, world.lease_of(job)?))
}

/// Waits until nothing is left and says how long after `since` that was. The bound that the design promises is 5 s + 1 s; a busy
/// machine's delay is no reason to fail, so it is told and not asserted.
fn tell_when_nothing_is_left(world: &World, lease: LeaseId, what: &str, since: u64) -> anyhow::Result<()> {
    world.wait_until_nothing_is_left(&[lease])?;
    println!(
        "measured: {what}: nothing of the job left after {} ms",
        (boot_us() - since) / 1_000
    );
    Ok(())
}

fn done_from_its_checkpoint(world: &World, job: JobId, steps: u64) -> anyhow::Result<JobView> {
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

#[test]
fn an_agent_that_starts_before_the_exchange_keeps_trying_and_says_so() {
    let plan = Plan {
        agent: false,
        ..Plan::default()
    };
    in_a_world(&plan, |world| {
        world.exchange.part.kill()?;
        world.owner.start_agent()?;
        world.owner.wait("the agent to say that nobody answers", |snapshot| {
            matches!(
                &snapshot.market,
                MarketLink::Connecting {
                    last_error: Some(_),
                    ..
                }
            )
        })?;
        let shown = world.owner.sela(&["status"])?;
        ensure!(
            shown.good()?.contains(&world.exchange.url()),
            "status names no exchange: {}",
            shown.stdout
        );
        world.exchange.start_again()?;
        let job = world.submit(&["--steps", "1"])?;
        world.tenant.wait_until_done(job).map(drop)
    });
}

#[test]
fn an_exchange_that_is_killed_in_the_middle_of_a_job_loses_and_doubles_nothing() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, SHORT)?;
        let processes = job_pids(lease);
        world.exchange.part.kill()?;
        world.owner.wait("the agent to see it", |snapshot| {
            matches!(snapshot.market, MarketLink::Connecting { .. })
        })?;
        ensure!(
            !processes.is_empty() && job_pids(lease) == processes,
            "the job did not go on without the exchange"
        );
        world.exchange.start_again()?;
        let view = world.tenant.wait_until_done(job)?;
        ensure!(
            view.leases.len() == 1,
            "it took {} leases: {:#?}",
            view.leases.len(),
            view.leases
        );
        let log = world.tenant.log(job)?;
        for step in 1..=SHORT {
            let said = log.matches(&format!("step {step} of {SHORT}\n")).count();
            ensure!(said == 1, "step {step} stands {said} times in the log:\n{log}");
        }
        Ok(())
    });
}

#[test]
fn a_killed_agent_leaves_nothing_and_its_lease_is_paid_to_the_millisecond_when_it_is_back() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, SHORT)?;
        let killed = boot_us();
        world.owner.agent.kill()?;
        tell_when_nothing_is_left(world, lease, "kill -9 of the agent", killed)?;
        // What the keeper wrote down is all that is known of the last seconds.
        let account = std::fs::read(world.owner.data().join(format!("accounts/{lease}.json")));
        let account: serde_json::Value = serde_json::from_slice(&account.context("the keeper left no account")?)?;
        let number = |name: &str| {
            account[name]
                .as_u64()
                .with_context(|| format!("no {name} in {account}"))
        };
        let ran = number("ended_boot_us")? - number("started_boot_us")? - number("frozen_us")?;
        ensure!(number("thawed_ms")? == ran / 1_000, "{account}");
        world.owner.start_agent()?;
        let view = done_from_its_checkpoint(world, job, SHORT)?;
        ensure!(
            view.leases[0].end == Some(EndCause::AgentRestarted),
            "{:?}",
            view.leases
        );
        ensure!(
            view.leases[0].billed_ms == Millis(ran / 1_000),
            "billed {} of {ran} µs",
            view.leases[0].billed_ms
        );
        Ok(())
    });
}

#[test]
fn a_stopped_agent_loses_its_job_when_the_grant_runs_out_and_goes_on_when_it_wakes() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, LONG)?;
        let stopped = boot_us();
        world.owner.agent.signal(Signal::STOP)?;
        sela_tests::wait_for("the job to be gone", || Ok(job_pids(lease).is_empty().then_some(())))?;
        println!(
            "measured: SIGSTOP of the agent: the job's processes gone after {} ms",
            (boot_us() - stopped) / 1_000
        );
        tell_when_nothing_is_left(world, lease, "SIGSTOP of the agent", stopped)?;
        world.owner.agent.signal(Signal::CONT)?;
        let view = done_from_its_checkpoint(world, job, LONG)?;
        ensure!(view.leases[0].end == Some(EndCause::GrantExpired), "{:?}", view.leases);
        Ok(())
    });
}

#[test]
fn a_killed_keeper_takes_its_job_with_it_and_the_job_goes_on() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, SHORT)?;
        let keeper = keeper_of(world.owner.agent.pid()?).context("the agent has no keeper")?;
        let killed = boot_us();
        kill(keeper)?;
        sela_tests::wait_for("the job to be gone", || Ok(job_pids(lease).is_empty().then_some(())))?;
        tell_when_nothing_is_left(world, lease, "kill -9 of the keeper", killed)?;
        let view = done_from_its_checkpoint(world, job, SHORT)?;
        ensure!(
            matches!(&view.leases[0].end, Some(EndCause::NodeFault { message }) if message.contains("keeper")),
            "{:?}",
            view.leases
        );
        Ok(())
    });
}

#[test]
fn a_job_whose_keeper_dies_between_its_end_and_its_results_goes_on_and_is_paid_for_both_parts() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, SHORT)?;
        let agent = world.owner.agent.pid()?;
        let keeper = keeper_of(agent).context("the agent has no keeper")?;
        // It has said that the job is gone before it makes the file for what the job made: there it is held, and dies.
        let gate = Gate::at(&[world.owner.data().join(format!("scratch/{lease}"))])?;
        let held = gate.hold("the keeper to collect what the job made", |pid, path| {
            pid == keeper && path.ends_with("out.sealed")
        })?;
        kill(held.pid)?;
        drop(held);
        drop(gate);
        world.wait_until_nothing_is_left(&[lease])?;
        let view = done_from_its_checkpoint(world, job, SHORT)?;
        ensure!(
            matches!(&view.leases[0].end, Some(EndCause::NodeFault { message }) if message.contains("collected")),
            "{:?}",
            view.leases
        );
        ensure!(view.leases[0].billed_ms > Millis(0), "{:?}", view.leases);
        Ok(())
    });
}

fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .context("a process id")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

#[test]
fn a_job_whose_agent_is_killed_before_its_results_are_stored_is_not_taken_for_done() {
    in_a_world(&Plan::default(), |world| {
        let (job, lease) = running_job(world, SHORT)?;
        let account = world.owner.data().join(format!("accounts/{lease}.json"));
        sela_tests::wait_for("the job to end by itself", || Ok(account.exists().then_some(())))?;
        world.owner.agent.kill()?;
        world.owner.start_agent()?;
        let view = world.tenant.wait_until_done(job)?;
        ensure!(
            world.tenant.output(job)?["result"] == expected_result(SHORT).as_bytes(),
            "another result"
        );
        // Where the disk was faster than the kill, everything was stored and one lease was enough.
        let ends: Vec<_> = view.leases.iter().filter_map(|lease| lease.end.clone()).collect();
        let exited = EndCause::Exited { code: 0 };
        ensure!(
            ends == [EndCause::AgentRestarted, exited.clone()] || ends == [exited],
            "{ends:?}"
        );
        Ok(())
    });
}
