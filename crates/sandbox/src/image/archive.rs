//! An OCI archive: an image layout as one tar, as it streams in from the exchange. Blobs may stand in any order, so they are
//! laid down first, each verified by its own name; nothing is read from them before the whole archive's hash is right.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use tar::Entry;
use tempfile::TempDir;

use super::error::{ImageError, Part};
use super::manifest::LARGEST_DOCUMENT;
use super::stream::{Expected, Metered, RatioLimit, Verifying};
use super::tree::EntryPath;
use super::unpack::{LARGEST_HEADER, shown};

/// Far more than the layers of one image for every platform there is.
const MOST_ENTRIES: usize = 10_000;

/// An OCI archive on its way: a file, or an answer of the exchange.
#[derive(Debug)]
pub struct ArchiveStream<R> {
    /// The archive's bytes, from the first one.
    pub reader: R,
    /// How many there will be, if known: for the progress shown, nothing else depends on it.
    pub bytes: Option<Bytes>,
}

/// An archive whose hash was right, taken apart. The blobs are gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Spooled {
    folder: TempDir,
    /// `index.json`.
    pub(crate) index: Vec<u8>,
    blobs: BTreeMap<BlobId, u64>,
}

impl Spooled {
    /// Reads a manifest or config.
    pub(crate) fn document(&self, part: Part, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        let size = *self.blobs.get(&digest).ok_or_else(|| missing(part, digest))?;
        if size > LARGEST_DOCUMENT {
            return Err(ImageError::DocumentTooLarge {
                part,
                limit: Bytes(LARGEST_DOCUMENT),
            });
        }
        let path = self.path(digest);
        std::fs::read(&path).map_err(|error| ImageError::io("read", path, error))
    }

