//! GNOME's compositor, which tells of idleness on the session bus: how long ago the last input was, and the moment of the
//! next. Asked for the next only while a job runs.

use super::{NewestInput, Sighting};
use crate::attention::Attention;
use crate::bus::{Bus, Fault, Objects, Subject};
use crate::signals::Report;
use sela_protocol::units::BootMs;
use tokio::sync::mpsc;
use zbus::message::Message;

/// What it is called as a source.
pub(crate) const MUTTER: &str = "Mutter";
const SERVICE: &str = "org.gnome.Mutter.IdleMonitor";
const PATH: &str = "/org/gnome/Mutter/IdleMonitor/Core";

/// Mutter's IdleMonitor, asked.
pub(crate) struct Mutter {
    attention: Attention,
    reports: mpsc::Sender<Report>,
    newest: NewestInput,
    /// The watch that fires at the next input.
    watch: Option<u32>,
    /// Whether it has answered before: one that has gone since is a reason.
    was_there: bool,
}

impl Mutter {
    pub(crate) fn new(attention: Attention, reports: mpsc::Sender<Report>) -> Self {
        Self {
            attention,
            reports,
            newest: NewestInput::default(),
            watch: None,
            was_there: false,
        }
    }

    async fn say(&self, sighting: Sighting) -> Result<(), Fault> {
        let report = Report::Display(MUTTER, sighting);
        self.reports.send(report).await.map_err(|_| Fault::Unheard)
    }
}

impl Subject for Mutter {
    fn service(&self) -> &'static str {
        SERVICE
    }

    fn objects(&self) -> Objects {
        Objects::At(PATH)
    }

    async fn look(&mut self, bus: &Bus) -> Result<(), Fault> {
        if let Err(fault) = bus.require(SERVICE).await {
            // Another compositor that takes its place knows nothing of its watches.
            self.watch = None;
            return Err(fault);
        }
        // First listen, then look: an input between the two is seen by one of them.
        if self.attention.is_high() && self.watch.is_none() {
            self.watch = Some(bus.call(SERVICE, PATH, SERVICE, "AddUserActiveWatch", &()).await?);
        }
        let idle: u64 = bus.call(SERVICE, PATH, SERVICE, "GetIdletime", &()).await?;
        self.was_there = true;
        let at = BootMs(sela_clock::now().boot_ms.0.saturating_sub(idle));
        let sighting = Sighting::Seen(self.newest.polled(at));
        self.say(sighting).await
    }

    async fn hear(&mut self, _: &Bus, signal: &Message) -> Result<(), Fault> {
        let header = signal.header();
        if header.member().is_some_and(|member| member.as_str() == "WatchFired") {
            let fired: u32 = signal.body().deserialize()?;
            if self.watch == Some(fired) {
                self.watch = None;
                let sighting = Sighting::Seen(self.newest.event(sela_clock::now().boot_ms));
                self.say(sighting).await?;
            }
        }
        Ok(())
    }

    async fn lament(&mut self, fault: Fault) -> bool {
        self.watch = None;
        let sighting = match fault {
            Fault::Absent(_) if self.was_there => Sighting::Failed("GNOME's compositor has gone".into()),
            Fault::Absent(why) => Sighting::Absent(why),
            Fault::Failed(why) => Sighting::Failed(format!("GNOME's compositor does not answer: {why}")),
            Fault::Unheard => return false,
        };
        self.say(sighting).await.is_ok()
    }
}
