//! The log of a partition in memory: the messages that are kept. Each message is an entry in two linked lists: the chain of its topic (oldest first) and
//! the list of its rule (in order of arrival, for limits of age). The messages' bytes are stored in slots of fixed sizes. A freed slot is reused.
//!
//! A message that a limit removes is **lost**: a reader that has not read it gets a gap. A message that was superseded or has expired is not lost,
//! since no reader needs it.
//!
//! Invariants:
//! * An entry is in the chain of exactly one topic and in the list of exactly one rule.
//! * A topic without entries has no chain, unless its newest messages were removed without being lost.
//! * An entry's `previous` is the offset of the entry before it in its chain. For the oldest entry, it is the last lost offset.
//! * The byte count of the log is the space that its entries occupy.
//!
//! Deliberately not here: rights, topic names and subscribers.

pub mod arrival;
mod entry;
mod epoch;
mod expiry;
#[cfg(test)]
mod history_tests;
mod keys;
#[cfg(test)]
mod limit_tests;
mod lists;
mod losses;
mod orphans;
pub mod prefetch;
mod read;
mod recently_read;
pub mod removal;
mod rules;
pub mod seek;
pub mod snapshot;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeSet;

use crate::base::rules::Rules;
use crate::base::settings::{RetentionMode, Rule};
use crate::base::tally::Tally;
use crate::base::work::Steps;
use crate::budget::admission::holdings::Holdings;
use crate::budget::admission::{Admission, Client};
use crate::log::entry::{Chain, Entry, LENGTH_BYTES, flags_of, occupied_bytes, with_parts};
use crate::log::keys::{Key, Keys};
use crate::log::lists::Lists;
pub use crate::log::losses::LOSS_BYTES;
use crate::log::losses::Losses;
use crate::log::recently_read::RecentlyRead;
use crate::mail::message::NewMessage;
use crate::store::blobs::Blobs;
use crate::store::shared::{Shared, Slice};
use crate::store::slab::{NONE, Slab};

/// The approximate bytes of an element of `Log::expiries`.
const EXPIRY_BYTES: usize = 20;

/// All kept messages of one partition.
pub struct Log {
    entries: Slab<Entry>,
    chains: Slab<Chain>,
    blobs: Blobs,
    keys: Keys,
    counts: ByteCounts,
    lists: Lists,
    /// The entries whose message has a time to live: (chain, second of expiry, entry). This finds the expired entries of a chain without a scan.
    expiries: BTreeSet<(u32, u32, u32)>,
    /// Chains of deleted or emptied topics, whose messages are still to be removed, see `orphans.rs`.
    orphans: BTreeSet<u32>,
    /// Counts the steps of the shard's work.
    steps: Steps,
    recently_read: RecentlyRead,
    /// The losses that readers by filter must be told.
    pub losses: Losses,
    /// Counters of messages that were removed without being lost.
    pub removal_counts: RemovalCounts,
}

/// Counters of kept bytes by client: one for the process, one for the logs of this home.
struct ByteCounts {
    admission: Admission,
    home: HomeCounts,
}

/// The counters that all logs of a home share. All clones refer to the same counters.
#[derive(Clone, Default)]
pub struct HomeCounts {
    /// Kept bytes by client.
    pub holdings: Holdings,
    /// The number of topics whose losses are remembered.
    pub losses: Tally,
    /// The number of orphaned chains.
    pub orphans: Tally,
}

impl ByteCounts {
    fn add(&self, owner: Client, bytes: usize) {
        self.admission.add_kept(owner, bytes);
        self.home.holdings.add(owner, bytes);
    }

    fn subtract(&self, owner: Client, bytes: usize) {
        self.admission.drop_kept(owner, bytes);
        self.home.holdings.subtract(owner, bytes);
    }
}

/// Counters of messages that were removed without being lost.
#[derive(Default)]
pub struct RemovalCounts {
    /// Messages that a newer message with the same key replaced.
    pub superseded: u64,
    /// Messages that had expired when they were removed.
    pub expired: u64,
}

/// The bytes of one log, or of several logs together.
#[derive(Clone, Copy, Default)]
pub struct LogBytes {
    /// Bytes of the messages, including their rows.
    pub messages: usize,
    /// Bytes of the chunks that store the messages, including free slots.
    pub chunks: usize,
    /// Bytes of the rows of the chains.
    pub chains: usize,
}

impl Log {
    /// The maximum bytes of the chunks that a log without messages does not free.
    pub const SPARE_BYTES: usize = Blobs::SPARE_BYTES + 4 * (16 << 10);

    /// An empty log for topics with these rules. The log counts its bytes in `admission` and `home`, and its work in `steps`. `seed` keys the hash of the
    /// messages' keys.
    pub fn new(
        rules: &Rules,
        seed: u64,
        admission: Admission,
        home: HomeCounts,
        steps: Steps,
    ) -> Self {
        let losses = Losses::new(home.losses.clone());
        Log {
            entries: Slab::default(),
            chains: Slab::default(),
            blobs: Blobs::default(),
            keys: Keys::new(seed),
            counts: ByteCounts { admission, home },
            lists: Lists::new(rules),
            expiries: BTreeSet::new(),
            orphans: BTreeSet::new(),
            steps,
            recently_read: RecentlyRead::new(),
            losses,
            removal_counts: RemovalCounts::default(),
        }
    }

    /// Bytes of the messages, including their rows.
    pub fn bytes(&self) -> usize {
        self.blobs.bytes()
            + self.entries.len() as usize * size_of::<Entry>()
            + self.keys.len() as usize * size_of::<Key>()
            + self.expiries.len() * EXPIRY_BYTES
    }

