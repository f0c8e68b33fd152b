//! `cargo xtask setup`: what this machine lacks for a verb is installed, or named in one command to copy.
//!
//! Which packages a verb needs is a table in `packages`; tools of ours are in `tools`. This file joins the two. Nothing is downloaded
//! but through the clients of package registries: apt-get, cargo, pip.

mod kernel;
mod packages;
mod tools;

use std::process::Command;

use anyhow::{Context, bail};

use crate::arguments::Purpose;
use crate::commands;
use crate::places::Places;
pub(crate) use kernel::folder as kernel_folder;
use packages::Package;
pub(crate) use tools::Tools;

/// Makes sure that everything for `purpose` is here; says nothing where nothing is missing.
///
/// # Errors
/// With the one command to copy, if system packages are missing and this process may not install them; else if an install failed.
pub(crate) fn ensure(places: &Places, purpose: Purpose) -> anyhow::Result<Tools> {
    let missing = packages::missing(purpose, packages::is_here);
    if !missing.is_empty() {
        install(&missing)?;
        let still: Vec<_> = packages::missing(purpose, packages::is_here)
            .iter()
            .map(|package| package.debian)
            .collect();
        if !still.is_empty() {
            bail!(
                "apt-get says that it installed {}, but they cannot be found; look at its output above",
                still.join(", ")
            );
        }
    }
    if purpose == Purpose::Test {
        kernel::ensure(places);
    }
    tools::ensure(places, purpose)
}

/// A program that the machine brings.
///
/// # Errors
/// If it is nowhere.
pub(crate) fn program(name: &str) -> anyhow::Result<std::path::PathBuf> {
    packages::find_program(name).with_context(|| format!("{name} is nowhere in PATH; install it"))
}

/// Installs as root by apt-get; anywhere else it only says what to type.
fn install(missing: &[&Package]) -> anyhow::Result<()> {
    for package in missing {
        println!("missing: {} ({})", package.debian, package.reason);
    }
    if !(cfg!(target_os = "linux") && is_root() && packages::is_here(&packages::Probe::Program("apt-get"))) {
        bail!(
            "install what is missing, then try again:\n\n  {}\n",
            packages::install_line(packages::system(), missing)
        );
    }
    let _quiet = ServicesStayDown::hold();
    commands::run(Command::new("apt-get").args(["update", "-qq"]))?;
    commands::run(
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(missing.iter().map(|package| package.debian))
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

#[cfg(unix)]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

/// While this lives, Debian's packages do not start the services that they bring: we want the programs of `docker-registry` and
/// `boinc-client` for our tests, not a registry and a BOINC running on somebody's machine.
struct ServicesStayDown {
    ours: bool,
}

impl ServicesStayDown {
    const POLICY: &'static str = "/usr/sbin/policy-rc.d";

    /// A policy that is already there is the machine's own and stays as it is.
    fn hold() -> Self {
        let path = std::path::Path::new(Self::POLICY);
        let ours = !path.exists() && write_executable(path, "#!/bin/sh\nexit 101\n").is_ok();
        Self { ours }
    }
}

impl Drop for ServicesStayDown {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_file(Self::POLICY);
        }
    }
}

#[cfg(unix)]
fn write_executable(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(not(unix))]
fn write_executable(_path: &std::path::Path, _text: &str) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
