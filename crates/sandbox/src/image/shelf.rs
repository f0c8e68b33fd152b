//! The cache on disk: unpacked layers by digest, the documents of images, transfers that broke off, and how much room they may
//! take. Layers in use are pinned; the others go, least recently used first, when room is needed. Blocking; holds its lock only for bookkeeping.
//!
//! ```text
//! lock             held while an agent has the cache open
//! owners           the id range that files were given to; another range empties the cache
//! written          how much was written today
//! unfinished/      what is being unpacked or removed; emptied at every start
//! partial/HEX      a blob of one source, transferred in part or not yet unpacked; gone on with at the next try
//! layers/HEX/root  a layer, as overlayfs wants it; HEX is its blob's digest, or one of its blob and all below
//! layers/HEX/complete   written last: what the layer took, and when it was last used
//! blobs/HEX        manifests and configs
//! images/HEX       which of them, and which layers, an image's digest leads to
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::cache::CacheSettings;
use super::disk::{empty_folder, list, lock, make_folder, read_json, remove_file, write_json, write_whole};
use super::error::ImageError;
use super::room::Room;
use super::source::{Deliverer, Deliverers};
use super::unpack::Unpacked;
use super::written::Writes;

/// Transfers that broke off are kept for a later try, but not without end.
const MOST_PARTIALS: usize = 64;

/// How long a transfer that was given up may take to notice it.
const LONGEST_FAREWELL: Duration = Duration::from_secs(10);

/// What a digest that names an image leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) manifest: BlobId,
    pub(crate) config: BlobId,
    /// As the manifest lists them, lowest first.
    pub(crate) layers: Vec<StackedLayer>,
    /// Who has delivered all of it.
    #[serde(default)]
    pub(crate) delivered_by: Deliverers,
}

/// A layer of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StackedLayer {
    /// The blob's address.
    pub(crate) blob: BlobId,
    /// Under which name it is unpacked: the blob's, unless what it unpacks to depends on the layers below it.
    pub(crate) key: BlobId,
}

/// The content of `complete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    diff_id: BlobId,
    bytes: u64,
    entries: u64,
    /// Counts uses, not time: no clock is needed to know what was used last.
    last_use: u64,
    /// Which registries have delivered the blob. An archive has to bring its own each time, so exchanges are not noted here.
    #[serde(default)]
    delivered_by: Deliverers,
}

#[derive(Debug)]
struct Held {
    marker: Marker,
    pins: usize,
}

/// A transfer that broke off, and that nobody goes on with now.
#[derive(Debug, Clone, Copy)]
struct Kept {
    bytes: u64,
    last_use: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    layers: BTreeMap<BlobId, Held>,
    partials: BTreeMap<String, Kept>,
    /// Names of those that somebody goes on with.
    partials_in_use: BTreeSet<String>,
    /// Σ bytes of `layers` and `partials`.
    pub(crate) used: u64,
    /// Taken by images that are being prepared.
    pub(crate) reserved: u64,
    uses: u64,
}

/// What goes first when room is needed.
enum Victim {
    Layer(BlobId),
    Partial(String),
}

pub(crate) struct Shelf {
    pub(crate) settings: CacheSettings,
    pub(crate) writes: Writes,
    state: Mutex<State>,
    partial_is_free: Condvar,
    /// Dropped with the shelf, and by the kernel with the process.
    _lock: File,
}

impl Shelf {
    /// Opens or makes the cache and removes what an earlier run left unfinished.
    pub(crate) fn open(settings: CacheSettings) -> Result<Arc<Self>, ImageError> {
        let directory = settings.directory.clone();
        make_folder(&directory)?;
        let lock = lock(&directory)?;
        for folder in ["unfinished", "partial", "layers", "blobs", "images"] {
            make_folder(&directory.join(folder))?;
        }
        empty_folder(&directory.join("unfinished"))?;
        let owners_path = directory.join("owners");
        if read_json(&owners_path) != Some(settings.owners) {
            for folder in ["layers", "images", "blobs"] {
                empty_folder(&directory.join(folder))?;
            }
            write_json(&owners_path, &settings.owners)?;
        }
        let mut state = load(&directory.join("layers"))?;
        load_partials(&directory.join("partial"), &mut state)?;
        let shelf = Self {
            writes: Writes::open(directory.join("written"), settings.daily_writes),
            settings,
            state: Mutex::new(state),
            partial_is_free: Condvar::new(),
            _lock: lock,
        };
        shelf.forget_broken_images()?;
        Ok(Arc::new(shelf))
    }

