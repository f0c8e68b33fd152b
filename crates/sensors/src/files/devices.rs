//! Microphones and cameras in use: ALSA says which of its capture streams runs; who holds a camera is seen by its open files,
//! which are gone through only after the camera was opened or closed.

use super::Roots;
use crate::look::Look;
use rustix::fd::OwnedFd;
use rustix::fs::inotify;
use sela_protocol::senses::{Engagement, EngagementKind};
use sela_protocol::units::{BootMs, Millis};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

/// Without a sign from the kernel the cameras' holders are looked for this seldom.
const SELDOM: Millis = Millis(30_000);

/// Capture streams of ALSA that run.
pub(super) fn microphones(roots: &Roots) -> Look<Vec<Engagement>> {
    let cards = roots.proc.join("asound");
    if !cards.is_dir() {
        return Look::Absent("there is no sound card".into());
    }
    let captures = children(&cards, "card")
        .flat_map(|card| children(&card, "pcm"))
        .filter(|stream| stream.to_string_lossy().ends_with('c'))
        .flat_map(|stream| children(&stream, "sub"));
    let mut engaged = Vec::new();
    for capture in captures {
        // A device that is unplugged meanwhile is in no use.
        let Ok(status) = std::fs::read_to_string(capture.join("status")) else {
            continue;
        };
        let value = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim())
        };
        if !matches!(value("state"), Some("RUNNING" | "DRAINING" | "PAUSED")) {
            continue;
        }
        let pid = value("owner_pid").and_then(|pid| pid.parse().ok());
        engaged.push(Engagement {
            kind: EngagementKind::Microphone,
            program: pid
                .and_then(|pid| program_of(&roots.proc, pid))
                .unwrap_or_else(|| "a program".into()),
        });
    }
    Look::Seen(engaged)
}

fn children(folder: &Path, prefix: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(move |path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
        })
}

fn program_of(proc: &Path, pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(proc.join(format!("{pid}/comm"))).ok()?;
    Some(name.trim_end().to_owned())
}

/// The cameras, and who held them when they were last gone through.
#[derive(Debug)]
pub(super) struct Cameras {
    devices: BTreeSet<PathBuf>,
    bell: Option<OwnedFd>,
    held: Vec<Engagement>,
    next: BootMs,
}

impl Cameras {
    pub(super) fn of(_: &Roots) -> Self {
        Self {
            devices: BTreeSet::new(),
            bell: None,
            held: Vec::new(),
            next: BootMs(0),
        }
    }

    pub(super) fn look(&mut self, roots: &Roots, now: BootMs) -> Look<Vec<Engagement>> {
        let devices: BTreeSet<PathBuf> = children(&roots.dev, "video").collect();
        if devices.is_empty() {
            *self = Self::of(roots);
            return Look::Absent("there is no camera".into());
        }
        if devices != self.devices {
            self.bell = listen(&devices);
            self.devices = devices;
            self.next = BootMs(0);
        }
        // Without a bell each look goes through all.
        let rung = self.bell.as_ref().is_none_or(has_rung);
        if rung || now >= self.next {
            self.held = holders(&roots.proc, &self.devices);
            self.next = now.plus(SELDOM);
        }
        Look::Seen(self.held.clone())
    }
}

fn listen(devices: &BTreeSet<PathBuf>) -> Option<OwnedFd> {
    let bell = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
    for device in devices {
        let events = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&bell, device, events).ok()?;
    }
    Some(bell)
}

fn has_rung(bell: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::uninit(); 1_024];
    let mut events = inotify::Reader::new(bell, &mut room);
    let mut rung = false;
    while events.next().is_ok() {
        rung = true;
    }
    rung
}

fn holders(proc: &Path, devices: &BTreeSet<PathBuf>) -> Vec<Engagement> {
    let mut held = Vec::new();
    for process in children(proc, "") {
        // Those of other people cannot be looked into, nor those that have just ended.
        let holds = std::fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
            .any(|target| devices.contains(&target));
        if holds {
            let pid = process.file_name().and_then(|name| name.to_str()?.parse().ok());
            held.push(Engagement {
                kind: EngagementKind::Camera,
                program: pid
                    .and_then(|pid| program_of(proc, pid))
                    .unwrap_or_else(|| "a program".into()),
            });
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(folder: &tempfile::TempDir) -> Roots {
        let at = |name: &str| folder.path().join(name);
        for name in ["proc", "sys", "dev"] {
            std::fs::create_dir(at(name)).expect("made");
        }
        Roots {
            proc: at("proc"),
            sys: at("sys"),
            dev: at("dev"),
        }
    }

    fn write(path: PathBuf, content: &str) {
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, content).expect("written");
    }

    fn programs(look: Look<Vec<Engagement>>) -> Vec<String> {
        match look {
            Look::Seen(engaged) => engaged.into_iter().map(|engaged| engaged.program).collect(),
            other @ (Look::Failed(_) | Look::Absent(_)) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_running_microphone_is_a_call_and_a_playing_loudspeaker_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let roots = roots(&folder);
        assert!(matches!(microphones(&roots), Look::Absent(_)));
        let status = |stream: &str| roots.proc.join(format!("asound/card0/{stream}/sub0/status"));
        write(roots.proc.join("77/comm"), "zoom\n");
        write(status("pcm0p"), "state: RUNNING\nowner_pid   : 77\n");
        write(status("pcm0c"), "closed\n");
        assert!(programs(microphones(&roots)).is_empty());
        write(status("pcm0c"), "state: RUNNING\nowner_pid   : 77\ntrigger_time: 1.0\n");
        assert_eq!(programs(microphones(&roots)), ["zoom"]);
    }

    #[test]
    fn whoever_holds_a_camera_is_seen_from_opening_to_closing() {
        let folder = tempfile::tempdir().expect("a folder");
        let roots = roots(&folder);
        let mut cameras = Cameras::of(&roots);
        assert!(matches!(cameras.look(&roots, BootMs(1)), Look::Absent(_)));
        let camera = roots.dev.join("video0");
        write(camera.clone(), "");
        write(roots.proc.join("88/comm"), "cheese\n");
        let holds = roots.proc.join("88/fd/5");
        std::fs::create_dir_all(holds.parent().expect("a parent")).expect("made");
        assert!(programs(cameras.look(&roots, BootMs(2))).is_empty());
        // Nothing was opened: the processes are not gone through again, whatever they hold by now.
        std::os::unix::fs::symlink(&camera, &holds).expect("linked");
        assert!(programs(cameras.look(&roots, BootMs(3))).is_empty());
        let opened = std::fs::File::open(&camera).expect("opens");
        assert_eq!(programs(cameras.look(&roots, BootMs(4))), ["cheese"]);
        std::fs::remove_file(&holds).expect("removed");
        drop(opened);
        assert!(programs(cameras.look(&roots, BootMs(5))).is_empty());
    }
}
