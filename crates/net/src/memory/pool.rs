//! The allocator of the program. Blocks from [`PIECE_MIN`] up to [`PIECE_END`] bytes (mostly messages, pages and received bytes) are pieces
//! of a pool, which is a reserved range of addresses. All other blocks come from the system's allocator.
//!
//! The system's allocator handles blocks of these sizes badly. Either it keeps freed blocks between live ones (tens of megabytes under
//! load), or it maps each block separately, so that the kernel clears new memory for each message. The pool keeps at most [`KEPT_BYTES`] of
//! memory in freed pieces and returns the rest to the kernel at once. It also returns the memory of freed pieces that were not used between
//! two calls of [`release_unused`].
//!
//! The size of a block decides its class, and all pieces of a class have the same length: at most an eighth and [`PAGE_MAX`] bytes more
//! than the size. A freed piece is reused only for its own class. The range consists of two mappings, its open part and the rest, so
//! `vm.max_map_count` does not limit the number of pieces. If the range is used up, or if the kernel refused it (`ulimit -v`), blocks come
//! from the system's allocator.
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
const RANGE_BYTES: usize = 128 << 30;
/// The range is opened in steps of this many bytes. Only the open part counts as memory of the process (cgroups,
/// overcommit), and only it is in core dumps. A limit of addresses (`ulimit -v`) counts the whole range.
const OPEN_STEP_BYTES: usize = 64 << 20;
/// The length of each piece is a multiple of the largest base page of Linux, so that returning its memory does not touch its neighbours.
const PAGE_MAX: usize = 64 << 10;

const _: () = assert!(usize::BITS >= 64, "the range needs addresses of 64 bits");

/// The allocator.
#[derive(Clone, Copy, Debug)]
pub struct PoolAllocator;

static POOL: Mutex<Pool> = Mutex::new(Pool::EMPTY);

/// The pool: its range and its free pieces. Everything is zero at first, so the large array takes memory only where it has been written.
struct Pool {
    /// The first address of the range; 0 before it is reserved.
    base: usize,
    is_refused: bool,
    /// Bytes of the range that are readable and writable.
    open_bytes: usize,
    /// Bytes of the range that were cut into pieces.
    cut_bytes: usize,
    /// Bytes of memory that freed pieces keep.
    kept_bytes: usize,
    classes: [Class; CLASSES],
    /// For each free piece, the address of the next one in its list, or 0. The index is the offset divided by `PIECE_MIN`.
    next: [usize; RANGE_BYTES / PIECE_MIN],
}

/// The free pieces of one length, in two lists. Each list is the address of its first piece, or 0.
#[derive(Clone, Copy)]
struct Class {
    /// Pieces that have memory.
    warm: usize,
    /// Pieces whose memory was returned.
    cold: usize,
    warm_count: usize,
    /// The smallest `warm_count` since the last call of [`release_unused`].
    warm_count_min: usize,
}

impl Pool {
    const EMPTY: Pool = Pool {
        base: 0,
        is_refused: false,
        open_bytes: 0,
        cut_bytes: 0,
        kept_bytes: 0,
        classes: [Class {
            warm: 0,
            cold: 0,
            warm_count: 0,
            warm_count_min: 0,
        }; CLASSES],
        next: [0; RANGE_BYTES / PIECE_MIN],
    };

    fn range(&self) -> Range<usize> {
        self.base..self.base + self.cut_bytes
    }

    fn next_of(&mut self, address: usize) -> &mut usize {
        &mut self.next[(address - self.base) / PIECE_MIN]
    }

    /// Takes a piece; returns 0 if the range has no room for one.
    fn take(&mut self, class_index: usize) -> usize {
        let warm = self.take_warm(class_index);
        if warm != 0 {
            return warm;
        }
        let cold = self.classes[class_index].cold;
        if cold != 0 {
            self.classes[class_index].cold = *self.next_of(cold);
            return cold;
        }
        self.cut_piece(piece_bytes(class_index))
    }

    /// Takes a piece that has memory; returns 0 if there is none.
    fn take_warm(&mut self, class_index: usize) -> usize {
        let warm = self.classes[class_index].warm;
        if warm != 0 {
            let next = *self.next_of(warm);
            let class = &mut self.classes[class_index];
            class.warm = next;
            class.warm_count -= 1;
            class.warm_count_min = class.warm_count_min.min(class.warm_count);
            self.kept_bytes -= piece_bytes(class_index);
        }
        warm
    }

