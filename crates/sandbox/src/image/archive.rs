//! An OCI archive: an image layout as one tar, as it comes from the exchange. Blobs may stand in any order, so the archive is laid
//! down first, each blob verified by its own name; nothing is read from them before the whole archive's hash is right.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use tar::Entry;

use super::error::{ImageError, Part};
use super::manifest::LARGEST_DOCUMENT;
use super::partial::{Partial, Slice};
use super::stream::{Expected, Metered, RatioLimit, Verifying};
use super::tree::EntryPath;
use super::unpack::{LARGEST_HEADER, shown};

/// Far more than the layers of one image for every platform there is.
const MOST_ENTRIES: usize = 10_000;

/// An OCI archive on its way: a file, or an answer of the exchange.
#[derive(Debug)]
pub struct ArchiveStream<R> {
    /// The archive's bytes, from `from` on.
    pub reader: R,
    /// Where in the archive they begin: where it was asked for, or before that.
    pub from: u64,
    /// How large the whole archive is, if known: for what is shown, and to refuse early what does not fit.
    pub bytes: Option<Bytes>,
}

/// Where in an archive a blob lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u64,
    size: u64,
}

/// An archive whose hash was right, and what it holds. Its file goes with it.
pub(crate) struct Spooled {
    partial: Arc<Partial>,
    /// `index.json`.
    pub(crate) index: Vec<u8>,
    blobs: BTreeMap<BlobId, Place>,
}

impl Spooled {
    /// Reads a manifest or config.
    pub(crate) fn document(&self, part: Part, digest: BlobId) -> Result<Vec<u8>, ImageError> {
        let Place { at, size } = *self.blobs.get(&digest).ok_or_else(|| missing(part, digest))?;
        if size > LARGEST_DOCUMENT {
            return Err(ImageError::DocumentTooLarge {
                part,
                limit: Bytes(LARGEST_DOCUMENT),
            });
        }
        let mut bytes = Vec::new();
        let read = self.partial.slice(at, size).read_to_end(&mut bytes);
        read.map_err(|error| ImageError::from_reader(part, error))?;
        Ok(bytes)
    }

    /// Whether the archive itself brings this blob, of this size: that a cache has it from elsewhere gives no right to it.
    ///
    /// # Errors
    /// Where it does not.
    pub(crate) fn must_hold(&self, part: Part, digest: BlobId, size: u64) -> Result<(), ImageError> {
        match self.blobs.get(&digest) {
            None => Err(missing(part, digest)),
            Some(actual) if actual.size != size => Err(ImageError::WrongSize {
                part,
                expected: size,
                actual: actual.size,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Opens a layer's blob.
    pub(crate) fn open(&self, digest: BlobId) -> Result<Slice, ImageError> {
        let place = self.blobs.get(&digest);
        let Place { at, size } = *place.ok_or_else(|| missing(Part::Layer(digest), digest))?;
        Ok(self.partial.slice(at, size))
    }

    /// Gives the disk back a blob that is no longer needed, on the thread that calls the answer: that may take a while.
    pub(crate) fn use_up(&self, digest: BlobId) -> impl FnOnce() + Send + 'static {
        let (partial, place) = (Arc::clone(&self.partial), self.blobs.get(&digest).copied());
        move || {
            if let Some(Place { at, size }) = place {
                partial.use_up(at, size);
            }
        }
    }

    /// The archive goes when it is no longer read.
    pub(crate) fn discard(&self) {
        self.partial.discard();
    }
}

fn missing(part: Part, digest: BlobId) -> ImageError {
    ImageError::malformed(part, format!("the archive holds no blob {digest}"))
}

/// Reads a whole archive as it comes. Blocking.
///
/// # Errors
/// Any [`ImageError`].
pub(crate) fn spool(partial: Arc<Partial>, digest: BlobId) -> Result<Spooled, ImageError> {
    let mut verifying = Verifying::new(
        partial.follow(),
        Expected {
            part: Part::Archive,
            digest,
            size: None,
        },
    );
    let mut spooling = Spooling::default();
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
    let Spooling { index, blobs } = spooling;
    let index =
        index.ok_or_else(|| ImageError::malformed(Part::Archive, "it has no index.json: it is no OCI archive"))?;
    Ok(Spooled { partial, index, blobs })
}

#[derive(Default)]
struct Spooling {
    index: Option<Vec<u8>>,
    blobs: BTreeMap<BlobId, Place>,
}

impl Spooling {
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
        let place = Place {
            at: entry.raw_file_position(),
            size: entry.size(),
        };
        if self.blobs.insert(digest, place).is_some() {
            return Err(ImageError::malformed(
                Part::Archive,
                format!("it holds blob {digest} twice"),
            ));
        }
        let expected = Expected {
            part,
            digest,
            size: Some(place.size),
        };
        Verifying::new(entry, expected).finish()
    }
}
