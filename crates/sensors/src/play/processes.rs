//! Programs by name, over all processes, four times a second while a job runs. Ten thousand processes must not cost a core:
//! a name is read when its process is new, often while it is young (it may become another program), and then rarely.

use crate::JOBS_CGROUP;
use rustix::fs::{Mode, OFlags, openat};
use sela_protocol::senses::{Play, PlayKind};
use sela_protocol::units::{BootMs, Millis};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The kernel keeps so many bytes of a program's name.
const KEPT: usize = 15;
/// A process is young for this long: a shell that starts a game becomes the game in this time.
const YOUNG: Millis = Millis(3_000);
/// After this long each name is read again.
const AGAIN: Millis = Millis(10_000);
/// VR runtimes: SteamVR's, Monado's, WiVRn's.
const VR: [&str; 4] = ["vrserver", "vrcompositor", "monado-service", "wivrn-server"];
/// Steam's own program.
pub(crate) const STEAM: &str = "steam";

/// All processes, as they were last seen.
#[derive(Debug)]
pub(crate) struct Processes {
    root: PathBuf,
    listed: Vec<String>,
    known: HashMap<u32, Known>,
    scans: u64,
    /// Names read so far: what a scan costs.
    reads: u64,
}

#[derive(Debug)]
struct Known {
    name: Box<[u8]>,
    since: BootMs,
    due: BootMs,
    scan: u64,
}

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// What counts as a game by its name.
    pub(crate) playing: Vec<Play>,
    /// Whether Steam runs.
    pub(crate) steam: bool,
}

impl Processes {
    /// Of a `/proc`, with the owner's list of names.
    pub(crate) fn of(root: &Path, listed: Vec<String>) -> Self {
        Self {
            root: root.to_owned(),
            listed,
            known: HashMap::new(),
            scans: 0,
            reads: 0,
        }
    }

    /// Takes another list of the owner's.
    pub(crate) fn list(&mut self, listed: Vec<String>) {
        self.listed = listed;
    }

    /// Looks at all of them once.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub(crate) fn scan(&mut self, now: BootMs) -> std::io::Result<Found> {
        let folder = File::open(&self.root)?;
        let first = self.scans == 0;
        self.scans += 1;
        for entry in std::fs::read_dir(&self.root)? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let known = self.known.get_mut(&pid);
            let stale = known.as_ref().is_none_or(|known| {
                now >= known.due || (now.since(known.since).0 <= YOUNG.0 && known.since > BootMs(0))
            });
            if !stale {
                if let Some(known) = known {
                    known.scan = self.scans;
                }
                continue;
            }
            self.reads += 1;
            // One that ends meanwhile is no program any more.
            let Some(name) = read_name(&folder, pid) else {
                continue;
            };
            let since = known.map_or(if first { BootMs(0) } else { now }, |known| known.since);
            // Spread, so that not all are read in one scan.
            let due = now.plus(Millis(AGAIN.0 / 2 + u64::from(pid % 64) * AGAIN.0 / 128));
            self.known.insert(
                pid,
                Known {
                    name: name.into(),
                    since,
                    due,
                    scan: self.scans,
                },
            );
        }
        let scans = self.scans;
        self.known.retain(|_, known| known.scan == scans);
        Ok(self.found())
    }

    fn found(&self) -> Found {
        let mut found = Found::default();
        for (pid, known) in &self.known {
            if *known.name == *STEAM.as_bytes() {
                found.steam = true;
            }
            let Some((kind, program)) = self.counts(*pid, &known.name) else {
                continue;
            };
            // A job's own program does not drive the job away.
            if self.is_ours(*pid) {
                continue;
            }
            found.playing.push(Play {
                kind,
                program,
                pid: Some(*pid),
            });
        }
        found.playing.sort_by_key(|play| play.pid);
        found
    }

    fn counts(&self, pid: u32, name: &[u8]) -> Option<(PlayKind, String)> {
        if let Some(vr) = VR.iter().find(|vr| vr.as_bytes() == name) {
            return Some((PlayKind::Vr, (*vr).to_owned()));
        }
        let is = |listed: &&String| {
            let bytes = listed.as_bytes();
            if bytes.len() <= KEPT {
                bytes == name
            } else {
                bytes.get(..KEPT) == Some(name) && self.started_as(pid).as_deref() == Some(listed.as_str())
            }
        };
        self.listed
            .iter()
            .find(is)
            .map(|listed| (PlayKind::Listed, listed.clone()))
    }

    /// The whole name of a program, of which the kernel keeps but the beginning.
    fn started_as(&self, pid: u32) -> Option<String> {
        let line = std::fs::read(self.root.join(format!("{pid}/cmdline"))).ok()?;
        let first = line.split(|byte| *byte == 0).next()?;
        let first = String::from_utf8_lossy(first);
        first.rsplit(['/', '\\']).next().map(str::to_owned)
    }

    fn is_ours(&self, pid: u32) -> bool {
        std::fs::read_to_string(self.root.join(format!("{pid}/cgroup")))
            .is_ok_and(|cgroups| cgroups.contains(JOBS_CGROUP))
    }
}

