//! What stands in a folder after a layer was unpacked into it: looked at from outside, held against what may stand there, and written as
//! a layer again.

use super::archive::{Numbers, append, header};
use sela_protocol::blob::BlobId;
use sela_sandbox::ids::IdRange;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The mark by which overlayfs hides what lower layers have in a folder.
const OPAQUE: &str = "trusted.overlay.opaque";

/// What one name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Folder {
        mode: u32,
        owner: (u32, u32),
        opaque: bool,
    },
    File {
        mode: u32,
        owner: (u32, u32),
        modified: i64,
        content: Vec<u8>,
    },
    /// The same file as the first of its names.
    Again(PathBuf),
    Link {
        owner: (u32, u32),
        modified: i64,
        target: Vec<u8>,
    },
    Whiteout,
}

/// A folder's content by path from the folder.
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<PathBuf, Node>,
    /// Of all files, in blocks.
    pub(super) bytes: u64,
    owners: IdRange,
    /// Whether all of it was given away: unpacking stops before that where a layer is refused.
    whole: bool,
}

impl Tree {
    /// Reads all, following no link.
    ///
    /// # Panics
    /// If there is what must not be there.
    pub(super) fn read(root: &Path, owners: IdRange, whole: bool) -> Self {
        let mut tree = Self {
            nodes: BTreeMap::new(),
            bytes: 0,
            owners,
            whole,
        };
        let mut names_of = BTreeMap::new();
        tree.add(root, Path::new(""), &mut names_of);
        for (first, found, links) in names_of.values() {
            assert_eq!(found, links, "{} has names outside of the folder", first.display());
        }
        tree
    }

    fn add(&mut self, root: &Path, name: &Path, names_of: &mut BTreeMap<u64, (PathBuf, u64, u64)>) {
        let path = root.join(name);
        let found = fs::symlink_metadata(&path).expect("it was listed");
        let owner = (found.uid(), found.gid());
        let kind = found.file_type();
        let mode = found.mode() & 0o7777;
        let ours = !self.whole || self.owners.holds(owner.0) && self.owners.holds(owner.1);
        let node = if kind.is_dir() {
            assert!(ours && mode & 0o6000 == 0, "{}: {mode:o} of {owner:?}", name.display());
            let mut value = [0; 8];
            let opaque = rustix::fs::lgetxattr(&path, OPAQUE, &mut value[..]).is_ok();
            Node::Folder { mode, owner, opaque }
        } else if kind.is_file() {
            assert!(ours && mode & 0o7000 == 0, "{}: {mode:o} of {owner:?}", name.display());
            let names = names_of
                .entry(found.ino())
                .or_insert_with(|| (name.to_owned(), 0, found.nlink()));
            names.1 += 1;
            if names.1 == 1 {
                self.bytes += found.blocks() * 512;
                let content = fs::read(&path).expect("root reads all");
                Node::File {
                    mode,
                    owner,
                    modified: found.mtime(),
                    content,
                }
            } else {
                Node::Again(names.0.clone())
            }
        } else if kind.is_symlink() {
            assert!(ours, "{} of {owner:?}", name.display());
            let target = fs::read_link(&path)
                .expect("a link")
                .into_os_string()
                .into_encoded_bytes();
            Node::Link {
                owner,
                modified: found.mtime(),
                target,
            }
        } else {
            assert_eq!((found.rdev(), mode), (0, 0), "{} is a device or a pipe", name.display());
            Node::Whiteout
        };
        self.nodes.insert(name.to_owned(), node);
        if kind.is_dir() {
            let listed = fs::read_dir(&path).expect("root reads all");
            let mut names: Vec<PathBuf> = listed
                .map(|entry| name.join(entry.expect("listed").file_name()))
                .collect();
            names.sort();
            names.iter().for_each(|name| self.add(root, name, names_of));
        }
    }

    /// An uncompressed layer with the same content, and the hash of it.
    pub(super) fn as_layer(&self) -> (Vec<u8>, BlobId) {
        let mut tar = Vec::new();
        for (path, node) in &self.nodes {
            self.write(&mut tar, path, node);
        }
        tar.resize(tar.len() + 1024, 0);
        let hash = BlobId::of(&tar);
        (tar, hash)
    }

    fn write(&self, tar: &mut Vec<u8>, path: &Path, node: &Node) {
        let name = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let marker = |name: &[u8]| path.parent().unwrap_or(path).join(OsStr::from_bytes(name));
        match node {
            Node::Folder { mode, owner, opaque } => {
                write(tar, b'5', name, b"", self.numbers(*mode, *owner, 0), b"");
                if *opaque {
                    write(tar, b'0', &path.join(".wh..wh..opq"), b"", Numbers::default(), b"");
                }
            }
            Node::File {
                mode,
                owner,
                modified,
                content,
            } => {
                write(tar, b'0', name, b"", self.numbers(*mode, *owner, *modified), content);
            }
            Node::Again(first) => write(tar, b'1', name, first.as_os_str().as_bytes(), Numbers::default(), b""),
            Node::Link {
                owner,
                modified,
                target,
            } => {
                write(tar, b'2', name, target, self.numbers(0, *owner, *modified), b"");
            }
            Node::Whiteout => {
                let hidden = path.file_name().expect("the root is a folder").as_bytes();
                write(
                    tar,
                    b'0',
                    &marker(&[b".wh.", hidden].concat()),
                    b"",
                    Numbers::default(),
                    b"",
                );
            }
        }
    }

    fn numbers(&self, mode: u32, (uid, gid): (u32, u32), modified: i64) -> Numbers {
        Numbers {
            mode: u64::from(mode),
            uid: u64::from(uid - self.owners.first),
            gid: u64::from(gid - self.owners.first),
            modified: u64::try_from(modified).unwrap_or(0),
            size: 0,
        }
    }
}

/// Writes an entry; name and target in entries of their own, which hold any length.
fn write(tar: &mut Vec<u8>, kind: u8, name: &Path, target: &[u8], numbers: Numbers, content: &[u8]) {
    for (kind, text) in [(b'L', name.as_os_str().as_bytes()), (b'K', target)] {
        if !text.is_empty() {
            let size = text.len() as u64;
            append(
                tar,
                header(
                    kind,
                    b"././@LongLink",
                    b"",
                    Numbers {
                        size,
                        ..Numbers::default()
                    },
                ),
                text,
            );
        }
    }
    let size = content.len() as u64;
    append(tar, header(kind, b"", b"", Numbers { size, ..numbers }), content);
}
