//! Gives the kernel back what a rush of clients leaves behind when it is over. What a connection needs only while it
//! opens, or for a session that is kept (a kilobyte and more), is freed with it; the allocator would hold it for good.
//!
//! It is done by this thread and not by the shards, since each arena of the allocator is locked for as long as it is
//! looked through: a shard waits for that only if it allocates meanwhile.
//!
//! Deliberately not here: the tables of connections and topics, which keep the size that they once had.

use std::sync::Arc;
use std::time::Duration;

use crore_net::memory;
use tokio::time::{Instant, MissedTickBehavior};

use crate::board::Board;

/// How often one looks whether a rush is over.
const EVERY: Duration = Duration::from_secs(1);
/// What is forgotten of it with each look: who comes and goes at the same rate all day never becomes a rush.
const FADES: u64 = 16;
/// Fewer ends leave nothing worth looking for.
const ENDED_LEAST: u64 = 256;
/// So many times as many connections may remain as have ended: where ten million are connected, some thousands are no
/// rush.
const REMAIN_MOST: u64 = 8;
/// It goes on while this part of its ends is of the last second.
const CALM_PART: u64 = 64;

/// Gives memory back after each rush, for ever.
pub async fn watch(board: Arc<Board>) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rush = Rush::default();
    loop {
        every.tick().await;
        let shards = board.read_all();
        let connections = shards.iter().map(|s| u64::from(s.accounts.connections));
        let ended = shards.iter().flat_map(|s| s.stats.closed).sum();
        if rush.is_over(connections.sum(), ended) {
            let begun = Instant::now();
            memory::give_back();
            let took_us = begun.elapsed().as_micros();
            tracing::debug!(took_us, "freed memory was given back after a rush");
        }
    }
}

/// Connections that end.
#[derive(Default)]
struct Rush {
    /// Those of the last seconds.
    ended: u64,
    /// All since the start.
    seen: u64,
}

impl Rush {
    /// With so many connections now and so many ends since the start, whether to give memory back.
    fn is_over(&mut self, connections: u64, seen: u64) -> bool {
        let second = seen - self.seen;
        self.seen = seen;
        self.ended = self.ended - self.ended.div_ceil(FADES) + second;
        let over = self.ended >= ENDED_LEAST
            && self.ended.saturating_mul(REMAIN_MOST) >= connections
            && second.saturating_mul(CALM_PART) < self.ended;
        if over {
            self.ended = 0;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks once a second at these connections and ends.
    fn looks(seconds: &[(u64, u64)]) -> Vec<bool> {
        let mut rush = Rush::default();
        let look = |(connections, ended): &(u64, u64)| rush.is_over(*connections, *ended);
        seconds.iter().map(look).collect()
    }

    #[test]
    fn a_rush_is_over_once_when_nobody_leaves_any_more() {
        let seconds = [(0, 0), (900, 100), (0, 1000), (0, 1000), (0, 1000)];
        assert_eq!(looks(&seconds), [false, false, false, true, false]);
    }

    #[test]
    fn the_usual_coming_and_going_is_no_rush() {
        assert_eq!(
            looks(&[(0, ENDED_LEAST - 1), (0, ENDED_LEAST - 1)]),
            [false; 2]
        );
        let steady: Vec<(u64, u64)> = (1..1000).map(|n| (1000, 100 * n + n % 7 * 10)).collect();
        assert_eq!(looks(&steady), [false; 999]);
        let few = 10_000_000 / REMAIN_MOST;
        assert_eq!(looks(&[(10_000_000, few), (10_000_000, few)]), [false; 2]);
        assert_eq!(
            looks(&[(10_000_000, 2 * few), (10_000_000, 2 * few)]),
            [false, true]
        );
    }
}
