//! The log of a home shard: the messages that are kept, chained by topic (oldest first) and by rule
//! (in order of arrival, for age). The bytes lie in size classes and are recycled.
//!
//! Invariants: an entry is in the chain of exactly one topic and one rule; a topic without entries has no row here,
//! unless some of its messages went without being lost; the byte count is the space that the entries occupy. An entry's
//! `previous` is the offset of the entry before it in its chain; for the oldest it is the last offset that was lost.
//! Superseded and expired messages are not lost: no reader may expect them, and the chain closes over them.
//!
//! It does not decide which clients may read, and knows neither names nor subscribers.

mod arrival;
mod doomed;
mod entry;
mod expiry;
#[cfg(test)]
mod history_tests;
mod keys;
mod read;
#[cfg(test)]
mod room_tests;
mod rules;
mod seek;
mod snapshot;
#[cfg(test)]
mod tests;

use crate::mail::new::New;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::base::rules::Rules;
use crate::base::settings::{Keep, Rule};
use crate::base::work::Steps;
use crate::budget::admission::Admission;
pub use crate::log::arrival::{Arrival, Arrivals};
use crate::log::arrival::{Losses, Marks};
use crate::log::doomed::DOOMED;
use crate::log::entry::{Chain, Entry, LENGTH_BYTES, MARKED, taken_by};
use crate::log::keys::{Key, Keys};
pub use crate::log::seek::{Back, Sought};
pub use crate::log::snapshot::Past;
use crate::store::blobs::{Blobs, occupied};
use crate::store::shared::{Shared, Slice};
use crate::store::slab::{NONE, Slab};

/// How many of the oldest entries of each rule are compared when the byte budget is spent, to find a topic that is far
/// over its share.
const VICTIMS_COMPARED: usize = 16;
/// Readers of one home that get further pages of long chains at once without searching for their place again; 1 KiB. In
/// tests so few that readers take each other's fingers.
const FINGERS: usize = if cfg!(test) { 2 } else { 256 };

/// About the bytes that a set needs for each member.
const MORTAL_BYTES: usize = 20;

/// The oldest and the youngest entry of a rule, and how long its messages live; 0 is without end.
struct Ages {
    oldest: u32,
    youngest: u32,
    ttl_s: u32,
    marks: Marks,
}

/// Why an entry is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    /// Removed by a limit: a reader that has not seen it misses it.
    Lost,
    /// Superseded or expired: no reader misses it.
    Unneeded,
}

/// All messages that one home keeps.
pub struct Log {
    entries: Slab<Entry>,
    chains: Slab<Chain>,
    blobs: Blobs,
    keys: Keys,
    admission: Admission,
    ages: Vec<Ages>,
    /// Entries with a time to live of their own: chain, second of expiry, entry. So the expired entries of a chain are
    /// found without looking at the others.
    mortals: BTreeSet<(u32, u32, u32)>,
    /// Chains of deleted or emptied topics that still have messages, see `doomed.rs`.
    doomed: BTreeSet<u32>,
    /// Steps of work done.
    pub steps: Steps,
    /// Entries that were the last of a page, for the request of the next one.
    fingers: [u32; FINGERS],
    /// Bytes that the messages may occupy.
    pub budget_bytes: usize,
    losses: Losses,
    /// Messages that a newer one of their key took the place of.
    pub superseded: u64,
    /// Messages that expired before a limit removed them.
    pub expired: u64,
}

impl Log {
    /// An empty log of topics with these rules, which counts its bytes by client in `admission`. `seed` keys the hash
    /// of messages' keys.
    pub fn new(rules: &Rules, budget_bytes: usize, seed: u64, admission: Admission) -> Self {
        Log {
            entries: Slab::new(),
            chains: Slab::new(),
            blobs: Blobs::new(),
            keys: Keys::new(seed),
            admission,
            ages: rules::lists(rules),
            mortals: BTreeSet::new(),
            doomed: BTreeSet::new(),
            steps: Steps::default(),
            fingers: [NONE; FINGERS],
            budget_bytes,
            losses: Losses::default(),
            superseded: 0,
            expired: 0,
        }
    }

