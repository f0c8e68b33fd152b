//! One layer's tar, entry by entry, into a [`LayerTree`]: what each entry means, who it belongs to here, and when to stop.
//! Blocking; the bytes come from a reader and are unverified until the last one, which is why every step is safe by itself.
//!
//! Device nodes are refused, pipes are left out and counted; set-user-id and set-group-id bits and extended attributes are
//! dropped: a job has no use for them (no new privileges), and overlayfs reads meaning into some.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use tar::{Entry, EntryType};

use super::below;
use super::error::{ImageError, Part};
use super::manifest::Layer;
use super::stream::{self, Expected, Meter, Metered, RatioLimit, Verifying};
use super::tree::{EntryPath, LayerTree, Metadata, TreeError};
use crate::ids::IdRange;

/// Bytes that the tar reader may hold in memory for one entry: names and attributes. Also the padding after the last one.
pub(crate) const LARGEST_HEADER: u64 = 1 << 20;

/// What a file system takes for an entry beside its content: an inode and a name.
const ENTRY_COST: u64 = 512;

/// Content is stored in blocks.
const BLOCK: u64 = 4096;

/// Limits against bombs. The defaults leave room for the largest honest images (some 300 000 files).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Most entries of all layers together.
    pub entries: u64,
    /// Most times that a layer may unpack to its own size; asked once it has unpacked to `ratio_grace`.
    pub ratio: u64,
    /// See `ratio`.
    pub ratio_grace: Bytes,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            ratio: 100,
            ratio_grace: Bytes::from_mib(64),
        }
    }
}

/// What one layer came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, folders and links made, whiteouts included.
    pub entries: u64,
    /// Bytes on disk, in blocks, with a flat cost per entry.
    pub bytes: u64,
    /// Named pipes that were left out.
    pub skipped_pipes: u64,
    /// Hard links to files of lower layers, each of which became a copy: this layer is itself on these lower ones only.
    pub from_below: u64,
}

/// What a layer lies on.
#[derive(Debug, Clone, Copy)]
pub struct Below<'a> {
    /// Entries of all other layers of the image, which count against its limit.
    pub entries: u64,
    /// The unpacked layers below, lowest first.
    pub layers: &'a [PathBuf],
}

impl Below<'_> {
    /// The lowest layer lies on nothing.
    pub const NOTHING: Self = Self {
        entries: 0,
        layers: &[],
    };
}

/// What a layer must turn out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedLayer {
    /// The blob, as the manifest describes it.
    pub blob: Layer,
    /// Hash of the uncompressed tar, as the config says.
    pub diff_id: BlobId,
}

/// What is asked before anything is written: room for so many more bytes.
pub type TakeRoom<'a> = &'a mut dyn FnMut(u64) -> Result<(), ImageError>;

/// Unpacks `source`, the layer's blob as it is stored, into `root`, an empty directory that is ours alone.
///
/// # Errors
/// Any [`ImageError`]; what was unpacked so far stays in `root` and must be removed by the caller.
pub fn unpack_layer(
    source: impl Read,
    layer: &ExpectedLayer,
    root: &Path,
    owners: IdRange,
    limits: UnpackLimits,
    below: Below<'_>,
    take_room: TakeRoom<'_>,
) -> Result<Unpacked, ImageError> {
    let ExpectedLayer { blob, diff_id } = layer;
    let part = Part::Layer(blob.digest);
    let mut verifying = Verifying::new(
        source,
        Expected {
            part,
            digest: blob.digest,
            size: Some(blob.size),
        },
    );
    let unpacking = Unpacking::new(part, root, owners, limits, below, take_room)?;
    let result = unpack_stream(&mut verifying, blob, limits, unpacking);
    match result {
        Ok((unpacked, actual)) => {
            verifying.finish()?;
            if actual != *diff_id {
                return Err(ImageError::malformed(
                    Part::Config,
                    format!("it names another content for {part}"),
                ));
            }
            Ok(unpacked)
        }
        // Altered bytes mostly show as a broken tar first; the digest is the better thing to say.
        Err(broken @ ImageError::Malformed { .. }) => match verifying.finish() {
            Err(wrong @ (ImageError::WrongDigest { .. } | ImageError::WrongSize { .. })) => Err(wrong),
            Ok(()) | Err(_) => Err(broken),
        },
        Err(other) => Err(other),
    }
}

