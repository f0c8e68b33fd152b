//! The folder of blobs: files named by the sha256 of their bytes. A blob is streamed to a temporary file, hashed on the
//! way and moved into place only when the hash is the one asked for; whatever goes wrong leaves nothing behind. Who may
//! read or write a blob is decided elsewhere.

use bytes::Bytes as Chunk;
use futures_util::{Stream, StreamExt};
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use sha2::{Digest, Sha256};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// Where blobs are, and how much of the disk they may take.
#[derive(Debug)]
pub(crate) struct BlobFolder {
    root: PathBuf,
    incoming: PathBuf,
    free_floor: Bytes,
}

/// A blob that has come and is what its address says, and is not in its place yet.
#[derive(Debug)]
pub(crate) struct Received {
    file: tempfile::NamedTempFile,
    blob: BlobId,
    size: Bytes,
}

impl Received {
    /// Its size.
    pub(crate) const fn size(&self) -> Bytes {
        self.size
    }
}

/// Why a blob was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlobError {
    /// The bytes are others than the address says.
    #[error(
        "the bytes that came hash to {found}, not to {expected}: the file was changed, cut short or damaged on the way; send it again"
    )]
    WrongHash {
        /// Asked for.
        expected: BlobId,
        /// Came.
        found: BlobId,
    },
    /// Larger than allowed.
    #[error("more than {} bytes came, which is the most that may be stored here", .0.0)]
    TooLarge(Bytes),
    /// No room.
    #[error(
        "the exchange's disk is full: nothing of this was kept; try again later, or ask the operator to free space"
    )]
    DiskFull,
    /// The sender stopped.
    #[error("the upload was cut off: nothing of it was kept; send it again")]
    CutOff,
    /// Anything else.
    #[error("the exchange could not store this: {0}")]
    Disk(std::io::Error),
}

impl From<std::io::Error> for BlobError {
    fn from(error: std::io::Error) -> Self {
        if is_disk_full(&error) {
            Self::DiskFull
        } else {
            Self::Disk(error)
        }
    }
}

/// Whether a write failed for want of room.
pub(crate) fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// How long a sender may pause: a longer silence is a broken connection.
const SILENCE: Duration = Duration::from_secs(60);
/// How many bytes may come between two looks at the free space.
const SPACE_CHECK_EVERY: u64 = 16 << 20;

impl BlobFolder {
    /// Opens the folder, makes it where it is missing and sweeps what an earlier run was still receiving.
    ///
    /// # Errors
    /// Where the folder cannot be made, read or swept.
    pub(crate) fn open(data: &Path, free_floor: Bytes) -> std::io::Result<Self> {
        let root = data.join("blobs");
        let incoming = root.join("incoming");
        std::fs::create_dir_all(&incoming)?;
        for entry in std::fs::read_dir(&incoming)? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(Self {
            root,
            incoming,
            free_floor,
        })
    }

    /// Receives a blob and checks it. One that is there already is received and hashed all the same: that the sender has
    /// the bytes is what gives a right to them. Until [`BlobFolder::put_in_place`] nobody can read it, and dropping it
    /// leaves nothing.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub(crate) async fn receive<S, E>(
        &self,
        expected: BlobId,
        limit: Bytes,
        body: &mut S,
    ) -> Result<Received, BlobError>
    where
        S: Stream<Item = Result<Chunk, E>> + Send + Unpin,
    {
        self.check_room()?;
        // Removed when dropped, also when the sender hangs up and this future is never polled again.
        let file = tempfile::NamedTempFile::new_in(&self.incoming)?;
        let mut writer = tokio::fs::File::from_std(file.reopen()?);
        let mut hash = Sha256::new();
        let (mut size, mut checked_at) = (0_u64, 0_u64);
        while let Some(chunk) = timeout(SILENCE, body.next()).await.map_err(|_| BlobError::CutOff)? {
            let chunk = chunk.map_err(|_| BlobError::CutOff)?;
            size += chunk.len() as u64;
            if size > limit.0 {
                return Err(BlobError::TooLarge(limit));
            }
            if size - checked_at > SPACE_CHECK_EVERY {
                self.check_room()?;
                checked_at = size;
            }
            hash.update(&chunk);
            writer.write_all(&chunk).await?;
        }
        // A failed write of the last chunk shows only here.
        writer.flush().await?;
        let found = BlobId::from_hash(hash.finalize().into());
        if found != expected {
            return Err(BlobError::WrongHash { expected, found });
        }
        writer.sync_all().await?;
        Ok(Received {
            file,
            blob: expected,
            size: Bytes(size),
        })
    }

    /// Puts a received blob where it can be read.
    ///
    /// # Errors
    /// Where the disk does not take it; then nothing is left of it.
    pub(crate) async fn put_in_place(&self, received: Received) -> Result<(), BlobError> {
        let path = self.path(received.blob);
        tokio::task::spawn_blocking(move || put_in_place(received.file, &path))
            .await
            .map_err(|error| BlobError::Disk(std::io::Error::other(error)))??;
        Ok(())
    }

    /// Removes a blob; one that is not there is fine.
    ///
    /// # Errors
    /// Where it is there and stays.
    pub(crate) async fn remove(&self, blob: BlobId) -> std::io::Result<()> {
        match tokio::fs::remove_file(self.path(blob)).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Opens a blob for reading, with its size.
    ///
    /// # Errors
    /// `NotFound` where it is not there.
    pub(crate) async fn read(&self, blob: BlobId) -> std::io::Result<(tokio::fs::File, Bytes)> {
        let file = tokio::fs::File::open(self.path(blob)).await?;
        let size = file.metadata().await?.len();
        Ok((file, Bytes(size)))
    }

    /// All blobs that are in their place.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub(crate) fn list(&self) -> std::io::Result<Vec<BlobId>> {
        let mut blobs = Vec::new();
        for folder in std::fs::read_dir(&self.root)? {
            for file in std::fs::read_dir(folder?.path())? {
                let name = file?.file_name();
                blobs.extend(format!("sha256:{}", name.to_string_lossy()).parse::<BlobId>());
            }
        }
        Ok(blobs)
    }

    fn path(&self, blob: BlobId) -> PathBuf {
        let hex = blob.hex();
        self.root.join(&hex[..2]).join(hex)
    }

    /// The database shares the disk and must be able to go on: blobs stop before the last bytes are gone.
    fn check_room(&self) -> Result<(), BlobError> {
        let disk = rustix::fs::statvfs(&self.incoming).map_err(std::io::Error::from)?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < self.free_floor.0 {
            return Err(BlobError::DiskFull);
        }
        Ok(())
    }
}