    /// All bytes of the log.
    pub fn bytes_by_kind(&self) -> LogBytes {
        let expiries = self.expiries.len() * EXPIRY_BYTES;
        LogBytes {
            messages: self.bytes(),
            chunks: self.blobs.reserved_bytes()
                + self.entries.bytes()
                + self.keys.bytes()
                + expiries,
            chains: self.chains.bytes(),
        }
    }

    pub fn len(&self) -> u32 {
        self.entries.len()
    }

    /// The number of chains: of topics with messages, of topics whose newest messages were removed without being lost, and orphaned chains.
    pub fn chain_count(&self) -> u32 {
        self.chains.len()
    }

    /// The number of keys in topics that keep latest values.
    pub fn key_count(&self) -> u32 {
        self.keys.len()
    }

    /// The number of messages of a chain; `NONE` is an empty chain.
    pub fn count(&self, chain: u32) -> u32 {
        if chain == NONE {
            0
        } else {
            self.chains.get(chain).count
        }
    }

    /// Bytes of a chain's messages, including their rows; `NONE` is an empty chain.
    pub fn chain_bytes(&self, chain: u32) -> u32 {
        match chain {
            NONE => 0,
            chain => self.chains.get(chain).bytes,
        }
    }

    /// Appends a message to a topic's chain (`NONE`: a new one), and removes the message that the new one supersedes. `rule_number` is the number of
    /// `rule`. Trims the chain to `messages_max` messages and to the rule's limit of bytes, in about `steps_max` steps. Returns the chain, and
    /// whether more messages must be removed: then [`Log::trim`] continues.
    pub fn append(
        &mut self,
        mut chain: u32,
        rule_number: u8,
        rule: &Rule,
        messages_max: u32,
        steps_max: usize,
        message: &NewMessage<'_>,
    ) -> (u32, bool) {
        let keeps_latest = rule.keep == RetentionMode::Latest;
        if keeps_latest && chain != NONE {
            self.supersede(chain, message.headers.key);
        }
        // The chain is trimmed first, so that the new message can reuse the slot of a removed one.
        let frame_bytes = message.frame.len();
        let until_step = self.steps.count().saturating_add(steps_max as u64);
        let mut must_trim = false;
        while chain != NONE
            && (self.chains.get(chain)).exceeds_limits(rule, messages_max, frame_bytes, 0)
        {
            must_trim = self.steps.count() >= until_step;
            if must_trim {
                break;
            }
            // Expired messages are removed first: otherwise the result would depend on whether a reader has removed them before. So a server that replays
            // an engine's log keeps the same messages as the server that wrote it.
            if !self.drop_expired(chain, NONE, message.time_s) {
                chain = self.drop_oldest(chain, message.time_s);
            }
        }
        if chain == NONE {
            let new_chain = Chain::new(message.topic, rule_number, keeps_latest, message.previous);
            chain = self.chains.insert(new_chain);
        }
        let row = self.chains.get(chain);
        let newest = row.newest();
        let previous = if newest == NONE {
            row.last_lost_offset()
        } else {
            self.entries.get(newest).offset
        };
        let (id, occupied) = self.insert(chain, previous, message);
        if keeps_latest {
            self.keys.insert(chain, message.headers.key, id, newest);
        }
        let row = self.chains.get_mut(chain);
        row.count += 1;
        row.bytes += occupied as u32;
        row.has_ttls |= message.headers.ttl_s.is_some();
        row.newest_removed = false;
        row.set_newest(id);
        if newest == NONE {
            row.set_oldest(id);
        } else {
            self.entries.get_mut(newest).next = id;
        }
        (chain, must_trim)
    }

    /// Adds an entry for a message to the list of its rule, but not to its chain. Returns the entry and the bytes that it occupies.
    fn insert(&mut self, chain: u32, previous: u64, message: &NewMessage<'_>) -> (u32, usize) {
        let expires_at_s = message
            .headers
            .ttl_s
            .map(|ttl_s| message.time_s.saturating_add(ttl_s));
        self.steps.add(self.blobs.compact(&mut self.entries));
        let (blobs, admission) = (&mut self.blobs, &self.counts.admission);
        let blob = match &message.whole {
            Some(frame) => blobs.insert_shared(frame.message().clone()),
            None => with_parts(message, [message.frame, &[]], |parts| {
                blobs.insert(parts, admission)
            }),
        };
        let attributes_len = match message.headers.attributes.len() {
            0 => 0,
            len => LENGTH_BYTES + len,
        };
        let entry = Entry {
            offset: message.offset,
            previous,
            time_s: message.time_s,
            len: (attributes_len + message.frame.len()) as u32,
            chain,
            next: NONE,
            younger: NONE,
            older: NONE,
            blob,
            key_len: message.headers.key.len() as u8,
            content_type_len: message.headers.content_type.len() as u8,
            event_len: message.headers.event.len() as u8,
            flags: flags_of(message),
        };
        let occupied = occupied_bytes(entry.bytes());
        let id = self.entries.insert(entry);
        let rule_number = self.chains.get(chain).rule;
        self.lists.append(&mut self.entries, rule_number, id);
        if let Some(end_s) = expires_at_s {
            self.expiries.insert((chain, end_s, id));
        }
        self.steps.add_bytes(message.frame.len());
        self.counts.add(message.owner, occupied);
        (id, occupied)
    }
}

/// Encodes a large message into shared memory, in the layout of an entry's bytes. Returns the slice that contains the frame.
pub fn encode_shared(message: &NewMessage<'_>, frame: [&[u8]; 2], admission: &Admission) -> Slice {
    let frame_bytes = frame[0].len() + frame[1].len();
    let bytes = with_parts(message, frame, |parts| parts.concat()).into_boxed_slice();
    let len = bytes.len();
    Shared::new(bytes, admission).slice(len - frame_bytes..len)
}
