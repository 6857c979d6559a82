//! The carriers of a topic (the shards whose connections subscribe to the topic), and the number of subscribers at each carrier.
//!
//! Invariant: a single carrier is stored in the topic's row. If there is a second carrier, or more subscribers than the row's `u16` can
//! count, the topic gets a set of carriers, which it keeps until the last carrier leaves.

use alloc::vec::Vec;

use super::topic_row::{HAS_CARRIER_SET, TopicRow, WANTS_DEFLATE};
use crate::base::ids::ShardId;
use crate::store::slab::{NONE, SideTable};

/// A carrier of a topic.
pub(super) struct Carrier {
    pub shard: ShardId,
    /// The number of times that `carrier_row` was used: another topic that had the row before has another serial.
    pub serial: u16,
    /// The row that the carrier has for the topic.
    pub carrier_row: u32,
    /// The number of subscribers at this carrier.
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
    /// The number of subscribers that have come since the start.
    pub attaches: u64,
    /// The number of subscribers that have left since the start.
    pub detaches: u64,
}

impl Carriers {
    pub fn set_count(&self) -> u32 {
        self.sets.len()
    }

    pub fn bytes(&self) -> usize {
        self.sets.bytes()
    }

    /// Adds a subscriber at a carrier; returns whether it is the topic's first subscriber.
    pub fn add_subscriber(&mut self, row: &mut TopicRow, added: Carrier) -> bool {
        if row.has(HAS_CARRIER_SET) {
            let set = self.sets.get_mut(row.carrier);
            match set
                .iter_mut()
                .find(|c| c.matches(added.shard, added.carrier_row, added.serial))
            {
                Some(carrier) => carrier.subscribers += 1,
                None => set.push(added),
            }
            return false;
        }
        if row.carrier == NONE {
            (row.carrier, row.shard, row.serial, row.subscribers) =
                (added.carrier_row, added.shard, added.serial, 1);
            return true;
        }
        let is_same = row.carrier == added.carrier_row
            && row.shard == added.shard
            && row.serial == added.serial;
        if is_same && row.subscribers < u16::MAX {
            row.subscribers += 1;
            return false;
        }
        let mut row_carrier = Carrier {
            shard: row.shard,
            serial: row.serial,
            carrier_row: row.carrier,
            subscribers: u32::from(row.subscribers),
        };
        let mut set = Vec::with_capacity(2);
        if is_same {
            row_carrier.subscribers += 1;
            set.push(row_carrier);
        } else {
            set.extend([row_carrier, added]);
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

    /// Removes a subscriber at this carrier.
    ///
    /// # Panics
    /// If the carrier has no subscriber ([`Carriers::has`]).
    pub fn remove_subscriber(
        &mut self,
        row: &mut TopicRow,
        shard: ShardId,
        carrier_row: u32,
        serial: u16,
    ) {
        if row.has(HAS_CARRIER_SET) {
            let set = self.sets.get_mut(row.carrier);
            let index = set
                .iter()
                .position(|c| c.matches(shard, carrier_row, serial))
                .expect("the row was found by it");
            set[index].subscribers -= 1;
            if set[index].subscribers == 0 {
                set.swap_remove(index);
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

    pub fn for_each(&self, row: &TopicRow, mut visit: impl FnMut(&Carrier)) {
        if row.has(HAS_CARRIER_SET) {
            self.sets.get(row.carrier).iter().for_each(visit);
        } else if row.carrier != NONE {
            let subscribers = u32::from(row.subscribers);
            visit(&Carrier {
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
        self.for_each(row, |carrier| sum += carrier.subscribers);
        sum
    }
}
