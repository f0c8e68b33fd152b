//! Where the parts of one image come from while it is prepared: its registry, or the archive that was laid down. Transfers
//! only; what the cache makes of them is `assemble`'s.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use sela_protocol::blob::BlobId;
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::archive::Spooled;
use super::error::{Blame, ImageError, Part};
use super::manifest::{self, Document, Layer, Manifest};
use super::partial::{CHUNKS_IN_FLIGHT, Chunk, Partial};
use super::progress::Course;
use super::registry::Registry;
use super::room::Room;
use super::shelf::Shelf;
use super::source::{ArchiveSource, Deliverer};
use super::unpack::ExpectedLayer;

/// An index may point to an index (some builders' layouts do), but not for ever.
const DEEPEST_INDEX: usize = 3;

/// Read from an archive at a time.
const CHUNK: usize = 64 << 10;

/// Layers that come at the same time. More fill no line that three do not fill.
const LINES: usize = 3;

/// How often one blob may break off and be gone on with, each time after at least a byte of it came. A way that breaks at once
/// is tried again by who asked for the image, after a pause.
const MOST_BREAKS: usize = 100;

/// See above.
pub(super) enum Origin {
    Registry(Pull),
    Archive(Spooled),
}

/// An image that comes from a registry.
pub(super) struct Pull {
    pub(super) registry: Arc<Registry>,
    course: Arc<Course>,
    lines: Arc<Semaphore>,
    transfers: BTreeMap<BlobId, (Layer, Arc<Partial>)>,
    pumps: JoinSet<()>,
}

impl Pull {
    pub(super) fn new(registry: Arc<Registry>, course: Arc<Course>) -> Self {
        Self {
            registry,
            course,
            lines: Arc::new(Semaphore::new(LINES)),
            transfers: BTreeMap::new(),
            pumps: JoinSet::new(),
        }
    }

    fn pump(&mut self, layer: Layer, partial: Arc<Partial>) {
        let (registry, lines) = (Arc::clone(&self.registry), Arc::clone(&self.lines));
        let course = Arc::clone(&self.course);
        self.pumps.spawn(async move {
            let waiting = partial.stops_unless_begun();
            // Never closed.
            let Ok(_line) = lines.acquire_owned().await else { return };
            let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
            let from = partial.length();
            let written = partial.write(receiver);
            waiting.begun();
            let last = transfer(&registry, &layer, from, &sender, &course).await;
            drop(sender.send(last).await);
            drop(sender);
            // The line is free once what came is on the disk.
            drop(written.await);
        });
    }
}

