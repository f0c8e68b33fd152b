//! A job's way to named hosts: the proxy alone, on loopback, and with real jobs. Nothing leaves this machine: names and routes are the
//! test's own (`internet`), while every check is the one of real jobs.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "in a test a panic is the report; skipped tests say so; and the test is who waits and looks from outside"
)]

mod internet;
mod jobs;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
