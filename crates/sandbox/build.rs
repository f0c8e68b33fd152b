//! Compiles the programs of ours that run where there is no library: the init of jobs in containers, and what a checkup runs inside
//! a job, both for the machine that this crate is built for. Only the compiler that builds everything else is used.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a build script speaks to cargo by its output, and this one starts the compiler"
)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// What each is called, and where its source lies.
const PROGRAMS: [(&str, &str); 2] = [("sela-init", "src/docker/init"), ("sela-asks", "src/checkup/inside")];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for (name, source) in PROGRAMS {
        println!("cargo:rerun-if-changed={source}");
        compile(name, source);
    }
}

fn compile(name: &str, source: &str) {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let program = PathBuf::from(variable("OUT_DIR")).join(name);
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args(["--edition", "2024", "--crate-type", "bin"]);
    compiler.args(["--crate-name", &name.replace('-', "_")]);
    compiler.args(["--target", &variable("TARGET"), "-D", "warnings"]);
    for option in [
        "opt-level=s",
        "panic=abort",
        "strip=symbols",
        "relocation-model=static",
        "link-arg=-nostartfiles",
        "link-arg=-nostdlib",
        "link-arg=-static",
        "link-arg=-Wl,--build-id=none",
    ] {
        compiler.args(["-C", option]);
    }
    let linker = variable("RUSTC_LINKER");
    if !linker.is_empty() {
        compiler.args(["-C", &format!("linker={linker}")]);
    }
    compiler.arg(format!("{source}/main.rs")).arg("-o").arg(&program);
    let status = compiler.status();
    assert!(
        matches!(&status, Ok(status) if status.success()),
        "{name} could not be compiled: {status:?}: {compiler:?}"
    );
}
