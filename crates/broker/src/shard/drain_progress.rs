//! The progress of moving clients off: how many are due with each tick, and which rows it looks at.

use core::ops::Range;

use crate::base::ids::ShardId;

/// Ticks of a second while clients are moved off, so that they leave, and come back, in small groups.
pub(super) const TICKS_PER_S: u32 = 50;
/// Rows that one tick looks at: some hundred microseconds where few are left of a large table.
const ROWS_PER_TICK: u32 = 16_384;

/// The progress of moving clients off.
pub(crate) struct DrainProgress {
    /// Connections of all shards in a second.
    rate_per_s: u64,
    /// The share that the last ticks have left over, counted so that a connection is [`TICKS_PER_S`] for each shard:
    /// shards that outnumber the rate take turns.
    tokens: u64,
    /// The next row.
    cursor: u32,
    /// The second in which all that is left is closed.
    until_s: u32,
}

impl DrainProgress {
    /// Of a shard with this number, as fast as all shards together shall be, until this second.
    pub fn new(rate_per_s: u32, me: ShardId, until_s: u32) -> DrainProgress {
        DrainProgress {
            rate_per_s: u64::from(rate_per_s),
            // They begin apart, so that they do not all take the same turn.
            tokens: u64::from(me) * u64::from(TICKS_PER_S),
            cursor: 0,
            until_s,
        }
    }

    /// Whether all that is left is to be closed.
    pub fn is_over(&self, now_s: u32) -> bool {
        now_s >= self.until_s
    }

    /// A tick of one of so many shards: how many connections are due with it.
    pub fn tick(&mut self, shards: ShardId) -> u64 {
        self.tokens += self.rate_per_s;
        let whole = u64::from(TICKS_PER_S) * u64::from(shards);
        let due = self.tokens / whole;
        self.tokens %= whole;
        due
    }

    /// The rows that a tick may look at, of a table that ends at `end`.
    pub fn rows(&self, end: u32) -> Range<u32> {
        self.cursor..end.min(self.cursor.saturating_add(ROWS_PER_TICK))
    }

    /// The next tick begins with this row, or again with the first.
    pub fn go_on(&mut self, row: u32, end: u32) {
        self.cursor = if row >= end { 0 } else { row };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_outnumber_the_rate_take_turns() {
        let all = (0..4).map(|me| DrainProgress::new(TICKS_PER_S, me, 9));
        let mut all: alloc::vec::Vec<_> = all.collect();
        for _ in 0..12 {
            let due: u64 = all.iter_mut().map(|draining| draining.tick(4)).sum();
            assert_eq!(due, 1);
        }
    }

    #[test]
    fn it_walks_the_table_again_and_again() {
        let mut draining = DrainProgress::new(1, 0, 9);
        assert_eq!(draining.rows(ROWS_PER_TICK + 2), 0..ROWS_PER_TICK);
        draining.go_on(ROWS_PER_TICK, ROWS_PER_TICK + 2);
        assert_eq!(
            draining.rows(ROWS_PER_TICK + 2),
            ROWS_PER_TICK..ROWS_PER_TICK + 2
        );
        draining.go_on(ROWS_PER_TICK + 2, ROWS_PER_TICK + 2);
        assert_eq!(draining.rows(3), 0..3);
        assert!(!draining.is_over(8) && draining.is_over(9));
    }
}
