//! The form in which a job's results travel and lie: encrypted, in pieces whose order and end are authenticated, so that what is
//! cut short, reordered, changed, or put together from two archives does not open. Reading and writing only; keys and randomness
//! are passed in.
//!
//! Form: 8 bytes `SELA` 0 0 0 1, 19 random bytes, then pieces of 64 KiB (the last one shorter, and marked as the last in its nonce),
//! each with its 16 byte tag: XChaCha20-Poly1305 in the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár 2015; 32 bit
//! counter, big endian). Associated data of every piece: the first 8 bytes and the purpose. A key never meets the same nonce twice as
//! long as the 152 random bits differ.

use crate::confidential::SealingKey;
use crate::id::JobId;
use aead_stream::{DecryptorBE32, EncryptorBE32};
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::Payload;
use std::io::{self, Read, Write};
use zeroize::{Zeroize as _, Zeroizing};

/// The first bytes; the last of them is the version.
const MAGIC: [u8; 8] = *b"SELA\0\0\0\x01";
/// Random bytes that make the nonce, before counter and end mark.
const DRAWN: usize = 19;
/// Bytes of content in a piece.
const PIECE: usize = 64 << 10;
/// Bytes that authentication adds to a piece.
const TAG: usize = 16;

/// The randomness of one archive: fresh from the system's source for each.
pub type Drawn = [u8; DRAWN];

/// What is sealed. One thing does not open as another, though the key be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The tar of `/out`.
    Output,
    /// The tar of `/checkpoint`.
    Checkpoint,
    /// What an exchange keeps of a job, sealed with its own key.
    Kept(JobId),
}

impl Purpose {
    fn associated(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Self::Output => bytes.extend_from_slice(b"out"),
            Self::Checkpoint => bytes.extend_from_slice(b"checkpoint"),
            Self::Kept(job) => bytes.extend_from_slice(format!("kept {job}").as_bytes()),
        }
        bytes
    }
}

/// Why something sealed does not open: [`io::ErrorKind::InvalidData`] with this inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It does not begin as it should.
    #[error("this is nothing that Sela sealed, or a newer version did")]
    NotSealed,
    /// A piece is not authentic.
    #[error("it was sealed with another key or for another purpose, or was changed, cut short or reordered")]
    NotAuthentic,
    /// More than 2³² pieces.
    #[error("it is too long to be sealed: 256 TiB is the most")]
    TooLong,
}

impl From<SealError> for io::Error {
    fn from(error: SealError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Seals what is written to it. Nothing of the last piece is written before [`Sealing::finish`], and without it the rest does not open.
pub struct Sealing<W> {
    inner: W,
    pieces: Pieces<EncryptorBE32<XChaCha20Poly1305>>,
    piece: Zeroizing<Vec<u8>>,
}

/// The cipher, for what is written and read in pieces. Its functions know neither writer nor reader, so that they are made once, in this
/// crate, which debug builds optimise: unoptimised the cipher is a hundred times slower than a disk.
struct Pieces<S> {
    stream: S,
    associated: Vec<u8>,
}

impl Pieces<EncryptorBE32<XChaCha20Poly1305>> {
    #[inline(never)]
    fn next(&mut self, piece: &[u8]) -> Result<Vec<u8>, SealError> {
        let aad = &self.associated;
        let sealed = self.stream.encrypt_next(Payload { msg: piece, aad });
        sealed.map_err(|_| SealError::TooLong)
    }

    #[inline(never)]
    fn last(self, piece: &[u8]) -> Result<Vec<u8>, SealError> {
        let aad = &self.associated;
        let sealed = self.stream.encrypt_last(Payload { msg: piece, aad });
        sealed.map_err(|_| SealError::TooLong)
    }
}

impl Pieces<DecryptorBE32<XChaCha20Poly1305>> {
    #[inline(never)]
    fn next(&mut self, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let aad = &self.associated;
        let opened = self.stream.decrypt_next(Payload { msg: sealed, aad });
        opened.map_err(|_| SealError::NotAuthentic)
    }

    #[inline(never)]
    fn last(self, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let aad = &self.associated;
        let opened = self.stream.decrypt_last(Payload { msg: sealed, aad });
        opened.map_err(|_| SealError::NotAuthentic)
    }
}

impl<W> std::fmt::Debug for Sealing<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Sealing").finish_non_exhaustive()
    }
}

impl<W: Write> Sealing<W> {
    /// Begins. `drawn` must be fresh: see [`Drawn`].
    ///
    /// # Errors
    /// Where `inner` does not take the first bytes.
    pub fn begin(mut inner: W, key: &SealingKey, purpose: Purpose, drawn: &Drawn) -> io::Result<Self> {
        inner.write_all(&MAGIC)?;
        inner.write_all(drawn)?;
        Ok(Self {
            inner,
            pieces: Pieces {
                stream: EncryptorBE32::new(&(*key.bytes()).into(), &(*drawn).into()),
                associated: purpose.associated(),
            },
            piece: Zeroizing::new(Vec::with_capacity(PIECE)),
        })
    }

