//! Binary `sela-window`: on Linux the window, and nothing else. `sela-desktop` starts it when the window is wanted, tells it
//! through its standard input to come to the front, and ends it by closing that; it ends by itself when its owner closes the
//! window. It decides nothing and opens no port: its page shows what the agent tells.

#[cfg(target_os = "linux")]
mod language;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod orders;
#[cfg(target_os = "linux")]
mod trouble;
#[cfg(target_os = "linux")]
mod web_view;
#[cfg(target_os = "linux")]
mod window;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    log::to_standard_error();
    window::run(&clap::Parser::parse()).unwrap_or_else(|error| {
        log::complain(&error);
        ExitCode::FAILURE
    })
}

/// Elsewhere the window is in the one program with the tray, and this one is not shipped.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
