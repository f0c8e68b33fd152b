//! What the keeper does among a job's own ids and within its limits, in processes of their own that can do nothing else: a user
//! namespace for the ids of a job whose engine maps none, and the unpacking of a checkpoint.

use super::container::same_namespace;
use super::engine::EnginePlan;
use crate::cgroup::adopt::join;
use crate::error::OrFault as _;
use crate::ids::IdRange;
use crate::keeper::wire::{CgroupLayout, CgroupPlace, Fault, FaultCode, JobPlan};
use crate::native::checkpoint::unpack_sealed;
use crate::native::namespaces::write_id_maps;
use crate::native::{Side, fork};
use crate::network::door;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Signal, Uid, WaitOptions};
use sela_protocol::confidential::{SealingKey, SecretName, SecretValue};
use sela_protocol::units::Bytes;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A user namespace in which `ids` are mapped from 0 on, and nothing lives: whoever enters it has rights over these ids' files
/// and over nobody else's.
///
/// # Safety
/// The calling process must have one thread only.
pub(crate) unsafe fn join_ids(ids: IdRange) -> Result<OwnedFd, Fault> {
    let what = "make a user namespace for the job's ids";
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).or_fault(FaultCode::Isolation, what);
    let ((hears, says), (waits, goes)) = (pipe()?, pipe()?);
    // SAFETY: one thread, as promised by the caller.
    match unsafe { fork() }.or_fault(FaultCode::Isolation, what)? {
        Side::Child => {
            drop((hears, goes));
            // SAFETY: this process was forked from one with a single thread, and has made none since.
            let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER) };
            if unshared.is_ok() {
                let _ = rustix::io::write(&says, b"u");
                let _ = rustix::io::read(&waits, &mut [0; 1]);
            }
            // SAFETY: ends this copy of the keeper without running what was meant for the keeper's own end.
            unsafe { libc::_exit(0) }
        }
        Side::Parent { child } => {
            drop((says, waits));
            let namespace = || -> std::io::Result<OwnedFd> {
                if rustix::io::read(&hears, &mut [0; 1])? != 1 {
                    return Err(std::io::Error::other("unshare was refused"));
                }
                write_id_maps(child, ids)?;
                let path = format!("/proc/{}/ns/user", child.as_raw_nonzero());
                Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
            };
            let made = namespace();
            drop(goes);
            reap(child);
            made.or_fault(FaultCode::Isolation, what)
        }
    }
}

fn reap(child: Pid) {
    while matches!(
        rustix::process::waitpid(Some(child), WaitOptions::empty()),
        Err(Errno::INTR)
    ) {}
}

/// Opens a job's way to the network, in the network namespace of its first process: the listening socket goes to the agent. Takes a
/// moment.
///
/// # Safety
/// The calling process must have one thread only.
pub(crate) unsafe fn open_network(pid: u32, agent: BorrowedFd<'_>) -> Result<(), Fault> {
    let what = "open the job's way to the network";
    let agent = agent.try_clone_to_owned().or_fault(FaultCode::Isolation, what)?;
    let path = format!("/proc/{pid}/ns/net");
    let namespace =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).or_fault(FaultCode::Isolation, what)?;
    let (hears, says) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).or_fault(FaultCode::Isolation, what)?;
    // SAFETY: one thread, as promised by the caller.
    match unsafe { fork() }.or_fault(FaultCode::Isolation, what)? {
        Side::Child => {
            let open = std::panic::AssertUnwindSafe(|| -> std::io::Result<()> {
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?;
                Ok(door::open(agent)?)
            });
            let failed = match std::panic::catch_unwind(open) {
                Ok(opened) => opened.err().map(|error| error.to_string()),
                Err(_) => Some("it failed".to_owned()),
            };
            let _ = rustix::io::write(&says, failed.unwrap_or_default().as_bytes());
            // SAFETY: ends this copy of the keeper without running what was meant for the keeper's own end.
            unsafe { libc::_exit(0) }
        }
        Side::Parent { child } => {
            drop(says);
            let mut why = [0; 512];
            let count = rustix::io::read(&hears, &mut why).or_fault(FaultCode::Isolation, what)?;
            reap(child);
            if count == 0 {
                return Ok(());
            }
            Err(String::from_utf8_lossy(&why[..count])).or_fault(FaultCode::Isolation, what)
        }
    }
}

