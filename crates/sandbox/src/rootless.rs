//! An agent that is not root: what it needs of this machine, and how it becomes root of a user namespace of its own, in which everything
//! else goes on as it does for a rootful one (`docs/adr/0004`). Outside, that namespace's root is the agent's own user, and what
//! follows are subordinate ids; a job's own namespace, one level below, maps the subordinate ids alone. Nothing here runs a job.

use crate::cgroup::v2;
use crate::ids::{IdRange, IdRangeError};
use crate::native::{Side, fork};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, WaitOptions};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What maps ids for a user who may not: the package `uidmap` has both.
const MAPPERS: [&str; 2] = ["newuidmap", "newgidmap"];

/// Where a machine is looked at for this. Paths, so that tests bring their own.
#[derive(Debug, Clone)]
pub struct Grounds {
    /// `/sys/fs/cgroup`.
    pub cgroups: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/etc`.
    pub etc: PathBuf,
    /// Folders with programs.
    pub programs: Vec<PathBuf>,
    /// The agent's user and group.
    pub user: (u32, u32),
}

impl Grounds {
    /// This machine, and the user of this process.
    pub fn this() -> Self {
        Self {
            cgroups: PathBuf::from("/sys/fs/cgroup"),
            proc: PathBuf::from("/proc"),
            etc: PathBuf::from("/etc"),
            programs: ["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from).to_vec(),
            user: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        }
    }
}

/// What was found for a user who is not root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outer {
    user: (u32, u32),
    users: IdRange,
    groups: IdRange,
    mappers: [PathBuf; 2],
    /// The group of the version 2 hierarchy that was delegated to this user.
    pub cgroup: PathBuf,
}

/// What went wrong on the way into the namespace.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The kernel refused something.
    #[error("could not {what}: {source}")]
    Kernel {
        /// "make a user namespace".
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The ids were not mapped.
    #[error("the subordinate ids were not mapped: {0}")]
    NotMapped(String),
}

/// Whether this process is in a user namespace other than the machine's first: then ids count differently, and its root is nobody else's.
pub fn is_inside(proc: &Path) -> bool {
    let map = fs::read_to_string(proc.join("self/uid_map")).unwrap_or_default();
    let fields: Vec<&str> = map.split_whitespace().collect();
    !fields.is_empty() && fields != ["0", "0", "4294967295"]
}

/// Looks for everything that it takes.
///
/// # Errors
/// The first thing that is missing, and the one command that mends it.
pub fn look(grounds: &Grounds) -> Result<Outer, String> {
    let cgroup = delegated(grounds)?;
    let setting = |name: &str| fs::read_to_string(grounds.proc.join("sys").join(name)).unwrap_or_default();
    if setting("kernel/unprivileged_userns_clone").trim() == "0" {
        return Err(
            "user namespaces are for root alone here: sudo sysctl -w kernel.unprivileged_userns_clone=1".to_owned(),
        );
    }
    if setting("kernel/apparmor_restrict_unprivileged_userns").trim() == "1" {
        return Err(
            "AppArmor keeps user namespaces from this program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
                .to_owned(),
        );
    }
    let mapper = |name: &str| {
        let found = grounds
            .programs
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.is_file());
        found.ok_or_else(|| format!("{name} is not installed: sudo apt-get install uidmap"))
    };
    let mappers = [mapper(MAPPERS[0])?, mapper(MAPPERS[1])?];
    let name = name_of(grounds);
    Ok(Outer {
        user: grounds.user,
        users: range(grounds, "subuid", &name)?,
        groups: range(grounds, "subgid", &name)?,
        mappers,
        cgroup,
    })
}

/// The group that this process is in, if it is this user's to share out, with all that jobs need.
fn delegated(grounds: &Grounds) -> Result<PathBuf, String> {
    if !grounds.cgroups.join("cgroup.controllers").exists() {
        return Err(
            "without root, jobs need cgroup version 2 alone: boot with systemd.unified_cgroup_hierarchy=1, or run the agent as a system service"
                .to_owned(),
        );
    }
    let group = own_group(grounds);
    let shown = group.display();
    let writable = ["", "cgroup.procs", "cgroup.subtree_control"]
        .iter()
        .all(|file| rustix::fs::access(group.join(file), Access::WRITE_OK).is_ok());
    if group == grounds.cgroups || !writable {
        return Err(format!(
            "the group {shown} is not this user's to share out: start the agent by `systemd-run --user --scope -p Delegate=yes sela agent run`, or by a unit with Delegate=yes"
        ));
    }
    let missing: Vec<&str> = v2::NEEDED
        .into_iter()
        .filter(|name| !v2::offered(&group, name))
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "this user's groups lack {}: sudo systemctl edit user@.service, and there [Service] Delegate=cpu cpuset io memory pids",
            missing.join(", ")
        ));
    }
    Ok(group)
}

/// The group that this process was started in: the leaf into which an agent moves itself lies below it.
fn own_group(grounds: &Grounds) -> PathBuf {
    let text = fs::read_to_string(grounds.proc.join("self/cgroup")).unwrap_or_default();
    let inside = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    let group = grounds.cgroups.join(inside);
    match group.parent() {
        Some(above) if group.ends_with(v2::AGENT_LEAF) => above.to_owned(),
        _ if inside.is_empty() => grounds.cgroups.clone(),
        _ => group,
    }
}

/// The group that was delegated to this process, which is root of its own namespace.
pub fn group_inside() -> PathBuf {
    own_group(&Grounds::this())
}

/// The user's name, as the files with ranges have it; the number where it has none.
fn name_of(grounds: &Grounds) -> String {
    let number = grounds.user.0.to_string();
    let passwd = fs::read_to_string(grounds.etc.join("passwd")).unwrap_or_default();
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(&number)).then(|| name.to_owned())
    });
    named.unwrap_or(number)
}

fn range(grounds: &Grounds, file: &str, name: &str) -> Result<IdRange, String> {
    let path = grounds.etc.join(file);
    let mend = format!("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}");
    match IdRange::named(&path, &[name, &grounds.user.0.to_string()]) {
        Ok(Some(range)) => Ok(range),
        Ok(None) => Err(format!("{name} has no range of ids in {}: {mend}", path.display())),
        Err(error @ (IdRangeError::Unsafe { .. } | IdRangeError::Malformed { .. })) => Err(format!("{error}; {mend}")),
    }
}

/// Becomes root of a user namespace of its own, with its own view of the mounts. What this process opened before stays open.
///
/// # Errors
/// [`EnterError`]; the process may then be in a namespace without ids, and can only end.
///
/// # Safety
/// The calling process must have one thread only: a namespace is a whole process's, and this one forks.
pub unsafe fn enter(outer: &Outer) -> Result<(), EnterError> {
    let kernel = |what: &'static str| {
        move |error: Errno| EnterError::Kernel {
            what,
            source: error.into(),
        }
    };
    let (waits, tells) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(kernel("make a pipe"))?;
    let (hears, answers) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(kernel("make a pipe"))?;
    let own = rustix::process::getpid();
    // Ids are mapped from outside, by a process of the user's that has seen that there is a namespace.
    // SAFETY: one thread, as promised by the caller.
    let forked = unsafe { fork() }.map_err(|source| EnterError::Kernel { what: "fork", source })?;
    let helper = match forked {
        Side::Child => {
            drop((tells, hears));
            let said = map_when_told(outer, own, &waits);
            let _ = rustix::io::write(&answers, said.as_bytes());
            // SAFETY: ends this copy without running what was meant for the first.
            unsafe { libc::_exit(0) }
        }
        Side::Parent { child } => child,
    };
    drop((waits, answers));
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: one thread, as promised by the caller; files and memory stay as they are.
    let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) };
    // Nobody there, and it ends.
    let told = unshared.and_then(|()| rustix::io::write(&tells, b"g"));
    drop(tells);
    let said = read_all(&hears);
    let _ = rustix::process::waitpid(Some(helper), WaitOptions::empty());
    told.map_err(kernel("make a user namespace"))?;
    if !said.is_empty() {
        return Err(EnterError::NotMapped(said));
    }
    // What is mounted from now on is nobody else's; what the machine mounts later is still seen.
    rustix::mount::mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(kernel("keep the mounts apart"))
}

fn read_all(from: &OwnedFd) -> String {
    let mut said = Vec::new();
    let mut part = [0; 1024];
    loop {
        match rustix::io::read(from, &mut part) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&part[..count]),
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// In the fork. Gives what went wrong; nothing, where nothing did.
fn map_when_told(outer: &Outer, process: Pid, waits: &OwnedFd) -> String {
    let mut word = [0; 1];
    if rustix::io::read(waits, &mut word) != Ok(1) {
        return String::new();
    }
    let own = [outer.user.0, outer.user.1];
    let ranges = [outer.users, outer.groups];
    for ((mapper, own), range) in outer.mappers.iter().zip(own).zip(ranges) {
        #[expect(clippy::disallowed_methods, reason = "this crate is where processes are started")]
        let mut command = std::process::Command::new(mapper);
        command.arg(process.as_raw_nonzero().to_string());
        for number in [0, own, 1, IdRange::INSIDE.first, range.first, IdRange::INSIDE.count] {
            command.arg(number.to_string());
        }
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return format!("{}: {why}", mapper.display());
            }
            Err(error) => return format!("{}: {error}", mapper.display()),
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which everything is as it must be, but for these files: written, or with `None` removed.
    fn machine(folder: &Path, changes: &[(&str, Option<&str>)]) -> Grounds {
        let all = [
            ("cgroup/cgroup.controllers", "cpu memory pids"),
            ("cgroup/own/cgroup.controllers", "cpu io memory pids"),
            ("cgroup/own/cgroup.procs", ""),
            ("cgroup/own/cgroup.subtree_control", ""),
            ("proc/self/cgroup", "0::/own\n"),
            (
                "etc/passwd",
                "root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\n",
            ),
            ("etc/subuid", "bert:100000:65536\nanna:165536:65536\n"),
            ("etc/subgid", "1000:165536:65536\n"),
            ("bin/newuidmap", ""),
            ("bin/newgidmap", ""),
        ];
        let changed = changes.iter().map(|(name, text)| (*name, *text));
        for (name, text) in all.map(|(name, text)| (name, Some(text))).into_iter().chain(changed) {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text {
                Some(text) => fs::write(path, text).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
        Grounds {
            cgroups: folder.join("cgroup"),
            proc: folder.join("proc"),
            etc: folder.join("etc"),
            programs: vec![folder.join("bin")],
            user: (1000, 1000),
        }
    }

    #[test]
    fn each_thing_that_is_missing_is_named_with_the_command_that_mends_it() {
        type Case<'a> = (&'a [(&'a str, Option<&'a str>)], Result<(), &'a str>);
        let cases: [Case<'_>; 12] = [
            (&[], Ok(())),
            (&[("proc/self/cgroup", Some("0::/own/sela-agent\n"))], Ok(())),
            (
                &[("cgroup/cgroup.controllers", None)],
                Err("systemd.unified_cgroup_hierarchy=1"),
            ),
            (&[("proc/self/cgroup", Some("0::/\n"))], Err("-p Delegate=yes")),
            (&[("proc/self/cgroup", Some("0::/others\n"))], Err("-p Delegate=yes")),
            (
                &[("cgroup/own/cgroup.controllers", Some("memory pids"))],
                Err("lack cpu: sudo systemctl edit user@.service"),
            ),
            (&[("bin/newuidmap", None)], Err("sudo apt-get install uidmap")),
            (&[("bin/newgidmap", None)], Err("newgidmap is not installed")),
            (&[("etc/subuid", None)], Err("usermod --add-subuids")),
            (&[("etc/subgid", Some("anna:1000:65536\n"))], Err("not safe for jobs")),
            (
                &[("proc/sys/kernel/unprivileged_userns_clone", Some("0\n"))],
                Err("kernel.unprivileged_userns_clone=1"),
            ),
            (
                &[("proc/sys/kernel/apparmor_restrict_unprivileged_userns", Some("1\n"))],
                Err("apparmor_restrict_unprivileged_userns=0"),
            ),
        ];
        for (changes, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let found = look(&machine(folder.path(), changes));
            match (expected, found) {
                (Ok(()), Ok(outer)) => {
                    assert_eq!(outer.cgroup, folder.path().join("cgroup/own"));
                    assert_eq!((outer.users.first, outer.groups.first), (165_536, 165_536));
                }
                (Err(words), Err(why)) => assert!(why.contains(words), "{why} for {words}"),
                (expected, found) => panic!("{expected:?} and {found:?} for {changes:?}"),
            }
        }
    }

    #[test]
    fn a_namespace_of_ones_own_is_told_from_the_machines() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("self")).unwrap();
        for (map, inside) in [
            ("         0          0 4294967295\n", false),
            ("0 1000 1\n1 165536 65536\n", true),
            ("", false),
        ] {
            fs::write(folder.path().join("self/uid_map"), map).unwrap();
            assert_eq!(is_inside(folder.path()), inside, "{map}");
        }
    }
}
