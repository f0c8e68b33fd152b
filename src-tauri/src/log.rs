//! Where the programs of the desktop say what they do: standard error, which the program of the window has from the one that
//! started it. `SELA_LOG` says how much.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// What is said of anything that goes on; of the libraries only what went wrong.
const USUAL: &str = "warn,sela_desktop=info,sela_window=info";

/// Starts the log. Once.
pub(crate) fn to_standard_error() {
    let filter = EnvFilter::try_from_env("SELA_LOG").unwrap_or_else(|_| EnvFilter::new(USUAL));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Says why the program ends, where a log that was turned down would not.
#[expect(clippy::print_stderr, reason = "this is where a failed start is said")]
pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("{}: {error:#}", env!("CARGO_BIN_NAME"));
}
