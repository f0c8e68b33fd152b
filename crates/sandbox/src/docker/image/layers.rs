//! One unpacked layer of the image cache as the tar archive that it came from, in content: overlay's whiteouts and opaque folders
//! become names again, links to the same file stay links. The order is fixed, so that the same layer always has the same hash.

use crate::image::OPAQUE;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// Writes the folder. Every owner is `shift` less than on disk.
pub(super) fn write(folder: &Path, shift: u32, into: impl Write) -> io::Result<()> {
    let mut archive = Archive {
        builder: Builder::new(into),
        shift,
        seen: HashMap::new(),
    };
    archive.folder(folder, Path::new(""))?;
    archive.builder.finish()
}

struct Archive<W: Write> {
    builder: Builder<W>,
    shift: u32,
    /// Where a file with several names was written first.
    seen: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Archive<W> {
    /// What is in a folder, by name.
    fn folder(&mut self, outside: &Path, inside: &Path) -> io::Result<()> {
        if is_opaque(outside)? {
            self.whiteout(&inside.join(".wh..wh..opq"))?;
        }
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(outside)? {
            names.push(entry?.file_name());
        }
        names.sort();
        for name in names {
            self.entry(&outside.join(&name), inside, &name)?;
        }
        Ok(())
    }

    fn entry(&mut self, outside: &Path, parent: &Path, name: &OsString) -> io::Result<()> {
        let inside = parent.join(name);
        let found = fs::symlink_metadata(outside)?;
        let kind = found.file_type();
        if kind.is_char_device() {
            // The one device that the cache has: overlay's sign for what an upper layer takes away.
            let mut whiteout = OsString::from(".wh.");
            whiteout.push(name);
            return self.whiteout(&parent.join(whiteout));
        }
        let mut header = self.header(&found);
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.builder.append_data(&mut header, &inside, io::empty())?;
            return self.folder(outside, &inside);
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self.builder.append_link(&mut header, &inside, fs::read_link(outside)?);
        }
        if !kind.is_file() {
            return Ok(());
        }
        if found.nlink() > 1 {
            let first = self
                .seen
                .entry((found.dev(), found.ino()))
                .or_insert_with(|| inside.clone());
            if *first != inside {
                header.set_entry_type(EntryType::Link);
                return self.builder.append_link(&mut header, &inside, &*first);
            }
        }
        header.set_entry_type(EntryType::Regular);
        header.set_size(found.len());
        self.builder.append_data(&mut header, &inside, File::open(outside)?)
    }

    fn header(&self, found: &Metadata) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(found.mode() & 0o7777);
        header.set_uid(u64::from(found.uid().saturating_sub(self.shift)));
        header.set_gid(u64::from(found.gid().saturating_sub(self.shift)));
        header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
        header.set_size(0);
        header
    }

    fn whiteout(&mut self, inside: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_size(0);
        self.builder.append_data(&mut header, inside, io::empty())
    }
}

fn is_opaque(folder: &Path) -> io::Result<bool> {
    let mut value = [0_u8; 8];
    match rustix::fs::lgetxattr(folder, OPAQUE, &mut value) {
        Ok(count) => Ok(&value[..count.min(8)] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
