//! The lives, limits, walls and folders of jobs once more, in real container engines: the very test programs that were built
//! beside this one, told by a variable where their jobs run. What does not apply there is named below, each with its reason.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod support;

use sela_emulated::newest;
use sela_sandbox::docker::EngineKind;
use std::process::Command;
use support::engines::{ENGINE, Engine};
use support::is_root;

const PROGRAMS: [&str; 4] = ["life", "limits", "walls", "folders"];

/// Tests that hold for the native backend alone.
const NATIVE_ONLY: [&str; 0] = [];

/// Runs everything that applies in an engine of this test's own.
async fn suite(kind: EngineKind, test: &str) {
    if !is_root(test) {
        return;
    }
    let Some(engine) = Engine::start(kind).await else {
        return;
    };
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut broken = Vec::new();
    for program in PROGRAMS {
        let mut command = Command::new(newest(&deps, &format!("{program}-")));
        command.args(["--test-threads", "2"]).env(ENGINE, engine.in_words());
        for skipped in NATIVE_ONLY {
            command.args(["--skip", skipped]);
        }
        let said = command.output().unwrap();
        let words = String::from_utf8_lossy(&said.stdout).into_owned();
        let result = words
            .lines()
            .find(|line| line.starts_with("test result:"))
            .unwrap_or("no result");
        println!("{kind}, {program}: {result}");
        if !said.status.success() {
            broken.push(format!("{program}:\n{words}"));
        }
    }
    assert!(broken.is_empty(), "{kind}:\n{}", broken.join("\n"));
}

#[tokio::test]
async fn jobs_in_docker_are_guarded_like_native_ones() {
    suite(EngineKind::Docker, "jobs_in_docker_are_guarded_like_native_ones").await;
}

#[tokio::test]
async fn jobs_in_podman_are_guarded_like_native_ones() {
    suite(EngineKind::Podman, "jobs_in_podman_are_guarded_like_native_ones").await;
}
