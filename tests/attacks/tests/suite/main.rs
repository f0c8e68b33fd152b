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
use std::sync::Arc;

/// One test a backend: what it needs is much, and what it makes is used by most attacks.
async fn attack(backend: Backend) {
    if let Some(why) = backend.missing() {
        println!("{}: skipped: {why}", backend.name());
        assert!(
            std::env::var("CI").is_err(),
            "{} is to be tried here and cannot: {why}",
            backend.name()
        );
        return;
    }
    let ground = Arc::new(Ground::new().await);
    let mut tally = tally::Tally::new(backend);
    ground.attack_from_inside(&mut tally).await;
    outside::attack(&ground, &mut tally).await;
    Arc::into_inner(ground).unwrap().leave().await;
    println!("{tally}");
    let failures = tally.failures();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_the_native_backend_are_held_as_it_promises() {
    attack(Backend::Native).await;
}
