//! Gives an engine a job's image out of our own cache: verified by digest there, never pulled by the engine. Both backends so
//! have the same rules for images. What an engine was given is its copy, kept for the next job under the same budget.

use super::engine::{Counted, EngineError, EngineFound};
use super::{OWN_FOLDER, labels};
use crate::ids::IdRange;
use bollard::Docker;
use bollard::query_parameters::{ImportImageOptions, ListImagesOptionsBuilder, RemoveImageOptions};
use bytes::Bytes as Part;
use futures_util::{TryStreamExt as _, stream};
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::mpsc;

mod layers;

/// Parts of an archive that wait for the engine to take them, and how long each is.
const PARTS_IN_FLIGHT: usize = 4;
const PART: usize = 256 << 10;

/// What an engine may hold.
#[derive(Debug, Clone)]
pub struct EngineImageSettings {
    /// A folder of ours that notes which images were given to the engine.
    pub notes: PathBuf,
    /// Most that they may take, as the engine counts.
    pub budget: Bytes,
    /// What must stay free where the engine keeps them.
    pub free_floor: Bytes,
    /// Whose the files of the image cache are.
    pub owners: IdRange,
}

/// The images of one agent in one engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct EngineImages {
    engine: Arc<EngineFound>,
    settings: Arc<EngineImageSettings>,
    /// One at a time: two would fight for room.
    turn: Arc<tokio::sync::Mutex<()>>,
    used: Used,
}

type Used = Arc<Mutex<HashMap<String, usize>>>;

/// An image that the engine has, and keeps for as long as this lives.
#[derive(Debug)]
pub struct GivenImage {
    id: String,
    used: Used,
}

impl GivenImage {
    /// The engine's id of it: the hash of what it consists of.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for GivenImage {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = used.get_mut(&self.id) {
            *count -= 1;
        }
        used.retain(|_, count| *count > 0);
    }
}

/// Why an engine does not have an image.
#[derive(Debug, thiserror::Error)]
pub enum EngineImageError {
    /// It does not answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It refused.
    #[error("{engine} did not take the image: {source}")]
    Refused {
        /// Which engine.
        engine: &'static str,
        /// In its words.
        source: bollard::errors::Error,
    },
    /// It has something else under that name.
    #[error("{engine} took the image and has another: {expected} was given, {found} is there")]
    Differs {
        /// Which engine.
        engine: &'static str,
        /// The hash of what was given.
        expected: String,
        /// What it says.
        found: String,
    },
    /// No room.
    #[error(
        "the image takes {needed} in {engine}, and {room} may be used: raise disk.budget in agent.toml or free some space"
    )]
    NoRoom {
        /// Which engine.
        engine: &'static str,
        /// What it takes.
        needed: Bytes,
        /// What there is.
        room: Bytes,
    },
    /// A file of ours.
    #[error("could not read the image's files: {0}")]
    Files(#[from] io::Error),
}

