//! Writes one layer's entries below one directory, and never anywhere else. Every name is walked with openat2 beneath the
//! root's descriptor and through no symbolic link, so that no order of entries and no link of the image's own leads out;
//! no path is ever joined and handed to the kernel. What an entry means is decided in `unpack`; here it is only made.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::ids::IdRange;

/// The attribute by which overlayfs knows a directory that hides what lower layers have in it.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

/// A path longer than this cannot be opened in one call (PATH_MAX), nor a name longer than the other (NAME_MAX).
const LONGEST_PATH: usize = 4095;
const LONGEST_NAME: usize = 255;

/// Execute, read and write for everybody, and the sticky bit. Set-user-id and set-group-id are dropped: a job gains no
/// privileges, and an owner's machine gains no new privileged programs.
const KEPT_OF_FOLDERS: u32 = 0o1777;
const KEPT_OF_FILES: u32 = 0o777;

/// A path of a tar, split and found harmless by itself. What it goes through is only known in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryPath<'a> {
    /// The layer's root: `.`, `./`.
    Root,
    /// Something below it.
    Below {
        /// The folders above the name, joined by single slashes; empty for what stands in the root.
        parent: &'a [u8],
        /// The last name.
        name: &'a [u8],
    },
}

impl<'a> EntryPath<'a> {
    /// Reads a path as a tar spells it; `buffer` takes the normal form that the answer borrows.
    ///
    /// # Errors
    /// What is wrong with the path, as the predicate of a sentence.
    pub fn parse(bytes: &[u8], buffer: &'a mut Vec<u8>) -> Result<Self, &'static str> {
        buffer.clear();
        if bytes.len() > LONGEST_PATH {
            return Err("is longer than 4095 bytes");
        }
        if bytes.is_empty() {
            return Err("has an empty name");
        }
        if bytes.starts_with(b"/") {
            return Err("is an absolute path");
        }
        let mut name_at = 0;
        for component in bytes.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err("leads out of the image with \"..\""),
                name if name.len() > LONGEST_NAME => return Err("has a name of more than 255 bytes"),
                name if name.contains(&0) => return Err("has a zero byte in its name"),
                name => {
                    if !buffer.is_empty() {
                        buffer.push(b'/');
                    }
                    name_at = buffer.len();
                    buffer.extend_from_slice(name);
                }
            }
        }
        if buffer.is_empty() {
            return Ok(Self::Root);
        }
        Ok(Self::Below {
            parent: &buffer[..name_at.saturating_sub(1)],
            name: &buffer[name_at..],
        })
    }
}

/// Who an entry belongs to, what may be done with it and when it was changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metadata {
    /// Ids of this machine, already mapped.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// As the tar says; what must not be kept is dropped here.
    pub(crate) mode: u32,
    /// Seconds since 1970.
    pub(crate) modified: u64,
}

/// Why an entry was not made.
#[derive(Debug)]
pub(crate) enum TreeError {
    /// The entry must not be made; the predicate of a sentence.
    Refused(&'static str),
    /// A hard link to what this layer does not hold before it: lower layers may.
    NoTarget,
    /// The file system would not; the operation as a verb.
    System(&'static str, io::Error),
}

fn system(doing: &'static str) -> impl FnOnce(Errno) -> TreeError {
    move |error| TreeError::System(doing, error.into())
}

/// The directory that a layer is unpacked into.
pub(crate) struct LayerTree {
    root: OwnedFd,
    /// Owner of folders that the tar leaves out.
    implied_owner: u32,
    /// The folder of the entry before: tars go folder by folder.
    last_parent: Option<(Vec<u8>, OwnedFd)>,
}

impl LayerTree {
    /// Unpacks into `root`, which must be empty and ours alone.
    pub(crate) fn new(root: &Path, owners: IdRange) -> io::Result<Self> {
        let root = OwnedFd::from(File::open(root)?);
        rustix::fs::fchown(
            &root,
            Some(Uid::from_raw(owners.first)),
            Some(Gid::from_raw(owners.first)),
        )?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755))?;
        Ok(Self {
            root,
            implied_owner: owners.first,
            last_parent: None,
        })
    }

    /// A directory that already stands there keeps what is in it and takes the new owner and mode.
    pub(crate) fn directory(&mut self, path: EntryPath<'_>, metadata: &Metadata) -> Result<(), TreeError> {
        let fd = match path {
            EntryPath::Root => self
                .root
                .try_clone()
                .map_err(|error| TreeError::System("open", error))?,
            EntryPath::Below { parent, name } => {
                let owner = self.implied_owner;
                enter(self.parent(parent)?, name, owner)?
            }
        };
        give(&fd, metadata, KEPT_OF_FOLDERS)
    }

