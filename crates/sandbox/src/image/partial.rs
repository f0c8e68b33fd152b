//! A blob on its way to the disk: written as it comes, read while it grows, and kept where the way breaks, so that the next try,
//! also of the next agent, asks for the rest only. Where the bytes come from is `origin`'s.
//!
//! Whoever goes on with a partial blob uses bytes that somebody else has sent: it belongs to the source that sent them, and is
//! found again for that source only.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::FallocateFlags;
use sela_protocol::blob::BlobId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::error::ImageError;
use super::room::Room;
use super::shelf::Shelf;
use super::source::Deliverer;

/// Chunks in flight between the network and the disk; with chunks of up to 64 KiB at most half a megabyte.
pub(crate) const CHUNKS_IN_FLIGHT: usize = 8;

/// One step of a transfer.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// The next bytes.
    Bytes(Bytes),
    /// All bytes were sent: without this an ended channel is a broken transfer, not a short blob.
    End,
    /// The transfer failed.
    Failed(ImageError),
}

/// How far the file has grown.
#[derive(Debug, Default)]
struct Growth {
    length: u64,
    /// How much of `length` lies on the disk and counts in the room: a blob that was used up leaves a hole.
    held: u64,
    /// Bytes that an earlier try had left.
    began_at: u64,
    writing: bool,
    end: Option<End>,
}

/// Outlives the blob for who writes to it: by the time that its end is known, a writer must hold nothing of the blob any more,
/// as the next thing that happens may be that the file is looked for or the cache is opened anew.
#[derive(Debug, Default)]
struct Growing {
    growth: Mutex<Growth>,
    changed: Condvar,
}

impl Growing {
    fn lock(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, growth: MutexGuard<'a, Growth>) -> MutexGuard<'a, Growth> {
        self.changed.wait(growth).unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum End {
    Whole,
    /// The first reader is told why.
    Broken(Option<ImageError>),
}

/// See above. Dropping the last reference keeps the file for a later try, unless it was [discarded](Partial::discard).
pub(crate) struct Partial {
    shelf: Arc<Shelf>,
    room: Arc<Room>,
    name: String,
    path: PathBuf,
    file: File,
    growing: Arc<Growing>,
    discarded: AtomicBool,
}

impl Partial {
    /// The name by which a blob of this source is found again.
    pub(crate) fn name_of(deliverer: &Deliverer, blob: BlobId) -> String {
        BlobId::of(format!("{deliverer} {blob}").as_bytes()).hex()
    }

    /// Goes on with what an earlier try left, or begins. Blocking.
    ///
    /// # Errors
    /// [`ImageError::TransferStopped`] where another preparation still writes to it, [`ImageError::Io`].
    pub(crate) fn open(
        shelf: &Arc<Shelf>,
        room: &Arc<Room>,
        deliverer: &Deliverer,
        blob: BlobId,
    ) -> Result<Arc<Self>, ImageError> {
        let name = Self::name_of(deliverer, blob);
        let kept = shelf.take_partial(&name)?;
        room.take_over(kept);
        let path = shelf.partial_path(&name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                room.hand_over(kept);
                shelf.keep_partial(&name, kept);
                return Err(ImageError::io("open", path, error));
            }
        };
        let growth = Growth {
            length: kept,
            held: kept,
            began_at: kept,
            ..Growth::default()
        };
        Ok(Arc::new(Self {
            shelf: Arc::clone(shelf),
            room: Arc::clone(room),
            name,
            path,
            file,
            growing: Arc::new(Growing {
                growth: Mutex::new(growth),
                changed: Condvar::new(),
            }),
            discarded: AtomicBool::new(false),
        }))
    }

    /// How many bytes are here.
    pub(crate) fn length(&self) -> u64 {
        self.growth().length
    }

    /// Whether bytes of an earlier try are part of it: those may have been spoilt by a power cut.
    pub(crate) fn was_resumed(&self) -> bool {
        self.growth().began_at > 0
    }

    /// Writes what comes through `chunks` on a blocking thread, until it ends or nobody wants it any more.
    pub(crate) fn write(self: &Arc<Self>, mut chunks: mpsc::Receiver<Chunk>) -> JoinHandle<()> {
        self.growth().writing = true;
        let partial = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let end = loop {
                match chunks.blocking_recv() {
                    Some(Chunk::Bytes(bytes)) => match partial.append(&bytes) {
                        Ok(()) => {}
                        Err(error) => break End::Broken(Some(error)),
                    },
                    Some(Chunk::End) => break End::Whole,
                    Some(Chunk::Failed(error)) => break End::Broken(Some(error)),
                    None => break End::Broken(Some(ImageError::TransferStopped)),
                }
            };
            let growing = Arc::clone(&partial.growing);
            drop(partial);
            let mut growth = growing.lock();
            growth.end.get_or_insert(end);
            growth.writing = false;
            drop(growth);
            growing.changed.notify_all();
        })
    }

