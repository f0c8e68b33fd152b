//! The stages of the web pages and of the desktop shell that shows them: npm's packages, their checks, their tests, the built page, and
//! the shell that is compiled around it.

use std::process::Command;

use crate::bindings;
use crate::setup;
use crate::test::runners;
use crate::test::stages::{Around, STRICTLY, Stage, check, counted};
use crate::test::tally::{Kind, Tally};

/// What comes before everything that is compiled: the agent and the shell hold the built page.
pub(crate) fn before_programs() -> Vec<Stage> {
    vec![
        stage("npm packages of the pages", Kind::Build, |around| {
            check(&mut npm(around, &["ci", "--no-audit", "--no-fund"])?)
        }),
        stage("pages: the protocol's types", Kind::Check, |around| {
            bindings::check(around.places).map(|()| Tally::PASSED)
        }),
        stage("pages: formatting", Kind::Check, |around| {
            check(&mut npm(around, &["run", "format:check"])?)
        }),
        stage("pages: lints", Kind::Check, |around| {
            check(&mut npm(around, &["run", "lint"])?)
        }),
        stage("pages: types and words", Kind::Check, |around| {
            check(&mut npm(around, &["run", "check"])?)
        }),
        stage("pages: unit tests", Kind::Unit, |around| {
            counted(&mut npm(around, &["run", "test"])?, runners::vitest_summary)
        }),
        stage("pages: built, within their size", Kind::Build, |around| {
            check(&mut npm(around, &["run", "build"])?)
        }),
    ]
}

/// What needs the programs: the pages in a browser before a real agent, the desktop shell, its real window and tray.
pub(crate) fn after_programs() -> Vec<Stage> {
    vec![
        stage("pages in a browser: scenes", Kind::BlackBox, |around| {
            counted(&mut npm(around, &["run", "scenes"])?, runners::vitest_summary)
        }),
        stage("pages in a browser: a real agent", Kind::BlackBox, |around| {
            counted(&mut npm(around, &["run", "e2e"])?, runners::vitest_summary)
        }),
        stage("desktop shell: lints", Kind::Check, |around| {
            let mut clippy = around.cargo(["clippy", "-p", "sela-desktop"]);
            check(clippy.args(STRICTLY))
        }),
        stage("desktop shell: compiles", Kind::Build, |around| {
            check(&mut around.cargo(["build", "--locked", "--quiet", "-p", "sela-desktop"]))
        }),
        stage("desktop shell: unit tests", Kind::Unit, |around| {
            around.nextest(&["-p", "sela-desktop"])
        }),
        stage("desktop shell: window and tray", Kind::BlackBox, |around| {
            around.nextest(&["-p", "sela-desktop-tests"])
        }),
    ]
}

fn stage(name: &'static str, kind: Kind, run: fn(&Around<'_>) -> anyhow::Result<Tally>) -> Stage {
    Stage {
        name,
        kind,
        quick: false,
        run,
    }
}

/// npm in the root of the repository, without colours and questions.
fn npm(around: &Around<'_>, arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(setup::program("npm")?);
    command
        .current_dir(&around.places.root)
        .args(arguments)
        .env("NO_COLOR", "1")
        .env("CI", "true");
    Ok(command)
}
