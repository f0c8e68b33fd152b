//! Everything behind binary `sela`: the provider agent (`sela agent run`), the guard of one job (`sela job-keeper`, started by
//! the agent only) and the command line for owners and tenants. What there is to decide is decided in `sela-core`. A library
//! only so that `tests/fuzz` can reach the local interface; nobody else links it.

mod api;
mod calendars;
mod cli;
mod doctor;
mod jobs;
mod keys;
mod market;
mod paths;
mod run;
mod settings;
mod store;

#[cfg(feature = "fuzzing")]
pub use api::fuzzing::LocalInterface;

use clap::Parser as _;
use sela_protocol::plain::OneLine;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// The whole program, by the words of its command line.
pub fn main() -> ExitCode {
    // Before anything starts a thread: the keeper forks.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == sela_sandbox::keeper::handle::SUBCOMMAND)
    {
        return sela_sandbox::keeper::run(std::io::stdin(), std::io::stdout());
    }
    let cli = cli::Cli::parse();
    if cli.is_agent() {
        log_to_standard_error();
    }
    // One thread: the loop owns the state, and an idle agent should cost an owner nothing that can be seen.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(cli::run(cli));
            // A driver call or a disk that hangs must not keep the process.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(cli::CliError::Failed(format!(
            "the system gives no event loop: {error}"
        ))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = error.to_string();
            if !text.is_empty() {
                complain(&text);
            }
            error.code()
        }
    }
}

#[expect(clippy::print_stderr, reason = "this is where a command's failure is said")]
fn complain(text: &str) {
    eprintln!("sela: {}", sela_protocol::plain::lines(text));
}

/// `SELA_LOG` says how much, in `tracing`'s words; `info` where it does not.
fn log_to_standard_error() {
    let filter = EnvFilter::try_from_env("SELA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| OneLine(std::io::stderr()))
        .with_ansi(false)
        .init();
}
