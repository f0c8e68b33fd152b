//! Enters a user namespace as an agent without root does, and becomes the program that is named: for the tests of jobs without root.

#![expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "for tests: it says why it cannot, and becomes another program"
)]

use sela_sandbox::rootless::{Grounds, enter, look};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let outer = match look(&Grounds::this()) {
        Ok(outer) => outer,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    // SAFETY: nothing has started a thread.
    if let Err(error) = unsafe { enter(&outer) } {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("rootless PROGRAM ARGUMENTS");
        return ExitCode::FAILURE;
    };
    let error = Command::new(&program).args(words).exec();
    eprintln!("{}: {error}", program.display());
    ExitCode::FAILURE
}
