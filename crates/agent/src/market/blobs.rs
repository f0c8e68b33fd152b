//! Blobs to and from the exchange over HTTP, under a lease's token: hashed while they stream, tried again while that may
//! help. What is fetched and stored, and what a failure means for a lease, is not decided here.

use crate::settings::url_of_market::MarketUrl;
use bytes::Bytes as Chunk;
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use sela_protocol::blob::BlobId;
use sela_protocol::id::LeaseId;
use sela_protocol::local::Problem;
use sela_protocol::tenant::LogPosition;
use sela_protocol::units::Bytes;
use sela_sandbox::image::{ArchiveSource, ArchiveStream};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

/// A transfer may take hours, but not stand still.
const STANDSTILL: Duration = Duration::from_secs(60);
/// The answer to a whole blob may take so many times as long: the exchange brings it to its disk first.
const ANSWER: u32 = 5;
const CONNECT: Duration = Duration::from_secs(15);
/// Pauses between tries; the last is repeated.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
];
/// About ten minutes of trying: an exchange that is being updated is back by then.
const TRIES: usize = 24;
const CHUNK: usize = 64 << 10;
/// After so many bytes it is looked again whether the disk has room.
const LOOK_EVERY: u64 = 16 << 20;

/// The exchange's HTTP side, for one lease.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    http: Client,
    url: MarketUrl,
    token: String,
    standstill: Duration,
    free_floor: Bytes,
}

/// Why a transfer did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// The exchange said no; trying again changes nothing.
    #[error("the exchange refused {what}: {detail}")]
    Refused {
        /// What was to be transferred.
        what: String,
        /// In its words.
        detail: String,
    },
    /// The way there is broken; it was tried again and again.
    #[error("{what} could not be transferred: {why}")]
    Network {
        /// What was to be transferred.
        what: String,
        /// What went wrong last.
        why: String,
    },
    /// What came is not what its address says.
    #[error("{blob} came with other bytes (their address is {found}); the exchange's store is damaged")]
    OtherBytes {
        /// The address asked for.
        blob: BlobId,
        /// The address of what came.
        found: BlobId,
    },
    /// The file on this machine.
    #[error("{path} could not be read or written: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

impl TransferError {
    /// Whether trying again may help.
    const fn is_passing(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Refused { .. } | Self::OtherBytes { .. } | Self::File { .. } => false,
        }
    }
}

