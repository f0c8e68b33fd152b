//! The kernel's encryption of a file system (`Documentation/filesystems/fscrypt.rst`): one key, one folder. Contents by AES-256-XTS, names
//! by AES-256-CTS; the key is known to the mounted file system alone and forgotten when it is unmounted.

use rustix::io::Errno;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use zeroize::Zeroizing;

/// By which the kernel calls a key: made from it, and of no use to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyName([u8; 16]);

#[cfg(test)]
impl KeyName {
    pub(super) fn for_tests() -> Self {
        Self([7; 16])
    }
}

/// `FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER`: the kernel derives the name.
const BY_NAME: u32 = 2;
/// `FSCRYPT_MODE_AES_256_XTS`, `FSCRYPT_MODE_AES_256_CTS`, `FSCRYPT_POLICY_FLAGS_PAD_32`.
const CONTENTS: u8 = 1;
const NAMES: u8 = 4;
const PADDING: u8 = 3;
const VERSION: u8 = 2;
/// Bytes of a key.
const KEY: usize = 64;

/// `struct fscrypt_add_key_arg` with its key.
#[repr(C)]
struct AddKey {
    kind: u32,
    reserved: u32,
    name: [u8; 32],
    key_size: u32,
    key_id: u32,
    flags: u32,
    reserved_too: [u32; 7],
    key: [u8; KEY],
}

/// `struct fscrypt_policy_v2`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    version: u8,
    contents: u8,
    names: u8,
    flags: u8,
    log2_data_unit_size: u8,
    reserved: [u8; 3],
    key: KeyName,
}

/// `struct fscrypt_get_policy_ex_arg`.
#[repr(C)]
struct GetPolicy {
    size: u64,
    policy: Policy,
}

/// Numbers of the requests: direction, size, `f`, number.
const ADD_KEY: libc::c_ulong = request(3, 80, 23);
const SET_POLICY: libc::c_ulong = request(2, 12, 19);
const GET_POLICY: libc::c_ulong = request(3, 9, 22);

const fn request(direction: libc::c_ulong, size: libc::c_ulong, number: libc::c_ulong) -> libc::c_ulong {
    direction << 30 | size << 16 | (b'f' as libc::c_ulong) << 8 | number
}

impl Policy {
    const fn with(key: KeyName) -> Self {
        Self {
            version: VERSION,
            contents: CONTENTS,
            names: NAMES,
            flags: PADDING,
            log2_data_unit_size: 0,
            reserved: [0; 3],
            key,
        }
    }
}

/// Draws a key and gives it to the mounted file system that `top` is on. Nobody has it then but the kernel.
pub(super) fn add_fresh_key(top: BorrowedFd<'_>) -> std::io::Result<KeyName> {
    let mut key = Zeroizing::new([0; KEY]);
    getrandom::fill(key.as_mut_slice()).map_err(|error| std::io::Error::other(error.to_string()))?;
    let mut argument = AddKey {
        kind: BY_NAME,
        reserved: 0,
        name: [0; 32],
        key_size: 64,
        key_id: 0,
        flags: 0,
        reserved_too: [0; 7],
        key: *key,
    };
    // SAFETY: the request reads and writes one `AddKey`, whose key is as long as it says.
    let done = unsafe { libc::ioctl(top.as_raw_fd(), ADD_KEY as _, &raw mut argument) };
    zeroize::Zeroize::zeroize(&mut argument.key);
    if done != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut name = [0; 16];
    name.copy_from_slice(&argument.name[..16]);
    Ok(KeyName(name))
}

/// Has everything that is made in an empty folder encrypted with that key, for ever.
pub(super) fn encrypt(folder: BorrowedFd<'_>, key: KeyName) -> Result<(), Errno> {
    let policy = Policy::with(key);
    // SAFETY: the request reads one policy of the version that it names.
    let done = unsafe { libc::ioctl(folder.as_raw_fd(), SET_POLICY as _, &raw const policy) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// With which key the kernel encrypts what is made in a folder; an error where it does not, or otherwise than [`encrypt`] said.
pub(super) fn key_of(folder: BorrowedFd<'_>) -> Result<KeyName, Errno> {
    let mut argument = GetPolicy {
        size: size_of::<Policy>() as u64,
        policy: Policy::with(KeyName([0; 16])),
    };
    // SAFETY: the request writes at most as many bytes of policy as `size` says.
    let done = unsafe { libc::ioctl(folder.as_raw_fd(), GET_POLICY as _, &raw mut argument) };
    if done != 0 {
        return Err(last_error());
    }
    let key = argument.policy.key;
    if argument.policy == Policy::with(key) {
        Ok(key)
    } else {
        Err(Errno::INVAL)
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_have_the_sizes_that_the_kernel_expects() {
        assert_eq!(size_of::<AddKey>(), 80 + KEY);
        assert_eq!(size_of::<Policy>(), 24);
        assert_eq!(
            (ADD_KEY, SET_POLICY, GET_POLICY),
            (0xc050_6617, 0x800c_6613, 0xc009_6616)
        );
    }
}
