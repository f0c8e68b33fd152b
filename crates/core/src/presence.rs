//! Whether a card may be shared now, and if not, why: a pure function of what is seen, what the owner allows and what the
//! agent knows of the card. What happens to a running job about it is in `lease`.

use crate::card::Card;
use crate::foreign::{self, Activity};
use crate::policy::CardPolicy;
use crate::senses;
use crate::timetable::Hours;
use crate::wake::Wake;
use sela_protocol::local::{IsolationState, Pause};
use sela_protocol::presence::{Availability, HoldReason, Signals};
use sela_protocol::units::{BootMs, Millis, Now};

/// What holds for a card and is not its own.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) service: Service,
    pub(crate) asleep: bool,
    pub(crate) pause: Option<Pause>,
    pub(crate) isolation: &'a IsolationState,
    pub(crate) signals: &'a Signals,
    pub(crate) activity: &'a Activity,
    /// What the card's schedule says.
    pub(crate) hours: &'a Hours,
    /// When the sensors were last heard, and for how long silence is no reason yet.
    pub(crate) signals_heard: BootMs,
    pub(crate) patience: Millis,
}

/// Where the agent is between start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Cleaning up after the last run.
    Starting,
    /// Serving.
    Open,
    /// Ending everything.
    Stopping,
}

/// All reasons that hold a card, most lasting first; asks to be woken when one of them lifts by itself.
pub(crate) fn availability(
    around: &Surroundings<'_>,
    card: &Card,
    policy: &CardPolicy,
    now: Now,
    wake: &mut Wake,
) -> Availability {
    let mut reasons = Vec::new();
    match around.service {
        Service::Starting => reasons.push(HoldReason::Starting),
        Service::Open => {}
        Service::Stopping => reasons.push(HoldReason::Stopping),
    }
    if around.asleep {
        reasons.push(HoldReason::Asleep);
    }
    if let IsolationState::Missing { why } = around.isolation {
        reasons.push(HoldReason::NoIsolation { why: why.clone() });
    }
    if let Some(pause) = around.pause {
        reasons.push(HoldReason::Paused {
            until_utc_ms: pause.until_utc_ms,
        });
    }
    reasons.extend(around.hours.reasons.iter().cloned());
    let sensed = sensed(around, card, policy, now, wake);
    // The driver of a card that sleeps stays closed: that nothing is read of it says nothing more.
    if !sensed.contains(&HoldReason::CardAsleep) {
        reasons.extend(card.unfit(policy, around.patience, now, wake));
    }
    let settling = sensed.is_empty().then_some(card.settling_until).flatten();
    reasons.extend(sensed);
    if let Some(until) = card.cool_off_until
        && !wake.due(now.boot_ms, until)
    {
        reasons.push(HoldReason::CoolOff {
            remaining_ms: until.since(now.boot_ms),
        });
    }
    reasons.extend(senses::recent(around.signals, policy, now, wake));
    if let Some(until) = settling
        && !wake.due(now.boot_ms, until)
    {
        reasons.push(HoldReason::Settling {
            remaining_ms: until.since(now.boot_ms),
        });
    }
    if reasons.is_empty() {
        Availability::Available {
            until_utc_ms: around.hours.until,
        }
    } else {
        Availability::Held { reasons }
    }
}

/// Sensors that fell silent as a whole.
fn silence(around: &Surroundings<'_>, now: Now, wake: &mut Wake) -> Option<HoldReason> {
    if !wake.due(now.boot_ms, around.signals_heard.plus(around.patience)) {
        return None;
    }
    let silent = now.boot_ms.since(around.signals_heard);
    Some(HoldReason::SignalUnknown {
        signal: senses::ALL.into(),
        source: "sensors".into(),
        why: format!("nothing heard of them for {} ms", silent.0),
    })
}

/// What is seen now and holds; when it goes, the card must stay free of it for a while.
pub(crate) fn sensed(
    around: &Surroundings<'_>,
    card: &Card,
    policy: &CardPolicy,
    now: Now,
    wake: &mut Wake,
) -> Vec<HoldReason> {
    let signals = around.signals;
    let mut reasons: Vec<HoldReason> = foreign::reason(&signals.foreign, around.activity, card, policy, now, wake)
        .into_iter()
        .collect();
    reasons.extend(senses::sensed(signals, policy));
    reasons.extend(silence(around, now, wake));
    reasons
}
