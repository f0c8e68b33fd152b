//! A kernel of the distribution for the tests that run on an emulated machine, whose cgroups are version 2 alone, as users' are. It is unpacked
//! into a folder of ours and never installed: it is no business of this machine's boot loader.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::commands;
use crate::places::Places;

/// The package that names the newest kernel for machines without hardware of their own.
const NEWEST: &str = "linux-image-cloud-amd64";

/// Where the kernel lies once it was fetched: a folder with `boot/` and `lib/modules/`.
pub(crate) fn folder(places: &Places) -> PathBuf {
    places.cache.join("kernel")
}

/// Fetches it, if this is a Debian on a processor that the emulated machine has, and if it is not there yet. Where it cannot be had that is said, and the
/// tests that want it say that they were skipped.
pub(crate) fn ensure(places: &Places) {
    let folder = folder(places);
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) || folder.join("boot").is_dir() {
        return;
    }
    println!("fetching a kernel for the emulated machine of the tests");
    if let Err(error) = fetch(&folder) {
        eprintln!("no kernel for the emulated machine, whose tests are skipped: {error:#}");
    }
}

fn fetch(folder: &Path) -> anyhow::Result<()> {
    let unfinished = folder.with_extension("unfinished");
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove {}", unfinished.display()))?;
    }
    std::fs::create_dir_all(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
    let package = newest()?;
    commands::output(
        Command::new("apt-get")
            .args(["download", "-qq", &package])
            .current_dir(&unfinished),
    )?;
    let archive = std::fs::read_dir(&unfinished)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "deb"))
        .context("apt-get downloaded no package")?;
    commands::output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unfinished))?;
    std::fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    std::fs::rename(&unfinished, folder).with_context(|| format!("cannot name {}", folder.display()))
}

/// The package that [`NEWEST`] stands for. A machine that has never asked for the lists of packages does so now.
fn newest() -> anyhow::Result<String> {
    let ask = || commands::output(Command::new("apt-cache").args(["depends", "--important", NEWEST]));
    let answer = match ask() {
        Ok(answer) if dependency(&answer).is_some() => answer,
        Ok(_) | Err(_) => {
            commands::output(Command::new("apt-get").args(["update", "-qq"]))?;
            ask()?
        }
    };
    dependency(&answer).with_context(|| format!("this distribution has no {NEWEST}"))
}

/// The first dependency in what `apt-cache depends` prints.
fn dependency(answer: &str) -> Option<String> {
    let name = answer.lines().find_map(|line| line.trim().strip_prefix("Depends: "))?;
    Some(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_first_that_the_newest_depends_on() {
        let answer = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(dependency(answer).as_deref(), Some("linux-image-6.1.0-57-cloud-amd64"));
        assert_eq!(dependency("W: Unable to locate package\n"), None);
    }
}
