//! Prefetches the memory that appends to some chains will touch, so that their cache misses overlap.
//!
//! A *chain* is the list of a topic's messages.

use super::*;
use crate::base::turn_limits::PREFETCH_ROWS;
use crate::store::blobs::Blob;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// The first bytes of a message that are prefetched. The CPU itself prefetches the rest of a sequential read.
const AHEAD_BYTES: usize = 1 << 10;

/// The oldest message of a chain. The next message probably reuses its memory.
struct OldestMessage<'a> {
    log: &'a Log,
    older: u32,
    younger: u32,
    blob: Blob,
    len: usize,
}

/// Reads the newest entry of at most [`PREFETCH_ROWS`] chains, and the oldest entry with its bytes and its neighbours in the list of its rule.
pub fn for_appends<'a>(chains: impl Iterator<Item = (&'a Log, u32)>) {
    let mut ends = [const { None }; PREFETCH_ROWS];
    let chains = chains.filter(|(_, chain)| *chain != NONE);
    for (end, (log, chain)) in ends.iter_mut().zip(chains) {
        let row = log.chains.get(chain);
        if row.count > 0 {
            *end = Some((log, row.oldest(), row.newest()));
        }
    }
    let mut checksum = 0;
    let mut oldest_messages = [const { None }; PREFETCH_ROWS];
    for (oldest, (log, first, last)) in oldest_messages.iter_mut().zip(ends.into_iter().flatten()) {
        let entry = log.entries.get(first);
        *oldest = Some(OldestMessage {
            log,
            older: entry.older,
            younger: entry.younger,
            blob: entry.blob,
            len: entry.bytes().min(AHEAD_BYTES),
        });
        checksum ^= log.entries.get(last).next;
    }
    for oldest in oldest_messages.iter().flatten() {
        let neighbours = [oldest.older, oldest.younger].into_iter();
        for id in neighbours.filter(|id| *id != NONE) {
            checksum ^= oldest.log.entries.get(id).chain;
        }
        let bytes = &oldest.log.blobs.get(oldest.blob)[..oldest.len];
        for byte in bytes.iter().step_by(LINE_BYTES) {
            checksum ^= u32::from(*byte);
        }
    }
    core::hint::black_box(checksum);
}