/// A client for all leases. No redirects: a token is not carried elsewhere. No time-out of its own either: reqwest's for reading
/// also runs while a body is sent, and would break off whatever takes longer to send than that.
///
/// # Errors
/// Where TLS cannot be set up.
pub(crate) fn http_client() -> reqwest::Result<Client> {
    Client::builder()
        .user_agent(concat!("sela/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(Duration::from_secs(10))
        .build()
}

impl Blobs {
    pub(crate) const fn new(http: Client, url: MarketUrl, token: String) -> Self {
        Self {
            http,
            url,
            token,
            standstill: STANDSTILL,
            free_floor: Bytes(0),
        }
    }

    /// Fetches nothing that would leave less than this on the disk: it is the owner's.
    pub(crate) fn leaving_free(self, free_floor: Bytes) -> Self {
        Self { free_floor, ..self }
    }

    /// With less patience, so that a test need not wait for a minute.
    #[cfg(test)]
    pub(super) fn giving_up_after(self, standstill: Duration) -> Self {
        Self { standstill, ..self }
    }

    /// Fetches a blob into a new file; gives its size. Nothing is left of one that fails.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub(crate) async fn fetch(&self, blob: BlobId, to: &Path) -> Result<Bytes, TransferError> {
        let fetched = again(|| self.fetch_once(blob, to)).await;
        if fetched.is_err() {
            // It may not have been made at all.
            drop(tokio::fs::remove_file(to).await);
        }
        fetched
    }

    async fn fetch_once(&self, blob: BlobId, to: &Path) -> Result<Bytes, TransferError> {
        let chunks = self.get(blob).await?.bytes_stream();
        let mut chunks = Box::pin(moving(chunks, self.standstill));
        let failed = |source| file_error(to, source);
        leaves_free(to, self.free_floor).map_err(failed)?;
        let mut file = File::create(to).await.map_err(failed)?;
        let (mut hash, mut size, mut look_at) = (Sha256::new(), 0, LOOK_EVERY);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| network(&blob, &error))?;
            hash.update(&chunk);
            size += chunk.len() as u64;
            if size >= look_at {
                look_at = size + LOOK_EVERY;
                leaves_free(to, self.free_floor).map_err(failed)?;
            }
            file.write_all(&chunk).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        let found = BlobId::from_hash(hash.finalize().into());
        if found == blob {
            return Ok(Bytes(size));
        }
        Err(TransferError::OtherBytes { blob, found })
    }

    async fn get(&self, blob: BlobId) -> Result<Response, TransferError> {
        let request = self.http.get(self.url.http(&format!("/v1/blobs/{blob}")));
        self.send(request, &blob).await
    }

    /// Stores a file under its address for a lease.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub(crate) async fn store(&self, lease: LeaseId, blob: BlobId, from: &Path) -> Result<(), TransferError> {
        again(|| self.store_once(lease, blob, from)).await
    }

    async fn store_once(&self, lease: LeaseId, blob: BlobId, from: &Path) -> Result<(), TransferError> {
        let failed = |source| file_error(from, source);
        let file = File::open(from).await.map_err(failed)?;
        let size = file.metadata().await.map_err(failed)?.len();
        let sent = Arc::new(watch::Sender::new(Sent::default()));
        let watched = sent.subscribe();
        let request = self
            .http
            .put(self.url.http(&format!("/v1/leases/{lease}/blobs/{blob}")))
            .header(reqwest::header::CONTENT_LENGTH, size)
            .body(reqwest::Body::wrap_stream(chunks_of(file, size, Arc::clone(&sent))));
        self.send_watched(request, &blob, watched).await.map(drop)
    }

    /// Appends to one of a lease's logs; gives how many bytes of it the exchange has. Not tried again by itself.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub(crate) async fn append_log(
        &self,
        lease: LeaseId,
        stream: &str,
        offset: u64,
        bytes: Chunk,
    ) -> Result<u64, TransferError> {
        let url = self
            .url
            .http(&format!("/v1/leases/{lease}/logs?stream={stream}&offset={offset}"));
        let response = self.send(self.http.post(url).body(bytes), &"a log").await?;
        let position = timeout(self.standstill, response.json::<LogPosition>())
            .await
            .map_err(|late| network(&"a log", &late))?
            .map_err(|error| network(&"a log", &error))?;
        Ok(position.next)
    }

    /// Sends what is small enough to go in one piece.
    async fn send(
        &self,
        request: RequestBuilder,
        what: &(dyn std::fmt::Display + Sync),
    ) -> Result<Response, TransferError> {
        let in_one_piece = watch::Sender::new(Sent::default());
        self.send_watched(request, what, in_one_piece.subscribe()).await
    }

    async fn send_watched(
        &self,
        request: RequestBuilder,
        what: &(dyn std::fmt::Display + Sync),
        sent: watch::Receiver<Sent>,
    ) -> Result<Response, TransferError> {
        let response = request.bearer_auth(&self.token).send();
        let response = while_it_moves(response, sent, self.standstill)
            .await
            .map_err(|StoodStill(span)| TransferError::Network {
                what: what.to_string(),
                why: format!("nothing moved for {} s", span.as_secs()),
            })?
            .map_err(|error| network(what, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let detail = match timeout(self.standstill, response.json::<Problem>()).await {
            Ok(Ok(problem)) => problem.detail,
            Ok(Err(_)) | Err(_) => format!("status {status}"),
        };
        let what = what.to_string();
        // A full disk at the exchange may be mended by its operator within the tries.
        let passing =
            status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
        Err(if passing {
            TransferError::Network { what, why: detail }
        } else {
            TransferError::Refused { what, detail }
        })
    }
}

/// Images that are archives, for the cache. Not tried again by itself: who prepares an image does that.
impl ArchiveSource for Blobs {
    type Reader = BlobReader;

    fn name(&self) -> String {
        self.url.to_string()
    }

    async fn allows(&self, archive: BlobId) -> std::io::Result<()> {
        let request = self.http.head(self.url.http(&format!("/v1/blobs/{archive}")));
        self.send(request, &archive).await.map(drop).map_err(archive_error)
    }

    async fn open(&self, archive: BlobId, from: u64) -> std::io::Result<ArchiveStream<BlobReader>> {
        let mut request = self.http.get(self.url.http(&format!("/v1/blobs/{archive}")));
        // One byte that is here already is asked for again: there is always an answer then, also where all of it is here.
        let from = from.saturating_sub(1);
        if from > 0 {
            request = request.header(reqwest::header::RANGE, format!("bytes={from}-"));
        }
        let response = self.send(request, &archive).await.map_err(archive_error)?;
        // An exchange that cannot go on in the middle sends it from the start.
        let from = match response.status() {
            StatusCode::PARTIAL_CONTENT => from,
            _ => 0,
        };
        let bytes = response.content_length().map(|rest| Bytes(from.saturating_add(rest)));
        let chunks = moving(response.bytes_stream(), self.standstill);
        let reader = BlobReader {
            chunks: Box::pin(chunks),
            rest: Chunk::new(),
        };
        Ok(ArchiveStream { reader, from, bytes })
    }
}

/// Told apart by its kind: a refusal stays one.
fn archive_error(error: TransferError) -> std::io::Error {
    let kind = match &error {
        TransferError::Refused { .. } => std::io::ErrorKind::PermissionDenied,
        TransferError::Network { .. } | TransferError::OtherBytes { .. } | TransferError::File { .. } => {
            std::io::ErrorKind::Other
        }
    };
    std::io::Error::new(kind, error)
}

/// Tries until it succeeds, or until trying is of no use.
async fn again<T, F: Future<Output = Result<T, TransferError>>>(attempt: impl Fn() -> F) -> Result<T, TransferError> {
    let mut tried = 0;
    loop {
        match attempt().await {
            Err(error) if error.is_passing() && tried + 1 < TRIES => {
                let pause = PAUSES[tried.min(PAUSES.len() - 1)];
                tracing::debug!(%error, "tried again in {pause:?}");
                tokio::time::sleep(pause).await;
                tried += 1;
            }
            result => return result,
        }
    }
}

/// How much of a body has been taken to be sent.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    bytes: u64,
    whole: bool,
}

