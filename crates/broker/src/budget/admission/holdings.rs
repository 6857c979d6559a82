//! The bytes that each client holds of a shared resource, and the client that holds most. When room is needed, the entries of that client are evicted
//! first.
//!
//! A client has one counter in each of two tables, and the lower count is used. Two clients share both counters with a probability of 1 in
//! 65,536. Then they count as one client.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::client::Client;

/// The number of counters in each table. This is enough: even if many small clients share a counter, they hold little together, compared with a client
/// that holds very much.
const COUNTERS: usize = 256;

/// The largest client loses its entries before others only if it holds more than 1/16 of the resource, so at least 16 clients must collude
/// to evict the entries of others.
const EVICTABLE_DIVISOR: u64 = 16;
/// A client is spared only if the largest client holds more than twice as much. Clients that hold about the same are treated alike.
const EVICTABLE_RATIO: u64 = 2;

/// The bytes that each client holds. All clones refer to the same counts. Only one thread at a time changes them.
#[derive(Clone, Debug)]
pub struct Holdings(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    tables: [[AtomicU64; COUNTERS]; 2],
    /// The client that held most when this field last changed. It may hold less by now.
    largest: AtomicU32,
}

impl Default for Holdings {
    fn default() -> Holdings {
        let table = || core::array::from_fn(|_| AtomicU64::new(0));
        Holdings(Arc::new(Counts {
            tables: [table(), table()],
            largest: AtomicU32::new(0),
        }))
    }
}

impl Holdings {
    fn counters_of(&self, client: Client) -> [&AtomicU64; 2] {
        let [first, second] = client.counter_indexes(COUNTERS);
        [&self.0.tables[0][first], &self.0.tables[1][second]]
    }

    /// The bytes that a client holds.
    #[inline]
    pub fn held_bytes(&self, client: Client) -> u64 {
        let [one, other] = self.counters_of(client).map(|count| count.load(Relaxed));
        one.min(other)
    }

    /// Adds bytes of a client.
    #[inline]
    pub fn add(&self, client: Client, bytes: usize) {
        for count in self.counters_of(client) {
            count.store(count.load(Relaxed) + bytes as u64, Relaxed);
        }
        if self.held_bytes(client) > self.largest_bytes() {
            self.0.largest.store(client.number(), Relaxed);
        }
    }

    /// Subtracts bytes of a client that were added before.
    #[inline]
    pub fn subtract(&self, client: Client, bytes: usize) {
        for count in self.counters_of(client) {
            let before = count.load(Relaxed);
            debug_assert!(before >= bytes as u64, "more has gone than came");
            count.store(before.saturating_sub(bytes as u64), Relaxed);
        }
    }

    #[inline]
    fn largest_bytes(&self) -> u64 {
        let largest = Client::from_number(self.0.largest.load(Relaxed));
        self.held_bytes(largest)
    }

    /// Whether this client's entries are spared, because another client holds far more. `all_bytes` is the size of the resource.
    #[inline]
    pub fn is_spared(&self, client: Client, all_bytes: usize) -> bool {
        let largest = self.largest_bytes();
        largest > all_bytes as u64 / EVICTABLE_DIVISOR
            && self.held_bytes(client) * EVICTABLE_RATIO < largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(n: u8) -> Client {
        Client::from_address([192, 0, 2, n].into(), 7)
    }

    #[test]
    fn small_holders_are_spared_while_one_holds_far_more() {
        let holdings = Holdings::default();
        let [small, large, other] = [1, 2, 3].map(client);
        holdings.add(small, 100);
        assert!(
            !holdings.is_spared(small, 1_000),
            "it is the largest itself"
        );
        holdings.add(large, 190);
        assert!(!holdings.is_spared(small, 1_000), "they hold about as much");
        holdings.add(large, 20);
        assert!(holdings.is_spared(small, 1_000) && !holdings.is_spared(large, 1_000));
        assert!(holdings.is_spared(Client::NOBODY, 1_000));
        assert!(!holdings.is_spared(small, 10_000), "all of it is little");
        holdings.subtract(large, 200);
        holdings.add(other, 1);
        assert!(
            !holdings.is_spared(other, 1_000),
            "nobody holds much any more"
        );
        // A client counts as the same client when it comes through a trusted proxy.
        assert_eq!(holdings.held_bytes(small.as_relayed()), 100);
    }

    #[test]
    fn large_holder_is_distinguished_from_many_small_holders() {
        let holdings = Holdings::default();
        let large = Client::from_address([10, 0, 0, 1].into(), 7);
        holdings.add(large, 1_000_000);
        let all = (0..10_000_u32)
            .map(|n| Client::from_address((0xc633_6400 + n).to_be_bytes().into(), 7));
        all.clone().for_each(|small| holdings.add(small, 100));
        let spared = all.filter(|small| holdings.is_spared(*small, 2_000_000));
        assert!(spared.count() > 9_990);
        assert!(!holdings.is_spared(large, 2_000_000));
    }
}