    /// A folder of our own in which something can be made ready; gone when dropped.
    pub(crate) fn unfinished(&self) -> Result<TempDir, ImageError> {
        let folder = self.settings.directory.join("unfinished");
        tempfile::Builder::new()
            .prefix("tmp-")
            .tempdir_in(&folder)
            .map_err(|error| ImageError::io("create", folder, error))
    }

    /// Keeps a layer from being evicted, if it is here.
    pub(crate) fn pin(self: &Arc<Self>, key: BlobId) -> Option<Pin> {
        let mut state = self.state();
        state.uses += 1;
        let uses = state.uses;
        let held = state.layers.get_mut(&key)?;
        held.pins += 1;
        held.marker.last_use = uses;
        let Marker {
            diff_id,
            bytes,
            entries,
            ..
        } = held.marker.clone();
        drop(state);
        Some(Pin {
            shelf: Arc::clone(self),
            key,
            diff_id,
            bytes,
            entries,
        })
    }

    /// Puts an unpacked layer in its place. `folder` holds `root`; `room` has taken `unpacked.bytes` for it.
    pub(crate) fn commit(
        self: &Arc<Self>,
        folder: TempDir,
        key: BlobId,
        diff_id: BlobId,
        unpacked: &Unpacked,
        room: &Room,
    ) -> Result<Pin, ImageError> {
        let place = self.layer_path(key);
        let failed = |error: io::Error| ImageError::io("put into place", &place, error);
        let marker = Marker {
            diff_id,
            bytes: unpacked.bytes,
            entries: unpacked.entries,
            last_use: 0,
            delivered_by: Deliverers::default(),
        };
        // The marker must never be on disk without the files that it vouches for, power cut or not.
        let opened = File::open(folder.path()).map_err(failed)?;
        rustix::fs::syncfs(&opened).map_err(|error| failed(error.into()))?;
        write_json(&folder.path().join("complete"), &marker)?;
        let mut state = self.state();
        if state.layers.contains_key(&key) {
            // A preparation that was given up has finished this layer meanwhile.
            drop(state);
            room.give_back(unpacked.bytes);
            return self.pin(key).ok_or(ImageError::TransferStopped);
        }
        fs::rename(folder.path(), &place).map_err(failed)?;
        state.uses += 1;
        let marker = Marker {
            last_use: state.uses,
            ..marker
        };
        state.layers.insert(key, Held { marker, pins: 1 });
        drop(state);
        // It is no longer where its guard would remove it.
        let _moved = folder.keep();
        room.hand_over(unpacked.bytes);
        Ok(Pin {
            shelf: Arc::clone(self),
            key,
            diff_id,
            bytes: unpacked.bytes,
            entries: unpacked.entries,
        })
    }

    /// Notes that this registry, too, has delivered the layer's blob.
    pub(crate) fn add_deliverer(&self, layer: BlobId, deliverer: &Deliverer) -> Result<(), ImageError> {
        let mut state = self.state();
        let Some(held) = state.layers.get_mut(&layer) else {
            return Ok(());
        };
        held.marker.delivered_by.add(deliverer);
        let marker = held.marker.clone();
        drop(state);
        write_json(&self.layer_path(layer).join("complete"), &marker)
    }

    /// Whether this registry has delivered the layer's blob to this cache before.
    pub(crate) fn was_delivered_by(&self, pin: &Pin, deliverer: &Deliverer) -> bool {
        let state = self.state();
        let held = state.layers.get(&pin.key);
        held.is_some_and(|held| held.marker.delivered_by.holds(deliverer))
    }

