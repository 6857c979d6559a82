//! An allocator that counts, for each thread, the allocations and the bytes in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static ASKED_BYTES: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

/// Counts an allocation: the bytes asked for, and the change of the thread's bytes in use.
fn count(requests: u64, asked: usize, bytes: i64) {
    // The thread-local is gone only while the thread ends. Allocations at that time do not matter.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + requests));
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
    let _ = ASKED_BYTES.try_with(|all| all.set(all.get() + asked as u64));
}

// SAFETY: everything is passed on to the system's allocator unchanged. Counting writes to a thread-local cell, which needs no allocation
// (`const` and without a destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), layout.size() as i64);
        // SAFETY: the caller keeps the promises that `System` demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(1, bytes, bytes as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(0, 0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The number of allocations of `work`.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// The growth of this thread's heap by `work`, in bytes.
pub fn grown_bytes(work: impl FnOnce()) -> i64 {
    let before = LIVE_BYTES.get();
    work();
    LIVE_BYTES.get() - before
}

/// The bytes that `work` allocates, including those for reallocated copies.
pub fn asked_bytes(work: impl FnOnce()) -> u64 {
    let before = ASKED_BYTES.get();
    work();
    ASKED_BYTES.get() - before
}
