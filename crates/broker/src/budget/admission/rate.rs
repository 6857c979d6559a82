//! Rate limits by token buckets, for all clients together or by client address.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::client::Client;

/// Buckets of a rate by address. Fewer than for connections are enough, since a bucket refills within a second or two.
const BUCKETS: usize = 1 << 14;

/// A rate by client address.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    cells: [Box<[AtomicU64]>; 2],
}

impl Buckets {
    /// None if there is no limit.
    pub fn new(per_s: u32, burst: u32) -> Option<Buckets> {
        let cells = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        let rate = Rate::of(per_s, burst)?;
        let cells = [cells(), cells()];
        Some(Buckets { rate, cells })
    }

    /// Takes a token of the client. True if it has one left, or is not counted.
    pub fn take(buckets: &Option<Buckets>, client: Client, unix_s: u32) -> bool {
        let Some(Buckets { rate, cells }) = buckets.as_ref().filter(|_| client.is_known()) else {
            return true;
        };
        let [first, second] = client.places(BUCKETS);
        // Both buckets are charged; one with a token is enough.
        let taken = [
            rate.take(&cells[0][first], unix_s),
            rate.take(&cells[1][second], unix_s),
        ];
        taken != [false, false]
    }
}

/// A token bucket with room for `burst` tokens. It gains `per_s` tokens at the beginning of each second, since the broker's clock counts seconds. A cell
/// has the second in its upper half and the spent tokens in its lower half, so a cell of zero is full.
#[derive(Debug)]
pub(super) struct Rate {
    per_s: u32,
    burst: u32,
}

impl Rate {
    /// None for 0 per second, which means no limit. A burst of 0 means the tokens of one second.
    pub fn of(per_s: u32, burst: u32) -> Option<Rate> {
        let burst = if burst == 0 { per_s } else { burst };
        (per_s > 0).then_some(Rate { per_s, burst })
    }

    /// As one number, for an atomic.
    pub fn pack(rate: Option<Rate>) -> u64 {
        rate.map_or(0, |rate| {
            u64::from(rate.per_s) << 32 | u64::from(rate.burst)
        })
    }

    /// Back from [`Rate::pack`].
    pub fn unpack(number: u64) -> Option<Rate> {
        let (per_s, burst) = ((number >> 32) as u32, number as u32);
        (per_s > 0).then_some(Rate { per_s, burst })
    }

    /// Takes a token, if there is one.
    pub fn take(&self, cell: &AtomicU64, unix_s: u32) -> bool {
        let taken = cell.fetch_update(Relaxed, Relaxed, |cell| {
            let (then_s, spent) = ((cell >> 32) as u32, cell as u32);
            // Another shard may be in the next second already.
            let passed_s = unix_s.saturating_sub(then_s);
            let spent = spent.saturating_sub(self.per_s.saturating_mul(passed_s));
            let now_s = u64::from(unix_s.max(then_s));
            (spent < self.burst).then(|| now_s << 32 | u64::from(spent + 1))
        });
        taken.is_ok()
    }
}