    /// Cuts a new piece from the range. The first call reserves the range. Returns 0 if there is no room.
    fn cut_piece(&mut self, length: usize) -> usize {
        if self.base == 0 && !self.is_refused {
            self.base = reserve_range();
            self.is_refused = self.base == 0;
        }
        if self.is_refused || self.cut_bytes + length > RANGE_BYTES {
            return 0;
        }
        if self.cut_bytes + length > self.open_bytes {
            if !open_next_part(self.base + self.open_bytes) {
                return 0;
            }
            self.open_bytes += OPEN_STEP_BYTES;
        }
        self.cut_bytes += length;
        self.base + self.cut_bytes - length
    }

    /// Puts a piece back with its memory. Returns false, and does nothing, if freed pieces already keep too much memory.
    fn put_warm(&mut self, address: usize, class_index: usize) -> bool {
        if self.kept_bytes + piece_bytes(class_index) > KEPT_BYTES {
            return false;
        }
        *self.next_of(address) = self.classes[class_index].warm;
        let class = &mut self.classes[class_index];
        class.warm = address;
        class.warm_count += 1;
        self.kept_bytes += piece_bytes(class_index);
        true
    }

    /// Puts a piece back whose memory was returned.
    fn put_cold(&mut self, address: usize, class_index: usize) {
        *self.next_of(address) = self.classes[class_index].cold;
        self.classes[class_index].cold = address;
    }
}

/// The index of the class of a size; `None` if the size is not for the pool.
fn class_of_size(size: usize) -> Option<usize> {
    if !(PIECE_MIN..PIECE_END).contains(&size) {
        return None;
    }
    let doubling = (size / PIECE_MIN).ilog2() as usize;
    let step = (PIECE_MIN << doubling) / CLASSES_PER_DOUBLING;
    Some(doubling * CLASSES_PER_DOUBLING + (size - (PIECE_MIN << doubling)).div_ceil(step))
}

/// The length of the pieces of a class.
fn piece_bytes(class_index: usize) -> usize {
    let start = PIECE_MIN << (class_index / CLASSES_PER_DOUBLING);
    (start + class_index % CLASSES_PER_DOUBLING * (start / CLASSES_PER_DOUBLING))
        .next_multiple_of(PAGE_MAX)
}

fn pool() -> MutexGuard<'static, Pool> {
    // Nothing panics while the lock is held.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reserves the range; returns 0 if the kernel refuses.
fn reserve_range() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), RANGE_BYTES, libc::PROT_NONE, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return 0;
    }
    // SAFETY: the mapping is ours. With huge pages, a write to one piece would also give memory to the freed pieces beside it. A kernel
    // without them refuses the call, and then nothing needs to be done.
    unsafe { libc::madvise(address, RANGE_BYTES, libc::MADV_NOHUGEPAGE) };
    address as usize
}

/// Makes the next part of the range readable and writable; returns false if the kernel refuses.
fn open_next_part(address: usize) -> bool {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a part of our mapping that nothing uses yet.
    unsafe { libc::mprotect(address as *mut libc::c_void, OPEN_STEP_BYTES, rights) == 0 }
}

/// Returns the memory of a piece to the kernel, and puts the piece into its list.
fn release_piece(address: usize, class_index: usize) {
    // SAFETY: whole pages of a piece that is in no list and not in use.
    unsafe {
        libc::madvise(
            address as *mut libc::c_void,
            piece_bytes(class_index),
            libc::MADV_DONTNEED,
        )
    };
    pool().put_cold(address, class_index);
}

/// Bytes of memory that freed pieces keep at present.
pub fn kept_bytes() -> usize {
    pool().kept_bytes
}

/// Returns the memory of the freed pieces that were not used since the last call. One thread should call it from time to time.
pub fn release_unused() {
    for class_index in 0..CLASSES {
        let unused_count = pool().classes[class_index].warm_count_min;
        for _ in 0..unused_count {
            let address = pool().take_warm(class_index);
            if address == 0 {
                break;
            }
            release_piece(address, class_index);
        }
        let mut pool = pool();
        pool.classes[class_index].warm_count_min = pool.classes[class_index].warm_count;
    }
}