fn unpack_stream<R: Read>(
    verifying: &mut Verifying<R>,
    layer: &Layer,
    limits: UnpackLimits,
    mut unpacking: Unpacking<'_>,
) -> Result<(Unpacked, BlobId), ImageError> {
    let part = unpacking.part;
    let broken = |error| ImageError::from_reader(part, error);
    let packed = verifying.counter();
    let ratio = RatioLimit {
        ratio: limits.ratio,
        grace: limits.ratio_grace.0,
    };
    let decoder = stream::decompress(layer.compression, verifying).map_err(broken)?;
    let metered = Metered::new(decoder, part, packed, ratio);
    let meter = metered.meter();
    let mut archive = tar::Archive::new(metered);
    meter.headers_follow(LARGEST_HEADER);
    for entry in archive.entries().map_err(broken)? {
        unpacking.entry(&mut entry.map_err(broken)?, &meter)?;
        meter.headers_follow(LARGEST_HEADER);
    }
    let mut metered = archive.into_inner();
    io::copy(&mut metered, &mut io::sink()).map_err(broken)?;
    Ok((unpacking.unpacked, metered.digest()))
}

struct Unpacking<'a> {
    part: Part,
    tree: LayerTree,
    root: &'a Path,
    owners: IdRange,
    entries: u64,
    most_entries: u64,
    below: &'a [PathBuf],
    /// What was copied from below, and where to: a second link to it is a link to the copy.
    copies: BTreeMap<Vec<u8>, Vec<u8>>,
    take_room: TakeRoom<'a>,
    buffer: Vec<u8>,
    unpacked: Unpacked,
}

impl<'a> Unpacking<'a> {
    fn new(
        part: Part,
        root: &'a Path,
        owners: IdRange,
        limits: UnpackLimits,
        below: Below<'a>,
        take_room: TakeRoom<'a>,
    ) -> Result<Self, ImageError> {
        let tree = LayerTree::new(root, owners).map_err(|error| ImageError::io("prepare", root, error))?;
        Ok(Self {
            part,
            tree,
            root,
            owners,
            entries: below.entries,
            most_entries: limits.entries,
            below: below.layers,
            copies: BTreeMap::new(),
            take_room,
            buffer: vec![0; 128 << 10],
            unpacked: Unpacked::default(),
        })
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, meter: &Meter) -> Result<(), ImageError> {
        let name = entry.path_bytes().into_owned();
        self.count(entry, &name)?;
        meter.content_follows();
        self.make(entry, &name)?;
        // An entry may carry content that its kind has no use for.
        io::copy(entry, &mut io::sink()).map_err(|error| ImageError::from_reader(self.part, error))?;
        Ok(())
    }

    fn count<R: Read>(&mut self, entry: &mut Entry<'_, R>, name: &[u8]) -> Result<(), ImageError> {
        self.unpacked.entries += 1;
        self.entries += 1;
        if self.entries > self.most_entries {
            return Err(ImageError::TooManyEntries {
                limit: self.most_entries,
            });
        }
        if let Some(extensions) = entry
            .pax_extensions()
            .map_err(|error| ImageError::from_reader(self.part, error))?
        {
            for extension in extensions {
                let extension = extension.map_err(|error| ImageError::malformed(self.part, error))?;
                if extension.key_bytes().starts_with(b"GNU.sparse.") {
                    return Err(self.refused(name, "is a sparse file in pax form, which cannot be unpacked"));
                }
            }
        }
        Ok(())
    }

