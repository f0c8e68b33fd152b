//! Small steps of the cache's on the disk, with errors that name the file: the lock, folders, and documents that are old or new
//! and never half.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ImageError;

pub(super) fn lock(directory: &Path) -> Result<File, ImageError> {
    let path = directory.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| ImageError::io("open", &path, error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(ImageError::CacheInUse {
            directory: directory.to_owned(),
        }),
        Err(error) => Err(ImageError::io("lock", path, error.into())),
    }
}

/// Only the owner of the cache may look inside: it holds strangers' files, some of them executable.
pub(super) fn make_folder(path: &Path) -> Result<(), ImageError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| ImageError::io("create", path, error))
}

pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let failed = |error| ImageError::io("list", folder, error);
    fs::read_dir(folder)
        .map_err(failed)?
        .map(|entry| Ok(entry.map_err(failed)?.path()))
        .collect()
}

pub(super) fn empty_folder(folder: &Path) -> Result<(), ImageError> {
    for path in list(folder)? {
        let removed = if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(|error| ImageError::io("remove", path, error))?;
    }
    Ok(())
}

pub(super) fn remove_file(path: &Path) -> Result<(), ImageError> {
    fs::remove_file(path).map_err(|error| ImageError::io("remove", path, error))
}

/// `None` for what is not there or cannot be read as such: then it is made anew.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ImageError> {
    let bytes = serde_json::to_vec(value).map_err(|error| ImageError::io("write", path, error.into()))?;
    write_whole(path, &bytes)
}

/// Old or new, never half: written beside and renamed.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let beside = path.with_extension("new");
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        // Where the disk is full this too may be left half written; the first error is the one to tell.
        let _ = fs::remove_file(&beside);
        ImageError::io("write", path, error)
    })
}
