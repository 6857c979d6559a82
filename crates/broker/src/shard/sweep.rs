//! The progress of the sweep over the connections, which also counts them by transport.

use core::ops::Range;

use crate::budget::stats::Transport;

pub(super) type ConnectionCounts = [u32; Transport::ALL.len()];

/// A sweep over the table of connections. It begins at most once a second, and takes many ticks for a large table.
pub(super) struct Sweep {
    /// The next row; 0 between sweeps.
    next_row: u32,
    /// The second in which the last sweep began.
    start_s: u32,
    /// The connections counted by the present sweep, and by the last complete one.
    counts: [ConnectionCounts; 2],
    /// Whether the last tick could not finish its rows, or ended as many connections as one tick may end. If so, the next tick follows soon.
    pub is_crowded: bool,
}

impl Sweep {
    /// The sweep of a shard that starts in this second. The first sweep begins in the next second.
    pub fn new(now_s: u32) -> Sweep {
        Sweep {
            next_row: 0,
            start_s: now_s,
            counts: Default::default(),
            is_crowded: false,
        }
    }

    /// Whether a sweep is in progress.
    pub fn is_under_way(&self) -> bool {
        self.next_row > 0
    }

    /// Begins a sweep; false if one began in this second.
    pub fn begin(&mut self, now_s: u32) -> bool {
        core::mem::replace(&mut self.start_s, now_s) != now_s
    }

    /// The next rows, at most `rows_max`, of a table that ends at `end`.
    pub fn rows(&self, rows_max: u32, end: u32) -> Range<u32> {
        self.next_row..end.min(self.next_row + rows_max)
    }

    pub fn count(&mut self, transport: Transport) {
        self.counts[0][transport as usize] += 1;
    }

    /// Continues with row `next_row`, of a table that ends at `end`.
    pub fn advance(&mut self, next_row: u32, end: u32) {
        if next_row == end {
            self.counts = [ConnectionCounts::default(), self.counts[0]];
        }
        self.next_row = if next_row == end { 0 } else { next_row };
    }

    /// Connections by transport, as of the last complete sweep.
    pub fn last_counts(&self) -> ConnectionCounts {
        self.counts[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_last_complete_sweep_and_a_sweep_begins_once_a_second() {
        let mut sweep = Sweep::new(7);
        assert!(!sweep.begin(7) && sweep.begin(8) && !sweep.begin(8));
        assert_eq!(sweep.rows(2, 3), 0..2);
        sweep.count(Transport::Http);
        sweep.advance(2, 3);
        assert!(sweep.is_under_way() && sweep.last_counts() == ConnectionCounts::default());
        assert_eq!(sweep.rows(2, 3), 2..3);
        sweep.count(Transport::Http);
        sweep.advance(3, 3);
        assert!(!sweep.is_under_way());
        assert_eq!(sweep.last_counts()[Transport::Http as usize], 2);
    }
}
