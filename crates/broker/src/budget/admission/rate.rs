//! Rates: so many a second, and so many at once after a quiet time, for all clients together or by client address.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::client::Client;

/// Counters of a rate by address: a burst wears off within a second or two, so that fewer collide than for connections.
const BUCKETS: usize = 1 << 14;

/// A rate by client address.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    cells: [Box<[AtomicU64]>; 2],
}

impl Buckets {
    /// None without a limit.
    pub fn new(per_s: u32, burst: u32) -> Option<Buckets> {
        let cells = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        let rate = Rate::of(per_s, burst)?;
        let cells = [cells(), cells()];
        Some(Buckets { rate, cells })
    }

    /// Takes a token of the client's, if it has one left or is not counted.
    pub fn take(buckets: &Option<Buckets>, client: Client, unix_s: u32) -> bool {
        let Some(Buckets { rate, cells }) = buckets.as_ref().filter(|_| client.is_known()) else {
            return true;
        };
        let [first, second] = client.places(BUCKETS);
        // Both are charged; the one with more tokens left decides.
        let taken = [
            rate.take(&cells[0][first], unix_s),
            rate.take(&cells[1][second], unix_s),
        ];
        taken != [false, false]
    }
}

/// A bucket that holds `burst` tokens and gets `per_s` at each turn of the second: the broker's clock knows no finer
/// time. A cell is the second in its upper half and the tokens taken in its lower half, so that zero is full.
#[derive(Debug)]
pub(super) struct Rate {
    per_s: u32,
    burst: u32,
}

impl Rate {
    /// 0 per second is no limit; a burst of 0 is one second's.
    pub fn of(per_s: u32, burst: u32) -> Option<Rate> {
        let burst = if burst == 0 { per_s } else { burst };
        (per_s > 0).then_some(Rate { per_s, burst })
    }

    /// As one number, so that a shared rate changes at once.
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
            // Another shard's turn may have begun in the next second already.
            let passed_s = unix_s.saturating_sub(then_s);
            let spent = spent.saturating_sub(self.per_s.saturating_mul(passed_s));
            let now_s = u64::from(unix_s.max(then_s));
            (spent < self.burst).then(|| now_s << 32 | u64::from(spent + 1))
        });
        taken.is_ok()
    }
}
