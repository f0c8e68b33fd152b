//! The path on a real NVIDIA card, as `tests/gpu/run.sh` runs it: every sensor beside what `nvidia-smi` says, `nvidia-smi` and a
//! CUDA program as a stranger's jobs inside the sandbox, whose process NVML attributes, and how fast the card comes back. Prints
//! what it found; exit codes: 0 all as promised, 1 not, 5 no card here.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program that measures: it runs peers and prints what it found"
)]

use anyhow::{Context, bail, ensure};
use sela_gpu::Nvml;
use sela_protocol::card::{CardDescription, Reading};
use sela_protocol::id::{JobId, LeaseId};
use sela_protocol::units::Bytes;
use sela_tests::{Plan, TestImage, World, boot_us, image_of_a_program, job_pids, program, run, test_job, wait_for};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Memory that the CUDA program takes.
const HELD: Bytes = Bytes::from_mib(512);

fn main() -> ExitCode {
    let driver = match Nvml::start(None) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(5);
        }
    };
    match measure(&driver) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("not as promised: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(driver: &Nvml) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this must run as root: the sandbox needs it"
    );
    let cards = driver.cards()?;
    let card = cards.first().context("the driver lists no card")?;
    compare_sensors(driver, &cards)?;
    let plan = Plan {
        real_card: true,
        ..Plan::default()
    };
    let mut world = World::begin(&plan)?;
    let told = inside_and_back(driver, card, &mut world);
    if let Err(error) = told {
        bail!("{error:#}\n{}", world.logs());
    }
    world.close()
}

/// Every reading beside what `nvidia-smi` prints for it, and that a limit set to what it is stays.
fn compare_sensors(driver: &Nvml, cards: &[CardDescription]) -> anyhow::Result<()> {
    let columns = "uuid,name,temperature.gpu,power.draw,power.limit,utilization.gpu,memory.used,clocks.sm,fan.speed";
    let mut command = Command::new("nvidia-smi");
    command.args([&format!("--query-gpu={columns}"), "--format=csv"]);
    println!("driver {}", driver.driver_version());
    println!("nvidia-smi says:\n{}", run(&mut command)?.good()?);
    println!("sela reads:");
    for card in cards {
        let reading = driver.read(&card.uuid)?;
        ensure!(!card.simulated, "{} is SIMULATED: this is for real cards", card.name);
        println!(
            "{} {}\n  {reading:?}\n  limits {:?}",
            card.uuid, card.name, card.power_limits
        );
        ensure!(
            reading.temperature.value().is_some(),
            "no temperature: {:?}",
            reading.temperature
        );
        if let Reading::Value { value } = reading.power_limit {
            match driver.set_power_limit(&card.uuid, value) {
                Ok(()) => println!("  the limit in force could be set again: limits can be enforced here"),
                Err(error) => println!("  limits cannot be enforced here: {error}"),
            }
        }
    }
    Ok(())
}

/// `nvidia-smi`, then the CUDA program, as jobs; then the card is taken back.
fn inside_and_back(driver: &Nvml, card: &CardDescription, world: &mut World) -> anyhow::Result<()> {
    let listed = Path::new("/usr/bin/nvidia-smi");
    let image = image_of_a_program(listed, "nvidia-smi", &world.folder().join("tenant/nvidia-smi"))?;
    let job = submit(world, &image, &["-L"])?;
    world.tenant.wait_until_done(job)?;
    let log = world.tenant.log(job)?;
    println!("nvidia-smi -L inside the sandbox:\n{log}");
    ensure!(
        log.matches("UUID:").count() == 1 && log.contains(&card.uuid.0),
        "a job must see its card and no other"
    );

    let probe = program("sela-cuda-probe")?;
    let image = image_of_a_program(
        &probe,
        "sela-cuda-probe",
        &world.folder().join("tenant/sela-cuda-probe"),
    )?;
    let job = submit(world, &image, &[&(HELD.0 >> 20).to_string(), "600"])?;
    world.tenant.wait_until_it_says(job, "\"right\":true")?;
    println!("the CUDA program inside the sandbox:\n{}", world.tenant.log(job)?);
    let lease = world.lease_of(job)?;
    let held = held_by(driver, card, lease)?;
    println!("NVML attributes {} MiB to the job's process", held.0 >> 20);
    ensure!(held >= HELD, "NVML attributes only {held} to the job");
    take_back(driver, card, world, lease)
}

/// From `sela pause` to the driver listing no process of the job, and to its memory being what it was.
fn take_back(driver: &Nvml, card: &CardDescription, world: &World, lease: LeaseId) -> anyhow::Result<()> {
    let pids = job_pids(lease);
    let asked = boot_us();
    world.owner.sela(&["pause"])?.good()?;
    wait_for("the driver to list no process of the job", || {
        let listed = driver.processes(&card.uuid)?;
        Ok((!listed.iter().any(|process| pids.contains(&process.pid))).then_some(()))
    })?;
    println!(
        "pause → no process of the job on the card: {} ms",
        (boot_us() - asked) / 1_000
    );
    let snapshot = world.owner.wait("the giving back to be measured", |snapshot| {
        snapshot.cards.iter().any(|card| card.last_yield.is_some())
    })?;
    println!("as the agent measured it: {:?}", snapshot.cards[0].last_yield);
    world.owner.sela(&["resume"])?.good()?;
    Ok(())
}

fn submit(world: &World, image: &TestImage, words: &[&str]) -> anyhow::Result<JobId> {
    world.tenant.store(image)?;
    world.tenant.submit(&test_job(image.blob, words))
}

/// What the driver says that the processes of a lease's job hold.
fn held_by(driver: &Nvml, card: &CardDescription, lease: LeaseId) -> anyhow::Result<Bytes> {
    let pids = job_pids(lease);
    let processes = driver.processes(&card.uuid)?;
    let of_job = processes.iter().filter(|process| pids.contains(&process.pid));
    Ok(Bytes(
        of_job
            .filter_map(|process| process.vram_used.value())
            .map(|bytes| bytes.0)
            .sum(),
    ))
}
