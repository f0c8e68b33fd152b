//! What a job sees of the machine: built by its init, in a mount namespace of its own that belongs to the machine's user
//! namespace, before any right is given up. The root is read only; whatever can be written is tmpfs, charged to the job's
//! memory as it is touched, or an encrypted disk (`crate::scratch`). After `enter` there is no way back to the machine's files.

use super::furnish::{ROOT, SECRETS, TOP, below_root};
use crate::card::Placed;
use crate::error::OrFault as _;
use crate::keeper::wire::{Fault, FaultCode, JobPlan};
use crate::scratch::{Disk, Place, Sealed};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use sela_protocol::confidential::{MOST_SECRETS, SECRETS_LIMIT, SecretName, SecretValue};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// Device nodes that every job gets: they hold nothing and reveal nothing.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Most files and folders in each writable place. Their kernel memory is charged to the job, but is not part of `size`.
const MOST_INODES: u32 = 1 << 18;

/// Files of /proc that tell about the machine or act on it (the list of other runtimes): covered by /dev/null.
pub(crate) const COVERED_FILES: [&str; 8] = [
    "kcore",
    "keys",
    "latency_stats",
    "timer_list",
    "timer_stats",
    "sched_debug",
    "interrupts",
    "sysrq-trigger",
];
/// Folders of /proc of the same kind: covered by an empty folder.
pub(crate) const COVERED_FOLDERS: [&str; 3] = ["acpi", "asound", "scsi"];
/// Folders of /proc that may be read but not written.
const READ_ONLY: [&str; 4] = ["bus", "fs", "irq", "sys"];

/// A page of memory, at least.
const PAGE: u64 = 4096;

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const INERT: MountFlags = SAFE.union(MountFlags::NOEXEC);

/// Where a job may write, but for shared memory: name, mode, flags.
const WRITABLE: [(&str, u32, MountFlags); 3] = [
    ("tmp", 0o1777, SAFE),
    ("out", 0o755, INERT),
    ("checkpoint", 0o755, INERT),
];

/// What `statfs` says of a tmpfs.
const TMPFS: u64 = 0x0102_1994;

/// Builds the root and everything mounted in it, without entering it.
pub(super) fn build(
    plan: &JobPlan,
    secrets: &BTreeMap<SecretName, SecretValue>,
    disk: Option<&Disk>,
) -> Result<(PathBuf, Option<Sealed>), Fault> {
    let root = plan.scratch.join(ROOT);
    // Nothing that is mounted from here on may appear in, or be taken away by, the machine's own namespace.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .or_fault(FaultCode::Isolation, "make the mounts private")?;
    stack_layers(plan, &root)?;
    let sealed = disk
        .map(|disk| disk.seal(&plan.scratch, &places(plan, &root)?))
        .transpose()?;
    if sealed.is_none() {
        for (name, mode, flags) in WRITABLE {
            tmpfs(plan, &root.join(name), plan.limits.memory.0, mode, flags)?;
        }
    }
    devices(plan, &root.join("dev"))?;
    processes(&root.join("proc"))?;
    if !secrets.is_empty() {
        hand_over(plan, secrets, &root.join(SECRETS))?;
    }
    if let Some(inputs) = &plan.inputs {
        let target = root.join("in");
        bind(inputs, &target, MountFlags::RDONLY | SAFE).or_fault(FaultCode::Isolation, "show the inputs as /in")?;
    }
    for file in plan.card.iter().flat_map(|card| &card.files) {
        place(file, &root.join(below_root(&file.inside)?), MountFlags::RDONLY | SAFE)?;
    }
    Ok((root, sealed))
}

fn places<'a>(plan: &JobPlan, root: &Path) -> Result<Vec<Place<'a>>, Fault> {
    let owner = (owner(plan, plan.program.user)?, owner(plan, plan.program.group)?);
    let place = |(name, mode, flags): (&'a str, u32, MountFlags)| Place {
        name,
        mode,
        owner,
        target: root.join(name),
        flags,
    };
    Ok(WRITABLE.into_iter().map(place).collect())
}

/// Reads back, from inside, what every place that can be written is, before anything is written there.
pub(super) fn verify(plan: &JobPlan, sealed: Option<Sealed>) -> Result<(), Fault> {
    let writable = WRITABLE.map(|(name, ..)| Path::new("/").join(name));
    match sealed {
        Some(sealed) => sealed.verify(&writable)?,
        None => writable
            .iter()
            .try_for_each(|place| verify_memory(place, plan.limits.memory.0))?,
    }
    verify_memory(Path::new("/dev/shm"), plan.limits.shm_size.0)
}

