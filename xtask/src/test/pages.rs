//! The stages of the web pages and of the desktop shell that shows them: npm's packages, their checks, their tests, the built page, and the shell
//! that is compiled around it.

use std::process::Command;

use crate::bindings;
use crate::setup;
use crate::test::runners;
use crate::test::stages::{Around, STRICTLY, Stage, check, counted};
use crate::test::tally::{Kind, Tally};

/// In order: each needs what those before it made.
pub(crate) fn all() -> Vec<Stage> {
    let stage = |name, kind, run| Stage {
        name,
        kind,
        quick: false,
        run,
    };
    vec![
        stage("pages: the protocol's types", Kind::Check, |around| {
            bindings::check(around.places).map(|()| Tally::PASSED)
        }),
        stage("npm packages of the pages", Kind::Build, |around| {
            check(&mut npm(around, &["ci", "--no-audit", "--no-fund"])?)
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
        stage("desktop shell: lints", Kind::Check, |around| {
            let mut clippy = around.cargo(["clippy", "-p", "sela-desktop"]);
            check(clippy.args(STRICTLY))
        }),
        stage("desktop shell: tests", Kind::Unit, |around| {
            around.nextest(&["-p", "sela-desktop"])
        }),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_built_before_the_shell_that_shows_it() {
        let names: Vec<_> = all().iter().map(|stage| stage.name).collect();
        let place = |part: &str| names.iter().position(|name| name.contains(part));
        assert!(
            place("npm packages") < place("built") && place("built") < place("shell"),
            "{names:?}"
        );
    }
}
