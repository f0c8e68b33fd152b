//! The desktop app put through its stages for `cargo xtask bench desktop`: started, shown, closed, opened again, with a real agent that
//! watches a SIMULATED card and a display, and shares. Times the starts itself. What the stages cost is measured from outside: for each
//! it writes a line with its name and the process ids to look at, and goes on when it is given a line.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "standard output is how it speaks to who measures"
)]

use anyhow::ensure;
use sela_desktop_tests::{Desk, Start};
use sela_tests::{Plan, World, wait_for};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often the app is started, and how often its window is opened again. Odd, so that the middle one is one of them.
const TIMES: usize = 7;
const TITLE: &str = "Sela";
/// What the app says when the page has the agent's first news on its screen.
const SHOWS_THE_AGENT: &str = "the window shows the agent";

fn main() -> ExitCode {
    match World::begin(&plan()).and_then(|mut world| {
        let told = stages(&world);
        if told.is_err() {
            eprintln!("{}", world.logs());
        }
        told.and_then(|()| world.close())
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn plan() -> Plan {
    Plan {
        display: true,
        ..Plan::default()
    }
}

fn stages(world: &World) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "run this as root: the agent's sandbox needs it"
    );
    let runtime = world.folder().join("runtime");
    let mut desk = Desk::begin(&world.folder().join("desk"), &runtime)?;
    let mut starts = Vec::new();
    for _ in 0..TIMES {
        if desk.shell.is_up()? {
            desk.shell.kill()?;
            desk.screen.wait_for_windows(TITLE, 0)?;
        }
        starts.push(until_the_agent_is_shown(&mut desk, |desk| {
            desk.start(Start::Shown, &[])
        })?);
    }
    let processes = [desk.shell.pid()?, world.owner.agent.pid()?];
    stage("shown", &processes)?;
    close(&desk)?;
    stage("closed", &processes)?;
    let mut openings = Vec::new();
    for _ in 0..TIMES {
        openings.push(until_the_agent_is_shown(&mut desk, |desk| {
            desk.panel.click("Open Sela")
        })?);
        close(&desk)?;
    }
    println!(
        "{}",
        json!({ "start_ms": in_ms(&starts), "reopen_ms": in_ms(&openings) })
    );
    Ok(())
}

/// From `begin` to the moment at which the page has news of the agent on its screen; also waits for the window itself.
fn until_the_agent_is_shown(
    desk: &mut Desk,
    begin: impl FnOnce(&mut Desk) -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let before = times_shown(desk);
    let begun = Instant::now();
    begin(desk)?;
    let took = wait_for("the window to show the agent", || {
        Ok((times_shown(desk) > before).then(|| begun.elapsed()))
    })?;
    desk.screen.wait_for_windows(TITLE, 1)?;
    Ok(took)
}

fn times_shown(desk: &Desk) -> usize {
    desk.log().matches(SHOWS_THE_AGENT).count()
}

fn close(desk: &Desk) -> anyhow::Result<()> {
    for window in desk.screen.wait_for_windows(TITLE, 1)? {
        desk.screen.close(window)?;
    }
    desk.screen.wait_for_windows(TITLE, 0)?;
    wait_for("the window's processes to be gone", || {
        Ok(desk.children()?.is_empty().then_some(()))
    })
}

/// Says where we are and waits until whoever measures has seen enough.
fn stage(name: &str, processes: &[u32]) -> anyhow::Result<()> {
    println!("{}", json!({ "stage": name, "processes": processes }));
    let mut line = String::new();
    ensure!(
        std::io::stdin().read_line(&mut line)? > 0,
        "whoever measured has gone away"
    );
    Ok(())
}

fn in_ms(spans: &[Duration]) -> Vec<f64> {
    spans.iter().map(|span| span.as_secs_f64() * 1000.0).collect()
}
