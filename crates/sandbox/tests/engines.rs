//! The lives, limits, walls and folders of jobs once more, in real container engines: the very test programs that were built
//! beside this one, told by a variable where their jobs run. Then what only engines have: crashes of all that watches over a
//! container, the sweep, and the room for images. `SELA_REQUIRE_ENGINES=1` runs every test of the four programs.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use sela_emulated::newest;
use sela_protocol::blob::BlobId;
use sela_protocol::lease::EndCause;
use sela_protocol::units::Bytes;
use sela_sandbox::docker::image::EngineImageError;
use sela_sandbox::docker::{EngineKind, sweep, sweep_lease};
use sela_sandbox::keeper::wire::{JobPlan, Order, Report};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::engines::{ENGINE, Engine, images_within};
use support::{Stage, Watched, is_root};

/// What is run where not everything has to be: each stands for something that no attack of `tests/attacks` tries in an engine, or
/// that an engine only promises in part.
const CHOSEN: [(&str, &[&str]); 5] = [
    ("cards", &["a_job_has_its_cards_nodes_and_not_one_more"]),
    (
        "life",
        &[
            "a_frozen_job_ends_at_once_and_its_frozen_time_is_still_not_billed",
            "a_job_that_is_told_to_save_gets_its_signal_and_its_time",
            "an_agent_that_is_killed_takes_everything_of_the_job_along",
            "an_end_before_the_program_runs_leaves_nothing",
        ],
    ),
    ("limits", &["a_job_that_takes_too_much_memory_is_ended_for_it"]),
    (
        "walls",
        &[
            "the_root_is_read_only_and_only_scratch_can_be_written",
            "inputs_are_read_only_and_readable",
        ],
    ),
    (
        "folders",
        &[
            "results_leave_through_out_whatever_user_wrote_them",
            "secrets_are_files_in_memory_for_the_jobs_user_alone",
        ],
    ),
];

/// Tests that hold only where ids are mapped, which Podman is not told to here: they look at the job's own number from inside.
const NEED_MAPPED_IDS: [&str; 5] = [
    "a_program_has_no_rights_and_says_so_itself",
    "a_jobs_processes_have_subordinate_ids_outside",
    "a_job_sees_its_own_processes_only",
    "a_checkpoint_goes_round_by_way_of_another_run",
    "secrets_are_files_in_memory_for_the_jobs_user_alone",
];

/// How long something may take that takes a moment, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

async fn everything(kind: EngineKind, test: &str) {
    if !is_root(test) {
        return;
    }
    let Some(engine) = Engine::start(kind).await else {
        return;
    };
    suites(&engine);
    // SAFETY: this test is alone in its process, and its runtime has this one thread.
    unsafe { std::env::set_var(ENGINE, engine.in_words()) };
    a_frozen_container_dies_with_its_agent_and_its_keeper(&engine).await;
    a_container_dies_though_nobody_is_left_to_end_it().await;
    the_sweep_removes_what_nobody_guards_any_more(&engine).await;
    images_make_room_for_each_other(&engine).await;
}

#[tokio::test]
async fn jobs_in_docker_are_guarded_like_native_ones() {
    everything(EngineKind::Docker, "jobs_in_docker_are_guarded_like_native_ones").await;
}

#[tokio::test]
async fn jobs_in_podman_are_guarded_like_native_ones() {
    everything(EngineKind::Podman, "jobs_in_podman_are_guarded_like_native_ones").await;
}

fn suites(engine: &Engine) {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let all = std::env::var_os("SELA_REQUIRE_ENGINES").is_some();
    let mut broken = Vec::new();
    for (program, chosen) in CHOSEN {
        let mut command = Command::new(newest(&deps, &format!("{program}-")));
        command.args(["--test-threads", "4"]).env(ENGINE, engine.in_words());
        if !all {
            command.arg("--exact").args(chosen);
        }
        // Docker maps ids in these tests.
        for skipped in NEED_MAPPED_IDS
            .iter()
            .filter(|_| engine.place.kind == EngineKind::Podman)
        {
            command.args(["--skip", skipped]);
        }
        let said = command.output().unwrap();
        let words = String::from_utf8_lossy(&said.stdout).into_owned();
        let result = words.lines().find(|line| line.starts_with("test result:"));
        println!("{}, {program}: {}", engine.place.kind, result.unwrap_or("no result"));
        if !said.status.success() {
            broken.push(format!("{program}:\n{words}"));
        }
    }
    assert!(broken.is_empty(), "{}:\n{}", engine.place.kind, broken.join("\n"));
}

