//! The allocator of the program. Pieces from [`LEAST`] up to [`MOST`] bytes, most of which are messages, pages and bodies of
//! requests, come from a range of addresses that is reserved for them; all others come from the system's allocator.
//!
//! The system's allocator keeps the memory of freed pieces between live ones, tens of megabytes of it when large messages come and
//! go; or it maps each piece anew, and then the kernel clears new memory for each message. Here freed pieces keep their memory
//! while all of them together are at most [`KEPT_BYTES`]; that of others is the kernel's again at once. A piece that nothing needed
//! between two calls of [`age`] loses its memory, too.
//!
//! Sizes are rounded up to one of [`CLASSES`] lengths, at most a quarter above. A freed piece serves only its own class. The range is
//! two mappings, the part in use and the rest, so that `vm.max_map_count` does not bound the number of pieces. When the range is
//! used up, or was refused (`ulimit -v`), the system's allocator serves.
//!
//! Invariant: a piece is in use, or in one list of its class, or in the hands of one thread that gives its memory back.

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr;
use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces below this size are the system's.
const LEAST: usize = 256 << 10;
/// Pieces from this size on are the system's.
const MOST: usize = 8 << 20;
/// Lengths between one power of two and the next.
const STEPS: usize = 8;
/// From `LEAST` to `MOST` are five doublings.
const CLASSES: usize = 5 * STEPS + 1;
/// Freed pieces keep so much memory.
const KEPT_BYTES: usize = 16 << 20;
/// Addresses that are reserved: more than pieces of any use, since those of one class are never cut into those of another.
const RANGE: usize = 128 << 30;
/// The range is opened in steps of so many bytes: the rest counts for no limit of memory and is in no core dump.
const OPENED: usize = 64 << 20;
/// Lengths are multiples of the largest pages that Linux has for small memory: else giving back a piece would clear its neighbour.
const PAGE_MAX: usize = 64 << 10;

const _: () = assert!(usize::BITS >= 64, "the range needs addresses of 64 bits");

/// The allocator.
#[derive(Clone, Copy, Debug)]
pub struct Pieces;

static POOL: Mutex<Pool> = Mutex::new(Pool::EMPTY);

/// The pieces that are not in use. All is zero at first, so that its large array is memory only where it was written.
struct Pool {
    /// Where the range begins; 0 before it is reserved.
    base: usize,
    is_refused: bool,
    /// Bytes of the range that may be used.
    open: usize,
    /// Bytes of it that pieces have been cut from.
    cut: usize,
    /// Bytes of memory that freed pieces keep.
    kept: usize,
    classes: [Class; CLASSES],
    /// The piece that follows in the list of this one, or 0; two pieces never begin in the same `LEAST` bytes.
    next: [usize; RANGE / LEAST],
}

/// The free pieces of one length, in two lists: the address of the first one, or 0.
#[derive(Clone, Copy)]
struct Class {
    /// Pieces that have memory.
    warm: usize,
    /// Pieces that are only addresses.
    cold: usize,
    warm_len: usize,
    /// The least that `warm_len` was since [`age`] looked last.
    warm_least: usize,
}

impl Pool {
    const EMPTY: Pool = Pool {
        base: 0,
        is_refused: false,
        open: 0,
        cut: 0,
        kept: 0,
        classes: [Class {
            warm: 0,
            cold: 0,
            warm_len: 0,
            warm_least: 0,
        }; CLASSES],
        next: [0; RANGE / LEAST],
    };

    fn range(&self) -> Range<usize> {
        self.base..self.base + self.cut
    }

    fn next_of(&mut self, at: usize) -> &mut usize {
        &mut self.next[(at - self.base) / LEAST]
    }

    /// Takes a piece; 0 if there is none.
    fn take(&mut self, class: usize) -> usize {
        let warm = self.take_warm(class);
        if warm != 0 {
            return warm;
        }
        let cold = self.classes[class].cold;
        if cold != 0 {
            self.classes[class].cold = *self.next_of(cold);
            return cold;
        }
        self.cut(length(class))
    }

    /// Takes a piece that has memory; 0 if there is none.
    fn take_warm(&mut self, class: usize) -> usize {
        let warm = self.classes[class].warm;
        if warm != 0 {
            let next = *self.next_of(warm);
            let row = &mut self.classes[class];
            row.warm = next;
            row.warm_len -= 1;
            row.warm_least = row.warm_least.min(row.warm_len);
            self.kept -= length(class);
        }
        warm
    }

    /// Cuts a piece off the range, which is reserved for the first one; 0 if there is no room.
    fn cut(&mut self, length: usize) -> usize {
        if self.base == 0 && !self.is_refused {
            self.base = reserve();
            self.is_refused = self.base == 0;
        }
        if self.is_refused || self.cut + length > RANGE {
            return 0;
        }
        if self.cut + length > self.open {
            if !open(self.base + self.open) {
                return 0;
            }
            self.open += OPENED;
        }
        self.cut += length;
        self.base + self.cut - length
    }

