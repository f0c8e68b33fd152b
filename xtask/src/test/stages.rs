//! What `cargo xtask test` runs, in order: the list, and how each stage is started and counted.
//!
//! Order: what is cheap and often wrong comes first; what is long comes last.

use std::process::Command;

use anyhow::bail;

use crate::commands;
use crate::places::Places;
use crate::setup::{self, Tools};
use crate::test::tally::{Kind, Tally};
use crate::test::{pages, runners};
#[cfg(target_os = "linux")]
use crate::workload_image;

/// What a stage works with.
pub(crate) struct Around<'a> {
    pub(crate) places: &'a Places,
    pub(crate) tools: &'a Tools,
}

/// One stage of the test command.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether `--quick` runs it too.
    pub(crate) quick: bool,
    /// Runs it to its end. An error counts as one failure.
    pub(crate) run: fn(&Around<'_>) -> anyhow::Result<Tally>,
}

/// All stages in order.
pub(crate) fn all() -> Vec<Stage> {
    let stage = |name, kind, run| Stage {
        name,
        kind,
        quick: false,
        run,
    };
    let quick = |name, kind, run| Stage {
        name,
        kind,
        quick: true,
        run,
    };
    let mut all = vec![
        quick("formatting", Kind::Check, |around| {
            check(&mut around.cargo(["fmt", "--all", "--check"]))
        }),
        stage("spelling", Kind::Check, |around| check(&mut around.tool("typos", [])?)),
        stage("Cargo.lock is current", Kind::Check, lock_file_is_current),
        stage("licences, bans, sources", Kind::Check, |around| {
            // By hand, without `--log-level`, it also lists crates that are there in two versions.
            check(&mut around.cargo(["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]))
        }),
        stage("unused dependencies", Kind::Check, |around| {
            check(&mut around.cargo(["machete"]))
        }),
    ];
    all.extend(pages::before_programs());
    all.extend([
        // The desktop shell needs the system's web view to compile; whoever has none can still check the rest.
        quick("lints", Kind::Check, |around| {
            let mut clippy = around.cargo(["clippy", "--workspace", "--exclude", "sela-desktop"]);
            check(clippy.args(STRICTLY))
        }),
        stage("all programs compile", Kind::Build, |around| {
            check(&mut around.cargo(["build", "--locked", "--quiet"]))
        }),
        quick("unit tests", Kind::Unit, |around| {
            around.nextest(&["--lib", "--bins", "-E", "not package(sela-tests)"])
        }),
        stage("black-box tests", Kind::BlackBox, black_box_tests),
        stage("doc tests", Kind::DocTest, doc_tests),
    ]);
    all.extend(pages::after_programs());
    #[cfg(target_os = "linux")]
    all.extend([
        stage("workloads, optimised", Kind::Workload, workloads),
        stage("fuzz, a short run", Kind::Fuzz, |around| {
            let (passed, failed, skipped) = crate::fuzz::slice(around.places)?;
            Ok(Tally {
                passed,
                failed,
                skipped,
                ..Tally::default()
            })
        }),
        stage("soak of crashes, a fixed slice", Kind::Soak, |_| {
            let (passed, failed, skipped) = crate::soak::crash_slice();
            Ok(Tally {
                passed,
                failed,
                skipped,
                ..Tally::default()
            })
        }),
        stage("soak of the path, a fixed slice", Kind::Soak, |_| {
            let (passed, failed, skipped) = crate::soak::slice();
            Ok(Tally {
                passed,
                failed,
                skipped,
                ..Tally::default()
            })
        }),
    ]);
    all
}

/// How clippy is run: over tests too, and a warning is an error.
pub(crate) const STRICTLY: [&str; 6] = ["--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];

impl Around<'_> {
    /// Cargo with our tools in PATH, so that its subcommands are found there.
    pub(crate) fn cargo<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = commands::cargo(self.places, arguments);
        command.env("PATH", self.tools.path());
        command
    }

    /// A tool of ours in the root of the repository.
    fn tool<const N: usize>(&self, name: &str, arguments: [&str; N]) -> anyhow::Result<Command> {
        let mut command = Command::new(self.tools.program(name)?);
        command.current_dir(&self.places.root).args(arguments);
        Ok(command)
    }

    /// Tests by cargo-nextest; `which` selects them. No test at all is a failure: then the selection is wrong.
    pub(crate) fn nextest(&self, which: &[&str]) -> anyhow::Result<Tally> {
        counted(self.nextest_command().args(which), runners::nextest_summary)
    }

    fn nextest_command(&self) -> Command {
        self.cargo([
            "nextest",
            "run",
            "--locked",
            "--cargo-quiet",
            "--no-fail-fast",
            "--no-tests",
            "fail",
        ])
    }
}

/// One check: it holds if the command ends with 0.
pub(crate) fn check(command: &mut Command) -> anyhow::Result<Tally> {
    commands::run(command)?;
    Ok(Tally::PASSED)
}

/// Tests that a runner counts itself. If the runner failed and counted no failure (it did not compile, it was killed), that is one.
pub(crate) fn counted(command: &mut Command, summary: fn(&str) -> Option<Tally>) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let status = commands::watch(command, |line| tally += summary(line).unwrap_or_default())?;
    if !status.success() && tally.failed == 0 {
        println!("`{}` ended with {status}", commands::shown(command));
        tally += Tally::FAILED;
    }
    Ok(tally)
}

/// A stale lock file would be written anew by the first command that is not `--locked`, on everybody's machine.
fn lock_file_is_current(around: &Around<'_>) -> anyhow::Result<Tally> {
    if let Err(error) = commands::output(&mut around.cargo(["metadata", "--locked", "--format-version", "1"])) {
        bail!("{error:#}\nrun any cargo command and commit Cargo.lock");
    }
    Ok(Tally::PASSED)
}

/// Everything that is not inside a crate's own sources: what starts the real programs, some of it on an emulated machine.
fn black_box_tests(around: &Around<'_>) -> anyhow::Result<Tally> {
    let mut command = around.nextest_command();
    command.args(["-E", "kind(test) + package(sela-tests)"]);
    let kernel = setup::kernel_folder(around.places);
    if kernel.is_dir() {
        command.env("SELA_TEST_KERNEL", kernel);
    }
    counted(&mut command, runners::nextest_summary)
}

/// The examples in the documentation of our libraries. There may be none.
fn doc_tests(around: &Around<'_>) -> anyhow::Result<Tally> {
    counted(
        &mut around.cargo(["test", "--doc", "--locked", "--quiet"]),
        runners::doctest_summary,
    )
}

/// The work that tenants bring, with the real model: compiled as it is for the images of `cargo xtask run`.
#[cfg(target_os = "linux")]
fn workloads(around: &Around<'_>) -> anyhow::Result<Tally> {
    let model = workload_image::fetch_smollm2(&around.places.cache)?;
    let mut command = around.nextest_command();
    command
        .arg("--release")
        .args(workload_image::PACKAGES)
        .env("SELA_SMOLLM2_GGUF", model);
    counted(&mut command, runners::nextest_summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_is_formatting_lints_and_unit_tests() {
        let stages = all();
        let quick: Vec<_> = stages
            .iter()
            .filter(|stage| stage.quick)
            .map(|stage| stage.name)
            .collect();
        assert_eq!(quick, ["formatting", "lints", "unit tests"]);
    }

    #[test]
    fn the_page_is_built_before_the_programs_that_hold_it() {
        let stages = all();
        let place = |part: &str| stages.iter().position(|stage| stage.name.contains(part)).unwrap();
        assert!(place("npm packages") < place("pages: built"));
        assert!(place("pages: built") < place("all programs compile"));
        assert!(place("all programs compile") < place("a real agent"));
        assert!(place("shell: compiles") < place("window and tray"));
    }

    #[cfg(unix)]
    #[test]
    fn a_runner_that_dies_without_counting_is_one_failure() {
        for (script, expected) in [
            (
                "echo '  Summary [ 0.1s] 3 tests run: 3 passed, 0 skipped'",
                Tally {
                    passed: 3,
                    ..Tally::default()
                },
            ),
            (
                "echo '  Summary [ 0.1s] 3 tests run: 1 passed, 2 failed, 0 skipped'; exit 100",
                Tally {
                    passed: 1,
                    failed: 2,
                    skipped: 0,
                    ..Tally::default()
                },
            ),
            ("echo 'error: could not compile'; exit 101", Tally::FAILED),
            ("kill -9 $$", Tally::FAILED),
        ] {
            let tally = counted(Command::new("sh").args(["-c", script]), runners::nextest_summary).unwrap();
            assert_eq!(tally, expected, "{script}");
        }
    }
}
