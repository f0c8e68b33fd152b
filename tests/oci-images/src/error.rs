//! What can go wrong while an image is written: only the disk, or a part that is not there.

use std::path::PathBuf;

/// Why an image could not be written. Nothing of the image is left behind in its final place.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading a part or writing the image failed.
    #[error("could not {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: "read", "create".
        doing: &'static str,
        /// The file or folder concerned.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// No busybox that runs without libraries was found.
    #[error("no statically linked busybox in {looked}: install it (Debian: apt-get install busybox-static)")]
    NoStaticBusybox {
        /// The paths that were tried.
        looked: String,
    },
    /// What a program needs beside itself could not be found.
    #[error("the libraries of {}: {what}", program.display())]
    Libraries {
        /// The program.
        program: PathBuf,
        /// What went wrong and what to do.
        what: String,
    },
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io {
            doing,
            path: path.into(),
            source,
        }
    }
}
