//! Whether a card may be shared now, and if not, why: a pure function of what is seen, what the owner allows and what the
//! agent knows of the card. What happens to a running job about it is in `lease`.

use crate::card::Card;
use crate::policy::CardPolicy;
use crate::wake::Wake;
use sela_protocol::local::{IsolationState, Pause};
use sela_protocol::presence::{Availability, ForeignUse, HoldReason, InputActivity, Observed, Signals};
use sela_protocol::units::{BootMs, Millis, Now};

/// What holds for every card of this machine alike.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) service: Service,
    pub(crate) asleep: bool,
    pub(crate) pause: Option<Pause>,
    pub(crate) isolation: &'a IsolationState,
    pub(crate) signals: &'a Signals,
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
    reasons.extend(card.unfit(policy, around.patience, now, wake));
    reasons
        .extend(foreign_use(&around.signals.foreign, card, policy).map(|process| HoldReason::ForeignUse { process }));
    reasons.extend(unknown_signals(around, now, wake));
    if let Some(until) = card.cool_off_until
        && !wake.due(now.boot_ms, until)
    {
        reasons.push(HoldReason::CoolOff {
            remaining_ms: until.since(now.boot_ms),
        });
    }
    reasons.extend(recent_input(&around.signals.input, policy, now, wake));
    if reasons.is_empty() {
        Availability::Available
    } else {
        Availability::Held { reasons }
    }
}

/// Another program that counts by the owner's thresholds.
pub(crate) fn foreign_use(foreign: &Observed<Vec<ForeignUse>>, card: &Card, policy: &CardPolicy) -> Option<ForeignUse> {
    let Observed::Value { value, .. } = foreign else {
        return None;
    };
    let ignored = |process: &ForeignUse| {
        process
            .name
            .as_ref()
            .is_some_and(|name| policy.ignored_programs.iter().any(|ignored| ignored == name))
    };
    value
        .iter()
        .filter(|process| process.gpu == card.description.uuid && !ignored(process))
        .find(|process| {
            // Where the driver tells nothing of a process, its being there counts: silence is never taken for idleness.
            let (vram, utilisation) = (process.vram_used, process.utilisation);
            (vram.is_none() && utilisation.is_none())
                || vram.is_some_and(|vram| vram >= policy.foreign_vram)
                || utilisation.is_some_and(|share| share >= policy.foreign_utilisation)
        })
        .cloned()
}

/// Signals whose source failed, and sensors that fell silent as a whole.
pub(crate) fn unknown_signals(around: &Surroundings<'_>, now: Now, wake: &mut Wake) -> Vec<HoldReason> {
    let mut reasons = Vec::new();
    if let Observed::Unknown { source, why } = &around.signals.input {
        reasons.push(HoldReason::SignalUnknown {
            signal: "input".into(),
            source: source.clone(),
            why: why.clone(),
        });
    }
    if let Observed::Unknown { source, why } = &around.signals.foreign {
        reasons.push(HoldReason::SignalUnknown {
            signal: "other programs on the card".into(),
            source: source.clone(),
            why: why.clone(),
        });
    }
    if wake.due(now.boot_ms, around.signals_heard.plus(around.patience)) {
        let silent = now.boot_ms.since(around.signals_heard);
        reasons.push(HoldReason::SignalUnknown {
            signal: "all signals".into(),
            source: "sensors".into(),
            why: format!("nothing heard of them for {} ms", silent.0),
        });
    }
    reasons
}

fn recent_input(input: &Observed<InputActivity>, policy: &CardPolicy, now: Now, wake: &mut Wake) -> Option<HoldReason> {
    let Observed::Value { value, source, .. } = input else {
        return None;
    };
    if wake.due(now.boot_ms, value.last_input_boot_ms.plus(policy.idle_after)) {
        return None;
    }
    Some(HoldReason::InputRecent {
        idle_ms: now.boot_ms.since(value.last_input_boot_ms),
        needed_ms: policy.idle_after,
        source: source.clone(),
    })
}

/// The newest input, where it is seen.
pub(crate) const fn last_input(signals: &Signals) -> Option<BootMs> {
    match &signals.input {
        Observed::Value { value, .. } => Some(value.last_input_boot_ms),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}
