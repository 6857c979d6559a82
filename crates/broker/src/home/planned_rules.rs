//! Prepares a change of a home's rules by a reload: finds for each topic the planned rule that will govern it. A home is the part of a shard that keeps
//! topics.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::budget::world::World;

/// Rows matched in one turn (a pass of the shard's loop). This takes some tenths of a millisecond.
const ROWS_PER_TURN: u32 = if cfg!(test) { 3 } else { 1024 };

/// The planned rules, and the rows matched so far.
pub(super) struct PlannedRules {
    world: Arc<World>,
    /// By row: the number of the topic's planned rule. From row `next_row` on, only topics that were created since the preparation began have it.
    rule_by_row: Vec<u8>,
    next_row: u32,
}

impl PlannedRules {
    pub fn new(world: &Arc<World>) -> PlannedRules {
        PlannedRules {
            world: world.clone(),
            rule_by_row: Vec::new(),
            next_row: 0,
        }
    }

    pub fn is_for(&self, world: &Arc<World>) -> bool {
        Arc::ptr_eq(&self.world, world)
    }

    /// Matches some more topics with the planned rules, up to row `end`; `name_of` gives the name of a row in use. Returns whether more are
    /// left.
    pub fn match_rows<'a>(&mut self, end: u32, name_of: impl Fn(u32) -> Option<&'a [u8]>) -> bool {
        self.rule_by_row.resize(end as usize, 0);
        let scan_end = end.min(self.next_row.saturating_add(ROWS_PER_TURN));
        for id in self.next_row..scan_end {
            let number = name_of(id).map_or(0, |name| self.world.rules.number_for(name));
            self.rule_by_row[id as usize] = number;
        }
        self.next_row = scan_end;
        scan_end < end
    }

    /// Matches a topic that was created meanwhile.
    pub fn add_topic(&mut self, id: u32, name: &[u8]) {
        if self.rule_by_row.len() <= id as usize {
            self.rule_by_row.resize(id as usize + 1, 0);
        }
        self.rule_by_row[id as usize] = self.world.rules.number_for(name);
    }

    /// The planned rule of each row, when all rows are matched. Rows that are not in use have an arbitrary number.
    pub fn into_rule_by_row(self) -> Vec<u8> {
        self.rule_by_row
    }
}
