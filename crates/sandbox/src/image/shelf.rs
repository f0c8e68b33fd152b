//! The cache on disk: unpacked layers by digest, the documents of images, and how much room they may take. Layers in use are
//! pinned; the others go, least recently used first, when room is needed. Blocking; holds its lock only for bookkeeping.
//!
//! ```text
//! lock             held while an agent has the cache open
//! owners           the id range that files were given to; another range empties the cache
//! unfinished/      what is being unpacked or removed; emptied at every start
//! layers/HEX/root  a layer, as overlayfs wants it
//! layers/HEX/complete   written last: what the layer took, and when it was last used
//! blobs/HEX        manifests and configs
//! images/HEX       which of them, and which layers, an image's digest leads to
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::cache::CacheSettings;
use super::error::ImageError;
use super::source::{Deliverer, Deliverers};
use super::unpack::Unpacked;

/// Room is taken in steps of this, so that the file system is not asked for every entry.
const STEP: u64 = 8 << 20;

/// What a digest that names an image leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) manifest: BlobId,
    pub(crate) config: BlobId,
    /// As the manifest lists them, lowest first.
    pub(crate) layers: Vec<BlobId>,
    /// Who has delivered all of it.
    #[serde(default)]
    pub(crate) delivered_by: Deliverers,
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

#[derive(Debug, Default)]
struct State {
    layers: BTreeMap<BlobId, Held>,
    /// Σ bytes of `layers`.
    used: u64,
    /// Taken by images that are being prepared.
    reserved: u64,
    uses: u64,
}

pub(crate) struct Shelf {
    pub(crate) settings: CacheSettings,
    state: Mutex<State>,
    /// Dropped with the shelf, and by the kernel with the process.
    _lock: File,
}

