//! What the agent remembers: `earnings.db` (leases, notes, receipts; append only) and `telemetry.db` (samples, the gap strip; prunable).
//! One thread owns both connections; the rest of the agent hands it entries and is told when they are committed. What is
//! remembered is decided by `sela-core`; nothing is computed here but sums for display.

mod earnings;
mod migrations;
mod pages;
mod strip;
mod telemetry;
mod thread;

pub(crate) use earnings::{Entry, check};
pub(crate) use strip::StripEntry;
pub(crate) use thread::{Committed, Store, StoreReader};

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// SQLite refused: disk full, file broken, permissions.
    #[error("{file}: {source}; nothing was changed")]
    Database {
        /// Which file.
        file: &'static str,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// Written by a newer agent.
    #[error(
        "{file} was written by a newer version of sela (its layout is {found}, this one knows {known}); update sela"
    )]
    Newer {
        /// Which file.
        file: &'static str,
        /// Its version.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// An entry in it does not read.
    #[error("an entry of {file} does not read: {why}")]
    Entry {
        /// Which file.
        file: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The cursor of a page is not one of ours.
    #[error("\"{0}\" is no cursor of this list; leave it out to start at the newest")]
    Cursor(String),
    /// More became of the cards in that time than one answer holds.
    #[error("more than {most} stretches lie in that time; ask for a shorter one")]
    TooMany {
        /// The most that one answer holds.
        most: usize,
    },
    /// The store's thread is gone.
    #[error("the store has stopped; the agent must be started again")]
    Stopped,
}
