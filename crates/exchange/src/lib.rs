//! The market's server, `sela-exchange`: sockets, store, blobs and REST around `sela_market`'s `Floor::step`. What the
//! market's rules are is not decided here. A library only so that `tests/fuzz` can reach what nodes say; nobody else links it.

mod blobs;
mod cli;
mod collect;
mod door;
mod floor_loop;
mod keys;
mod listener;
mod logs;
mod rest;
mod serve;
mod session;
mod store;
mod vault;

#[cfg(test)]
mod tests;

#[cfg(feature = "fuzzing")]
pub use floor_loop::fuzzing::{Desk, Lab};

use clap::Parser;
use std::process::ExitCode;

/// The whole program, by the words of its command line.
pub fn main() -> ExitCode {
    cli::run(cli::Arguments::parse())
}
