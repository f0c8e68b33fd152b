//! The tray by D-Bus, as a panel sees it.

use crate::{at_a_desk, in_a_world_with_a_desk, running_job, wait_until_no_job_runs};
use anyhow::{Context, ensure};
use sela_desktop_tests::{Desk, Panel, Picture, Portal, Scheme, Start, Supervisor};
use sela_protocol::units::Millis;
use sela_tests::{Plan, wait_for};

const EARNING: &str = "Earning on your card.";
const PAUSED: &str = "Paused until you share again.";
const MISSING: &str = "The agent is not running.";

#[test]
fn one_click_in_the_tray_pauses_a_running_job_and_another_shares_again() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let lease = running_job(world)?;
        desk.start(Start::Hidden, &[])?;
        let menu = desk.panel.wait_for_state(EARNING)?;
        ensure!(menu.item("Share")?.checked == Some(true), "{menu:#?}");
        let earned = &menu.0[1].label;
        ensure!(
            earned.starts_with("Earned today: $") && earned.ends_with("net (LAB)"),
            "{earned}"
        );
        let earning = desk.panel.icon()?;

        desk.panel.click("Share")?;
        let menu = desk.panel.wait_for_state(PAUSED)?;
        ensure!(menu.item("Share")?.checked == Some(false), "{menu:#?}");
        wait_until_no_job_runs(world)?;
        world.wait_until_nothing_is_left(&[lease])?;
        ensure!(desk.panel.icon()? != earning, "the icon did not change");

        desk.panel.click("Share")?;
        desk.panel.wait("sharing again", |menu| {
            menu.state() == "Sharing: your card waits for a job." || menu.state() == EARNING
        })?;
        ensure!(world.owner.snapshot()?.pause.is_none());
        Ok(())
    });
}

#[test]
fn the_pauses_of_the_tray_end_when_they_say() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        desk.start(Start::Hidden, &[])?;
        desk.panel.wait_for_state("Sharing: your card waits for a job.")?;
        desk.panel.click("Pause for 1 hour")?;
        let snapshot = world.owner.wait("the pause", |snapshot| snapshot.pause.is_some())?;
        let pause = snapshot.pause.context("it is there")?;
        let until = pause.until_utc_ms.context("it ends")?;
        ensure!(until.since(pause.since_utc_ms) == Millis::from_secs(3600), "{pause:?}");

        desk.panel.click("Pause until tomorrow")?;
        let is_at_six = |utc_ms: i64| (utc_ms / 60_000).rem_euclid(24 * 60) == 23 * 60;
        let snapshot = world.owner.wait("the longer pause", |snapshot| {
            snapshot.pause.and_then(|pause| pause.until_utc_ms) != Some(until)
        })?;
        let until = snapshot.pause.and_then(|pause| pause.until_utc_ms).context("it ends")?;
        // 6:00 in Jakarta is 23:00 UTC. The agent counts from when it hears the command, so a few milliseconds are lost.
        ensure!(is_at_six(until.0), "{until}");
        desk.panel
            .wait("the time", |menu| menu.state().ends_with("6:00 AM."))
            .map(drop)
    });
}

#[test]
fn quit_ends_the_job_the_agent_and_the_tray() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let lease = running_job(world)?;
        desk.start(Start::Hidden, &[])?;
        desk.panel.wait_for_state(EARNING)?;
        desk.panel.click("Quit (ends jobs cleanly)")?;
        let status = world.owner.agent.wait()?;
        ensure!(status.success(), "the agent ended with {status}");
        let status = desk.shell.wait()?;
        ensure!(status.success(), "the shell ended with {status}");
        world.wait_until_nothing_is_left(&[lease])
    });
}

