//! Which notifications there are: the first job, a card that became too hot, and what only the owner can mend. Few on purpose,
//! each once until it is over. How they are shown is not decided here.

use super::condition::Condition;
use super::view::Line;
use crate::figures;
use crate::settings::Topic;
use crate::trouble::Kind;
use crate::words::{Key, Words};
use sela_protocol::id::GpuUuid;
use sela_protocol::lease::{EndCause, LeasePhase};
use sela_protocol::local::{CardState, IsolationState, MarketLink, Snapshot, YieldMeasure};
use sela_protocol::money::Micros;
use sela_protocol::units::{BootMs, Millis};
use std::collections::BTreeMap;

/// What is shown of a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    /// What it is about: its owner may not want to be told of it.
    pub(crate) topic: Topic,
    /// One line.
    pub(crate) title: String,
    /// One or two sentences.
    pub(crate) body: String,
    /// Whether it should stay until it was seen.
    pub(crate) urgent: bool,
}

/// An agent that is restarted, or updated, is away for this long at most; only then is it missed.
const MISSED_AFTER: Millis = Millis::from_secs(30);

/// A card that stays at its limit is told of once an hour.
const HOT_AGAIN_AFTER: Millis = Millis::from_secs(3600);

/// What only the owner can mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matter {
    Refused,
    NoIsolation,
    Settings,
    OtherVersion,
    NotAllowed,
    Missing,
}

/// What was told already.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    first_job: bool,
    hot: BTreeMap<GpuUuid, BootMs>,
    matter: Option<Matter>,
    away_since: Option<BootMs>,
}

impl Notices {
    /// What there is to tell of how the line stands now. `remedy` is the command that starts the agent.
    pub(crate) fn of(&mut self, line: &Line, now: BootMs, remedy: &str, words: &Words) -> Vec<Notice> {
        let mut notices = Vec::new();
        if let Line::Live(snapshot) = line {
            notices.extend(self.first_job(snapshot, words));
        }
        let matter = self.matter_of(line, now);
        if matter != self.matter {
            self.matter = matter;
            notices.extend(matter.map(|matter| Notice {
                topic: Topic::Attention,
                title: words.say(Key::Attention, &[]),
                body: explanation(matter, line, remedy, words),
                urgent: true,
            }));
        }
        notices
    }

    /// What there is to tell of a card that was given back.
    pub(crate) fn of_yield(&mut self, given: &YieldMeasure, line: &Line, now: BootMs, words: &Words) -> Option<Notice> {
        if given.cause != EndCause::Hot {
            return None;
        }
        let Line::Live(snapshot) = line else {
            return None;
        };
        let card = snapshot.cards.iter().find(|card| card.description.uuid == given.gpu)?;
        if let Some(told) = self.hot.get(&given.gpu)
            && now.since(*told) < HOT_AGAIN_AFTER
        {
            return None;
        }
        self.hot.insert(given.gpu.clone(), now);
        let below = format!("{}\u{202f}°C", card.limits.resume_below.0);
        Some(Notice {
            topic: Topic::TooHot,
            title: words.say(Key::Hot, &[]),
            body: words.say(Key::HotText, &[("card", &name(card, words)), ("below", &below)]),
            urgent: false,
        })
    }

    /// The first job is the one that runs before anything was ever earned.
    fn first_job(&mut self, snapshot: &Snapshot, words: &Words) -> Option<Notice> {
        let earned = &snapshot.earned;
        if self.first_job || earned.total_net != Micros::ZERO || earned.total_fee != Micros::ZERO {
            return None;
        }
        let running = |card: &&CardState| {
            let lease = card.lease.as_ref();
            lease.is_some_and(|lease| lease.phase == LeasePhase::Running)
        };
        let card = snapshot.cards.iter().find(running)?;
        let price = figures::money(card.lease.as_ref()?.price.0, &words.locale);
        self.first_job = true;
        Some(Notice {
            topic: Topic::FirstJob,
            title: words.say(Key::FirstJob, &[]),
            body: words.say(Key::FirstJobText, &[("card", &name(card, words)), ("price", &price)]),
            urgent: false,
        })
    }