    /// An empty file to write to; finish it with [`LayerTree::finish_file`].
    pub(crate) fn file(&mut self, path: EntryPath<'_>) -> Result<File, TreeError> {
        let (parent, name) = self.place_for(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(parent, name, flags, Mode::from_raw_mode(0o600), RESOLVE);
        fd.map(File::from).map_err(system("create"))
    }

    /// Owner, mode and time: last, because writing changes the time and giving away drops bits.
    pub(crate) fn finish_file(file: &File, metadata: &Metadata) -> Result<(), TreeError> {
        give(file, metadata, KEPT_OF_FILES)?;
        rustix::fs::futimens(file, &timestamps(metadata)).map_err(system("date"))
    }

    /// The target is stored as it is and never looked at.
    pub(crate) fn symlink(&mut self, path: EntryPath<'_>, target: &[u8], metadata: &Metadata) -> Result<(), TreeError> {
        if target.is_empty() || target.len() > LONGEST_PATH || target.contains(&0) {
            return Err(TreeError::Refused("is a symbolic link without a usable target"));
        }
        let (parent, name) = self.place_for(path)?;
        rustix::fs::symlinkat(target, parent, name).map_err(system("link"))?;
        let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(system("give away"))?;
        rustix::fs::utimensat(parent, name, &timestamps(metadata), AtFlags::SYMLINK_NOFOLLOW).map_err(system("date"))
    }

    /// Only to a regular file that this layer has already unpacked: not to another layer's, whose files are shared by images,
    /// and not to the host's.
    pub(crate) fn hard_link(&mut self, path: EntryPath<'_>, target: EntryPath<'_>) -> Result<(), TreeError> {
        let EntryPath::Below {
            parent: target_parent,
            name: target_name,
        } = target
        else {
            return Err(TreeError::Refused("is a hard link to the root"));
        };
        let target_parent = match open_folder(self.root.as_fd(), target_parent) {
            Ok(fd) => fd,
            Err(Errno::LOOP) => return Err(TreeError::Refused("is a hard link through a symbolic link")),
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(TreeError::NoTarget),
            Err(error) => return Err(system("open")(error)),
        };
        match kind_of(target_parent.as_fd(), target_name)? {
            Some(FileType::RegularFile) => {}
            Some(_) => return Err(TreeError::Refused("is a hard link to something that is not a file")),
            None => return Err(TreeError::NoTarget),
        }
        if path == target {
            return Ok(());
        }
        let (parent, name) = self.place_for(path)?;
        rustix::fs::linkat(&target_parent, target_name, parent, name, AtFlags::empty()).map_err(system("link"))
    }

    /// Hides `name` of lower layers: a character device 0/0, as overlayfs reads it. What this layer itself has of that name
    /// stays and, where it is a directory, hides the lower one.
    pub(crate) fn whiteout(&mut self, parent: &[u8], name: &[u8]) -> Result<(), TreeError> {
        let parent = self.parent(parent)?;
        match kind_of(parent, name)? {
            Some(FileType::Directory) => make_opaque(open_folder(parent, name).map_err(system("open"))?),
            Some(_) => Ok(()),
            None => {
                let mode = Mode::from_raw_mode(0o000);
                rustix::fs::mknodat(parent, name, FileType::CharacterDevice, mode, 0).map_err(system("hide"))
            }
        }
    }

    /// Hides everything that lower layers have in this directory.
    pub(crate) fn opaque(&mut self, folder: &[u8]) -> Result<(), TreeError> {
        make_opaque(self.parent(folder)?)
    }

    /// Where a non-directory is to be made: its folder, with nothing of its name in it.
    fn place_for<'a>(&'a mut self, path: EntryPath<'a>) -> Result<(BorrowedFd<'a>, &'a [u8]), TreeError> {
        let EntryPath::Below { parent, name } = path else {
            return Err(TreeError::Refused("stands where the root must be"));
        };
        let parent = self.parent(parent)?;
        match kind_of(parent, name)? {
            None => {}
            // Removing a tree to make room for one file is never needed by an honest layer.
            Some(FileType::Directory) => return Err(TreeError::Refused("stands where the layer already has a folder")),
            Some(_) => rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(system("replace"))?,
        }
        Ok((parent, name))
    }

    /// The directory at `path`, made with its parents where the tar left them out.
    fn parent(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, TreeError> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        let again = self.last_parent.as_ref().is_some_and(|(last, _)| last == path);
        if !again {
            let fd = match open_folder(self.root.as_fd(), path) {
                Ok(fd) => fd,
                Err(Errno::LOOP) => return Err(TreeError::Refused(THROUGH_LINK)),
                Err(Errno::NOENT | Errno::NOTDIR) => self.make_folders(path)?,
                Err(error) => return Err(system("open")(error)),
            };
            self.last_parent = Some((path.to_vec(), fd));
        }
        let (_, fd) = self.last_parent.as_ref().expect("set just above");
        Ok(fd.as_fd())
    }