impl Origin {
    /// Follows indexes to the manifest for this machine.
    pub(super) async fn manifest(&self, first: (BlobId, Vec<u8>)) -> Result<(BlobId, Vec<u8>, Manifest), ImageError> {
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

    pub(super) async fn document(&self, part: Part, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        match self {
            Self::Registry(pull) if part == Part::Config => pull.registry.config(digest).await,
            Self::Registry(pull) => pull.registry.manifest(digest).await,
            Self::Archive(spooled) => spooled.document(part, digest),
        }
    }

    /// Begins to transfer what is missing. From here on progress is known against a whole: what is in the cache, and what an
    /// earlier try left, counts as transferred.
    pub(super) async fn start(
        &mut self,
        (shelf, room, deliverer): (&Arc<Shelf>, &Arc<Room>, &Deliverer),
        manifest: &Manifest,
        missing: &[ExpectedLayer],
    ) -> Result<(), ImageError> {
        let Self::Registry(pull) = self else { return Ok(()) };
        let layers: Vec<Layer> = missing.iter().map(|layer| layer.blob).collect();
        let opened = {
            let (shelf, room, deliverer) = (Arc::clone(shelf), Arc::clone(room), deliverer.clone());
            let open = move |layer: Layer| Ok((layer, Partial::open(&shelf, &room, &deliverer, layer.digest)?));
            blocking(move || layers.into_iter().map(open).collect::<Result<Vec<_>, ImageError>>()).await?
        };
        let sizes: BTreeMap<BlobId, u64> = manifest.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
        let total = sizes.values().copied().fold(0, u64::saturating_add);
        let to_come = |(layer, partial): &(Layer, Arc<Partial>)| layer.size.saturating_sub(partial.length());
        let to_come = opened.iter().map(to_come).fold(0, u64::saturating_add);
        room.expect(to_come)?;
        pull.course.bytes(total.saturating_sub(to_come), Some(total));
        for (layer, partial) in opened {
            pull.transfers.insert(layer.digest, (layer, Arc::clone(&partial)));
            pull.pump(layer, partial);
        }
        Ok(())
    }

    /// A reader for the blocking thread.
    pub(super) fn layer(&self, layer: BlobId) -> Result<Box<dyn Read + Send>, ImageError> {
        match self {
            Self::Registry(pull) => {
                let found = pull.transfers.get(&layer);
                let (_, partial) = found.expect("each missing layer's transfer was started");
                Ok(Box::new(partial.follow()))
            }
            Self::Archive(spooled) => Ok(Box::new(spooled.open(layer)?)),
        }
    }

    /// Has a layer transferred anew whose first bytes an earlier try had left, as they may be spoilt. `false` where all bytes
    /// of it came just now.
    pub(super) async fn begin_anew(&mut self, layer: BlobId) -> Result<bool, ImageError> {
        let Self::Registry(pull) = self else { return Ok(false) };
        let Some((layer, partial)) = pull.transfers.get(&layer).filter(|(_, partial)| partial.was_resumed()) else {
            return Ok(false);
        };
        let (layer, partial) = (*layer, Arc::clone(partial));
        tracing::warn!(layer = %layer.digest, "what an earlier transfer left is of no use, and is fetched anew");
        let emptied = Arc::clone(&partial);
        blocking(move || emptied.begin_anew()).await?;
        pull.pump(layer, partial);
        Ok(true)
    }

    /// Removes what the layer was unpacked from.
    pub(super) async fn layer_is_done(&mut self, layer: BlobId) -> Result<(), ImageError> {
        match self {
            Self::Registry(pull) => {
                let Some((_, partial)) = pull.transfers.remove(&layer) else {
                    return Ok(());
                };
                partial.discard();
                // Freeing gigabytes takes a file system a while.
                blocking(move || {
                    partial.wait_for_writer();
                    drop(partial);
                    Ok(())
                })
                .await
            }
            Self::Archive(spooled) => {
                let used_up = spooled.use_up(layer);
                blocking(move || {
                    used_up();
                    Ok(())
                })
                .await
            }
        }
    }

    /// Stops all transfers. What came of them is kept for the next try if `keep` says so.
    pub(super) async fn close(mut self, keep: bool) -> Result<(), ImageError> {
        if let Self::Registry(pull) = &mut self {
            pull.pumps.shutdown().await;
        }
        blocking(move || {
            match &self {
                Self::Registry(pull) => {
                    for (_, partial) in pull.transfers.values() {
                        partial.wait_for_writer();
                        if !keep {
                            partial.discard();
                        }
                    }
                }
                Self::Archive(spooled) if !keep => spooled.discard(),
                Self::Archive(_) => {}
            }
            drop(self);
            Ok(())
        })
        .await
    }
}

/// Sends a layer's bytes from `at` on to who writes them; the last chunk is the answer.
async fn transfer(
    registry: &Registry,
    layer: &Layer,
    mut at: u64,
    chunks: &mpsc::Sender<Chunk>,
    course: &Course,
) -> Chunk {
    if at >= layer.size {
        // All of it is here, and whether this job may have it is still to be said.
        return match registry.allows(&[(Part::Layer(layer.digest), layer.digest)]).await {
            Ok(()) => Chunk::End,
            Err(error) => Chunk::Failed(error),
        };
    }
    for _ in 0..MOST_BREAKS {
        let before = at;
        let broken = match registry.layer(layer.digest, at).await {
            Err(error) => error,
            Ok((mut answer, mut known)) => loop {
                match registry.next(&mut answer).await {
                    Ok(Some(mut bytes)) => {
                        let skipped = known.min(bytes.len() as u64);
                        known -= skipped;
                        bytes.advance(usize::try_from(skipped).unwrap_or(bytes.len()));
                        let count = bytes.len() as u64;
                        at += count;
                        course.more_bytes(count);
                        let nobody_listens = count > 0 && chunks.send(Chunk::Bytes(bytes)).await.is_err();
                        // One byte too many is enough to refuse it by.
                        if nobody_listens || at > layer.size {
                            return Chunk::End;
                        }
                    }
                    Ok(None) => return Chunk::End,
                    Err(error) => break error,
                }
            },
        };
        if at == before || broken.blame() != Blame::Network {
            return Chunk::Failed(broken);
        }
        tracing::info!(layer = %layer.digest, at, %broken, "a transfer broke off and goes on");
    }
    Chunk::Failed(ImageError::TransferStopped)
}

/// Brings an archive to the disk, from where an earlier try left it.
pub(super) async fn transfer_archive(
    archives: &impl ArchiveSource,
    archive: BlobId,
    partial: &Arc<Partial>,
    room: &Arc<Room>,
    course: &Course,
) {
    let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let from = partial.length();
    let written = partial.write(receiver);
    let last = send_archive(archives, archive, from, room, &sender, course).await;
    drop(sender.send(last).await);
    drop(sender);
    drop(written.await);
}

async fn send_archive(
    archives: &impl ArchiveSource,
    archive: BlobId,
    mut at: u64,
    room: &Arc<Room>,
    chunks: &mpsc::Sender<Chunk>,
    course: &Course,
) -> Chunk {
    for _ in 0..MOST_BREAKS {
        let before = at;
        let mut stream = match archives.open(archive, at).await {
            Ok(stream) => stream,
            Err(error) => return Chunk::Failed(not_opened(&error)),
        };
        if let Some(total) = stream.bytes
            && let Err(error) = room.expect(total.0.saturating_sub(at))
        {
            return Chunk::Failed(error);
        }
        let mut known = at.saturating_sub(stream.from);
        loop {
            let mut buffer = BytesMut::with_capacity(CHUNK);
            match stream.reader.read_buf(&mut buffer).await {
                Ok(0) => return Chunk::End,
                Ok(count) => {
                    let skipped = known.min(count as u64);
                    known -= skipped;
                    buffer.advance(usize::try_from(skipped).unwrap_or(count));
                    at += buffer.len() as u64;
                    course.bytes(at, stream.bytes.map(|total| total.0));
                    let came = !buffer.is_empty();
                    if came && chunks.send(Chunk::Bytes(buffer.freeze())).await.is_err() {
                        return Chunk::End;
                    }
                }
                Err(error) => {
                    tracing::info!(%archive, at, %error, "the image's archive broke off");
                    break;
                }
            }
        }
        if at == before {
            break;
        }
    }
    Chunk::Failed(ImageError::TransferStopped)
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
