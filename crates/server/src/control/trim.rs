//! Returns freed memory to the kernel. Otherwise the allocator would keep the memory that ended connections, flushed outboxes, partial
//! requests and purged logs have freed.
//!
//! A trim is due after a burst of ended connections, or if the process has much more resident memory than all shards account for. Both conditions are
//! checked once a second, which is cheap.
//!
//! The control thread trims, not a shard, because the allocator locks an arena while it trims the arena. A shard waits only if it allocates
//! from that arena meanwhile.
//!
//! Deliberately not here: shrinking the tables of connections and topics. They never shrink.

use std::sync::Arc;
use std::time::Duration;

use crore_net::memory;
use crore_shard_loop::counters::Counters;
use tokio::time::{Instant, MissedTickBehavior};

use super::{process, stats};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Each check reduces the count of ended connections by 1/16, so that a steady rate of arrivals and departures is never a burst.
const DECAY_DIVISOR: u64 = 16;
/// The minimum number of ended connections for a trim: fewer connections do not free enough memory.
const ENDED_MIN: u64 = 256;
/// Ended connections are a burst only if at most this many times as many connections are still open: with ten million connections, a few
/// thousand departures do not matter.
const REMAINING_PER_ENDED_MAX: u64 = 8;
/// A burst is over when fewer than 1/64 of its connections have ended in the last second.
const BURST_OVER_DIVISOR: u64 = 64;

/// *Unaccounted* memory is resident memory for which no shard accounts. It is trimmed only if it has at least this many bytes plus 1/32 of all resident
/// memory: the overhead of the allocator, which is unaccounted, grows with the memory in use.
const UNACCOUNTED_BYTES_MIN: u64 = 16 << 20;
const OVERHEAD_DIVISOR: u64 = 32;
/// Memory is not trimmed if a second has changed it by 1/16 of the unaccounted memory or more: the freed memory would soon be needed again.
const CHANGE_DIVISOR: u64 = 16;
/// The number of successive checks without such a change before a trim.
const STABLE_CHECKS_MIN: u32 = 2;

