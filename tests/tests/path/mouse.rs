//! The owner moves the mouse while a stranger's job runs. Everything is measured from outside: by the kernel's record of the freeze,
//! by its lock table, and by what the keeper wrote down; what was paid is what was billed, to the millisecond.

use anyhow::{Context, ensure};
use sela_protocol::id::LeaseId;
use sela_protocol::lease::EndCause;
use sela_protocol::money::Micros;
use sela_protocol::units::Millis;
use sela_tests::{Plan, Settings, World, boot_us, cgroup_of, expected_result, in_a_world, number_in, wait_for};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What was seen of a job from outside, in microseconds after boot.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    frozen_at: Option<u64>,
    lock_released_at: Option<u64>,
    /// The kernel's record of frozen time, as last read.
    frozen_us: u64,
}

/// Looks again and again until it is told to stop. Not a moment is asserted, only what the kernel wrote down.
struct Witness {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(Seen, Option<serde_json::Value>)>,
}

impl Witness {
    fn of(world: &World, lease: LeaseId) -> anyhow::Result<Self> {
        let cgroup = cgroup_of(lease).context("the job has no cgroup")?;
        let (node, account) = (
            world.device_node(),
            world.owner.data().join(format!("accounts/{lease}.json")),
        );
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || watch(&cgroup, &node, &account, &told));
        Ok(Self { stop, thread })
    }

    fn testify(self) -> anyhow::Result<(Seen, serde_json::Value)> {
        self.stop.store(true, Ordering::Relaxed);
        let (seen, account) = self.thread.join().map_err(|_| anyhow::anyhow!("the witness died"))?;
        Ok((seen, account.context("the keeper's account was never seen")?))
    }
}

fn watch(
    cgroup: &std::path::Path,
    node: &std::path::Path,
    account: &std::path::Path,
    stop: &AtomicBool,
) -> (Seen, Option<serde_json::Value>) {
    let (mut seen, mut written) = (Seen::default(), None);
    while !stop.load(Ordering::Relaxed) {
        if let Some(frozen_us) = number_in(cgroup, "cgroup.stat.local", "frozen_usec") {
            seen.frozen_us = frozen_us;
        }
        if seen.frozen_at.is_none() && number_in(cgroup, "cgroup.events", "frozen") == Some(1) {
            seen.frozen_at = Some(boot_us());
        }
        let holders = || sela_nvml_sim::node::holders(node).is_ok_and(|holders| holders.is_empty());
        if seen.frozen_at.is_some() && seen.lock_released_at.is_none() && holders() {
            seen.lock_released_at = Some(boot_us());
        }
        if written.is_none() {
            let bytes = std::fs::read(account).ok();
            written = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    (seen, written)
}

#[test]
fn the_mouse_moves_and_the_card_is_the_owners_again_and_the_job_goes_on_and_is_paid_for_to_the_millisecond() {
    let plan = Plan {
        display: true,
        // Long enough that `sela why` still speaks of the mouse when the job is gone.
        settings: Settings {
            idle_after_s: 4,
            ..Settings::default()
        },
        ..Plan::default()
    };
    in_a_world(&plan, |world| {
        let job = world.submit(&["--steps", "80", "--step-ms", "50", "--save-ms", "200"])?;
        world.tenant.wait_until_it_says(job, "step 5 of")?;
        let lease = world.lease_of(job)?;
        let witness = Witness::of(world, lease)?;
        let moved = boot_us();
        world.display.as_ref().context("no display")?.move_mouse()?;
        let view = world
            .tenant
            .wait(job, "the card to be given back", |view| view.leases[0].end.is_some())?;
        let why = world.owner.why()?;
        ensure!(view.leases[0].end == Some(EndCause::OwnerInput), "{:?}", view.leases);
        world.wait_until_nothing_is_left(&[lease])?;
        let (seen, account) = witness.testify()?;
        let after = |at: Option<u64>| at.map(|at| format!("{:.1} ms", (at - moved) as f64 / 1_000.0));
        println!(
            "measured: input → frozen {}, → lock released {}",
            after(seen.frozen_at).context("the job was never seen frozen")?,
            after(seen.lock_released_at).context("the lock was never seen released")?
        );
        ensure!(why.contains("keyboard or mouse used") && why.contains("X11"), "{why}");
        // The kernel's record, the keeper's account, the exchange's bill and the tenant's payment say the same.
        let number = |name: &str| {
            account[name]
                .as_u64()
                .with_context(|| format!("no {name} in {account}"))
        };
        ensure!(account["frozen_source"] == "kernel", "{account}");
        ensure!(
            seen.frozen_us > 0 && number("frozen_us")? == seen.frozen_us,
            "{seen:?} {account}"
        );
        let thawed = (number("ended_boot_us")? - number("started_boot_us")? - seen.frozen_us) / 1_000;
        let bill = wait_for("the bill", || {
            let view = world.tenant.view(job)?;
            Ok((view.leases[0].paid > Micros::ZERO).then(|| view.leases[0].clone()))
        })?;
        ensure!(
            bill.billed_ms == Millis(thawed),
            "billed {} of {thawed} ms: {account}",
            bill.billed_ms
        );
        ensure!(
            bill.paid == Micros(i64::try_from(thawed)?),
            "paid {} for {thawed} ms",
            bill.paid
        );
        // And the job goes on where it was when it saved.
        let view = world.tenant.wait_until_done(job)?;
        ensure!(view.leases.len() == 2, "{:#?}", view.leases);
        ensure!(
            world.tenant.output(job)?["result"] == expected_result(80).as_bytes(),
            "another result"
        );
        let log = world.tenant.log(job)?;
        let saved = log
            .lines()
            .find_map(|line| line.strip_prefix("saved after step "))
            .context("it never saved")?;
        ensure!(
            log.contains(&format!("begins after step {saved} of 80")),
            "it did not go on after step {saved}: {log}"
        );
        Ok(())
    });
}