// SAFETY: a block is from the system's allocator or from the pool. Pieces of the pool are in its range, are aligned to pages, do not
// overlap, and are in no list while they are in use. A block is freed with the layout of its allocation, so the class is the same;
// the address tells whether the block is from the pool.
unsafe impl GlobalAlloc for PoolAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class_index) = class_of_layout(layout) {
            let address = pool().take(class_index);
            if address != 0 {
                return address as *mut u8;
            }
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class_of_layout(layout).is_some() {
            // SAFETY: as the caller promises.
            let address = unsafe { self.alloc(layout) };
            if !address.is_null() {
                // SAFETY: a new block of this size.
                unsafe { ptr::write_bytes(address, 0, layout.size()) };
            }
            return address;
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if let Some(class_index) = class_of_layout(layout) {
            let mut pool = pool();
            if pool.range().contains(&(address as usize)) {
                let is_kept = pool.put_warm(address as usize, class_index);
                drop(pool);
                if !is_kept {
                    release_piece(address as usize, class_index);
                }
                return;
            }
        }
        // SAFETY: as the caller promises; the block is not from the pool.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (old_class, new_class) = (class_of_layout(layout), class_of_size(size));
        if old_class.is_none() && new_class.is_none() {
            // SAFETY: as the caller promises; both blocks are from the system.
            return unsafe { System.realloc(address, layout, size) };
        }
        if old_class == new_class && pool().range().contains(&(address as usize)) {
            return address;
        }
        // SAFETY: as the caller promises.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller promises.
        let new_address = unsafe { self.alloc(new_layout) };
        if !new_address.is_null() {
            // SAFETY: two blocks, each at least as long as the bytes to copy; the old one is not used again.
            unsafe {
                ptr::copy_nonoverlapping(address, new_address, layout.size().min(size));
                self.dealloc(address, layout);
            }
        }
        new_address
    }
}

/// The index of the class of a layout; `None` if the layout is not for the pool.
fn class_of_layout(layout: Layout) -> Option<usize> {
    class_of_size(layout.size()).filter(|_| layout.align() <= 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_is_little_longer_than_its_block() {
        for size in (PIECE_MIN..PIECE_END)
            .step_by(4093)
            .chain([PIECE_MIN, PIECE_END - 1])
        {
            let length = piece_bytes(class_of_size(size).unwrap());
            assert!(
                length >= size && length < size + size / CLASSES_PER_DOUBLING + PAGE_MAX,
                "{size}"
            );
            assert_eq!(length % PAGE_MAX, 0);
        }
        assert_eq!(class_of_size(PIECE_MIN - 1), None);
        assert_eq!(class_of_size(PIECE_END), None);
        assert_eq!(class_of_size(PIECE_MIN), Some(0));
        assert_eq!(class_of_size(PIECE_END - 1), Some(CLASSES - 1));
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
            let block = Allocated {
                address,
                layout,
                fill,
            };
            block.fill(0);
            block
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
            let old_size = self.layout.size();
            // SAFETY: its own layout, and a size that is not 0.
            self.address = unsafe { PoolAllocator.realloc(self.address, self.layout, size) };
            assert!(!self.address.is_null());
            self.layout = Layout::from_size_align(size, 8).unwrap();
            if size > old_size {
                self.fill(old_size);
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
            let mut next = |max: usize| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                (random >> 33) as usize % max
            };
            let mut blocks: Vec<Allocated> = Vec::new();
            for step in 0..200 {
                let size = PIECE_MIN - 1000 + next(PIECE_END - PIECE_MIN + 2000);
                match next(4) {
                    0 if !blocks.is_empty() => drop(blocks.swap_remove(next(blocks.len()))),
                    1 if !blocks.is_empty() => {
                        let index = next(blocks.len());
                        blocks[index].grow(size);
                    }
                    _ if blocks.len() < 20 => blocks.push(Allocated::new(size, step as u8)),
                    _ => blocks.truncate(10),
                }
            }
        };
        std::thread::scope(|scope| {
            (1..=4).for_each(|seed| _ = scope.spawn(move || work(seed)));
        });
        assert!(pool().kept_bytes <= KEPT_BYTES);

        let zeroed = Layout::from_size_align(PIECE_MIN, 8).unwrap();
        // SAFETY: the size is not 0; a piece of this size; allocated with this layout.
        unsafe {
            let address = PoolAllocator.alloc_zeroed(zeroed);
            let bytes = core::slice::from_raw_parts(address, PIECE_MIN);
            assert!(bytes.iter().all(|byte| *byte == 0));
            PoolAllocator.dealloc(address, zeroed);
        }

        // A piece freed beyond the limit loses its memory at once; any other does when it has not been used for a while.
        let blocks: Vec<Allocated> = (0..40).map(|n| Allocated::new(1 << 20, n)).collect();
        let addresses: Vec<*mut u8> = blocks.iter().map(|block| block.address).collect();
        let total_resident = |addresses: &[*mut u8]| {
            addresses
                .iter()
                .map(|address| resident(*address, 1 << 20))
                .sum::<usize>()
        };
        assert_eq!(total_resident(&addresses), 40 << 20);
        drop(blocks);
        assert!(
            total_resident(&addresses) <= kept_bytes() && kept_bytes() <= KEPT_BYTES,
            "{}",
            total_resident(&addresses)
        );
        release_unused();
        release_unused();
        assert_eq!((total_resident(&addresses), kept_bytes()), (0, 0));
        let again = Allocated::new(1 << 20, 7);
        assert!(
            addresses.contains(&again.address),
            "its addresses are used again"
        );
    }
}
