//! The exchange's one SQLite file. A thread of its own owns the connection; everybody else sends it work and waits. What
//! is in which table stands beside its SQL in the modules below; what the records mean is `sela_market`'s.

pub(crate) mod blob_owners;
pub(crate) mod confidential;
pub(crate) mod ledger;
mod migrations;
pub(crate) mod records;
pub(crate) mod submissions;

use rusqlite::{Connection, ErrorCode, OptionalExtension};
use std::path::Path;
use tokio::sync::{mpsc, oneshot};

/// The file's name in the data folder.
const FILE: &str = "exchange.db";
/// How much work may wait for the thread.
const QUEUE: usize = 256;

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

enum Order {
    Do(Work),
    Close,
}

/// The way to the thread that owns the file.
#[derive(Clone)]
pub(crate) struct Store {
    orders: mpsc::Sender<Order>,
}

/// The thread, to be waited for after [`Store::close`], so that the file is closed properly.
#[must_use]
pub(crate) struct StoreThread(std::thread::JoinHandle<()>);

/// Why the store did not do it. Nothing of the transaction was kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Written by a newer program.
    #[error(
        "the data folder was written by a newer sela-exchange (step {found}, this one knows {known}): start that version, \
         nothing was changed"
    )]
    Newer {
        /// The file's step.
        found: usize,
        /// The last known here.
        known: usize,
    },
    /// Money of a lab is not money.
    #[error(
        "this data folder belongs to {}, and is not opened as {}: start it {}, or choose another folder with --data",
        kind(*.lab), kind(!*.lab), if *.lab { "with --lab" } else { "without --lab" }
    )]
    OtherKind {
        /// Whether the folder is a lab's.
        lab: bool,
    },
    /// No room.
    #[error(
        "the disk with the data folder is full: free space there, then start the exchange again; nothing was half written"
    )]
    DiskFull,
    /// A rule that the database itself holds.
    #[error("the store refuses this: {0}")]
    Refused(String),
    /// What is stored does not read.
    #[error("the store is damaged ({0}): restore the data folder from a copy")]
    Damaged(String),
    /// The thread is gone.
    #[error("the store is closed")]
    Closed,
    /// Anything else.
    #[error("the store failed: {0}")]
    Sqlite(rusqlite::Error),
}

const fn kind(lab: bool) -> &'static str {
    if lab {
        "a lab, whose money has no worth"
    } else {
        "an exchange with real money"
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull,
            Some(ErrorCode::ConstraintViolation) => Self::Refused(error.to_string()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            _ => Self::Sqlite(error),
        }
    }
}

impl Store {
    /// Opens the file, brings its tables up to date and starts its thread.
    ///
    /// # Errors
    /// A file that cannot be opened, is newer than this program, or is of the other kind.
    pub(crate) fn open(data: &Path, lab: bool) -> Result<(Self, StoreThread), StoreError> {
        let mut connection = connect(data)?;
        remember_kind(&mut connection, lab)?;
        let (orders, mut queue) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                while let Some(Order::Do(work)) = queue.blocking_recv() {
                    work(&mut connection);
                }
            })
            .map_err(|error| StoreError::Refused(format!("no thread could be started for it: {error}")))?;
        Ok((Self { orders }, StoreThread(thread)))
    }

    /// Has the thread do something with the connection. If the caller stops waiting, it is done all the same.
    ///
    /// # Errors
    /// What `work` says, or [`StoreError::Closed`].
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, outcome) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            // Nobody waits any more: that is fine, the work is done.
            let _ = done.send(work(connection));
        });
        let order = Order::Do(work);
        self.orders.send(order).await.map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }

    /// Has the thread do what waits, close the file and end. Later work is [`StoreError::Closed`].
    pub(crate) async fn close(&self) {
        // An error means that it has ended already.
        let _ = self.orders.send(Order::Close).await;
    }
}

impl StoreThread {
    /// Waits until the file is closed.
    pub(crate) fn join(self) {
        // A panic in the thread has been printed by the panic hook, and whoever waited for its work got `Closed`.
        let _ = self.0.join();
    }
}

fn connect(data: &Path) -> Result<Connection, StoreError> {
    let mut connection = Connection::open(data.join(FILE))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // FULL: a commit has reached the disk before anything that depends on it is said to anybody.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // So that INSERT OR REPLACE meets the triggers that refuse a DELETE.
    connection.pragma_update(None, "recursive_triggers", true)?;
    // What is replaced is overwritten: a secret that was forgotten leaves nothing, sealed or not.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    migrations::migrate(&mut connection)?;
    Ok(connection)
}

fn remember_kind(connection: &mut Connection, lab: bool) -> Result<(), StoreError> {
    let transaction = connection.transaction()?;
    let found: Option<String> = transaction
        .query_row("SELECT value FROM facts WHERE name = 'lab'", [], |row| row.get(0))
        .optional()?;
    match found.as_deref() {
        None => {
            transaction.execute("INSERT INTO facts (name, value) VALUES ('lab', ?1)", [lab.to_string()])?;
        }
        Some(text) if text == lab.to_string() => {}
        Some(_) => return Err(StoreError::OtherKind { lab: !lab }),
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
pub(crate) fn connect_for_tests(data: &Path) -> Connection {
    connect(data).expect("the store opens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_labs_folder_is_not_opened_as_an_exchange_with_real_money_nor_the_other_way_round() {
        for lab in [true, false] {
            let folder = tempfile::tempdir().expect("a folder");
            let (store, thread) = Store::open(folder.path(), lab).expect("opens");
            store.close().await;
            thread.join();
            let closed = store.run(|_| Ok(())).await;
            assert!(matches!(closed, Err(StoreError::Closed)));
            let Err(error) = Store::open(folder.path(), !lab) else {
                panic!("a folder of the other kind was opened");
            };
            let says = if lab {
                "start it with --lab"
            } else {
                "start it without --lab"
            };
            assert!(error.to_string().contains(says), "{error}");
            assert!(Store::open(folder.path(), lab).is_ok());
        }
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(FILE), [b'x'; 8192]).expect("written");
        let Err(error) = Store::open(folder.path(), true) else {
            panic!("no database was opened");
        };
        assert!(error.to_string().contains("restore the data folder"), "{error}");
    }
}
