//! `cargo xtask fuzz TARGET`: builds the targets of `tests/fuzz` with our crates instrumented, lets libFuzzer run one of them for a
//! while, and says what came of it. What a target does lives there; its corpus grows under `target/fuzz`, and is only a cache.

mod figures;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::arguments::{FuzzTarget, Purpose};
use crate::commands;
use crate::places::{Places, Profile};
use crate::setup;
use figures::Figures;

/// How long one input may take before it counts as a hang.
const HANG_S: u32 = 10;
/// Most memory of the whole process.
const MEMORY_MIB: u32 = 1024;
/// Longest input, in bytes: room for several requests, small enough for thousands of runs a second.
const LONGEST: u32 = 8192;
/// Seconds that each target gets in `cargo xtask test`.
const SLICE_S: u64 = 10;
/// The compiler of our own crates, in `tests/fuzz`: for long runs, and for that short one.
const OPTIMISED: &str = "instrumented-rustc";
const QUICK: &str = "quick-rustc";

/// Runs each of `targets` for so many seconds, as many at a time as there are processors; fails if any has a finding.
///
/// # Errors
/// If the targets do not build.
pub(crate) fn fuzz(places: &Places, targets: &[FuzzTarget], seconds: u64) -> anyhow::Result<ExitCode> {
    setup::ensure(places, Purpose::Fuzz)?;
    let (passed, failed, skipped) = run_all(places, targets, seconds, OPTIMISED)?;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The short run of `cargo xtask test`: how many targets passed, failed and were skipped.
///
/// # Errors
/// If the targets do not build.
pub(crate) fn slice(places: &Places) -> anyhow::Result<(u64, u64, u64)> {
    run_all(places, FuzzTarget::ALL, SLICE_S, QUICK)
}

fn run_all(places: &Places, targets: &[FuzzTarget], seconds: u64, compiler: &str) -> anyhow::Result<(u64, u64, u64)> {
    let is_root = rustix::process::geteuid().is_root();
    let may = |target: &FuzzTarget| is_root || !target.needs_root();
    let (run, left_out): (Vec<FuzzTarget>, Vec<FuzzTarget>) = targets.iter().copied().partition(may);
    for target in &left_out {
        println!("skipped: needs root: {}", target.name());
    }
    build(places, &run, compiler)?;
    let mut failed = 0;
    for pair in run.chunks(thread::available_parallelism().map_or(1, usize::from)) {
        let outcomes: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = pair
                .iter()
                .map(|target| scope.spawn(|| run_one(places, *target, seconds)))
                .collect();
            running.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        for (target, outcome) in pair.iter().zip(outcomes) {
            match outcome {
                Ok(Ok(figures)) => println!("{}: {figures}", target.name()),
                Ok(Err(error)) => {
                    println!("{}: FAILED: {error:#}", target.name());
                    failed += 1;
                }
                Err(_) => bail!("{} could not be watched", target.name()),
            }
        }
    }
    let skipped = left_out.len() as u64;
    // A machine that must not skip anything counts that as failures.
    let (failed, skipped) = if std::env::var_os("CI").is_some() {
        (failed + skipped, 0)
    } else {
        (failed, skipped)
    };
    Ok((targets.len() as u64 - failed - skipped, failed, skipped))
}

fn build(places: &Places, targets: &[FuzzTarget], compiler: &str) -> anyhow::Result<()> {
    let mut command = commands::cargo(places, ["build", "--quiet", "--locked", "-p", "sela-fuzz"]);
    // All that is built anyway is named beside it: what others wrote then has the same features, and is not compiled anew.
    for package in default_members(places)? {
        command.args(["-p", &package]);
    }
    for target in targets {
        command.args(["--bin", &target.program()]);
    }
    command.env("RUSTC_WORKSPACE_WRAPPER", places.root.join("tests/fuzz").join(compiler));
    commands::run(&mut command)
}

fn default_members(places: &Places) -> anyhow::Result<Vec<String>> {
    let metadata = ["metadata", "--no-deps", "--locked", "--format-version", "1"];
    let metadata = commands::output(&mut commands::cargo(places, metadata))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo's metadata does not read")?;
    let default = metadata["workspace_default_members"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let names = packages.iter().filter(|package| default.contains(&package["id"]));
    Ok(names
        .filter_map(|package| Some(package["name"].as_str()?.to_owned()))
        .collect())
}

fn run_one(places: &Places, target: FuzzTarget, seconds: u64) -> anyhow::Result<Figures> {
    let folder = places.target.join("fuzz").join(target.name());
    let (corpus, findings) = (folder.join("corpus"), folder.join("findings"));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let log = folder.join("log");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let program = places.program(Profile::Dev, &target.program());
    let mut command = Command::new(&program);
    command
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={HANG_S}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-max_len={LONGEST}"))
        .args(["-print_final_stats=1", "-verbosity=1"])
        .env("SELA_FUZZ_SEEDS", &corpus)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let playground = PathBuf::from(format!("/dev/shm/sela-fuzz-{}", child.id()));
    let status = child.wait()?;
    // A target may have none; one that was killed cannot remove its own.
    let _ = fs::remove_dir_all(playground);
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if status.success() {
        return figures::read(&text).with_context(|| format!("{} says nothing of what was run", log.display()));
    }
    bail!(
        "{status}; its log is {}\n{}\nto see it again: {} FILE, the file being named above",
        log.display(),
        figures::what_was_found(&text),
        program.display()
    )
}
