//! The log of a partition: the messages that are kept, chained by topic (oldest first) and by rule
//! (in order of arrival, for age). The bytes lie in size classes and are recycled.
//!
//! Invariants: an entry is in the chain of exactly one topic and one rule; a topic without entries has no row here,
//! unless some of its messages went without being lost; the byte count is the space that the entries occupy. An entry's
//! `previous` is the offset of the entry before it in its chain; for the oldest it is the last offset that was lost.
//! Superseded and expired messages are not lost: no reader may expect them, and the chain closes over them.
//!
//! It does not decide which clients may read, and knows neither names nor subscribers.

pub mod arrival;
mod cursors;
mod entry;
mod epoch;
mod expiry;
#[cfg(test)]
mod history_tests;
mod keys;
mod lists;
mod losses;
mod orphans;
pub mod prefetch;
mod read;
pub mod removal;
#[cfg(test)]
mod room_tests;
mod rules;
pub mod seek;
pub mod snapshot;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeSet;

use crate::base::rules::Rules;
use crate::base::settings::{Keep, Rule};
use crate::base::tally::Tally;
use crate::base::work::Steps;
use crate::budget::admission::holdings::Holdings;
use crate::budget::admission::{Admission, Client};
use crate::log::cursors::Cursors;
use crate::log::entry::{Chain, Entry, LENGTH_BYTES, flags_of, occupied_bytes, with_parts};
use crate::log::keys::{Key, Keys};
use crate::log::lists::Lists;
pub use crate::log::losses::LOSS_BYTES;
use crate::log::losses::Losses;
use crate::mail::message::NewMessage;
use crate::store::blobs::Blobs;
use crate::store::shared::{Shared, Slice};
use crate::store::slab::{NONE, Slab};

/// About the bytes that a set needs for each member.
const EXPIRY_BYTES: usize = 20;

/// All messages that one partition keeps.
pub struct Log {
    entries: Slab<Entry>,
    chains: Slab<Chain>,
    blobs: Blobs,
    keys: Keys,
    counts: Counts,
    lists: Lists,
    /// Entries with a time to live of their own: chain, second of expiry, entry. So the expired entries of a chain are
    /// found without looking at the others.
    expiries: BTreeSet<(u32, u32, u32)>,
    /// Chains of deleted or emptied topics that still have messages, see `orphans.rs`.
    orphaned: BTreeSet<u32>,
    /// Steps of work done.
    steps: Steps,
    cursors: Cursors,
    /// The losses that readers by filter must be told.
    pub losses: Losses,
    /// Removed messages that no reader misses.
    pub unneeded: Unneeded,
}

/// The counts of kept bytes by client: those of the process, and those of the logs of this home.
struct Counts {
    admission: Admission,
    home: HomeCounts,
}

/// The counts that the logs of a home have together. Copies share them.
#[derive(Clone, Default)]
pub struct HomeCounts {
    /// Kept bytes by client.
    pub holdings: Holdings,
    /// Topics whose losses are remembered.
    pub losses: Tally,
    /// Chains of deleted or emptied topics that still have messages.
    pub orphans: Tally,
}

impl Counts {
    fn add(&self, owner: Client, bytes: usize) {
        self.admission.keep(owner, bytes);
        self.home.holdings.add(owner, bytes);
    }

    fn subtract(&self, owner: Client, bytes: usize) {
        self.admission.drop_kept(owner, bytes);
        self.home.holdings.subtract(owner, bytes);
    }
}

/// Counts of removed messages that no reader misses.
#[derive(Default)]
pub struct Unneeded {
    /// Messages that a newer one of their key took the place of.
    pub superseded: u64,
    /// Messages that expired before a limit removed them.
    pub expired: u64,
}

/// Bytes of a log, or of several.
#[derive(Clone, Copy, Default)]
pub struct LogBytes {
    /// That the messages occupy, their rows included.
    pub messages: usize,
    /// Of the chunks in which they lie, used or not.
    pub chunks: usize,
    /// Of the rows of topics.
    pub chains: usize,
}

impl Log {
    /// The most bytes of chunks that a log without messages keeps.
    pub const SPARE_BYTES: usize = Blobs::SPARE_BYTES + 4 * (16 << 10);

    /// An empty log of topics with these rules, which counts its bytes by client, among those of the process and of its home, and its
    /// work in `steps`. `seed` keys the hash of messages' keys.
    pub fn new(
        rules: &Rules,
        seed: u64,
        (admission, home): (Admission, HomeCounts),
        steps: Steps,
    ) -> Self {
        let losses = Losses::new(home.losses.clone());
        Log {
            entries: Slab::default(),
            chains: Slab::default(),
            blobs: Blobs::default(),
            keys: Keys::new(seed),
            counts: Counts { admission, home },
            lists: Lists::new(rules),
            expiries: BTreeSet::new(),
            orphaned: BTreeSet::new(),
            steps,
            cursors: Cursors::new(),
            losses,
            unneeded: Unneeded::default(),
        }
    }

    /// Bytes that the messages occupy, their rows included.
    pub fn bytes(&self) -> usize {
        self.blobs.bytes()
            + self.entries.len() as usize * size_of::<Entry>()
            + self.keys.len() as usize * size_of::<Key>()
            + self.expiries.len() * EXPIRY_BYTES
    }

