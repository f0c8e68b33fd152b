//! The way of an image's bytes from where they lie to where they are unpacked: hashed and counted, decompressed, and metered.
//! Nothing here holds more than a few chunks, and nothing here writes to disk.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;
use sela_protocol::blob::BlobId;
use sha2::{Digest, Sha256};

use super::error::{ImageError, Part};
use super::manifest::Compression;

/// zstd frames may ask for windows up to gigabytes. 32 MiB is what the strongest level of the usual builders uses.
const LARGEST_ZSTD_WINDOW_LOG: u32 = 25;

/// What a blob must turn out to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) part: Part,
    pub(crate) digest: BlobId,
    /// `None` where only the digest is known.
    pub(crate) size: Option<u64>,
}

/// Hashes and counts what is read through it, and stops at the first byte too many.
pub(crate) struct Verifying<R> {
    inner: R,
    expected: Expected,
    hash: Sha256,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Verifying<R> {
    pub(crate) fn new(inner: R, expected: Expected) -> Self {
        Self {
            inner,
            expected,
            hash: Sha256::new(),
            count: Rc::default(),
        }
    }

    /// How many bytes have come so far, for who meters the other end of a decoder.
    pub(crate) fn counter(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.count)
    }

    /// Reads what is left and compares.
    ///
    /// # Errors
    /// [`ImageError::WrongDigest`], [`ImageError::WrongSize`], or what the source said.
    pub(crate) fn finish(mut self) -> Result<(), ImageError> {
        let Expected {
            part,
            digest: expected,
            size,
        } = self.expected;
        io::copy(&mut self, &mut io::sink()).map_err(|error| ImageError::from_reader(part, error))?;
        let count = self.count.get();
        let actual = BlobId::from_hash(self.hash.finalize().into());
        match size {
            Some(size) if count < size => Err(ImageError::WrongSize {
                part,
                expected: size,
                actual: count,
            }),
            Some(_) | None if actual != expected => Err(ImageError::WrongDigest { part, expected, actual }),
            Some(_) | None => Ok(()),
        }
    }
}

impl<R: Read> Read for Verifying<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.hash.update(&into[..count]);
        let total = self.count.get().saturating_add(count as u64);
        self.count.set(total);
        match self.expected.size {
            Some(size) if total > size => {
                let error = ImageError::WrongSize {
                    part: self.expected.part,
                    expected: size,
                    actual: total,
                };
                Err(error.into_reader_error())
            }
            Some(_) | None => Ok(count),
        }
    }
}

/// Undoes a layer's compression.
pub(crate) fn decompress<'a>(compression: Compression, inner: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match compression {
        Compression::Plain => Box::new(inner),
        Compression::Gzip => Box::new(MultiGzDecoder::new(inner)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::new(inner)?;
            decoder.window_log_max(LARGEST_ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
    })
}

/// How much unpacked may come out of how much packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RatioLimit {
    /// Times.
    pub(crate) ratio: u64,
    /// Bytes unpacked below which no ratio is asked.
    pub(crate) grace: u64,
}

/// Shared by a [`Metered`] and who reads a tar through it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    left_for_headers: Cell<Option<u64>>,
}

impl Meter {
    /// Until [`Meter::content_follows`], at most `bytes` may be read: the tar reader holds long names and attributes in
    /// memory, whatever size their header claims.
    pub(crate) fn headers_follow(&self, bytes: u64) {
        self.left_for_headers.set(Some(bytes));
    }

    /// What is read from here on is streamed and may have any size.
    pub(crate) fn content_follows(&self) {
        self.left_for_headers.set(None);
    }
}

/// Hashes unpacked bytes and stops a bomb while it goes off.
pub(crate) struct Metered<R> {
    inner: R,
    part: Part,
    packed: Rc<Cell<u64>>,
    unpacked: u64,
    limit: RatioLimit,
    meter: Rc<Meter>,
    hash: Sha256,
}

impl<R: Read> Metered<R> {
    pub(crate) fn new(inner: R, part: Part, packed: Rc<Cell<u64>>, limit: RatioLimit) -> Self {
        Self {
            inner,
            part,
            packed,
            unpacked: 0,
            limit,
            meter: Rc::default(),
            hash: Sha256::new(),
        }
    }

    pub(crate) fn meter(&self) -> Rc<Meter> {
        Rc::clone(&self.meter)
    }

    /// The hash of all that was read.
    pub(crate) fn digest(self) -> BlobId {
        BlobId::from_hash(self.hash.finalize().into())
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.hash.update(&into[..count]);
        self.unpacked = self.unpacked.saturating_add(count as u64);
        let RatioLimit { ratio, grace } = self.limit;
        if self.unpacked > grace && self.unpacked / ratio > self.packed.get() {
            return Err(ImageError::Bomb { part: self.part, ratio }.into_reader_error());
        }
        if let Some(left) = self.meter.left_for_headers.get() {
            let Some(left) = left.checked_sub(count as u64) else {
                let reason = "an entry's name and attributes, or the padding at its end, are too long";
                return Err(ImageError::malformed(self.part, reason).into_reader_error());
            };
            self.meter.left_for_headers.set(Some(left));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_blob(size: Option<u64>, digest_of: &[u8], sentence: Option<&str>) {
        let expected = Expected {
            part: Part::Config,
            digest: BlobId::of(digest_of),
            size,
        };
        let result = Verifying::new(&b"blob"[..], expected).finish();
        match (result, sentence) {
            (Ok(()), None) => {}
            (Err(error), Some(sentence)) => assert!(error.to_string().contains(sentence), "{error}"),
            (result, sentence) => panic!("{result:?}, not {sentence:?}"),
        }
    }

    #[test]
    fn a_blob_is_what_its_descriptor_says_or_refused() {
        check_blob(Some(4), b"blob", None);
        check_blob(None, b"blob", None);
        check_blob(Some(4), b"other", Some("not what its digest says"));
        check_blob(None, b"other", Some("not what its digest says"));
        check_blob(Some(5), b"blob", Some("has 4 bytes where its manifest says 5"));
        check_blob(Some(3), b"blob", Some("where its manifest says 3"));
    }

    #[test]
    fn a_zstd_frame_cannot_ask_for_more_memory_than_it_may_have() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder");
        encoder.window_log(LARGEST_ZSTD_WINDOW_LOG + 1).expect("a large window");
        io::copy(&mut io::repeat(7).take(1 << 27), &mut encoder).expect("memory");
        let frame = encoder.finish().expect("a frame");
        let mut decoder = decompress(Compression::Zstd, frame.as_slice()).expect("a decoder");
        let error = io::copy(&mut decoder, &mut io::sink()).expect_err("the window is too large");
        assert!(error.to_string().contains("memory"), "{error}");
    }
}
