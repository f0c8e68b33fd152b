//! What the agent's senses answer now, a line for each signal with its source and age. Only a running agent has them.

use crate::doctor::line;
use sela_protocol::local::{DoctorLine, Snapshot, Verdict};
use sela_protocol::presence::{InputActivity, Observed, Span};
use sela_protocol::senses::{Engagement, EngagementKind, Play, PlayKind, PowerSource};
use sela_protocol::units::BootMs;

/// All signals.
pub(super) fn lines(snapshot: &Snapshot) -> Vec<DoctorLine> {
    let now = snapshot.now.boot_ms;
    let signals = &snapshot.signals;
    let senses = &signals.senses;
    let show = Showing { now };
    vec![
        show.held_by("keyboard and mouse", &signals.input, |input| show.input(input)),
        show.held_by("other programs on the cards", &signals.foreign, |foreign| {
            listed(foreign, |process| {
                let name = process.name.as_deref().unwrap_or("a program");
                format!("{name} (process {})", process.pid)
            })
        }),
        show.sense("gamepad", &senses.gamepad, |input| show.input(input)),
        show.sense("film, call, recording", &senses.engaged, |all| listed(all, engagement)),
        show.sense("game, VR, full screen", &senses.playing, |all| listed(all, play)),
        show.sense("screen lock", &senses.locked, |locked| {
            (if *locked { "locked" } else { "not locked" }).to_owned()
        }),
        show.sense("remote desktop", &senses.remote, |all| {
            listed(all, |hand| hand.by.clone())
        }),
        show.sense("power", &senses.power, power),
        show.sense("network", &senses.metered, |metered| {
            (if *metered {
                "costs by volume"
            } else {
                "costs nothing by volume"
            })
            .to_owned()
        }),
        show.sense("sleeping cards", &senses.sleeping_cards, |all| {
            listed(all, |address| format!("PCI {address}"))
        }),
    ]
}

/// At the moment of a snapshot.
#[derive(Debug, Clone, Copy)]
struct Showing {
    now: BootMs,
}

impl Showing {
    /// A signal without which no card is shared.
    fn held_by<T>(self, subject: &str, observed: &Observed<T>, tell: impl Fn(&T) -> String) -> DoctorLine {
        match observed {
            Observed::Unknown { source, why } => line(
                subject,
                Verdict::Bad,
                format!("{source}: {why}; cards are held"),
                Some("start the agent inside your session, where display and login are seen"),
            ),
            Observed::Value { .. } | Observed::NotApplicable { .. } => self.sense(subject, observed, tell),
        }
    }

    fn sense<T>(self, subject: &str, observed: &Observed<T>, tell: impl Fn(&T) -> String) -> DoctorLine {
        match observed {
            Observed::Value {
                value,
                source,
                seen_boot_ms,
            } => {
                let age = Span(self.now.since(*seen_boot_ms));
                let found = format!("{}; seen by {source}, {age} ago", tell(value));
                line(subject, Verdict::Good, found, None)
            }
            Observed::Unknown { source, why } => {
                let found = format!("cannot be seen: {source}: {why}");
                line(subject, Verdict::Limited, found, None)
            }
            Observed::NotApplicable { why } => line(subject, Verdict::NotApplicable, why.clone(), None),
        }
    }

    fn input(self, input: &InputActivity) -> String {
        match input.last_input_boot_ms {
            BootMs(0) => "not used since the agent started".to_owned(),
            at => format!("last used {} ago", Span(self.now.since(at))),
        }
    }
}

fn listed<T>(all: &[T], tell: impl Fn(&T) -> String) -> String {
    if all.is_empty() {
        return "none".to_owned();
    }
    all.iter().map(tell).collect::<Vec<_>>().join(", ")
}

fn engagement(engagement: &Engagement) -> String {
    let program = &engagement.program;
    match engagement.kind {
        EngagementKind::KeepsAwake => format!("{program} keeps the screen on"),
        EngagementKind::Camera => format!("{program} uses the camera"),
        EngagementKind::Microphone => format!("{program} uses the microphone"),
        EngagementKind::Unknown => program.clone(),
    }
}

fn play(play: &Play) -> String {
    let program = &play.program;
    match play.kind {
        PlayKind::GameMode => format!("{program} (GameMode)"),
        PlayKind::Fullscreen => format!("{program} (full screen)"),
        PlayKind::Vr => format!("{program} (VR)"),
        PlayKind::Listed => format!("{program} (your list)"),
        PlayKind::Steam | PlayKind::Unknown => program.clone(),
    }
}

fn power(power: &PowerSource) -> String {
    let from = if power.on_battery { "on battery" } else { "on mains" };
    match power.charge {
        Some(charge) => format!("{from}, {charge} left"),
        None => from.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sela_protocol::units::Percent;

    const SHOW: Showing = Showing { now: BootMs(60_000) };

    fn seen<T>(value: T) -> Observed<T> {
        Observed::Value {
            value,
            source: "UPower".into(),
            seen_boot_ms: BootMs(58_000),
        }
    }

    #[test]
    fn a_signal_is_told_with_its_source_and_its_age() {
        let source = PowerSource {
            on_battery: true,
            charge: Some(Percent(57)),
        };
        let told = SHOW.sense("power", &seen(source), power);
        assert_eq!(told.found, "on battery, 57 % left; seen by UPower, 2 s ago");
        assert_eq!(told.verdict, Verdict::Good);
        let input = |at| InputActivity {
            last_input_boot_ms: BootMs(at),
        };
        assert_eq!(SHOW.input(&input(18_000)), "last used 42 s ago");
        assert_eq!(SHOW.input(&input(0)), "not used since the agent started");
    }

    #[test]
    fn what_cannot_be_seen_is_told_with_the_reason_and_what_is_not_there_is_no_fault() {
        let unknown: Observed<bool> = Observed::Unknown {
            source: "logind".into(),
            why: "no answer within 2 s".into(),
        };
        let tell = |_: &bool| String::new();
        let told = SHOW.sense("screen lock", &unknown, tell);
        assert_eq!(told.found, "cannot be seen: logind: no answer within 2 s");
        assert_eq!(told.verdict, Verdict::Limited);
        assert_eq!(SHOW.held_by("keyboard", &unknown, tell).verdict, Verdict::Bad);
        let absent: Observed<bool> = Observed::NotApplicable { why: "no bus".into() };
        assert_eq!(SHOW.sense("network", &absent, tell).verdict, Verdict::NotApplicable);
    }

    #[test]
    fn lists_are_told_by_name_and_empty_ones_as_none() {
        assert_eq!(listed(&[], play), "none");
        let playing = [Play {
            kind: PlayKind::Fullscreen,
            program: "Doom".into(),
            pid: None,
        }];
        assert_eq!(listed(&playing, play), "Doom (full screen)");
    }
}
