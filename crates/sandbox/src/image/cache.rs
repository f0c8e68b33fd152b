//! Makes an image ready to run: from the cache, or through a registry or an archive into it. Async at the edge; unpacking runs
//! on a blocking thread that is fed by a bounded channel, so that no layer is ever held in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::archive::{self, ArchiveStream, Spooled};
use super::error::{Blame, ImageError, Part};
use super::manifest::{self, Config, Document, Layer, Manifest};
use super::reference::{ImageReference, RegistryReference};
use super::registry::{Registry, RegistryAccess};
use super::shelf::{ImageRecord, Pin, Room, Shelf};
use super::stream::{CHUNKS_IN_FLIGHT, ChannelReader, Chunk};
use super::unpack::{self, ExpectedLayer, UnpackLimits};
use super::user::{self, ImageUser};
use crate::ids::IdRange;

/// An index may point to an index (some builders' layouts do), but not for ever.
const DEEPEST_INDEX: usize = 3;

/// Read from an archive at a time.
const CHUNK: usize = 64 << 10;

/// What a cache may take, and whose files it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// A folder for the cache alone, on a file system that can hold overlay's lower layers (not FAT, not NFS).
    pub directory: PathBuf,
    /// Most that unpacked images may take, in bytes on disk.
    pub budget: Bytes,
    /// What must stay free on the file system, whatever the budget says.
    pub free_floor: Bytes,
    /// Whom the images' files belong to here. Another range than last time empties the cache.
    pub owners: IdRange,
    /// Against bombs.
    pub limits: UnpackLimits,
    /// Which registries may be talked to.
    pub registries: RegistryAccess,
}

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes transferred or already here.
    pub done: Bytes,
    /// Of how many, where that is known.
    pub total: Option<Bytes>,
}

/// The image cache of one agent. Clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    shelf: Arc<Shelf>,
    /// One image at a time: two would only share the line and fight for room.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// An image that can be run for as long as this lives: its layers are not evicted before. Dropping it frees them for
/// eviction, so it must outlive the job's mounts.
#[derive(Debug)]
pub struct PreparedImage {
    /// Directories to stack, lowest first, each once.
    pub layers: Vec<PathBuf>,
    /// What the image says of itself.
    pub config: ImageConfig,
    /// The digest that the job named.
    pub digest: BlobId,
    /// What its layers take on disk.
    pub bytes: Bytes,
    _pins: Pins,
}

/// What an image says about how it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// Starts the program; a job's command does not replace it.
    pub entrypoint: Vec<String>,
    /// Follows the entrypoint unless the job brings its own.
    pub command: Vec<String>,
    /// Names and values, in the image's order.
    pub environment: Vec<(String, String)>,
    /// Absolute.
    pub working_directory: String,
    /// Who runs it.
    pub user: ImageUser,
}

impl ImageConfig {
    /// What to execute, program first; `command` is the job's and replaces the image's own if it is not empty.
    ///
    /// # Errors
    /// [`ImageError::NoProgram`].
    pub fn arguments(&self, command: &[String]) -> Result<Vec<String>, ImageError> {
        let command = if command.is_empty() { &self.command } else { command };
        let arguments: Vec<String> = self.entrypoint.iter().chain(command).cloned().collect();
        match arguments.first() {
            Some(program) if !program.is_empty() => Ok(arguments),
            Some(_) | None => Err(ImageError::NoProgram),
        }
    }
}

struct Pins(#[expect(dead_code, reason = "held for their drop")] Vec<Pin>);

impl fmt::Debug for Pins {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pins")
    }
}

type Report = Arc<dyn Fn(Progress) + Send + Sync>;

impl Cache {
    /// Opens or makes the cache, and removes what a crash left unfinished. Blocking.
    ///
    /// # Errors
    /// [`ImageError::CacheInUse`], or [`ImageError::Io`].
    pub fn open(settings: CacheSettings) -> Result<Self, ImageError> {
        Ok(Self {
            shelf: Shelf::open(settings)?,
            turn: Arc::default(),
        })
    }

    /// The image if it is complete in the cache; no network, no archive.
    ///
    /// # Errors
    /// [`ImageError::Io`]; whatever [`Cache::prepare`] says of the config.
    pub async fn cached(&self, image: &ImageReference) -> Result<Option<PreparedImage>, ImageError> {
        let (shelf, digest) = (Arc::clone(&self.shelf), image.digest());
        blocking(move || match shelf.find(digest) {
            Some((record, config, pins)) => finish(&shelf, digest, &record, &config, pins).map(Some),
            None => Ok(None),
        })
        .await
    }