/// Nothing moved for so long.
struct StoodStill(Duration);

/// Waits for the answer to a request for as long as its body goes on being sent.
async fn while_it_moves<T>(
    answer: impl Future<Output = T>,
    mut sent: watch::Receiver<Sent>,
    standstill: Duration,
) -> Result<T, StoodStill> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let whole = sent.borrow_and_update().whole;
        let patience = if whole { standstill * ANSWER } else { standstill };
        let moved = async {
            if sent.changed().await.is_err() {
                // The body is gone, and only the answer can come now.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            answer = &mut answer => return Ok(answer),
            moved = timeout(patience, moved) => moved.map_err(|_| StoodStill(patience))?,
        }
    }
}

/// A body that is received; where nothing of it comes for too long it ends with an error.
fn moving(
    chunks: impl Stream<Item = reqwest::Result<Chunk>> + Send + 'static,
    standstill: Duration,
) -> impl Stream<Item = std::io::Result<Chunk>> + Send {
    stream::try_unfold(Box::pin(chunks), move |mut chunks| async move {
        let chunk = timeout(standstill, chunks.next()).await;
        let chunk = chunk.map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "nothing came any more"))?;
        let chunk = chunk.transpose().map_err(std::io::Error::other)?;
        Ok(chunk.map(|chunk| (chunk, chunks)))
    })
}

fn chunks_of(file: File, size: u64, sent: Arc<watch::Sender<Sent>>) -> impl Stream<Item = std::io::Result<Chunk>> {
    stream::try_unfold(file, move |mut file| {
        let sent = Arc::clone(&sent);
        async move {
            let mut chunk = Vec::with_capacity(CHUNK);
            (&mut file).take(CHUNK as u64).read_to_end(&mut chunk).await?;
            sent.send_modify(|sent| {
                sent.bytes += chunk.len() as u64;
                sent.whole = sent.bytes >= size;
            });
            Ok((!chunk.is_empty()).then_some((Chunk::from(chunk), file)))
        }
    })
}

fn network(what: &dyn std::fmt::Display, error: &(dyn std::error::Error + 'static)) -> TransferError {
    // reqwest says "error sending request" and keeps the reason in the chain.
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        why = cause.to_string();
        source = cause.source();
    }
    TransferError::Network {
        what: what.to_string(),
        why,
    }
}

fn leaves_free(path: &Path, floor: Bytes) -> std::io::Result<()> {
    let disk = rustix::fs::statvfs(path.parent().unwrap_or(path))?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) >= floor.0 {
        return Ok(());
    }
    let problem = format!(
        "less than disk.free_floor ({} bytes) would be left free on this machine's disk",
        floor.0
    );
    Err(std::io::Error::new(std::io::ErrorKind::StorageFull, problem))
}

fn file_error(path: &Path, source: std::io::Error) -> TransferError {
    TransferError::File {
        path: path.display().to_string(),
        source,
    }
}

/// A blob as it comes.
pub(crate) struct BlobReader {
    chunks: Pin<Box<dyn Stream<Item = std::io::Result<Chunk>> + Send>>,
    rest: Chunk,
}

impl AsyncRead for BlobReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.rest.is_empty() {
            match self.chunks.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(chunk))) => self.rest = chunk,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(length));
        Poll::Ready(Ok(()))
    }
}