/// Where a checkpoint is unpacked, and as whom.
pub(crate) struct Unpacking<'a> {
    /// The sealed archive.
    pub(crate) archive: &'a Path,
    /// What opens it.
    pub(crate) key: &'a SealingKey,
    /// The job's `/checkpoint`.
    pub(crate) folder: BorrowedFd<'a>,
    /// The job's ids.
    pub(crate) user_namespace: BorrowedFd<'a>,
    /// Its user and group in there.
    pub(crate) user: (u32, u32),
    /// Most content.
    pub(crate) limit: Bytes,
}

/// A process that unpacks, in the cgroups of `like`, as the job's user: every page that it touches is the job's.
#[derive(Debug)]
pub(crate) struct Unpacker {
    pid: Pid,
    answer: OwnedFd,
    said: Vec<u8>,
}

/// Begins.
///
/// # Safety
/// The calling process must have one thread only.
pub(crate) unsafe fn unpack_checkpoint(
    unpacking: &Unpacking<'_>,
    place: &CgroupPlace,
    like: u32,
) -> Result<Unpacker, Fault> {
    let what = "begin to unpack the checkpoint";
    let archive = rustix::fs::open(
        unpacking.archive,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .or_fault(
        FaultCode::BadCheckpoint,
        format_args!("open the checkpoint {}", unpacking.archive.display()),
    )?;
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).or_fault(FaultCode::Isolation, what);
    let ((answer, says), (waits, goes)) = (pipe()?, pipe()?);
    // SAFETY: one thread, as promised by the caller.
    match unsafe { fork() }.or_fault(FaultCode::Isolation, what)? {
        Side::Child => {
            drop((answer, goes));
            let work = std::panic::AssertUnwindSafe(|| work(unpacking, archive, &waits));
            let fault = std::panic::catch_unwind(work)
                .unwrap_or_else(|_| Err(Fault::new(FaultCode::BadCheckpoint, "the unpacker failed")));
            let _ = rustix::io::write(&says, &serde_json::to_vec(&fault.err()).unwrap_or_default());
            // SAFETY: ends this copy of the keeper without running what was meant for the keeper's own end.
            unsafe { libc::_exit(0) }
        }
        Side::Parent { child } => {
            drop((says, waits));
            rustix::io::ioctl_fionbio(&answer, true).or_fault(FaultCode::Isolation, what)?;
            let unpacker = Unpacker {
                pid: child,
                answer,
                said: Vec::new(),
            };
            join(
                place.layout,
                &place.root,
                child.as_raw_nonzero().get().unsigned_abs(),
                like,
            )
            .map_err(|error| Fault::new(FaultCode::Cgroup, error.to_string()))?;
            rustix::io::write(&goes, b"g").or_fault(FaultCode::Isolation, what)?;
            Ok(unpacker)
        }
    }
}

/// In the child.
fn work(unpacking: &Unpacking<'_>, archive: OwnedFd, waits: &OwnedFd) -> Result<(), Fault> {
    let what = "give up rights before the checkpoint is unpacked";
    if rustix::io::read(waits, &mut [0; 1]) != Ok(1) {
        return Err(Fault::new(FaultCode::Isolation, "the keeper is gone"));
    }
    let give_up = || -> rustix::io::Result<()> {
        let (user, group) = unpacking.user;
        rustix::thread::move_into_link_name_space(
            unpacking.user_namespace,
            Some(rustix::thread::LinkNameSpaceType::User),
        )?;
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        let none = rustix::thread::CapabilitySet::empty();
        let none = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, none)?;
        rustix::thread::set_no_new_privs(true)?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
    };
    give_up().or_fault(FaultCode::Isolation, what)?;
    let folder = PathBuf::from(format!("/proc/self/fd/{}", unpacking.folder.as_raw_fd()));
    unpack_sealed(archive, unpacking.key, &folder, unpacking.limit)
}

impl Unpacker {
    /// Becomes readable when it says something, or is dead.
    pub(crate) fn answer(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }

