//! What this machine can promise of a job's isolation, found by looking and without running anything. `docs/security.md` says
//! what each line means; whether an owner or a tenant is content with it is theirs to say.

use crate::cdi;
use crate::cgroup::{hybrid, v2};
use crate::keeper::wire::CgroupLayout;
use crate::rootless;
use sela_protocol::local::IsolationState;
use sela_protocol::node::Isolation;
use std::fs;
use std::path::{Path, PathBuf};

/// How well something is promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strength {
    /// By the kernel, read back.
    Enforced,
    /// In part.
    Weaker {
        /// What is missing.
        why: &'static str,
    },
    /// Not at all.
    Absent {
        /// Why.
        why: &'static str,
    },
}

/// One promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarantee {
    /// What is promised, in the words of `docs/security.md`.
    pub name: &'static str,
    /// How well.
    pub strength: Strength,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// How cgroups are laid out, where jobs can be run.
    pub layout: Option<CgroupLayout>,
    /// The same in the words of the local interface: the level, or what to do.
    pub state: IsolationState,
    /// Where a job's scratch can lie.
    pub scratch: ScratchKind,
    /// Each promise; empty where no job can be run.
    pub guarantees: Vec<Guarantee>,
}

/// Where a job's scratch can lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScratchKind {
    /// In its memory only.
    Memory,
    /// On an encrypted disk, too.
    EncryptedDisk,
}

/// Where the machine is looked at.
#[derive(Debug, Clone)]
pub struct Machine {
    /// `/sys/fs/cgroup`, or the group that was delegated.
    pub cgroups: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// Makes a file system that can encrypt.
    pub mkfs: PathBuf,
    /// Whether the agent is root of this machine.
    pub root: bool,
    /// Where it is not: whether it does without, which is so inside a user namespace of its own ([`rootless::enter`]).
    pub rootless: Result<(), String>,
    /// Whether a driver is here by which a card's memory can be wiped, be it the SIMULATED one.
    pub wipes_cards: bool,
}

/// What is said where all is there, and nobody entered.
const NOT_ENTERED: &str = "this machine has all that jobs without root take, but the agent does not run them so yet: run it as a system service";

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let proc = PathBuf::from("/proc");
        let inside = rootless::is_inside(&proc);
        let root = rustix::process::geteuid().is_root() && !inside;
        let mut cgroups = PathBuf::from("/sys/fs/cgroup");
        let rootless = if root || inside {
            Ok(())
        } else {
            rootless::look(&rootless::Grounds::this()).and(Err(NOT_ENTERED.to_owned()))
        };
        // Without root what may be shared out is what was delegated.
        if inside && cgroups.join("cgroup.controllers").exists() {
            cgroups = rootless::group_inside();
        }
        Self {
            cgroups,
            proc,
            sys: PathBuf::from("/sys"),
            mkfs: PathBuf::from(crate::scratch::MKFS),
            root,
            rootless,
            wipes_cards: cdi::can_compute() || std::env::var_os("SELA_NVML_SIM_DIR").is_some(),
        }
    }
}

/// Looks. `lab` allows what is too weak to be offered outside a lab.
pub fn probe(machine: &Machine, lab: bool) -> Probe {
    match rights(machine)
        .and_then(|()| layout(machine, lab))
        .and_then(|layout| kernel(machine).map(|()| layout))
    {
        Ok(layout) => {
            let level = match layout {
                CgroupLayout::V2 => Isolation::Native,
                CgroupLayout::LabCgroupV1 => Isolation::LabCgroupV1,
            };
            let guarantees = guarantees(layout, Kernel::of(machine, layout));
            Probe {
                layout: Some(layout),
                state: IsolationState::Ready { level },
                scratch: scratch(machine),
                guarantees,
            }
        }
        Err(why) => Probe {
            layout: None,
            state: IsolationState::Missing { why },
            scratch: ScratchKind::Memory,
            guarantees: Vec::new(),
        },
    }
}

