//! The progress of a drain: how many clients are asked to reconnect elsewhere in each tick, and which rows the tick examines.
//!
//! A *turn* is a pass of the shard's loop.

use core::ops::Range;

use crate::base::ids::ShardId;

/// Ticks per second while clients are moved off, so that clients leave and reconnect in small groups.
pub(super) const TICKS_PER_S: u32 = 50;
/// The maximum number of rows that one tick examines: some hundred microseconds of work if few connections are left in a large table.
const ROWS_PER_TICK: u32 = 16_384;

pub(crate) struct DrainProgress {
    /// Connections per second, of all shards together.
    rate_per_s: u64,
    /// The fraction of a connection that earlier ticks have left over. The unit is a connection divided by [`TICKS_PER_S`] and by the number of shards. So
    /// if fewer connections than shards are due in a tick, the shards move clients one after another.
    tokens: u64,
    /// The next row.
    cursor: u32,
    /// The second in which all remaining connections are closed.
    until_s: u32,
}

impl DrainProgress {
    /// The drain of shard `own_shard` until this second. The rate is the total of all shards.
    pub fn new(rate_per_s: u32, own_shard: ShardId, until_s: u32) -> DrainProgress {
        DrainProgress {
            rate_per_s: u64::from(rate_per_s),
            // Each shard starts with another fraction, so that not all shards move clients in the same tick.
            tokens: u64::from(own_shard) * u64::from(TICKS_PER_S),
            cursor: 0,
            until_s,
        }
    }

    /// Whether all remaining connections must be closed.
    pub fn is_over(&self, now_s: u32) -> bool {
        now_s >= self.until_s
    }

    /// The number of connections due in this tick.
    pub fn tick(&mut self, shards: ShardId) -> u64 {
        self.tokens += self.rate_per_s;
        let whole = u64::from(TICKS_PER_S) * u64::from(shards);
        let due = self.tokens / whole;
        self.tokens %= whole;
        due
    }

    /// The rows that a tick examines, of a table that ends at `end`.
    pub fn rows(&self, end: u32) -> Range<u32> {
        self.cursor..end.min(self.cursor.saturating_add(ROWS_PER_TICK))
    }

    /// Sets the first row of the next tick. At the end of the table, that is row 0.
    pub fn set_next_row(&mut self, row: u32, end: u32) {
        self.cursor = if row >= end { 0 } else { row };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_move_clients_one_after_another_if_the_rate_is_lower_than_their_number() {
        let all = (0..4).map(|me| DrainProgress::new(TICKS_PER_S, me, 9));
        let mut all: alloc::vec::Vec<_> = all.collect();
        for _ in 0..12 {
            let due: u64 = all.iter_mut().map(|draining| draining.tick(4)).sum();
            assert_eq!(due, 1);
        }
    }

    #[test]
    fn cursor_starts_again_at_the_end_of_the_table() {
        let mut draining = DrainProgress::new(1, 0, 9);
        assert_eq!(draining.rows(ROWS_PER_TICK + 2), 0..ROWS_PER_TICK);
        draining.set_next_row(ROWS_PER_TICK, ROWS_PER_TICK + 2);
        assert_eq!(
            draining.rows(ROWS_PER_TICK + 2),
            ROWS_PER_TICK..ROWS_PER_TICK + 2
        );
        draining.set_next_row(ROWS_PER_TICK + 2, ROWS_PER_TICK + 2);
        assert_eq!(draining.rows(3), 0..3);
        assert!(!draining.is_over(8) && draining.is_over(9));
    }
}
