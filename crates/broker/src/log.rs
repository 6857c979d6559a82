//! The log of a home shard: the messages that are kept, chained by topic (oldest first) and by rule
//! (in order of arrival, for age). The bytes lie in size classes and are recycled.
//!
//! Invariants: an entry stands in the chain of exactly one topic and one rule; a topic without
//! entries has no row here; the byte count is what the entries occupy.
//!
//! It does not decide who may read, and knows neither names nor subscribers.

use alloc::vec::Vec;

use crate::blobs::{Blob, Blobs, occupied};
use crate::mail::Frames;
use crate::settings::Rule;
use crate::slab::{NONE, Slab, Vacant};

/// How many of the oldest entries are compared when the byte budget is spent, to find a topic that
/// is far over its share.
const VICTIMS_COMPARED: usize = 16;

/// A kept message. Its bytes are content type, event name and WebSocket frame, side by side.
pub struct Entry {
    offset: u64,
    previous: u64,
    time_s: u32,
    len: u32,
    chain: u32,
    next: u32,
    younger: u32,
    older: u32,
    blob: Blob,
    header: u8,
    content_type: u8,
    event: u8,
    binary: bool,
}

const _: () = assert!(size_of::<Entry>() == 48);

impl Vacant for Entry {
    fn vacant(next: u32) -> Self {
        Entry {
            offset: 0,
            previous: 0,
            time_s: 0,
            len: 0,
            chain: NONE,
            next,
            younger: NONE,
            older: NONE,
            blob: Blob::NONE,
            header: 0,
            content_type: 0,
            event: 0,
            binary: false,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        self.len as usize + self.content_type as usize + self.event as usize
    }
}

/// The chain of a topic that has messages.
pub struct Chain {
    oldest: u32,
    newest: u32,
    count: u32,
    bytes: u32,
    topic: u32,
    rule: u8,
}

const _: () = assert!(size_of::<Chain>() == 24);

impl Vacant for Chain {
    fn vacant(next: u32) -> Self {
        Chain {
            oldest: next,
            newest: NONE,
            count: 0,
            bytes: 0,
            topic: NONE,
            rule: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.oldest
    }
}

/// The oldest and the youngest entry of a rule.
struct Ages {
    oldest: u32,
    youngest: u32,
}

/// All that is kept by one home.
pub struct Log {
    entries: Slab<Entry>,
    chains: Slab<Chain>,
    blobs: Blobs,
    ages: Vec<Ages>,
    budget_bytes: usize,
}

/// A message on its way into the log.
pub struct New<'a> {
    /// The home's topic row.
    pub topic: u32,
    /// Its partition's sequence number.
    pub offset: u64,
    /// The topic's previous offset.
    pub previous: u64,
    /// Unix seconds.
    pub time_s: u32,
    /// Content type, or empty.
    pub content_type: &'a [u8],
    /// Event name, or empty.
    pub event: &'a [u8],
    /// Whether the frame is a binary one.
    pub binary: bool,
    /// Bytes of the frame's header.
    pub header: u8,
    /// The WebSocket frame.
    pub frame: &'a [u8],
}

impl Log {
    /// An empty log for so many rules.
    pub fn new(rules: usize, budget_bytes: usize) -> Self {
        let ages = (0..rules)
            .map(|_| Ages {
                oldest: NONE,
                youngest: NONE,
            })
            .collect();
        Log {
            entries: Slab::new(),
            chains: Slab::new(),
            blobs: Blobs::new(),
            ages,
            budget_bytes,
        }
    }

    /// Bytes that the messages occupy, their rows included.
    pub fn bytes(&self) -> usize {
        self.blobs.bytes() + self.entries.len() as usize * size_of::<Entry>()
    }

    /// Messages in it.
    pub fn len(&self) -> u32 {
        self.entries.len()
    }

    /// Messages of a chain; `NONE` is an empty one.
    pub fn count(&self, chain: u32) -> u32 {
        if chain == NONE {
            0
        } else {
            self.chains.get(chain).count
        }
    }

