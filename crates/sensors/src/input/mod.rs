//! The owner's hands: which sources there are for keyboard, mouse and pointer, and one answer out of all of them. A source
//! that is there and fails makes the answer `Unknown`; only where there is neither a session nor a seat is it not applicable.

pub(crate) mod mutter;
pub(crate) mod wayland;
pub(crate) mod x11;

use crate::look::{is_too_long, silence};

use sela_protocol::presence::{InputActivity, Observed};
use sela_protocol::units::{BootMs, Millis};

/// What one source says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// The newest input that it knows of.
    Seen(BootMs),
    /// It works, and there is nobody whose input it could see (no session on any seat).
    Nobody,
    /// It is there but failed.
    Failed(String),
    /// It is not there on this machine.
    Absent(String),
}

/// A source as it last reported.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) name: &'static str,
    pub(crate) sighting: Sighting,
    pub(crate) heard: BootMs,
}

/// One answer out of all sources, for sources that should report every `period`.
pub(crate) fn combine(sources: &[Source], now: BootMs, period: Millis) -> Observed<InputActivity> {
    let mut newest: Option<(BootMs, &Source)> = None;
    let mut absent = Vec::new();
    for source in sources {
        let silent = now.since(source.heard);
        match &source.sighting {
            Sighting::Absent(why) => absent.push(format!("{}: {why}", source.name)),
            // One that failed tries again with growing pauses: its word is why it is silent.
            Sighting::Failed(why) => return unknown(source, why.clone()),
            // An absent source does not have to report; all others do.
            Sighting::Seen(_) | Sighting::Nobody if is_too_long(silent, period) => {
                return unknown(source, silence(silent));
            }
            Sighting::Nobody => absent.push(format!("{}: nobody is logged in at a seat", source.name)),
            Sighting::Seen(at) => {
                if newest.is_none_or(|(newest, _)| *at > newest) {
                    newest = Some((*at, source));
                }
            }
        }
    }
    match newest {
        Some((last_input_boot_ms, source)) => Observed::Value {
            value: InputActivity { last_input_boot_ms },
            source: source.name.to_owned(),
            seen_boot_ms: source.heard,
        },
        None => Observed::NotApplicable { why: absent.join("; ") },
    }
}

fn unknown(source: &Source, why: String) -> Observed<InputActivity> {
    Observed::Unknown {
        source: source.name.to_owned(),
        why,
    }
}

/// The newest input by a source that is polled. A poll computes "now − idle", which trembles by the time that the answer
/// takes; an event is exact. So a poll counts as newer only beyond the tremble.
#[derive(Debug, Default)]
pub(crate) struct NewestInput(Option<BootMs>);

const TREMBLE: Millis = Millis(100);

impl NewestInput {
    pub(crate) fn event(&mut self, at: BootMs) -> BootMs {
        let newest = self.0.map_or(at, |before| before.max(at));
        self.0 = Some(newest);
        newest
    }

    pub(crate) fn polled(&mut self, at: BootMs) -> BootMs {
        let newest = match self.0 {
            Some(before) if at <= before.plus(TREMBLE) => before,
            Some(_) | None => at,
        };
        self.0 = Some(newest);
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &'static str, sighting: Sighting, heard: u64) -> Source {
        Source {
            name,
            sighting,
            heard: BootMs(heard),
        }
    }

    fn check(sources: &[Source], expected: &str) {
        let answer = match combine(sources, BootMs(20_000), Millis(1_000)) {
            Observed::Value { value, source, .. } => format!("{source} {}", value.last_input_boot_ms.0),
            Observed::Unknown { source, why } => format!("unknown {source}: {why}"),
            Observed::NotApplicable { why } => format!("not applicable: {why}"),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn the_newest_input_of_all_sources_counts() {
        let seen = |name, at| source(name, Sighting::Seen(BootMs(at)), 19_500);
        check(&[seen("x11", 100), seen("logind", 200)], "logind 200");
        check(
            &[seen("x11", 300), source("logind", Sighting::Nobody, 19_500)],
            "x11 300",
        );
    }

    #[test]
    fn a_source_that_is_there_and_fails_or_falls_silent_makes_it_unknown() {
        let good = source("logind", Sighting::Seen(BootMs(5)), 19_500);
        check(
            &[good.clone(), source("x11", Sighting::Failed("gone".into()), 19_500)],
            "unknown x11: gone",
        );
        check(
            &[good, source("x11", Sighting::Seen(BootMs(5)), 16_000)],
            "unknown x11: silent for 4000 ms",
        );
    }

    #[test]
    fn where_there_is_nobody_and_nothing_it_is_not_applicable() {
        let absent = source("logind", Sighting::Absent("no system bus".into()), 0);
        check(&[absent], "not applicable: logind: no system bus");
        check(&[], "not applicable: ");
    }

    #[test]
    fn the_tremble_of_a_poll_is_no_new_input_and_an_event_always_is() {
        let mut newest = NewestInput::default();
        assert_eq!(newest.polled(BootMs(1_000)), BootMs(1_000));
        assert_eq!(newest.polled(BootMs(1_003)), BootMs(1_000));
        assert_eq!(newest.event(BootMs(1_003)), BootMs(1_003));
        assert_eq!(newest.polled(BootMs(1_050)), BootMs(1_003));
        assert_eq!(newest.polled(BootMs(1_500)), BootMs(1_500));
        assert_eq!(newest.event(BootMs(1_400)), BootMs(1_500));
    }
}
