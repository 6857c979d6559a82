//! The filters for which other shards of the process have subscribers, as a home (the part of a shard that keeps topics) knows them.
//!
//! Invariant: a filter is registered for a shard from the shard's first attach (a request to subscribe) until the shard leaves the filter.
//!
//! A *party* is an address or a user, and gets a fair share of the work.

use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::reason::Reason;
use crate::base::work::Steps;
use crate::filters::Filters;
use crate::filters::matching::Matching;
use crate::store::slab::{NONE, SideTable};

/// If a filter's value has this bit, it is the number of a set of shards, otherwise the number of a shard.
const IS_SET: u32 = 1 << 31;
/// Separates the filters of an attach. It is a control character, which no filter contains.
pub const SEPARATOR: u8 = b'\n';

/// The filters of all other shards of the process.
pub(super) struct ShardFilters {
    filters: Filters,
    sets: SideTable<Vec<ShardId>>,
    /// The shards that get the message being published.
    matching_shards: Vec<ShardId>,
}

impl ShardFilters {
    pub fn new(seed: u64, steps: &Steps) -> Self {
        ShardFilters {
            filters: Filters::new(seed, steps),
            sets: SideTable::default(),
            matching_shards: Vec::new(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    pub fn len(&self) -> u32 {
        self.filters.len()
    }

    pub fn bytes(&self) -> usize {
        self.filters.bytes() + self.sets.len() as usize * size_of::<Vec<ShardId>>()
    }

    /// See [`Filters::prefetch`].
    pub fn prefetch<'a>(&self, topics: impl Iterator<Item = &'a [u8]>) {
        self.filters.prefetch(topics);
    }

    /// Finds the shards that get a message, and returns their number.
    pub fn find_matching(&mut self, name: &[u8]) -> u32 {
        self.matching_shards.clear();
        if self.filters.is_empty() {
            return 0;
        }
        let (sets, shards) = (&self.sets, &mut self.matching_shards);
        self.filters.matches(name, |id| {
            let value = self.filters.value(id);
            if value & IS_SET == 0 {
                shards.push(value as ShardId);
            } else {
                shards.extend_from_slice(sets.get(value & !IS_SET));
            }
        });
        self.filters.count_visits(shards.len());
        shards.sort_unstable();
        shards.dedup();
        shards.len() as u32
    }

    /// The shards that [`ShardFilters::find_matching_with_local`] has found last; the caller must [put them back](ShardFilters::return_list).
    pub fn take_matching(&mut self) -> Vec<ShardId> {
        core::mem::take(&mut self.matching_shards)
    }

    pub fn return_list(&mut self, shards: Vec<ShardId>) {
        self.matching_shards = shards;
    }

    /// Finds the shards that get a message, including the home's own shard, and returns their number.
    pub fn find_matching_with_local(
        &mut self,
        name: &[u8],
        local_filters: &Matching,
        own_shard: ShardId,
    ) -> u32 {
        let other_shards = self.find_matching(name);
        if !local_filters.has_match(name) {
            return other_shards;
        }
        self.matching_shards.push(own_shard);
        other_shards + 1
    }

    /// Registers a filter for a shard, on behalf of this party.
    pub fn add(&mut self, filter: &[u8], shard: ShardId, party: u64) -> Result<(), Reason> {
        let id = self.filters.open(filter, party)?;
        let value = self.filters.value(id);
        if value == NONE {
            self.filters.set_value(id, u32::from(shard));
        } else if value & IS_SET != 0 {
            let set = self.sets.get_mut(value & !IS_SET);
            if !set.contains(&shard) {
                set.push(shard);
            }
        } else if value != u32::from(shard) {
            let set = self.sets.insert(alloc::vec![value as ShardId, shard]);
            self.filters.set_value(id, IS_SET | set);
        }
        Ok(())
    }

    /// Unregisters a filter of a shard.
    pub fn remove(&mut self, filter: &[u8], shard: ShardId) {
        let Some(id) = self.filters.find(filter) else {
            return;
        };
        let value = self.filters.value(id);
        if value & IS_SET != 0 {
            let set = self.sets.get_mut(value & !IS_SET);
            set.retain(|other| *other != shard);
            if !set.is_empty() {
                return;
            }
            self.sets.remove(value & !IS_SET);
        } else if value != u32::from(shard) {
            return;
        }
        self.filters.close(id);
    }
}

/// Splits the filters of one attach.
pub(super) fn split(names: &[u8]) -> Vec<&[u8]> {
    names.split(|b| *b == SEPARATOR).collect()
}