/// A job that says when it runs.
async fn running() -> (Stage, JobPlan, Watched, PathBuf, u32) {
    let stage = Stage::new();
    let plan = stage.script("trap '' TERM; (setsid sleep 600 &); echo up; while true; do sleep 0.1; done");
    let mut job = Watched::start(&plan).await;
    let report = job
        .until(|report| matches!(report, Report::Started { .. } | Report::Failed { .. }))
        .await;
    let Report::Started { init_pid, cgroup, .. } = report else {
        panic!("{report:?}")
    };
    job.until_says("up").await;
    (stage, plan, job, cgroup, init_pid)
}

fn process(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !done().await {
        assert!(Instant::now() < patience, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether nothing of the job runs: its first process is gone, and with it its PID namespace.
fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).map_or(true, |status| status.contains("State:\tZ"))
}

async fn a_frozen_container_dies_with_its_agent_and_its_keeper(engine: &Engine) {
    let (stage, plan, mut job, _, init) = running().await;
    job.order(Order::Freeze {
        cause: EndCause::OwnerInput,
    })
    .await;
    job.until(|report| matches!(report, Report::Frozen { .. })).await;
    // Killed before it can do anything about it, and nobody listens any more.
    kill_process(process(job.keeper), Signal::KILL).unwrap();
    job.hang_up();
    until("a frozen container outlives its keeper", async || is_gone(init)).await;
    let agent = plan.cgroups.agent.clone();
    until("the engine still knows the container", async || {
        sweep(&engine.place, &agent).await.unwrap().is_empty()
    })
    .await;
    nothing_stays(&stage, &plan).await;
}

/// What is left of a job whose keeper was killed is the agent's to remove at its next start; then there is nothing.
async fn nothing_stays(stage: &Stage, plan: &JobPlan) {
    let place = stage.place();
    until("a group of the job's stays", async || {
        sela_sandbox::sweep::sweep(&place, &plan.scratch).unwrap();
        let hierarchies = fs::read_dir(&place.root).unwrap().flatten();
        let mut folders = hierarchies.map(|hierarchy| hierarchy.path().join("sela-jobs").join(&place.agent));
        !place.root.join("sela-jobs").join(&place.agent).exists() && !folders.any(|folder| folder.exists())
    })
    .await;
}

async fn a_container_dies_though_nobody_is_left_to_end_it() {
    let (stage, plan, mut job, _, init) = running().await;
    let keeper = job.keeper;
    // The clerk is the keeper's only child.
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let clerk: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    kill_process(process(clerk), Signal::KILL).unwrap();
    kill_process(process(keeper), Signal::KILL).unwrap();
    job.hang_up();
    until(
        "the container's first process does not see its keeper's end",
        async || is_gone(init),
    )
    .await;
    nothing_stays(&stage, &plan).await;
}

async fn the_sweep_removes_what_nobody_guards_any_more(engine: &Engine) {
    let (stage, plan, job, cgroup, init) = running().await;
    // A keeper that is stopped guards nothing, and neither does its clerk end.
    kill_process(process(job.keeper), Signal::STOP).unwrap();
    let other = sweep(&engine.place, "another-agent").await.unwrap();
    assert!(other.is_empty() && !is_gone(init), "{other:?}");
    let swept = sweep(&engine.place, &plan.cgroups.agent).await.unwrap();
    assert_eq!(swept.into_iter().collect::<Vec<_>>(), [plan.lease.to_string()]);
    assert!(is_gone(init));
    sweep_lease(&engine.place, plan.lease).await.unwrap();
    kill_process(process(job.keeper), Signal::KILL).unwrap();
    nothing_stays(&stage, &plan).await;
    assert!(!cgroup.exists(), "{}", cgroup.display());
}

async fn images_make_room_for_each_other(engine: &Engine) {
    let stage = Stage::new();
    let images = images_within(&engine.place, Bytes::from_mib(64)).await;
    let layer = |name: &str, mib: usize| {
        let folder = stage.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("weights"), vec![7; mib << 20]).unwrap();
        support::give(&folder);
        folder
    };
    let digest = |folder: &Path| BlobId::of(folder.as_os_str().as_encoded_bytes());
    let [first, second, huge] = [("first", 30), ("second", 40), ("huge", 80)].map(|(name, mib)| layer(name, mib));
    let load = async |folder: &PathBuf| images.load(digest(folder), std::slice::from_ref(folder)).await;
    let given = load(&first).await.unwrap();
    let id = given.id().to_owned();
    // In use, so it stays, and what was left of the suites makes room.
    let refused = load(&huge).await.unwrap_err();
    assert!(matches!(refused, EngineImageError::NoRoom { .. }), "{refused}");
    assert_eq!(load(&first).await.unwrap().id(), id);
    drop(given);
    let given = load(&second).await.unwrap();
    assert_ne!(given.id(), id);
    assert!(
        !images.holds(&id).await,
        "what was of use longest ago makes room: 30 MiB and 40 do not fit into 64"
    );
}
