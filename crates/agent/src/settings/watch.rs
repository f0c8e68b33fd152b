//! Reads `agent.toml` from the disk and notices when it changed, by the kernel's own notice (inotify): no polling. The folder
//! is watched, not the file, because editors replace files. What a change means is the caller's.

use super::{Settings, SettingsError, TEMPLATE};
use anyhow::Context as _;
use rustix::fs::inotify;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Where the settings are, and how this machine is called where they do not say.
#[derive(Debug, Clone)]
pub(crate) struct SettingsFile {
    path: PathBuf,
    machine: String,
}

impl SettingsFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { path, machine }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the commented template where there is no file yet.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        let made = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.path);
        match made {
            Ok(mut file) => file.write_all(TEMPLATE.as_bytes()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .with_context(|| format!("{} cannot be written", self.path.display()))
    }

    /// Reads it; no file is all defaults.
    ///
    /// # Errors
    /// What is wrong with it, with the place.
    pub(crate) fn read(&self) -> Result<Settings, SettingsError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(SettingsError {
                    at: None,
                    problem: format!("{} cannot be read: {error}", self.path.display()),
                });
            }
        };
        Settings::parse(&text, &self.machine)
    }
}

/// Tells when the file may have changed.
#[derive(Debug)]
pub(crate) struct SettingsWatch {
    notices: AsyncFd<OwnedFd>,
    name: Vec<u8>,
}

impl SettingsWatch {
    /// Starts to watch. Must be called inside the runtime.
    ///
    /// # Errors
    /// Where the kernel refuses (too many watches).
    pub(crate) fn start(file: &SettingsFile) -> anyhow::Result<Self> {
        let path = file.path();
        let folder = path.parent().unwrap_or(Path::new("/"));
        let watch = || {
            let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            let changes = inotify::WatchFlags::CLOSE_WRITE
                | inotify::WatchFlags::MOVED_TO
                | inotify::WatchFlags::MOVED_FROM
                | inotify::WatchFlags::DELETE;
            inotify::add_watch(&fd, folder, changes)?;
            // SAFETY: the descriptor is owned by the `AsyncFd` from here on, and nothing closes or replaces it before that.
            unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
        };
        let notices = watch().with_context(|| {
            let folder = folder.display();
            format!("changes in {folder} cannot be watched; settings will be read at the next start only")
        })?;
        let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes().to_vec();
        Ok(Self { notices, name })
    }

    /// Waits until the file was written, replaced or removed. Safe to drop half-way.
    pub(crate) async fn changed(&self) {
        loop {
            let Ok(mut ready) = self.notices.readable().await else {
                // The descriptor is ours and stays open; were it ever to fail, settings are read at the next start.
                return std::future::pending().await;
            };
            let ours = self.drain();
            ready.clear_ready();
            if ours {
                return;
            }
        }
    }

    fn drain(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.notices.get_ref(), &mut buffer);
        let mut ours = false;
        while let Ok(event) = reader.next() {
            // A queue that overflowed names no file: then anything may have changed.
            ours |= event.file_name().is_none_or(|name| name.to_bytes() == self.name);
        }
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writing_replacing_and_removing_the_file_are_noticed_and_its_neighbours_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = SettingsFile::at(folder.path().join("agent.toml"));
        let watch = SettingsWatch::start(&file).expect("watches");
        std::fs::write(folder.path().join("tenant.toml"), "x").expect("written");
        assert!(!watch.drain(), "a neighbour does not count");
        file.make().expect("made");
        watch.changed().await;
        let other = folder.path().join("new");
        std::fs::write(&other, "[price]\nfloor = \"1\"\n").expect("written");
        std::fs::rename(&other, file.path()).expect("replaced");
        watch.changed().await;
        assert_eq!(file.read().expect("good").policy.rest.floor.to_string(), "1.000000");
        std::fs::remove_file(file.path()).expect("removed");
        watch.changed().await;
        assert_eq!(
            file.read(),
            Settings::parse("", &file.machine),
            "no file is all defaults"
        );
    }
}