    /// All its bytes.
    pub fn held(&self) -> LogBytes {
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

    /// Messages in it.
    pub fn len(&self) -> u32 {
        self.entries.len()
    }

    /// Topics that have messages, or had some that expired.
    pub fn chains(&self) -> u32 {
        self.chains.len()
    }

    /// Keys in topics that keep the latest.
    pub fn keys(&self) -> u32 {
        self.keys.len()
    }

    /// Messages of a chain; `NONE` is an empty chain.
    pub fn count(&self, chain: u32) -> u32 {
        if chain == NONE {
            0
        } else {
            self.chains.get(chain).count
        }
    }

    /// Bytes of a chain's messages, their rows included; `NONE` is an empty chain.
    pub fn chain_bytes(&self, chain: u32) -> u32 {
        match chain {
            NONE => 0,
            chain => self.chains.get(chain).bytes,
        }
    }

    /// Appends a message to a topic's chain, removes the message that it supersedes, and trims the chain to `most` messages and to its rule's
    /// bytes in about so many steps. Returns the chain, and whether more messages must go: then [`removal::trim`] goes on.
    pub fn append(
        &mut self,
        mut chain: u32,
        number: u8,
        rule: &Rule,
        (most, steps_max): (u32, usize),
        new: &NewMessage<'_>,
    ) -> (u32, bool) {
        let latest = rule.keep == Keep::Latest;
        if latest && chain != NONE {
            self.supersede(chain, new.headers.key);
        }
        // Trimming first lets the new message reuse the place of the removed one.
        let frame_bytes = new.frame.len();
        let until = self.steps.count().saturating_add(steps_max as u64);
        let mut is_past = false;
        while chain != NONE && (self.chains.get(chain)).exceeds_limits(rule, most, frame_bytes, 0) {
            is_past = self.steps.count() >= until;
            if is_past {
                break;
            }
            // Messages that expired take no room from others, whether somebody has read the topic meanwhile or not: so a server that
            // reads the log of an engine keeps what the one kept that wrote it.
            if !self.drop_expired(chain, NONE, new.time_s) {
                chain = self.drop_oldest(chain, new.time_s);
            }
        }
        if chain == NONE {
            let row = Chain::new(new.topic, number, latest, new.previous);
            chain = self.chains.insert(row);
        }
        let row = self.chains.get(chain);
        let before = row.newest();
        let previous = if before == NONE {
            row.lost()
        } else {
            self.entries.get(before).offset
        };
        let (id, taken) = self.insert(chain, previous, new);
        if latest {
            self.keys.insert(chain, new.headers.key, id, before);
        }
        let row = self.chains.get_mut(chain);
        row.count += 1;
        row.bytes += taken as u32;
        row.has_ttls |= new.headers.ttl_s.is_some();
        row.newest_removed = false;
        row.set_newest(id);
        if before == NONE {
            row.set_oldest(id);
        } else {
            self.entries.get_mut(before).next = id;
        }
        (chain, is_past)
    }

    /// Adds an entry to the list of its rule, but not yet to its chain. Returns it, and the bytes that it takes up.
    fn insert(&mut self, chain: u32, previous: u64, new: &NewMessage<'_>) -> (u32, usize) {
        let end_s = new
            .headers
            .ttl_s
            .map(|ttl_s| new.time_s.saturating_add(ttl_s));
        self.steps.add(self.blobs.gather(&mut self.entries));
        let (blobs, admission) = (&mut self.blobs, &self.counts.admission);
        let blob = match &new.whole {
            Some(frame) => blobs.insert_shared(frame.whole().clone()),
            None => with_parts(new, [new.frame, &[]], |parts| {
                blobs.insert(parts, admission)
            }),
        };
        let attributes_len = match new.headers.attributes.len() {
            0 => 0,
            len => LENGTH_BYTES + len,
        };
        let entry = Entry {
            offset: new.offset,
            previous,
            time_s: new.time_s,
            len: (attributes_len + new.frame.len()) as u32,
            chain,
            next: NONE,
            younger: NONE,
            older: NONE,
            blob,
            key: new.headers.key.len() as u8,
            content_type: new.headers.content_type.len() as u8,
            event: new.headers.event.len() as u8,
            flags: flags_of(new),
        };
        let taken = occupied_bytes(entry.bytes());
        let id = self.entries.insert(entry);
        let number = self.chains.get(chain).rule;
        self.lists.append(&mut self.entries, number, id);
        if let Some(end_s) = end_s {
            self.expiries.insert((chain, end_s, id));
        }
        self.steps.add_bytes(new.frame.len());
        self.counts.add(new.owner, taken);
        (id, taken)
    }
}

/// The bytes of a large message as a log keeps them; returns the frame among them, which other holders can share.
pub fn encode_shared(new: &NewMessage<'_>, frame: [&[u8]; 2], admission: &Admission) -> Slice {
    let frame_bytes = frame[0].len() + frame[1].len();
    let bytes = with_parts(new, frame, |parts| parts.concat()).into_boxed_slice();
    let len = bytes.len();
    Shared::new(bytes, admission).slice(len - frame_bytes..len)
}
