//! What jobs print: one growing file per lease and stream. Appending names the offset, so that sending again what was
//! sent before changes nothing. Who may append or read is decided elsewhere.

use crate::blobs::is_disk_full;
use bytes::Bytes as Chunk;
use sela_protocol::id::LeaseId;
use sela_protocol::units::Bytes;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Mutex, watch};

/// Most that is kept of one stream of one lease.
pub(crate) const LOG_LIMIT: Bytes = Bytes::from_mib(64);
/// Most that one reply carries.
pub(crate) const LOG_REPLY_LIMIT: u64 = 1 << 20;

/// One of a job's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Where logs are.
#[derive(Debug)]
pub(crate) struct LogFolder {
    root: PathBuf,
    limit: Bytes,
    /// One append at a time: looking at the length and writing must not be interleaved.
    appending: Arc<Mutex<()>>,
    appended: watch::Sender<u64>,
}

/// Why bytes were not appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// Bytes are missing in between.
    #[error("the log holds {next} bytes, so bytes from {offset} on would leave a gap: send from {next} on")]
    Gap {
        /// Where the log ends.
        next: u64,
        /// Where the bytes would have begun.
        offset: u64,
    },
    /// The log is full.
    #[error("a log holds at most {} bytes: later bytes are not kept; write what matters to /out", .0.0)]
    TooLarge(Bytes),
    /// No room.
    #[error("the exchange's disk is full: the bytes were not kept; send them again later")]
    DiskFull,
    /// Anything else.
    #[error("the exchange could not keep the log: {0}")]
    Disk(std::io::Error),
}

impl From<std::io::Error> for LogError {
    fn from(error: std::io::Error) -> Self {
        if is_disk_full(&error) {
            Self::DiskFull
        } else {
            Self::Disk(error)
        }
    }
}

impl LogStream {
    const fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl LogFolder {
    /// Opens the folder and makes it where it is missing.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) fn open(folder: &Path, limit: Bytes) -> std::io::Result<Self> {
        let root = folder.join("logs");
        std::fs::create_dir_all(&root)?;
        Ok(Self {
            root,
            limit,
            appending: Arc::default(),
            appended: watch::Sender::new(0),
        })
    }

    /// Rises with each append, so that who follows a log need not ask again and again.
    pub(crate) fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// Appends bytes that begin at `offset`; those that are there already are skipped. Returns where the log ends now.
    ///
    /// # Errors
    /// See [`LogError`]; then nothing was appended.
    pub(crate) async fn append(
        &self,
        lease: LeaseId,
        stream: LogStream,
        offset: u64,
        bytes: Chunk,
    ) -> Result<u64, LogError> {
        let path = self.path(lease, stream);
        let limit = self.limit;
        let one_at_a_time = Arc::clone(&self.appending).lock_owned().await;
        let append = move || {
            // Held until it is written, and not only as long as somebody waits: a node that hangs up sends the same bytes again.
            let _one_at_a_time = one_at_a_time;
            append_at(&path, offset, &bytes, limit)
        };
        let next = tokio::task::spawn_blocking(append)
            .await
            .map_err(|error| LogError::Disk(std::io::Error::other(error)))??;
        self.appended.send_modify(|count| *count += 1);
        Ok(next)
    }

    /// Reads from `from` on in the logs of these leases, as if they were one file in the order given; at most
    /// [`LOG_REPLY_LIMIT`] bytes. Empty at the end.
    ///
    /// # Errors
    /// Where a file that exists cannot be read.
    pub(crate) async fn read(&self, leases: &[LeaseId], stream: LogStream, from: u64) -> std::io::Result<Vec<u8>> {
        let paths: Vec<PathBuf> = leases.iter().map(|lease| self.path(*lease, stream)).collect();
        tokio::task::spawn_blocking(move || read_joined(&paths, from))
            .await
            .map_err(std::io::Error::other)?
    }

    fn path(&self, lease: LeaseId, stream: LogStream) -> PathBuf {
        self.root.join(lease.to_string()).join(stream.file_name())
    }
}

