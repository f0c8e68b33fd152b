//! What a job may use: each limit, run into from the inside.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use sela_protocol::lease::EndCause;
use sela_protocol::units::{Bytes, Millis};
use sela_sandbox::keeper::wire::{Collected, FaultCode, Report};
use std::fs;
use std::path::Path;
use support::{Stage, Watched, assert_nothing_left, is_root, processes_of_jobs, run};

#[tokio::test]
async fn a_job_that_takes_too_much_memory_is_ended_for_it() {
    if !is_root("a_job_that_takes_too_much_memory_is_ended_for_it") {
        return;
    }
    let stage = Stage::new();
    // tail keeps a line without end in memory.
    let mut plan = stage.script("tail /dev/zero");
    plan.limits.memory = Bytes::from_mib(32);
    plan.limits.shm_size = Bytes::from_mib(1);
    let outcome = run(&plan).await;
    assert_eq!(outcome.stop().cause, EndCause::OutOfMemory);
    assert!(
        outcome
            .stop()
            .memory_peak
            .is_some_and(|peak| peak <= Bytes::from_mib(32))
    );
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn what_is_written_to_scratch_counts_as_memory() {
    if !is_root("what_is_written_to_scratch_counts_as_memory") {
        return;
    }
    for folder in ["/tmp", "/out", "/checkpoint", "/dev/shm"] {
        let stage = Stage::new();
        let mut plan = stage.script(&format!(
            "dd if=/dev/zero of={folder}/big bs=1M count=24 && echo written && tail /dev/zero"
        ));
        plan.limits.memory = Bytes::from_mib(32);
        plan.limits.shm_size = Bytes::from_mib(32);
        let outcome = run(&plan).await;
        // Alone, tail would get 32 MiB; what lies in the folder is not freed by its death.
        assert_eq!(outcome.out, "written\n", "{folder}");
        assert_eq!(outcome.stop().cause, EndCause::OutOfMemory, "{folder}");
        let mut plan = stage.script(&format!(
            "dd if=/dev/zero of={folder}/big bs=1M count=24; echo written; sleep 60"
        ));
        plan.scratch = stage.path().join("second");
        fs::create_dir(&plan.scratch).unwrap();
        let mut job = Watched::start(&plan).await;
        job.until_says("written").await;
        let Report::Usage { usage } = job.until(|report| matches!(report, Report::Usage { .. })).await else {
            panic!()
        };
        assert!(
            usage.memory >= Bytes::from_mib(if folder == "/dev/shm" { 16 } else { 24 }),
            "{folder}: {usage:?}"
        );
        job.hang_up();
        job.finish().await;
    }
}

#[tokio::test]
async fn shared_memory_is_as_large_as_asked_for() {
    if !is_root("shared_memory_is_as_large_as_asked_for") {
        return;
    }
    let stage = Stage::new();
    let plan = stage
        .script("df -k /dev/shm | tail -1 | awk '{print $2}'; dd if=/dev/zero of=/dev/shm/big bs=1M count=17 2>&1");
    let outcome = run(&plan).await;
    assert_eq!(outcome.out.lines().next(), Some("16384"));
    assert!(outcome.out.contains("No space left on device"), "{}", outcome.out);
}

#[tokio::test]
async fn a_fork_without_end_is_held_and_ended() {
    if !is_root("a_fork_without_end_is_held_and_ended") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("bomb() { bomb | bomb & }; (bomb) & while :; do :; done");
    plan.limits.wall_ms = Millis(6_000);
    let mut job = Watched::start(&plan).await;
    job.until_started().await;
    let Report::Usage { usage } = job.until(|report| matches!(report, Report::Usage { .. })).await else {
        panic!()
    };
    assert!(usage.pids <= plan.limits.pids, "{usage:?}");
    let outcome = job.finish().await;
    assert_eq!(outcome.stop().cause, EndCause::WallLimit);
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn output_beyond_the_log_limit_is_cut_and_the_job_runs_on() {
    if !is_root("output_beyond_the_log_limit_is_cut_and_the_job_runs_on") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("yes 0123456789abcde | head -c 3000000; echo written >&2; exit 3");
    plan.limits.log = Bytes(100_000);
    let outcome = run(&plan).await;
    outcome.exited(3);
    assert_eq!(outcome.out.len(), 100_000);
    assert_eq!(outcome.err.matches("output cut here").count(), 1, "{}", outcome.err);
    assert!(
        !outcome.err.contains("written"),
        "the limit is for both outputs together"
    );
}

#[tokio::test]
async fn output_without_end_beyond_the_log_limit_is_counted_to_the_byte() {
    if !is_root("output_without_end_beyond_the_log_limit_is_counted_to_the_byte") {
        return;
    }
    let stage = Stage::new();
    // More than any pipe holds, on both outputs, and then time for one more report of what was used.
    let mut plan = stage.script("head -c 50000000 /dev/zero; head -c 7 /dev/zero >&2; sleep 2.5");
    plan.limits.log = Bytes(1_000);
    let mut job = Watched::start(&plan).await;
    job.until_started().await;
    let counted = |report: &Report| matches!(report, Report::Usage { usage } if usage.log == Bytes(50_000_007));
    job.until(counted).await;
    let outcome = job.finish().await;
    outcome.exited(0);
    assert_eq!(outcome.out.len(), 1_000);
}

#[tokio::test]
async fn thawed_time_is_limited_and_never_billed_beyond() {
    if !is_root("thawed_time_is_limited_and_never_billed_beyond") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("while true; do :; done");
    plan.limits.wall_ms = Millis(700);
    let outcome = run(&plan).await;
    let stop = outcome.stop();
    assert_eq!((&stop.cause, stop.thawed_ms), (&EndCause::WallLimit, Millis(700)));
    assert!(stop.ended_boot_us.since(stop.started_boot_us).0 >= 700_000, "{stop:?}");
    assert!(stop.cpu_us.0 > 0, "{stop:?}");
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_limit_that_is_changed_behind_our_back_ends_the_job() {
    if !is_root("a_limit_that_is_changed_behind_our_back_ends_the_job") {
        return;
    }
    let swap = (256_u64 << 20).to_string();
    let mut tried = 0;
    for (controller, file, value) in [
        ("pids", "pids.max", "6400"),
        ("memory", "memory.memsw.limit_in_bytes", swap.as_str()),
        ("", "memory.swap.max", "max"),
        ("", "memory.oom.group", "0"),
    ] {
        let stage = Stage::new();
        let plan = stage.script("sleep 60");
        let mut job = Watched::start(&plan).await;
        let report = job.until(|report| matches!(report, Report::Started { .. })).await;
        let Report::Started { cgroup, .. } = report else {
            panic!("{report:?}")
        };
        let inside = cgroup
            .strip_prefix("/sys/fs/cgroup/unified")
            .or_else(|_| cgroup.strip_prefix("/sys/fs/cgroup"))
            .unwrap();
        let places = [controller, ""].map(|part| Path::new("/sys/fs/cgroup").join(part).join(inside).join(file));
        if let Some(limit) = places.iter().find(|path| path.exists()) {
            fs::write(limit, value).unwrap();
            let outcome = job.finish().await;
            let EndCause::NodeFault { message } = &outcome.stop().cause else {
                panic!("{:?}", outcome.stop())
            };
            assert!(message.contains(file) && message.contains("should read"), "{message}");
            assert_nothing_left(&plan);
            tried += 1;
        }
    }
    assert!(
        tried >= 2,
        "pids and swap are limited on every machine that these tests were made for"
    );
}

#[tokio::test]
async fn a_limit_that_cannot_be_given_stops_the_start() {
    if !is_root("a_limit_that_cannot_be_given_stops_the_start") {
        return;
    }
    let stage = Stage::new();
    let mut plan = stage.script("true");
    // Above what any kernel counts.
    plan.limits.pids = 5_000_000;
    let outcome = run(&plan).await;
    assert!(
        outcome.fault().message.contains("pids.max"),
        "{}",
        outcome.fault().message
    );
    assert_eq!(outcome.fault().code, FaultCode::Cgroup);
    assert!(matches!(outcome.fault().end_cause(), EndCause::NodeFault { .. }));
    assert_nothing_left(&plan);
}

#[tokio::test]
async fn a_machine_that_allows_fewer_open_files_gives_fewer() {
    if !is_root("a_machine_that_allows_fewer_open_files_gives_fewer") {
        return;
    }
    let stage = Stage::new();
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = hard.expect("Linux has no endless number of open files");
    let mut plan = stage.script("ulimit -n; ulimit -Hn");
    plan.limits.open_files = hard + 1;
    let outcome = run(&plan).await;
    assert_eq!(outcome.out, format!("{hard}\n{hard}\n"));
}

#[tokio::test]
async fn daemonised_children_die_with_the_program() {
    if !is_root("daemonised_children_die_with_the_program") {
        return;
    }
    let stage = Stage::new();
    let plan =
        stage.script("(setsid sh -c 'sleep 1000 & sleep 1001' < /dev/null > /dev/null 2>&1 &); sleep 0.2; echo done");
    let outcome = run(&plan).await;
    outcome.exited(0);
    assert_nothing_left(&plan);
    assert!(
        !processes_of_jobs().iter().any(|name| name.contains("setsid")),
        "{:?}",
        processes_of_jobs()
    );
}

#[tokio::test]
async fn a_program_that_closes_its_outputs_runs_on_and_costs_the_keeper_nothing() {
    if !is_root("a_program_that_closes_its_outputs_runs_on_and_costs_the_keeper_nothing") {
        return;
    }
    let stage = Stage::new();
    let plan = stage.script("exec > /dev/null 2>&1 0<&-; exec 1>&- 2>&-; sleep 3; exit 5");
    let mut job = Watched::start(&plan).await;
    job.until_started().await;
    job.until(|report| matches!(report, Report::Usage { .. })).await;
    let before = ticks_of(job.keeper);
    job.until(|report| matches!(report, Report::Usage { .. })).await;
    let used = ticks_of(job.keeper) - before;
    assert!(
        used < 50,
        "in a second a keeper that spins on a closed pipe would use a hundred ticks, this one used {used}"
    );
    let outcome = job.finish().await;
    outcome.exited(5);
    assert_eq!(outcome.ended().1, &Collected::Nothing);
}

/// Processor time of a process, in hundredths of a second (proc_pid_stat(5), fields 14 and 15).
fn ticks_of(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = text.rsplit(')').next().unwrap().split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