impl EngineImages {
    /// Of an engine that was found.
    ///
    /// # Errors
    /// [`EngineImageError::Files`] where the folder of notes cannot be made.
    pub fn open(engine: EngineFound, settings: EngineImageSettings) -> Result<Self, EngineImageError> {
        fs::create_dir_all(&settings.notes)?;
        Ok(Self {
            engine: Arc::new(engine),
            settings: Arc::new(settings),
            turn: Arc::default(),
            used: Arc::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &EngineFound {
        &self.engine
    }

    /// Gives the engine the image `digest`, unless it has it: its layers as the cache unpacked them, the lowest first, which must
    /// stay until this is done. If this future is dropped the transfer stops; what the engine makes of the
    /// part that it has is its own to forget.
    ///
    /// # Errors
    /// [`EngineImageError`].
    pub async fn load(&self, digest: BlobId, layers: &[PathBuf]) -> Result<GivenImage, EngineImageError> {
        let _turn = self.turn.lock().await;
        let engine = self.engine.place.connect().await?;
        let note = self.note(digest);
        if let Ok(id) = fs::read_to_string(&note)
            && engine
                .inspect_image(&id)
                .await
                .is_ok_and(|found| found.id.as_deref() == Some(&id))
        {
            // Its time tells how long ago it was of use.
            fs::write(&note, &id)?;
            return Ok(self.hold(id));
        }
        let ids = self.engine.counted(self.settings.owners);
        let folders = layers.to_vec();
        let packed = blocking(move || Packed::of(digest, folders, ids)).await?;
        self.make_room(&engine, packed.bytes()).await?;
        let id = packed.id();
        self.hand_over(&engine, packed).await?;
        let found = engine.inspect_image(&id).await.map_err(|source| self.refused(source))?;
        if found.id.as_deref() != Some(&id) {
            return Err(EngineImageError::Differs {
                engine: self.name(),
                expected: id,
                found: found.id.unwrap_or_default(),
            });
        }
        fs::write(&note, &id)?;
        Ok(self.hold(id))
    }

    /// Whether the engine has the image `id`, as it says itself.
    pub async fn holds(&self, id: &str) -> bool {
        match self.engine.place.connect().await {
            Ok(engine) => engine.inspect_image(id).await.is_ok(),
            Err(_) => false,
        }
    }

    fn name(&self) -> &'static str {
        self.engine.place.kind.name()
    }

    fn note(&self, digest: BlobId) -> PathBuf {
        let ids = if self.engine.remapped { "remapped" } else { "plain" };
        let name = format!("{}-{ids}-{}", self.name(), hex(digest));
        self.settings.notes.join(name)
    }

    fn hold(&self, id: String) -> GivenImage {
        *self
            .used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(id.clone())
            .or_default() += 1;
        GivenImage {
            id,
            used: Arc::clone(&self.used),
        }
    }

    fn refused(&self, source: bollard::errors::Error) -> EngineImageError {
        EngineImageError::Refused {
            engine: self.name(),
            source,
        }
    }

    async fn hand_over(&self, engine: &Docker, packed: Packed) -> Result<(), EngineImageError> {
        let (parts, taken) = mpsc::channel::<io::Result<Part>>(PARTS_IN_FLIGHT);
        let writing = tokio::task::spawn_blocking(move || {
            let mut writer = Parts {
                parts: parts.clone(),
                part: Vec::with_capacity(PART),
            };
            let written = packed.write(&mut writer).and_then(|()| writer.flush());
            if let Err(error) = written {
                // An engine that hears no more has said why itself.
                drop(parts.blocking_send(Err(error)));
            }
        });
        let body = stream::unfold(taken, |mut taken| async {
            taken.recv().await.map(|part| (part, taken))
        });
        let options = ImportImageOptions {
            quiet: true,
            ..ImportImageOptions::default()
        };
        let answers = engine.import_image_stream(options, body, None);
        let answered = answers.try_collect::<Vec<_>>().await;
        drop(writing.await);
        answered.map(drop).map_err(|source| self.refused(source))
    }

    /// Removes what was of use longest ago until this much more may be taken.
    async fn make_room(&self, engine: &Docker, needed: u64) -> Result<(), EngineImageError> {
        let filters = HashMap::from([("label".to_owned(), vec![labels::IMAGE.to_owned()])]);
        let options = ListImagesOptionsBuilder::new().all(true).filters(&filters).build();
        let images = engine
            .list_images(Some(options))
            .await
            .map_err(|source| self.refused(source))?;
        let mut taken: u64 = images.iter().map(|image| u64::try_from(image.size).unwrap_or(0)).sum();
        let mut candidates: Vec<_> = images
            .into_iter()
            // An engine that knows only `key=value` lists others', too.
            .filter_map(|image| Some((image.labels.get(labels::IMAGE)?.clone(), image.id, image.size)))
            .map(|(digest, id, size)| (self.last_used(&id), digest, id, size))
            .collect();
        candidates.sort();
        let budget = self.settings.budget.0;
        let mut candidates = candidates.into_iter();
        while taken.saturating_add(needed) > budget || self.free(needed).is_some() {
            let Some((_, _, id, size)) = candidates.next() else {
                let room = self.free(needed).unwrap_or_else(|| budget.saturating_sub(taken));
                return Err(EngineImageError::NoRoom {
                    engine: self.name(),
                    needed: Bytes(needed),
                    room: Bytes(room),
                });
            };
            if self
                .used
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains_key(&id)
            {
                continue;
            }
            // One that a container of somebody's still uses stays, and the next is tried.
            if engine.remove_image(&id, None::<RemoveImageOptions>, None).await.is_ok() {
                taken = taken.saturating_sub(u64::try_from(size).unwrap_or(0));
                self.forget(&id);
            }
        }
        Ok(())
    }

    /// What may be taken of the disk, where that is less than needed.
    fn free(&self, needed: u64) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.engine.root).ok()?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let room = free.saturating_sub(self.settings.free_floor.0);
        (room < needed).then_some(room)
    }