impl Shelf {
    /// Opens or makes the cache and removes what an earlier run left unfinished.
    pub(crate) fn open(settings: CacheSettings) -> Result<Arc<Self>, ImageError> {
        let directory = settings.directory.clone();
        make_folder(&directory)?;
        let lock = lock(&directory)?;
        for folder in ["unfinished", "layers", "blobs", "images"] {
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
        let state = load(&directory.join("layers"))?;
        let shelf = Self {
            settings,
            state: Mutex::new(state),
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
    pub(crate) fn pin(self: &Arc<Self>, digest: BlobId) -> Option<Pin> {
        let mut state = self.state();
        state.uses += 1;
        let uses = state.uses;
        let held = state.layers.get_mut(&digest)?;
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
            digest,
            diff_id,
            bytes,
            entries,
        })
    }

    /// Room for one image, of which nothing is taken yet.
    pub(crate) fn room(self: &Arc<Self>) -> Room {
        Room {
            shelf: Arc::clone(self),
            reserved: 0,
            spent: 0,
            total: 0,
        }
    }

    /// Puts an unpacked layer in its place. `folder` holds `root`; `room` has taken `unpacked.bytes` for it.
    pub(crate) fn commit(
        self: &Arc<Self>,
        folder: TempDir,
        digest: BlobId,
        diff_id: BlobId,
        unpacked: &Unpacked,
        room: &mut Room,
    ) -> Result<Pin, ImageError> {
        let place = self.layer_path(digest);
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
        if state.layers.contains_key(&digest) {
            // A preparation that was given up has finished this layer meanwhile.
            drop(state);
            room.give_back(unpacked.bytes);
            return self.pin(digest).ok_or(ImageError::TransferStopped);
        }
        fs::rename(folder.path(), &place).map_err(failed)?;
        state.uses += 1;
        let marker = Marker {
            last_use: state.uses,
            ..marker
        };
        state.layers.insert(digest, Held { marker, pins: 1 });
        state.reserved -= unpacked.bytes;
        state.used += unpacked.bytes;
        drop(state);
        // It is no longer where its guard would remove it.
        let _moved = folder.keep();
        room.reserved -= unpacked.bytes;
        room.spent -= unpacked.bytes;
        Ok(Pin {
            shelf: Arc::clone(self),
            digest,
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
        let held = state.layers.get(&pin.digest);
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
            .map(|layer| self.pin(*layer))
            .collect::<Option<Vec<_>>>()?;
        Some((record, config, pins))
    }

    /// Writes down that these were used now, so that the order outlives a restart.
    pub(crate) fn remember_use(&self, pins: &[Pin]) -> Result<(), ImageError> {
        for pin in pins {
            let marker = self.state().layers.get(&pin.digest).map(|held| held.marker.clone());
            if let Some(marker) = marker {
                write_json(&self.layer_path(pin.digest).join("complete"), &marker)?;
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` out of budget and free space as they are, if they are there.
    fn reserve(&self, bytes: u64) -> Result<bool, ImageError> {
        let free = self.free_space()?;
        let mut state = self.state();
        let in_budget = state.used.saturating_add(state.reserved).saturating_add(bytes) <= self.settings.budget.0;
        let fits = in_budget && free.saturating_sub(self.settings.free_floor.0) >= bytes;
        if fits {
            state.reserved += bytes;
        }
        Ok(fits)
    }

    /// Removes the layer that nobody uses and that was used longest ago. `false` where there is none.
    fn evict_one(&self) -> Result<bool, ImageError> {
        let state = self.state();
        let unpinned = state.layers.iter().filter(|(_, held)| held.pins == 0);
        let victim = unpinned
            .min_by_key(|(_, held)| held.marker.last_use)
            .map(|(digest, _)| *digest);
        drop(state);
        let Some(victim) = victim else { return Ok(false) };
        tracing::info!(layer = %victim, "evicting from the image cache");
        self.discard(victim)?;
        Ok(true)
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
    fn no_room(&self, total: u64, idle: u64, more: u64) -> Result<ImageError, ImageError> {
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

    /// Drops the documents of images of which a layer was evicted.
    fn forget_broken_images(&self) -> Result<(), ImageError> {
        let mut needed = BTreeSet::new();
        for path in list(&self.settings.directory.join("images"))? {
            let record: Option<ImageRecord> = read_json(&path);
            let whole = |record: &ImageRecord| {
                let state = self.state();
                record.layers.iter().all(|layer| state.layers.contains_key(layer))
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
    pub(crate) digest: BlobId,
    pub(crate) diff_id: BlobId,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

impl Pin {
    /// The directory to stack.
    pub(crate) fn root(&self) -> PathBuf {
        self.shelf.layer_path(self.digest).join("root")
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(held) = self.shelf.state().layers.get_mut(&self.digest) {
            held.pins -= 1;
        }
    }
}

/// What one image takes of the disk while it is made ready; given back when dropped, except for what was committed.
pub(crate) struct Room {
    shelf: Arc<Shelf>,
    /// Counted in the state's `reserved`.
    reserved: u64,
    /// How much of `reserved` is on disk.
    spent: u64,
    /// Everything taken for this image, committed layers included.
    total: u64,
}

impl Room {
    /// Takes room, evicting what nobody uses.
    ///
    /// # Errors
    /// [`ImageError::OverBudget`], [`ImageError::FreeSpaceFloor`].
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), ImageError> {
        let missing = self.spent.saturating_add(bytes).saturating_sub(self.reserved);
        if missing > 0 {
            let step = missing.max(STEP);
            if self.shelf.reserve(step)? {
                self.reserved += step;
            } else {
                while !self.shelf.reserve(missing)? {
                    if !self.shelf.evict_one()? {
                        let idle = self.reserved - self.spent;
                        return Err(self.shelf.no_room(self.total, idle, bytes)?);
                    }
                }
                self.reserved += missing;
            }
        }
        self.spent += bytes;
        self.total += bytes;
        Ok(())
    }

    /// Gives back what was removed again.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.spent -= bytes;
        self.total -= bytes;
    }

    /// Fails early where `bytes` more cannot fit even after every eviction; takes nothing.
    pub(crate) fn expect(&self, bytes: u64) -> Result<(), ImageError> {
        let free = self.shelf.free_space()?;
        let state = self.shelf.state();
        let evictable: u64 = state
            .layers
            .values()
            .filter(|held| held.pins == 0)
            .map(|held| held.marker.bytes)
            .sum();
        let kept = (state.used - evictable)
            .saturating_add(state.reserved)
            .saturating_sub(self.reserved - self.spent);
        drop(state);
        let Shelf { settings, .. } = &*self.shelf;
        let left = settings.budget.0.saturating_sub(kept);
        if bytes > left {
            return Err(ImageError::OverBudget {
                needed: Bytes(bytes),
                left: Bytes(left),
            });
        }
        if free.saturating_add(evictable).saturating_sub(settings.free_floor.0) < bytes {
            let (free, floor) = (Bytes(free), settings.free_floor);
            return Err(ImageError::FreeSpaceFloor {
                needed: Bytes(bytes),
                free,
                floor,
            });
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shelf.state().reserved -= self.reserved;
    }
}

fn lock(directory: &Path) -> Result<File, ImageError> {
    let path = directory.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| ImageError::io("open", &path, error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(ImageError::CacheInUse {
            directory: directory.to_owned(),
        }),
        Err(error) => Err(ImageError::io("lock", path, error.into())),
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

/// Only the owner of the cache may look inside: it holds strangers' files, some of them executable.
fn make_folder(path: &Path) -> Result<(), ImageError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| ImageError::io("create", path, error))
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let failed = |error| ImageError::io("list", folder, error);
    fs::read_dir(folder)
        .map_err(failed)?
        .map(|entry| Ok(entry.map_err(failed)?.path()))
        .collect()
}

fn empty_folder(folder: &Path) -> Result<(), ImageError> {
    for path in list(folder)? {
        let removed = if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(|error| ImageError::io("remove", path, error))?;
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<(), ImageError> {
    fs::remove_file(path).map_err(|error| ImageError::io("remove", path, error))
}

/// `None` for what is not there or cannot be read as such: then it is made anew.
fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ImageError> {
    let bytes = serde_json::to_vec(value).map_err(|error| ImageError::io("write", path, error.into()))?;
    write_whole(path, &bytes)
}

/// Old or new, never half: written beside and renamed.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let beside = path.with_extension("new");
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| {
        // Where the disk is full this too may be left half written; the first error is the one to tell.
        let _ = fs::remove_file(&beside);
        ImageError::io("write", path, error)
    })
}
