//! What the PC is doing at this moment, in one word, one sentence and one sign. The agent decided it; here it only gets its
//! name, the same that the window gives it (`ui/src/agent/condition.ts`): the tray is there when no window is.

use super::view::Line;
use crate::figures;
use crate::sign::Sign;
use crate::trouble::Kind;
use crate::words::{Key, Words};
use jiff::tz::TimeZone;
use sela_protocol::lease::LeasePhase;
use sela_protocol::local::{CardState, IsolationState, MarketLink, Snapshot};
use sela_protocol::presence::{Availability, HoldReason};
use sela_protocol::units::UtcMs;

/// What one card does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CardCondition {
    Earning,
    Preparing,
    GivingBack,
    Offered,
    Waiting,
    Paused,
    Held,
}

/// What the PC does, ordered from what matters most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    NoCard,
    Earning,
    GivingBack,
    Preparing,
    Stopping,
    Starting,
    Paused,
    NoIsolation,
    NoExchange,
    Refused,
    Unreachable,
    Looking,
    Sharing,
    Held,
}

fn of_card(card: &CardState, market: &MarketLink) -> CardCondition {
    if let Some(lease) = &card.lease {
        return match lease.phase {
            LeasePhase::Running => CardCondition::Earning,
            LeasePhase::Frozen | LeasePhase::Saving | LeasePhase::Ending => CardCondition::GivingBack,
            LeasePhase::Fetching | LeasePhase::Starting | LeasePhase::Uploading | LeasePhase::Unknown => {
                CardCondition::Preparing
            }
        };
    }
    match &card.availability {
        Availability::Available { .. } if matches!(market, MarketLink::Connected { .. }) => CardCondition::Offered,
        Availability::Available { .. } => CardCondition::Waiting,
        Availability::Held { reasons } => {
            if reasons.iter().any(|reason| matches!(reason, HoldReason::Paused { .. })) {
                CardCondition::Paused
            } else {
                CardCondition::Held
            }
        }
    }
}

fn of_cards(snapshot: &Snapshot) -> Vec<CardCondition> {
    let cards = snapshot.cards.iter();
    cards.map(|card| of_card(card, &snapshot.market)).collect()
}

impl Condition {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let cards = of_cards(snapshot);
        let any = |wanted| cards.contains(&wanted);
        let everywhere = |reason: &HoldReason| {
            snapshot.cards.iter().all(|card| match &card.availability {
                Availability::Held { reasons } => reasons.contains(reason),
                Availability::Available { .. } => false,
            })
        };
        if cards.is_empty() {
            Self::NoCard
        } else if any(CardCondition::Earning) {
            Self::Earning
        } else if any(CardCondition::GivingBack) {
            Self::GivingBack
        } else if any(CardCondition::Preparing) {
            Self::Preparing
        } else if everywhere(&HoldReason::Stopping) {
            Self::Stopping
        } else if everywhere(&HoldReason::Starting) {
            Self::Starting
        } else if snapshot.pause.is_some() {
            Self::Paused
        } else if matches!(snapshot.isolation, IsolationState::Missing { .. }) {
            Self::NoIsolation
        } else if let Some(unlinked) = Self::unlinked(&snapshot.market) {
            unlinked
        } else if any(CardCondition::Offered) {
            Self::Sharing
        } else {
            Self::Held
        }
    }

    const fn unlinked(market: &MarketLink) -> Option<Self> {
        match market {
            MarketLink::Connected { .. } => None,
            MarketLink::NotConfigured => Some(Self::NoExchange),
            MarketLink::Refused { .. } => Some(Self::Refused),
            MarketLink::Connecting { last_error: None, .. } => Some(Self::Looking),
            MarketLink::Connecting {
                last_error: Some(_), ..
            } => Some(Self::Unreachable),
        }
    }

    const fn sign(self) -> Sign {
        match self {
            Self::Earning | Self::Preparing => Sign::Earning,
            Self::Sharing => Sign::Sharing,
            Self::Paused | Self::Held | Self::GivingBack | Self::Starting | Self::Stopping | Self::Looking => {
                Sign::Paused
            }
            Self::NoCard | Self::NoIsolation | Self::NoExchange | Self::Refused | Self::Unreachable => Sign::Attention,
        }
    }
}

/// The sign of how the line stands.
pub(crate) fn sign(line: &Line) -> Sign {
    match line {
        Line::Asking => Sign::Paused,
        Line::Live(snapshot) => Condition::of(snapshot).sign(),
        Line::Lost(_) | Line::OtherVersion { .. } => Sign::Attention,
    }
}

/// The one sentence of how the line stands.
pub(crate) fn sentence(line: &Line, words: &Words, now: UtcMs, zone: &TimeZone) -> String {
    let key = match line {
        Line::Asking => Key::Asking,
        Line::Live(snapshot) => return live_sentence(snapshot, words, now, zone),
        Line::OtherVersion { .. } => Key::OtherVersion,
        Line::Lost(trouble) => match trouble.kind {
            Kind::NotRunning => Key::Missing,
            Kind::NotAllowed => Key::TrayNotAllowed,
            Kind::Refused | Kind::Broken => Key::Broken,
        },
    };
    words.say(key, &[])
}

fn live_sentence(snapshot: &Snapshot, words: &Words, now: UtcMs, zone: &TimeZone) -> String {
    let cards = of_cards(snapshot);
    let among = |wanted| cards.iter().filter(|found| **found == wanted).count().to_string();
    let count = cards.len().to_string();
    let key = match Condition::of(snapshot) {
        Condition::Earning => {
            let earning = among(CardCondition::Earning);
            return words.say(Key::Earning, &[("count", &count), ("earning", &earning)]);
        }
        Condition::Sharing => {
            let offered = among(CardCondition::Offered);
            return words.say(Key::Sharing, &[("count", &count), ("offered", &offered)]);
        }
        Condition::Paused => match snapshot.pause.and_then(|pause| pause.until_utc_ms) {
            Some(until) => {
                let time = figures::moment(until, now, zone, &words.locale);
                return words.say(Key::PausedUntil, &[("time", &time)]);
            }
            None => Key::Paused,
        },
        Condition::Held => Key::Held,
        Condition::NoCard => Key::NoCard,
        Condition::GivingBack => Key::GivingBack,
        Condition::Preparing => Key::Preparing,
        Condition::Stopping => Key::Stopping,
        Condition::Starting => Key::Starting,
        Condition::NoIsolation => Key::NoIsolation,
        Condition::NoExchange => Key::NoExchange,
        Condition::Refused => Key::Refused,
        Condition::Unreachable => Key::Unreachable,
        Condition::Looking => Key::Looking,
    };
    words.say(key, &[("count", &count)])
}
