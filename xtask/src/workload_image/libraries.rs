//! Which shared libraries a program asks for, by `ldd`: the loader's own answer on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::commands;

/// Libraries of the NVIDIA driver: they must be those of the driver that runs, so they come with the card, never with the image.
const OF_THE_DRIVER: [&str; 3] = ["libcuda.so", "libnvidia-", "libnvcuvid.so"];

/// Absolute paths of the program's libraries and of its loader, sorted. Empty for a static program.
///
/// # Errors
/// If the program is not there, `ldd` cannot read it, or a library is missing.
pub(super) fn of(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    ensure!(
        program.is_file(),
        "{} is not there; compile the workloads first",
        program.display()
    );
    let mut ldd = Command::new("ldd");
    // What ldd says is read: in English, please.
    ldd.arg(program).env("LC_ALL", "C");
    let answer = ldd
        .output()
        .context("cannot start ldd, which comes with the C library")?;
    let said = String::from_utf8_lossy(&answer.stdout);
    let complaint = String::from_utf8_lossy(&answer.stderr);
    if said.contains("statically linked") || complaint.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    ensure!(
        answer.status.success(),
        "`{}` ended with {}: {}",
        commands::shown(&ldd),
        answer.status,
        complaint.trim()
    );
    parse(&said).with_context(|| format!("the libraries of {}", program.display()))
}

/// Lines are `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f…)`, `/lib64/ld-linux-x86-64.so.2 (0x7f…)` for the loader and
/// `linux-vdso.so.1 (0x7f…)` for what the kernel brings; a library that is missing says `=> not found`.
fn parse(said: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if OF_THE_DRIVER.iter().any(|driver| name.starts_with(driver)) {
            continue;
        }
        if place.starts_with("not found") {
            bail!("{name} is not installed on this machine");
        }
        let place = place.split_whitespace().next().unwrap_or_default();
        if place.starts_with('/') {
            libraries.push(PathBuf::from(place));
        }
    }
    libraries.sort();
    libraries.dedup();
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(said: &str, expected: &[&str]) {
        let found = parse(said).unwrap();
        assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{said}");
    }

    #[test]
    fn what_ldd_says_is_read() {
        check("", &[]);
        check(
            "\tlinux-vdso.so.1 (0x00007ffd0)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f4)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f5)\n",
            &["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"],
        );
        check(
            "\tlibcuda.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n",
            &["/lib/libc.so.6"],
        );
        let error = parse("\tlibcublas.so.13 => not found\n").unwrap_err();
        assert!(error.to_string().contains("libcublas.so.13"), "{error}");
    }

    #[test]
    fn this_program_asks_for_a_loader_and_the_c_library() {
        let libraries = of(&std::env::current_exe().unwrap()).unwrap();
        let asks_for = |part: &str| libraries.iter().any(|path| path.to_string_lossy().contains(part));
        assert!(asks_for("/ld-linux") || asks_for("/ld-musl"), "{libraries:?}");
        assert!(asks_for("libc."), "{libraries:?}");
    }

    #[test]
    fn a_script_is_no_program_with_libraries() {
        assert_eq!(of(Path::new("/usr/bin/ldd")).unwrap(), Vec::<PathBuf>::new());
    }
}
