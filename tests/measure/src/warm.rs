//! The whole way with everything warm: a tenant submits a job by the command line, and its first output comes back there. A real
//! exchange, agent and keeper, a SIMULATED card.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sela_protocol::id::JobId;
use sela_protocol::tenant::Submitted;
use sela_tests::{Plan, World, image_of_a_script};

use crate::{clock, say, series};

/// Jobs that do not count: the first brings the image.
const WARMING: usize = 2;
/// How long all stand still before the next job, so that none of the last one's tidying up is in it.
const REST: Duration = Duration::from_millis(300);

pub(crate) fn measure(rounds: usize) -> anyhow::Result<()> {
    say("the whole way: submitting jobs");
    let mut world = World::begin(&Plan::default())?;
    let told = jobs(&world, rounds);
    if told.is_err() {
        say(&world.logs());
    }
    let took = told?;
    world.close()?;
    series("warm", "sela", "ms", &took);
    Ok(())
}

fn jobs(world: &World, rounds: usize) -> anyhow::Result<Vec<f64>> {
    let image = image_of_a_script("echo ready; sleep 0.2", &world.folder().join("tenant/image"))?;
    world.tenant.store(&image)?;
    let spec = world.folder().join("tenant/job.json");
    std::fs::write(&spec, sela_tests::test_job(image.blob, &[]).to_string())?;
    let spec = spec.to_str().context("a path in UTF-8")?;
    let mut took = Vec::new();
    for _ in 0..WARMING + rounds {
        world.owner.wait_until_shared()?;
        std::thread::sleep(REST);
        let begun = Instant::now();
        let submitted: Submitted = world.as_tenant(&["job", "submit", "--json", spec])?.json()?;
        first_output(world, submitted.job)?;
        took.push(clock::ms_since(begun));
        world.tenant.wait_until_done(submitted.job)?;
    }
    Ok(took.split_off(WARMING))
}

fn first_output(world: &World, job: JobId) -> anyhow::Result<()> {
    let mut logs = Command::new(sela_tests::program("sela")?)
        .args(["job", "logs", "--follow", &job.to_string()])
        .env("SELA_EXCHANGE", world.exchange.url())
        .env("SELA_API_KEY", world.tenant.rest.key())
        .env("SELA_CONFIG_DIR", world.folder().join("tenant"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = logs.stdout.take().context("a pipe")?;
    let mut byte = [0; 1];
    let count = output.read(&mut byte)?;
    ensure!(count == 1, "the log of {job} ended before it began");
    std::thread::spawn(move || {
        // What is left of it, and the process.
        let _ = std::io::copy(&mut output, &mut std::io::sink());
        logs.wait()
    });
    Ok(())
}
