//! `cargo xtask …`: the one door to everything that is set up, run, tested or measured here.
//!
//! This file reads the command line and calls the verb; each verb is a module. Nothing here is shipped to anybody, and nothing here
//! decides anything that the product decides.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks on its terminal")]

fn main() {}
