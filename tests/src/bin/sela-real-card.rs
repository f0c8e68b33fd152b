//! The path on a real NVIDIA card, as `tests/gpu/run.sh` runs it: every sensor beside what `nvidia-smi` says, `nvidia-smi` and a
//! CUDA program as a stranger's jobs inside the sandbox, whose process NVML attributes, and how fast the card comes back; then how
//! well the job is held to its card: its nodes and no others, nothing of who had the memory before, what a freeze does to kernels that
//! are queued. Prints what it found; exit codes: 0 all as promised, 1 not, 5 no card here.
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
use sela_tests::{
    Plan, TestImage, World, boot_us, cgroup_of, image_of_a_program, job_pids, number_in, program, run, test_job,
    wait_for,
};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Memory that the CUDA program takes.
const HELD: Bytes = Bytes::from_mib(512);

/// Bytes that the owner's program and the tenant's fill the card's memory with.
const OWNERS: &str = "79";
const TENANTS: &str = "84";

/// Memory by which a card's use changes though nobody does anything.
const SLACK: Bytes = Bytes::from_mib(64);

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
    // Before there is an agent: the probe holds all of the card, which an agent would take for the owner's game.
    residue_without_a_wipe()?;
    let plan = Plan {
        real_card: true,
        display: true,
        ..Plan::default()
    };
    let mut world = World::begin(&plan)?;
    let told = inside_and_back(driver, card, &mut world)
        .and_then(|()| only_its_nodes(driver, card, &mut world))
        .and_then(|()| nothing_left_in_memory(card, &mut world))
        .and_then(|()| frozen_with_kernels_queued(driver, card, &mut world));
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

    let image = probe_image(world)?;
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

/// What whoever had the memory before leaves to a plain program: first that the probe can find anything at all, then what this driver
/// clears by itself, which it promises to nobody.
fn residue_without_a_wipe() -> anyhow::Result<()> {
    let probe = program("sela-cuda-probe")?;
    let ask = |words: &[&str]| {
        let said = run(Command::new(&probe).args(words))?;
        println!("outside the sandbox, {}:\n{}", words.join(" "), said.stdout);
        anyhow::Ok(said)
    };
    println!("what lies in the card's memory, without a wipe:");
    ask(&["again", OWNERS])?
        .good()
        .context("the probe found nothing of what it wrote itself, so it would show nothing")?;
    ask(&["fill", OWNERS])?.good()?;
    let next = ask(&["look", OWNERS])?;
    println!(
        "{}",
        if next.code == Some(0) {
            "this driver clears memory between two programs by itself"
        } else {
            "this driver hands one program's memory to the next as it is"
        }
    );
    Ok(())
}

/// The nodes that computing takes on this card, and none of another card's or of a display's.
fn only_its_nodes(driver: &Nvml, card: &CardDescription, world: &mut World) -> anyhow::Result<()> {
    let image = probe_image(world)?;
    let job = submit(world, &image, &["nodes"])?;
    world.tenant.wait_until_done(job)?;
    let log = world.tenant.log(job)?;
    println!("nodes inside the sandbox:\n{log}");
    let said: serde_json::Value = serde_json::from_str(log.lines().next().context("the probe said nothing")?)?;
    let given = driver.device_nodes(&card.uuid, None)?;
    let mut given: Vec<String> = given
        .iter()
        .filter(|node| node.exists())
        .map(|node| node.display().to_string())
        .collect();
    given.sort();
    ensure!(
        said["nodes"] == serde_json::json!(given),
        "the job's nodes must be {given:?} and no others"
    );
    let outside = std::fs::read_dir("/dev")?.flatten();
    let outside = outside.filter(|entry| entry.file_name().to_string_lossy().starts_with("nvidia"));
    println!("{} nodes and folders of NVIDIA's are outside", outside.count());
    Ok(())
}

