//! A keeper and nothing else, for the tests: what `sela job-keeper` is in the real binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    sela_sandbox::keeper::run(std::io::stdin(), std::io::stdout())
}
