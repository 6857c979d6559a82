//! Which carriers have subscribers of a topic, and how many.
//!
//! Invariant: one carrier stands in the topic's row; only a second one makes a set, which then stays until
//! its last carrier leaves.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use super::{Home, HomeTopic, SET, WANTS_DEFLATE};
use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::store::slab::NONE;

/// One carrier of a topic that has several.
pub(super) struct Carrier {
    pub shard: ShardId,
    pub serial: u16,
    pub topic: u32,
    pub subscribers: u32,
}

impl Home {
    pub(super) fn count_in(&mut self, id: u32, new: Carrier) {
        self.stats.attaches += 1;
        let row = self.rows.get_mut(id);
        if row.has(SET) {
            let set = self.sets.get_mut(row.carrier);
            match set
                .iter_mut()
                .find(|c| c.shard == new.shard && c.topic == new.topic && c.serial == new.serial)
            {
                Some(carrier) => carrier.subscribers += 1,
                None => set.push(new),
            }
            return;
        }
        if row.carrier == NONE {
            (row.carrier, row.shard, row.serial, row.subscribers) =
                (new.topic, new.shard, new.serial, 1);
            if !self.followers.is_empty() {
                self.interest_begins(id);
            }
            return;
        }
        let same = row.carrier == new.topic && row.shard == new.shard && row.serial == new.serial;
        if same && row.subscribers < u16::MAX {
            row.subscribers += 1;
            return;
        }
        let mut old = Carrier {
            shard: row.shard,
            serial: row.serial,
            topic: row.carrier,
            subscribers: u32::from(row.subscribers),
        };
        let mut set = Vec::with_capacity(2);
        if same {
            old.subscribers += 1;
            set.push(old);
        } else {
            set.extend([old, new]);
        }
        row.flags |= SET;
        row.carrier = self.sets.insert(set);
    }

    /// One subscriber less at this carrier.
    pub fn leave(&mut self, from: ShardId, hash: u32, topic: u32, serial: u16, now: Now) {
        let sets = &self.sets;
        let is = |row: &HomeTopic| {
            row.carrier != NONE
                && if row.flags & SET != 0 {
                    let matches =
                        |c: &Carrier| c.shard == from && c.topic == topic && c.serial == serial;
                    sets.get(row.carrier).iter().any(matches)
                } else {
                    row.shard == from && row.carrier == topic && row.serial == serial
                }
        };
        let id = self
            .index
            .find(&self.rows, hash, is)
            .expect("who leaves was counted in");
        let row = self.rows.get_mut(id);
        row.touched_s = now.unix_s;
        self.stats.detaches += 1;
        if row.has(SET) {
            let set = self.sets.get_mut(row.carrier);
            let at = set
                .iter()
                .position(|c| c.shard == from && c.topic == topic && c.serial == serial)
                .expect("the row was found by it");
            set[at].subscribers -= 1;
            if set[at].subscribers == 0 {
                set.swap_remove(at);
            }
            if set.is_empty() {
                self.sets.remove(row.carrier);
                row.carrier = NONE;
                row.flags &= !(SET | WANTS_DEFLATE);
            }
        } else {
            row.subscribers -= 1;
            if row.subscribers == 0 {
                row.carrier = NONE;
                row.flags &= !WANTS_DEFLATE;
            }
        }
        if self.rows.get(id).carrier == NONE && !self.followers.is_empty() {
            self.interest_pauses(id, now);
        }
        self.queue_if_idle(id, now);
    }

    pub(super) fn each_carrier(&self, id: u32, mut f: impl FnMut(&Carrier)) {
        let row = self.rows.get(id);
        if row.has(SET) {
            self.sets.get(row.carrier).iter().for_each(f);
        } else if row.carrier != NONE {
            let subscribers = u32::from(row.subscribers);
            f(&Carrier {
                shard: row.shard,
                serial: row.serial,
                topic: row.carrier,
                subscribers,
            });
        }
    }

    pub(super) fn subscribers(&self, id: u32) -> u32 {
        let mut sum = 0;
        self.each_carrier(id, |carrier| sum += carrier.subscribers);
        sum
    }
}
