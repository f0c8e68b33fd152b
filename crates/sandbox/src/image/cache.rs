//! Makes an image ready to run: from the cache, or through a registry or an archive into it. Async at the edge; unpacking runs
//! on a blocking thread that is fed by a bounded channel, so that no layer is ever held in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::archive::{self, ArchiveStream, Spooled};
use super::error::{Blame, ImageError, Part};
use super::manifest::{Config, Layer};
use super::origin::{Origin, blocking, not_opened, pump_archive};
use super::reference::{ImageReference, RegistryReference};
use super::registry::{Registry, RegistryAccess};
use super::shelf::{ImageRecord, Pin, Room, Shelf};
use super::source::{ArchiveSource, Deliverer, Deliverers};
use super::stream::{CHUNKS_IN_FLIGHT, ChannelReader, Expected, Verifying};
use super::unpack::{self, ExpectedLayer, UnpackLimits};
use super::user::{self, ImageUser};
use crate::ids::IdRange;

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

pub(super) type Report = Arc<dyn Fn(Progress) + Send + Sync>;

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

    /// Makes the image ready: from the cache where its source has delivered it before and says that this job may have it, else
    /// from the source. If this future is dropped the transfer stops and nothing is left of it.
    ///
    /// # Errors
    /// Any [`ImageError`]; nothing of the failed image is left, except layers that are complete in themselves.
    pub async fn prepare(
        &self,
        image: &ImageReference,
        archives: &impl ArchiveSource,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<PreparedImage, ImageError> {
        let report: Report = Arc::new(report);
        match image {
            ImageReference::Registry(reference) => self.from_registry(reference, report).await,
            ImageReference::Archive(digest) => self.from_archive(*digest, archives, report).await,
        }
    }

    async fn from_registry(&self, reference: &RegistryReference, report: Report) -> Result<PreparedImage, ImageError> {
        let registry = Registry::new(reference, self.shelf.settings.registries)?;
        let (image, deliverer) = (reference.digest(), registry.deliverer());
        if let Some(known) = self.known(image, &deliverer).await? {
            registry.allows(&known.parts()).await?;
            return self.ready(known).await;
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = self.known(image, &deliverer).await? {
            registry.allows(&known.parts()).await?;
            return self.ready(known).await;
        }
        let document = registry.manifest(image).await?;
        let origin = Origin::Registry {
            registry,
            reference: reference.clone(),
            report,
        };
        self.assemble(image, (image, document), origin, deliverer, self.shelf.room())
            .await
    }

    async fn from_archive(
        &self,
        image: BlobId,
        archives: &impl ArchiveSource,
        report: Report,
    ) -> Result<PreparedImage, ImageError> {
        let deliverer = Deliverer::archives(&archives.name());
        if let Some(known) = self.known(image, &deliverer).await? {
            archives.allows(image).await.map_err(|error| not_opened(&error))?;
            return self.ready(known).await;
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = self.known(image, &deliverer).await? {
            archives.allows(image).await.map_err(|error| not_opened(&error))?;
            return self.ready(known).await;
        }
        let stream = archives.open(image).await.map_err(|error| not_opened(&error))?;
        let (spooled, room) = self.spool(image, stream, self.shelf.room(), report).await?;
        let document = spooled.index.clone();
        let first = (BlobId::of(&document), document);
        self.assemble(image, first, Origin::Archive(spooled), deliverer, room)
            .await
    }

    /// An image that this deliverer has delivered before. It may not be opened before the deliverer has said that this job
    /// may have it.
    async fn known(&self, image: BlobId, deliverer: &Deliverer) -> Result<Option<Known>, ImageError> {
        let (shelf, deliverer) = (Arc::clone(&self.shelf), deliverer.clone());
        blocking(move || {
            Ok(shelf.find(image, &deliverer).map(|(record, config, pins)| Known {
                image,
                record,
                config,
                pins,
            }))
        })
        .await
    }

    async fn ready(&self, known: Known) -> Result<PreparedImage, ImageError> {
        let shelf = Arc::clone(&self.shelf);
        let Known {
            image,
            record,
            config,
            pins,
        } = known;
        blocking(move || finish(&shelf, image, &record, &config, pins)).await
    }

    /// From an index or manifest to a ready image. Where that fails for good, the layers that were already complete go too.
    async fn assemble(
        &self,
        image: BlobId,
        first: (BlobId, Vec<u8>),
        mut origin: Origin,
        deliverer: Deliverer,
        room: Room,
    ) -> Result<PreparedImage, ImageError> {
        let mut fresh = Vec::new();
        let result = self
            .assemble_from(image, first, &mut origin, &deliverer, room, &mut fresh)
            .await;
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
        deliverer: &Deliverer,
        mut room: Room,
        fresh: &mut Vec<BlobId>,
    ) -> Result<PreparedImage, ImageError> {
        let (digest, document, manifest) = origin.manifest(first).await?;
        let config_bytes = origin.document(Part::Config, manifest.config.digest).await?;
        let config = Config::parse(&config_bytes, manifest.layers.len())?;

        let mut here: Vec<(ExpectedLayer, Pin)> = Vec::new();
        let mut missing: Vec<ExpectedLayer> = Vec::new();
        for (layer, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            let expected = ExpectedLayer {
                blob: *layer,
                diff_id: *diff_id,
            };
            let seen = here.iter().map(|(other, _)| other).chain(&missing);
            if seen.map(|other| other.blob.digest).any(|digest| digest == layer.digest) {
                continue;
            }
            match self.shelf.pin(layer.digest) {
                Some(pin) => here.push((expected, pin)),
                None => missing.push(expected),
            }
        }
        room.expect(missing.iter().map(|layer| layer.blob.size).fold(0, u64::saturating_add))?;
        origin.start(&manifest, &missing);
        let mut pins = self.proven(origin, deliverer, here).await?;
        for layer in missing {
            let entries: u64 = pins.iter().map(|pin| pin.entries).sum();
            let (pin, returned) = self.unpack(origin, layer, entries, room).await?;
            room = returned;
            fresh.push(pin.digest);
            origin.has_delivered(&self.shelf, pin.digest, deliverer).await?;
            room.give_back(origin.layer_is_done(pin.digest).await?);
            pins.push(pin);
        }
        let layers = manifest.layers.iter().map(|layer| layer.digest).collect();
        let record = ImageRecord {
            manifest: digest,
            config: manifest.config.digest,
            layers,
            delivered_by: Deliverers::default(),
        };
        let (shelf, deliverer) = (Arc::clone(&self.shelf), deliverer.clone());
        blocking(move || {
            let ready = finish(&shelf, image, &record, &config_bytes, pins)?;
            shelf.record(image, &record, [&document, &config_bytes], &deliverer)?;
            Ok(ready)
        })
        .await
    }

    /// Layers of the cache, each after the origin has proven that it has the blob and that this job may have it. Nothing is
    /// told of what the cache holds before that.
    async fn proven(
        &self,
        origin: &mut Origin,
        deliverer: &Deliverer,
        here: Vec<(ExpectedLayer, Pin)>,
    ) -> Result<Vec<Pin>, ImageError> {
        let known: Vec<bool> = here
            .iter()
            .map(|(_, pin)| self.shelf.was_delivered_by(pin, deliverer))
            .collect();
        let (mut to_ask, mut pins) = (Vec::new(), Vec::new());
        for ((layer, pin), known) in here.into_iter().zip(known) {
            let part = Part::Layer(layer.blob.digest);
            match origin {
                Origin::Archive(spooled) => spooled.must_hold(part, layer.blob.digest, layer.blob.size)?,
                Origin::Registry { .. } if known => to_ask.push((part, layer.blob.digest)),
                Origin::Registry { .. } => {
                    self.deliver_again(origin, &layer.blob).await?;
                    origin.has_delivered(&self.shelf, pin.digest, deliverer).await?;
                }
            }
            if pin.diff_id != layer.diff_id {
                return Err(other_content(&layer.blob));
            }
            pins.push(pin);
        }
        if let Origin::Registry { registry, .. } = origin {
            registry.allows(&to_ask).await?;
        }
        Ok(pins)
    }

    /// Has a layer that is in the cache already sent once more, and hashes it: it is worth something only as a proof.
    async fn deliver_again(&self, origin: &mut Origin, layer: &Layer) -> Result<(), ImageError> {
        let mut pumps = JoinSet::new();
        let source = origin.layer(layer, &mut pumps).await?;
        let expected = Expected {
            part: Part::Layer(layer.digest),
            digest: layer.digest,
            size: Some(layer.size),
        };
        blocking(move || Verifying::new(source, expected).finish()).await
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

/// What is known of an image before its source was asked.
struct Known {
    image: BlobId,
    record: ImageRecord,
    config: Vec<u8>,
    pins: Vec<Pin>,
}

impl Known {
    /// Everything that a registry has to agree to.
    fn parts(&self) -> Vec<(Part, BlobId)> {
        let ImageRecord { manifest, config, .. } = self.record;
        let mut parts = vec![(Part::Manifest, self.image)];
        if manifest != self.image {
            parts.push((Part::Manifest, manifest));
        }
        parts.push((Part::Config, config));
        let layers: BTreeSet<BlobId> = self.record.layers.iter().copied().collect();
        parts.extend(layers.into_iter().map(|layer| (Part::Layer(layer), layer)));
        parts
    }
}

fn other_content(layer: &Layer) -> ImageError {
    ImageError::malformed(
        Part::Config,
        format!("it names another content for {}", Part::Layer(layer.digest)),
    )
}
