//! The two programs of the desktop: the one with the tray carries nothing of the window, and either outlasts or ends with the
//! other as its owner expects.

use crate::at_a_desk;
use anyhow::{Context, ensure};
use sela_desktop_tests::{Desk, Start, wait_until_gone};
use sela_tests::{run, wait_for};
use std::process::Command;

const TITLE: &str = "Sela";
const WINDOW: &str = "sela-window";

/// What the program with the tray must never load: each of them stays in memory once it was there.
const HEAVY: [&str; 6] = ["webkit", "javascriptcore", "libgtk", "libgdk", "libgallium", "libEGL"];

/// The processes of the window that is open, once all of them are there.
fn window_processes(desk: &Desk) -> anyhow::Result<Vec<(u32, String)>> {
    desk.screen.wait_for_windows(TITLE, 1)?;
    wait_for("the web view", || {
        let processes = desk.children()?;
        let has = |part: &str| processes.iter().any(|(_, name)| name.starts_with(part));
        Ok((has(WINDOW) && has("WebKitWebProces")).then_some(processes))
    })
}

#[test]
fn closing_the_window_leaves_no_process_and_nothing_of_a_web_view_in_memory() {
    at_a_desk(|desk| {
        desk.start(Start::Shown, &[])?;
        let processes = window_processes(desk)?;
        desk.screen.close(desk.screen.wait_for_windows(TITLE, 1)?[0])?;
        wait_until_gone(&processes)?;
        ensure!(desk.children()?.is_empty(), "it still has {:?}", desk.children()?);
        ensure!(desk.shell.is_up()?);
        let files = desk.mapped_files()?;
        ensure!(files.len() > 3, "its memory does not read: {files:?}");
        for file in &files {
            let name = file.to_string_lossy();
            ensure!(!HEAVY.iter().any(|heavy| name.contains(heavy)), "it has loaded {name}");
        }
        Ok(())
    });
}

#[test]
fn a_window_that_dies_is_survived_and_opens_again() {
    at_a_desk(|desk| {
        desk.start(Start::Shown, &[])?;
        let processes = window_processes(desk)?;
        let (window, _) = processes
            .iter()
            .find(|(_, name)| name == WINDOW)
            .context("it is there")?;
        run(Command::new("kill").args(["-KILL", &window.to_string()]))?.good()?;
        wait_until_gone(&processes)?;
        wait_for("the log to say so", || {
            Ok(desk.log().contains("the window ended by itself").then_some(()))
        })?;
        ensure!(desk.shell.is_up()?);
        ensure!(desk.panel.announced() == 1, "the tray went, too");
        desk.panel.click_icon()?;
        let again = window_processes(desk)?;
        ensure!(again.iter().all(|process| !processes.contains(process)), "{again:?}");
        Ok(())
    });
}

#[test]
fn the_window_ends_with_the_program_that_has_the_tray() {
    at_a_desk(|desk| {
        desk.start(Start::Shown, &[])?;
        let processes = window_processes(desk)?;
        desk.shell.kill()?;
        wait_until_gone(&processes)?;
        // Nothing that it left behind keeps the next from starting.
        desk.start(Start::Hidden, &[])?;
        desk.panel.wait_for_state("The agent is not running.")?;
        desk.panel.click("Open Sela")?;
        let processes = window_processes(desk)?;
        desk.panel.click("Quit (ends jobs cleanly)")?;
        let status = desk.shell.wait()?;
        ensure!(status.success(), "the shell ended with {status}");
        wait_until_gone(&processes)
    });
}

#[test]
fn without_a_session_bus_there_is_the_window_and_closing_it_ends_the_program() {
    at_a_desk(|desk| {
        let mut command = desk.command(&["--hidden"])?;
        let nobody = format!("unix:path={}", desk.folder().join("nobody").display());
        command.env("DBUS_SESSION_BUS_ADDRESS", nobody);
        desk.shell.start(&mut command)?;
        let processes = window_processes(desk)?;
        desk.screen.close(desk.screen.wait_for_windows(TITLE, 1)?[0])?;
        let status = desk.shell.wait()?;
        ensure!(status.success(), "the shell ended with {status}");
        wait_until_gone(&processes)
    });
}