/// Checks once a second whether a trim is due, and trims. Never returns.
pub async fn run(counters: Arc<Counters>) {
    let mut every = tokio::time::interval(CHECK_INTERVAL);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut burst, mut unaccounted) = (Burst::default(), UnaccountedMemory::default());
    loop {
        every.tick().await;
        memory::release_unused();
        let shards = counters.read_all();
        let connections = shards.iter().map(|s| u64::from(s.accounts.connections));
        let ended = shards.iter().flat_map(|s| s.stats.closed).sum();
        let burst_over = burst.is_over(connections.sum(), ended);
        let held = stats::tables(&shards).iter().map(|table| table.bytes).sum();
        let resident = process::resident_bytes().unwrap_or_default();
        if unaccounted.is_trim_due(resident, held) | burst_over {
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
    /// A decaying count of the connections that ended in the last seconds.
    recently_ended: u64,
    /// Connections that ended since the start, at the last check.
    ended_total: u64,
}

impl Burst {
    /// Whether a burst has just ended. `connections` are open now, and `ended_total` have ended since the start.
    fn is_over(&mut self, connections: u64, ended_total: u64) -> bool {
        let last_second = ended_total - self.ended_total;
        self.ended_total = ended_total;
        self.recently_ended =
            self.recently_ended - self.recently_ended.div_ceil(DECAY_DIVISOR) + last_second;
        let due = self.recently_ended >= ENDED_MIN
            && self.recently_ended.saturating_mul(REMAINING_PER_ENDED_MAX) >= connections
            && last_second.saturating_mul(BURST_OVER_DIVISOR) < self.recently_ended;
        if due {
            self.recently_ended = 0;
        }
        due
    }
}

/// Detects resident memory that no shard accounts for.
#[derive(Default)]
struct UnaccountedMemory {
    /// The minimum of the unaccounted memory since the start: the program itself.
    minimum: Option<u64>,
    /// The minimum of the unaccounted memory since the last trim: the program, and free memory that the allocator cannot return because it
    /// lies between pieces in use.
    floor: Option<u64>,
    /// Bytes for which the shards accounted when the floor was set. When half of these bytes are freed, the allocator may be able to return
    /// the free memory between them too.
    floor_held: u64,
    /// Resident bytes, and bytes for which the shards accounted, at the last check.
    last: (u64, u64),
    /// Successive checks in which little changed.
    stable_checks: u32,
}

impl UnaccountedMemory {
    /// Whether to trim. `resident` is the resident memory in bytes, of which the shards account for `held`.
    fn is_trim_due(&mut self, resident: u64, held: u64) -> bool {
        let unaccounted = resident.saturating_sub(held);
        let minimum = self
            .minimum
            .map_or(unaccounted, |minimum| minimum.min(unaccounted));
        self.minimum = Some(minimum);
        let floor = match self.floor {
            Some(_) if held < self.floor_held / 2 => minimum,
            Some(floor) if floor <= unaccounted => floor,
            _ => {
                self.floor_held = held;
                unaccounted
            }
        };
        self.floor = Some(floor);
        let more = unaccounted - floor;
        let (was_resident, was_held) = std::mem::replace(&mut self.last, (resident, held));
        let change = resident.abs_diff(was_resident).max(held.abs_diff(was_held));
        let much = more >= UNACCOUNTED_BYTES_MIN + resident / OVERHEAD_DIVISOR;
        self.stable_checks = match much && change < more / CHANGE_DIVISOR {
            true => self.stable_checks + 1,
            false => 0,
        };
        let due = self.stable_checks >= STABLE_CHECKS_MIN;
        if due {
            (self.floor, self.stable_checks) = (None, 0);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Checks once a second, with megabytes resident and held.
    fn trims_at(seconds: &[(u64, u64)]) -> Vec<bool> {
        let mut unaccounted = UnaccountedMemory::default();
        let check =
            |(resident, held): &(u64, u64)| unaccounted.is_trim_due(resident * MIB, held * MIB);
        seconds.iter().map(check).collect()
    }

    #[test]
    fn free_memory_is_returned_once_when_nothing_moves() {
        let burst = [(10, 1), (200, 180), (310, 300), (310, 150), (311, 2)];
        let stable_checks = [(311, 1), (311, 1), (311, 1)];
        let trims = trims_at(&[&burst[..], &stable_checks].concat());
        assert_eq!(
            trims,
            [false, false, false, false, false, false, true, false]
        );
        // Memory that the allocator cannot return does not cause one trim after the other.
        let kept = trims_at(&[&burst[..], &stable_checks, &[(311, 1); 100]].concat());
        assert_eq!(kept.iter().filter(|trim| **trim).count(), 1);
    }

    #[test]
    fn memory_between_pieces_in_use_is_returned_when_these_have_gone() {
        let burst = [(10, 1), (75, 42), (75, 42), (75, 42), (75, 42)];
        let trims = trims_at(&[&burst[..], &[(75, 41); 100]].concat());
        assert_eq!(trims.iter().filter(|trim| **trim).count(), 1);
        let trims = trims_at(&[&burst[..], &[(47, 6); 100]].concat());
        assert_eq!(trims.iter().filter(|trim| **trim).count(), 2);
    }

    #[test]
    fn memory_in_use_or_in_motion_or_small_is_not_returned() {
        let grows: Vec<(u64, u64)> = (0..500)
            .map(|n| (10 + 20 * n + n / 2, 1 + 20 * n))
            .collect();
        assert!(!trims_at(&grows).contains(&true), "all of it is held");
        let waves: Vec<(u64, u64)> = (0..500).map(|n| (400, n % 7 * 40)).collect();
        assert!(!trims_at(&waves).contains(&true), "it will be needed again");
        let little = [&[(10, 1), (20, 10)][..], &[(20, 1); 50]].concat();
        assert!(!trims_at(&little).contains(&true));
    }

    /// Checks once a second, with connections open and ended.
    fn looks(seconds: &[(u64, u64)]) -> Vec<bool> {
        let mut burst = Burst::default();
        let check = |(connections, ended): &(u64, u64)| burst.is_over(*connections, *ended);
        seconds.iter().map(check).collect()
    }

    #[test]
    fn end_of_a_burst_is_reported_once() {
        let seconds = [(0, 0), (900, 100), (0, 1000), (0, 1000), (0, 1000)];
        assert_eq!(looks(&seconds), [false, false, false, true, false]);
    }

    #[test]
    fn usual_changes_are_no_burst() {
        assert_eq!(looks(&[(0, ENDED_MIN - 1), (0, ENDED_MIN - 1)]), [false; 2]);
        let steady: Vec<(u64, u64)> = (1..1000).map(|n| (1000, 100 * n + n % 7 * 10)).collect();
        assert_eq!(looks(&steady), [false; 999]);
        let few = 10_000_000 / REMAINING_PER_ENDED_MAX;
        assert_eq!(looks(&[(10_000_000, few), (10_000_000, few)]), [false; 2]);
        assert_eq!(
            looks(&[(10_000_000, 2 * few), (10_000_000, 2 * few)]),
            [false, true]
        );
    }
}