    fn matter_of(&mut self, line: &Line, now: BootMs) -> Option<Matter> {
        let lost = match line {
            Line::Asking => return self.matter,
            Line::Live(snapshot) => {
                self.away_since = None;
                return of_snapshot(snapshot);
            }
            Line::OtherVersion { .. } => return Some(Matter::OtherVersion),
            Line::Lost(trouble) => trouble,
        };
        match lost.kind {
            Kind::NotAllowed => Some(Matter::NotAllowed),
            Kind::NotRunning | Kind::Refused | Kind::Broken => {
                let since = *self.away_since.get_or_insert(now);
                // What was the matter before it went stays so until it is back, or is missed.
                if now.since(since) >= MISSED_AFTER {
                    Some(Matter::Missing)
                } else {
                    self.matter
                }
            }
        }
    }
}

/// Not every state of the sign's notch: an exchange that is not set is what the window is opened for, and one that does not
/// answer is tried again by the agent.
fn of_snapshot(snapshot: &Snapshot) -> Option<Matter> {
    if snapshot.settings_problem.is_some() {
        return Some(Matter::Settings);
    }
    match Condition::of(snapshot) {
        Condition::Refused => Some(Matter::Refused),
        Condition::NoIsolation => Some(Matter::NoIsolation),
        Condition::NoCard
        | Condition::Earning
        | Condition::GivingBack
        | Condition::Preparing
        | Condition::Stopping
        | Condition::Starting
        | Condition::Paused
        | Condition::NoExchange
        | Condition::Unreachable
        | Condition::Looking
        | Condition::Sharing
        | Condition::Held => None,
    }
}

fn explanation(matter: Matter, line: &Line, remedy: &str, words: &Words) -> String {
    let snapshot = match line {
        Line::Live(snapshot) => Some(snapshot),
        Line::Asking | Line::Lost(_) | Line::OtherVersion { .. } => None,
    };
    match matter {
        Matter::Refused => {
            let (url, why) = match snapshot.map(|snapshot| &snapshot.market) {
                Some(MarketLink::Refused { url, message }) => (url.as_str(), message.as_str()),
                Some(MarketLink::NotConfigured | MarketLink::Connecting { .. } | MarketLink::Connected { .. })
                | None => ("", ""),
            };
            words.say(Key::NoticeRefused, &[("url", url), ("why", why)])
        }
        Matter::NoIsolation => match snapshot.map(|snapshot| &snapshot.isolation) {
            Some(IsolationState::Missing { why }) => format!("{} {why}", words.say(Key::NoIsolation, &[])),
            Some(IsolationState::Ready { .. }) | None => words.say(Key::NoIsolation, &[]),
        },
        Matter::Settings => {
            let why = snapshot.and_then(|snapshot| snapshot.settings_problem.as_deref());
            words.say(Key::NoticeSettings, &[("why", why.unwrap_or_default())])
        }
        Matter::OtherVersion => match line {
            Line::OtherVersion { agent, newer } => {
                let key = if *newer { Key::AgentNewer } else { Key::AgentOlder };
                words.say(key, &[("agent", agent)])
            }
            Line::Asking | Line::Live(_) | Line::Lost(_) => words.say(Key::OtherVersion, &[]),
        },
        Matter::NotAllowed => words.say(Key::TrayNotAllowed, &[]),
        Matter::Missing => words.say(Key::MissingText, &[("command", remedy)]),
    }
}

/// A card's name as its owner says it. A simulated one says so.
fn name(card: &CardState, words: &Words) -> String {
    let full = card.description.name.replace("SIMULATED", "").replace("()", "");
    let short = full
        .trim()
        .trim_start_matches("NVIDIA ")
        .trim_start_matches("GeForce ")
        .trim();
    let short = if short.is_empty() {
        card.description.name.as_str()
    } else {
        short
    };
    if card.description.simulated {
        return format!("{short} ({})", words.say(Key::Simulated, &[]));
    }
    short.to_owned()
}
