//! logind: who sits at this machine's seats, whether their session is locked, who works from elsewhere, what asks to stay
//! awake, and that the machine is about to sleep. Its signals wake it; between them it is read for a sign of life.

mod sessions;

use crate::attention::Attention;
use crate::bus::{Bus, Fault, Objects, Subject};
use crate::input::NewestInput;
use crate::signals;
use sela_protocol::senses::{Engagement, EngagementKind};
use sela_protocol::units::Millis;
pub(crate) use sessions::Seats;
use std::time::Duration;
use tokio::sync::mpsc;
use zbus::message::Message;

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// For so long a sleep or a shutdown is held up while a job is being ended; the system itself waits 5 s at most.
const DELAY: Millis = Millis(2_000);

/// What logind tells of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Power {
    /// The machine goes to sleep (or has woken up).
    Sleep(bool),
    /// The machine shuts down.
    Shutdown,
}

/// What logind reported.
#[derive(Debug)]
pub(crate) enum Report {
    /// All that it knows now.
    Seen(Seats, Vec<Engagement>),
    /// About power.
    Power(Power),
    /// No answer.
    Silent(Fault),
}

/// logind, asked.
pub(crate) struct Login {
    attention: Attention,
    reports: mpsc::Sender<signals::Report>,
    newest_own: NewestInput,
    newest_others: NewestInput,
    /// As long as it is open, the machine waits with its sleep.
    delay: Option<zbus::OwnedFd>,
    /// Between the announcement and the end of a sleep there is nothing to hold up.
    leaving: bool,
}

impl Login {
    pub(crate) fn new(attention: Attention, reports: mpsc::Sender<signals::Report>) -> Self {
        Self {
            attention,
            reports,
            newest_own: NewestInput::default(),
            newest_others: NewestInput::default(),
            delay: None,
            leaving: false,
        }
    }

    async fn say(&self, report: Report) -> Result<(), Fault> {
        self.reports
            .send(signals::Report::Login(report))
            .await
            .map_err(|_| Fault::Unheard)
    }

    /// Asks to be waited for. A system that refuses it is not asked again before the next sleep.
    async fn hold_up(&mut self, bus: &Bus) {
        let body = ("sleep:shutdown", "Sela", "ends its job first", "delay");
        match bus.call(SERVICE, PATH, MANAGER, "Inhibit", &body).await {
            Ok(delay) => self.delay = Some(delay),
            Err(fault) => tracing::warn!(?fault, "sleep cannot be held up: a job may be cut off by it"),
        }
    }

    /// Waits until no job runs, then lets the machine go.
    async fn let_go(&mut self) {
        let mut changes = self.attention.changes();
        let quiet = changes.wait_for(|high| !*high);
        if tokio::time::timeout(Duration::from_millis(DELAY.0), quiet)
            .await
            .is_err()
        {
            tracing::warn!("the job has not ended in time for the machine's sleep");
        }
        self.delay = None;
    }
}

impl Subject for Login {
    fn service(&self) -> &'static str {
        SERVICE
    }

    fn objects(&self) -> Objects {
        Objects::Under(PATH)
    }

    async fn look(&mut self, bus: &Bus) -> Result<(), Fault> {
        bus.require(SERVICE).await?;
        if self.delay.is_none() && !self.leaving {
            self.hold_up(bus).await;
        }
        let seats = sessions::look(bus, &mut self.newest_own, &mut self.newest_others).await?;
        let awake = kept_awake(bus).await?;
        self.say(Report::Seen(seats, awake)).await
    }

    async fn hear(&mut self, _: &Bus, signal: &Message) -> Result<(), Fault> {
        let header = signal.header();
        let member = header.member().map(|member| member.as_str().to_owned());
        let starts = || signal.body().deserialize::<bool>();
        match member.as_deref() {
            Some("PrepareForSleep") => {
                let asleep = starts()?;
                self.leaving = asleep;
                self.say(Report::Power(Power::Sleep(asleep))).await?;
                if asleep {
                    self.let_go().await;
                }
            }
            Some("PrepareForShutdown") if starts()? => {
                self.leaving = true;
                self.say(Report::Power(Power::Shutdown)).await?;
                self.let_go().await;
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    async fn lament(&mut self, fault: Fault) -> bool {
        self.delay = None;
        self.say(Report::Silent(fault)).await.is_ok()
    }
}

/// What blocks idleness: a film, a call, a presentation. Locks that only delay, or that handle keys, are no such thing.
async fn kept_awake(bus: &Bus) -> Result<Vec<Engagement>, Fault> {
    type Inhibitor = (String, String, String, String, u32, u32);
    let inhibitors: Vec<Inhibitor> = bus.call(SERVICE, PATH, MANAGER, "ListInhibitors", &()).await?;
    let blocks = |(what, _, _, mode, ..): &Inhibitor| mode == "block" && what.split(':').any(|what| what == "idle");
    let engagement = |(_, program, ..): Inhibitor| Engagement {
        kind: EngagementKind::KeepsAwake,
        program,
    };
    Ok(inhibitors.into_iter().filter(blocks).map(engagement).collect())
}