    /// The offset before the oldest message of a chain: whoever has seen it misses nothing.
    pub fn reaches_back_to(&self, chain: u32) -> Option<u64> {
        (chain != NONE).then(|| self.entries.get(self.chains.get(chain).oldest).previous)
    }

    /// Appends a message to a topic's chain, trims the chain to its rule and the log to its budget,
    /// and returns the chain (`NONE` when nothing is left of it).
    pub fn append(&mut self, mut chain: u32, number: u8, rule: &Rule, new: &New<'_>) -> u32 {
        // Trimming first lets the new message take the place of the one that goes.
        while self.over(chain, rule, new.frame.len()) {
            chain = self.drop_oldest(chain);
        }
        let blob = self.blobs.insert(&[new.content_type, new.event, new.frame]);
        let id = self.entries.insert(Entry {
            offset: new.offset,
            previous: new.previous,
            time_s: new.time_s,
            len: new.frame.len() as u32,
            chain: NONE,
            next: NONE,
            younger: NONE,
            older: self.ages[number as usize].youngest,
            blob,
            header: new.header,
            content_type: new.content_type.len() as u8,
            event: new.event.len() as u8,
            binary: new.binary,
        });
        let ages = &mut self.ages[number as usize];
        let elder = core::mem::replace(&mut ages.youngest, id);
        if elder == NONE {
            ages.oldest = id;
        } else {
            self.entries.get_mut(elder).younger = id;
        }
        let bytes = occupied(self.entries.get(id).bytes()) as u32;
        if chain == NONE {
            let topic = new.topic;
            chain = self.chains.insert(Chain {
                oldest: id,
                newest: id,
                count: 1,
                bytes,
                topic,
                rule: number,
            });
        } else {
            let row = self.chains.get_mut(chain);
            let last = core::mem::replace(&mut row.newest, id);
            row.count += 1;
            row.bytes += bytes;
            self.entries.get_mut(last).next = id;
        }
        self.entries.get_mut(id).chain = chain;
        chain
    }

    fn over(&self, chain: u32, rule: &Rule, more_bytes: usize) -> bool {
        chain != NONE && {
            let row = self.chains.get(chain);
            row.count >= rule.log_messages || row.bytes as usize + more_bytes > rule.log_bytes
        }
    }

    /// Drops what the byte budget does not allow: the oldest first, and among the oldest those of
    /// the topic furthest over its share. `emptied` is told the topics that have nothing left.
    pub fn enforce_budget(&mut self, mut emptied: impl FnMut(u32)) {
        while self.bytes() > self.budget_bytes {
            let Some(chain) = self.victim() else { return };
            let topic = self.chains.get(chain).topic;
            if self.drop_oldest(chain) == NONE {
                emptied(topic);
            }
        }
    }

    fn victim(&self) -> Option<u32> {
        let share = self.budget_bytes / self.chains.len().max(1) as usize;
        let mut best: Option<(usize, u32, u32)> = None;
        for ages in &self.ages {
            let mut id = ages.oldest;
            for _ in 0..VICTIMS_COMPARED {
                if id == NONE {
                    break;
                }
                let entry = self.entries.get(id);
                let over = (self.chains.get(entry.chain).bytes as usize).saturating_sub(share);
                if best.is_none_or(|(most, age, _)| {
                    over > most || (over == most && entry.time_s < age)
                }) {
                    best = Some((over, entry.time_s, entry.chain));
                }
                id = entry.younger;
            }
        }
        best.map(|(_, _, chain)| chain)
    }

    /// Drops up to `limit` messages of a rule that are older than `age_s`.
    pub fn expire(
        &mut self,
        number: u8,
        age_s: u32,
        now_s: u32,
        limit: usize,
        mut emptied: impl FnMut(u32),
    ) {
        for _ in 0..limit {
            let id = self.ages[number as usize].oldest;
            if id == NONE || now_s.saturating_sub(self.entries.get(id).time_s) < age_s {
                return;
            }
            let chain = self.entries.get(id).chain;
            let topic = self.chains.get(chain).topic;
            if self.drop_oldest(chain) == NONE {
                emptied(topic);
            }
        }
    }