fn read_name(folder: &File, pid: u32) -> Option<Vec<u8>> {
    let path = format!("{pid}/comm");
    let file = openat(folder, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut name = Vec::with_capacity(KEPT + 1);
    File::from(file).take(64).read_to_end(&mut name).ok()?;
    while name.last() == Some(&b'\n') {
        name.pop();
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Proc {
        folder: tempfile::TempDir,
    }

    impl Proc {
        fn new() -> Self {
            Self {
                folder: tempfile::tempdir().expect("a folder"),
            }
        }

        fn start(&self, pid: u32, name: &str) {
            let of_process = self.folder.path().join(pid.to_string());
            std::fs::create_dir_all(&of_process).expect("a folder");
            std::fs::write(of_process.join("comm"), format!("{name}\n")).expect("written");
        }

        fn write(&self, pid: u32, file: &str, content: &str) {
            std::fs::write(self.folder.path().join(pid.to_string()).join(file), content).expect("written");
        }

        fn end(&self, pid: u32) {
            std::fs::remove_dir_all(self.folder.path().join(pid.to_string())).expect("removed");
        }

        fn processes(&self, listed: &[&str]) -> Processes {
            Processes::of(
                self.folder.path(),
                listed.iter().map(|name| (*name).to_owned()).collect(),
            )
        }
    }

    fn programs(found: &Found) -> Vec<&str> {
        found.playing.iter().map(|play| play.program.as_str()).collect()
    }

    #[test]
    fn a_program_of_the_owners_list_is_found_from_its_start_to_its_end() {
        let system = Proc::new();
        system.start(1, "init");
        let mut processes = system.processes(&["blender"]);
        assert!(programs(&processes.scan(BootMs(1_000)).expect("read")).is_empty());
        system.start(70, "blender");
        let found = processes.scan(BootMs(1_250)).expect("read");
        assert_eq!(programs(&found), ["blender"]);
        assert_eq!(found.playing[0].kind, PlayKind::Listed);
        system.end(70);
        assert!(programs(&processes.scan(BootMs(1_500)).expect("read")).is_empty());
    }

    #[test]
    fn a_shell_that_becomes_a_game_is_the_game() {
        let system = Proc::new();
        system.start(1, "init");
        let mut processes = system.processes(&["doom"]);
        processes.scan(BootMs(1_000)).expect("read");
        system.start(5, "sh");
        assert!(programs(&processes.scan(BootMs(1_250)).expect("read")).is_empty());
        system.start(5, "doom");
        assert_eq!(programs(&processes.scan(BootMs(1_500)).expect("read")), ["doom"]);
    }

    #[test]
    fn an_old_process_that_becomes_a_game_is_the_game_within_ten_seconds() {
        let system = Proc::new();
        system.start(9, "launcher");
        let mut processes = system.processes(&["doom"]);
        processes.scan(BootMs(1_000)).expect("read");
        system.start(9, "doom");
        assert_eq!(programs(&processes.scan(BootMs(11_000)).expect("read")), ["doom"]);
    }

    #[test]
    fn vr_and_long_names_and_steam_are_known_and_a_jobs_own_program_does_not_count() {
        let system = Proc::new();
        system.start(2, "vrserver");
        system.start(3, "steam");
        system.start(4, "averyveryverylo");
        system.write(4, "cmdline", "/opt/averyveryverylonggame\0--full\0");
        system.start(5, "averyveryverylo");
        system.write(5, "cmdline", "/opt/averyveryverylongother\0");
        system.start(6, "doom");
        system.write(6, "cgroup", "0::/sela-jobs/a1/lease_1\n");
        let mut processes = system.processes(&["averyveryverylonggame", "doom"]);
        let found = processes.scan(BootMs(1_000)).expect("read");
        assert!(found.steam);
        assert_eq!(programs(&found), ["vrserver", "averyveryverylonggame"]);
        assert_eq!(found.playing[0].kind, PlayKind::Vr);
    }

    #[test]
    fn many_processes_are_not_read_again_at_each_look() {
        let system = Proc::new();
        for pid in 1..=1_000 {
            system.start(pid, "worker");
        }
        let mut processes = system.processes(&["doom"]);
        processes.scan(BootMs(1_000)).expect("read");
        assert_eq!(processes.reads, 1_000);
        // Four times a second for ten seconds: each is read at most twice again, never many in one scan.
        let mut most = 0;
        for scan in 1..=40 {
            let before = processes.reads;
            processes.scan(BootMs(1_000 + scan * 250)).expect("read");
            most = most.max(processes.reads - before);
        }
        assert!(processes.reads <= 3_000, "{} names read", processes.reads);
        assert!(most <= 100, "{most} names read in one scan");
    }

    #[test]
    fn without_a_proc_it_says_so() {
        let mut processes = Processes::of(Path::new("/nowhere"), Vec::new());
        assert!(processes.scan(BootMs(1)).is_err());
    }
}
