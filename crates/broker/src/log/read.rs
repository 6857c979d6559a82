//! Reading a chain: where a subscriber begins, and the pages that it gets.
//!
//! Invariant: nothing is judged by time here; who reads has freshened the chain.

use super::*;
use crate::mail::{Frames, Record};

impl Log {
    /// The last offset that was lost: whoever has seen it misses nothing.
    pub fn reaches_back_to(&self, chain: u32) -> Option<u64> {
        (chain != NONE).then(|| {
            let row = self.chains.get(chain);
            match row.oldest() {
                NONE => row.lost(),
                oldest => self.entries.get(oldest).previous,
            }
        })
    }

    fn oldest(&self, chain: u32) -> u32 {
        if chain == NONE {
            NONE
        } else {
            self.chains.get(chain).oldest()
        }
    }

    /// The offset before the newest `count` messages.
    pub fn before_newest(&self, chain: u32, count: u32) -> Option<u64> {
        let skip = self.count(chain).saturating_sub(count);
        let mut id = self.oldest(chain);
        if id == NONE || count == 0 {
            return None;
        }
        for _ in 0..skip {
            id = self.entries.get(id).next;
        }
        Some(self.entries.get(id).previous)
    }

    /// Unix second of the newest message.
    pub fn newest_time_s(&self, chain: u32) -> Option<u32> {
        let newest = match chain {
            NONE => NONE,
            chain => self.chains.get(chain).newest(),
        };
        (newest != NONE).then(|| self.entries.get(newest).time_s)
    }

    /// The offset before the first message after this second.
    pub fn before_time(&self, chain: u32, time_s: u32) -> Option<u64> {
        let mut id = self.oldest(chain);
        while id != NONE {
            let entry = self.entries.get(id);
            if entry.time_s > time_s {
                return Some(entry.previous);
            }
            id = entry.next;
        }
        None
    }

    /// Where to look for the first message after `offset`: right there, when a page has just ended at it.
    fn after(&self, chain: u32, offset: u64) -> u32 {
        let id = self.fingers[finger(chain, offset)];
        match self.entries.try_get(id) {
            // A place that was given to another message has another offset or another chain.
            Some(entry) if entry.chain == chain && entry.offset == offset && chain != NONE => {
                entry.next
            }
            _ => self.oldest(chain),
        }
    }

    /// Copies the messages after `offset` into `frames`, oldest first, until `messages_max` or
    /// `bytes_max` is reached (one message always fits). Says whether that was all.
    pub fn read(
        &mut self,
        chain: u32,
        offset: u64,
        messages_max: usize,
        bytes_max: usize,
        frames: &mut Frames,
    ) -> bool {
        let mut id = self.after(chain, offset);
        let (mut messages, mut bytes) = (0, 0);
        while id != NONE {
            let entry = self.entries.get(id);
            if entry.offset > offset {
                if messages == messages_max || (messages > 0 && bytes + entry.bytes() > bytes_max) {
                    return false;
                }
                let finger = finger(chain, entry.offset);
                self.fingers[finger] = id;
                messages += 1;
                bytes += entry.bytes();
                // What lies between was superseded or has expired: the reader has seen it all.
                let record = self.record(id, entry.previous.max(offset), frames);
                frames.pages.push(record);
            }
            id = entry.next;
        }
        true
    }

    /// Copies a message, behind this offset.
    pub(super) fn record(&self, id: u32, previous: u64, frames: &mut Frames) -> Record {
        frames.push(&New {
            previous,
            ..self.message(id)
        })
    }
}

fn finger(chain: u32, offset: u64) -> usize {
    chain.wrapping_mul(31).wrapping_add(offset as u32) as usize % FINGERS
}