    /// Whether the archive itself brings this blob, of this size: that a cache has it from elsewhere gives no right to it.
    ///
    /// # Errors
    /// Where it does not.
    pub(crate) fn must_hold(&self, part: Part, digest: BlobId, size: u64) -> Result<(), ImageError> {
        match self.blobs.get(&digest) {
            None => Err(missing(part, digest)),
            Some(actual) if *actual != size => Err(ImageError::WrongSize {
                part,
                expected: size,
                actual: *actual,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Opens a layer's blob.
    pub(crate) fn open(&self, digest: BlobId) -> Result<File, ImageError> {
        if !self.blobs.contains_key(&digest) {
            return Err(missing(Part::Layer(digest), digest));
        }
        let path = self.path(digest);
        File::open(&path).map_err(|error| ImageError::io("open", path, error))
    }

    /// Forgets a blob that is no longer needed: its file, to be removed, and its size.
    pub(crate) fn give_up(&mut self, digest: BlobId) -> Option<(PathBuf, u64)> {
        let size = self.blobs.remove(&digest)?;
        Some((self.path(digest), size))
    }

    fn path(&self, digest: BlobId) -> PathBuf {
        self.folder.path().join(digest.hex())
    }
}

fn missing(part: Part, digest: BlobId) -> ImageError {
    ImageError::malformed(part, format!("the archive holds no blob {digest}"))
}

/// Reads a whole archive into `folder`. Blocking.
///
/// # Errors
/// Any [`ImageError`]; what was written is gone with `folder`.
pub(crate) fn spool(
    source: impl Read,
    digest: BlobId,
    folder: TempDir,
    take_room: &mut dyn FnMut(u64) -> Result<(), ImageError>,
) -> Result<Spooled, ImageError> {
    let mut verifying = Verifying::new(
        source,
        Expected {
            part: Part::Archive,
            digest,
            size: None,
        },
    );
    let mut spooling = Spooling {
        folder,
        index: None,
        blobs: BTreeMap::new(),
        take_room,
    };
    match spooling.read(&mut verifying) {
        Ok(()) => verifying.finish()?,
        // Before its hash is known to be right, a broken archive is most of all a wrong one.
        Err(
            broken @ (ImageError::Malformed { .. } | ImageError::WrongDigest { .. } | ImageError::WrongSize { .. }),
        ) => {
            verifying.finish()?;
            return Err(broken);
        }
        Err(other) => return Err(other),
    }
    let Spooling {
        folder, index, blobs, ..
    } = spooling;
    let index =
        index.ok_or_else(|| ImageError::malformed(Part::Archive, "it has no index.json: it is no OCI archive"))?;
    Ok(Spooled { folder, index, blobs })
}

struct Spooling<'a> {
    folder: TempDir,
    index: Option<Vec<u8>>,
    blobs: BTreeMap<BlobId, u64>,
    take_room: &'a mut dyn FnMut(u64) -> Result<(), ImageError>,
}

impl Spooling<'_> {
    fn read(&mut self, source: impl Read) -> Result<(), ImageError> {
        let broken = |error| ImageError::from_reader(Part::Archive, error);
        // The archive itself is not compressed, so there is no ratio to keep.
        let limit = RatioLimit {
            ratio: 1,
            grace: u64::MAX,
        };
        let metered = Metered::new(source, Part::Archive, std::rc::Rc::default(), limit);
        let meter = metered.meter();
        let mut archive = tar::Archive::new(metered);
        meter.headers_follow(LARGEST_HEADER);
        for (count, entry) in archive.entries().map_err(broken)?.enumerate() {
            if count >= MOST_ENTRIES {
                return Err(ImageError::TooManyEntries {
                    limit: MOST_ENTRIES as u64,
                });
            }
            let mut entry = entry.map_err(broken)?;
            meter.content_follows();
            self.entry(&mut entry)?;
            io::copy(&mut entry, &mut io::sink()).map_err(broken)?;
            meter.headers_follow(LARGEST_HEADER);
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), ImageError> {
        let name = entry.path_bytes().into_owned();
        let refused = |reason| ImageError::UnsafeEntry {
            part: Part::Archive,
            path: shown(&name),
            reason,
        };
        let mut buffer = Vec::new();
        let path = EntryPath::parse(&name, &mut buffer).map_err(refused)?;
        let kind = entry.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            return Ok(());
        }
        if !(kind.is_file() || kind.is_contiguous()) {
            return Err(refused(
                "is neither a file nor a folder, and an OCI archive has nothing else",
            ));
        }
        match path {
            EntryPath::Below {
                parent: b"",
                name: b"index.json",
            } => {
                let limit = LARGEST_DOCUMENT;
                if entry.size() > limit {
                    return Err(ImageError::DocumentTooLarge {
                        part: Part::Index,
                        limit: Bytes(limit),
                    });
                }
                let mut index = Vec::new();
                let read = entry.take(limit).read_to_end(&mut index);
                read.map_err(|error| ImageError::from_reader(Part::Archive, error))?;
                self.index = Some(index);
                Ok(())
            }
            EntryPath::Below {
                parent: b"blobs/sha256",
                name: hex,
            } => {
                let digest = std::str::from_utf8(hex)
                    .ok()
                    .and_then(|hex| format!("sha256:{hex}").parse().ok());
                let digest = digest.ok_or_else(|| refused("stands among the blobs and is not named by a digest"))?;
                self.blob(entry, digest)
            }
            // Docker's own listing, the layout's version, a comment: nothing here depends on them.
            EntryPath::Root | EntryPath::Below { .. } => Ok(()),
        }
    }

    fn blob<R: Read>(&mut self, entry: &mut Entry<'_, R>, digest: BlobId) -> Result<(), ImageError> {
        let part = Part::Blob(digest);
        let size = entry.size();
        if self.blobs.insert(digest, size).is_some() {
            return Err(ImageError::malformed(
                Part::Archive,
                format!("it holds blob {digest} twice"),
            ));
        }
        (self.take_room)(size)?;
        let path = self.folder.path().join(digest.hex());
        let failed = |error| ImageError::io("write", &path, error);
        let mut file = File::create_new(&path).map_err(failed)?;
        let mut verifying = Verifying::new(
            entry,
            Expected {
                part,
                digest,
                size: Some(size),
            },
        );
        copy(&mut verifying, &mut file).map_err(|failure| match failure {
            Failure::Read(error) => ImageError::from_reader(part, error),
            Failure::Write(error) => failed(error),
        })?;
        verifying.finish()
    }
}

enum Failure {
    Read(io::Error),
    Write(io::Error),
}

/// `io::copy` that says which side failed.
fn copy(from: &mut impl Read, to: &mut impl io::Write) -> Result<(), Failure> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count]).map_err(Failure::Write)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Read(error)),
        }
    }
}
