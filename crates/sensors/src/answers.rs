//! Services whose whole answer is a value of one signal: UPower, NetworkManager, GameMode, the desktops' own lists of what
//! keeps the screen on. Each says how it is asked; how it is followed is the same for all.

use crate::bus::{Bus, Fault, Objects, Subject};
use crate::look::Look;
use crate::signals::Report;
use sela_protocol::senses::{Engagement, EngagementKind, Play, PlayKind, PowerSource};
use sela_protocol::units::Percent;
use std::future::Future;
use tokio::sync::mpsc;
use zbus::OwnedObjectPath;
use zbus::message::Message;

/// A service that gives one value.
pub(crate) trait Service: Send {
    /// What it gives.
    type Value: Send;
    /// Its name.
    const NAME: &'static str;
    /// The objects that tell of a change.
    const OBJECTS: Objects;
    /// Whether it comes and goes as it is needed, so that its going is no fault.
    const COMES_AND_GOES: bool;
    /// Asks it.
    fn ask(bus: &Bus) -> impl Future<Output = Result<Self::Value, Fault>> + Send;
}

/// One such service, followed.
pub(crate) struct Asked<S: Service> {
    reports: mpsc::Sender<Report>,
    /// Makes a report of what it says.
    told: fn(Look<S::Value>) -> Report,
    was_there: bool,
}

impl<S: Service> Asked<S> {
    pub(crate) const fn new(reports: mpsc::Sender<Report>, told: fn(Look<S::Value>) -> Report) -> Self {
        Self {
            reports,
            told,
            was_there: false,
        }
    }
}

impl<S: Service> Subject for Asked<S> {
    fn service(&self) -> &'static str {
        S::NAME
    }

    fn objects(&self) -> Objects {
        S::OBJECTS
    }

    async fn look(&mut self, bus: &Bus) -> Result<(), Fault> {
        bus.require(S::NAME).await?;
        self.was_there = true;
        let look = match S::ask(bus).await {
            Ok(value) => Look::Seen(value),
            // The service is there, and what it would tell of is not.
            Err(Fault::Absent(why)) => Look::Absent(why),
            Err(fault) => return Err(fault),
        };
        self.reports.send((self.told)(look)).await.map_err(|_| Fault::Unheard)
    }

    async fn hear(&mut self, _: &Bus, _: &Message) -> Result<(), Fault> {
        Ok(())
    }

    async fn lament(&mut self, fault: Fault) -> bool {
        let look = match fault {
            Fault::Absent(why) if self.was_there && !S::COMES_AND_GOES => Look::Failed(why),
            Fault::Absent(why) => Look::Absent(why),
            Fault::Failed(why) => Look::Failed(why),
            Fault::Unheard => return false,
        };
        self.reports.send((self.told)(look)).await.is_ok()
    }
}

/// UPower: mains or battery. It calls a desktop with a UPS "on battery" in some versions, so its devices are asked themselves.
pub(crate) struct UPower;

impl Service for UPower {
    type Value = PowerSource;
    const NAME: &'static str = "org.freedesktop.UPower";
    const OBJECTS: Objects = Objects::Under("/org/freedesktop/UPower");
    const COMES_AND_GOES: bool = false;

    async fn ask(bus: &Bus) -> Result<PowerSource, Fault> {
        const PATH: &str = "/org/freedesktop/UPower";
        const DEVICE: &str = "org.freedesktop.UPower.Device";
        const LINE: u32 = 1;
        const BATTERY: u32 = 2;
        const UPS: u32 = 3;
        const DISCHARGING: u32 = 2;
        let devices: Vec<OwnedObjectPath> = bus.call(Self::NAME, PATH, Self::NAME, "EnumerateDevices", &()).await?;
        let (mut mains, mut drains, mut charge) = (false, false, None::<f64>);
        for device in &devices {
            let device = bus.properties(Self::NAME, device.as_str(), DEVICE).await?;
            // The battery of a mouse does not carry the machine.
            if !device.get::<bool>("PowerSupply")? {
                continue;
            }
            let kind = device.get::<u32>("Type").unwrap_or(LINE);
            match kind {
                LINE => mains |= device.get::<bool>("Online")?,
                BATTERY | UPS if device.get::<bool>("IsPresent")? => {
                    drains |= device.get::<u32>("State")? == DISCHARGING;
                    let left = device.get::<f64>("Percentage")?;
                    charge = Some(charge.map_or(left, |other| other.min(left)));
                }
                _ => {}
            }
        }
        let Some(charge) = charge else {
            return Err(Fault::Absent("there is no battery".into()));
        };
        Ok(PowerSource {
            on_battery: drains && !mains,
            charge: percent(charge),
        })
    }
}

