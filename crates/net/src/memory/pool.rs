//! The allocator of the program. Blocks from [`PIECE_MIN`] up to [`PIECE_END`] bytes (mostly messages, pages and received bytes) are pieces
//! of a pool, which is a reserved range of addresses. All other blocks come from the system's allocator.
//!
//! The system's allocator handles blocks of these sizes badly. Either it keeps freed blocks between live ones (tens of megabytes under
//! load), or it maps each block separately, so that the kernel clears new memory for each message. The pool keeps at most [`KEPT_BYTES`] of
//! memory in freed pieces and returns the rest to the kernel at once. It also returns the memory of freed pieces that were not used between
//! two calls of [`release_unused`].
//!
//! Sizes are rounded up to one of [`CLASSES`] lengths, by at most a quarter. A freed piece is reused only for its own class. The range
//! consists of two mappings, its open part and the rest, so `vm.max_map_count` does not limit the number of pieces. If the range is used
//! up, or if the kernel refused it (`ulimit -v`), blocks come from the system's allocator.
//!
//! Invariant: a piece is in use, or in one list of its class, or held by the one thread that returns its memory.

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr;
use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The smallest block of the pool.
const PIECE_MIN: usize = 32 << 10;
/// Blocks of this size and more are not in the pool.
const PIECE_END: usize = 8 << 20;
/// Number of classes from a power of two to the next one.
const CLASSES_PER_DOUBLING: usize = 8;
/// There are eight doublings from `PIECE_MIN` to `PIECE_END`.
const CLASSES: usize = 8 * CLASSES_PER_DOUBLING + 1;
/// The maximum memory that freed pieces keep.
const KEPT_BYTES: usize = 16 << 20;
/// Bytes of reserved addresses. Much more than is ever in use at once, because a piece of one class is never cut into pieces of another.
const RANGE: usize = 128 << 30;
/// The range is opened in steps of this many bytes. The part that is not open counts for no memory limit and is in no core dump.
const OPEN_STEP: usize = 64 << 20;
/// The length of each piece is a multiple of the largest base page of Linux, so that returning its memory does not touch its neighbours.
const PAGE_MAX: usize = 64 << 10;

const _: () = assert!(usize::BITS >= 64, "the range needs addresses of 64 bits");

/// The allocator.
#[derive(Clone, Copy, Debug)]
pub struct PoolAllocator;

static POOL: Mutex<Pool> = Mutex::new(Pool::EMPTY);

/// The free pieces. Everything is zero at first, so the large array takes memory only where it has been written.
struct Pool {
    /// The first address of the range; 0 before it is reserved.
    base: usize,
    is_refused: bool,
    /// Bytes of the range that are readable and writable.
    open: usize,
    /// Bytes of the range that were cut into pieces.
    cut: usize,
    /// Bytes of memory that freed pieces keep.
    kept: usize,
    classes: [Class; CLASSES],
    /// For each free piece, the address of the next one in its list, or 0. The index is the offset divided by `PIECE_MIN`.
    next: [usize; RANGE / PIECE_MIN],
}

/// The free pieces of one length, in two lists. Each list is the address of its first piece, or 0.
#[derive(Clone, Copy)]
struct Class {
    /// Pieces that have memory.
    warm: usize,
    /// Pieces whose memory was returned.
    cold: usize,
    warm_len: usize,
    /// The smallest `warm_len` since the last call of [`release_unused`].
    warm_len_min: usize,
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
            warm_len_min: 0,
        }; CLASSES],
        next: [0; RANGE / PIECE_MIN],
    };

    fn range(&self) -> Range<usize> {
        self.base..self.base + self.cut
    }

    fn next_of(&mut self, address: usize) -> &mut usize {
        &mut self.next[(address - self.base) / PIECE_MIN]
    }

    /// Takes a piece; returns 0 if the range has no room for one.
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

    /// Takes a piece that has memory; returns 0 if there is none.
    fn take_warm(&mut self, class: usize) -> usize {
        let warm = self.classes[class].warm;
        if warm != 0 {
            let next = *self.next_of(warm);
            let row = &mut self.classes[class];
            row.warm = next;
            row.warm_len -= 1;
            row.warm_len_min = row.warm_len_min.min(row.warm_len);
            self.kept -= length(class);
        }
        warm
    }

    /// Cuts a new piece from the range. The first call reserves the range. Returns 0 if there is no room.
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
            self.open += OPEN_STEP;
        }
        self.cut += length;
        self.base + self.cut - length
    }

    /// Puts a piece back with its memory. Returns false, and does nothing, if freed pieces already keep too much memory.
    fn keep(&mut self, address: usize, class: usize) -> bool {
        if self.kept + length(class) > KEPT_BYTES {
            return false;
        }
        *self.next_of(address) = self.classes[class].warm;
        let row = &mut self.classes[class];
        row.warm = address;
        row.warm_len += 1;
        self.kept += length(class);
        true
    }

    /// Puts a piece back whose memory was returned.
    fn keep_cold(&mut self, address: usize, class: usize) {
        *self.next_of(address) = self.classes[class].cold;
        self.classes[class].cold = address;
    }
}

