//! Binary `sela-desktop`: the window, the tray and the notifications of the agent. It decides nothing about sharing, starts no
//! process of its own and opens no port: it shows what the agent tells and forwards what the owner wants.
#![cfg_attr(all(windows, not(debug_assertions)), windows_subsystem = "windows")]

mod app;
mod arguments;
mod autostart;
mod bridge;
mod controller;
mod figures;
mod link;
mod notifications;
mod supervisor;
mod tray;
mod trouble;
mod window;
mod words;

use arguments::Arguments;
use clap::Parser as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    leave_the_card_alone();
    let arguments = Arguments::parse();
    log_to_standard_error();
    match app::run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Toolkit and web view draw without the graphics card: what is here to lend the card out must not be what uses it, and a
/// page of text and bars needs none. It also halves the memory of the window. Whoever sets the variables otherwise is heard.
#[cfg(target_os = "linux")]
fn leave_the_card_alone() {
    for (name, value) in [("GDK_GL", "disable"), ("WEBKIT_DISABLE_COMPOSITING_MODE", "1")] {
        if std::env::var_os(name).is_none() {
            #[expect(
                clippy::disallowed_methods,
                reason = "the libraries take it from nowhere else, and there is no thread yet"
            )]
            // SAFETY: nothing has started a thread yet: this is the first thing that the program does.
            unsafe {
                std::env::set_var(name, value);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
const fn leave_the_card_alone() {}

#[expect(clippy::print_stderr, reason = "this is where a failed start is said")]
fn complain(text: &str) {
    eprintln!("sela-desktop: {text}");
}

fn log_to_standard_error() {
    let filter = EnvFilter::try_from_env("SELA_LOG").unwrap_or_else(|_| EnvFilter::new("warn,sela_desktop=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