    /// Keeps an image's documents, so that they need not be transferred the next time.
    pub(crate) fn record(
        &self,
        image: BlobId,
        record: &ImageRecord,
        documents: [&[u8]; 2],
        deliverer: &Deliverer,
    ) -> Result<(), ImageError> {
        for document in documents {
            let path = self.settings.directory.join("blobs").join(BlobId::of(document).hex());
            write_whole(&path, document)?;
        }
        let path = self.image_path(image);
        let known: Option<ImageRecord> = read_json(&path);
        // The digest says what it is made of; who has delivered it grows.
        let mut delivered_by = known.map(|known| known.delivered_by).unwrap_or_default();
        delivered_by.add(deliverer);
        let record = ImageRecord {
            delivered_by,
            ..record.clone()
        };
        write_json(&path, &record)
    }

    /// What an image's digest leads to, its layers pinned, its config's bytes. `None` where anything is missing, and where
    /// this deliverer has not delivered it all before.
    pub(crate) fn find(
        self: &Arc<Self>,
        image: BlobId,
        deliverer: &Deliverer,
    ) -> Option<(ImageRecord, Vec<u8>, Vec<Pin>)> {
        let record: ImageRecord = read_json(&self.image_path(image))?;
        if !record.delivered_by.holds(deliverer) {
            return None;
        }
        let config = fs::read(self.settings.directory.join("blobs").join(record.config.hex())).ok()?;
        if BlobId::of(&config) != record.config {
            return None;
        }
        let pins = record
            .layers
            .iter()
            .map(|layer| self.pin(layer.key))
            .collect::<Option<Vec<_>>>()?;
        Some((record, config, pins))
    }

    /// Writes down that these were used now, so that the order outlives a restart.
    pub(crate) fn remember_use(&self, pins: &[Pin]) -> Result<(), ImageError> {
        for pin in pins {
            let marker = self.state().layers.get(&pin.key).map(|held| held.marker.clone());
            if let Some(marker) = marker {
                write_json(&self.layer_path(pin.key).join("complete"), &marker)?;
            }
        }
        Ok(())
    }

    fn layer_path(&self, digest: BlobId) -> PathBuf {
        self.settings.directory.join("layers").join(digest.hex())
    }

    fn image_path(&self, image: BlobId) -> PathBuf {
        self.settings.directory.join("images").join(image.hex())
    }

    /// A panic elsewhere leaves the counts as they were: each change is one step.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` out of budget and free space as they are, if they are there.
    pub(super) fn reserve(&self, bytes: u64) -> Result<bool, ImageError> {
        let free = self.free_space()?;
        let mut state = self.state();
        let in_budget = state.used.saturating_add(state.reserved).saturating_add(bytes) <= self.settings.budget.0;
        let fits = in_budget && free.saturating_sub(self.settings.free_floor.0) >= bytes;
        if fits {
            state.reserved += bytes;
        }
        Ok(fits)
    }

    /// Removes the layer or broken transfer that nobody uses and that was used longest ago. `false` where there is none.
    pub(super) fn evict_one(&self) -> Result<bool, ImageError> {
        let state = self.state();
        let layers = state.layers.iter().filter(|(_, held)| held.pins == 0);
        let layers = layers.map(|(digest, held)| (held.marker.last_use, Victim::Layer(*digest)));
        let partials = state
            .partials
            .iter()
            .map(|(name, kept)| (kept.last_use, Victim::Partial(name.clone())));
        let victim = partials.chain(layers).min_by_key(|(last_use, _)| *last_use);
        drop(state);
        match victim {
            None => return Ok(false),
            Some((_, Victim::Layer(layer))) => {
                tracing::info!(%layer, "evicting from the image cache");
                self.discard(layer)?;
            }
            Some((_, Victim::Partial(name))) => self.discard_partial(&name)?,
        }
        Ok(true)
    }