#[test]
fn the_supervisor_is_asked_for_a_missing_agent_and_the_tray_follows_when_it_comes() {
    let plan = Plan {
        agent: false,
        ..Plan::default()
    };
    in_a_world_with_a_desk(&plan, |world, desk| {
        let supervisor = Supervisor::start(&desk.bus)?;
        desk.start(Start::Hidden, &[])?;
        let asked = wait_for("the supervisor to be asked", || {
            let asked = supervisor.asked();
            Ok((!asked.is_empty()).then_some(asked))
        })?;
        ensure!(
            asked == [("sela-agent.service".to_owned(), "replace".to_owned())],
            "{asked:?}"
        );
        ensure!(desk.children()?.is_empty(), "it started {:?}", desk.children()?);
        world.owner.start_agent()?;
        desk.panel.wait_for_state("Sharing: your card waits for a job.")?;
        // An agent that somebody stopped stays stopped.
        let status = world.owner.agent.end()?;
        ensure!(status.success(), "the agent ended with {status}");
        let menu = desk.panel.wait_for_state(MISSING)?;
        ensure!(!menu.item("Pause for 1 hour")?.enabled, "{menu:#?}");
        ensure!(supervisor.asked().len() == 1, "{:?}", supervisor.asked());
        Ok(())
    });
}

#[test]
fn without_agent_and_supervisor_the_tray_says_so_and_quit_just_leaves() {
    at_a_desk(|desk| {
        desk.start(Start::Hidden, &[])?;
        let menu = desk.panel.wait_for_state(MISSING)?;
        ensure!(menu.item("Share")?.checked == Some(false), "{menu:#?}");
        wait_for("the log to say who was asked", || {
            Ok(desk.log().contains("no systemd of this user answers").then_some(()))
        })?;
        desk.panel.click("Quit (ends jobs cleanly)")?;
        let status = desk.shell.wait()?;
        ensure!(status.success(), "the shell ended with {status}");
        Ok(())
    });
}

#[test]
fn a_panel_that_starts_again_gets_the_tray_again() {
    at_a_desk(|desk| {
        desk.start(Start::Hidden, &[])?;
        desk.panel.wait_for_state(MISSING)?;
        desk.panel.leave(&desk.bus)?;
        desk.panel = Panel::start(&desk.bus)?;
        desk.panel.wait_for_state(MISSING)?;
        ensure!(
            desk.panel.announced() == 1,
            "it announced itself {} times",
            desk.panel.announced()
        );
        ensure!(desk.screen.windows("Sela")?.is_empty(), "nobody wanted the window");
        Ok(())
    });
}

#[test]
fn the_icon_follows_a_panel_that_follows_the_desktops_colours() {
    at_a_desk(|desk| {
        let portal = Portal::start(&desk.bus, Scheme::Light)?;
        let start_on = |desk: &mut Desk, desktop: &str| {
            let before = desk.panel.announced();
            let mut command = desk.command(&["--hidden"])?;
            desk.shell.start(command.env("XDG_CURRENT_DESKTOP", desktop))?;
            wait_for("the tray", || Ok((desk.panel.announced() > before).then_some(())))?;
            desk.panel.wait_for_state(MISSING)
        };
        start_on(desk, "GNOME")?;
        let dark = desk.panel.icon()?;
        desk.shell.kill()?;
        start_on(desk, "KDE")?;
        let until =
            |what: &str, is: &dyn Fn(&[Picture]) -> bool| wait_for(what, || Ok(is(&desk.panel.icon()?).then_some(())));
        until("the icon for a light panel", &|icon| *icon != dark)?;
        portal.change(Scheme::Dark)?;
        until("the icon for a dark panel", &|icon| *icon == dark)?;
        portal.change(Scheme::Light)?;
        until("the icon for a light panel again", &|icon| *icon != dark)
    });
}

#[test]
fn the_tray_speaks_indonesian() {
    at_a_desk(|desk| {
        desk.start(Start::Hidden, &["--language", "id"])?;
        let menu = desk.panel.wait_for_state("Agen tidak berjalan.")?;
        for line in ["Bagikan", "Jeda 1 jam", "Jeda sampai besok", "Buka Sela"] {
            menu.item(line)?;
        }
        Ok(())
    });
}
