//! How far the making ready of one image is: bytes that came, of which several layers at once, and layers that lie unpacked. Adds up
//! and tells; how often somebody wants to be told is theirs.

use sela_protocol::units::Bytes;
use std::sync::{Mutex, PoisonError};

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes transferred or already here, packed.
    pub done: Bytes,
    /// Of how many, where that is known.
    pub total: Option<Bytes>,
    /// Layers that lie unpacked, those of the cache included.
    pub layers_done: u32,
    /// Of how many, once the image has said so.
    pub layers: Option<u32>,
}

/// Adds up what is done, and tells it each time. What it tells never goes back.
pub(super) struct Course {
    so_far: Mutex<Progress>,
    tell: Box<dyn Fn(Progress) + Send + Sync>,
}

impl Course {
    pub(super) fn new(tell: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self {
            so_far: Mutex::default(),
            tell: Box::new(tell),
        }
    }

    /// So many bytes are here, of so many if that is known.
    pub(super) fn bytes(&self, done: u64, total: Option<u64>) {
        self.change(|so_far| {
            so_far.done = so_far.done.max(Bytes(done));
            so_far.total = total.map(Bytes).or(so_far.total);
        });
    }

    /// So many bytes more are here. Bytes that had to come twice count once.
    pub(super) fn more_bytes(&self, count: u64) {
        self.change(|so_far| {
            let done = so_far.done.0.saturating_add(count);
            so_far.done = Bytes(so_far.total.map_or(done, |total| done.min(total.0)));
        });
    }

    /// So many layers are unpacked, of so many.
    pub(super) fn layers(&self, done: usize, of: usize) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.change(|so_far| {
            so_far.layers_done = so_far.layers_done.max(number(done));
            so_far.layers = Some(number(of));
        });
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        // Told with the lock held: two layers' bytes would else be told in another order than they were added.
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut so_far);
        (self.tell)(*so_far);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn bytes_and_layers_are_told_together_and_never_go_back() {
        let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let course = Course::new(move |progress| noted.lock().unwrap().push(progress));
        course.bytes(100, Some(1_000));
        course.layers(1, 3);
        course.more_bytes(400);
        course.bytes(200, None);
        // A layer that was spoilt comes once more.
        course.more_bytes(900);
        course.layers(3, 3);
        let seen = seen.lock().unwrap();
        let told: Vec<(u64, u32)> = seen.iter().map(|told| (told.done.0, told.layers_done)).collect();
        assert_eq!(told, [(100, 0), (100, 1), (500, 1), (500, 1), (1_000, 1), (1_000, 3)]);
        assert!(seen.iter().all(|told| told.total == Some(Bytes(1_000))));
    }
}
