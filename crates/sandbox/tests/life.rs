//! From freeze to end: what the keeper does when it is told to, when it is not told anything, and when it is killed.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use sela_protocol::lease::EndCause;
use sela_protocol::units::Millis;
use sela_sandbox::keeper::wire::{FrozenSource, Order, ProgramEnd, Report, Stop};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{Stage, Watched, assert_nothing_left, is_root, run};

fn frozen_usec(cgroup: &Path) -> Option<u64> {
    let text = fs::read_to_string(cgroup.join("cgroup.stat.local")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("frozen_usec "))
        .and_then(|value| value.parse().ok())
}

fn cpu_usec(cgroup: &Path) -> u64 {
    let text = fs::read_to_string(cgroup.join("cpu.stat")).unwrap();
    text.lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .and_then(|value| value.parse().ok())
        .unwrap()
}

async fn started(job: &mut Watched) -> std::path::PathBuf {
    match job
        .until(|report| matches!(report, Report::Started { .. } | Report::Failed { .. }))
        .await
    {
        Report::Started { cgroup, .. } => cgroup,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn frozen_time_stands_still_and_is_not_billed() {
    if !is_root("frozen_time_stands_still_and_is_not_billed") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo up; while true; do :; done");
    let mut job = Watched::start(&plan).await;
    let cgroup = started(&mut job).await;
    job.until_says("up").await;
    for _ in 0..2 {
        job.order(Order::Freeze {
            cause: EndCause::OwnerInput,
        })
        .await;
        job.until(|report| matches!(report, Report::Frozen { .. })).await;
        let before = cpu_usec(&cgroup);
        job.until(|report| matches!(report, Report::Usage { .. })).await;
        let used = cpu_usec(&cgroup) - before;
        // What the threads still did on their way into the freezer may be accounted for a moment later.
        assert!(used < 20_000, "a frozen job uses no CPU, this one used {used} µs");
        job.order(Order::Thaw).await;
        job.until(|report| matches!(report, Report::Thawed)).await;
    }
    let kernel = frozen_usec(&cgroup);
    job.order(Order::End {
        cause: EndCause::OwnerCommand,
    })
    .await;
    let outcome = job.finish().await;
    let stop = outcome.stop();
    assert_eq!(stop.cause, EndCause::OwnerCommand);
    if let Some(kernel) = kernel {
        assert_eq!((stop.frozen_us.0, stop.frozen_source), (kernel, FrozenSource::Kernel));
    }
    billed_exactly(stop);
    assert!(stop.frozen_us.0 > 500_000, "{stop:?}");
    assert_nothing_left(&plan);
}

fn billed_exactly(stop: &Stop) {
    let whole = stop.ended_boot_us.since(stop.started_boot_us);
    assert_eq!(stop.thawed_ms, Millis((whole.0 - stop.frozen_us.0) / 1000), "{stop:?}");
}

#[tokio::test]
async fn a_frozen_job_ends_at_once_and_its_frozen_time_is_still_not_billed() {
    if !is_root("a_frozen_job_ends_at_once_and_its_frozen_time_is_still_not_billed") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo up; sleep 60");
    let mut job = Watched::start(&plan).await;
    started(&mut job).await;
    job.until_says("up").await;
    job.order(Order::Freeze {
        cause: EndCause::OwnerInput,
    })
    .await;
    job.until(|report| matches!(report, Report::Frozen { .. })).await;
    job.until(|report| matches!(report, Report::Usage { .. })).await;
    job.order(Order::End {
        cause: EndCause::OwnerProgram {
            name: Some("game".to_owned()),
        },
    })
    .await;
    let outcome = job.finish().await;
    let stop = outcome.stop();
    assert_eq!(
        stop.cause,
        EndCause::OwnerProgram {
            name: Some("game".to_owned())
        }
    );
    assert_eq!(stop.exit, None, "the program did not end by itself");
    billed_exactly(stop);
    assert!(stop.frozen_us.0 > 200_000, "{stop:?}");
    let on_disk: Stop = serde_json::from_slice(&fs::read(&plan.account).unwrap()).unwrap();
    assert_eq!(&on_disk, stop, "the account says the same");
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_job_that_is_told_to_save_gets_its_signal_and_its_time() {
    if !is_root("a_job_that_is_told_to_save_gets_its_signal_and_its_time") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script(
        "trap 'echo saved > /checkpoint/state; echo bye; exit 9' TERM; echo up; while true; do sleep 0.05; done",
    );
    let mut job = Watched::start(&plan).await;
    started(&mut job).await;
    job.until_says("up").await;
    job.order(Order::Freeze {
        cause: EndCause::OwnerInput,
    })
    .await;
    job.until(|report| matches!(report, Report::Frozen { .. })).await;
    job.order(Order::Save {
        cause: EndCause::OwnerInput,
        grace_ms: Millis(20_000),
    })
    .await;
    job.until(|report| matches!(report, Report::Saving)).await;
    let outcome = job.finish().await;
    let (stop, _, checkpoint) = outcome.ended();
    assert_eq!(stop.cause, EndCause::OwnerInput, "not the exit that the signal led to");
    assert_eq!(stop.exit, Some(ProgramEnd::Exited { code: 9 }));
    assert!(outcome.out.contains("bye"));
    assert!(
        format!("{checkpoint:?}").contains("checkpoint-1.sealed"),
        "{checkpoint:?}"
    );
}

#[tokio::test]
async fn a_job_that_ignores_its_signal_is_killed_after_its_grace() {
    if !is_root("a_job_that_ignores_its_signal_is_killed_after_its_grace") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("trap '' TERM; echo up; while true; do sleep 0.05; done");
    let mut job = Watched::start(&plan).await;
    started(&mut job).await;
    job.until_says("up").await;
    job.order(Order::Save {
        cause: EndCause::Displaced,
        grace_ms: Millis(300),
    })
    .await;
    // Saving is thawed time: a freeze in between is not obeyed.
    job.order(Order::Freeze {
        cause: EndCause::OwnerInput,
    })
    .await;
    let outcome = job.finish().await;
    let stop = outcome.stop();
    assert_eq!((&stop.cause, stop.exit), (&EndCause::Displaced, None));
    assert_eq!(stop.frozen_us.0, 0);
    assert!(
        !outcome
            .seen
            .iter()
            .any(|report| matches!(report, Report::Frozen { .. }))
    );
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn an_agent_that_is_killed_takes_everything_of_the_job_along() {
    if !is_root("an_agent_that_is_killed_takes_everything_of_the_job_along") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo x > /out/result; echo x > /checkpoint/state; echo up; trap '' TERM; sleep 60 & wait");
    let mut job = Watched::start(&plan).await;
    started(&mut job).await;
    job.until_says("up").await;
    job.hang_up();
    let outcome = job.finish().await;
    assert_eq!(outcome.stop().cause, EndCause::AgentRestarted);
    assert!(!plan.scratch.exists(), "nobody is left who knows of it");
    let account: Stop = serde_json::from_slice(&fs::read(&plan.account).unwrap()).unwrap();
    assert_eq!(&account, outcome.stop(), "what is owed outlasts them both");
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_silent_agent_loses_the_job_when_its_grant_runs_out() {
    if !is_root("a_silent_agent_loses_the_job_when_its_grant_runs_out") {
        return;
    }
    let stage = Stage::new();
    // Writes more than any pipe holds: an agent that does not read must not hold the keeper either.
    let mut plan = stage.script("yes | head -c 20000000; sleep 60");
    plan.limits.log = sela_protocol::units::Bytes::from_mib(64);
    let mut job = Watched::start(&plan).await;
    let cgroup = started(&mut job).await;
    job.lives = false;
    let patience = Instant::now() + Duration::from_secs(30);
    while cgroup.exists() {
        assert!(Instant::now() < patience, "the job outlived its grant");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The agent goes on, and still hears how it ended.
    let outcome = job.finish().await;
    let stop = outcome.stop();
    assert_eq!(stop.cause, EndCause::GrantExpired);
    // Five seconds from the order to start, setting up included; a second more would be a grant that nobody gave.
    assert!((2_500..=5_500).contains(&stop.thawed_ms.0), "{stop:?}");
    assert!(!plan.scratch.exists());
    assert!(plan.account.exists());
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_keeper_that_is_killed_takes_its_job_along() {
    if !is_root("a_keeper_that_is_killed_takes_its_job_along") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("(setsid sleep 61 &); echo up; sleep 60");
    let mut job = Watched::start(&plan).await;
    let cgroup = started(&mut job).await;
    job.until_says("up").await;
    let keeper = Pid::from_raw(i32::try_from(job.keeper).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while fs::read_to_string(cgroup.join("cgroup.events"))
        .unwrap()
        .contains("populated 1")
    {
        assert!(Instant::now() < patience, "processes outlived their keeper");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(
        !fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .contains("sela-job-")
    );
    // Cgroups and scratch are what is left, and what the sweep at the next start is for.
    let swept = sela_sandbox::sweep::sweep(&stage.place(), &plan.scratch).unwrap();
    assert_eq!(swept.leases, [plan.lease.to_string()]);
    assert_eq!(fs::read_dir(&plan.scratch).unwrap().count(), 0);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn the_sweep_kills_what_still_runs() {
    if !is_root("the_sweep_kills_what_still_runs") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo up; sleep 60");
    let mut job = Watched::start(&plan).await;
    let cgroup = started(&mut job).await;
    job.until_says("up").await;
    let keeper = Pid::from_raw(i32::try_from(job.keeper).unwrap()).unwrap();
    // A keeper that is stopped guards nothing: the one case in which a job outlives its agent's silence.
    kill_process(keeper, Signal::STOP).unwrap();
    job.order(Order::Freeze {
        cause: EndCause::OwnerInput,
    })
    .await;
    let swept = sela_sandbox::sweep::sweep(&stage.place(), &plan.scratch).unwrap();
    assert!(swept.processes >= 2, "{swept:?}");
    assert!(!cgroup.exists());
    kill_process(keeper, Signal::KILL).unwrap();
    assert!(
        sela_sandbox::sweep::sweep(&stage.place(), &plan.scratch)
            .unwrap()
            .leases
            .is_empty()
    );
}

#[tokio::test]
async fn what_a_dead_keeper_left_of_one_lease_is_removed_alone() {
    if !is_root("what_a_dead_keeper_left_of_one_lease_is_removed_alone") {
        return;
    }
    let stage = Stage::new();
    let (plan, mut other) = (stage.script("echo up; sleep 60"), stage.script("echo up; sleep 60"));
    other.scratch = stage.path().join("other");
    fs::create_dir(&other.scratch).unwrap();
    let (mut job, mut running) = (Watched::start(&plan).await, Watched::start(&other).await);
    job.until_says("up").await;
    running.until_says("up").await;
    let keeper = Pid::from_raw(i32::try_from(job.keeper).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    sela_sandbox::sweep::sweep_lease(&stage.place(), plan.lease).unwrap();
    running.until(|report| matches!(report, Report::Usage { .. })).await;
    running
        .order(Order::End {
            cause: EndCause::OwnerCommand,
        })
        .await;
    let outcome = running.finish().await;
    assert_eq!(
        outcome.stop().cause,
        EndCause::OwnerCommand,
        "the other was not touched"
    );
    fs::remove_dir_all(&plan.scratch).unwrap();
    assert_nothing_left(&plan);
    assert_nothing_left(&other);
}

#[tokio::test]
async fn a_keeper_that_is_told_to_stop_ends_its_job_first() {
    if !is_root("a_keeper_that_is_told_to_stop_ends_its_job_first") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo up; sleep 60");
    let mut job = Watched::start(&plan).await;
    started(&mut job).await;
    job.until_says("up").await;
    kill_process(Pid::from_raw(i32::try_from(job.keeper).unwrap()).unwrap(), Signal::TERM).unwrap();
    let outcome = job.finish().await;
    assert_eq!(outcome.stop().cause, EndCause::Shutdown);
    assert!(outcome.clean);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn an_end_before_the_program_runs_leaves_nothing() {
    if !is_root("an_end_before_the_program_runs_leaves_nothing") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo ran; sleep 60");
    let mut job = Watched::start(&plan).await;
    job.order(Order::End {
        cause: EndCause::TenantCancelled,
    })
    .await;
    let outcome = job.finish().await;
    match outcome.seen.last() {
        Some(Report::Failed { .. } | Report::Ended { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn orders_that_cannot_be_read_end_the_job() {
    if !is_root("orders_that_cannot_be_read_end_the_job") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("echo up; sleep 60");
    let mut job = Watched::start(&plan).await;
    started(&mut job).await;
    job.order(Order::Start {
        plan: Box::new(plan.clone()),
        confidential: Box::new(support::confidential()),
    })
    .await;
    let outcome = job.finish().await;
    assert!(matches!(outcome.stop().cause, EndCause::NodeFault { .. }));
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn use_is_reported_every_second_and_adds_up() {
    if !is_root("use_is_reported_every_second_and_adds_up") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("echo hello; while true; do :; done");
    plan.limits.wall_ms = Millis(3_500);
    let outcome = run(&plan).await;
    let usages: Vec<_> = outcome
        .seen
        .iter()
        .filter_map(|report| match report {
            Report::Usage { usage } => Some(*usage),
            _ => None,
        })
        .collect();
    assert_eq!(usages.len(), 3, "{usages:?}");
    assert!(
        usages.is_sorted_by_key(|usage| (usage.thawed_ms, usage.cpu_us)),
        "{usages:?}"
    );
    assert!(
        usages
            .iter()
            .all(|usage| usage.log.0 == 6 && usage.pids >= 2 && usage.memory.0 > 0),
        "{usages:?}"
    );
    assert!(usages.last().unwrap().thawed_ms <= outcome.stop().thawed_ms);
}

#[tokio::test]
async fn a_busy_machine_does_not_keep_a_job_from_stopping() {
    if !is_root("a_busy_machine_does_not_keep_a_job_from_stopping") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("for i in 1 2 3 4; do (while true; do :; done) & done; echo up; wait");
    let mut job = Watched::start(&plan).await;
    let cgroup = started(&mut job).await;
    job.until_says("up").await;
    let game = Game::start();
    for _ in 0..5 {
        job.order(Order::Freeze {
            cause: EndCause::OwnerInput,
        })
        .await;
        let report = job
            .until(|report| matches!(report, Report::Frozen { .. } | Report::Stopped { .. }))
            .await;
        assert!(matches!(report, Report::Frozen { .. }), "{report:?}");
        println!("{report:?}");
        job.order(Order::Thaw).await;
        job.until(|report| matches!(report, Report::Thawed)).await;
        let idle = [
            cgroup.join("cpu.idle"),
            Path::new("/sys/fs/cgroup/cpu").join(inside(&cgroup)).join("cpu.idle"),
        ];
        let idle = idle.iter().find(|path| path.exists()).unwrap();
        for level in idle.parent().unwrap().ancestors().take(3) {
            assert_eq!(
                fs::read_to_string(level.join("cpu.idle")).unwrap(),
                "1\n",
                "idle again: {}",
                level.display()
            );
        }
    }
    job.order(Order::End {
        cause: EndCause::OwnerProgram { name: None },
    })
    .await;
    let outcome = job.finish().await;
    drop(game);
    println!("gone after {}", outcome.stop().gone_after_us);
    assert_nothing_left(&plan);
}

/// What an owner's game does to the machine: more threads than cores, none of them idle.
struct Game(Arc<AtomicBool>);

impl Game {
    fn start() -> Self {
        let runs = Arc::new(AtomicBool::new(true));
        for _ in 0..std::thread::available_parallelism().unwrap().get() * 2 {
            let runs = runs.clone();
            std::thread::spawn(move || while runs.load(Ordering::Relaxed) {});
        }
        Self(runs)
    }
}

impl Drop for Game {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn inside(cgroup: &Path) -> &Path {
    cgroup
        .strip_prefix("/sys/fs/cgroup/unified")
        .or_else(|_| cgroup.strip_prefix("/sys/fs/cgroup"))
        .unwrap()
}
