//! The deadlines of the side table: at most one entry in a heap for each of its places.
//!
//! A deadline that moves later does not touch the heap: its entry comes out early, and is put back.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use core::mem::take;

/// In place of a time: none.
pub const NEVER: u64 = u64::MAX;

/// The deadlines.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Timers {
    /// Makes sure that this place comes out at `due_us` at the latest. `queued_us` is when its earliest entry comes out.
    pub fn set(&mut self, place: u32, due_us: u64, queued_us: &mut u64) {
        if due_us < *queued_us {
            *queued_us = due_us;
            self.heap.push(Reverse((due_us, place)));
        }
    }

    /// Takes a place whose entry is due, and the time of the entry.
    pub fn due(&mut self, now_us: u64) -> Option<(u64, u32)> {
        let Reverse((due_us, _)) = self.heap.peek()?;
        if *due_us > now_us {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Keeps only these entries, each once. An early deadline leaves the entry of a later one, which is then put back once more.
    pub fn retain(&mut self, keeps: impl Fn(u64, u32) -> bool) {
        let mut entries = take(&mut self.heap).into_vec();
        entries.retain(|Reverse((due_us, place))| keeps(*due_us, *place));
        entries.sort_unstable();
        entries.dedup();
        self.heap = entries.into();
    }

    /// When the next entry comes out.
    pub fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((due_us, _))| *due_us)
    }
}