    /// Where a partial blob lies.
    pub(crate) fn partial_path(&self, name: &str) -> PathBuf {
        self.settings.directory.join("partial").join(name)
    }

    /// Goes on with a partial blob: its bytes so far, which are the caller's to count now. Waits a moment for one who was
    /// told to stop. Blocking.
    ///
    /// # Errors
    /// [`ImageError::TransferStopped`] where it is still in use then.
    pub(crate) fn take_partial(&self, name: &str) -> Result<u64, ImageError> {
        let state = self.state();
        let in_use = |state: &mut State| state.partials_in_use.contains(name);
        let waited = self.partial_is_free.wait_timeout_while(state, LONGEST_FAREWELL, in_use);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(ImageError::TransferStopped);
        }
        state.partials_in_use.insert(name.to_owned());
        Ok(state.partials.remove(name).map_or(0, |kept| kept.bytes))
    }

    /// Keeps a partial blob for a later try; its bytes are among the used ones already.
    pub(crate) fn keep_partial(&self, name: &str, bytes: u64) {
        let mut state = self.state();
        state.uses += 1;
        let last_use = state.uses;
        state.partials_in_use.remove(name);
        state.partials.insert(name.to_owned(), Kept { bytes, last_use });
        let too_many = state.partials.len() > MOST_PARTIALS;
        let oldest = state.partials.iter().min_by_key(|(_, kept)| kept.last_use);
        let oldest = oldest.map(|(name, _)| name.clone()).filter(|_| too_many);
        drop(state);
        self.partial_is_free.notify_all();
        if let Some(Err(error)) = oldest.map(|name| self.discard_partial(&name)) {
            tracing::warn!(%error, "an old transfer could not be removed");
        }
    }

    /// A partial blob is gone.
    pub(crate) fn forget_partial(&self, name: &str) {
        self.state().partials_in_use.remove(name);
        self.partial_is_free.notify_all();
    }

    fn discard_partial(&self, name: &str) -> Result<(), ImageError> {
        let mut state = self.state();
        let Some(kept) = state.partials.remove(name) else {
            return Ok(());
        };
        state.used -= kept.bytes;
        let path = self.partial_path(name);
        // Under the lock: nobody may go on with it meanwhile.
        fs::remove_file(&path).map_err(|error| ImageError::io("remove", path, error))
    }

    /// Removes a layer unless somebody uses it.
    pub(crate) fn discard(&self, layer: BlobId) -> Result<(), ImageError> {
        let place = self.layer_path(layer);
        let mut state = self.state();
        if state.layers.get(&layer).is_none_or(|held| held.pins > 0) {
            return Ok(());
        }
        state.uses += 1;
        let aside = self
            .settings
            .directory
            .join("unfinished")
            .join(format!("removed-{}", state.uses));
        // Out of sight under the lock, which is quick; removed without it, which is not. Nothing is made for it: the disk
        // may be full.
        fs::rename(&place, &aside).map_err(|error| ImageError::io("remove", &place, error))?;
        if let Some(held) = state.layers.remove(&layer) {
            state.used -= held.marker.bytes;
        }
        drop(state);
        fs::remove_dir_all(&aside).map_err(|error| ImageError::io("remove", aside, error))?;
        self.forget_broken_images()
    }

    fn free_space(&self) -> Result<u64, ImageError> {
        let directory = &self.settings.directory;
        let found = rustix::fs::statvfs(directory)
            .map_err(|error| ImageError::io("look at the free space of", directory, error.into()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Why `more` bytes could not be taken by a room that has `total` already, and `idle` in reserve.
    pub(super) fn no_room(&self, total: u64, idle: u64, more: u64) -> Result<ImageError, ImageError> {
        let free = self.free_space()?;
        let state = self.state();
        let others = state
            .used
            .saturating_add(state.reserved)
            .saturating_sub(total.saturating_add(idle));
        let left = self.settings.budget.0.saturating_sub(others);
        let needed = total.saturating_add(more);
        Ok(if needed > left {
            ImageError::OverBudget {
                needed: Bytes(needed),
                left: Bytes(left),
            }
        } else {
            ImageError::FreeSpaceFloor {
                needed: Bytes(more),
                free: Bytes(free),
                floor: self.settings.free_floor,
            }
        })
    }

    /// Fails where `bytes` more cannot fit even after every eviction, beside a room that has `idle` in reserve.
    pub(super) fn expect(&self, bytes: u64, idle: u64) -> Result<(), ImageError> {
        let free = self.free_space()?;
        let state = self.state();
        let layers = state.layers.values().filter(|held| held.pins == 0);
        let partials = state.partials.values().map(|kept| kept.bytes);
        let evictable: u64 = layers.map(|held| held.marker.bytes).chain(partials).sum();
        let kept = (state.used - evictable)
            .saturating_add(state.reserved)
            .saturating_sub(idle);
        drop(state);
        let left = self.settings.budget.0.saturating_sub(kept);
        if bytes > left {
            return Err(ImageError::OverBudget {
                needed: Bytes(bytes),
                left: Bytes(left),
            });
        }
        if free
            .saturating_add(evictable)
            .saturating_sub(self.settings.free_floor.0)
            < bytes
        {
            let (free, floor) = (Bytes(free), self.settings.free_floor);
            return Err(ImageError::FreeSpaceFloor {
                needed: Bytes(bytes),
                free,
                floor,
            });
        }
        Ok(())
    }

    /// Drops the documents of images of which a layer was evicted.
    fn forget_broken_images(&self) -> Result<(), ImageError> {
        let mut needed = BTreeSet::new();
        for path in list(&self.settings.directory.join("images"))? {
            let record: Option<ImageRecord> = read_json(&path);
            let whole = |record: &ImageRecord| {
                let state = self.state();
                record.layers.iter().all(|layer| state.layers.contains_key(&layer.key))
            };
            match record.filter(whole) {
                Some(record) => needed.extend([record.manifest.hex(), record.config.hex()]),
                None => remove_file(&path)?,
            }
        }
        for path in list(&self.settings.directory.join("blobs"))? {
            let kept = path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| needed.contains(name));
            if !kept {
                remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Keeps one layer from being evicted while it lives.
pub(crate) struct Pin {
    shelf: Arc<Shelf>,
    pub(crate) key: BlobId,
    pub(crate) diff_id: BlobId,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

impl Pin {
    /// The directory to stack.
    pub(crate) fn root(&self) -> PathBuf {
        self.shelf.layer_path(self.key).join("root")
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(held) = self.shelf.state().layers.get_mut(&self.key) {
            held.pins -= 1;
        }
    }
}

/// The layers that were finished; the others are removed.
fn load(layers: &Path) -> Result<State, ImageError> {
    let mut state = State::default();
    for path in list(layers)? {
        let digest = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|hex| format!("sha256:{hex}").parse().ok());
        let marker: Option<Marker> = read_json(&path.join("complete"));
        let (Some(digest), Some(marker)) = (digest, marker) else {
            tracing::warn!(path = %path.display(), "removing an unfinished layer");
            fs::remove_dir_all(&path).map_err(|error| ImageError::io("remove", &path, error))?;
            continue;
        };
        state.used += marker.bytes;
        state.uses = state.uses.max(marker.last_use);
        state.layers.insert(digest, Held { marker, pins: 0 });
    }
    Ok(state)
}

/// What earlier runs left of transfers that broke off. Used longer ago than anything that is used in this run.
fn load_partials(folder: &Path, state: &mut State) -> Result<(), ImageError> {
    for path in list(folder)? {
        let name = path.file_name().and_then(|name| name.to_str());
        let named = name.filter(|name| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let bytes = fs::symlink_metadata(&path)
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|found| found.len());
        let (Some(name), Some(bytes), true) = (named, bytes, state.partials.len() < MOST_PARTIALS) else {
            remove_file(&path)?;
            continue;
        };
        state.used += bytes;
        state.partials.insert(name.to_owned(), Kept { bytes, last_use: 0 });
    }
    Ok(())
}
