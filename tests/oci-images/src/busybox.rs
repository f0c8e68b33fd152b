//! Tiny honest images for tests: Debian's static busybox and its applets, about 2 MB, so that a test's job is a line of
//! shell that really runs.

use std::fs;
use std::path::PathBuf;

use crate::error::Error;
use crate::image::Image;
use crate::layer::{Content, Layer};

const PLACES: [&str; 3] = ["/bin/busybox", "/usr/bin/busybox", "/usr/lib/busybox/busybox-static"];

/// Applets that tests use; each becomes a symbolic link in `/bin`.
const APPLETS: [&str; 58] = [
    "[",
    "awk",
    "base64",
    "basename",
    "cat",
    "chmod",
    "chown",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "free",
    "grep",
    "head",
    "hostname",
    "id",
    "ifconfig",
    "ip",
    "kill",
    "killall",
    "ln",
    "ls",
    "mkdir",
    "mknod",
    "mount",
    "mv",
    "nc",
    "nproc",
    "ping",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "rm",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "sync",
    "tail",
    "test",
    "touch",
    "tr",
    "true",
    "umount",
    "uname",
    "wc",
    "yes",
];

/// Finds a busybox that needs no libraries.
///
/// # Errors
/// [`Error::NoStaticBusybox`] says what to install.
pub fn busybox_path() -> Result<PathBuf, Error> {
    PLACES
        .iter()
        .map(PathBuf::from)
        .find(|path| fs::read(path).is_ok_and(|bytes| is_static_elf(&bytes)))
        .ok_or_else(|| Error::NoStaticBusybox {
            looked: PLACES.join(", "),
        })
}

/// The layer that every test image stands on: busybox, its applets, and the folders that a job's mounts need.
///
/// # Errors
/// [`Error::NoStaticBusybox`] says what to install.
pub fn busybox_layer() -> Result<Layer, Error> {
    let busybox = busybox_path()?;
    let mut layer = Layer::new()
        .mount_points()
        .directory("etc")
        .content("bin/busybox", 0o755, Content::File(busybox));
    for applet in APPLETS {
        layer = layer.symlink(&format!("bin/{applet}"), "busybox");
    }
    Ok(layer)
}

/// An image that runs `script` with busybox's shell, as user 65534.
///
/// # Errors
/// [`Error::NoStaticBusybox`] says what to install.
pub fn busybox_script(script: &str) -> Result<Image, Error> {
    Ok(Image::new(vec![busybox_layer()?], ["/bin/sh", "-c", script]))
}

/// Whether these are a 64-bit ELF program without an interpreter (`PT_INTERP`, System V ABI).
fn is_static_elf(bytes: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, width: usize| -> Option<usize> {
        let field = bytes.get(at..at + width)?;
        let mut padded = [0u8; 8];
        padded[..width].copy_from_slice(field);
        usize::try_from(u64::from_le_bytes(padded)).ok()
    };
    if bytes.get(..5) != Some(b"\x7fELF\x02") {
        return false;
    }
    let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    (0..count).all(|index| number(table.saturating_add(index * size), 4).is_some_and(|kind| kind != PT_INTERP as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamically_linked_program_is_not_taken_for_static() {
        let myself = fs::read("/proc/self/exe").expect("the test's own program can be read");
        assert!(!is_static_elf(&myself));
        assert!(!is_static_elf(b"#!/bin/sh\n"));
        assert!(!is_static_elf(b""));
    }
}