/// The class of a size; `None` if the size is not for the pool.
fn class(size: usize) -> Option<usize> {
    if !(PIECE_MIN..PIECE_END).contains(&size) {
        return None;
    }
    let doubling = (size / PIECE_MIN).ilog2() as usize;
    let step = (PIECE_MIN << doubling) / CLASSES_PER_DOUBLING;
    Some(doubling * CLASSES_PER_DOUBLING + (size - (PIECE_MIN << doubling)).div_ceil(step))
}

/// The length of the pieces of a class.
fn length(class: usize) -> usize {
    let start = PIECE_MIN << (class / CLASSES_PER_DOUBLING);
    (start + class % CLASSES_PER_DOUBLING * (start / CLASSES_PER_DOUBLING))
        .next_multiple_of(PAGE_MAX)
}

fn pool() -> MutexGuard<'static, Pool> {
    // Nothing panics while the lock is held.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves the range; returns 0 if the kernel refuses.
fn reserve() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe { libc::mmap(ptr::null_mut(), RANGE, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return 0;
    }
    // SAFETY: the mapping is ours. A huge page would give memory to neighbours of a piece as well. A kernel without huge pages
    // refuses the call, and then nothing needs to be done.
    unsafe { libc::madvise(address, RANGE, libc::MADV_NOHUGEPAGE) };
    address as usize
}

/// Makes the next part of the range readable and writable; returns false if the kernel refuses.
fn open(address: usize) -> bool {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a part of our mapping that nothing uses yet.
    unsafe { libc::mprotect(address as *mut libc::c_void, OPEN_STEP, rights) == 0 }
}

/// Returns the memory of a piece to the kernel, and puts the piece into its list.
fn release(address: usize, class: usize) {
    // SAFETY: whole pages of a piece that is in no list and not in use.
    unsafe {
        libc::madvise(
            address as *mut libc::c_void,
            length(class),
            libc::MADV_DONTNEED,
        )
    };
    pool().keep_cold(address, class);
}

/// Bytes of memory that freed pieces keep at present.
pub fn kept_bytes() -> usize {
    pool().kept
}

/// Returns the memory of the freed pieces that were not used since the last call. One thread should call it from time to time.
pub fn release_unused() {
    for class in 0..CLASSES {
        let spare = pool().classes[class].warm_len_min;
        for _ in 0..spare {
            let address = pool().take_warm(class);
            if address == 0 {
                break;
            }
            release(address, class);
        }
        let mut pool = pool();
        pool.classes[class].warm_len_min = pool.classes[class].warm_len;
    }
}

// SAFETY: a block is from the system's allocator or from the pool. Pieces of the pool are in its range, are aligned to pages, do not
// overlap, and are in no list while they are in use. A block is freed with the layout of its allocation, so the class is the same;
// the address tells whether the block is from the pool.
unsafe impl GlobalAlloc for PoolAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = class_of(layout) {
            let address = pool().take(class);
            if address != 0 {
                return address as *mut u8;
            }
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of(layout).is_some() {
            // SAFETY: as the caller promises.
            let address = unsafe { self.alloc(layout) };
            if !address.is_null() {
                // SAFETY: a new piece of this size.
                unsafe { ptr::write_bytes(address, 0, layout.size()) };
            }
            return address;
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if let Some(class) = class_of(layout) {
            let mut pool = pool();
            if pool.range().contains(&(address as usize)) {
                let kept = pool.keep(address as usize, class);
                drop(pool);
                if !kept {
                    release(address as usize, class);
                }
                return;
            }
        }
        // SAFETY: as the caller promises; the block is not from the pool.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (before, after) = (class_of(layout), class(size));
        if before.is_none() && after.is_none() {
            // SAFETY: as the caller promises; both blocks are from the system.
            return unsafe { System.realloc(address, layout, size) };
        }
        if before == after && pool().range().contains(&(address as usize)) {
            return address;
        }
        // SAFETY: as the caller promises.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller promises.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: two blocks, each at least as long as the bytes to copy; the old one is not used again.
            unsafe {
                ptr::copy_nonoverlapping(address, new, layout.size().min(size));
                self.dealloc(address, layout);
            }
        }
        new
    }
}