/// Root, or what it takes without.
fn rights(machine: &Machine) -> Result<(), String> {
    match &machine.rootless {
        Err(why) if !machine.root => Err(why.clone()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn layout(machine: &Machine, lab: bool) -> Result<CgroupLayout, String> {
    let folder = &machine.cgroups;
    if folder.join("cgroup.controllers").exists() {
        let missing: Vec<&str> = v2::NEEDED
            .into_iter()
            .filter(|name| !v2::offered(folder, name))
            .collect();
        if !missing.is_empty() {
            return Err(format!(
                "cgroup version 2 at {} does not hand out {}; start the agent by its systemd unit (Delegate=yes)",
                folder.display(),
                missing.join(", ")
            ));
        }
        return Ok(CgroupLayout::V2);
    }
    let unified = folder.join(hybrid::UNIFIED).join("cgroup.controllers").exists();
    let missing: Vec<&str> = hybrid::NEEDED
        .into_iter()
        .filter(|name| !folder.join(name).join("cgroup.procs").exists())
        .collect();
    if !unified || !missing.is_empty() {
        return Err(format!(
            "no usable cgroups at {}: boot with systemd.unified_cgroup_hierarchy=1",
            folder.display()
        ));
    }
    if !lab {
        return Err(
            "this machine mixes cgroup versions 1 and 2, which is too weak for strangers' jobs: boot with systemd.unified_cgroup_hierarchy=1 (a lab may start the agent with --lab)"
                .to_owned(),
        );
    }
    Ok(CgroupLayout::LabCgroupV1)
}

/// What jobs need of the kernel besides cgroups.
fn kernel(machine: &Machine) -> Result<(), String> {
    let file = |name: &str| fs::read_to_string(machine.proc.join(name)).unwrap_or_default();
    if !file("filesystems")
        .lines()
        .any(|line| line.trim_end().ends_with("\toverlay"))
    {
        return Err("the kernel has no overlayfs: modprobe overlay".to_owned());
    }
    if file("sys/user/max_user_namespaces").trim() == "0" {
        return Err("user namespaces are switched off: sysctl user.max_user_namespaces=65536".to_owned());
    }
    if !file("self/status")
        .lines()
        .any(|line| line.starts_with("Seccomp_filters:"))
    {
        return Err("the kernel has no seccomp filters: CONFIG_SECCOMP_FILTER is needed".to_owned());
    }
    Ok(())
}

/// What an encrypted disk needs: ext4 that can encrypt, loop devices, and the program that makes the file system.
fn scratch(machine: &Machine) -> ScratchKind {
    let encryption = machine.sys.join("fs/ext4/features/encryption").exists();
    let devices = fs::read_to_string(machine.proc.join("devices")).unwrap_or_default();
    let has_loop = devices.lines().any(|line| line.trim_start().ends_with(" loop"));
    // Attaching a loop device and mounting what is on it is root's.
    if machine.root && encryption && has_loop && machine.mkfs.exists() {
        ScratchKind::EncryptedDisk
    } else {
        ScratchKind::Memory
    }
}

/// What a kernel, and a machine's drivers, have that not every one has.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says of one thing whether it is there"
)]
struct Kernel {
    counts_swap: bool,
    has_idle_groups: bool,
    records_freezes: bool,
    encrypts_disks: bool,
    wipes_cards: bool,
}

impl Kernel {
    fn of(machine: &Machine, layout: CgroupLayout) -> Self {
        let is_v2 = layout == CgroupLayout::V2;
        Self {
            counts_swap: is_v2 || machine.cgroups.join("memory/memory.memsw.limit_in_bytes").exists(),
            has_idle_groups: is_v2 || machine.cgroups.join("cpu/cpu.idle").exists(),
            records_freezes: frozen_record(machine, layout),
            encrypts_disks: scratch(machine) == ScratchKind::EncryptedDisk,
            wipes_cards: machine.wipes_cards,
        }
    }
}

/// What is promised on a machine whose kernel has everything that is asked for: what `docs/security.md` says.
pub fn promised(layout: CgroupLayout) -> Vec<Guarantee> {
    let whole = Kernel {
        counts_swap: true,
        has_idle_groups: true,
        records_freezes: true,
        encrypts_disks: true,
        wipes_cards: true,
    };
    guarantees(layout, whole)
}

fn guarantees(layout: CgroupLayout, kernel: Kernel) -> Vec<Guarantee> {
    use Strength::{Absent, Enforced, Weaker};
    let is_v2 = layout == CgroupLayout::V2;
    let memory_group = if is_v2 {
        Enforced
    } else {
        Weaker {
            why: "version 1 kills one process; the keeper ends the rest within a second",
        }
    };
    let swap = if kernel.counts_swap {
        Enforced
    } else {
        Weaker {
            why: "the kernel counts no swap (swapaccount=1); swappiness is 0",
        }
    };
    let idle = if kernel.has_idle_groups {
        Enforced
    } else {
        Weaker {
            why: "the kernel has no cpu.idle (Linux 5.15); nice 19 remains",
        }
    };
    let io = Weaker {
        why: "idle I/O class, which only some schedulers obey",
    };
    let billed = if kernel.records_freezes {
        Enforced
    } else {
        Weaker {
            why: "the kernel keeps no record of freezes (Linux 6.18); the keeper measures them",
        }
    };
    let wiped = if kernel.wipes_cards {
        Enforced
    } else {
        Absent {
            why: "no driver's library for computing (libcuda.so.1) is here to do it by",
        }
    };
    let disk = if kernel.encrypts_disks {
        Enforced
    } else {
        Absent {
            why: "an ext4 that can encrypt, loop devices and mkfs.ext4 are needed; scratch is memory",
        }
    };
    [
        ("own user namespace, never the owner's uid", Enforced),
        ("no capabilities, no new privileges", Enforced),
        ("own list of system calls", Enforced),
        ("image read only, by digest", Enforced),
        ("no network", Enforced),
        ("named hosts only, where a job asked for them", Enforced),
        ("sees its own processes only", Enforced),
        ("sees its own card only", Enforced),
        ("no file of the owner's, none of another job's", Enforced),
        ("memory limit, scratch included", memory_group),
        ("no swap", swap),
        ("process limit", Enforced),
        ("open files, log and results limited", Enforced),
        ("CPU only when idle", idle),
        ("disk only when idle", io),
        ("frozen as a whole, killed as a whole", Enforced),
        ("billed by the kernel's own record of freezes", billed),
        ("results unreadable on the owner's disk", Enforced),
        ("secrets in memory only", Enforced),
        ("nothing of a job stays on the machine", Enforced),
        ("video memory wiped before each tenant", wiped),
        ("scratch encrypted, or in memory", Enforced),
        ("an encrypted disk where a job asks for one", disk),
        ("no job outlives its grant", Enforced),
    ]
    .map(|(name, strength)| Guarantee { name, strength })
    .to_vec()
}

/// Only groups below the root have the file, so it is looked for in any that is there.
fn frozen_record(machine: &Machine, layout: CgroupLayout) -> bool {
    let folder = match layout {
        CgroupLayout::V2 => machine.cgroups.clone(),
        CgroupLayout::LabCgroupV1 => machine.cgroups.join(hybrid::UNIFIED),
    };
    let has = |folder: &Path| {
        fs::read_to_string(folder.join("cgroup.stat.local")).is_ok_and(|text| text.contains("frozen_usec"))
    };
    has(&folder)
        || fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| has(&entry.path()))
        || kernel_has_it()
}