    /// Writes the last piece and gives back what was written to; it is not flushed.
    ///
    /// # Errors
    /// Where `inner` does not take it.
    pub fn finish(mut self) -> io::Result<W> {
        let sealed = self.pieces.last(&self.piece)?;
        self.inner.write_all(&sealed)?;
        Ok(self.inner)
    }
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full piece is written only when more comes: until then it may be the last.
        if self.piece.len() == PIECE && !bytes.is_empty() {
            let sealed = self.pieces.next(&self.piece)?;
            self.inner.write_all(&sealed)?;
            self.piece.clear();
        }
        let count = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Whole pieces only: the rest waits in memory.
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Opens what was sealed, piece by piece: every byte that it gives is authentic, and it ends only where the sealing ended. Whoever
/// stops reading before the end has not seen that: see [`Opening::drain`].
pub struct Opening<R> {
    inner: R,
    /// `None` after the last piece, or a wrong one.
    pieces: Option<Pieces<DecryptorBE32<XChaCha20Poly1305>>>,
    /// What was read of the next piece, and of the byte after it.
    ahead: Vec<u8>,
    piece: Zeroizing<Vec<u8>>,
    given: usize,
    failed: bool,
}

impl<R> std::fmt::Debug for Opening<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Opening").finish_non_exhaustive()
    }
}

impl<R: Read> Opening<R> {
    /// Begins.
    ///
    /// # Errors
    /// [`SealError::NotSealed`], or where `inner` does not read.
    pub fn begin(mut inner: R, key: &SealingKey, purpose: Purpose) -> io::Result<Self> {
        let mut head = [0; MAGIC.len() + DRAWN];
        inner.read_exact(&mut head).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                SealError::NotSealed.into()
            } else {
                error
            }
        })?;
        let (magic, drawn) = head.split_at(MAGIC.len());
        let drawn: Drawn = drawn.try_into().map_err(|_| SealError::NotSealed)?;
        if magic != MAGIC {
            return Err(SealError::NotSealed.into());
        }
        Ok(Self {
            inner,
            pieces: Some(Pieces {
                stream: DecryptorBE32::new(&(*key.bytes()).into(), &drawn.into()),
                associated: purpose.associated(),
            }),
            ahead: Vec::new(),
            piece: Zeroizing::new(Vec::new()),
            given: 0,
            failed: false,
        })
    }

    /// Reads on to the end, and so proves that nothing is missing: a reader of tar stops at the archive's own end.
    ///
    /// # Errors
    /// As reading.
    pub fn drain(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }

    fn next_piece(&mut self) -> io::Result<()> {
        let Some(mut pieces) = self.pieces.take() else {
            return Ok(());
        };
        // One byte more than a piece tells whether another follows.
        let wanted = PIECE + TAG + 1 - self.ahead.len();
        (&mut self.inner).take(wanted as u64).read_to_end(&mut self.ahead)?;
        let more = self.ahead.len() > PIECE + TAG;
        let length = self.ahead.len().min(PIECE + TAG);
        let sealed = &self.ahead[..length];
        let opened = if more {
            let opened = pieces.next(sealed);
            self.pieces = Some(pieces);
            opened
        } else {
            pieces.last(sealed)
        };
        self.piece.zeroize();
        *self.piece = opened.inspect_err(|_| self.failed = true)?;
        self.given = 0;
        self.ahead.drain(..length);
        Ok(())
    }
}