/// That this is memory, of that size in whole pages.
fn verify_memory(place: &Path, size: u64) -> Result<(), Fault> {
    let shown = place.display();
    let found = rustix::fs::statfs(place).or_fault(FaultCode::Isolation, format_args!("look at {shown}"))?;
    let page = u64::try_from(found.f_bsize).unwrap_or(PAGE);
    let expected = size.max(1).div_ceil(page);
    if u64::try_from(found.f_type) == Ok(TMPFS) && found.f_blocks == expected {
        return Ok(());
    }
    let message = format!(
        "{shown} should be {expected} pages of memory and is {} of file system {:#x}",
        found.f_blocks, found.f_type
    );
    Err(Fault::new(FaultCode::LimitDiffers, message))
}

/// Makes `root` the root, and lets go of the machine's.
pub(super) fn enter(root: &Path) -> Result<(), Fault> {
    let enter = || -> rustix::io::Result<()> {
        rustix::process::chdir(root)?;
        // With both the same, the old root comes to lie on the new one and can be detached from there.
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    };
    enter().or_fault(FaultCode::Isolation, "enter the job's root")
}

/// The image's layers with ours on top, read only: an overlay without an upper layer.
fn stack_layers(plan: &JobPlan, root: &Path) -> Result<(), Fault> {
    // Through descriptors: short, and no path can hold a character that the options give a meaning.
    let open = |layer: &Path| {
        rustix::fs::open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .or_fault(FaultCode::Isolation, format_args!("open the layer {}", layer.display()))
    };
    let mut stack = vec![open(&plan.scratch.join(TOP))?];
    for layer in plan.layers.iter().rev() {
        stack.push(open(layer)?);
    }
    let names: Vec<String> = stack
        .iter()
        .map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd()))
        .collect();
    // No layer may send us elsewhere by an attribute of its own.
    let options = options(format!(
        "redirect_dir=nofollow,metacopy=off,lowerdir={}",
        names.join(":")
    ))?;
    rustix::mount::mount(
        "sela-image",
        root,
        "overlay",
        MountFlags::RDONLY | SAFE,
        options.as_c_str(),
    )
    .or_fault(
        FaultCode::Isolation,
        "stack the image's layers (is overlayfs there: grep overlay /proc/filesystems?)",
    )
}

/// Each secret as a file that only the job's user may read, in a place that is memory only, is never swapped out, and holds nothing
/// else.
fn hand_over(plan: &JobPlan, secrets: &BTreeMap<SecretName, SecretValue>, target: &Path) -> Result<(), Fault> {
    let (user, group) = (owner(plan, plan.program.user)?, owner(plan, plan.program.group)?);
    // Each file takes whole pages.
    tmpfs(
        plan,
        target,
        2 * (SECRETS_LIMIT as u64 + (MOST_SECRETS as u64) * PAGE),
        0o500,
        INERT,
    )?;
    let write = |name: &SecretName, value: &SecretValue| -> std::io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(target.join(name.as_ref()))?;
        file.write_all(value.reveal().as_bytes())?;
        std::os::unix::fs::fchown(&file, Some(user), Some(group))
    };
    for (name, value) in secrets {
        write(name, value).or_fault(FaultCode::Isolation, format_args!("hand over the secret {name}"))?;
    }
    let closed = MountFlags::RDONLY | INERT;
    rustix::mount::mount_remount(target, MountFlags::BIND | closed, c"")
        .or_fault(FaultCode::Isolation, "make the secrets read only")
}

/// An empty place to write. Swapping it out would put what a tenant wrote on the owner's disk: refused where the kernel can.
fn tmpfs(plan: &JobPlan, target: &Path, size: u64, mode: u32, flags: MountFlags) -> Result<(), Fault> {
    let (user, group) = (owner(plan, plan.program.user)?, owner(plan, plan.program.group)?);
    // None at all would be no limit.
    let size = size.max(1);
    let base = format!("size={size},nr_inodes={MOST_INODES},mode={mode:o},uid={user},gid={group}");
    let with = |options: CString| rustix::mount::mount("tmpfs", target, "tmpfs", flags, options.as_c_str());
    let first = with(options(format!("{base},noswap"))?);
    let mounted = if first == Err(rustix::io::Errno::INVAL) {
        with(options(base)?)
    } else {
        first
    };
    mounted.or_fault(
        FaultCode::Isolation,
        format_args!("mount a tmpfs on {}", target.display()),
    )
}

fn owner(plan: &JobPlan, inside: u32) -> Result<u32, Fault> {
    plan.ids.outside(inside).ok_or_else(|| {
        Fault::new(
            FaultCode::BadPlan,
            format!(
                "the image's user or group {inside} is not mapped: ids below {} are",
                plan.ids.count
            ),
        )
    })
}