/// The class of a layout; `None` if the layout is not for the pool.
fn class_of(layout: Layout) -> Option<usize> {
    class(layout.size()).filter(|_| layout.align() <= 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_little_longer_than_a_size() {
        for size in (PIECE_MIN..PIECE_END)
            .step_by(4093)
            .chain([PIECE_MIN, PIECE_END - 1])
        {
            let length = length(class(size).unwrap());
            assert!(
                length >= size && length < size + size / CLASSES_PER_DOUBLING + PAGE_MAX,
                "{size}"
            );
            assert_eq!(length % PAGE_MAX, 0);
        }
        assert_eq!((class(PIECE_MIN - 1), class(PIECE_END)), (None, None));
        assert_eq!(class(PIECE_MIN), Some(0));
        assert_eq!(class(PIECE_END - 1), Some(CLASSES - 1));
    }

    /// Bytes of memory that a piece occupies.
    fn resident(address: *mut u8, size: usize) -> usize {
        // SAFETY: takes no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut pages = vec![0_u8; size.div_ceil(page)];
        // SAFETY: whole pages of a piece, and a byte for each.
        let done = unsafe { libc::mincore(address.cast(), size, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().filter(|page| **page & 1 == 1).count() * page
    }

    /// A block of the test, filled with one byte.
    struct Allocated {
        address: *mut u8,
        layout: Layout,
        fill: u8,
    }

    impl Allocated {
        fn new(size: usize, fill: u8) -> Allocated {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the size is not 0.
            let address = unsafe { PoolAllocator.alloc(layout) };
            assert!(!address.is_null());
            let held = Allocated {
                address,
                layout,
                fill,
            };
            held.fill(0);
            held
        }

        fn fill(&self, from: usize) {
            let rest = self.layout.size() - from;
            // SAFETY: a piece of this size.
            unsafe { ptr::write_bytes(self.address.add(from), self.fill, rest) };
        }

        fn bytes(&self) -> &[u8] {
            // SAFETY: a piece of this size, which was written.
            unsafe { core::slice::from_raw_parts(self.address, self.layout.size()) }
        }

        fn grow(&mut self, size: usize) {
            let before = self.layout.size();
            // SAFETY: its own layout, and a size that is not 0.
            self.address = unsafe { PoolAllocator.realloc(self.address, self.layout, size) };
            assert!(!self.address.is_null());
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
            unsafe { PoolAllocator.dealloc(self.address, self.layout) };
        }
    }

    #[test]
    fn pieces_in_use_are_never_mixed_and_freed_ones_keep_little_memory() {
        // Several threads use sizes around both limits of the pool.
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
                let size = PIECE_MIN - 1000 + next(PIECE_END - PIECE_MIN + 2000);
                match next(4) {
                    0 if !held.is_empty() => drop(held.swap_remove(next(held.len()))),
                    1 if !held.is_empty() => {
                        let address = next(held.len());
                        held[address].grow(size);
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

        let zeroed = Layout::from_size_align(PIECE_MIN, 8).unwrap();
        // SAFETY: the size is not 0; a piece of this size; allocated with this layout.
        unsafe {
            let address = PoolAllocator.alloc_zeroed(zeroed);
            let bytes = core::slice::from_raw_parts(address, PIECE_MIN);
            assert!(bytes.iter().all(|byte| *byte == 0));
            PoolAllocator.dealloc(address, zeroed);
        }

        // A piece freed beyond the limit loses its memory at once; any other does when it has not been used for a while.
        let many: Vec<Allocated> = (0..40).map(|n| Allocated::new(1 << 20, n)).collect();
        let address: Vec<*mut u8> = many.iter().map(|held| held.address).collect();
        let all = |address: &[*mut u8]| {
            address
                .iter()
                .map(|address| resident(*address, 1 << 20))
                .sum::<usize>()
        };
        assert_eq!(all(&address), 40 << 20);
        drop(many);
        assert!(
            all(&address) <= kept_bytes() && kept_bytes() <= KEPT_BYTES,
            "{}",
            all(&address)
        );
        release_unused();
        release_unused();
        assert_eq!((all(&address), kept_bytes()), (0, 0));
        let again = Allocated::new(1 << 20, 7);
        assert!(
            address.contains(&again.address),
            "its addresses are used again"
        );
    }
}
