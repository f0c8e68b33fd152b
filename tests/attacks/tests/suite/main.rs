//! Every attack of the catalogue, on every backend that this machine has: each must go through without walls, and must not with them,
//! as far as the backend promises. What is promised is the code's own list, and that is asserted both ways.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    reason = "in a test a panic is the report; what was seen is printed; and the test is who waits and looks from outside"
)]

mod archives;
mod backend;
mod bombs;
mod control;
mod ending;
#[allow(
    dead_code,
    reason = "shared with the tests of the sandbox, of which each uses its own part"
)]
#[path = "../../../../crates/sandbox/tests/support/engines.rs"]
mod engines;
mod ground;
mod images;
mod job;
mod outside;
mod proxied;
mod remains;
mod results;
mod tally;

use backend::Backend;
use ground::Ground;
use sela_sandbox::docker::EngineKind;
use std::sync::Arc;

/// One test a backend: what it needs is much, and what it makes is used by most attacks.
async fn attack(backend: Backend) {
    let Some(here) = backend.here().await else { return };
    let mut tally = tally::Tally::new(here.name, here.promises.clone());
    let ground = Arc::new(Ground::new(here).await);
    ground.attack_from_inside(&mut tally).await;
    outside::attack(&ground, &mut tally).await;
    Arc::into_inner(ground).unwrap().leave().await;
    println!("{tally}");
    let failures = tally.failures();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_of_the_native_backend_are_held_as_it_promises() {
    attack(Backend::Native).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_in_docker_are_held_as_it_promises() {
    attack(Backend::Engine(EngineKind::Docker)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_in_podman_are_held_as_it_promises() {
    attack(Backend::Engine(EngineKind::Podman)).await;
}
