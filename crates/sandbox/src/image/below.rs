//! What overlayfs would show of a path in a stack of layers, without mounting it: for what must be known while an image is made
//! ready. Never through a symbolic link, which would be the image author's way out of the layers.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::tree::OPAQUE;

enum Found {
    File(File),
    /// Neither here nor below: a whiteout, an opaque folder, or something else in its place.
    Hidden,
    /// Perhaps in a lower layer.
    NotHere,
}

/// Opens the regular file `name` in the folder `parent` (names joined by single slashes) as the stack shows it; `layers` are
/// lowest first.
pub(crate) fn open_file(layers: &[PathBuf], parent: &[u8], name: &[u8]) -> io::Result<Option<File>> {
    for layer in layers.iter().rev() {
        match open_in_layer(layer, parent, name)? {
            Found::File(file) => return Ok(Some(file)),
            Found::Hidden => return Ok(None),
            Found::NotHere => {}
        }
    }
    Ok(None)
}

fn open_in_layer(layer: &Path, parent: &[u8], name: &[u8]) -> io::Result<Found> {
    let mut folder = OwnedFd::from(File::open(layer)?);
    let mut opaque = is_opaque(&folder);
    let not_here = |opaque| if opaque { Found::Hidden } else { Found::NotHere };
    for component in parent.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        folder = match open_beneath(&folder, component, OFlags::DIRECTORY) {
            Ok(next) => next,
            Err(Errno::NOENT) => return Ok(not_here(opaque)),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Found::Hidden),
            Err(error) => return Err(error.into()),
        };
        opaque |= is_opaque(&folder);
    }
    // O_NONBLOCK: opening a pipe must not wait for its other end.
    let file = match open_beneath(&folder, name, OFlags::NONBLOCK) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(not_here(opaque)),
        // ENXIO, ENODEV: a whiteout is a device that nobody serves.
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(Found::Hidden),
        Err(error) => return Err(error.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    Ok(if kind == FileType::RegularFile {
        Found::File(file)
    } else {
        Found::Hidden
    })
}

fn is_opaque(folder: &OwnedFd) -> bool {
    rustix::fs::fgetxattr(folder, OPAQUE, &mut [0_u8; 1]).is_ok()
}

fn open_beneath(folder: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve)
}