fn put_in_place(file: tempfile::NamedTempFile, path: &Path) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    file.persist(path).map_err(|error| error.error)?;
    // So that the name is there after a power cut too: a record may soon point at it.
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::task::Poll;

    fn chunks(parts: &[&'static [u8]]) -> impl Stream<Item = Result<Chunk, std::io::Error>> + Send + use<> {
        stream::iter(
            parts
                .iter()
                .map(|part| Ok(Chunk::from_static(part)))
                .collect::<Vec<_>>(),
        )
    }

    fn files_under(folder: &Path) -> usize {
        std::fs::read_dir(folder)
            .expect("reads")
            .map(|entry| entry.expect("reads").path())
            .map(|path| if path.is_dir() { files_under(&path) } else { 1 })
            .sum()
    }

    #[tokio::test]
    async fn a_blob_reads_back_as_sent() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = BlobFolder::open(folder.path(), Bytes(0)).expect("opens");
        let blob = BlobId::of(b"hello world");
        let received = blobs
            .receive(blob, Bytes(11), &mut chunks(&[b"hello ", b"world"]))
            .await
            .expect("taken");
        assert_eq!(received.size(), Bytes(11));
        assert!(blobs.read(blob).await.is_err(), "not before it is in its place");
        blobs.put_in_place(received).await.expect("put");
        let (mut file, size) = blobs.read(blob).await.expect("there");
        let mut bytes = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut file, &mut bytes)
            .await
            .expect("reads");
        assert_eq!((bytes.as_slice(), size), (b"hello world".as_slice(), Bytes(11)));
    }

    #[tokio::test]
    async fn what_is_refused_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = BlobFolder::open(folder.path(), Bytes(0)).expect("opens");
        let blob = BlobId::of(b"hello");
        let wrong = blobs.receive(blob, Bytes(100), &mut chunks(&[b"hellO"])).await;
        assert!(matches!(wrong, Err(BlobError::WrongHash { .. })));
        let large = blobs.receive(blob, Bytes(4), &mut chunks(&[b"hel", b"lo"])).await;
        assert!(matches!(large, Err(BlobError::TooLarge(_))));
        let mut broken = stream::iter([
            Ok(Chunk::from_static(b"hel")),
            Err(std::io::Error::from(ErrorKind::ConnectionReset)),
        ]);
        assert!(matches!(
            blobs.receive(blob, Bytes(100), &mut broken).await,
            Err(BlobError::CutOff)
        ));
        assert_eq!(files_under(folder.path()), 0);
        assert!(blobs.read(blob).await.is_err());
    }

    #[tokio::test]
    async fn an_upload_that_is_dropped_half_way_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = BlobFolder::open(folder.path(), Bytes(0)).expect("opens");
        let mut never_ends = chunks(&[b"hel"]).chain(stream::pending());
        let mut upload = Box::pin(blobs.receive(BlobId::of(b"hello"), Bytes(100), &mut never_ends));
        let pending = std::future::poll_fn(|context| Poll::Ready(upload.as_mut().poll(context).is_pending()));
        assert!(pending.await);
        assert_eq!(files_under(folder.path()), 1, "it has begun");
        drop(upload);
        assert_eq!(files_under(folder.path()), 0);
    }

    #[tokio::test]
    async fn below_the_free_floor_nothing_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = BlobFolder::open(folder.path(), Bytes(u64::MAX)).expect("opens");
        let error = blobs
            .receive(BlobId::of(b"hello"), Bytes(100), &mut chunks(&[b"hello"]))
            .await
            .expect_err("no room");
        assert!(error.to_string().contains("disk is full"), "{error}");
        assert_eq!(files_under(folder.path()), 0);
    }

    #[test]
    fn what_an_earlier_run_was_receiving_is_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        BlobFolder::open(folder.path(), Bytes(0)).expect("opens");
        std::fs::write(folder.path().join("blobs/incoming/half"), b"hel").expect("written");
        BlobFolder::open(folder.path(), Bytes(0)).expect("opens again");
        assert_eq!(files_under(folder.path()), 0);
    }
}