    fn append(&self, bytes: &[u8]) -> Result<(), ImageError> {
        let growth = self.growth();
        let at = growth.length;
        if growth.end.is_some() {
            return Err(ImageError::TransferStopped);
        }
        drop(growth);
        let count = bytes.len() as u64;
        self.room.take(count)?;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            self.room.give_back(count);
            return Err(ImageError::io("write", &self.path, error));
        }
        let mut growth = self.growth();
        growth.length += count;
        growth.held += count;
        drop(growth);
        self.growing.changed.notify_all();
        Ok(())
    }

    /// Nothing more is wanted; whoever writes stops at its next step, whoever reads fails.
    pub(crate) fn stop(&self) {
        let mut growth = self.growth();
        growth.end.get_or_insert(End::Broken(Some(ImageError::TransferStopped)));
        drop(growth);
        self.growing.changed.notify_all();
    }

    /// Stops it when dropped: a transfer that is given up before it has begun must not be waited for.
    pub(crate) fn stops_unless_begun(self: &Arc<Self>) -> StopsUnlessBegun {
        StopsUnlessBegun(Some(Arc::clone(self)))
    }

    /// Waits until nobody writes to it any more. Blocking.
    pub(crate) fn wait_for_writer(&self) {
        let mut growth = self.growth();
        while growth.writing {
            growth = self.growing.wait(growth);
        }
    }

    /// Forgets all bytes, to begin anew. Blocking.
    pub(crate) fn begin_anew(&self) -> Result<(), ImageError> {
        self.stop();
        self.wait_for_writer();
        self.file
            .set_len(0)
            .map_err(|error| ImageError::io("empty", &self.path, error))?;
        let mut growth = self.growth();
        self.room.give_back(growth.held);
        *growth = Growth::default();
        Ok(())
    }

    /// The file goes when nobody holds it any more.
    pub(crate) fn discard(&self) {
        self.discarded.store(true, Ordering::Relaxed);
    }

    /// Gives the disk back what is no longer needed of the middle. A file system that cannot do that keeps it a while longer.
    pub(crate) fn use_up(&self, at: u64, length: u64) {
        self.discard();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if length > 0 && rustix::fs::fallocate(&self.file, flags, at, length).is_ok() {
            self.growth().held -= length;
            self.room.give_back(length);
        }
    }

    /// Reads it from its first byte, waiting for those that have not come yet. Blocking.
    pub(crate) fn follow(self: &Arc<Self>) -> Follow {
        Follow {
            partial: Arc::clone(self),
            at: 0,
        }
    }

    /// Reads a part of what is here.
    pub(crate) fn slice(self: &Arc<Self>, at: u64, length: u64) -> Slice {
        Slice {
            partial: Arc::clone(self),
            at,
            left: length,
        }
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growing.lock()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let growth = self.growth();
        let (length, held) = (growth.length, growth.held);
        drop(growth);
        if *self.discarded.get_mut() || length == 0 {
            if let Err(error) = std::fs::remove_file(&self.path) {
                tracing::warn!(%error, path = %self.path.display(), "a transferred blob could not be removed");
            }
            self.room.give_back(held);
            self.shelf.forget_partial(&self.name);
        } else {
            self.room.hand_over(held);
            self.shelf.keep_partial(&self.name, held);
        }
    }
}

/// See [`Partial::stops_unless_begun`].
pub(crate) struct StopsUnlessBegun(Option<Arc<Partial>>);

impl StopsUnlessBegun {
    /// It has: whoever writes ends by itself.
    pub(crate) fn begun(mut self) {
        self.0 = None;
    }
}

impl Drop for StopsUnlessBegun {
    fn drop(&mut self) {
        if let Some(partial) = &self.0 {
            partial.stop();
        }
    }
}

/// Reads a partial blob as it grows.
pub(crate) struct Follow {
    partial: Arc<Partial>,
    at: u64,
}

impl Read for Follow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut growth = self.partial.growth();
        let here = loop {
            if growth.length > self.at {
                break growth.length - self.at;
            }
            match &mut growth.end {
                Some(End::Whole) => return Ok(0),
                Some(End::Broken(error)) => {
                    let error = error.take().unwrap_or(ImageError::TransferStopped);
                    return Err(error.into_reader_error());
                }
                None => {}
            }
            growth = self.partial.growing.wait(growth);
        };
        drop(growth);
        let count = into.len().min(usize::try_from(here).unwrap_or(usize::MAX));
        let count = self.partial.file.read_at(&mut into[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads a part of a blob.
pub(crate) struct Slice {
    partial: Arc<Partial>,
    at: u64,
    left: u64,
}

impl Read for Slice {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.partial.file.read_at(&mut into[..count], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}