    fn make<R: Read>(&mut self, entry: &mut Entry<'_, R>, name: &[u8]) -> Result<(), ImageError> {
        let Some(kind) = Kind::of(entry.header().entry_type(), name) else {
            return Err(self.refused(name, "is of a kind that no image needs"));
        };
        if kind == Kind::Comment {
            return Ok(());
        }
        let mut path_buffer = Vec::new();
        let path = EntryPath::parse(name, &mut path_buffer).map_err(|reason| self.refused(name, reason))?;
        if let EntryPath::Below { parent, name: last } = path {
            if is_aufs_own(parent) || (last.starts_with(b".wh..wh.") && last != b".wh..wh..opq") {
                return Ok(());
            }
            if let Some(hidden) = last.strip_prefix(b".wh.") {
                return self.hide(parent, hidden, name);
            }
        }
        match kind {
            Kind::File => self.file(entry, path, name),
            Kind::Folder => {
                let metadata = self.metadata(entry, name)?;
                self.take(BLOCK)?;
                self.tree
                    .directory(path, &metadata)
                    .map_err(|error| self.failed(name, error))
            }
            Kind::Symlink => {
                let metadata = self.metadata(entry, name)?;
                self.take(0)?;
                let target = entry.link_name_bytes().unwrap_or_default();
                self.tree
                    .symlink(path, &target, &metadata)
                    .map_err(|error| self.failed(name, error))
            }
            Kind::HardLink => {
                self.take(0)?;
                let target = entry.link_name_bytes().unwrap_or_default();
                let mut target_buffer = Vec::new();
                let target = EntryPath::parse(&target, &mut target_buffer)
                    .map_err(|_| self.refused(name, "is a hard link that leads out of the image"))?;
                match self.tree.hard_link(path, target) {
                    Err(TreeError::NoTarget) => self.link_from_below(path, target, name),
                    result => result.map_err(|error| self.failed(name, error)),
                }
            }
            Kind::Pipe => {
                self.unpacked.skipped_pipes += 1;
                Ok(())
            }
            Kind::Device => Err(self.refused(name, "is a device node")),
            Kind::Comment => Ok(()),
        }
    }

    fn hide(&mut self, parent: &[u8], hidden: &[u8], name: &[u8]) -> Result<(), ImageError> {
        self.take(0)?;
        let result = match hidden {
            b".wh..opq" => self.tree.opaque(parent),
            b"" | b"." | b".." => Err(TreeError::Refused("hides nothing that has a name")),
            hidden => self.tree.whiteout(parent, hidden),
        };
        result.map_err(|error| self.failed(name, error))
    }

    fn file<R: Read>(&mut self, entry: &mut Entry<'_, R>, path: EntryPath<'_>, name: &[u8]) -> Result<(), ImageError> {
        let metadata = self.metadata(entry, name)?;
        let blocks = entry
            .size()
            .checked_next_multiple_of(BLOCK)
            .unwrap_or(u64::MAX - ENTRY_COST);
        // The size is only a claim, but content never goes beyond it.
        self.take(blocks)?;
        let mut file = self.tree.file(path).map_err(|error| self.failed(name, error))?;
        self.copy(entry, &mut file)?;
        LayerTree::finish_file(&file, &metadata).map_err(|error| self.failed(name, error))
    }