/// The version in which it came, where no group is there to look at.
fn kernel_has_it() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files, below its cgroup folder or its /proc.
    fn machine(folder: &Path, files: &[(&str, &str)]) -> Machine {
        let all = [
            ("proc/filesystems", "nodev\tproc\nnodev\toverlay\n"),
            ("proc/sys/user/max_user_namespaces", "1000\n"),
            ("proc/self/status", "Name:\tx\nSeccomp_filters:\t0\n"),
        ];
        for (name, text) in all.iter().chain(files) {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Machine {
            cgroups: folder.join("cgroup"),
            proc: folder.join("proc"),
            sys: folder.join("sys"),
            mkfs: folder.join("mkfs.ext4"),
            root: true,
            rootless: Ok(()),
            wipes_cards: false,
        }
    }

    const HYBRID: [(&str, &str); 4] = [
        ("cgroup/unified/cgroup.controllers", ""),
        ("cgroup/memory/cgroup.procs", ""),
        ("cgroup/pids/cgroup.procs", ""),
        ("cgroup/cpu/cgroup.procs", ""),
    ];

    #[test]
    fn each_kind_of_machine_is_told_apart_and_told_what_to_do() {
        let v2 = [("cgroup/cgroup.controllers", "cpuset cpu io memory pids")];
        let poor = [("cgroup/cgroup.controllers", "memory pids")];
        let no_overlay = [v2[0], ("proc/filesystems", "nodev\tproc\n")];
        let no_users = [v2[0], ("proc/sys/user/max_user_namespaces", "0\n")];
        let no_seccomp = [v2[0], ("proc/self/status", "Name:\tx\n")];
        type Case<'a> = (&'a [(&'a str, &'a str)], bool, Result<CgroupLayout, &'a str>);
        let cases: [Case<'_>; 9] = [
            (&v2, false, Ok(CgroupLayout::V2)),
            (&v2, true, Ok(CgroupLayout::V2)),
            (&HYBRID, true, Ok(CgroupLayout::LabCgroupV1)),
            (&HYBRID, false, Err("--lab")),
            (&[], true, Err("no usable cgroups")),
            (&poor, true, Err("does not hand out cpu")),
            (&no_overlay, false, Err("modprobe overlay")),
            (&no_users, false, Err("max_user_namespaces")),
            (&no_seccomp, false, Err("SECCOMP")),
        ];
        for (files, lab, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let probe = probe(&machine(folder.path(), files), lab);
            match (expected, &probe.state) {
                (Ok(layout), IsolationState::Ready { .. }) => assert_eq!(probe.layout, Some(layout)),
                (Err(words), IsolationState::Missing { why }) => assert!(why.contains(words), "{why} for {words}"),
                (expected, found) => panic!("{expected:?} and {found:?}"),
            }
        }
    }

    #[test]
    fn the_lab_layout_says_what_is_weaker() {
        let folder = tempfile::tempdir().unwrap();
        let probe = probe(&machine(folder.path(), &HYBRID), true);
        assert_eq!(
            probe.state,
            IsolationState::Ready {
                level: Isolation::LabCgroupV1
            }
        );
        let weaker = |name: &str| {
            let guarantee = probe
                .guarantees
                .iter()
                .find(|guarantee| guarantee.name.contains(name))
                .unwrap();
            matches!(guarantee.strength, Strength::Weaker { .. })
        };
        assert!(weaker("memory limit") && weaker("no swap") && !weaker("process limit"));
    }

    #[test]
    fn an_encrypted_disk_needs_a_file_system_that_can_loop_devices_and_the_program_that_makes_it() {
        let all = [
            ("sys/fs/ext4/features/encryption", "supported\n"),
            ("proc/devices", "Block devices:\n  7 loop\n259 blkext\n"),
            ("mkfs.ext4", ""),
        ];
        for missing in 0..=all.len() {
            let folder = tempfile::tempdir().unwrap();
            let files: Vec<_> = (0..all.len())
                .filter(|file| *file != missing)
                .map(|file| all[file])
                .collect();
            let files: Vec<_> = HYBRID.into_iter().chain(files).collect();
            let expected = if missing == all.len() {
                ScratchKind::EncryptedDisk
            } else {
                ScratchKind::Memory
            };
            assert_eq!(
                probe(&machine(folder.path(), &files), true).scratch,
                expected,
                "without {missing}"
            );
        }
    }

    #[test]
    fn without_root_there_must_be_what_it_takes_instead_and_its_lack_is_said_first() {
        let v2 = [("cgroup/cgroup.controllers", "cpuset cpu io memory pids")];
        let disk = [
            ("sys/fs/ext4/features/encryption", "supported\n"),
            ("proc/devices", "Block devices:\n  7 loop\n"),
            ("mkfs.ext4", ""),
        ];
        let files: Vec<_> = v2.into_iter().chain(disk).collect();
        let folder = tempfile::tempdir().unwrap();
        let rootless = Machine {
            root: false,
            ..machine(folder.path(), &files)
        };
        let found = probe(&rootless, false);
        assert_eq!(found.layout, Some(CgroupLayout::V2), "{:?}", found.state);
        assert_eq!(found.scratch, ScratchKind::Memory, "loop devices are root's");
        let lacking = Machine {
            rootless: Err("newuidmap is not installed".to_owned()),
            ..rootless
        };
        let IsolationState::Missing { why } = probe(&lacking, false).state else {
            panic!()
        };
        assert!(why.contains("newuidmap"), "{why}");
    }

    #[test]
    fn a_machine_with_mixed_cgroups_runs_no_jobs_without_root_and_says_how_it_would() {
        let folder = tempfile::tempdir().unwrap();
        let mixed = machine(folder.path(), &HYBRID);
        let grounds = rootless::Grounds {
            cgroups: mixed.cgroups.clone(),
            proc: mixed.proc.clone(),
            etc: folder.path().join("etc"),
            programs: Vec::new(),
            user: (1000, 1000),
        };
        let machine = Machine {
            root: false,
            rootless: rootless::look(&grounds).map(drop),
            ..mixed
        };
        for lab in [true, false] {
            let IsolationState::Missing { why } = probe(&machine, lab).state else {
                panic!()
            };
            assert!(
                why.contains("without root") && why.contains("systemd.unified_cgroup_hierarchy=1"),
                "{why}"
            );
        }
    }
}