    /// Puts a piece back that keeps its memory; says whether there was room.
    fn keep(&mut self, at: usize, class: usize) -> bool {
        if self.kept + length(class) > KEPT_BYTES {
            return false;
        }
        *self.next_of(at) = self.classes[class].warm;
        let row = &mut self.classes[class];
        row.warm = at;
        row.warm_len += 1;
        self.kept += length(class);
        true
    }

    /// Puts a piece back whose memory was given back.
    fn keep_cold(&mut self, at: usize, class: usize) {
        *self.next_of(at) = self.classes[class].cold;
        self.classes[class].cold = at;
    }
}

/// The class of a size that is between `LEAST` and `MOST`.
fn class(size: usize) -> Option<usize> {
    if !(LEAST..MOST).contains(&size) {
        return None;
    }
    let doubling = (size / LEAST).ilog2() as usize;
    let step = (LEAST << doubling) / STEPS;
    Some(doubling * STEPS + (size - (LEAST << doubling)).div_ceil(step))
}

/// The length of the pieces of a class.
fn length(class: usize) -> usize {
    let start = LEAST << (class / STEPS);
    (start + class % STEPS * (start / STEPS)).next_multiple_of(PAGE_MAX)
}

fn pool() -> MutexGuard<'static, Pool> {
    // Nothing panics while it is held.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves the range; 0 if the kernel refuses.
fn reserve() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), RANGE, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return 0;
    }
    // SAFETY: the mapping is ours. With huge pages a piece would fill the memory of its neighbours, too; a kernel without them
    // refuses the call, and there is nothing to do then.
    unsafe { libc::madvise(at, RANGE, libc::MADV_NOHUGEPAGE) };
    at as usize
}

/// Opens the next part of the range; false if the kernel refuses.
fn open(at: usize) -> bool {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a part of our mapping that nothing uses yet.
    unsafe { libc::mprotect(at as *mut libc::c_void, OPENED, rights) == 0 }
}

/// Gives the memory of a piece back to the kernel, and the piece to its list.
fn cool(at: usize, class: usize) {
    // SAFETY: the whole pages of a piece that is in no list and not in use.
    unsafe { libc::madvise(at as *mut libc::c_void, length(class), libc::MADV_DONTNEED) };
    pool().keep_cold(at, class);
}

/// Bytes of memory that freed pieces keep at the moment.
pub fn kept_bytes() -> usize {
    pool().kept
}

/// Gives the memory of freed pieces back that nothing has needed since the last call. To be called now and then, by one thread.
pub fn age() {
    for class in 0..CLASSES {
        let spare = pool().classes[class].warm_least;
        for _ in 0..spare {
            let at = pool().take_warm(class);
            if at == 0 {
                break;
            }
            cool(at, class);
        }
        let mut pool = pool();
        pool.classes[class].warm_least = pool.classes[class].warm_len;
    }
}

// SAFETY: a piece is handed out by one of two allocators: the system's, or the pool, whose pieces lie in its range, are aligned to
// pages, do not overlap, and are in no list while they are in use. The size and alignment of a layout that is given back are those
// that it was asked with, so that its class is the same; of pieces in classes the address tells the allocator.
unsafe impl GlobalAlloc for Pieces {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = class_of(layout) {
            let at = pool().take(class);
            if at != 0 {
                return at as *mut u8;
            }
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of(layout).is_some() {
            // SAFETY: as the caller promises.
            let at = unsafe { self.alloc(layout) };
            if !at.is_null() {
                // SAFETY: a new piece of this size.
                unsafe { ptr::write_bytes(at, 0, layout.size()) };
            }
            return at;
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(class) = class_of(layout) {
            let mut pool = pool();
            if pool.range().contains(&(at as usize)) {
                let kept = pool.keep(at as usize, class);
                drop(pool);
                if !kept {
                    cool(at as usize, class);
                }
                return;
            }
        }
        // SAFETY: as the caller promises; it is none of the pool's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (before, after) = (class_of(layout), class(size));
        if before.is_none() && after.is_none() {
            // SAFETY: as the caller promises; both are the system's.
            return unsafe { System.realloc(at, layout, size) };
        }
        if before == after && pool().range().contains(&(at as usize)) {
            return at;
        }
        // SAFETY: as the caller promises.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller promises.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: two pieces, each at least as long as the bytes to copy; the former is not used again.
            unsafe {
                ptr::copy_nonoverlapping(at, new, layout.size().min(size));
                self.dealloc(at, layout);
            }
        }
        new
    }
}