/// A /dev with a handful of harmless nodes, the card's, and shared memory.
fn devices(plan: &JobPlan, dev: &Path) -> Result<(), Fault> {
    let what = "furnish /dev";
    let sized = options("size=65536,nr_inodes=256,mode=0755".to_owned())?;
    rustix::mount::mount(
        "tmpfs",
        dev,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        sized.as_c_str(),
    )
    .or_fault(FaultCode::Isolation, what)?;
    for name in DEVICES {
        let node = Placed {
            outside: Path::new("/dev").join(name),
            inside: Path::new("/dev").join(name),
        };
        place_device(&node, &dev.join(name))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(name)).or_fault(FaultCode::Isolation, what)?;
    }
    for node in plan.card.iter().flat_map(|card| &card.devices) {
        let below = below_root(&node.inside)?;
        let below = below
            .strip_prefix("dev")
            .or_fault(FaultCode::BadPlan, "place a device outside of /dev")?;
        place_device(node, &dev.join(below))?;
    }
    let shm = dev.join("shm");
    fs::create_dir(&shm).or_fault(FaultCode::Isolation, what)?;
    tmpfs(plan, &shm, plan.limits.shm_size.0, 0o1777, INERT)?;
    let closed = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount_remount(dev, closed, c"").or_fault(FaultCode::Isolation, "make /dev read only")
}

/// A device node can be read and written through a read only mount, while its times and modes cannot be changed. The device
/// file of a simulated card is a plain file: it must be writable to be locked.
fn place_device(node: &Placed, target: &Path) -> Result<(), Fault> {
    let kind = fs::metadata(&node.outside)
        .or_fault(
            FaultCode::Card,
            format_args!("find the device {}", node.outside.display()),
        )?
        .file_type();
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let flags = if kind.is_char_device() {
        flags | MountFlags::RDONLY
    } else {
        flags | MountFlags::NODEV
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).or_fault(
            FaultCode::Card,
            format_args!("make a folder for {}", node.inside.display()),
        )?;
    }
    fs::write(target, "").or_fault(
        FaultCode::Card,
        format_args!("make a place for {}", node.inside.display()),
    )?;
    place(node, target, flags)
}

fn place(file: &Placed, target: &Path, flags: MountFlags) -> Result<(), Fault> {
    bind(&file.outside, target, flags).or_fault(
        FaultCode::Card,
        format_args!(
            "show {} to the job as {}",
            file.outside.display(),
            file.inside.display()
        ),
    )
}

fn bind(source: &Path, target: &Path, flags: MountFlags) -> rustix::io::Result<()> {
    rustix::mount::mount_bind(source, target)?;
    let remount = |flags| rustix::mount::mount_remount(target, MountFlags::BIND | flags, c"");
    match remount(flags) {
        // Without root, what the machine's own mount forbids cannot be allowed again: it stays forbidden here.
        Err(rustix::io::Errno::PERM) => remount(flags | forbidden_at(target)?),
        outcome => outcome,
    }
}

/// What a mount forbids.
fn forbidden_at(place: &Path) -> rustix::io::Result<MountFlags> {
    use rustix::fs::StatVfsMountFlags as Found;
    let found = rustix::fs::statvfs(place)?.f_flag;
    let pairs = [
        (Found::RDONLY, MountFlags::RDONLY),
        (Found::NOSUID, MountFlags::NOSUID),
        (Found::NODEV, MountFlags::NODEV),
        (Found::NOEXEC, MountFlags::NOEXEC),
    ];
    let forbidden = pairs.into_iter().filter(|(found_as, _)| found.contains(*found_as));
    Ok(forbidden.fold(MountFlags::empty(), |all, (_, flag)| all | flag))
}

/// The job's own /proc, and what it may not see or change of it.
fn processes(proc: &Path) -> Result<(), Fault> {
    let hide = || -> rustix::io::Result<()> {
        rustix::mount::mount("proc", proc, "proc", INERT, None)?;
        for name in COVERED_FILES {
            skip_missing(bind(
                Path::new("/dev/null"),
                &proc.join(name),
                MountFlags::RDONLY | MountFlags::NOSUID,
            ))?;
        }
        for name in COVERED_FOLDERS {
            let empty = c"size=0,nr_inodes=2,mode=0555";
            skip_missing(rustix::mount::mount(
                "tmpfs",
                proc.join(name),
                "tmpfs",
                INERT | MountFlags::RDONLY,
                empty,
            ))?;
        }
        for name in READ_ONLY {
            skip_missing(bind(&proc.join(name), &proc.join(name), INERT | MountFlags::RDONLY))?;
        }
        Ok(())
    };
    hide().or_fault(FaultCode::Isolation, "mount the job's /proc")
}

/// Which of them there are depends on how the kernel was built.
fn skip_missing(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if result == Err(rustix::io::Errno::NOENT) {
        Ok(())
    } else {
        result
    }
}

fn options(text: String) -> Result<CString, Fault> {
    CString::new(text).or_fault(FaultCode::BadPlan, "write mount options")
}
