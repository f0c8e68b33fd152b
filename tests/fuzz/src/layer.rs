//! Target `layer`: a whole layer, compressed as registries serve it, into an empty folder on a tmpfs. The input is a list of tar entries
//! with names that meet, links that lead out, sizes that lie; or the bytes of the tar, or of the blob, themselves.
//!
//! For each: nothing outside of the folder is touched, what stands in it belongs to the job's ids and is of the four kinds that overlayfs
//! and a job need, it takes no more than was asked for, and a layer written from it unpacks to the same.

mod archive;
mod tree;

pub use archive::seeds;

use crate::memory;
use archive::Case;
use sela_protocol::blob::BlobId;
use sela_protocol::units::Bytes;
use sela_sandbox::ids::IdRange;
use sela_sandbox::image::manifest::{Compression, Layer};
use sela_sandbox::image::unpack::{Below, ExpectedLayer, UnpackLimits, Unpacked, unpack_layer};
use sela_sandbox::image::{ImageError, Part};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tree::Tree;

/// Ids of nobody on this machine.
const OWNERS: IdRange = IdRange {
    first: 0x7000_0000,
    count: 65_536,
};

/// What one layer may take in all cases: small, so that inputs of a few kilobytes reach it.
const ROOM: u64 = 256 << 10;
const LIMITS: UnpackLimits = UnpackLimits {
    entries: 48,
    ratio: 100,
    ratio_grace: Bytes(128 << 10),
};

/// Buffers for copying, for one entry's names, and zlib's and tar's own.
const MEMORY: usize = 6 << 20;

/// Where this process plays: `root` is unpacked into, `outside` must never change.
static YARD: LazyLock<Yard> = LazyLock::new(Yard::lay_out);

struct Yard {
    folder: PathBuf,
    untouched: Vec<(PathBuf, Mark)>,
}

/// What changes when anything is done to a file: the kernel sets the last of them itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    changed: (i64, i64),
}

impl Yard {
    fn lay_out() -> Self {
        let folder = PathBuf::from(format!("/dev/shm/sela-fuzz-{}", std::process::id()));
        let outside = folder.join("outside");
        fs::create_dir_all(&outside).expect("a folder on a tmpfs");
        fs::write(outside.join("secret"), b"the owner's").expect("room");
        let untouched = [outside.join("secret"), outside]
            .map(|path| (path.clone(), mark(&path)))
            .into();
        Self { folder, untouched }
    }

    /// An empty folder.
    fn root(&self, name: &str) -> PathBuf {
        let root = self.folder.join(name);
        if root.exists() {
            fs::remove_dir_all(&root).expect("what was unpacked can be removed");
        }
        fs::create_dir(&root).expect("made");
        root
    }

    fn check_untouched(&self) {
        for (path, before) in &self.untouched {
            assert_eq!(mark(path), *before, "{} was touched", path.display());
        }
        let names = fs::read_dir(&self.folder).expect("there").count();
        assert!(names <= 3, "something was made beside the folder");
    }
}

fn mark(path: &Path) -> Mark {
    let found = fs::symlink_metadata(path).expect("it is still there");
    Mark {
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        links: found.nlink(),
        size: found.size(),
        changed: (found.ctime(), found.ctime_nsec()),
    }
}

/// Unpacks the layer that an input describes.
///
/// # Panics
/// If something does not hold.
pub fn hold(input: &[u8]) {
    let yard = &*YARD;
    let Case {
        blob,
        compression,
        diff_id,
    } = Case::read(input, &yard.folder);
    let root = yard.root("root");
    let unpacked = unpack(&blob, compression, diff_id, &root);
    yard.check_untouched();
    // Also of a layer that was refused: until it is removed it stands there.
    let tree = Tree::read(&root, OWNERS, unpacked.is_ok());
    if let Ok(unpacked) = unpacked {
        assert!(unpacked.entries <= LIMITS.entries);
        assert!(
            tree.bytes <= unpacked.bytes,
            "{} bytes on disk, {} counted",
            tree.bytes,
            unpacked.bytes
        );
        let (again, diff_id) = tree.as_layer();
        let copy = yard.root("copy");
        unpack(&again, Compression::Plain, diff_id, &copy).expect("what was unpacked can be packed and unpacked again");
        assert_eq!(Tree::read(&copy, OWNERS, true).nodes, tree.nodes);
        yard.check_untouched();
    }
}

fn unpack(blob: &[u8], compression: Compression, diff_id: BlobId, root: &Path) -> Result<Unpacked, ImageError> {
    let digest = BlobId::of(blob);
    let layer = ExpectedLayer {
        blob: Layer {
            digest,
            size: blob.len() as u64,
            compression,
        },
        diff_id,
    };
    let mut taken = 0;
    let mut take_room = |bytes: u64| {
        taken += bytes;
        // Any error will do: the cache has one of its own for a disk that is full.
        let full = || ImageError::DocumentTooLarge {
            part: Part::Layer(digest),
            limit: Bytes(ROOM),
        };
        if taken > ROOM { Err(full()) } else { Ok(()) }
    };
    memory::at_most(MEMORY, || {
        unpack_layer(blob, &layer, root, OWNERS, LIMITS, Below::NOTHING, &mut take_room)
    })
}