    fn make_folders(&self, path: &[u8]) -> Result<OwnedFd, TreeError> {
        let root = self
            .root
            .try_clone()
            .map_err(|error| TreeError::System("open", error))?;
        path.split(|byte| *byte == b'/')
            .try_fold(root, |folder, name| enter(folder.as_fd(), name, self.implied_owner))
    }
}

const THROUGH_LINK: &str = "goes through a symbolic link";

/// Beneath the descriptor, through no link of any kind, on this file system.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

fn open_folder(from: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    // Not O_NOFOLLOW: it would answer a link with "not a directory", and RESOLVE refuses every link by its name.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if path.is_empty() { b"." } else { path };
    rustix::fs::openat2(from, path, flags, Mode::empty(), RESOLVE)
}

/// Opens the directory `name`, or makes it. A whiteout of the same name becomes an opaque directory: the layer removed
/// what was there and put a new one in its place.
fn enter(folder: BorrowedFd<'_>, name: &[u8], owner: u32) -> Result<OwnedFd, TreeError> {
    let make = || {
        rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700)).map_err(system("create"))?;
        let fd = open_folder(folder, name).map_err(system("open"))?;
        give(
            &fd,
            &Metadata {
                uid: owner,
                gid: owner,
                mode: 0o755,
                modified: 0,
            },
            KEPT_OF_FOLDERS,
        )?;
        Ok(fd)
    };
    match kind_of(folder, name)? {
        None => make(),
        Some(FileType::Directory) => open_folder(folder, name).map_err(system("open")),
        Some(FileType::Symlink) => Err(TreeError::Refused(THROUGH_LINK)),
        Some(FileType::CharacterDevice) => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(system("replace"))?;
            let fd = make()?;
            make_opaque(&fd)?;
            Ok(fd)
        }
        Some(_) => Err(TreeError::Refused("has a folder where the layer already has a file")),
    }
}

fn kind_of(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FileType>, TreeError> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(system("look at")(error)),
    }
}

fn make_opaque(folder: impl AsFd) -> Result<(), TreeError> {
    rustix::fs::fsetxattr(folder, OPAQUE, b"y", XattrFlags::empty()).map_err(system("hide what is below"))
}

fn give(fd: impl AsFd, metadata: &Metadata, kept: u32) -> Result<(), TreeError> {
    let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
    rustix::fs::fchown(&fd, Some(uid), Some(gid)).map_err(system("give away"))?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(metadata.mode & kept)).map_err(system("set the mode"))
}

fn timestamps(metadata: &Metadata) -> Timestamps {
    let time = Timespec {
        tv_sec: i64::try_from(metadata.modified).unwrap_or(0),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &[u8], expected: Result<Option<(&str, &str)>, &str>) {
        let mut buffer = Vec::new();
        let expected = expected.map(|below| match below {
            None => EntryPath::Root,
            Some((parent, name)) => EntryPath::Below {
                parent: parent.as_bytes(),
                name: name.as_bytes(),
            },
        });
        let parsed = EntryPath::parse(path, &mut buffer);
        match (&parsed, expected) {
            (Err(reason), Err(sentence)) if reason.contains(sentence) => {}
            (Ok(parsed), Ok(expected)) if *parsed == expected => {}
            (_, expected) => panic!("{:?}: {parsed:?}, not {expected:?}", String::from_utf8_lossy(path)),
        }
    }

    #[test]
    fn paths_are_taken_apart_or_refused() {
        check(b"a", Ok(Some(("", "a"))));
        check(b"./a/b//c/", Ok(Some(("a/b", "c"))));
        check(b"a/./b", Ok(Some(("a", "b"))));
        check(b"...", Ok(Some(("", "..."))));
        check(b".", Ok(None));
        check(b"./", Ok(None));
        check(b"", Err("empty name"));
        check(b"/a", Err("absolute"));
        check(b"//a", Err("absolute"));
        check(b"..", Err("\"..\""));
        check(b"a/../b", Err("\"..\""));
        check(b"a/..", Err("\"..\""));
        check(b"a\0b", Err("zero byte"));
        check(&[b'a'; 255], Ok(Some(("", &"a".repeat(255)))));
        check(&[b'a'; 256], Err("more than 255"));
        check(&b"a/".repeat(2047), Ok(Some((&"a/".repeat(2046)[..4091], "a"))));
        check(&b"a/".repeat(2048), Err("longer than 4095"));
    }
}
