//! A layer: an ordered list of tar entries and how the tar is compressed. Names are written byte for byte as given, also
//! when no honest tool would write them, because the `tar` crate's own checks would stop us from making hostile layers.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use tar::{EntryType, Header};

/// How a layer's tar is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// A plain tar: for content that does not compress, such as quantised weights.
    None,
    /// What almost every registry serves.
    #[default]
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// The OCI media type of a layer that is compressed this way.
    pub fn media_type(self) -> &'static str {
        match self {
            Compression::None => "application/vnd.oci.image.layer.v1.tar",
            Compression::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Compression::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

/// Where a file's bytes come from.
#[derive(Debug, Clone)]
pub enum Content {
    /// The bytes themselves.
    Bytes(Vec<u8>),
    /// A file on this machine, read while the layer is written.
    File(PathBuf),
    /// So many zero bytes: what a decompression bomb is made of.
    Zeros(u64),
}

impl Content {
    fn open(&self) -> io::Result<(u64, Box<dyn Read + '_>)> {
        match self {
            Content::Bytes(bytes) => Ok((bytes.len() as u64, Box::new(bytes.as_slice()))),
            Content::File(path) => {
                let file = File::open(path)
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
                let length = file.metadata()?.len();
                Ok((length, Box::new(file.take(length))))
            }
            Content::Zeros(length) => Ok((*length, Box::new(io::repeat(0).take(*length)))),
        }
    }
}

/// What an entry is.
#[derive(Debug, Clone)]
pub enum EntryKind {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory,
    /// A symbolic link to the given target.
    Symlink(String),
    /// A hard link to the given earlier entry.
    HardLink(String),
    /// A character device with major and minor number.
    CharacterDevice(u32, u32),
    /// A block device with major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}

/// One entry of a layer's tar, exactly as it will stand there.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name, unchecked: may be absolute or hold `..`.
    pub path: String,
    /// Permission bits, with set-user-id and the like.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// What it is.
    pub kind: EntryKind,
}

impl Entry {
    /// An entry owned by root.
    pub fn new(path: impl Into<String>, mode: u32, kind: EntryKind) -> Self {
        Entry {
            path: path.into(),
            mode,
            uid: 0,
            gid: 0,
            kind,
        }
    }
}

/// A layer under construction.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    entries: Vec<Entry>,
    directories: BTreeSet<String>,
    verbatim: Option<Vec<u8>>,
    compression: Compression,
}

impl Layer {
    /// An empty layer, compressed with gzip.
    pub fn new() -> Self {
        Layer::default()
    }

    /// A layer whose uncompressed stream is `bytes`, which need not be a tar.
    pub fn verbatim(bytes: impl Into<Vec<u8>>) -> Self {
        Layer {
            verbatim: Some(bytes.into()),
            ..Layer::default()
        }
    }

    /// Chooses the compression.
    pub fn compressed(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Adds a directory (mode 0755) and its missing parents. `path` has no leading slash.
    pub fn directory(self, path: &str) -> Self {
        self.directory_with_mode(path, 0o755)
    }

    /// Adds a directory with these permission bits, and its missing parents (0755).
    pub fn directory_with_mode(mut self, path: &str, mode: u32) -> Self {
        self.add_parents(path);
        if self.directories.insert(path.to_owned()) {
            self.entries
                .push(Entry::new(format!("{path}/"), mode, EntryKind::Directory));
        }
        self
    }

    /// Adds a regular file and its missing parents. `path` has no leading slash.
    pub fn file(self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Self {
        self.content(path, mode, Content::Bytes(bytes.into()))
    }

    /// Adds a regular file with any kind of content, and its missing parents.
    pub fn content(mut self, path: &str, mode: u32, content: Content) -> Self {
        self.add_parents(path);
        self.raw(Entry::new(path, mode, EntryKind::File(content)))
    }

    /// Adds a symbolic link and the link's missing parents.
    pub fn symlink(mut self, path: &str, target: &str) -> Self {
        self.add_parents(path);
        self.raw(Entry::new(path, 0o777, EntryKind::Symlink(target.to_owned())))
    }

    /// Adds a hard link to an earlier entry of the image, and the link's missing parents.
    pub fn hard_link(mut self, path: &str, target: &str) -> Self {
        self.add_parents(path);
        self.raw(Entry::new(path, 0o644, EntryKind::HardLink(target.to_owned())))
    }

    /// Adds the folders that a job's mounts are put on; `tmp` is for everybody.
    pub fn mount_points(self) -> Self {
        ["checkpoint", "dev", "in", "out", "proc", "sys"]
            .into_iter()
            .fold(self, Layer::directory)
            .directory_with_mode("tmp", 0o1777)
    }

    /// Removes `path` of a lower layer (an OCI whiteout).
    pub fn whiteout(self, path: &str) -> Self {
        let marker = match path.rsplit_once('/') {
            Some((parent, name)) => format!("{parent}/.wh.{name}"),
            None => format!(".wh.{path}"),
        };
        self.file(&marker, 0o644, Vec::new())
    }

    /// Hides everything that lower layers have in the directory `path` (an OCI opaque whiteout).
    pub fn opaque(self, path: &str) -> Self {
        self.file(&format!("{path}/.wh..wh..opq"), 0o644, Vec::new())
    }

    /// Adds an entry exactly as it is: no parents, no checks.
    pub fn raw(mut self, entry: Entry) -> Self {
        self.entries.push(entry);
        self
    }

    pub(crate) fn compression(&self) -> Compression {
        self.compression
    }

    fn add_parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let parent = &path[..at];
            if self.directories.insert(parent.to_owned()) {
                self.entries
                    .push(Entry::new(format!("{parent}/"), 0o755, EntryKind::Directory));
            }
        }
    }