    /// Bytes that the messages occupy, their rows included.
    pub fn bytes(&self) -> usize {
        self.blobs.bytes()
            + self.entries.len() as usize * size_of::<Entry>()
            + self.keys.len() as usize * size_of::<Key>()
            + self.mortals.len() * MORTAL_BYTES
    }

    /// Bytes reserved for messages and their rows, used or not.
    pub fn reserved_bytes(&self) -> usize {
        self.blobs.reserved_bytes() + self.entries.bytes() + self.chains.bytes() + self.keys.bytes()
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

    /// Appends a message to a topic's chain, removes the message that it supersedes, trims the chain to `most` messages
    /// and to its rule's bytes, and returns the chain.
    pub fn append(
        &mut self,
        mut chain: u32,
        number: u8,
        rule: &Rule,
        most: u32,
        new: &New<'_>,
    ) -> u32 {
        let latest = rule.keep == Keep::Latest;
        if latest && chain != NONE {
            self.supersede(chain, new.key);
        }
        // Trimming first lets the new message reuse the place of the removed one.
        while self.over(chain, rule, most, new.frame.len()) {
            chain = self.drop_oldest(chain, new.time_s);
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
        let id = self.insert(chain, previous, new);
        if latest {
            self.keys.insert(chain, new.key, id, before);
        }
        let bytes = occupied(self.entries.get(id).bytes()) as u32;
        let row = self.chains.get_mut(chain);
        row.count += 1;
        row.bytes += bytes;
        row.mortal |= new.ttl_s.is_some();
        row.ended = false;
        row.set_newest(id);
        if before == NONE {
            row.set_oldest(id);
        } else {
            self.entries.get_mut(before).next = id;
        }
        chain
    }

    /// The bytes of a large message as a log keeps them; returns the frame among them, which other holders can share.
    pub fn lay_out(new: &New<'_>, frame: [&[u8]; 2], admission: &Admission) -> Slice {
        let frame_bytes = frame[0].len() + frame[1].len();
        let bytes = with_parts(new, frame, |parts| parts.concat()).into_boxed_slice();
        let len = bytes.len();
        Shared::new(bytes, admission).slice(len - frame_bytes..len)
    }

    /// Adds an entry to the list of its rule, but not yet to its chain.
    fn insert(&mut self, chain: u32, previous: u64, new: &New<'_>) -> u32 {
        let end_s = new.ttl_s.map(|ttl_s| new.time_s.saturating_add(ttl_s));
        let (blobs, admission) = (&mut self.blobs, &self.admission);
        let blob = match &new.whole {
            Some(frame) => blobs.insert_shared(frame.whole().clone()),
            None => with_parts(new, [new.frame, &[]], |parts| {
                blobs.insert(parts, admission)
            }),
        };
        let attributes_len = match new.attributes.len() {
            0 => 0,
            len => LENGTH_BYTES + len,
        };
        let id = self.entries.insert(Entry {
            offset: new.offset,
            previous,
            time_s: new.time_s,
            len: (attributes_len + new.frame.len()) as u32,
            chain,
            next: NONE,
            younger: NONE,
            older: NONE,
            blob,
            key: new.key.len() as u8,
            content_type: new.content_type.len() as u8,
            event: new.event.len() as u8,
            form: Entry::form(new),
        });
        self.append_to_list(id);
        if let Some(end_s) = end_s {
            self.mortals.insert((chain, end_s, id));
        }
        self.steps.add_bytes(new.frame.len());
        self.admission
            .keep(new.owner, taken_by(self.entries.get(id).bytes()));
        id
    }

    fn over(&self, chain: u32, rule: &Rule, most: u32, more_bytes: usize) -> bool {
        chain != NONE && {
            let row = self.chains.get(chain);
            row.count > 0 && (row.count >= most || row.bytes as usize + more_bytes > rule.log_bytes)
        }
    }

    /// Removes messages until the byte budget is kept: the oldest of the topic that is furthest over its share, among
    /// topics with the oldest messages; messages of rule `last` only when there are no others. `emptied` gets the topic
    /// and rule of each chain that has become empty, and the topic's chain from now on.
    pub fn enforce_budget(&mut self, now_s: u32, last: u8, mut emptied: impl FnMut(u32, u8, u32)) {
        while self.bytes() > self.budget_bytes || self.blobs.is_full() {
            if self.clear_some(1) > 0 {
                continue;
            }
            let Some(chain) = self.victim(last) else {
                return;
            };
            let (topic, number) = (self.chains.get(chain).topic, self.chains.get(chain).rule);
            let chain = self.drop_oldest(chain, now_s);
            if self.count(chain) == 0 {
                emptied(topic, number, chain);
            }
        }
    }

    fn victim(&self, last: u8) -> Option<u32> {
        let share = self.budget_bytes / self.chains.len().max(1) as usize;
        let mut best: Option<(usize, u32, u32)> = None;
        for (number, ages) in self.ages.iter().enumerate() {
            if number == last as usize && best.is_some() {
                continue;
            }
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

    /// Removes a whole chain; a long one is doomed and goes bit by bit.
    pub fn clear(&mut self, chain: u32) {
        if chain == NONE {
            return;
        }
        if self.is_long(chain) {
            return self.doom(chain);
        }
        loop {
            let oldest = self.chains.get(chain).oldest();
            if oldest == NONE {
                self.chains.remove(chain);
                return;
            }
            self.take(NONE, oldest, Gone::Unneeded);
        }
    }

    /// Removes a chain whose topic goes on without a log; returns the last lost offset, unless all up to the topic's
    /// last message is lost.
    pub fn abandon(&mut self, mut chain: u32, now_s: u32) -> Option<u64> {
        if self.is_long(chain) && !self.may_expire(chain) {
            chain = self.lose_all(chain, now_s);
        }
        // A topic whose rule keeps none has at most the messages that are kept for sessions.
        while self.count(chain) > 0 {
            chain = self.drop_oldest(chain, now_s);
        }
        let lost = self.reaches_back_to(chain);
        self.clear(chain);
        lost
    }

    /// Bytes of a chain's messages; `NONE` is an empty chain.
    pub fn chain_bytes(&self, chain: u32) -> u32 {
        match chain {
            NONE => 0,
            chain => self.chains.get(chain).bytes,
        }
    }

    /// Removes the messages of a chain up to this offset, oldest first and at most `most`, as a limit would. Returns
    /// the chain or `NONE`, and how many were removed.
    pub fn drop_until(&mut self, mut chain: u32, until: u64, most: u32, now_s: u32) -> (u32, u32) {
        if until == u64::MAX && most == u32::MAX && self.is_long(chain) {
            let count = self.count(chain);
            return (self.lose_all(chain, now_s), count);
        }
        let mut dropped = 0;
        while dropped < most && self.count(chain) > 0 {
            let oldest = self.chains.get(chain).oldest();
            if self.entries.get(oldest).offset > until {
                break;
            }
            chain = self.drop_oldest(chain, now_s);
            dropped += 1;
        }
        (chain, dropped)
    }

    /// Removes the oldest message of a chain that has some; returns the chain or `NONE`.
    fn drop_oldest(&mut self, chain: u32, now_s: u32) -> u32 {
        let oldest = self.chains.get(chain).oldest();
        if self.is_expired(oldest, now_s) {
            self.expired += 1;
            return self.take(NONE, oldest, Gone::Unneeded);
        }
        self.take(NONE, oldest, Gone::Lost)
    }

    /// Removes the message with this key from a chain that keeps the latest, if there is one.
    pub fn remove_key(&mut self, chain: u32, key: &[u8]) {
        if chain != NONE {
            self.supersede(chain, key);
        }
    }

    /// Removes the message with this key, if there is one.
    fn supersede(&mut self, chain: u32, key: &[u8]) {
        if let Some(row) = self.key_row(chain, key) {
            let Key { entry, before, .. } = *self.keys.get(row);
            self.superseded += 1;
            self.take(before, entry, Gone::Unneeded);
        }
    }

    /// The row of this key of a chain that keeps the latest.
    fn key_row(&self, chain: u32, key: &[u8]) -> Option<u32> {
        let (entries, blobs) = (&self.entries, &self.blobs);
        self.keys.find(chain, key, |id| {
            let entry = entries.get(id);
            entry.chain == chain && entry.parts(blobs.get(entry.blob)).key == key
        })
    }

    /// The key row of an entry of a chain that keeps the latest.
    fn key_row_of(&self, id: u32) -> u32 {
        let entry = self.entries.get(id);
        let key = entry.parts(self.blobs.get(entry.blob)).key;
        self.keys
            .find(entry.chain, key, |other| other == id)
            .expect("a keyed entry has a row")
    }

    /// Removes the entry behind `before` (`NONE`: the oldest) from its chain; returns the chain, or `NONE` when all up
    /// to the topic's last message is lost. Only the oldest is ever lost.
    fn take(&mut self, before: u32, id: u32, gone: Gone) -> u32 {
        let chain = self.entries.get(id).chain;
        self.steps.add(1);
        let latest = self.chains.get(chain).latest;
        if latest {
            self.keys.remove(self.key_row_of(id));
        }
        self.unmark(id);
        let entry = self.entries.remove(id);
        if entry.is_mortal() {
            let end_s = Entry::end_s(self.blobs.get(entry.blob));
            self.mortals.remove(&(chain, end_s, id));
        }
        let row = self.chains.get_mut(chain);
        row.count -= 1;
        row.bytes -= occupied(entry.bytes()) as u32;
        let ages = &mut self.ages[row.rule as usize];
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
        let owner = entry.owner(self.blobs.get(entry.blob));
        self.admission.drop_kept(owner, taken_by(entry.bytes()));
        self.blobs.remove(entry.blob);
        let retained = row.rule as usize == self.ages.len() - 1;
        let doomed = row.topic == DOOMED;
        if gone == Gone::Lost && !retained && !doomed {
            self.losses.add(row.topic, entry.previous, entry.offset);
        }
        if row.count == 0 {
            let lost = gone == Gone::Lost;
            if doomed {
                self.doomed.remove(&chain);
            }
            if doomed || lost && !row.ended {
                self.chains.remove(chain);
                return NONE;
            }
            row.mortal = false;
            row.set_lost(if lost { entry.offset } else { entry.previous });
            return chain;
        }
        if before == NONE {
            row.set_oldest(entry.next);
        } else {
            self.entries.get_mut(before).next = entry.next;
        }
        if entry.next == NONE {
            row.set_newest(before);
            row.ended = true;
            return chain;
        }
        if gone == Gone::Unneeded {
            self.entries.get_mut(entry.next).previous = entry.previous;
        }
        if latest {
            let after = self.key_row_of(entry.next);
            self.keys.get_mut(after).before = before;
        }
        chain
    }

    /// An entry is removed: its mark passes to the entry before it.
    fn unmark(&mut self, id: u32) {
        let entry = self.entries.get(id);
        if entry.form & MARKED == 0 {
            return;
        }
        let (offset, older) = (entry.offset, entry.older);
        let number = self.chains.get(entry.chain).rule;
        let heir = (older != NONE).then(|| self.entries.get_mut(older));
        let heir = heir.filter(|entry| entry.form & MARKED == 0).map(|entry| {
            entry.form |= MARKED;
            (entry.offset, older)
        });
        self.ages[number as usize].marks.pass_on(offset, heir);
    }
}

/// Calls `take` with the parts of a message's bytes, in the order that [`Entry::parts`] reads; the frame may have two.
fn with_parts<T>(new: &New<'_>, frame: [&[u8]; 2], take: impl FnOnce(&[&[u8]]) -> T) -> T {
    let end = new
        .ttl_s
        .map(|ttl_s| new.time_s.saturating_add(ttl_s).to_le_bytes());
    let end = end.as_ref().map_or(&[][..], |end| end);
    let len = (new.attributes.len() as u16).to_le_bytes();
    let len = match new.attributes {
        [] => &[][..],
        _ => &len,
    };
    let owner = new.owner.number().to_le_bytes();
    let owner = match new.owner.is_known() {
        true => &owner[..],
        false => &[],
    };
    take(&[
        end,
        owner,
        new.key,
        new.content_type,
        new.event,
        len,
        new.attributes,
        frame[0],
        frame[1],
    ])
}
