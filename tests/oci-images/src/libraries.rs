//! Which shared libraries a program asks for, by `ldd`: the loader's own answer on this machine. An image that holds a program
//! holds these beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;

/// Libraries of the NVIDIA driver: they must be those of the driver that runs, so they come with the card, never with the image.
const OF_THE_DRIVER: [&str; 3] = ["libcuda.so", "libnvidia-", "libnvcuvid.so"];

/// Absolute paths of the program's libraries and of its loader, sorted. Empty for a static program.
///
/// # Errors
/// [`Error::Libraries`] if the program is not there, `ldd` cannot read it, or a library is missing.
pub fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |what: String| Error::Libraries {
        program: program.to_owned(),
        what,
    };
    if !program.is_file() {
        return Err(failed("it is not there; compile it first".to_owned()));
    }
    let answer = Command::new("ldd")
        .arg(program)
        // What ldd says is read: in English, please.
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| {
            failed(format!(
                "ldd, which comes with the C library, cannot be started: {error}"
            ))
        })?;
    let said = String::from_utf8_lossy(&answer.stdout);
    let complaint = String::from_utf8_lossy(&answer.stderr);
    if said.contains("statically linked") || complaint.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    if !answer.status.success() {
        return Err(failed(format!(
            "ldd ended with {}: {}",
            answer.status,
            complaint.trim()
        )));
    }
    parse(&said).map_err(failed)
}

/// Lines are `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f…)`, `/lib64/ld-linux-x86-64.so.2 (0x7f…)` for the loader and
/// `linux-vdso.so.1 (0x7f…)` for what the kernel brings; a library that is missing says `=> not found`.
fn parse(said: &str) -> Result<Vec<PathBuf>, String> {
    let mut libraries = Vec::new();
    for line in said.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, place) = line.split_once(" => ").unwrap_or((line, line));
        if OF_THE_DRIVER.iter().any(|driver| name.starts_with(driver)) {
            continue;
        }
        if place.starts_with("not found") {
            return Err(format!("{name} is not installed on this machine"));
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
        assert!(error.contains("libcublas.so.13"), "{error}");
    }

    #[test]
    fn this_program_asks_for_a_loader_and_the_c_library() {
        let libraries = libraries_of(&std::env::current_exe().unwrap()).unwrap();
        let asks_for = |part: &str| libraries.iter().any(|path| path.to_string_lossy().contains(part));
        assert!(asks_for("/ld-linux") || asks_for("/ld-musl"), "{libraries:?}");
        assert!(asks_for("libc."), "{libraries:?}");
    }

    #[test]
    fn a_script_is_no_program_with_libraries() {
        assert_eq!(libraries_of(Path::new("/usr/bin/ldd")).unwrap(), Vec::<PathBuf>::new());
    }
}
