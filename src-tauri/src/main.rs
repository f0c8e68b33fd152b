//! Binary `sela-desktop`: the tray, the notifications and the window of the agent. It decides nothing about sharing, starts no
//! agent and no job, and opens no port: it shows what the agent tells and forwards what the owner wants. On Linux it holds
//! everything but the window, for which it starts `sela-window`; elsewhere it is the one program.
#![cfg_attr(all(windows, not(debug_assertions)), windows_subsystem = "windows")]

mod arguments;
mod autostart;
mod controller;
mod figures;
mod language;
mod link;
#[cfg(target_os = "linux")]
mod linux;
mod log;
mod menu;
mod notifications;
#[cfg(any(test, not(target_os = "linux")))]
mod one_process;
#[cfg(target_os = "linux")]
mod orders;
mod settings;
mod shell;
mod sign;
mod supervisor;
mod trouble;
#[cfg(any(test, not(target_os = "linux")))]
mod web_view;
mod words;

use arguments::Arguments;
use clap::Parser as _;
#[cfg(target_os = "linux")]
use linux::run;
#[cfg(not(target_os = "linux"))]
use one_process::run;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log::to_standard_error();
    run(&arguments).unwrap_or_else(|error| {
        log::complain(&error);
        ExitCode::FAILURE
    })
}
