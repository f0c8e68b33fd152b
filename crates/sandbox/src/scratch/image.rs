//! The file that a scratch lies in: its room taken from the disk at once, so that a full disk is found before the job begins, and an
//! empty ext4 in it.

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use sela_protocol::units::Bytes;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes ext4; of e2fsprogs, which every distribution installs.
pub(crate) const MKFS: &str = "/sbin/mkfs.ext4";
/// What is left free on the owner's disk, at least.
const FREE_FLOOR: Bytes = Bytes::from_gib(1);

/// A new file of that size with an empty file system that can encrypt.
pub(super) fn make(path: &Path, size: Bytes) -> Result<File, Fault> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .or_fault(FaultCode::Isolation, "make the scratch")?;
    let disk = rustix::fs::fstatvfs(&file).or_fault(FaultCode::Isolation, "look at the disk")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < size.0.saturating_add(FREE_FLOOR.0) {
        let message = format!(
            "the job asks for {size} of scratch, and the disk has {} free",
            Bytes(free)
        );
        return Err(Fault::new(FaultCode::Isolation, message));
    }
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size.0) {
        // A file system that cannot take room in advance: a full disk then shows when the job writes.
        Err(Errno::OPNOTSUPP) => file
            .set_len(size.0)
            .or_fault(FaultCode::Isolation, "make the scratch")?,
        taken => taken.or_fault(
            FaultCode::Isolation,
            format_args!("take {size} of the disk for scratch"),
        )?,
    }
    format(path)?;
    Ok(file)
}

/// Without a journal: what is on it is of no use after a crash, and nobody has the key.
fn format(path: &Path) -> Result<(), Fault> {
    #[expect(clippy::disallowed_methods, reason = "this crate is where processes are started")]
    let mut mkfs = Command::new(MKFS);
    mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-O", "encrypt,^has_journal"])
        .args(["-E", "lazy_itable_init=1,nodiscard"])
        .arg(path)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let done = mkfs
        .output()
        .or_fault(FaultCode::Isolation, format_args!("start {MKFS}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let message = format!("{MKFS} could not make the scratch's file system: {}", said.trim());
    Err(Fault::new(FaultCode::Isolation, message))
}
