//! Puts a new image together: from its index or manifest to layers that lie unpacked in the cache, lowest first. Layers are
//! transferred side by side and unpacked one after the other, each as it comes. Whether a cached layer may be used is decided
//! here, by the rule in the module's heading.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sela_protocol::blob::BlobId;
use sha2::{Digest as _, Sha256};

use super::archive::{self, Spooled};
use super::cache::{PreparedImage, finish};
use super::error::{Blame, ImageError, Part};
use super::manifest::{Config, Manifest};
use super::origin::{Origin, blocking, transfer_archive};
use super::partial::Partial;
use super::progress::Course;
use super::room::Room;
use super::shelf::{ImageRecord, Pin, Shelf, StackedLayer};
use super::source::{ArchiveSource, Deliverer, Deliverers};
use super::unpack::{self, Below, ExpectedLayer};

/// A layer that the cache has, still to be proven.
type Here = (ExpectedLayer, Pin);

/// A layer that has to come, and its place in the stack.
type Missing = (usize, ExpectedLayer);

/// One image that is being put together.
pub(super) struct Assembly<'a> {
    pub(super) shelf: &'a Arc<Shelf>,
    pub(super) room: Arc<Room>,
    /// The digest that the job named.
    pub(super) image: BlobId,
    pub(super) deliverer: Deliverer,
    /// Whoever wants to know how far it is.
    pub(super) course: Arc<Course>,
}