fn append_at(path: &Path, offset: u64, bytes: &[u8], limit: Bytes) -> Result<u64, LogError> {
    let length = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error.into()),
    };
    if offset > length {
        return Err(LogError::Gap { next: length, offset });
    }
    let known = usize::try_from(length - offset).unwrap_or(usize::MAX);
    let new = bytes.get(known..).unwrap_or_default();
    if new.is_empty() {
        return Ok(length);
    }
    let end = length + new.len() as u64;
    if end > limit.0 {
        return Err(LogError::TooLarge(limit));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let written = file.write_all(new).and_then(|()| file.sync_data());
    if let Err(error) = written {
        // All or nothing: half a write would shift what the node sends next.
        file.set_len(length)?;
        return Err(error.into());
    }
    Ok(end)
}

fn read_joined(paths: &[PathBuf], from: u64) -> std::io::Result<Vec<u8>> {
    let mut skip = from;
    let mut joined = Vec::new();
    for path in paths {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        if skip >= length {
            skip -= length;
            continue;
        }
        file.seek(SeekFrom::Start(skip))?;
        skip = 0;
        let room = LOG_REPLY_LIMIT - joined.len() as u64;
        file.take(room).read_to_end(&mut joined)?;
        if joined.len() as u64 == LOG_REPLY_LIMIT {
            break;
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::id::IdSource;
    use sela_protocol::units::UtcMs;

    #[tokio::test]
    async fn sending_again_changes_nothing_and_a_gap_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = LogFolder::open(folder.path(), Bytes(10)).expect("opens");
        let lease: LeaseId = IdSource::new(UtcMs(1), [1; 32]).draw();
        let append =
            |offset, bytes: &'static [u8]| logs.append(lease, LogStream::Stdout, offset, Chunk::from_static(bytes));
        assert!(matches!(append(0, b"hello").await, Ok(5)));
        assert!(matches!(append(0, b"hello").await, Ok(5)), "the very same again");
        assert!(
            matches!(append(3, b"lo wo").await, Ok(8)),
            "an overlap adds what is new"
        );
        assert!(matches!(
            append(9, b"x").await,
            Err(LogError::Gap { next: 8, offset: 9 })
        ));
        assert!(matches!(append(8, b"rld").await, Err(LogError::TooLarge(_))));
        let read = logs.read(&[lease], LogStream::Stdout, 2).await.expect("reads");
        assert_eq!(read, b"llo wo");
        assert_eq!(logs.read(&[lease], LogStream::Stderr, 0).await.expect("reads"), b"");
    }

    #[tokio::test]
    async fn a_node_that_hangs_up_and_sends_again_doubles_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = LogFolder::open(folder.path(), Bytes::from_mib(64)).expect("opens");
        let mut ids = IdSource::new(UtcMs(1), [1; 32]);
        let bytes = Chunk::from(vec![b'x'; 1 << 20]);
        for _ in 0..20 {
            let lease: LeaseId = ids.draw();
            let mut hung_up = Box::pin(logs.append(lease, LogStream::Stdout, 0, bytes.clone()));
            let begun =
                std::future::poll_fn(|context| std::task::Poll::Ready(hung_up.as_mut().poll(context).is_pending()));
            assert!(begun.await);
            drop(hung_up);
            let next = logs.append(lease, LogStream::Stdout, 0, bytes.clone()).await;
            assert!(matches!(next, Ok(next) if next == bytes.len() as u64), "{next:?}");
        }
    }

    #[tokio::test]
    async fn the_logs_of_a_jobs_leases_read_as_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = LogFolder::open(folder.path(), Bytes(10)).expect("opens");
        let mut ids = IdSource::new(UtcMs(1), [1; 32]);
        let leases: [LeaseId; 3] = [ids.draw(), ids.draw(), ids.draw()];
        for (lease, text) in [(leases[0], "abc"), (leases[2], "def")] {
            let bytes = Chunk::from_static(text.as_bytes());
            logs.append(lease, LogStream::Stdout, 0, bytes).await.expect("kept");
        }
        for (from, rest) in [(0, "abcdef"), (2, "cdef"), (3, "def"), (6, ""), (60, "")] {
            let read = logs.read(&leases, LogStream::Stdout, from).await.expect("reads");
            assert_eq!(read, rest.as_bytes(), "from {from}");
        }
    }
}
