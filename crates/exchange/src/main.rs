//! The market's server, `sela-exchange`: sockets, store, blobs and REST around `sela_market`'s `Floor::step`. What the
//! market's rules are is not decided here.

mod blobs;
mod cli;
mod door;
mod floor_loop;
mod keys;
mod logs;
mod rest;
mod serve;
mod session;
mod store;
mod vault;

#[cfg(test)]
mod tests;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(cli::Arguments::parse())
}
