//! Returns freed memory to the kernel after a burst. The allocator would keep the memory that ended connections, flushed outboxes, partial
//! requests and purged logs have freed.
//!
//! Once a second two figures are checked: connections that have ended, and resident memory beyond what the shards account for. Both are
//! cheap to read.
//!
//! The control thread does it, because each arena of the allocator is locked while it is trimmed. A shard waits for that only if it
//! allocates from the arena meanwhile.
//!
//! Deliberately not here: the tables of connections and topics, which never shrink.

use std::sync::Arc;
use std::time::Duration;

use crore_net::memory;
use crore_shard_loop::counters::Counters;
use tokio::time::{Instant, MissedTickBehavior};

use super::{process, stats};

/// Between two checks.
const EVERY: Duration = Duration::from_secs(1);
/// Each check forgets 1/16 of the ended connections, so that a steady rate of arrivals and departures is never a burst.
const FADES: u64 = 16;
/// Fewer ended connections do not free enough memory to be worth a trim.
const ENDED_LEAST: u64 = 256;
/// It is a burst only if at most this many times as many connections remain as have ended: with ten million connections, a few
/// thousand departures do not matter.
const REMAIN_MOST: u64 = 8;
/// The burst continues while at least 1/64 of its ends are of the last second.
const CALM_PART: u64 = 64;

/// A trim needs at least this much resident memory that no shard accounts for, plus 1/32 of the resident memory: the overhead of the
/// allocator grows with the memory in use.
const SPARE_LEAST: u64 = 16 << 20;
const SPARE_PART: u64 = 32;
/// Nothing is returned while 1/16 of it or more is allocated or freed in a second: it will be needed again.
const MOVES_PART: u64 = 16;
/// Checks without such a change before a trim.
const CALM_LOOKS: u32 = 2;

/// Trims after each burst. Never returns.
pub async fn watch(counters: Arc<Counters>) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut burst, mut spare) = (Burst::default(), Spare::default());
    loop {
        every.tick().await;
        memory::release_unused();
        let shards = counters.read_all();
        let connections = shards.iter().map(|s| u64::from(s.accounts.connections));
        let ended = shards.iter().flat_map(|s| s.stats.closed).sum();
        let gone = burst.is_over(connections.sum(), ended);
        let held = stats::tables(&shards).iter().map(|table| table.bytes).sum();
        let resident = process::resident_bytes().unwrap_or_default();
        if spare.is_much(resident, held) | gone {
            let begun = Instant::now();
            memory::trim();
            let took_us = begun.elapsed().as_micros();
            tracing::debug!(took_us, "freed memory was given back after a rush");
        }
    }
}

/// Detects the end of a burst of departures.
#[derive(Default)]
struct Burst {
    /// Connections that ended in the last seconds, fading.
    ended: u64,
    /// Connections that ended since the start, at the last check.
    seen: u64,
}

impl Burst {
    /// Whether to trim. `connections` are open now, and `seen` have ended since the start.
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

/// Detects resident memory that no shard accounts for.
#[derive(Default)]
struct Spare {
    /// The smallest value ever: the program itself.
    least: Option<u64>,
    /// The smallest value since the last trim: the program, and memory that the allocator cannot return because it lies between pieces
    /// in use.
    floor: Option<u64>,
    /// Bytes held by the shards when the floor was set. When half of them are freed, memory between them may be returnable too.
    floor_held: u64,
    /// Bytes resident and bytes held, at the last check.
    last: (u64, u64),
    /// Successive checks in which little changed.
    calm: u32,
}

impl Spare {
    /// Whether to trim, with these bytes resident and held by the shards.
    fn is_much(&mut self, resident: u64, held: u64) -> bool {
        let spare = resident.saturating_sub(held);
        let least = self.least.map_or(spare, |least| least.min(spare));
        self.least = Some(least);
        let floor = match self.floor {
            Some(_) if held < self.floor_held / 2 => least,
            Some(floor) if floor <= spare => floor,
            _ => {
                self.floor_held = held;
                spare
            }
        };
        self.floor = Some(floor);
        let more = spare - floor;
        let (was_resident, was_held) = std::mem::replace(&mut self.last, (resident, held));
        let moves = resident.abs_diff(was_resident).max(held.abs_diff(was_held));
        let much = more >= SPARE_LEAST + resident / SPARE_PART;
        self.calm = match much && moves < more / MOVES_PART {
            true => self.calm + 1,
            false => 0,
        };
        let over = self.calm >= CALM_LOOKS;
        if over {
            (self.floor, self.calm) = (None, 0);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Checks once a second, with megabytes resident and held.
    fn spares(seconds: &[(u64, u64)]) -> Vec<bool> {
        let mut spare = Spare::default();
        let look = |(resident, held): &(u64, u64)| spare.is_much(resident * MIB, held * MIB);
        seconds.iter().map(look).collect()
    }

    #[test]
    fn free_memory_is_returned_once_when_nothing_moves() {
        let burst = [(10, 1), (200, 180), (310, 300), (310, 150), (311, 2)];
        let calm = [(311, 1), (311, 1), (311, 1)];
        let looks = spares(&[&burst[..], &calm].concat());
        assert_eq!(
            looks,
            [false, false, false, false, false, false, true, false]
        );
        // Memory that cannot be given back is not asked for again and again.
        let kept = spares(&[&burst[..], &calm, &[(311, 1); 100]].concat());
        assert_eq!(kept.iter().filter(|over| **over).count(), 1);
    }

    #[test]
    fn memory_between_pieces_in_use_is_returned_when_these_have_gone() {
        let burst = [(10, 1), (75, 42), (75, 42), (75, 42), (75, 42)];
        let looks = spares(&[&burst[..], &[(75, 41); 100]].concat());
        assert_eq!(looks.iter().filter(|over| **over).count(), 1);
        let gone = spares(&[&burst[..], &[(47, 6); 100]].concat());
        assert_eq!(gone.iter().filter(|over| **over).count(), 2);
    }

    #[test]
    fn memory_in_use_or_in_motion_or_small_is_not_returned() {
        let grows: Vec<(u64, u64)> = (0..500)
            .map(|n| (10 + 20 * n + n / 2, 1 + 20 * n))
            .collect();
        assert!(!spares(&grows).contains(&true), "all of it is held");
        let waves: Vec<(u64, u64)> = (0..500).map(|n| (400, n % 7 * 40)).collect();
        assert!(!spares(&waves).contains(&true), "it will be needed again");
        let little = [&[(10, 1), (20, 10)][..], &[(20, 1); 50]].concat();
        assert!(!spares(&little).contains(&true));
    }

    /// Checks once a second, with connections open and ended.
    fn looks(seconds: &[(u64, u64)]) -> Vec<bool> {
        let mut burst = Burst::default();
        let look = |(connections, ended): &(u64, u64)| burst.is_over(*connections, *ended);
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