    /// Drops what is too old in one chain: expiry is exact for whoever looks.
    pub fn expire_chain(&mut self, mut chain: u32, age_s: u32, now_s: u32) -> u32 {
        while chain != NONE
            && now_s.saturating_sub(self.entries.get(self.chains.get(chain).oldest).time_s) >= age_s
        {
            chain = self.drop_oldest(chain);
        }
        chain
    }

    /// Drops a whole chain.
    pub fn clear(&mut self, mut chain: u32) {
        while chain != NONE {
            chain = self.drop_oldest(chain);
        }
    }

    /// The offset before the newest `count` messages.
    pub fn before_newest(&self, chain: u32, count: u32) -> Option<u64> {
        let skip = self.count(chain).saturating_sub(count);
        if chain == NONE || count == 0 {
            return None;
        }
        let mut id = self.chains.get(chain).oldest;
        for _ in 0..skip {
            id = self.entries.get(id).next;
        }
        Some(self.entries.get(id).previous)
    }

    /// The offset before the first message after this second.
    pub fn before_time(&self, chain: u32, time_s: u32) -> Option<u64> {
        let mut id = if chain == NONE {
            NONE
        } else {
            self.chains.get(chain).oldest
        };
        while id != NONE {
            let entry = self.entries.get(id);
            if entry.time_s > time_s {
                return Some(entry.previous);
            }
            id = entry.next;
        }
        None
    }

    /// Copies the messages after `offset` into `frames`, oldest first, until `messages_max` or
    /// `bytes_max` is reached (one message always fits). Says whether that was all.
    pub fn read(
        &self,
        chain: u32,
        offset: u64,
        messages_max: usize,
        bytes_max: usize,
        frames: &mut Frames,
    ) -> bool {
        let mut id = if chain == NONE {
            NONE
        } else {
            self.chains.get(chain).oldest
        };
        let (mut messages, mut bytes) = (0, 0);
        while id != NONE {
            let entry = self.entries.get(id);
            if entry.offset > offset {
                if messages == messages_max || (messages > 0 && bytes + entry.bytes() > bytes_max) {
                    return false;
                }
                messages += 1;
                bytes += entry.bytes();
                let (content_type, event) = (entry.content_type as usize, entry.event as usize);
                let blob = &self.blobs.get(entry.blob)[..entry.bytes()];
                let record = frames.push(&New {
                    topic: NONE,
                    offset: entry.offset,
                    previous: entry.previous,
                    time_s: entry.time_s,
                    content_type: &blob[..content_type],
                    event: &blob[content_type..content_type + event],
                    binary: entry.binary,
                    header: entry.header,
                    frame: &blob[content_type + event..],
                });
                frames.pages.push(record);
            }
            id = entry.next;
        }
        true
    }

    /// Drops the oldest message of a chain; returns the chain or `NONE`.
    pub fn drop_oldest(&mut self, chain: u32) -> u32 {
        let row = self.chains.get(chain);
        let (id, number) = (row.oldest, row.rule);
        let entry = self.entries.remove(id);
        let ages = &mut self.ages[number as usize];
        if entry.older == NONE {
            ages.oldest = entry.younger
        } else {
            self.entries.get_mut(entry.older).younger = entry.younger
        }
        if entry.younger == NONE {
            ages.youngest = entry.older
        } else {
            self.entries.get_mut(entry.younger).older = entry.older
        }
        self.blobs.remove(entry.blob, entry.bytes());
        let row = self.chains.get_mut(chain);
        row.count -= 1;
        row.bytes -= occupied(entry.bytes()) as u32;
        row.oldest = entry.next;
        if row.count == 0 {
            self.chains.remove(chain);
            return NONE;
        }
        chain
    }
}
