//! Room for one image: taken out of the budget, the free space and the day's writes before anything is written, by whoever
//! writes a part of it. Evicts what nobody uses where that helps. What is kept in the cache is `shelf`'s.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::ImageError;
use super::shelf::Shelf;

/// Room is taken in steps of this, so that the file system is not asked for every entry.
const STEP: u64 = 8 << 20;

/// What one image has taken; given back when dropped, except for what the shelf has taken over. Shared by the transfers and
/// the unpacking of that image.
pub(crate) struct Room {
    shelf: Arc<Shelf>,
    amounts: Mutex<Amounts>,
}

#[derive(Debug, Default)]
struct Amounts {
    /// Part of the shelf's `reserved`.
    reserved: u64,
    /// How much of `reserved` is on disk.
    spent: u64,
    /// Everything taken for this image, committed layers included.
    total: u64,
}

impl Room {
    /// Nothing is taken yet.
    pub(crate) fn new(shelf: &Arc<Shelf>) -> Arc<Self> {
        Arc::new(Self {
            shelf: Arc::clone(shelf),
            amounts: Mutex::default(),
        })
    }

    /// Takes room for what is about to be written, evicting what nobody uses.
    ///
    /// # Errors
    /// [`ImageError::OverBudget`], [`ImageError::FreeSpaceFloor`], [`ImageError::DailyWrites`].
    pub(crate) fn take(&self, bytes: u64) -> Result<(), ImageError> {
        // Held while something is evicted: another part of this image would have to wait for that, too.
        let mut amounts = self.amounts();
        let missing = amounts.spent.saturating_add(bytes).saturating_sub(amounts.reserved);
        if missing > 0 {
            let step = missing.max(STEP);
            if self.shelf.reserve(step)? {
                amounts.reserved += step;
            } else {
                while !self.shelf.reserve(missing)? {
                    if !self.shelf.evict_one()? {
                        let idle = amounts.reserved - amounts.spent;
                        return Err(self.shelf.no_room(amounts.total, idle, bytes)?);
                    }
                }
                amounts.reserved += missing;
            }
        }
        self.shelf.writes.take(bytes)?;
        amounts.spent += bytes;
        amounts.total += bytes;
        Ok(())
    }

    /// Gives back what was removed again.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut amounts = self.amounts();
        amounts.spent -= bytes;
        amounts.total -= bytes;
    }

    /// The shelf takes over what is on disk: from here on it counts among what is used.
    pub(crate) fn hand_over(&self, bytes: u64) {
        let mut amounts = self.amounts();
        amounts.reserved -= bytes;
        amounts.spent -= bytes;
        let mut state = self.shelf.state();
        state.reserved -= bytes;
        state.used += bytes;
    }

    /// The reverse of [`Room::hand_over`]: something of the shelf's is gone on with.
    pub(crate) fn take_over(&self, bytes: u64) {
        let mut amounts = self.amounts();
        amounts.reserved += bytes;
        amounts.spent += bytes;
        amounts.total += bytes;
        let mut state = self.shelf.state();
        state.reserved += bytes;
        state.used -= bytes;
    }

    /// Fails early where `bytes` more cannot fit even after every eviction, or not today; takes nothing.
    pub(crate) fn expect(&self, bytes: u64) -> Result<(), ImageError> {
        self.shelf.writes.expect(bytes)?;
        let amounts = self.amounts();
        self.shelf.expect(bytes, amounts.reserved - amounts.spent)
    }

    fn amounts(&self) -> MutexGuard<'_, Amounts> {
        self.amounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let reserved = self.amounts().reserved;
        self.shelf.state().reserved -= reserved;
        self.shelf.writes.save();
    }
}
