//! `cargo xtask …`: the one door to everything that is set up, run, tested or measured here.
//!
//! This file reads the command line and calls the verb; each verb is a module. Nothing here is shipped to anybody, and nothing
//! here decides anything that the product decides.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks on its terminal"
)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "running, measuring and soaking are for Linux so far")
)]

mod arguments;
mod bench;
mod bindings;
mod commands;
#[cfg(target_os = "linux")]
mod fuzz;
mod page;
mod places;
mod processes;
#[cfg(target_os = "linux")]
mod run;
mod setup;
#[cfg(target_os = "linux")]
mod soak;
mod test;
#[cfg(target_os = "linux")]
mod workload_image;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, FuzzTarget, SoakName, Verb};
use places::Places;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match act(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\n{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line asks. An error means that the verb could not do its work; a test that failed is a code, not an error.
fn act(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let places = Places::find()?;
    match &arguments.verb {
        Verb::Setup { purpose } => {
            setup::ensure(&places, *purpose)?;
            println!("everything that `cargo xtask {}` needs is here", purpose.verb());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run { once } => run(&places, *once),
        Verb::Test { quick } => test::test(&places, *quick),
        Verb::Bindings => bindings::write(&places).map(|()| ExitCode::SUCCESS),
        Verb::Bench { name, record, rounds } => bench::bench(&places, *name, *record, *rounds),
        Verb::Soak { name, seed, runs } => soak(&places, *name, *seed, *runs),
        Verb::Fuzz { target, seconds, .. } => {
            let one = target.as_ref().map(std::slice::from_ref);
            fuzz(&places, one.unwrap_or(FuzzTarget::ALL), *seconds)
        }
    }
}

#[cfg(target_os = "linux")]
fn run(places: &Places, once: bool) -> anyhow::Result<ExitCode> {
    run::run(places, once)
}

#[cfg(not(target_os = "linux"))]
fn run(_places: &Places, _once: bool) -> anyhow::Result<ExitCode> {
    anyhow::bail!("jobs run in isolation on Linux only so far; `cargo xtask test --quick` works here")
}

#[cfg(target_os = "linux")]
fn fuzz(places: &Places, targets: &[FuzzTarget], seconds: u64) -> anyhow::Result<ExitCode> {
    fuzz::fuzz(places, targets, seconds)
}

#[cfg(not(target_os = "linux"))]
fn fuzz(_places: &Places, _targets: &[FuzzTarget], _seconds: u64) -> anyhow::Result<ExitCode> {
    anyhow::bail!("the targets unpack images and serve sockets of Linux so far; `cargo xtask test --quick` works here")
}

#[cfg(target_os = "linux")]
fn soak(places: &Places, name: SoakName, seed: u64, runs: u64) -> anyhow::Result<ExitCode> {
    soak::soak(places, name, seed, runs)
}

#[cfg(not(target_os = "linux"))]
fn soak(_places: &Places, _name: SoakName, _seed: u64, _runs: u64) -> anyhow::Result<ExitCode> {
    anyhow::bail!("jobs run in isolation on Linux only so far; `cargo xtask test --quick` works here")
}