/// A share that a service gives as a number with a fraction; one that is none is not told.
fn percent(share: f64) -> Option<Percent> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and 100"
    )]
    (0.0..=100.0).contains(&share).then(|| Percent(share.round() as u8))
}

/// NetworkManager: whether the line in use costs by volume, known or guessed.
pub(crate) struct NetworkManager;

impl Service for NetworkManager {
    type Value = bool;
    const NAME: &'static str = "org.freedesktop.NetworkManager";
    const OBJECTS: Objects = Objects::At("/org/freedesktop/NetworkManager");
    const COMES_AND_GOES: bool = false;

    async fn ask(bus: &Bus) -> Result<bool, Fault> {
        let path = "/org/freedesktop/NetworkManager";
        let manager = bus.properties(Self::NAME, path, Self::NAME).await?;
        // The values of NMMetered.
        match manager.get::<u32>("Metered")? {
            1 | 3 => Ok(true),
            2 | 4 => Ok(false),
            0 => Err(Fault::Absent("NetworkManager does not carry the line in use".into())),
            other => Err(Fault::Failed(format!("says {other}, which is no answer"))),
        }
    }
}

/// GameMode: games that have told it that they run.
pub(crate) struct GameMode;

impl Service for GameMode {
    type Value = Vec<Play>;
    const NAME: &'static str = "com.feralinteractive.GameMode";
    const OBJECTS: Objects = Objects::At("/com/feralinteractive/GameMode");
    const COMES_AND_GOES: bool = true;

    async fn ask(bus: &Bus) -> Result<Vec<Play>, Fault> {
        let path = "/com/feralinteractive/GameMode";
        let games: Vec<(i32, OwnedObjectPath)> = bus.call(Self::NAME, path, Self::NAME, "ListGames", &()).await?;
        let play = |(pid, _): (i32, OwnedObjectPath)| {
            let pid = u32::try_from(pid).ok();
            Play {
                kind: PlayKind::GameMode,
                program: pid.and_then(program_of).unwrap_or_else(|| "a game".into()),
                pid,
            }
        };
        Ok(games.into_iter().map(play).collect())
    }
}

fn program_of(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// GNOME's session: what asks that it not become idle, the portal's requests among them.
pub(crate) struct GnomeSession;

impl Service for GnomeSession {
    type Value = Vec<Engagement>;
    const NAME: &'static str = "org.gnome.SessionManager";
    const OBJECTS: Objects = Objects::At("/org/gnome/SessionManager");
    const COMES_AND_GOES: bool = true;

    async fn ask(bus: &Bus) -> Result<Vec<Engagement>, Fault> {
        const IDLE: u32 = 8;
        let path = "/org/gnome/SessionManager";
        let inhibitors: Vec<OwnedObjectPath> = bus.call(Self::NAME, path, Self::NAME, "GetInhibitors", &()).await?;
        let mut engaged = Vec::new();
        for inhibitor in &inhibitors {
            let ask = |method: &'static str| (inhibitor.as_str(), "org.gnome.SessionManager.Inhibitor", method);
            let (path, interface, method) = ask("GetFlags");
            let flags: u32 = bus.call(Self::NAME, path, interface, method, &()).await?;
            if flags & IDLE == 0 {
                continue;
            }
            let (path, interface, method) = ask("GetAppId");
            let program: String = bus.call(Self::NAME, path, interface, method, &()).await?;
            engaged.push(Engagement {
                kind: EngagementKind::KeepsAwake,
                program,
            });
        }
        Ok(engaged)
    }
}

/// KDE's power management: what asks that the screen stay on, the portal's requests among them.
pub(crate) struct KdePower;

impl Service for KdePower {
    type Value = Vec<Engagement>;
    const NAME: &'static str = "org.kde.Solid.PowerManagement.PolicyAgent";
    const OBJECTS: Objects = Objects::At("/org/kde/Solid/PowerManagement/PolicyAgent");
    const COMES_AND_GOES: bool = true;

    async fn ask(bus: &Bus) -> Result<Vec<Engagement>, Fault> {
        const CHANGE_SCREEN: u32 = 4;
        let path = "/org/kde/Solid/PowerManagement/PolicyAgent";
        if !bus
            .call::<_, bool>(Self::NAME, path, Self::NAME, "HasInhibition", &CHANGE_SCREEN)
            .await?
        {
            return Ok(Vec::new());
        }
        let all: Vec<(String, String)> = bus.call(Self::NAME, path, Self::NAME, "ListInhibitions", &()).await?;
        let engagement = |(program, _)| Engagement {
            kind: EngagementKind::KeepsAwake,
            program,
        };
        Ok(all.into_iter().map(engagement).collect())
    }
}
