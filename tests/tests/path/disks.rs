//! A disk that is full: the job goes back to the market with the reason, and runs as soon as there is room.

use anyhow::ensure;
use sela_protocol::lease::EndCause;
use sela_protocol::units::Millis;
use sela_tests::{Plan, Settings, in_a_world};
use std::io::Write;

#[test]
fn a_full_disk_gives_the_job_back_with_the_reason_and_takes_it_when_there_is_room() {
    let plan = Plan {
        settings: Settings {
            disk_free_floor: 1 << 20,
            ..Settings::default()
        },
        small_disk_mib: Some(48),
        ..Plan::default()
    };
    in_a_world(&plan, |world| {
        let ballast = world.owner.data().join("ballast");
        fill(&ballast)?;
        let job = world.submit(&["--steps", "3", "--step-ms", "20"])?;
        let view = world.tenant.wait(job, "the node to give the job back", |view| {
            view.leases.iter().any(|lease| lease.end.is_some())
        })?;
        let end = view.leases[0].end.as_ref();
        ensure!(
            matches!(end, Some(EndCause::NodeFault { message }) if message.contains("space") || message.contains("free")),
            "ended by {end:?}"
        );
        ensure!(view.leases[0].billed_ms == Millis(0), "a fault of the node's is free");
        world.wait_until_nothing_is_left(&[view.leases[0].lease])?;
        std::fs::remove_file(ballast)?;
        world.tenant.wait_until_done(job).map(drop)
    });
}

/// Writes until nothing more fits but a little: the agent's databases must go on.
fn fill(path: &std::path::Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let part = vec![0_u8; 256 << 10];
    while file.write_all(&part).is_ok() {}
    let size = file.metadata()?.len();
    file.set_len(size.saturating_sub(512 << 10))?;
    Ok(())
}
