//! An allocator that counts, so that a target can hold a reader to so many bytes of memory, whatever its input claims. Memory of C
//! libraries is not seen; libFuzzer's own limit on the whole process is.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted. To be made the global one of a target.
#[derive(Debug)]
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: each call is passed on to the system's allocator as it came; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps alloc's contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as in alloc.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from the system's allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as in dealloc, and the caller keeps realloc's contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work`, which may have at most `limit` bytes more at any moment than were in use before it.
///
/// # Panics
/// If it had more.
pub fn at_most<T>(limit: usize, work: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = work();
    let most = MOST.load(Ordering::Relaxed).saturating_sub(before);
    assert!(most <= limit, "{most} bytes of memory were used; {limit} is the most");
    result
}
