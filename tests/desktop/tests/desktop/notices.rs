//! Notifications, as a real daemon shows them, and with a daemon that never answers.

use crate::{in_a_world_with_a_desk, running_job};
use anyhow::ensure;
use sela_desktop_tests::{Daemon, SilentDaemon, Start};
use sela_nvml_sim::{CardFaults, Faults};
use sela_tests::{Plan, World};

#[test]
fn the_first_job_and_a_card_that_is_too_hot_are_told_of() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let daemon = Daemon::start(&desk.bus, &desk.screen, desk.folder())?;
        desk.start(Start::Hidden, &[])?;
        running_job(world)?;
        let first = daemon.wait("Your first job is running")?;
        ensure!(first.appname == "Sela", "{first:?}");
        ensure!(first.body.starts_with("RTX 3090 (SIMULATED) earns $"), "{first:?}");

        overheat(world)?;
        let hot = daemon.wait("A card became too hot")?;
        ensure!(
            hot.body.starts_with("The job on RTX 3090 (SIMULATED) was ended."),
            "{hot:?}"
        );
        let shown = daemon.shown()?;
        ensure!(shown.len() == 2, "more was told than there was: {shown:#?}");
        Ok(world.lab.set_faults(&Faults::default())?)
    });
}

#[test]
fn what_its_owner_switched_off_is_not_told() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let settings = desk.home().join(".config/sela");
        std::fs::create_dir_all(&settings)?;
        std::fs::write(settings.join("desktop.toml"), "[notifications]\nfirst_job = false\n")?;
        let daemon = Daemon::start(&desk.bus, &desk.screen, desk.folder())?;
        desk.start(Start::Hidden, &[])?;
        running_job(world)?;
        desk.panel.wait_for_state("Earning on your card.")?;
        // They are shown one after the other: once this one is, the other would have been.
        overheat(world)?;
        daemon.wait("A card became too hot")?;
        let shown = daemon.shown()?;
        ensure!(shown.len() == 1, "more was told than was wanted: {shown:#?}");
        Ok(world.lab.set_faults(&Faults::default())?)
    });
}

fn overheat(world: &World) -> anyhow::Result<()> {
    let faults = CardFaults {
        temperature_reads: Some(91),
        ..CardFaults::default()
    };
    let card = [(world.lab.cards()[0].uuid.clone(), faults)].into();
    Ok(world.lab.set_faults(&Faults { driver: None, card })?)
}

#[test]
fn a_notification_daemon_that_never_answers_holds_nothing_up() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let _silent = SilentDaemon::start(&desk.bus)?;
        desk.start(Start::Hidden, &[])?;
        running_job(world)?;
        desk.panel.wait_for_state("Earning on your card.")?;
        desk.panel.click("Share")?;
        desk.panel.wait_for_state("Paused until you share again.")?;
        sela_tests::wait_for("the log to say that nobody shows it", || {
            Ok(desk.log().contains("nobody shows notifications here").then_some(()))
        })
    });
}
