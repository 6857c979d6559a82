//! The carriers of a topic (the shards whose connections subscribe to the topic), and the number of subscribers at each carrier.
//!
//! Invariant: a single carrier is stored in the topic's row. If there is a second carrier, or more subscribers than the row's `u16` can
//! count, the topic gets a set of carriers, which it keeps until the last carrier leaves.

use alloc::vec::Vec;

use super::topic_row::{HAS_CARRIER_SET, TopicRow, WANTS_DEFLATE};
use crate::base::ids::ShardId;
use crate::store::slab::{NONE, SideTable};

/// A carrier of a topic, and its number of subscribers. `carrier_row` is the carrier's row for the topic, and `serial` counts the uses of that row.
pub(super) struct Carrier {
    pub shard: ShardId,
    pub serial: u16,
    pub carrier_row: u32,
    pub subscribers: u32,
}

impl Carrier {
    fn matches(&self, shard: ShardId, carrier_row: u32, serial: u16) -> bool {
        self.shard == shard && self.carrier_row == carrier_row && self.serial == serial
    }
}

/// The sets of carriers of all topics that need one.
#[derive(Default)]
pub(super) struct Carriers {
    sets: SideTable<Vec<Carrier>>,
    /// The numbers of subscribers that have come and that have left since the start.
    pub attaches: u64,
    pub detaches: u64,
}

impl Carriers {
    pub fn sets(&self) -> u32 {
        self.sets.len()
    }

    pub fn bytes(&self) -> usize {
        self.sets.bytes()
    }

    /// Adds a subscriber at a carrier; returns whether it is the topic's first subscriber.
    pub fn count_in(&mut self, row: &mut TopicRow, new: Carrier) -> bool {
        if row.has(HAS_CARRIER_SET) {
            let set = self.sets.get_mut(row.carrier);
            match set
                .iter_mut()
                .find(|c| c.matches(new.shard, new.carrier_row, new.serial))
            {
                Some(carrier) => carrier.subscribers += 1,
                None => set.push(new),
            }
            return false;
        }
        if row.carrier == NONE {
            (row.carrier, row.shard, row.serial, row.subscribers) =
                (new.carrier_row, new.shard, new.serial, 1);
            return true;
        }
        let same =
            row.carrier == new.carrier_row && row.shard == new.shard && row.serial == new.serial;
        if same && row.subscribers < u16::MAX {
            row.subscribers += 1;
            return false;
        }
        let mut old = Carrier {
            shard: row.shard,
            serial: row.serial,
            carrier_row: row.carrier,
            subscribers: u32::from(row.subscribers),
        };
        let mut set = Vec::with_capacity(2);
        if same {
            old.subscribers += 1;
            set.push(old);
        } else {
            set.extend([old, new]);
        }
        row.flags |= HAS_CARRIER_SET;
        row.carrier = self.sets.insert(set);
        false
    }

    /// Whether this carrier has subscribers of the topic.
    pub fn has(&self, row: &TopicRow, shard: ShardId, carrier_row: u32, serial: u16) -> bool {
        row.carrier != NONE
            && if row.has(HAS_CARRIER_SET) {
                let mut set = self.sets.get(row.carrier).iter();
                set.any(|carrier| carrier.matches(shard, carrier_row, serial))
            } else {
                row.shard == shard && row.carrier == carrier_row && row.serial == serial
            }
    }

    /// Removes a subscriber at this carrier, which [has](Self::has) one.
    pub fn leave(&mut self, row: &mut TopicRow, shard: ShardId, carrier_row: u32, serial: u16) {
        if row.has(HAS_CARRIER_SET) {
            let set = self.sets.get_mut(row.carrier);
            let at = set
                .iter()
                .position(|c| c.matches(shard, carrier_row, serial))
                .expect("the row was found by it");
            set[at].subscribers -= 1;
            if set[at].subscribers == 0 {
                set.swap_remove(at);
            }
            if set.is_empty() {
                self.sets.remove(row.carrier);
                row.carrier = NONE;
                row.flags &= !(HAS_CARRIER_SET | WANTS_DEFLATE);
            }
        } else {
            row.subscribers -= 1;
            if row.subscribers == 0 {
                row.carrier = NONE;
                row.flags &= !WANTS_DEFLATE;
            }
        }
    }

    pub fn each(&self, row: &TopicRow, mut f: impl FnMut(&Carrier)) {
        if row.has(HAS_CARRIER_SET) {
            self.sets.get(row.carrier).iter().for_each(f);
        } else if row.carrier != NONE {
            let subscribers = u32::from(row.subscribers);
            f(&Carrier {
                shard: row.shard,
                serial: row.serial,
                carrier_row: row.carrier,
                subscribers,
            });
        }
    }

    /// The number of subscribers at all carriers.
    pub fn subscribers(&self, row: &TopicRow) -> u32 {
        let mut sum = 0;
        self.each(row, |carrier| sum += carrier.subscribers);
        sum
    }
}
