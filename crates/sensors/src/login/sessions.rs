//! The sessions that logind lists: which of them a hand can reach, since when each is idle, and which is locked or works
//! from elsewhere. Only the active session of a seat gets input; one that somebody switched away from does not.

use super::{MANAGER, PATH, SERVICE};
use crate::bus::{Bus, Fault, Properties};
use crate::input::{NewestInput, Sighting};
use sela_protocol::senses::RemoteHand;
use sela_protocol::units::BootMs;
use std::os::unix::fs::MetadataExt as _;
use zbus::OwnedObjectPath;

/// What the sessions say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seats {
    /// Input in this user's graphical session, by its hint; a display that is watched knows better.
    pub(crate) own: Sighting,
    /// Input everywhere else.
    pub(crate) others: Sighting,
    /// The X display of this user's session, where it has one.
    pub(crate) display: Option<String>,
    /// Whether the active session is locked; `None` where there is none.
    pub(crate) locked: Option<bool>,
    /// Graphical sessions from elsewhere.
    pub(crate) remote: Vec<RemoteHand>,
}

type Listed = (String, u32, String, String, OwnedObjectPath);

/// Looks at all sessions.
pub(super) async fn look(bus: &Bus, own: &mut NewestInput, others: &mut NewestInput) -> Result<Seats, Fault> {
    let mut newest = (None, None);
    let mut seats = Seats {
        own: Sighting::Nobody,
        others: Sighting::Nobody,
        display: None,
        locked: None,
        remote: Vec::new(),
    };
    for (_, user, _, seat, path) in list(bus).await? {
        let session = match bus
            .properties(SERVICE, path.as_str(), "org.freedesktop.login1.Session")
            .await
        {
            Ok(session) => session,
            // Between the list and the question it may have ended.
            Err(_) if !list(bus).await?.iter().any(|(.., listed)| *listed == path) => continue,
            Err(fault) => return Err(fault),
        };
        let class: String = session.get("Class")?;
        let state: String = session.get("State")?;
        if !class.starts_with("user") || state == "closing" {
            continue;
        }
        let kind: String = session.get("Type")?;
        let graphical = matches!(kind.as_str(), "x11" | "wayland" | "mir");
        if session.get("Remote")? {
            if graphical && session.get("Active")? {
                seats.remote.push(RemoteHand { by: "login".into() });
            }
            continue;
        }
        if seat.is_empty() || !session.get("Active")? {
            continue;
        }
        seats.locked = Some(seats.locked.unwrap_or(false) | session.get::<bool>("LockedHint")?);
        let at = newest_input(&session, &kind)?;
        if graphical && user == rustix::process::getuid().as_raw() {
            newest.0 = newest.0.max(Some(at));
            let display: String = session.get("Display")?;
            seats.display = Some(display).filter(|name| kind == "x11" && !name.is_empty());
        } else {
            newest.1 = newest.1.max(Some(at));
        }
    }
    seats.own = sighting(newest.0, own);
    seats.others = sighting(newest.1, others);
    Ok(seats)
}

async fn list(bus: &Bus) -> Result<Vec<Listed>, Fault> {
    bus.call(SERVICE, PATH, MANAGER, "ListSessions", &()).await
}

fn sighting(at: Option<BootMs>, newest: &mut NewestInput) -> Sighting {
    at.map_or(Sighting::Nobody, |at| Sighting::Seen(newest.polled(at)))
}

/// A desktop sets its hint itself. For a terminal logind gives the moment of the last key and calls it idle only where the system is
/// set to act on it; the terminal's own device tells the same.
fn newest_input(session: &Properties, kind: &str) -> Result<BootMs, Fault> {
    let now = sela_clock::now();
    let hinted = boot_of_monotonic(session.get("IdleSinceHintMonotonic")?);
    if kind == "tty" {
        let terminal: String = session.get("TTY")?;
        let read = std::fs::metadata(format!("/dev/{terminal}"))
            .ok()
            .filter(|_| !terminal.is_empty());
        let used = read.map(|device| {
            // A clock that was set back makes it the future: as if used now.
            let ago = u64::try_from(now.utc_ms.0 - device.atime() * 1_000).unwrap_or(0);
            BootMs(now.boot_ms.0.saturating_sub(ago))
        });
        let told = session.get::<u64>("IdleSinceHintMonotonic")? != 0;
        // Where neither tells, nothing says that it is idle.
        return Ok(used.max(told.then_some(hinted)).unwrap_or(now.boot_ms).min(now.boot_ms));
    }
    Ok(if session.get("IdleHint")? { hinted } else { now.boot_ms })
}

/// logind gives moments on `CLOCK_MONOTONIC`, which stands still while the machine sleeps. Read as "so long ago without
/// sleep" it can only be too new, never too old: the safe side.
fn boot_of_monotonic(micros: u64) -> BootMs {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let monotonic_ms =
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    let ago = monotonic_ms.saturating_sub(micros / 1_000);
    BootMs(sela_clock::now().boot_ms.0.saturating_sub(ago))
}
