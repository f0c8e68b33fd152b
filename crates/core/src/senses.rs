//! What is seen of the owner besides hands on the keyboard and programs on the card, and what of it holds a card: each signal is a
//! value that may hold, Unknown, which holds, or not applicable, which does not. A signal that the owner's policy does not ask about
//! holds nothing, whatever it says.

use crate::policy::{BatteryRule, CardPolicy};
use crate::wake::Wake;
use sela_protocol::presence::{HoldReason, Observed, Signals};
use sela_protocol::senses::PowerSource;
use sela_protocol::units::{BootMs, Now};

/// The signals by the names that reasons use. Clients translate these; a new one needs its word there.
pub(crate) const INPUT: &str = "input";
pub(crate) const FOREIGN: &str = "other programs on the card";
pub(crate) const ALL: &str = "all signals";
const GAMEPAD: &str = "gamepad";
const ENGAGED: &str = "film or call";
const PLAYING: &str = "game";
const REMOTE: &str = "remote session";
const POWER: &str = "power source";
const METERED: &str = "network cost";
const SLEEPING: &str = "sleeping cards";

/// Everything that is seen now and holds, except what is timed ([`recent`]).
pub(crate) fn sensed(signals: &Signals, policy: &CardPolicy) -> Vec<HoldReason> {
    let senses = &signals.senses;
    let at_work = !policy.share_while_working;
    let mut reasons = Vec::new();
    let mut ask = |asked: bool, found: Option<HoldReason>| reasons.extend(found.filter(|_| asked));
    ask(at_work, unknown(INPUT, &signals.input));
    ask(true, unknown(FOREIGN, &signals.foreign));
    ask(true, unknown(SLEEPING, &senses.sleeping_cards));
    ask(at_work, unknown(GAMEPAD, &senses.gamepad));
    ask(policy.hold_while_playing, unknown(PLAYING, &senses.playing));
    let asks_power = policy.battery != BatteryRule::Ignore;
    ask(asks_power, unknown(POWER, &senses.power));
    ask(policy.hold_while_remote, unknown(REMOTE, &senses.remote));
    ask(policy.hold_on_metered, unknown(METERED, &senses.metered));
    let asks_engaged = policy.hold_while_engaged && at_work;
    ask(asks_engaged, unknown(ENGAGED, &senses.engaged));

    ask(
        true,
        value(&senses.sleeping_cards)
            .filter(|cards| !cards.is_empty())
            .map(|_| HoldReason::CardAsleep),
    );
    let play = value(&senses.playing).and_then(|plays| plays.first());
    ask(
        policy.hold_while_playing,
        play.map(|play| HoldReason::Playing {
            kind: play.kind,
            program: play.program.clone(),
        }),
    );
    ask(
        asks_power,
        value(&senses.power).and_then(|power| on_battery(power, policy.battery)),
    );
    let hand = value(&senses.remote).and_then(|hands| hands.first());
    ask(
        policy.hold_while_remote,
        hand.map(|hand| HoldReason::RemoteSession { by: hand.by.clone() }),
    );
    let costs = value(&senses.metered).is_some_and(|costs| *costs);
    ask(policy.hold_on_metered, costs.then_some(HoldReason::Metered));
    let engagement = value(&senses.engaged).and_then(|engagements| engagements.first());
    ask(
        asks_engaged,
        engagement.map(|engagement| HoldReason::Engaged {
            kind: engagement.kind,
            program: engagement.program.clone(),
        }),
    );
    reasons
}

/// Hands on keyboard, mouse or pad not long enough ago.
pub(crate) fn recent(signals: &Signals, policy: &CardPolicy, now: Now, wake: &mut Wake) -> Vec<HoldReason> {
    let mut reasons = Vec::new();
    if policy.share_while_working {
        return reasons;
    }
    let needed_ms = policy.idle_after;
    if let Observed::Value { value, source, .. } = &signals.input
        && !wake.due(now.boot_ms, value.last_input_boot_ms.plus(needed_ms))
    {
        reasons.push(HoldReason::InputRecent {
            idle_ms: now.boot_ms.since(value.last_input_boot_ms),
            needed_ms,
            source: source.clone(),
        });
    }
    if let Observed::Value { value, source, .. } = &signals.senses.gamepad
        && !wake.due(now.boot_ms, value.last_input_boot_ms.plus(needed_ms))
    {
        reasons.push(HoldReason::GamepadRecent {
            idle_ms: now.boot_ms.since(value.last_input_boot_ms),
            needed_ms,
            source: source.clone(),
        });
    }
    reasons
}

/// The newest touch of keyboard, mouse or pad, where it is seen.
pub(crate) fn last_input(signals: &Signals) -> Option<BootMs> {
    let newest =
        |observed| value(observed).map(|activity: &sela_protocol::presence::InputActivity| activity.last_input_boot_ms);
    newest(&signals.input).max(newest(&signals.senses.gamepad))
}

fn on_battery(power: &PowerSource, rule: BatteryRule) -> Option<HoldReason> {
    let least = match rule {
        BatteryRule::Hold => None,
        BatteryRule::From(least) => Some(least),
        BatteryRule::Ignore => return None,
    };
    // A battery that does not tell its charge may be empty.
    let enough = least.zip(power.charge).is_some_and(|(least, charge)| charge >= least);
    (power.on_battery && !enough).then_some(HoldReason::OnBattery {
        charge: power.charge,
        least,
    })
}

const fn value<T>(observed: &Observed<T>) -> Option<&T> {
    match observed {
        Observed::Value { value, .. } => Some(value),
        Observed::Unknown { .. } | Observed::NotApplicable { .. } => None,
    }
}

fn unknown<T>(signal: &str, observed: &Observed<T>) -> Option<HoldReason> {
    let Observed::Unknown { source, why } = observed else {
        return None;
    };
    Some(HoldReason::SignalUnknown {
        signal: signal.into(),
        source: source.clone(),
        why: why.clone(),
    })
}
