//! Rate limits by token buckets, for all clients together or by client address.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::client::Client;

/// The token buckets in each of the two tables of a rate limit. A bucket is full again after a second or two, so fewer buckets are
/// needed than counters of connections.
const BUCKETS: usize = 1 << 14;

/// A rate limit by client address. An address has a token bucket in each of two tables. Another address may share one of these buckets, but hardly both.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    cells: [Box<[AtomicU64]>; 2],
}

impl Buckets {
    /// Full buckets. `None` if there is no limit.
    pub fn new(per_s: u32, burst: u32) -> Option<Buckets> {
        let cells = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        let rate = Rate::new(per_s, burst)?;
        let cells = [cells(), cells()];
        Some(Buckets { rate, cells })
    }

    /// Takes a token of the client. False if the client has none left. Always true if there is no limit, or if the client's address is unknown.
    pub fn take_token(buckets: &Option<Buckets>, client: Client, unix_s: u32) -> bool {
        let Some(Buckets { rate, cells }) = buckets.as_ref().filter(|_| client.is_known()) else {
            return true;
        };
        let [first, second] = client.counter_indexes(BUCKETS);
        // Other addresses may have emptied one of the buckets, so a token from either is enough. The client pays from both.
        let taken = [
            rate.take_token(&cells[0][first], unix_s),
            rate.take_token(&cells[1][second], unix_s),
        ];
        taken != [false, false]
    }
}

/// The parameters of a token bucket. The bucket has room for `burst` tokens. The broker's clock counts whole seconds, so the bucket gains `per_s`
/// tokens at the beginning of each second. A cell is the state of a bucket: the upper half is the second of the last change, the lower half the
/// number of missing tokens. A cell of zero is a full bucket.
#[derive(Debug)]
pub(super) struct Rate {
    per_s: u32,
    burst: u32,
}

impl Rate {
    /// The parameters of a rate limit. `None` if `per_s` is 0, which means no limit. A burst of 0 means the tokens of one second.
    pub fn new(per_s: u32, burst: u32) -> Option<Rate> {
        let burst = if burst == 0 { per_s } else { burst };
        (per_s > 0).then_some(Rate { per_s, burst })
    }

    /// The parameters as one number, for an atomic.
    pub fn pack(rate: Option<Rate>) -> u64 {
        rate.map_or(0, |rate| {
            u64::from(rate.per_s) << 32 | u64::from(rate.burst)
        })
    }

    /// The inverse of [`Rate::pack`].
    pub fn unpack(number: u64) -> Option<Rate> {
        let (per_s, burst) = ((number >> 32) as u32, number as u32);
        (per_s > 0).then_some(Rate { per_s, burst })
    }

    /// Takes a token from the bucket. False if the bucket is empty.
    pub fn take_token(&self, cell: &AtomicU64, unix_s: u32) -> bool {
        let taken = cell.fetch_update(Relaxed, Relaxed, |cell| {
            let (then_s, spent) = ((cell >> 32) as u32, cell as u32);
            // The clock of the shard that wrote the cell may be a second ahead.
            let passed_s = unix_s.saturating_sub(then_s);
            let spent = spent.saturating_sub(self.per_s.saturating_mul(passed_s));
            let now_s = u64::from(unix_s.max(then_s));
            (spent < self.burst).then(|| now_s << 32 | u64::from(spent + 1))
        });
        taken.is_ok()
    }
}
