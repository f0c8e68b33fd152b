//! What a lease is owed, written where it outlasts both agent and keeper.

use super::wire::Stop;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes `stop` as JSON to `account`: complete or not at all.
pub(crate) fn write(account: &Path, stop: &Stop) -> io::Result<()> {
    let folder = account
        .parent()
        .ok_or_else(|| io::Error::other("an account needs a folder"))?;
    let mut part = account.as_os_str().to_owned();
    part.push(".part");
    let written = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part)?;
        file.write_all(&serde_json::to_vec(stop)?)?;
        file.sync_all()?;
        fs::rename(&part, account)?;
        File::open(folder)?.sync_all()
    };
    written().inspect_err(|_| drop(fs::remove_file(&part)))
}
