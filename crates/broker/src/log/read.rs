//! Reads the pages (runs of past messages) that a subscriber gets from a chain, the list of a topic's messages. `seek.rs` finds where a
//! page begins.
//!
//! Deliberately not here: expiry. A caller that must not show expired messages removes them first ([`Log::remove_expired`]).

use super::*;
use crate::mail::{Frames, Record};

impl Log {
    /// The last lost offset of a chain. A reader that has read up to this offset misses nothing. `None` without a chain.
    pub fn last_lost_offset(&self, chain: u32) -> Option<u64> {
        (chain != NONE).then(|| {
            let row = self.chains.get(chain);
            match row.oldest() {
                NONE => row.last_lost_offset(),
                oldest => self.entries.get(oldest).previous,
            }
        })
    }

    pub(super) fn oldest(&self, chain: u32) -> u32 {
        if chain == NONE {
            NONE
        } else {
            self.chains.get(chain).oldest()
        }
    }

    /// When the newest message was published, in Unix seconds.
    pub fn newest_time_s(&self, chain: u32) -> Option<u32> {
        let newest = match chain {
            NONE => NONE,
            chain => self.chains.get(chain).newest(),
        };
        (newest != NONE).then(|| self.entries.get(newest).time_s)
    }

    /// Reads a chain from its oldest message on, as `read_from` does.
    pub fn read_oldest(
        &mut self,
        chain: u32,
        messages_max: usize,
        bytes_max: usize,
        frames: &mut Frames,
    ) -> bool {
        self.read_from(self.oldest(chain), 0, messages_max, bytes_max, frames)
    }

    /// Copies the messages after `offset` into `frames`, oldest first: at most `messages_max` messages and `bytes_max` bytes, but at least
    /// one message. `id` must be the first entry after `offset`. Returns true at the end of the chain.
    pub fn read_from(
        &mut self,
        mut id: u32,
        offset: u64,
        messages_max: usize,
        bytes_max: usize,
        frames: &mut Frames,
    ) -> bool {
        let (mut messages, mut bytes) = (0, 0);
        while id != NONE {
            let entry = self.entries.get(id);
            if messages == messages_max || (messages > 0 && bytes + entry.bytes() > bytes_max) {
                return false;
            }
            self.recently_read.put(entry.chain, entry.offset, id);
            messages += 1;
            bytes += entry.bytes();
            self.steps.add(1);
            // Messages between `offset` and this one were superseded or have expired: none is lost.
            let record = self.record(id, entry.previous.max(offset), frames);
            frames.pages.push(record);
            id = entry.next;
        }
        true
    }

    /// Copies a message into `frames`, with this previous offset. A large one is shared.
    pub(super) fn record(&self, id: u32, previous: u64, frames: &mut Frames) -> Record {
        let message = self.message(id);
        if message.whole.is_none() {
            self.steps.add_bytes(message.frame.len());
        }
        frames.push(&NewMessage {
            previous,
            ..message
        })
    }
}
