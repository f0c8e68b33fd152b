//! A job's scratch on the owner's disk, encrypted with a key that is drawn when the job is born, lies only in the kernel's memory, and
//! is gone with the mount. Made by the keeper (`image`, `loop_device`), mounted and sealed by the job's init (`seal`). Whatever fails
//! or is not what it claims to be ends the job: nothing is ever written in the clear instead.

mod fscrypt;
mod image;
mod loop_device;

pub(crate) use image::MKFS;
pub(crate) use loop_device::detach_below;

use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode};
use fscrypt::KeyName;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};
use sela_protocol::units::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// Name of the image in the lease's scratch folder, as long as it has one.
const IMAGE: &str = "disk.img";
/// Name of the folder there that init mounts it on, in a mount namespace that nobody else sees.
pub(crate) const MOUNT: &str = "disk";
/// The one folder on it; everything below is encrypted.
const SEALED: &str = "sealed";
/// What `statfs` says of ext4.
const EXT4: u64 = 0xef53;

/// A block device whose file has no name any more: with its last holder it is gone, whoever dies how.
#[derive(Debug)]
pub(crate) struct Disk {
    device: PathBuf,
    /// Keeps the device while nothing is mounted from it.
    _held: OwnedFd,
}

/// A place on it, before anybody but root may write there.
pub(crate) struct Place<'a> {
    /// Its name there.
    pub(crate) name: &'a str,
    /// Its mode.
    pub(crate) mode: u32,
    /// Its owner and group, as this machine sees them.
    pub(crate) owner: (u32, u32),
    /// Where it is shown.
    pub(crate) target: PathBuf,
    /// How.
    pub(crate) flags: MountFlags,
}

impl Disk {
    /// Makes one of `size` bytes, all of them taken from the disk at once, in the lease's scratch folder. In the keeper.
    pub(crate) fn make(scratch: &Path, size: Bytes) -> Result<Self, Fault> {
        let path = scratch.join(IMAGE);
        let made = image::make(&path, size).and_then(|file| {
            let attached = loop_device::attach(&file);
            attached.or_fault(
                FaultCode::Isolation,
                "attach the scratch to a loop device (is there /dev/loop-control?)",
            )
        });
        // The device holds the file from here on.
        let removed = fs::remove_file(&path).or_fault(FaultCode::Isolation, "unlink the scratch");
        let (device, held) = made?;
        removed?;
        fs::create_dir(scratch.join(MOUNT)).or_fault(FaultCode::Isolation, "make a place for the scratch")?;
        Ok(Self { device, _held: held })
    }

    /// Mounts it, has everything that will ever be written there encrypted, and shows each place where it belongs. In the job's init,
    /// in the machine's user namespace and a mount namespace of its own. Gives what [`verify`] then expects.
    pub(crate) fn seal(&self, scratch: &Path, places: &[Place<'_>]) -> Result<Sealed, Fault> {
        let mount = scratch.join(MOUNT);
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        // Tables that were not written yet need not be: nobody mounts this a second time.
        rustix::mount::mount(&self.device, &mount, "ext4", safe, c"noinit_itable")
            .or_fault(FaultCode::Isolation, "mount the scratch")?;
        let folder = |path: &Path| {
            rustix::fs::open(
                path,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .or_fault(FaultCode::Isolation, format_args!("open {}", path.display()))
        };
        let key = fscrypt::add_fresh_key(folder(&mount)?.as_fd())
            .or_fault(FaultCode::Isolation, "give the kernel the scratch's key")?;
        let sealed = mount.join(SEALED);
        fs::create_dir(&sealed).or_fault(FaultCode::Isolation, "furnish the scratch")?;
        fscrypt::encrypt(folder(&sealed)?.as_fd(), key).or_fault(FaultCode::Isolation, "encrypt the scratch")?;
        for place in places {
            furnish(place, &sealed.join(place.name)).or_fault(
                FaultCode::Isolation,
                format_args!("furnish {} of the scratch", place.name),
            )?;
        }
        // What is shown keeps it; its clear top is nothing for the job.
        rustix::mount::unmount(&mount, UnmountFlags::DETACH)
            .or_fault(FaultCode::Isolation, "hide the scratch's top")?;
        Ok(Sealed { key })
    }
}

fn furnish(place: &Place<'_>, path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    fs::create_dir(path)?;
    chown(path, Some(place.owner.0), Some(place.owner.1))?;
    fs::set_permissions(path, fs::Permissions::from_mode(place.mode))?;
    rustix::mount::mount_bind(path, &place.target)?;
    Ok(rustix::mount::mount_remount(
        &place.target,
        MountFlags::BIND | place.flags,
        c"",
    )?)
}

/// A scratch that is mounted and encrypted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sealed {
    key: KeyName,
}

impl Sealed {
    /// Reads back, from where the job will write, that this is that file system and that the kernel encrypts there with that key.
    pub(crate) fn verify(self, places: &[PathBuf]) -> Result<(), Fault> {
        for place in places {
            let shown = place.display();
            let folder = rustix::fs::open(
                place,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .or_fault(FaultCode::Isolation, format_args!("open {shown}"))?;
            let kind = rustix::fs::fstatfs(&folder)
                .or_fault(FaultCode::Isolation, format_args!("look at {shown}"))?
                .f_type;
            let key = fscrypt::key_of(folder.as_fd());
            if u64::try_from(kind) != Ok(EXT4) || key != Ok(self.key) {
                let message = format!("{shown} should be encrypted scratch and is not: {kind:#x}, {key:?}");
                return Err(Fault::new(FaultCode::LimitDiffers, message));
            }
        }
        Ok(())
    }
}

/// What ext4 does not encrypt are extended attributes: for a job on such a scratch, and for what it starts, there are none to be set.
/// Programs take that answer for a file system without them.
pub(crate) fn refuse_attributes() -> Result<(), Fault> {
    let calls = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls.into_iter().map(|call| (call, vec![])).collect();
    let refused = SeccompAction::Errno(libc::ENOTSUP.unsigned_abs());
    let filter = || -> Result<(), seccompiler::Error> {
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?;
        seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
    };
    filter().or_fault(FaultCode::Isolation, "refuse attributes that would not be encrypted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_encrypted_scratch_is_never_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let sealed = Sealed {
            key: KeyName::for_tests(),
        };
        for place in [folder.path().to_owned(), PathBuf::from("/dev/shm")] {
            let fault = sealed.verify(&[place]).unwrap_err();
            assert_eq!(fault.code, FaultCode::LimitDiffers);
            assert!(fault.message.contains("should be encrypted"), "{}", fault.message);
        }
        sealed.verify(&[folder.path().join("missing")]).unwrap_err();
    }
}
