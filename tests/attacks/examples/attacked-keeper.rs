//! A keeper and nothing else: what `sela job-keeper` is in the real binary, for the attacks to be carried out under.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    sela_sandbox::keeper::run(std::io::stdin(), std::io::stdout())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
