//! A file as a block device (`linux/loop.h`), for as long as somebody holds it open or has it mounted.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// `LOOP_CTL_GET_FREE`, `LOOP_CONFIGURE`, `LOOP_CLR_FD`.
const GET_FREE: libc::c_ulong = 0x4c82;
const CONFIGURE: libc::c_ulong = 0x4c0a;
const CLEAR: libc::c_ulong = 0x4c01;
/// `LO_FLAGS_AUTOCLEAR`, and `LO_FLAGS_DIRECT_IO`, without which everything would lie in memory twice.
const FLAGS: u32 = 4 | 16;
/// How often another program may be faster at taking the free device.
const TRIES: u32 = 64;

/// `struct loop_config`, with `struct loop_info64` in it.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    /// Device, inode, device, offset, limit: all zero.
    place: [u64; 5],
    /// Number, and two of an encryption that is no more.
    numbers: [u32; 3],
    flags: u32,
    /// Names and a key of that encryption.
    names: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Makes `file` a block device; gives its path and a hold on it.
pub(super) fn attach(file: &File) -> std::io::Result<(PathBuf, OwnedFd)> {
    let control = open(Path::new("/dev/loop-control"))?;
    let config = Config {
        file: file.as_raw_fd().unsigned_abs(),
        block_size: 4096,
        place: [0; 5],
        numbers: [0; 3],
        flags: FLAGS,
        names: [0; 160],
        init: [0; 2],
        reserved: [0; 8],
    };
    for _ in 0..TRIES {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE as _) };
        if number < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path)?;
        // SAFETY: the request reads one `Config`.
        if unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE as _, &raw const config) } == 0 {
            return Ok((path, device));
        }
        let error = std::io::Error::last_os_error();
        if Errno::from_io_error(&error) != Some(Errno::BUSY) {
            return Err(error);
        }
    }
    Err(std::io::Error::other(
        "other programs take each loop device that is free",
    ))
}

/// Lets go of every device whose file lies, or lay, below a folder. There is none unless something else holds it: devices made here go
/// with their last holder.
pub(crate) fn detach_below(folder: &Path) -> usize {
    let mut detached = 0;
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if !Path::new(backing.trim_end()).starts_with(folder) {
            continue;
        }
        let Ok(device) = open(&Path::new("/dev").join(entry.file_name())) else {
            continue;
        };
        // SAFETY: the request takes no argument.
        if unsafe { libc::ioctl(device.as_raw_fd(), CLEAR as _) } == 0 {
            detached += 1;
        }
    }
    detached
}

fn open(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_size_that_the_kernel_expects() {
        assert_eq!(size_of::<Config>(), 304);
    }
}