    /// Writes the uncompressed tar.
    pub(crate) fn write_tar(&self, mut out: impl Write) -> io::Result<()> {
        if let Some(bytes) = &self.verbatim {
            return out.write_all(bytes);
        }
        write_entries(&self.entries, out)
    }
}

/// Writes `entries` as a complete tar.
pub(crate) fn write_entries(entries: &[Entry], out: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    for entry in entries {
        append(&mut archive, entry)?;
    }
    archive.into_inner()?.flush()
}

fn append(archive: &mut tar::Builder<impl Write>, entry: &Entry) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_uid(entry.uid);
    header.set_gid(entry.gid);
    header.set_mtime(0);
    header.set_size(0);
    set_name(archive, &mut header, &entry.path)?;

    let mut content: Box<dyn Read> = Box::new(io::empty());
    match &entry.kind {
        EntryKind::File(source) => {
            let (length, reader) = source.open()?;
            header.set_entry_type(EntryType::Regular);
            header.set_size(length);
            content = reader;
        }
        EntryKind::Directory => header.set_entry_type(EntryType::Directory),
        EntryKind::Symlink(target) => {
            header.set_entry_type(EntryType::Symlink);
            set_link(archive, &mut header, target)?;
        }
        EntryKind::HardLink(target) => {
            header.set_entry_type(EntryType::Link);
            set_link(archive, &mut header, target)?;
        }
        EntryKind::CharacterDevice(major, minor) => {
            header.set_entry_type(EntryType::Char);
            header.set_device_major(*major)?;
            header.set_device_minor(*minor)?;
        }
        EntryKind::BlockDevice(major, minor) => {
            header.set_entry_type(EntryType::Block);
            header.set_device_major(*major)?;
            header.set_device_minor(*minor)?;
        }
        EntryKind::Fifo => header.set_entry_type(EntryType::Fifo),
    }
    header.set_cksum();
    archive.append(&header, content)
}

const LONGEST_PLAIN_NAME: usize = 100;

fn set_name(archive: &mut tar::Builder<impl Write>, header: &mut Header, name: &str) -> io::Result<()> {
    append_long_name(archive, name, EntryType::GNULongName)?;
    copy_truncated(&mut header.as_old_mut().name, name);
    Ok(())
}

fn set_link(archive: &mut tar::Builder<impl Write>, header: &mut Header, target: &str) -> io::Result<()> {
    append_long_name(archive, target, EntryType::GNULongLink)?;
    copy_truncated(&mut header.as_old_mut().linkname, target);
    Ok(())
}

/// GNU's way to carry a name that the header cannot hold: an entry before it whose content is the name.
fn append_long_name(archive: &mut tar::Builder<impl Write>, name: &str, kind: EntryType) -> io::Result<()> {
    if name.len() <= LONGEST_PLAIN_NAME {
        return Ok(());
    }
    let mut header = Header::new_gnu();
    copy_truncated(&mut header.as_old_mut().name, "././@LongLink");
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(name.len() as u64 + 1);
    header.set_cksum();
    archive.append(&header, name.as_bytes().chain(&[0u8][..]))
}

fn copy_truncated(field: &mut [u8; LONGEST_PLAIN_NAME], name: &str) {
    field.fill(0);
    let length = name.len().min(LONGEST_PLAIN_NAME);
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
}
