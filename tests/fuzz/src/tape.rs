//! An input taken apart from front to back. Where it ends, everything that follows is zero, so that each input means something; and
//! the same from the other side: seeds are written by the reader's own rules.

use arbitrary::Unstructured;

/// What is left of an input.
pub(crate) struct Tape<'a>(Unstructured<'a>);

impl<'a> Tape<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self(Unstructured::new(input))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// One of so many, at least 1.
    pub(crate) fn choice(&mut self, of: u8) -> u8 {
        self.byte() % of
    }

    pub(crate) fn u64(&mut self) -> u64 {
        let bytes = self.take(8);
        bytes
            .iter()
            .rev()
            .fold(0, |value, byte| (value << 8) | u64::from(*byte))
    }

    /// So many bytes, or what is left.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let count = count.min(self.0.len());
        self.0.bytes(count).unwrap_or_default()
    }

    /// Bytes behind their count.
    pub(crate) fn run(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()) | usize::from(self.byte()) << 8;
        self.take(count)
    }

    /// Everything that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}

/// Writes a run as [`Tape::run`] reads it.
pub(crate) fn write_run(into: &mut Vec<u8>, bytes: &[u8]) {
    let count = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    into.extend_from_slice(&count.to_le_bytes());
    into.extend_from_slice(&bytes[..usize::from(count)]);
}
