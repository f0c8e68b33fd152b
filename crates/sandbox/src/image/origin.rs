//! Where the parts of one image come from while it is prepared: its registry, or the archive that was laid down. Transfers
//! only; what the cache makes of them is `cache`'s.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::archive::{ArchiveStream, Spooled};
use super::cache::{Progress, Report};
use super::error::{ImageError, Part};
use super::manifest::{self, Document, Layer, Manifest};
use super::reference::RegistryReference;
use super::registry::Registry;
use super::shelf::Shelf;
use super::source::Deliverer;
use super::stream::{CHUNKS_IN_FLIGHT, ChannelReader, Chunk};
use super::unpack::ExpectedLayer;

/// An index may point to an index (some builders' layouts do), but not for ever.
const DEEPEST_INDEX: usize = 3;

/// Read from an archive at a time.
const CHUNK: usize = 64 << 10;

/// Where the parts of the image that is being prepared come from.
pub(super) enum Origin {
    Registry {
        registry: Registry,
        reference: RegistryReference,
        report: Report,
    },
    Archive(Spooled),
}

impl Origin {
    /// Follows indexes to the manifest for this machine.
    pub(super) async fn manifest(
        &mut self,
        first: (BlobId, Vec<u8>),
    ) -> Result<(BlobId, Vec<u8>, Manifest), ImageError> {
        let (mut digest, mut document) = first;
        for _ in 0..=DEEPEST_INDEX {
            let list = match Document::parse(&document)? {
                Document::Manifest(manifest) => return Ok((digest, document, manifest)),
                Document::Index(list) => list,
            };
            digest = manifest::choose_manifest(&list)?.digest;
            document = self.document(Part::Manifest, digest).await?;
        }
        Err(ImageError::malformed(
            Part::Index,
            "it leads to an index, and that to another, and so on",
        ))
    }

    pub(super) async fn document(&mut self, part: Part, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        match self {
            Self::Registry { registry, .. } if part == Part::Config => registry.config(digest).await,
            Self::Registry { registry, .. } => registry.manifest(digest).await,
            Self::Archive(spooled) => spooled.document(part, digest),
        }
    }

    /// From here on progress is known against a whole: what is in the cache counts as transferred.
    pub(super) fn start(&mut self, manifest: &Manifest, missing: &[ExpectedLayer]) {
        if let Self::Registry { report, .. } = self {
            let sizes: BTreeMap<BlobId, u64> = manifest.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
            let total = sizes.values().copied().fold(0, u64::saturating_add);
            let fetched: u64 = missing.iter().map(|layer| layer.blob.size).sum();
            let here = total.saturating_sub(fetched);
            let (done, inner) = (AtomicU64::new(here), Arc::clone(report));
            *report = Arc::new(move |more: Progress| {
                let done = done.fetch_add(more.done.0, Ordering::Relaxed) + more.done.0;
                inner(Progress {
                    done: Bytes(done),
                    total: Some(Bytes(total)),
                });
            });
            report(Progress {
                done: Bytes(0),
                total: None,
            });
        }
    }

    /// Notes what a registry has just delivered. An archive has to bring its own each time.
    pub(super) async fn has_delivered(
        &self,
        shelf: &Arc<Shelf>,
        layer: BlobId,
        deliverer: &Deliverer,
    ) -> Result<(), ImageError> {
        match self {
            Self::Registry { .. } => {
                let (shelf, deliverer) = (Arc::clone(shelf), deliverer.clone());
                blocking(move || shelf.add_deliverer(layer, &deliverer)).await
            }
            Self::Archive(_) => Ok(()),
        }
    }

    /// A reader for the blocking thread, and whatever feeds it in `pumps`.
    pub(super) async fn layer(
        &mut self,
        layer: &Layer,
        pumps: &mut JoinSet<()>,
    ) -> Result<Box<dyn Read + Send>, ImageError> {
        match self {
            Self::Registry {
                registry,
                reference,
                report,
            } => {
                let answer = registry.layer(layer.digest).await?;
                let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
                let report = Arc::clone(report);
                let count = move |bytes| {
                    report(Progress {
                        done: Bytes(bytes),
                        total: None,
                    })
                };
                pumps.spawn(Registry::pump(reference.clone(), answer, sender, count));
                Ok(Box::new(ChannelReader::new(receiver)))
            }
            Self::Archive(spooled) => Ok(Box::new(spooled.open(layer.digest)?)),
        }
    }

    /// Removes what the layer was unpacked from; says how much room that gives back.
    pub(super) async fn layer_is_done(&mut self, digest: BlobId) -> Result<u64, ImageError> {
        let spooled = match self {
            Self::Registry { .. } => None,
            Self::Archive(spooled) => spooled.give_up(digest),
        };
        let Some((path, size)) = spooled else { return Ok(0) };
        // Freeing gigabytes takes a file system a while.
        blocking(move || std::fs::remove_file(&path).map_err(|error| ImageError::io("remove", path, error))).await?;
        Ok(size)
    }
}

pub(super) async fn pump_archive<R: AsyncRead + Unpin>(
    mut stream: ArchiveStream<R>,
    chunks: mpsc::Sender<Chunk>,
    report: &Report,
) {
    let mut done = 0;
    loop {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        let chunk = match stream.reader.read_buf(&mut buffer).await {
            Ok(0) => Chunk::End,
            Ok(count) => {
                done += count as u64;
                report(Progress {
                    done: Bytes(done),
                    total: stream.bytes,
                });
                Chunk::Bytes(buffer.freeze())
            }
            Err(error) => {
                tracing::warn!(%error, "the image's archive could not be read on");
                Chunk::Failed(ImageError::TransferStopped)
            }
        };
        let last = !matches!(chunk, Chunk::Bytes(_));
        if chunks.send(chunk).await.is_err() || last {
            return;
        }
    }
}

pub(super) fn not_opened(error: &io::Error) -> ImageError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let reason = error.to_string();
        return ImageError::ArchiveRefused { reason };
    }
    tracing::warn!(%error, "the image's archive could not be opened");
    ImageError::TransferStopped
}

/// Runs what blocks where it may; a panic there is a panic here.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failure) => match failure.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is shutting down cancels a blocking task.
            Err(_) => Err(ImageError::TransferStopped),
        },
    }
}