    fn notes(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.settings.notes).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    }

    fn last_used(&self, id: &str) -> Option<SystemTime> {
        self.notes()
            .find(|note| fs::read_to_string(note).is_ok_and(|noted| noted == id))
            .and_then(|note| fs::metadata(note).ok()?.modified().ok())
    }

    fn forget(&self, id: &str) {
        for note in self.notes() {
            if fs::read_to_string(&note).is_ok_and(|noted| noted == id) {
                drop(fs::remove_file(note));
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn hex(digest: BlobId) -> String {
    digest.to_string().rsplit(':').next().unwrap_or_default().to_owned()
}

/// An image as an engine takes it: its layers measured and hashed, its config written.
struct Packed {
    layers: Vec<Layer>,
    ids: Counted,
    config: Vec<u8>,
    tag: String,
}

struct Layer {
    content: Content,
    size: u64,
    diff_id: BlobId,
}

enum Content {
    Folder(PathBuf),
    /// Ours: the places of the first process and of its socket, and the folders that an image could otherwise lead elsewhere.
    Top,
}

impl Content {
    fn write(&self, ids: Counted, into: impl Write) -> io::Result<()> {
        match self {
            Self::Folder(folder) => layers::write(folder, ids.shift, into),
            Self::Top => top(ids.root, into),
        }
    }
}

impl Packed {
    fn of(digest: BlobId, folders: Vec<PathBuf>, ids: Counted) -> io::Result<Self> {
        let contents = folders.into_iter().map(Content::Folder).chain([Content::Top]);
        let layers = contents
            .map(|content| {
                let mut measure = Measure::default();
                content.write(ids, &mut measure)?;
                Ok(Layer {
                    content,
                    size: measure.size,
                    diff_id: BlobId::from_hash(measure.hash.finalize().into()),
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let config = json!({
            "architecture": crate::image::manifest::machine_architecture(),
            "os": "linux",
            // Nothing of the image's own is left to the engine: no volumes, no checks, no signals, no programs.
            "config": { "Labels": BTreeMap::from([(labels::IMAGE, digest.to_string())]) },
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|layer| layer.diff_id.to_string()).collect::<Vec<_>>(),
            },
        });
        Ok(Self {
            layers,
            ids,
            config: serde_json::to_vec(&config)?,
            tag: format!("sela.local/image:{}", &hex(digest)),
        })
    }

    fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }

    /// The engines' id of an image is the hash of its config, which holds those of its layers.
    fn id(&self) -> String {
        BlobId::of(&self.config).to_string()
    }

    /// The archive that `docker load` takes.
    fn write(&self, into: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(into);
        let mut names = Vec::new();
        for layer in &self.layers {
            let name = format!("{}.tar", hex(layer.diff_id));
            let mut header = plain_header(&name, layer.size)?;
            header.set_cksum();
            let inner = archive.get_mut();
            inner.write_all(header.as_bytes())?;
            let mut exact = Exact {
                into: &mut *inner,
                left: layer.size,
            };
            layer.content.write(self.ids, &mut exact)?;
            if exact.left > 0 {
                return Err(io::Error::other("a layer of the image changed while it was read"));
            }
            let padding = usize::try_from(layer.size.next_multiple_of(512) - layer.size).unwrap_or(0);
            inner.write_all(&[0; 512][..padding])?;
            names.push(name);
        }
        let config = format!("{}.json", hex(BlobId::of(&self.config)));
        let manifest = json!([{ "Config": config, "RepoTags": [self.tag], "Layers": names }]);
        for (name, bytes) in [
            (config.as_str(), &self.config),
            ("manifest.json", &serde_json::to_vec(&manifest)?),
        ] {
            let mut header = plain_header(name, bytes.len() as u64)?;
            header.set_cksum();
            archive.append(&header, bytes.as_slice())?;
        }
        archive.finish()
    }
}

fn plain_header(name: &str, size: u64) -> io::Result<tar::Header> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o644);
    Ok(header)
}

/// Folders, and what is covered by our first process and its socket, above everything that the image brings.
fn top(root: u32, into: impl Write) -> io::Result<()> {
    let owner = u64::from(root);
    let mut archive = tar::Builder::new(into);
    let mut entry = |name: &str, kind: tar::EntryType, mode: u32, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes)
    };
    for (name, mode) in [
        ("in", 0o755),
        ("out", 0o755),
        ("checkpoint", 0o755),
        ("tmp", 0o1777),
        ("proc", 0o755),
        ("dev", 0o755),
        ("sys", 0o755),
        ("etc", 0o755),
        ("run", 0o755),
        ("run/secrets", 0o755),
        (OWN_FOLDER, 0o755),
    ] {
        entry(name, tar::EntryType::Directory, mode, &[])?;
    }
    for (name, mode) in [("init", 0o755), ("door", 0o644)] {
        entry(&format!("{OWN_FOLDER}/{name}"), tar::EntryType::Regular, mode, &[])?;
    }
    archive.finish()
}

#[derive(Default)]
struct Measure {
    hash: Sha256,
    size: u64,
}

impl Write for Measure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets no more through than was announced.
struct Exact<W> {
    into: W,
    left: u64,
}

impl<W: Write> Write for Exact<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| io::Error::other("a layer of the image grew while it was read"))?;
        self.into.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// Cuts what is written into parts for the engine.
struct Parts {
    parts: mpsc::Sender<io::Result<Part>>,
    part: Vec<u8>,
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PART - self.part.len());
        self.part.extend_from_slice(&bytes[..count]);
        if self.part.len() == PART {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = Part::from(std::mem::replace(&mut self.part, Vec::with_capacity(PART)));
        let sent = self.parts.blocking_send(Ok(part));
        sent.map_err(|_| io::Error::other("the engine takes no more"))
    }
}