    /// A hard link to a file of a lower layer: overlayfs would copy it up, and so is it copied here. Lower layers are shared by
    /// images, so that no link may lead there.
    fn link_from_below(&mut self, path: EntryPath<'_>, target: EntryPath<'_>, name: &[u8]) -> Result<(), ImageError> {
        const NOWHERE: &str = "is a hard link to what neither this layer before it nor one below holds";
        let EntryPath::Below { parent, name: last } = target else {
            return Err(self.refused(name, NOWHERE));
        };
        let key = [parent, b"/", last].concat();
        let mut buffer = Vec::new();
        if let Some(copy) = self.copies.get(&key)
            && let Ok(copy) = EntryPath::parse(copy, &mut buffer)
            && self.tree.hard_link(path, copy).is_ok()
        {
            return Ok(());
        }
        let failed = |error| ImageError::io("read a lower layer for", self.root, error);
        let found = below::open_file(self.below, parent, last).map_err(failed)?;
        let mut source = found.ok_or_else(|| self.refused(name, NOWHERE))?;
        let status = rustix::fs::fstat(&source).map_err(|error| failed(error.into()))?;
        let size = u64::try_from(status.st_size).unwrap_or(0);
        self.take(size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX - ENTRY_COST))?;
        let mut file = self.tree.file(path).map_err(|error| self.failed(name, error))?;
        io::copy(&mut source, &mut file).map_err(|error| ImageError::io("write", self.root, error))?;
        let metadata = Metadata {
            uid: status.st_uid,
            gid: status.st_gid,
            mode: status.st_mode,
            modified: u64::try_from(status.st_mtime).unwrap_or(0),
        };
        LayerTree::finish_file(&file, &metadata).map_err(|error| self.failed(name, error))?;
        self.copies.insert(key, name.to_vec());
        self.unpacked.from_below += 1;
        Ok(())
    }

    fn copy<R: Read>(&mut self, entry: &mut Entry<'_, R>, file: &mut File) -> Result<(), ImageError> {
        let mut left = entry.size();
        while left > 0 {
            let count = match entry.read(&mut self.buffer) {
                Ok(0) => return Err(ImageError::malformed(self.part, "it ends in the middle of a file")),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ImageError::from_reader(self.part, error)),
            };
            file.write_all(&self.buffer[..count])
                .map_err(|error| ImageError::io("write", self.root, error))?;
            left = left.saturating_sub(count as u64);
        }
        Ok(())
    }

    fn metadata<R: Read>(&self, entry: &Entry<'_, R>, name: &[u8]) -> Result<Metadata, ImageError> {
        let header = entry.header();
        let broken = |error| ImageError::from_reader(self.part, error);
        let map = |id: u64| {
            u32::try_from(id)
                .ok()
                .and_then(|id| self.owners.outside(id))
                .ok_or_else(|| ImageError::OwnerOutsideRange {
                    path: shown(name),
                    id,
                    count: self.owners.count,
                })
        };
        Ok(Metadata {
            uid: map(header.uid().map_err(broken)?)?,
            gid: map(header.gid().map_err(broken)?)?,
            mode: header.mode().map_err(broken)?,
            modified: header.mtime().unwrap_or(0),
        })
    }

    fn take(&mut self, content: u64) -> Result<(), ImageError> {
        let bytes = content.saturating_add(ENTRY_COST);
        (self.take_room)(bytes)?;
        self.unpacked.bytes = self.unpacked.bytes.saturating_add(bytes);
        Ok(())
    }

    fn refused(&self, name: &[u8], reason: &'static str) -> ImageError {
        ImageError::UnsafeEntry {
            part: self.part,
            path: shown(name),
            reason,
        }
    }

    fn failed(&self, name: &[u8], error: TreeError) -> ImageError {
        match error {
            TreeError::Refused(reason) => self.refused(name, reason),
            TreeError::NoTarget => self.refused(name, "is a hard link to nothing"),
            TreeError::System(doing, source) => ImageError::io(doing, self.root, source),
        }
    }
}

/// What an entry is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
    Symlink,
    HardLink,
    Pipe,
    Device,
    /// Attributes for all that follows, of which none is used.
    Comment,
}

impl Kind {
    fn of(kind: EntryType, name: &[u8]) -> Option<Self> {
        // Tars older than 1988 mark a folder only by the slash at its end.
        let old_folder = kind.is_file() && name.ends_with(b"/");
        let table = [
            (kind.is_dir() || old_folder, Self::Folder),
            (
                kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse(),
                Self::File,
            ),
            (kind.is_symlink(), Self::Symlink),
            (kind.is_hard_link(), Self::HardLink),
            (kind.is_fifo(), Self::Pipe),
            (kind.is_character_special() || kind.is_block_special(), Self::Device),
            (kind.is_pax_global_extensions(), Self::Comment),
        ];
        table.into_iter().find(|(is, _)| *is).map(|(_, kind)| kind)
    }
}

/// aufs keeps its own folders in layers that it wrote (`.wh..wh.plnk`, `.wh..wh.orph`): they mean nothing to overlayfs.
fn is_aufs_own(parent: &[u8]) -> bool {
    parent.split(|byte| *byte == b'/').any(|name| name.starts_with(b".wh."))
}

/// A name from an archive as it may stand in a sentence: printable and not endless.
pub(crate) fn shown(name: &[u8]) -> String {
    const LONGEST: usize = 200;
    let text = String::from_utf8_lossy(&name[..name.len().min(LONGEST)])
        .escape_debug()
        .to_string();
    if name.len() > LONGEST {
        format!("{text}…")
    } else {
        text
    }
}