/// One tenant fills the card, the next finds nothing of it, nor of what the owner's program left before.
fn nothing_left_in_memory(card: &CardDescription, world: &mut World) -> anyhow::Result<()> {
    let image = probe_image(world)?;
    let job = submit(world, &image, &["fill", TENANTS])?;
    world.tenant.wait_until_done(job)?;
    println!("the first tenant:\n{}", world.tenant.log(job)?);
    for (whose, byte) in [("the first tenant's", TENANTS), ("the owner's", OWNERS)] {
        let job = submit(world, &image, &["look", byte])?;
        let snapshot = world
            .owner
            .wait("the card to be wiped for the next tenant", |snapshot| {
                snapshot
                    .cards
                    .iter()
                    .filter_map(|card| card.lease.as_ref())
                    .any(|lease| lease.job == job && lease.wiped.is_some())
            })?;
        let wiped = snapshot.cards.iter().find_map(|card| card.lease.as_ref()?.wiped);
        println!("wiped before it: {wiped:?} of {}", card.vram_total);
        world.tenant.wait_until_done(job)?;
        let log = world.tenant.log(job)?;
        println!("the next tenant looks for {whose}:\n{log}");
        ensure!(
            log.contains("\"found_mib\":0,"),
            "{whose} memory reached the next tenant"
        );
    }
    Ok(())
}

/// Kernels that are queued run on when the processor is stopped: the card must be quiet within a second all the same, or the job is
/// ended. Measured from the mouse to the driver's own figures.
fn frozen_with_kernels_queued(driver: &Nvml, card: &CardDescription, world: &mut World) -> anyhow::Result<()> {
    let image = probe_image(world)?;
    let before = used(driver, card)?;
    let job = submit(world, &image, &["queue", "200"])?;
    world.tenant.wait_until_it_says(job, "\"queued\"")?;
    let lease = world.lease_of(job)?;
    let pids = job_pids(lease);
    let moved = boot_us();
    let since = || (boot_us() - moved) / 1_000;
    world.display.as_ref().context("no display")?.move_mouse()?;
    let cgroup = cgroup_of(lease).context("the job has no cgroup")?;
    // A job that was ended at once has none.
    wait_for("the job to stand still", || {
        let frozen = number_in(&cgroup, "cgroup.events", "frozen");
        Ok((frozen != Some(0)).then_some(()))
    })?;
    println!("mouse → processor stopped: {} ms", since());
    wait_for("the card to be quiet", || {
        let utilisation = driver.read(&card.uuid)?.utilisation;
        let gone = !driver
            .processes(&card.uuid)?
            .iter()
            .any(|process| pids.contains(&process.pid));
        let quiet = matches!(utilisation, Reading::Value { value } if value.0 == 0);
        Ok((quiet || gone).then_some(()))
    })?;
    println!("mouse → card quiet, or without the job: {} ms", since());
    wait_for("the card to be free of the job", || {
        let gone = !driver
            .processes(&card.uuid)?
            .iter()
            .any(|process| pids.contains(&process.pid));
        Ok(gone.then_some(()))
    })?;
    println!("mouse → no process of the job on the card: {} ms", since());
    wait_for("its memory to be back", || {
        Ok((used(driver, card)?.0 <= before.0 + SLACK.0).then_some(()))
    })?;
    println!("mouse → memory back: {} ms", since());
    let measured = world.owner.snapshot()?.cards[0].last_yield.clone();
    println!("as the agent measured it: {measured:?}");
    println!("how the job ended: {:?}", world.tenant.view(job)?.state);
    Ok(())
}

fn used(driver: &Nvml, card: &CardDescription) -> anyhow::Result<Bytes> {
    let reading = driver.read(&card.uuid)?.vram_used;
    reading.value().copied().context("the card does not tell its memory")
}

fn probe_image(world: &World) -> anyhow::Result<TestImage> {
    // An image is written once into a folder.
    let folder = world.folder().join(format!("tenant/sela-cuda-probe-{}", boot_us()));
    image_of_a_program(&program("sela-cuda-probe")?, "sela-cuda-probe", &folder)
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