    /// Makes the image ready: from the cache, or from its registry, or from `archive`, which is awaited only for an image
    /// that is an archive and not in the cache. If this future is dropped the transfer stops and nothing is left of it.
    ///
    /// # Errors
    /// Any [`ImageError`]; nothing of the failed image is left, except layers that are complete in themselves.
    pub async fn prepare<R>(
        &self,
        image: &ImageReference,
        archive: impl Future<Output = io::Result<ArchiveStream<R>>> + Send,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<PreparedImage, ImageError>
    where
        R: AsyncRead + Send + Unpin,
    {
        let report: Report = Arc::new(report);
        if let Some(found) = self.cached(image).await? {
            return Ok(found);
        }
        let _turn = self.turn.lock().await;
        if let Some(found) = self.cached(image).await? {
            return Ok(found);
        }
        let room = self.shelf.room();
        match image {
            ImageReference::Registry(reference) => {
                let mut registry = Registry::new(reference, self.shelf.settings.registries)?;
                let digest = reference.digest();
                let document = registry.manifest(digest).await?;
                let origin = Origin::Registry {
                    registry,
                    reference: reference.clone(),
                    report,
                };
                self.assemble(digest, (digest, document), origin, room).await
            }
            ImageReference::Archive(digest) => {
                let stream = archive.await.map_err(|error| {
                    tracing::warn!(%error, "the image's archive could not be opened");
                    ImageError::TransferStopped
                })?;
                let (spooled, room) = self.spool(*digest, stream, room, report).await?;
                let document = spooled.index.clone();
                self.assemble(
                    *digest,
                    (BlobId::of(&document), document),
                    Origin::Archive(spooled),
                    room,
                )
                .await
            }
        }
    }

    /// From an index or manifest to a ready image. Where that fails for good, the layers that were already complete go too.
    async fn assemble(
        &self,
        image: BlobId,
        first: (BlobId, Vec<u8>),
        mut origin: Origin,
        room: Room,
    ) -> Result<PreparedImage, ImageError> {
        let mut fresh = Vec::new();
        let result = self.assemble_from(image, first, &mut origin, room, &mut fresh).await;
        match &result {
            // What came whole before the network broke is not fetched again.
            Err(error) if error.blame() == Blame::Network => fresh.clear(),
            Err(_) => {}
            Ok(_) => fresh.clear(),
        }
        let shelf = Arc::clone(&self.shelf);
        // Dropping the origin removes what is left of an archive.
        blocking(move || {
            drop(origin);
            fresh.into_iter().try_for_each(|layer| shelf.discard(layer))
        })
        .await?;
        result
    }

    async fn assemble_from(
        &self,
        image: BlobId,
        first: (BlobId, Vec<u8>),
        origin: &mut Origin,
        mut room: Room,
        fresh: &mut Vec<BlobId>,
    ) -> Result<PreparedImage, ImageError> {
        let (digest, document, manifest) = origin.manifest(first).await?;
        let config_bytes = origin.document(Part::Config, manifest.config.digest).await?;
        let config = Config::parse(&config_bytes, manifest.layers.len())?;

        let mut pins: Vec<Pin> = Vec::new();
        let mut missing: Vec<ExpectedLayer> = Vec::new();
        for (layer, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            let seen = pins.iter().any(|pin| pin.digest == layer.digest)
                || missing.iter().any(|other| other.blob.digest == layer.digest);
            match self.shelf.pin(layer.digest) {
                _ if seen => {}
                Some(pin) if pin.diff_id != *diff_id => return Err(other_content(layer)),
                Some(pin) => pins.push(pin),
                None => missing.push(ExpectedLayer {
                    blob: *layer,
                    diff_id: *diff_id,
                }),
            }
        }
        room.expect(missing.iter().map(|layer| layer.blob.size).fold(0, u64::saturating_add))?;
        origin.start(&manifest, &missing);
        for layer in missing {
            let entries: u64 = pins.iter().map(|pin| pin.entries).sum();
            let (pin, returned) = self.unpack(origin, layer, entries, room).await?;
            room = returned;
            fresh.push(pin.digest);
            room.give_back(origin.layer_is_done(pin.digest).await?);
            pins.push(pin);
        }
        let layers = manifest.layers.iter().map(|layer| layer.digest).collect();
        let record = ImageRecord {
            manifest: digest,
            config: manifest.config.digest,
            layers,
        };
        let shelf = Arc::clone(&self.shelf);
        blocking(move || {
            let ready = finish(&shelf, image, &record, &config_bytes, pins)?;
            shelf.record(image, &record, [&document, &config_bytes])?;
            Ok(ready)
        })
        .await
    }

    /// One layer into the cache.
    async fn unpack(
        &self,
        origin: &mut Origin,
        layer: ExpectedLayer,
        entries_before: u64,
        mut room: Room,
    ) -> Result<(Pin, Room), ImageError> {
        // Dropped with this future: then the channel ends, the reader fails, and the unfinished folder goes.
        let mut pumps = JoinSet::new();
        let source = origin.layer(&layer.blob, &mut pumps).await?;
        let shelf = Arc::clone(&self.shelf);
        blocking(move || {
            let folder = shelf.unfinished()?;
            let root = folder.path().join("root");
            std::fs::create_dir(&root).map_err(|error| ImageError::io("create", &root, error))?;
            let settings = &shelf.settings;
            let (owners, limits) = (settings.owners, settings.limits);
            let mut take_room = |bytes| room.take(bytes);
            let unpacked =
                unpack::unpack_layer(source, &layer, &root, owners, limits, entries_before, &mut take_room)?;
            let ExpectedLayer { blob, diff_id } = layer;
            if unpacked.skipped_pipes > 0 {
                tracing::warn!(layer = %blob.digest, pipes = unpacked.skipped_pipes, "named pipes of the image were left out");
            }
            let pin = shelf.commit(folder, blob.digest, diff_id, &unpacked, &mut room)?;
            Ok((pin, room))
        })
        .await
    }

    async fn spool<R: AsyncRead + Send + Unpin>(
        &self,
        digest: BlobId,
        stream: ArchiveStream<R>,
        mut room: Room,
        report: Report,
    ) -> Result<(Spooled, Room), ImageError> {
        if let Some(bytes) = stream.bytes {
            room.expect(bytes.0)?;
        }
        let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let shelf = Arc::clone(&self.shelf);
        let spooling = blocking(move || {
            let folder = shelf.unfinished()?;
            let mut take_room = |bytes| room.take(bytes);
            let spooled = archive::spool(ChannelReader::new(receiver), digest, folder, &mut take_room)?;
            Ok((spooled, room))
        });
        let (result, ()) = tokio::join!(spooling, pump_archive(stream, sender, &report));
        result
    }
}

/// Where the parts of the image that is being prepared come from.
enum Origin {
    Registry {
        registry: Registry,
        reference: RegistryReference,
        report: Report,
    },
    Archive(Spooled),
}

impl Origin {
    /// Follows indexes to the manifest for this machine.
    async fn manifest(&mut self, first: (BlobId, Vec<u8>)) -> Result<(BlobId, Vec<u8>, Manifest), ImageError> {
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

    async fn document(&mut self, part: Part, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        match self {
            Self::Registry { registry, .. } if part == Part::Config => registry.config(digest).await,
            Self::Registry { registry, .. } => registry.manifest(digest).await,
            Self::Archive(spooled) => spooled.document(part, digest),
        }
    }

    /// From here on progress is known against a whole: what is in the cache counts as transferred.
    fn start(&mut self, manifest: &Manifest, missing: &[ExpectedLayer]) {
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

    /// A reader for the blocking thread, and whatever feeds it in `pumps`.
    async fn layer(&mut self, layer: &Layer, pumps: &mut JoinSet<()>) -> Result<Box<dyn Read + Send>, ImageError> {
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
    async fn layer_is_done(&mut self, digest: BlobId) -> Result<u64, ImageError> {
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

async fn pump_archive<R: AsyncRead + Unpin>(
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

/// What is the same for an image from the cache and one just unpacked.
fn finish(
    shelf: &Shelf,
    digest: BlobId,
    record: &ImageRecord,
    config: &[u8],
    pins: Vec<Pin>,
) -> Result<PreparedImage, ImageError> {
    let config = Config::parse(config, record.layers.len())?;
    let roots: BTreeMap<BlobId, &Pin> = pins.iter().map(|pin| (pin.digest, pin)).collect();
    let mut layers: Vec<PathBuf> = Vec::new();
    for (place, layer) in record.layers.iter().enumerate() {
        // overlayfs refuses a directory that is stacked twice. What lies lower adds nothing to its equal above.
        if let Some(pin) = roots.get(layer).filter(|_| !record.layers[place + 1..].contains(layer)) {
            layers.push(pin.root());
        }
    }
    let user = user::resolve(&config.user, &layers, shelf.settings.owners)?;
    let bytes = Bytes(roots.values().map(|pin| pin.bytes).sum());
    shelf.remember_use(&pins)?;
    let Config {
        entrypoint,
        command,
        environment,
        working_directory,
        ..
    } = config;
    let config = ImageConfig {
        entrypoint,
        command,
        environment,
        working_directory,
        user,
    };
    Ok(PreparedImage {
        layers,
        config,
        digest,
        bytes,
        _pins: Pins(pins),
    })
}

fn other_content(layer: &Layer) -> ImageError {
    ImageError::malformed(
        Part::Config,
        format!("it names another content for {}", Part::Layer(layer.digest)),
    )
}

/// Runs what blocks where it may; a panic there is a panic here.
async fn blocking<T: Send + 'static>(
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
