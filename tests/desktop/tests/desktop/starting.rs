//! Starting: once, at login, without a display.

use crate::at_a_desk;
use anyhow::ensure;
use sela_desktop_tests::Start;
use sela_tests::{program, run, wait_for};
use std::process::Command;

const TITLE: &str = "Sela";

#[test]
fn a_second_start_shows_the_window_of_the_first() {
    at_a_desk(|desk| {
        desk.start(Start::Hidden, &[])?;
        desk.panel.wait_for_state("The agent is not running.")?;
        desk.start_again(&["--hidden"])?.good()?;
        ensure!(desk.screen.windows(TITLE)?.is_empty(), "nobody wanted the window");
        desk.start_again(&[])?.good()?;
        desk.screen.wait_for_windows(TITLE, 1)?;
        desk.start_again(&[])?.good()?;
        ensure!(desk.screen.windows(TITLE)?.len() == 1, "there are two windows");
        ensure!(desk.panel.announced() == 1, "there are two trays");
        ensure!(desk.shell.is_up()?);
        Ok(())
    });
}

#[test]
fn start_at_login_is_off_until_asked_for_and_starts_only_the_tray() {
    const LINE: &str = "Start at login";
    at_a_desk(|desk| {
        let entry = desk.home().join(".config/autostart/Sela.desktop");
        desk.start(Start::Hidden, &[])?;
        let menu = desk.panel.wait_for_state("The agent is not running.")?;
        ensure!(menu.item(LINE)?.checked == Some(false), "{menu:#?}");
        ensure!(!entry.exists(), "nobody asked for it");

        desk.panel.click(LINE)?;
        wait_for("the entry", || Ok(entry.exists().then_some(())))?;
        desk.panel.wait("the check", |menu| {
            menu.item(LINE).is_ok_and(|item| item.checked == Some(true))
        })?;
        let text = std::fs::read_to_string(&entry)?;
        let line = format!("Exec={} --hidden", program("sela-desktop")?.display());
        ensure!(text.lines().any(|found| found == line), "{text}");

        desk.panel.click(LINE)?;
        desk.panel.wait("no check", |menu| {
            menu.item(LINE).is_ok_and(|item| item.checked == Some(false))
        })?;
        ensure!(!entry.exists(), "it is still there");
        Ok(())
    });
}

#[test]
fn without_a_display_it_says_what_to_do_instead() {
    let mut command = Command::new(program("sela-desktop").expect("built"));
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    let ran = run(&mut command).expect("runs");
    ran.refused(1, &["there is no display", "--listen"])
        .expect("it says so");
}