    /// How it went, once it has; `Err(None)` where it was killed before it could say.
    pub(crate) fn outcome(&mut self) -> Option<Result<(), Option<Fault>>> {
        let mut part = [0; 4096];
        loop {
            match rustix::io::read(&self.answer, &mut part) {
                Ok(0) => {
                    let said = serde_json::from_slice::<Option<Fault>>(&self.said);
                    return Some(match said {
                        Ok(None) => Ok(()),
                        Ok(Some(fault)) => Err(Some(fault)),
                        Err(_) => Err(None),
                    });
                }
                Ok(count) => self.said.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        reap(self.pid);
    }
}

/// crun gives its own standard streams to the container's root. Where one of them is the machine's `/dev/null`, the job would own a node
/// of the machine's, and could close it to everybody: taken back before the program begins.
fn take_back(node: &Path, ids: IdRange) -> Result<(), Fault> {
    let take = || -> std::io::Result<()> {
        let owner = fs::symlink_metadata(node)?.uid();
        if (ids.first..ids.first.saturating_add(ids.count)).contains(&owner) {
            std::os::unix::fs::lchown(node, Some(0), Some(0))?;
            fs::set_permissions(node, fs::Permissions::from_mode(0o666))?;
        }
        Ok(())
    };
    take().or_fault(
        FaultCode::Isolation,
        format_args!("take {} back from the job", node.display()),
    )
}

/// Asks the kernel, by the first process, whether the walls stand; says which ids the job has outside.
pub(super) fn read_back(pid: u32, plan: &JobPlan, engine: &EnginePlan) -> Result<IdRange, Fault> {
    let read = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        fs::read_to_string(&path).or_fault(FaultCode::LimitDiffers, format_args!("read {path}"))
    };
    let differs = |message: String| Err(Fault::new(FaultCode::LimitDiffers, message));
    let ids = if engine.remapped {
        mapped(&read("uid_map")?)?
    } else {
        plan.ids
    };
    let user = ids.first.saturating_add(plan.program.user);
    let status = read("status")?;
    for (key, expected) in [
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
        ("CapInh", NO_CAPABILITIES.to_owned()),
        ("CapPrm", NO_CAPABILITIES.to_owned()),
        ("CapEff", NO_CAPABILITIES.to_owned()),
        ("CapBnd", NO_CAPABILITIES.to_owned()),
        ("CapAmb", NO_CAPABILITIES.to_owned()),
        ("Uid", [user; 4].map(|user| user.to_string()).join("\t")),
    ] {
        let found = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        if found != Some(expected.as_str()) {
            return differs(format!(
                "{key} of the container's first process should be {expected} and is {found:?}"
            ));
        }
    }
    // With version 1 Podman makes no namespace of cgroups: the job then reads where its group lies, and can write none.
    let hidden = ["cgroup"]
        .into_iter()
        .filter(|_| plan.cgroups.layout == CgroupLayout::V2);
    for name in ["net", "pid", "mnt", "ipc", "uts"].into_iter().chain(hidden) {
        if same_namespace(pid, name) {
            return differs(format!("the container shares the machine's {name} namespace"));
        }
    }
    let devices = read("net/dev")?;
    if devices
        .lines()
        .skip(2)
        .any(|line| line.trim_start().split(':').next() != Some("lo"))
    {
        return differs("the container has a network besides loopback".to_owned());
    }
    match unfit(&read("mountinfo")?, &super::order::covered(), |path| {
        Path::new(path).exists()
    }) {
        Some(what) => differs(what),
        None => take_back(Path::new("/dev/null"), ids).map(|()| ids),
    }
}

/// What is wrong with a container's table of mounts: a root that can be written, or something of the machine's that lies open.
/// What the machine does not have needs no cover.
fn unfit(table: &str, covered: &[String], has: impl Fn(&str) -> bool) -> Option<String> {
    // Each mount's place, options and, behind a dash, kind (proc_pid_mountinfo(5)).
    let mounts: Vec<(&str, &str, &str)> = table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(4);
            let (place, options) = (fields.next()?, fields.next()?);
            Some((place, options, fields.skip_while(|field| *field != "-").nth(1)?))
        })
        .collect();
    // The last one is on top.
    let at = |wanted: &str| mounts.iter().rev().find(|(place, ..)| *place == wanted);
    if !at("/").is_some_and(|(_, options, _)| options.split(',').any(|one| one == "ro")) {
        return Some("the container's root can be written".to_owned());
    }
    let open = covered.iter().find(|path| {
        let is_covered = at(path).is_some_and(|(_, _, kind)| !matches!(*kind, "sysfs" | "proc" | "devpts"));
        !is_covered && has(path)
    });
    open.map(|path| format!("the engine was asked to cover {path}, which lies open"))
}

