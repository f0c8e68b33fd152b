//! Makes an image ready to run: from the cache, or through a registry or an archive into it. Async at the edge; whatever blocks
//! runs on blocking threads, and no layer is ever held in memory. How a new image is put together is `assemble`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;

use super::assemble::Assembly;
use super::error::{ImageError, Part};
use super::login::RegistryLogin;
use super::manifest::Config;
use super::origin::{Origin, Pull, blocking, not_opened};
use super::progress::{Course, Progress};
use super::proxy::{Proxy, ProxyChoice};
use super::reference::{ImageReference, RegistryReference};
use super::registry::{Registry, RegistryAccess};
use super::room::Room;
use super::shelf::{ImageRecord, Pin, Shelf};
use super::source::{ArchiveSource, Deliverer};
use super::unpack::UnpackLimits;
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
    /// Through which proxy.
    pub proxy: ProxyChoice,
    /// Most that is written for images on one UTC day, packed and unpacked; as much as there is room for where `None`.
    pub daily_writes: Option<Bytes>,
}

/// The image cache of one agent. Clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    shelf: Arc<Shelf>,
    proxy: Proxy,
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

impl Cache {
    /// Opens or makes the cache, and removes what a crash left unfinished. Blocking.
    ///
    /// # Errors
    /// [`ImageError::CacheInUse`], [`ImageError::BadProxy`], or [`ImageError::Io`].
    pub fn open(settings: CacheSettings) -> Result<Self, ImageError> {
        let proxy = Proxy::find(&settings.proxy).map_err(|error| ImageError::BadProxy {
            reason: error.to_string(),
        })?;
        Ok(Self {
            proxy,
            shelf: Shelf::open(settings)?,
            turn: Arc::default(),
        })
    }

    /// Makes the image ready: from the cache where its source has delivered it before and says that this job may have it, else
    /// from the source. `login` is the job's, for the registry of its image. If this future is dropped the transfer stops; what
    /// came of it is gone on with at the next try.
    ///
    /// # Errors
    /// Any [`ImageError`]. Of an image that fails on its own account nothing is left; where the way broke, layers that are
    /// complete in themselves and what came of the others.
    pub async fn prepare(
        &self,
        image: &ImageReference,
        login: Option<&RegistryLogin>,
        archives: &impl ArchiveSource,
        report: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<PreparedImage, ImageError> {
        let course = Arc::new(Course::new(report));
        match image {
            ImageReference::Registry(reference) => self.prepare_from_registry(reference, login, course).await,
            ImageReference::Archive(digest) => self.prepare_from_archive(*digest, archives, course).await,
        }
    }

    async fn prepare_from_registry(
        &self,
        reference: &RegistryReference,
        login: Option<&RegistryLogin>,
        course: Arc<Course>,
    ) -> Result<PreparedImage, ImageError> {
        let registry = Registry::new(reference, self.shelf.settings.registries, &self.proxy, login)?;
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
        let origin = Origin::Registry(Pull::new(Arc::new(registry), Arc::clone(&course)));
        let assembly = Assembly {
            shelf: &self.shelf,
            room: Room::new(&self.shelf),
            image,
            deliverer,
            course,
        };
        assembly.assemble((image, document), origin).await
    }

    async fn prepare_from_archive(
        &self,
        image: BlobId,
        archives: &impl ArchiveSource,
        course: Arc<Course>,
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
        let assembly = Assembly {
            shelf: &self.shelf,
            room: Room::new(&self.shelf),
            image,
            deliverer,
            course,
        };
        let spooled = assembly.spool(archives).await?;
        let document = spooled.index.clone();
        let first = (BlobId::of(&document), document);
        assembly.assemble(first, Origin::Archive(spooled)).await
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
}

/// What is the same for an image from the cache and one just unpacked.
pub(super) fn finish(
    shelf: &Shelf,
    digest: BlobId,
    record: &ImageRecord,
    config: &[u8],
    pins: Vec<Pin>,
) -> Result<PreparedImage, ImageError> {
    let config = Config::parse(config, record.layers.len())?;
    let roots: BTreeMap<BlobId, &Pin> = pins.iter().map(|pin| (pin.key, pin)).collect();
    let mut layers: Vec<PathBuf> = Vec::new();
    for (place, layer) in record.layers.iter().enumerate() {
        // overlayfs refuses a directory that is stacked twice. What lies lower adds nothing to its equal above.
        let comes_again = record.layers[place + 1..].iter().any(|above| above.key == layer.key);
        if let Some(pin) = roots.get(&layer.key).filter(|_| !comes_again) {
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
        let layers: BTreeSet<BlobId> = self.record.layers.iter().map(|layer| layer.blob).collect();
        parts.extend(layers.into_iter().map(|layer| (Part::Layer(layer), layer)));
        parts
    }
}