impl Assembly<'_> {
    /// Lays an archive down and takes it apart, going on where an earlier try left it.
    pub(super) async fn spool(&self, archives: &impl ArchiveSource) -> Result<Spooled, ImageError> {
        let partial = {
            let (shelf, room) = (Arc::clone(self.shelf), Arc::clone(&self.room));
            let (deliverer, archive) = (self.deliverer.clone(), self.image);
            blocking(move || Partial::open(&shelf, &room, &deliverer, archive)).await?
        };
        loop {
            match self.spool_once(&partial, archives).await {
                // What the earlier try left may be spoilt: that is seen only at the end.
                Err(error) if error.blame() == Blame::Image && partial.was_resumed() => {
                    tracing::warn!(%error, "what an earlier transfer left is of no use, and is fetched anew");
                    let emptied = Arc::clone(&partial);
                    blocking(move || emptied.begin_anew()).await?;
                }
                Err(error) => {
                    if error.blame() != Blame::Network {
                        partial.discard();
                    }
                    // Nothing of it is left once this returns.
                    blocking(move || {
                        partial.wait_for_writer();
                        drop(partial);
                        Ok(())
                    })
                    .await?;
                    return Err(error);
                }
                Ok(spooled) => return Ok(spooled),
            }
        }
    }

    async fn spool_once(&self, partial: &Arc<Partial>, archives: &impl ArchiveSource) -> Result<Spooled, ImageError> {
        let (read, archive) = (Arc::clone(partial), self.image);
        let spooling = blocking(move || {
            let spooled = archive::spool(Arc::clone(&read), archive);
            if spooled.is_err() {
                read.stop();
            }
            spooled
        });
        let transferring = transfer_archive(archives, archive, partial, &self.room, &self.course);
        let (mut spooling, mut transferring) = (std::pin::pin!(spooling), std::pin::pin!(transferring));
        tokio::select! {
            // A source that stands still need not be waited for once the archive is refused.
            spooled = &mut spooling => spooled,
            () = &mut transferring => spooling.await,
        }
    }

    /// From an index or manifest to a ready image. Where that fails for good, the layers that were already complete go too.
    pub(super) async fn assemble(
        self,
        first: (BlobId, Vec<u8>),
        mut origin: Origin,
    ) -> Result<PreparedImage, ImageError> {
        let mut fresh = Vec::new();
        let result = self.assemble_from(first, &mut origin, &mut fresh).await;
        let broke = matches!(&result, Err(error) if error.blame() == Blame::Network);
        // What came before the network broke is not fetched again.
        origin.close(broke).await?;
        if result.is_err() && !broke {
            let shelf = Arc::clone(self.shelf);
            blocking(move || fresh.into_iter().try_for_each(|layer| shelf.discard(layer))).await?;
        }
        result
    }

    async fn assemble_from(
        &self,
        first: (BlobId, Vec<u8>),
        origin: &mut Origin,
        fresh: &mut Vec<BlobId>,
    ) -> Result<PreparedImage, ImageError> {
        let (digest, document, manifest) = origin.manifest(first).await?;
        let config_bytes = origin.document(Part::Config, manifest.config.digest).await?;
        let config = Config::parse(&config_bytes, manifest.layers.len())?;

        let (here, missing) = self.sort(&manifest, &config);
        let layers = here.len() + missing.len();
        let missing_blobs: Vec<ExpectedLayer> = missing.iter().map(|(_, layer)| *layer).collect();
        // Refused before anything is transferred; what an earlier try left is known a little later.
        let room = missing_blobs.iter().map(|layer| layer.blob.size);
        self.room.expect(match origin {
            Origin::Registry(_) => 0,
            Origin::Archive(_) => room.fold(0, u64::saturating_add),
        })?;
        origin
            .start((self.shelf, &self.room, &self.deliverer), &manifest, &missing_blobs)
            .await?;
        let mut pins = self.proven(origin, here).await?;
        self.course.layers(pins.len(), layers);
        for (place, layer) in missing {
            let below = &manifest.layers[..place];
            let stack = below.iter().filter_map(|layer| pins.get(&layer.digest)).map(Pin::root);
            let pin = self
                .unpack(origin, layer, place, &manifest, &pins, stack.collect())
                .await?;
            fresh.push(pin.key);
            self.has_delivered(origin, &pin).await?;
            origin.layer_is_done(layer.blob.digest).await?;
            pins.insert(layer.blob.digest, pin);
            self.course.layers(pins.len(), layers);
        }
        let layers = manifest.layers.iter().filter_map(|layer| {
            let key = pins.get(&layer.digest)?.key;
            Some(StackedLayer {
                blob: layer.digest,
                key,
            })
        });
        let record = ImageRecord {
            manifest: digest,
            config: manifest.config.digest,
            layers: layers.collect(),
            delivered_by: Deliverers::default(),
        };
        let (shelf, image, deliverer) = (Arc::clone(self.shelf), self.image, self.deliverer.clone());
        blocking(move || {
            let ready = finish(&shelf, image, &record, &config_bytes, pins.into_values().collect())?;
            shelf.record(image, &record, [&document, &config_bytes], &deliverer)?;
            Ok(ready)
        })
        .await
    }

    /// What the cache has, still to be proven, and what it lacks with its place in the stack. Each blob once.
    fn sort(&self, manifest: &Manifest, config: &Config) -> (Vec<Here>, Vec<Missing>) {
        let (mut here, mut missing) = (Vec::new(), Vec::new());
        for (place, (layer, diff_id)) in manifest.layers.iter().zip(&config.diff_ids).enumerate() {
            if manifest.layers[..place]
                .iter()
                .any(|below| below.digest == layer.digest)
            {
                continue;
            }
            let expected = ExpectedLayer {
                blob: *layer,
                diff_id: *diff_id,
            };
            let stacked = stacked_key(manifest, place);
            match self.shelf.pin(layer.digest).or_else(|| self.shelf.pin(stacked)) {
                Some(pin) => here.push((expected, pin)),
                None => missing.push((place, expected)),
            }
        }
        (here, missing)
    }

    /// Layers of the cache, each after the origin has proven that it has the blob and that this job may have it. Nothing is
    /// told of what the cache holds before that.
    async fn proven(&self, origin: &Origin, here: Vec<Here>) -> Result<BTreeMap<BlobId, Pin>, ImageError> {
        let mut to_ask = Vec::new();
        for (layer, pin) in &here {
            let part = Part::Layer(layer.blob.digest);
            match origin {
                Origin::Archive(spooled) => spooled.must_hold(part, layer.blob.digest, layer.blob.size)?,
                Origin::Registry(_) if self.shelf.was_delivered_by(pin, &self.deliverer) => {
                    to_ask.push((part, layer.blob.digest));
                }
                Origin::Registry(pull) => {
                    pull.registry.prove(&layer.blob).await?;
                    self.has_delivered(origin, pin).await?;
                }
            }
        }
        if let Origin::Registry(pull) = origin {
            pull.registry.allows(&to_ask).await?;
        }
        let mut pins = BTreeMap::new();
        for (layer, pin) in here {
            if pin.diff_id != layer.diff_id {
                let part = Part::Layer(layer.blob.digest);
                let reason = format!("it names another content for {part}");
                return Err(ImageError::malformed(Part::Config, reason));
            }
            pins.insert(layer.blob.digest, pin);
        }
        Ok(pins)
    }

    /// Notes what a registry has just delivered. An archive has to bring its own each time.
    async fn has_delivered(&self, origin: &Origin, pin: &Pin) -> Result<(), ImageError> {
        match origin {
            Origin::Registry(_) => {
                let (shelf, layer, deliverer) = (Arc::clone(self.shelf), pin.key, self.deliverer.clone());
                blocking(move || shelf.add_deliverer(layer, &deliverer)).await
            }
            Origin::Archive(_) => Ok(()),
        }
    }

    /// One layer into the cache, onto those that lie below it.
    async fn unpack(
        &self,
        origin: &mut Origin,
        layer: ExpectedLayer,
        place: usize,
        manifest: &Manifest,
        pins: &BTreeMap<BlobId, Pin>,
        stack: Vec<PathBuf>,
    ) -> Result<Pin, ImageError> {
        let entries = pins.values().map(|pin| pin.entries).sum();
        let stacked = stacked_key(manifest, place);
        loop {
            match self.unpack_once(origin, layer, stacked, entries, stack.clone()).await {
                Err(error) if error.blame() == Blame::Image && origin.begin_anew(layer.blob.digest).await? => {}
                result => return result,
            }
        }
    }

    /// If this is dropped the transfer ends with its origin, the reader fails, and the unfinished folder goes.
    async fn unpack_once(
        &self,
        origin: &Origin,
        layer: ExpectedLayer,
        stacked: BlobId,
        entries: u64,
        stack: Vec<PathBuf>,
    ) -> Result<Pin, ImageError> {
        let source = origin.layer(layer.blob.digest)?;
        let (shelf, room) = (Arc::clone(self.shelf), Arc::clone(&self.room));
        blocking(move || {
            let folder = shelf.unfinished()?;
            let root = folder.path().join("root");
            std::fs::create_dir(&root).map_err(|error| ImageError::io("create", &root, error))?;
            let (owners, limits) = (shelf.settings.owners, shelf.settings.limits);
            let mut taken = 0;
            let mut take_room = |bytes| {
                room.take(bytes)?;
                taken += bytes;
                Ok(())
            };
            let below = Below {
                entries,
                layers: &stack,
            };
            let unpacked = unpack::unpack_layer(source, &layer, &root, owners, limits, below, &mut take_room);
            let unpacked = unpacked.inspect_err(|_| room.give_back(taken))?;
            let ExpectedLayer { blob, diff_id } = layer;
            if unpacked.skipped_pipes > 0 {
                tracing::warn!(layer = %blob.digest, pipes = unpacked.skipped_pipes, "named pipes of the image were left out");
            }
            let key = if unpacked.from_below > 0 { stacked } else { blob.digest };
            shelf.commit(folder, key, diff_id, &unpacked, &room)
        })
        .await
    }
}

/// The name of a layer that took something from those below it: it is the same for the same stack only, and it opens for whoever
/// may have the whole stack.
fn stacked_key(manifest: &Manifest, place: usize) -> BlobId {
    let mut hash = Sha256::new();
    hash.update(b"a layer and all below it\n");
    for layer in &manifest.layers[..=place] {
        hash.update(layer.digest.hex());
    }
    BlobId::from_hash(hash.finalize().into())
}