impl<R: Read> Read for Opening<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(SealError::NotAuthentic.into());
        }
        while self.given == self.piece.len() && self.pieces.is_some() && !buffer.is_empty() {
            self.next_piece()?;
        }
        let rest = &self.piece[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

/// Seals a few bytes at once.
///
/// # Errors
/// Never for what fits into memory.
pub fn seal(key: &SealingKey, purpose: Purpose, drawn: &Drawn, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut sealing = Sealing::begin(Vec::new(), key, purpose, drawn)?;
    sealing.write_all(bytes)?;
    sealing.finish()
}

/// Opens what [`seal`] gave.
///
/// # Errors
/// As [`Opening`].
pub fn open(key: &SealingKey, purpose: Purpose, sealed: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut opened = Zeroizing::new(Vec::with_capacity(sealed.len()));
    Opening::begin(sealed, key, purpose)?.read_to_end(&mut opened)?;
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: usize = MAGIC.len() + DRAWN;

    fn key(byte: u8) -> SealingKey {
        SealingKey::from_bytes([byte; 32])
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|place| u8::try_from(place % 251).unwrap()).collect()
    }

    fn is_refused(sealed: &[u8], key: &SealingKey, purpose: Purpose) -> bool {
        open(key, purpose, sealed).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
    }

    #[test]
    fn what_was_sealed_opens_whatever_its_length_and_none_of_it_shows() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7] {
            let content = content(length);
            let sealed = seal(&key(1), Purpose::Output, &[5; DRAWN], &content).unwrap();
            assert_eq!(sealed.len(), HEAD + length + TAG * length.div_ceil(PIECE).max(1));
            assert_eq!(*open(&key(1), Purpose::Output, &sealed).unwrap(), content);
            let window = 16.min(length);
            assert!(window < 16 || !sealed.windows(window).any(|part| part == &content[..window]));
        }
    }

    #[test]
    fn another_key_or_purpose_opens_nothing() {
        let sealed = seal(&key(1), Purpose::Output, &[5; DRAWN], b"answer").unwrap();
        assert!(is_refused(&sealed, &key(2), Purpose::Output));
        assert!(is_refused(&sealed, &key(1), Purpose::Checkpoint));
        assert!(is_refused(b"not sealed", &key(1), Purpose::Output));
        assert!(is_refused(b"", &key(1), Purpose::Output));
        assert!(is_refused(&content(2 * PIECE), &key(1), Purpose::Output));
    }

    #[test]
    fn a_change_of_any_byte_is_found() {
        let sealed = seal(&key(1), Purpose::Checkpoint, &[5; DRAWN], b"step 7").unwrap();
        for place in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[place] ^= 1;
            assert!(is_refused(&changed, &key(1), Purpose::Checkpoint), "byte {place}");
        }
    }

    #[test]
    fn cutting_adding_reordering_and_swapping_pieces_is_found() {
        let piece = PIECE + TAG;
        let (first, second) = (content(3 * PIECE), content(3 * PIECE));
        let sealed = seal(&key(1), Purpose::Output, &[5; DRAWN], &first).unwrap();
        let other = seal(&key(1), Purpose::Output, &[6; DRAWN], &second).unwrap();
        let refused = |sealed: &[u8]| is_refused(sealed, &key(1), Purpose::Output);
        // At every border between pieces, in the middle of one, and by one byte.
        for length in [
            HEAD,
            HEAD + piece,
            HEAD + 2 * piece,
            HEAD + piece + 100,
            sealed.len() - 1,
        ] {
            assert!(refused(&sealed[..length]), "cut at {length}");
        }
        assert!(refused(&[sealed.as_slice(), b"x"].concat()));
        assert!(refused(&[sealed.as_slice(), &sealed[HEAD..]].concat()));
        let (head, a, b, c) = (
            &sealed[..HEAD],
            &sealed[HEAD..HEAD + piece],
            &sealed[HEAD + piece..HEAD + 2 * piece],
            &sealed[HEAD + 2 * piece..],
        );
        assert!(!refused(&[head, a, b, c].concat()));
        assert!(refused(&[head, b, a, c].concat()));
        assert!(refused(&[head, a, a, c].concat()));
        assert!(refused(&[head, a, c].concat()));
        // Of another archive under the same key: a piece, the end, the head.
        assert!(refused(&[head, a, &other[HEAD + piece..HEAD + 2 * piece], c].concat()));
        assert!(refused(&[head, a, b, &other[HEAD + 2 * piece..]].concat()));
        assert!(refused(&[&other[..HEAD], a, b, c].concat()));
    }

    #[test]
    fn a_reader_gets_no_byte_that_is_not_authentic_and_no_end_before_the_end() {
        let content = content(2 * PIECE + 5);
        let sealed = seal(&key(1), Purpose::Output, &[5; DRAWN], &content).unwrap();
        let mut opening = Opening::begin(&sealed[..sealed.len() - 1], &key(1), Purpose::Output).unwrap();
        let mut read = Vec::new();
        opening.read_to_end(&mut read).unwrap_err();
        assert_eq!(read, &content[..2 * PIECE]);
        // It stays so, however often it is asked.
        opening.read(&mut [0; 8]).unwrap_err();
        opening.drain().unwrap_err();
    }

    #[test]
    fn what_is_not_finished_does_not_open() {
        let mut sealed = Vec::new();
        let mut sealing = Sealing::begin(&mut sealed, &key(1), Purpose::Output, &[5; DRAWN]).unwrap();
        sealing.write_all(&content(2 * PIECE)).unwrap();
        sealing.flush().unwrap();
        drop(sealing);
        assert!(is_refused(&sealed, &key(1), Purpose::Output));
    }
}