const NO_CAPABILITIES: &str = "0000000000000000";

/// What an engine mapped: nobody's ids but jobs'.
fn mapped(map: &str) -> Result<IdRange, Fault> {
    let mut numbers = map.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(0)), Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
        return Err(Fault::new(
            FaultCode::LimitDiffers,
            format!("the engine maps the container's ids in a way that is not understood: {map}"),
        ));
    };
    IdRange::new(first, count).map_err(|error| Fault::new(FaultCode::LimitDiffers, error.to_string()))
}

/// Each secret as a file that only the job's user may read, in memory. Made as that user: where the engine maps ids, the place
/// knows no others.
pub(super) fn hand_over(
    folder: &OwnedFd,
    secrets: &BTreeMap<SecretName, SecretValue>,
    (user, group): (u32, u32),
) -> Result<(), Fault> {
    let write = |name: &SecretName, value: &SecretValue| -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, name.as_ref() as &str, flags, Mode::RUSR)?;
        fs::File::from(file).write_all(value.reveal().as_bytes())
    };
    become_for_files(user, group);
    let written = secrets.iter().try_for_each(|(name, value)| {
        write(name, value).or_fault(FaultCode::Isolation, format_args!("hand over the secret {name}"))
    });
    become_for_files(0, 0);
    written
}

/// Whose files this process makes from now on.
fn become_for_files(user: u32, group: u32) {
    // SAFETY: both calls take a number each. Whether they were obeyed is seen by what can be made then.
    unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_can_be_written_and_what_lies_open_is_found_in_the_table_of_mounts() {
        let covered = ["/sys", "/proc/keys"].map(str::to_owned);
        let root = "1 0 0:1 / / ro,relatime - overlay overlay rw\n";
        let sys = "2 1 0:2 / /sys ro,nosuid - sysfs sysfs rw\n";
        let over_sys = "3 2 0:3 / /sys ro shared:1 - tmpfs tmpfs rw\n";
        let over_keys = "4 1 0:4 /null /proc/keys rw - tmpfs tmpfs rw\n";
        for (table, word) in [
            ([root, sys, over_sys, over_keys].concat(), None),
            (
                [&root.replace("ro,", "rw,"), over_sys, over_keys].concat(),
                Some("root"),
            ),
            ([root, sys, over_keys].concat(), Some("/sys")),
            ([root, over_keys].concat(), Some("/sys")),
            ([root, over_sys].concat(), Some("/proc/keys")),
            (String::new(), Some("root")),
        ] {
            let found = unfit(&table, &covered, |_| true);
            assert_eq!(found.is_some(), word.is_some(), "{table}");
            assert!(word.is_none_or(|word| found.is_some_and(|found| found.contains(word))));
        }
        assert_eq!(
            unfit(root, &covered, |_| false),
            None,
            "what is not there lies not open"
        );
    }

    #[test]
    fn only_a_map_to_subordinate_ids_is_taken() {
        for (map, expected) in [
            ("         0     165536      65536\n", Some(165_536)),
            ("         0          0 4294967295\n", None),
            ("         0       1000      65536\n", None),
            ("      1000     165536      65536\n", None),
            ("", None),
        ] {
            assert_eq!(mapped(map).ok().map(|ids| ids.first), expected, "{map:?}");
        }
    }

    #[test]
    fn what_a_runtime_gave_to_the_job_of_the_machines_is_taken_back_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            println!(
                "skipped: needs root: what_a_runtime_gave_to_the_job_of_the_machines_is_taken_back_and_nothing_else"
            );
            return;
        }
        let ids = IdRange::new(200_000, 65_536).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("node");
        for (owner, mode, expected) in [
            (200_000, 0o600, (0, 0o666)),
            (265_535, 0o666, (0, 0o666)),
            (265_536, 0o600, (265_536, 0o600)),
            (0, 0o644, (0, 0o644)),
        ] {
            fs::write(&node, "").unwrap();
            fs::set_permissions(&node, fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::lchown(&node, Some(owner), Some(owner)).unwrap();
            take_back(&node, ids).unwrap();
            let found = fs::metadata(&node).unwrap();
            assert_eq!((found.uid(), found.mode() & 0o777), expected);
        }
        assert!(take_back(&folder.path().join("missing"), ids).is_err());
    }
}
