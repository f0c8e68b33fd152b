//! Holds back what depends on an entry of the store until that entry is committed, in order. What does not depend on
//! anything passes through at once.

use std::collections::VecDeque;

/// What waits, oldest first.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    committed: u64,
    waiting: VecDeque<(u64, T)>,
}

impl<T> Outbox<T> {
    pub(crate) const fn new() -> Self {
        Self {
            committed: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Adds what may go once entry `needs` is committed; gives it back if it may go now.
    pub(crate) fn pass(&mut self, needs: u64, item: T) -> Option<T> {
        if self.waiting.is_empty() && needs <= self.committed {
            return Some(item);
        }
        self.waiting.push_back((needs, item));
        None
    }

    /// Entries up to this number are committed: what may go now.
    pub(crate) fn committed(&mut self, number: u64) -> Vec<T> {
        self.committed = self.committed.max(number);
        let ready = self
            .waiting
            .iter()
            .take_while(|(needs, _)| *needs <= self.committed)
            .count();
        self.waiting.drain(..ready).map(|(_, item)| item).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_before_what_it_depends_on_or_overtakes_another() {
        let mut outbox = Outbox::new();
        assert_eq!(outbox.pass(0, "free"), Some("free"));
        assert_eq!(outbox.pass(1, "a"), None);
        assert_eq!(outbox.pass(1, "b"), None);
        assert_eq!(outbox.pass(3, "c"), None);
        assert_eq!(outbox.pass(0, "d"), None, "it was said after c");
        assert_eq!(outbox.committed(2), ["a", "b"]);
        assert_eq!(outbox.committed(1), [""; 0], "numbers only rise");
        assert_eq!(outbox.committed(3), ["c", "d"]);
        assert!(outbox.is_empty());
        assert_eq!(outbox.pass(3, "e"), Some("e"));
    }
}
