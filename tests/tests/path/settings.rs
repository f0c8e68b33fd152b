//! `agent.toml` as people edit it, while the agent runs and while it does not.

use anyhow::ensure;
use sela_protocol::money::{HourlyPrice, Micros};
use sela_protocol::tenant::JobState;
use sela_tests::{Plan, Settings, in_a_world};

const FLOOR: HourlyPrice = HourlyPrice(Micros(100_000));

#[test]
fn a_broken_settings_file_changes_nothing_and_is_named_with_line_and_column_until_it_is_mended() {
    in_a_world(&Plan::default(), |world| {
        let good = world.settings_text();
        for (broken, words) in [
            (
                good.replace("floor = \"0.100000\"", "floor = 0.2"),
                ["line 7, column 9", "string"],
            ),
            (
                good.replace("floor = \"0.100000\"", "flor = \"0.2\""),
                ["line 7, column 1", "did you mean \"floor\""],
            ),
            (good.replace("[price]", "[price"), ["line 6", "agent.toml"]),
        ] {
            std::fs::write(world.owner.settings_file(), &broken)?;
            let snapshot = world.owner.wait("the problem to show", |snapshot| {
                snapshot
                    .settings_problem
                    .as_ref()
                    .is_some_and(|problem| problem.contains(words[0]))
            })?;
            ensure!(snapshot.cards[0].floor == FLOOR, "the last good file stays in force");
            let shown = world.owner.sela(&["status"])?;
            for word in words {
                ensure!(
                    shown.good()?.contains(word),
                    "`sela status` should say {word}: {}",
                    shown.stdout
                );
            }
            std::fs::write(world.owner.settings_file(), &good)?;
            world
                .owner
                .wait("the problem to be gone", |snapshot| snapshot.settings_problem.is_none())?;
        }
        std::fs::write(
            world.owner.settings_file(),
            good.replace("floor = \"0.100000\"", "floor = \"0.2\""),
        )?;
        world.owner.wait("the new floor", |snapshot| {
            snapshot.cards[0].floor == HourlyPrice(Micros(200_000))
        })?;
        let job = world.submit(&["--steps", "1"])?;
        world.tenant.wait_until_done(job).map(drop)
    });
}

#[test]
fn a_job_whose_cap_is_below_the_floor_waits_and_says_why_until_the_owner_lowers_the_floor() {
    let plan = Plan {
        settings: Settings {
            floor: "3.700000",
            ..Settings::default()
        },
        ..Plan::default()
    };
    in_a_world(&plan, |world| {
        let job = world.submit(&["--steps", "2", "--step-ms", "10"])?;
        let view = world.tenant.wait(
            job,
            "the reason",
            |view| matches!(&view.state, JobState::Queued { why } if why.contains("3.700000") || why.contains("floor")),
        )?;
        ensure!(view.leases.is_empty(), "{:?}", view.leases);
        let lower = world.settings_text().replace("3.700000", "3.500000");
        std::fs::write(world.owner.settings_file(), lower)?;
        world.tenant.wait_until_done(job).map(drop)
    });
}
