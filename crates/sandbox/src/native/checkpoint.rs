//! Opens a given checkpoint and unpacks it into the job's `/checkpoint`. Runs inside the job, as the job's user, with every right given up
//! and every page charged to the job: whatever an archive holds, it can harm the job only.

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode};
use sela_protocol::confidential::SealingKey;
use sela_protocol::sealed::{Opening, Purpose};
use sela_protocol::units::Bytes;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use tar::EntryType;

/// Where a job keeps and finds its state.
pub(crate) const CHECKPOINT: &str = "/checkpoint";
/// Most entries of an archive.
pub(crate) const MOST_ENTRIES: u32 = 100_000;

/// Files and folders only, no more than `limit` bytes of content, each at a new place below `/checkpoint`.
pub(super) fn unpack(archive: OwnedFd, key: &SealingKey, limit: Bytes) -> Result<(), Fault> {
    unpack_sealed(archive, key, Path::new(CHECKPOINT), limit)
}

/// The same into another folder.
pub(crate) fn unpack_sealed(archive: OwnedFd, key: &SealingKey, folder: &Path, limit: Bytes) -> Result<(), Fault> {
    let open_and_unpack = || {
        let mut opening = Opening::begin(File::from(archive), key, Purpose::Checkpoint)?;
        unpack_into(&mut opening, folder, limit)?;
        // A tar says itself where it ends; that nothing is missing after it, only the seal says.
        opening.drain()
    };
    open_and_unpack().or_fault(FaultCode::BadCheckpoint, "unpack the checkpoint to go on from")
}

fn unpack_into(archive: impl Read, folder: &Path, limit: Bytes) -> io::Result<()> {
    let mut left = limit.0;
    let mut archive = tar::Archive::new(archive);
    for (count, entry) in archive.entries()?.enumerate() {
        if count >= MOST_ENTRIES as usize {
            return Err(io::Error::other(format!("it has more than {MOST_ENTRIES} entries")));
        }
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        let name = entry.path()?.into_owned();
        let Some(below) = below(&name) else {
            return Err(io::Error::other(format!("{} leads out of it", name.display())));
        };
        let target = folder.join(below);
        if kind == EntryType::Directory {
            fs::create_dir_all(&target)?;
        } else if kind == EntryType::Regular {
            let size = entry.header().size()?;
            left = left
                .checked_sub(size)
                .ok_or_else(|| io::Error::other(format!("it holds more than the job's output_limit of {limit}")))?;
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            let mode = entry.header().mode()? & 0o777 | 0o200;
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&target)?;
            if io::copy(&mut entry, &mut file)? != size {
                return Err(io::Error::other(format!("{} is cut short", name.display())));
            }
        } else {
            return Err(io::Error::other(format!(
                "{} is neither a file nor a folder",
                name.display()
            )));
        }
    }
    Ok(())
}

/// The path without `.`; `None` where it is absolute or goes up.
fn below(name: &Path) -> Option<PathBuf> {
    let mut below = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            // Written past the checks of `set_path`: hostile archives are not made by careful builders.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            if *kind == EntryType::Symlink || *kind == EntryType::Link {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn an_honest_archive_is_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = archive(&[
            ("steps", EntryType::Directory, b""),
            ("steps/7", EntryType::Regular, b"seven"),
            ("model", EntryType::Regular, b"weights"),
        ]);
        unpack_into(bytes.as_slice(), folder.path(), Bytes(12)).unwrap();
        assert_eq!(fs::read(folder.path().join("steps/7")).unwrap(), b"seven");
        assert_eq!(fs::read(folder.path().join("model")).unwrap(), b"weights");
    }

    #[test]
    fn hostile_archives_are_refused() {
        let big = vec![0; 13];
        let cases: [(&str, Vec<u8>); 7] = [
            ("leads out", archive(&[("../evil", EntryType::Regular, b"x")])),
            ("leads out", archive(&[("/evil", EntryType::Regular, b"x")])),
            ("neither", archive(&[("link", EntryType::Symlink, b"")])),
            ("neither", archive(&[("link", EntryType::Link, b"")])),
            ("neither", archive(&[("pipe", EntryType::Fifo, b"")])),
            ("output_limit", archive(&[("big", EntryType::Regular, &big)])),
            (
                "",
                archive(&[("twice", EntryType::Regular, b"x"), ("twice", EntryType::Regular, b"y")]),
            ),
        ];
        for (reason, bytes) in cases {
            let folder = tempfile::tempdir().unwrap();
            let error = unpack_into(bytes.as_slice(), folder.path(), Bytes(12)).unwrap_err();
            assert!(error.to_string().contains(reason), "{error} for {reason}");
        }
    }

    #[test]
    fn an_archive_that_is_cut_short_is_refused() {
        let whole = archive(&[("model", EntryType::Regular, b"weights")]);
        let folder = tempfile::tempdir().unwrap();
        assert!(unpack_into(&whole[..515], folder.path(), Bytes(12)).is_err());
    }
}
