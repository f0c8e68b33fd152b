//! What the kernel tells in files, where nothing rings when it changes: processes, microphones and cameras, remote desktops,
//! the power supply, Steam's registry. One thread, which looks four times a second while a job runs, else seldom.

mod devices;
mod remote;
mod supply;

use crate::attention::Bell;
use crate::input::x11::wait;
use crate::look::Look;
use crate::play::processes::Processes;
use crate::play::steam::Steam;
use devices::Cameras;
use sela_protocol::senses::{Engagement, Play, PowerSource, RemoteHand};
use sela_protocol::units::{BootMs, Millis};
use std::path::PathBuf;

/// How often it is looked while a job runs.
const CLOSELY: Millis = Millis(250);

/// Where the kernel's files are.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/proc`
    pub proc: PathBuf,
    /// `/sys`
    pub sys: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            dev: "/dev".into(),
        }
    }
}

/// What a round of looks saw.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) programs: Look<Vec<Play>>,
    pub(crate) steam: Look<Vec<Play>>,
    pub(crate) microphones: Look<Vec<Engagement>>,
    pub(crate) cameras: Look<Vec<Engagement>>,
    pub(crate) remote: Look<Vec<RemoteHand>>,
    pub(crate) supply: Look<PowerSource>,
}

/// Looks until the receiver is gone. `programs`: the owner's list; `home`: where Steam may be.
pub(crate) fn watch(
    roots: &Roots,
    home: Option<PathBuf>,
    mut programs: tokio::sync::watch::Receiver<Vec<String>>,
    bell: &Bell,
    report: &impl Fn(Round) -> bool,
) {
    let mut processes = Processes::of(&roots.proc, programs.borrow_and_update().clone());
    let mut steam = home.map(|home| Steam::of(&home));
    let mut cameras = Cameras::of(roots);
    loop {
        // Whoever could change them may have gone; then they stay what they are.
        if programs.has_changed().unwrap_or(false) {
            processes.list(programs.borrow_and_update().clone());
        }
        let now = sela_clock::now().boot_ms;
        let round = look(roots, &mut processes, steam.as_mut(), &mut cameras, now);
        if !report(round) {
            return;
        }
        let rest = if bell.attention().is_high() {
            CLOSELY
        } else {
            bell.attention().period()
        };
        if wait(bell, None, Some(rest)).is_err() {
            return;
        }
    }
}

fn look(
    roots: &Roots,
    processes: &mut Processes,
    steam: Option<&mut Steam>,
    cameras: &mut Cameras,
    now: BootMs,
) -> Round {
    let (programs, steam_runs) = match processes.scan(now) {
        Ok(found) => (Look::Seen(found.playing), found.steam),
        Err(error) => (Look::Failed(format!("{}: {error}", roots.proc.display())), true),
    };
    Round {
        programs,
        steam: steam.map_or_else(
            || Look::Absent("this agent has no home".into()),
            |steam| steam.look(steam_runs, now),
        ),
        microphones: devices::microphones(roots),
        cameras: cameras.look(roots, now),
        remote: remote::look(&roots.proc),
        supply: supply::look(&roots.sys),
    }
}
