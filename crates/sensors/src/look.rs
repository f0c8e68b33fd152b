//! What one source says of one signal, and one answer out of all sources of it. What holds wins over what cannot be seen,
//! and that over what is fine; a source that is not there says nothing.

use sela_protocol::presence::{InputActivity, Observed};
use sela_protocol::senses::PowerSource;
use sela_protocol::units::{BootMs, Millis};

/// What one source says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look<T> {
    /// It answered.
    Seen(T),
    /// It is there but failed.
    Failed(String),
    /// It is not there on this machine.
    Absent(String),
}

/// A value that several sources may give together.
pub(crate) trait Joined {
    /// Both at once.
    fn merge(&mut self, other: Self);
    /// Whether this value keeps a card from being shared, so that no other source can change the answer.
    fn weighs(&self) -> bool;
}

impl<T> Joined for Vec<T> {
    fn merge(&mut self, other: Self) {
        self.extend(other);
    }

    fn weighs(&self) -> bool {
        !self.is_empty()
    }
}

impl Joined for bool {
    fn merge(&mut self, other: Self) {
        *self |= other;
    }

    fn weighs(&self) -> bool {
        *self
    }
}

impl Joined for InputActivity {
    fn merge(&mut self, other: Self) {
        self.last_input_boot_ms = self.last_input_boot_ms.max(other.last_input_boot_ms);
    }

    /// Another source may know of newer input.
    fn weighs(&self) -> bool {
        false
    }
}

impl Joined for PowerSource {
    fn merge(&mut self, other: Self) {
        if other.on_battery && !self.on_battery {
            *self = other;
        }
    }

    fn weighs(&self) -> bool {
        self.on_battery
    }
}

/// One signal: its sources as they last reported.
#[derive(Debug, Clone)]
pub(crate) struct Slot<T> {
    sources: Vec<Source<T>>,
}

#[derive(Debug, Clone)]
struct Source<T> {
    name: &'static str,
    look: Look<T>,
    heard: BootMs,
}

impl<T: Joined + Clone> Slot<T> {
    /// Sources that have not answered yet.
    pub(crate) fn of(names: &[&'static str], now: BootMs) -> Self {
        let waiting = |name: &&'static str| Source {
            name,
            look: Look::Failed("has not answered yet".into()),
            heard: now,
        };
        Self {
            sources: names.iter().map(waiting).collect(),
        }
    }

    /// Notes what a source said.
    pub(crate) fn hear(&mut self, name: &str, look: Look<T>, now: BootMs) {
        if let Some(source) = self.sources.iter_mut().find(|source| source.name == name) {
            source.look = look;
            source.heard = now;
        }
    }

    /// What was silent so far is forgiven: from now on silence counts at another rate.
    pub(crate) fn forgive(&mut self, now: BootMs) {
        self.sources.iter_mut().for_each(|source| source.heard = now);
    }

    /// One answer, of sources that should report every `period`.
    pub(crate) fn answer(&self, now: BootMs, period: Millis) -> Observed<T> {
        let mut joined: Option<(T, Vec<&'static str>, BootMs)> = None;
        let mut unknown = None;
        let mut absent = Vec::new();
        for source in &self.sources {
            let silent = now.since(source.heard);
            match &source.look {
                Look::Absent(why) => absent.push(format!("{}: {why}", source.name)),
                Look::Failed(why) => {
                    unknown.get_or_insert_with(|| (source.name, why.clone()));
                }
                Look::Seen(_) if is_too_long(silent, period) => {
                    unknown.get_or_insert_with(|| (source.name, silence(silent)));
                }
                Look::Seen(value) => {
                    let (name, heard) = (source.name, source.heard);
                    joined = Some(match joined.take() {
                        None => (value.clone(), vec![name], heard),
                        Some(before) => together(before, value, name, heard),
                    });
                }
            }
        }
        match (joined, unknown) {
            (Some((value, names, seen_boot_ms)), unknown) if value.weighs() || unknown.is_none() => Observed::Value {
                value,
                source: names.join(", "),
                seen_boot_ms,
            },
            (_, Some((source, why))) => Observed::Unknown {
                source: source.to_owned(),
                why,
            },
            (_, None) => Observed::NotApplicable { why: absent.join("; ") },
        }
    }
}

/// Both; the sources that are named are those which have something to say, else all. As old as the older one.
fn together<T: Joined + Clone>(
    (mut value, mut names, heard): (T, Vec<&'static str>, BootMs),
    other: &T,
    name: &'static str,
    other_heard: BootMs,
) -> (T, Vec<&'static str>, BootMs) {
    match (value.weighs(), other.weighs()) {
        (true, false) => {}
        (false, true) => names = vec![name],
        (true, true) | (false, false) => names.push(name),
    }
    value.merge(other.clone());
    (value, names, heard.min(other_heard))
}

/// Whether a source has been silent for three of its periods.
pub(crate) const fn is_too_long(silent: Millis, period: Millis) -> bool {
    silent.0 > 3 * period.0 + 500
}

/// How silence is told.
pub(crate) fn silence(silent: Millis) -> String {
    format!("silent for {} ms", silent.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(looks: &[(&'static str, Look<Vec<u8>>, u64)], expected: &str) {
        let names: Vec<&'static str> = looks.iter().map(|(name, ..)| *name).collect();
        let mut slot = Slot::of(&names, BootMs(0));
        for (name, look, heard) in looks {
            slot.hear(name, look.clone(), BootMs(*heard));
        }
        let answer = match slot.answer(BootMs(20_000), Millis(1_000)) {
            Observed::Value { value, source, .. } => format!("{source} {value:?}"),
            Observed::Unknown { source, why } => format!("unknown {source}: {why}"),
            Observed::NotApplicable { why } => format!("not applicable: {why}"),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn what_holds_wins_over_what_cannot_be_seen_and_that_over_what_is_fine() {
        let game = || Look::Seen(vec![7]);
        let none = || Look::Seen(vec![]);
        let broken = || Look::Failed("gone".into());
        check(&[("a", broken(), 19_500), ("b", game(), 19_500)], "b [7]");
        check(&[("a", none(), 19_500), ("b", game(), 19_500)], "b [7]");
        check(&[("a", game(), 19_500), ("b", game(), 19_500)], "a, b [7, 7]");
        check(&[("a", none(), 19_500), ("b", broken(), 19_500)], "unknown b: gone");
        check(&[("a", none(), 19_500), ("b", none(), 19_500)], "a, b []");
    }

    #[test]
    fn a_source_that_falls_silent_is_not_believed_any_more() {
        check(&[("a", Look::Seen(vec![]), 16_000)], "unknown a: silent for 4000 ms");
        check(&[("a", Look::Seen(vec![1]), 16_000)], "unknown a: silent for 4000 ms");
    }

    #[test]
    fn a_source_that_is_not_there_says_nothing() {
        let absent = || Look::Absent("no bus".into());
        check(&[("a", absent(), 0)], "not applicable: a: no bus");
        check(&[("a", absent(), 0), ("b", Look::Seen(vec![]), 19_500)], "b []");
        check(&[], "not applicable: ");
    }

    #[test]
    fn a_source_that_never_answered_holds() {
        let slot: Slot<bool> = Slot::of(&["a"], BootMs(0));
        let answer = slot.answer(BootMs(1), Millis(1_000));
        assert!(matches!(answer, Observed::Unknown { .. }), "{answer:?}");
    }
}
