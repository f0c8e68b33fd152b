//! The program inside the test images: holds the SIMULATED card's memory, computes step by step, saves after each step in
//! `/checkpoint`, writes what it found to `/out`. What it finds depends on the number of steps only, so that a result shows
//! whether an interrupted run really went on where it had stopped.
//!
//! `sela-test-job --steps N --step-ms MS [--save-ms MS] [--deaf] [--exit CODE]`
#![allow(clippy::print_stdout, reason = "what it prints is the job's log, which tests read")]

#[path = "../work.rs"]
mod work;

use sela_nvml_sim::Allocation;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CHECKPOINT: &str = "/checkpoint/step";
const RESULT: &str = "/out/result";
/// SIGTERM's number on Linux.
const TERMINATE: i32 = 15;

struct Orders {
    steps: u64,
    step: Duration,
    /// How long saving takes when it is asked to.
    save: Duration,
    /// Hears no SIGTERM.
    deaf: bool,
    exit: u8,
}

/// How far it is: the number of steps done and what they came to.
#[derive(Clone, Copy)]
struct Progress {
    step: u64,
    value: u64,
}

fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    let orders = read_orders(std::env::args().skip(1))?;
    let asked_to_save = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(TERMINATE, Arc::clone(&asked_to_save))?;
    let _held = hold_the_card()?;
    let mut progress = read_checkpoint(Path::new(CHECKPOINT))?;
    println!("begins after step {} of {}", progress.step, orders.steps);
    while progress.step < orders.steps {
        progress = next(progress);
        std::thread::sleep(orders.step);
        save(Path::new(CHECKPOINT), progress)?;
        println!("step {} of {}", progress.step, orders.steps);
        if asked_to_save.load(Ordering::Relaxed) && !orders.deaf {
            std::thread::sleep(orders.save);
            println!("saved after step {}", progress.step);
            return Ok(std::process::ExitCode::from(128 + 15));
        }
    }
    std::fs::write(RESULT, format!("{} {:016x}\n", progress.step, progress.value))?;
    println!("done");
    Ok(std::process::ExitCode::from(orders.exit))
}

/// The memory that the job was given, held as long as this process lives.
fn hold_the_card() -> Result<Allocation, Box<dyn std::error::Error>> {
    let device =
        std::env::var_os("SELA_SIM_DEVICE").ok_or("SELA_SIM_DEVICE is not set: this job needs a SIMULATED card")?;
    let mib = std::env::var("SELA_SIM_VRAM_MIB")?.parse()?;
    let held = Allocation::take(Path::new(&device), mib)?;
    println!("holds {mib} MiB of a SIMULATED card");
    Ok(held)
}

fn next(before: Progress) -> Progress {
    Progress {
        step: before.step + 1,
        value: work::step(before.value),
    }
}

fn read_checkpoint(path: &Path) -> Result<Progress, Box<dyn std::error::Error>> {
    let Ok(text) = std::fs::read_to_string(path) else {
        return Ok(Progress { step: 0, value: 0 });
    };
    let (step, value) = text.trim().split_once(' ').ok_or("the checkpoint does not read")?;
    Ok(Progress {
        step: step.parse()?,
        value: u64::from_str_radix(value, 16)?,
    })
}

/// Whole or not at all: it may be ended at any moment.
fn save(path: &Path, progress: Progress) -> std::io::Result<()> {
    let part = path.with_extension("part");
    std::fs::write(&part, format!("{} {:016x}\n", progress.step, progress.value))?;
    std::fs::rename(part, path)
}

fn read_orders(mut words: impl Iterator<Item = String>) -> Result<Orders, String> {
    let mut orders = Orders {
        steps: 1,
        step: Duration::ZERO,
        save: Duration::ZERO,
        deaf: false,
        exit: 0,
    };
    while let Some(word) = words.next() {
        if word == "--deaf" {
            orders.deaf = true;
            continue;
        }
        let number: u64 = words
            .next()
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("{word} needs a number"))?;
        match word.as_str() {
            "--steps" => orders.steps = number,
            "--step-ms" => orders.step = Duration::from_millis(number),
            "--save-ms" => orders.save = Duration::from_millis(number),
            "--exit" => orders.exit = u8::try_from(number).map_err(|_| "an exit code is at most 255")?,
            _ => return Err(format!("unknown word {word}")),
        }
    }
    Ok(orders)
}
