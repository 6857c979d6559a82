//! What a snapshot takes from the log, and how it is made again.

use alloc::collections::BTreeMap;

use super::{Chain, Entry, Log, New};
use crate::blobs::Place;
use crate::slab::NONE;

/// What a topic's chain says of its past.
pub enum Past {
    /// There is no chain.
    None,
    /// It has no messages.
    Lost {
        /// The last one that was lost.
        lost: u64,
        /// Its newest have gone without being lost.
        ended: bool,
    },
    /// It has messages.
    Some {
        /// Its newest have gone without being lost.
        ended: bool,
    },
}

impl Log {
    /// What a chain says of its topic's past.
    pub fn past(&self, chain: u32) -> Past {
        if chain == NONE {
            return Past::None;
        }
        let row = self.chains.get(chain);
        let ended = row.ended;
        match row.count {
            0 => Past::Lost {
                lost: row.lost(),
                ended,
            },
            _ => Past::Some { ended },
        }
    }

    /// The offset of a chain's newest message; 0 where there is none.
    pub fn newest_offset(&self, chain: u32) -> u64 {
        if chain == NONE || self.chains.get(chain).count == 0 {
            return 0;
        }
        self.entries.get(self.chains.get(chain).newest()).offset
    }

    /// A chain without messages, of a topic that lost some.
    pub fn empty_chain(&mut self, topic: u32, number: u8, latest: bool, lost: u64) -> u32 {
        self.chains.insert(Chain::new(topic, number, latest, lost))
    }

    /// The newest messages of a chain have gone without being lost.
    pub fn end(&mut self, chain: u32) {
        if chain != NONE {
            self.chains.get_mut(chain).ended = true;
        }
    }

    /// A message as it was appended.
    pub fn message(&self, id: u32) -> New<'_> {
        let entry = self.entries.get(id);
        let chain = self.chains.get(entry.chain);
        let place = self.blobs.get(entry.blob);
        let parts = entry.parts(place);
        let whole = match self.blobs.place(entry.blob) {
            Place::Own(shared) => {
                let len = entry.bytes();
                Some(shared.slice(len - parts.frame.len()..len))
            }
            Place::Bytes(_) => None,
        };
        New {
            topic: chain.topic,
            offset: entry.offset,
            previous: entry.previous,
            owner: entry.owner(place),
            time_s: entry.time_s,
            ttl_s: entry
                .is_mortal()
                .then(|| Entry::end_s(place).saturating_sub(entry.time_s)),
            key: parts.key,
            content_type: parts.content_type,
            event: parts.event,
            attributes: parts.attributes,
            qos: entry.qos(),
            retain: entry.is_retain(),
            binary: entry.is_binary(),
            latest: chain.latest,
            frame: parts.frame,
            whole,
        }
    }

    /// How many losses there were, if they are remembered.
    pub fn losses_counted(&self) -> Option<u64> {
        self.losses.0.as_ref().map(|_| self.losses.1)
    }

    /// Losses are remembered, and there were so many.
    pub fn watch_from(&mut self, count: u64) {
        (self.losses.0, self.losses.1) = (Some(BTreeMap::new()), count);
    }

    /// The last loss of each topic from this offset on: offset, topic, number.
    pub fn losses_from(&self, offset: u64) -> impl Iterator<Item = (u64, u32, u64)> {
        let all = self.losses.0.iter();
        let all = all.flat_map(move |losses| losses.range(offset..));
        all.map(|(offset, (topic, number))| (*offset, *topic, *number))
    }

    /// Remembers a loss as it was.
    pub fn restore_loss(&mut self, offset: u64, topic: u32, number: u64) {
        if let Some(losses) = &mut self.losses.0 {
            losses.insert(offset, (topic, number));
        }
    }
}
