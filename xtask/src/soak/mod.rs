//! `cargo xtask soak NAME`: what is tried hundreds of times with another seed each, and never the same twice. What a run is lives in
//! `sela-tests`; here it is counted, told, and said how to see a failure again.

use std::process::ExitCode;

use anyhow::ensure;
use sela_tests::soak::{crash, hits, run};

use crate::arguments::{Purpose, SoakName};
use crate::commands;
use crate::places::Places;
use crate::setup;

/// Programs that every run starts.
const PROGRAMS: [&str; 8] = [
    "-p",
    "sela-agent",
    "-p",
    "sela-exchange",
    "-p",
    "sela-nvml-sim",
    "-p",
    "sela-tests",
];

/// Runs `runs` seeds from `seed` on. Ends with a failure if any of them did.
///
/// # Errors
/// If the programs under test do not build.
pub(crate) fn soak(places: &Places, name: SoakName, seed: u64, runs: u64) -> anyhow::Result<ExitCode> {
    let (passed, failed) = match name {
        SoakName::Path => {
            prepare(places)?;
            path(seed, runs)
        }
        SoakName::Crash => {
            prepare(places)?;
            crashes(seed, runs)
        }
        SoakName::Schedule => schedule(places),
    };
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What a seed needs: programs, and root.
fn prepare(places: &Places) -> anyhow::Result<()> {
    setup::ensure(places, Purpose::Soak)?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "jobs run in isolation as root only so far: run this as root"
    );
    commands::run(commands::cargo(places, ["build", "--quiet", "--locked"]).args(PROGRAMS))
}

/// The whole of the schedule's oracle: it draws nothing, so that once is all.
fn schedule(places: &Places) -> (u64, u64) {
    let oracle = [
        "test",
        "--quiet",
        "--locked",
        "-p",
        "sela-core",
        "--test",
        "schedule_oracle",
    ];
    match commands::run(commands::cargo(places, oracle).args(["--", "--ignored"])) {
        Ok(()) => (1, 0),
        Err(error) => {
            println!("schedule: FAILED: {error:#}");
            (0, 1)
        }
    }
}

/// How many seeds every `cargo xtask test` takes of the path, always the same.
const SLICE: u64 = 4;

/// And which of the crashes: the moments that last too short for the path's own soak to hit them.
const CRASHES: [u64; 5] = [1, 2, 9, 10, 12];

/// Runs that slice and gives how many passed, failed and were skipped.
pub(crate) fn slice() -> (u64, u64, u64) {
    as_root(SLICE, "seeds of the path", || path(3, SLICE))
}

/// The same for the crashes.
pub(crate) fn crash_slice() -> (u64, u64, u64) {
    as_root(CRASHES.len() as u64, "crashes", || {
        told(CRASHES, "crash", crash::run, crash::hits)
    })
}

/// Jobs run in isolation as root only; a machine that must not skip anything (`CI=true`) counts that as failures.
fn as_root(runs: u64, what: &str, run: impl FnOnce() -> (u64, u64)) -> (u64, u64, u64) {
    if rustix::process::geteuid().is_root() {
        let (passed, failed) = run();
        return (passed, failed, 0);
    }
    println!("skipped: needs root: {runs} {what}");
    if std::env::var_os("CI").is_some() {
        (0, runs, 0)
    } else {
        (0, 0, runs)
    }
}

fn path(seed: u64, runs: u64) -> (u64, u64) {
    told(seed..seed.saturating_add(runs), "path", run, hits)
}

fn crashes(seed: u64, runs: u64) -> (u64, u64) {
    told(seed..seed.saturating_add(runs), "crash", crash::run, crash::hits)
}

/// Runs seeds, tells each, and counts those that passed and those that failed.
fn told<T: std::fmt::Display>(
    seeds: impl IntoIterator<Item = u64>,
    name: &str,
    run: impl Fn(u64) -> anyhow::Result<T>,
    hits: impl Fn(&[T]) -> String,
) -> (u64, u64) {
    let mut good: Vec<T> = Vec::new();
    let mut bad: Vec<u64> = Vec::new();
    for seed in seeds {
        match run(seed) {
            Ok(told) => {
                println!("{told}");
                good.push(told);
            }
            Err(error) => {
                println!("seed {seed}: FAILED: {error:#}");
                bad.push(seed);
            }
        }
    }
    println!("{}", hits(&good));
    for seed in &bad {
        println!("to see it again: cargo xtask soak {name} --seed {seed} --runs 1");
    }
    (good.len() as u64, bad.len() as u64)
}
