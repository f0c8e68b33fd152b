//! Spans of time between two moments, and sets of them. Plain set arithmetic: what is open and why is not known here.

use sela_protocol::units::UtcMs;

/// From a moment up to, not including, another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The first moment of it.
    pub from: UtcMs,
    /// The first moment after it.
    pub to: UtcMs,
}

impl Slot {
    /// `None` where nothing lies between.
    pub const fn between(from: UtcMs, to: UtcMs) -> Option<Self> {
        if from.0 < to.0 { Some(Self { from, to }) } else { None }
    }

    /// What it has in common with another.
    pub fn common(self, other: Self) -> Option<Self> {
        Self::between(self.from.max(other.from), self.to.min(other.to))
    }

    /// Whether a moment is in it.
    pub const fn holds(self, at: UtcMs) -> bool {
        self.from.0 <= at.0 && at.0 < self.to.0
    }
}

/// A set of moments: slots in order, apart from each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slots(Vec<Slot>);

impl Slots {
    /// Joins what overlaps or touches.
    pub fn of(mut slots: Vec<Slot>) -> Self {
        slots.sort_unstable();
        let mut joined: Vec<Slot> = Vec::with_capacity(slots.len());
        for slot in slots {
            match joined.last_mut() {
                Some(last) if slot.from <= last.to => last.to = last.to.max(slot.to),
                Some(_) | None => joined.push(slot),
            }
        }
        Self(joined)
    }

    /// In order, none touching the next.
    pub fn as_slice(&self) -> &[Slot] {
        &self.0
    }

    /// The slot that a moment is in.
    pub fn holding(&self, at: UtcMs) -> Option<Slot> {
        let after = self.0.partition_point(|slot| slot.from <= at);
        let slot = *self.0.get(after.checked_sub(1)?)?;
        slot.holds(at).then_some(slot)
    }

    /// The first slot that begins after a moment.
    pub fn next_after(&self, at: UtcMs) -> Option<Slot> {
        self.0.get(self.0.partition_point(|slot| slot.from <= at)).copied()
    }

    /// What is in either.
    pub fn or(self, other: Self) -> Self {
        let mut slots = self.0;
        slots.extend(other.0);
        Self::of(slots)
    }

    /// What is in both.
    pub fn and(&self, other: &Self) -> Self {
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut slots = Vec::new();
        while let (Some(&&one), Some(&&two)) = (mine.peek(), theirs.peek()) {
            slots.extend(one.common(two));
            if one.to < two.to {
                mine.next()
            } else {
                theirs.next()
            };
        }
        Self(slots)
    }

    /// What of `whole` is not in it.
    pub fn rest_of(&self, whole: Slot) -> Self {
        let mut from = whole.from;
        let mut slots = Vec::new();
        for slot in &self.0 {
            slots.extend(Slot::between(from, slot.from.min(whole.to)));
            from = from.max(slot.to);
        }
        slots.extend(Slot::between(from, whole.to));
        Self(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: Slot = Slot {
        from: UtcMs(0),
        to: UtcMs(40),
    };

    fn some_slots() -> impl Strategy<Value = Vec<Slot>> {
        let slot = (0_i64..40, 0_i64..12).prop_filter_map("empty", |(from, length)| {
            Slot::between(UtcMs(from), UtcMs((from + length).min(40)))
        });
        proptest::collection::vec(slot, 0..6)
    }

    proptest! {
        #[test]
        fn sets_of_slots_hold_what_their_moments_say(one in some_slots(), two in some_slots()) {
            let holds = |slots: &[Slot], at| slots.iter().any(|slot| slot.holds(UtcMs(at)));
            let (first, second) = (Slots::of(one.clone()), Slots::of(two.clone()));
            for at in 0..40 {
                let (a, b) = (holds(&one, at), holds(&two, at));
                let check = |set: &Slots, expected: bool| {
                    assert_eq!(set.holding(UtcMs(at)).is_some(), expected, "{set:?} at {at}");
                    assert!(set.0.windows(2).all(|pair| pair[0].to < pair[1].from), "{set:?}");
                };
                check(&first, a);
                check(&first.clone().or(second.clone()), a || b);
                check(&first.and(&second), a && b);
                check(&first.rest_of(WHOLE), !a);
                let next = (at + 1..40).find(|next| !holds(&one, next - 1) && holds(&one, *next));
                assert_eq!(first.next_after(UtcMs(at)).map(|slot| slot.from.0), next);
            }
        }
    }
}
