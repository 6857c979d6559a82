//! The rings in which a socket and the kernel hand each other frames. One side produces entries and the other consumes them.
//!
//! Both sides share two counters that only grow, and wrap. The entries between them belong to the consumer, all others to the producer.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

/// A ring in memory that the kernel has allocated.
struct Ring<T> {
    start: NonNull<c_void>,
    bytes: usize,
    offsets: XdpRingOffset,
    /// The number of entries, which is a power of two.
    size: u32,
    entries: NonNull<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries that the socket has at this offset of its file.
    fn map(
        fd: BorrowedFd<'_>,
        file_offset: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the place in our memory, so nothing that exists is replaced.
        let start = unsafe {
            let flags = flags | MapFlags::POPULATE;
            mmap(ptr::null_mut(), bytes, access, flags, fd, file_offset)
        }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the entries lie within the mapping, whose size was computed from their offset.
        let entries = unsafe { start.byte_add(offsets.desc as usize) }.cast();
        Ok(Ring {
            start,
            bytes,
            offsets,
            size,
            entries,
        })
    }

    /// The counter at this offset of the mapping.
    fn counter(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel puts an aligned 32-bit number there, which both sides change only by atomic operations. The mapping lives as
        // long as `self`.
        unsafe { self.start.byte_add(offset as usize).cast().as_ref() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.counter(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.counter(self.offsets.consumer)
    }

    fn entry(&self, count: u32) -> NonNull<T> {
        // SAFETY: the index is below the number of entries.
        unsafe { self.entries.add((count & (self.size - 1)) as usize) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the ring was mapped with this size, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// Our side of a ring whose entries the kernel consumes.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// The count of written entries. The kernel may not know the last ones yet.
    written_count: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        file_offset: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(fd, file_offset, offsets, size)?;
        let written_count = ring.producer().load(Relaxed);
        Ok(Producer {
            ring,
            written_count,
        })
    }

    /// Writes an entry; `false` if the ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        let consumed = self.ring.consumer().load(Acquire);
        if self.written_count.wrapping_sub(consumed) >= self.ring.size {
            return false;
        }
        // SAFETY: the entry is ours until it is published.
        unsafe { self.ring.entry(self.written_count).write(entry) };
        self.written_count = self.written_count.wrapping_add(1);
        true
    }

    /// Gives the kernel the entries that were written.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.written_count, Release);
    }

    /// Whether one more entry has room.
    pub(super) fn has_room(&self) -> bool {
        self.unconsumed() < self.ring.size
    }

    /// The number of entries that the kernel has not consumed.
    pub(super) fn unconsumed(&self) -> u32 {
        self.written_count
            .wrapping_sub(self.ring.consumer().load(Acquire))
    }

    /// Whether the kernel waits for a call before it looks at the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.offsets.flags.is_none_or(|offset| {
            let flags = self.ring.counter(offset).load(Relaxed);
            flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
        })
    }
}

/// Our side of a ring whose entries the kernel produces.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    taken_count: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        file_offset: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(fd, file_offset, offsets, size)?;
        let taken_count = ring.consumer().load(Relaxed);
        Ok(Consumer { ring, taken_count })
    }

    /// Takes the next entry. The kernel may use its place in the ring again at once.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.ring.producer().load(Acquire) == self.taken_count {
            return None;
        }
        // SAFETY: the kernel has published this entry, and does not write there before it sees that it was consumed.
        let entry = unsafe { self.ring.entry(self.taken_count).read() };
        self.taken_count = self.taken_count.wrapping_add(1);
        self.ring.consumer().store(self.taken_count, Release);
        Some(entry)
    }
}