/// The class of a layout whose pieces the pool may have.
fn class_of(layout: Layout) -> Option<usize> {
    class(layout.size()).filter(|_| layout.align() <= 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_little_longer_than_a_size() {
        for size in (LEAST..MOST).step_by(4093).chain([LEAST, MOST - 1]) {
            let length = length(class(size).unwrap());
            assert!(
                length >= size && length < size + size / STEPS + PAGE_MAX,
                "{size}"
            );
            assert_eq!(length % PAGE_MAX, 0);
        }
        assert_eq!((class(LEAST - 1), class(MOST)), (None, None));
        assert_eq!(class(LEAST), Some(0));
        assert_eq!(class(MOST - 1), Some(CLASSES - 1));
    }

    /// Bytes of memory behind a piece.
    fn resident(at: *mut u8, size: usize) -> usize {
        // SAFETY: takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut pages = vec![0_u8; size.div_ceil(page)];
        // SAFETY: whole pages of a piece, and a byte for each.
        let done = unsafe { libc::mincore(at.cast(), size, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().filter(|page| **page & 1 == 1).count() * page
    }

    /// A piece in the hands of a test: filled with its number.
    struct Allocated {
        at: *mut u8,
        layout: Layout,
        fill: u8,
    }

    impl Allocated {
        fn new(size: usize, fill: u8) -> Allocated {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the size is not 0.
            let at = unsafe { Pieces.alloc(layout) };
            assert!(!at.is_null());
            let held = Allocated { at, layout, fill };
            held.fill(0);
            held
        }

        fn fill(&self, from: usize) {
            let rest = self.layout.size() - from;
            // SAFETY: a piece of this size.
            unsafe { ptr::write_bytes(self.at.add(from), self.fill, rest) };
        }

        fn bytes(&self) -> &[u8] {
            // SAFETY: a piece of this size, which was written.
            unsafe { core::slice::from_raw_parts(self.at, self.layout.size()) }
        }

        fn grow(&mut self, size: usize) {
            let before = self.layout.size();
            // SAFETY: its own layout, and a size that is not 0.
            self.at = unsafe { Pieces.realloc(self.at, self.layout, size) };
            assert!(!self.at.is_null());
            self.layout = Layout::from_size_align(size, 8).unwrap();
            if size > before {
                self.fill(before);
            }
        }
    }

    impl Drop for Allocated {
        fn drop(&mut self) {
            assert!(self.bytes().iter().all(|byte| *byte == self.fill));
            // SAFETY: allocated with this layout, and not used again.
            unsafe { Pieces.dealloc(self.at, self.layout) };
        }
    }

    #[test]
    fn pieces_in_use_are_never_mixed_and_freed_ones_keep_little_memory() {
        // Several threads, each with pieces of sizes on both sides of both limits.
        let work = |seed: u64| {
            let mut random = seed;
            let mut next = |most: usize| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                (random >> 33) as usize % most
            };
            let mut held: Vec<Allocated> = Vec::new();
            for step in 0..200 {
                let size = LEAST - 1000 + next(MOST - LEAST + 2000);
                match next(4) {
                    0 if !held.is_empty() => drop(held.swap_remove(next(held.len()))),
                    1 if !held.is_empty() => {
                        let at = next(held.len());
                        held[at].grow(size);
                    }
                    _ if held.len() < 20 => held.push(Allocated::new(size, step as u8)),
                    _ => held.truncate(10),
                }
            }
        };
        std::thread::scope(|scope| {
            (1..=4).for_each(|seed| _ = scope.spawn(move || work(seed)));
        });
        assert!(pool().kept <= KEPT_BYTES);

        let zeroed = Layout::from_size_align(LEAST, 8).unwrap();
        // SAFETY: the size is not 0; a piece of this size; allocated with this layout.
        unsafe {
            let at = Pieces.alloc_zeroed(zeroed);
            let bytes = core::slice::from_raw_parts(at, LEAST);
            assert!(bytes.iter().all(|byte| *byte == 0));
            Pieces.dealloc(at, zeroed);
        }

        // Pieces freed beyond the bound lose their memory at once, the others when nothing has needed them for a while.
        let many: Vec<Allocated> = (0..40).map(|n| Allocated::new(1 << 20, n)).collect();
        let at: Vec<*mut u8> = many.iter().map(|held| held.at).collect();
        let all = |at: &[*mut u8]| at.iter().map(|at| resident(*at, 1 << 20)).sum::<usize>();
        assert_eq!(all(&at), 40 << 20);
        drop(many);
        assert!(
            all(&at) <= kept_bytes() && kept_bytes() <= KEPT_BYTES,
            "{}",
            all(&at)
        );
        age();
        age();
        assert_eq!((all(&at), kept_bytes()), (0, 0));
        let again = Allocated::new(1 << 20, 7);
        assert!(at.contains(&again.at), "its addresses are used again");
    }
}
