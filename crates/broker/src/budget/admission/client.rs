//! A client is a hash of its address. Two clients may share a counter by accident, so each client has one counter in each of two tables, and
//! the lower of the two counts is used.

use alloc::boxed::Box;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The minimum and maximum number of counters in each of the two tables. The maximum is 32 MiB for each table.
const COUNTERS_MIN: usize = 1 << 10;
const COUNTERS_MAX: usize = 1 << 22;
/// When the resource is used up, at most `max_total / max_per_client` clients are at their limit. A table has this many counters for each of
/// them, so it is rare that a client shares both its counters with such clients and is refused too early.
const COUNTERS_PER_FULL_CLIENT: usize = 8;

/// The client of a connection: the keyed hash of the client's address, and whether the client comes through a trusted proxy.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Client(u32);

impl Client {
    /// No client, or one of unknown address. Limits by address do not apply.
    pub const NOBODY: Client = Client(0);
    /// A client behind a trusted proxy, as long as the proxy has not named the client's address.
    pub const RELAYED: Client = Client(1);

    /// The client with this address. IPv6 addresses count by their /64 prefix, which is the smallest network that one customer gets.
    pub fn from_address(address: IpAddr, seed: u64) -> Client {
        let hash = match address.to_canonical() {
            IpAddr::V4(v4) => xxh3_64_with_seed(&v4.octets(), seed),
            IpAddr::V6(v6) => xxh3_64_with_seed(&v6.octets()[..8], seed),
        };
        Client((hash as u32 | 2) & !1)
    }

    /// The same client, but through a trusted proxy.
    pub fn as_relayed(self) -> Client {
        Client(self.0 | 1)
    }

    /// Whether the client comes through a trusted proxy. Then each request of the connection may be from another client.
    pub fn is_relayed(self) -> bool {
        self.0 & 1 == 1
    }

    /// Whether an address is known.
    pub fn is_known(self) -> bool {
        self.0 > 1
    }

    /// The client as a number, for a snapshot.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// The inverse of [`Client::number`].
    pub(crate) fn from_number(number: u32) -> Client {
        Client(number)
    }

    /// The index of the client's counter in each of two tables. `counters` is the number of counters of a table, a power of two.
    pub(super) fn counter_indexes(self, counters: usize) -> [usize; 2] {
        // Bit 0 marks clients of a proxy, and bit 1 is set in every hash.
        let key = u64::from(self.0 >> 2);
        // Fibonacci hashing: the high bits of the product depend on all bits of the key.
        let other = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        [
            key as usize & (counters - 1),
            other as usize & (counters - 1),
        ]
    }
}

/// Counts of connections, sessions or bytes, by client address.
#[derive(Debug)]
pub(super) struct CountsByClient {
    counts: [Box<[AtomicU64]>; 2],
    max: u64,
}

impl CountsByClient {
    /// Counters with a limit for each client. `max_total` is the limit for all clients together. `None` if `max_per_client` is 0.
    pub fn new(max_per_client: usize, max_total: usize) -> Option<CountsByClient> {
        let counters = max_total
            .saturating_mul(COUNTERS_PER_FULL_CLIENT)
            .checked_div(max_per_client)?
            .clamp(COUNTERS_MIN, COUNTERS_MAX)
            .next_power_of_two();
        let table = || (0..counters).map(|_| AtomicU64::new(0)).collect();
        Some(CountsByClient {
            counts: [table(), table()],
            max: max_per_client as u64,
        })
    }

    /// Counters without a limit, for shares of a resource. Clients that share counters get counts that are too high. That matters only when the resource
    /// is nearly used up, so a small table is enough.
    pub fn without_limit() -> CountsByClient {
        let table = || (0..COUNTERS_MIN).map(|_| AtomicU64::new(0)).collect();
        CountsByClient {
            counts: [table(), table()],
            max: u64::MAX,
        }
    }

    fn counters_of(&self, client: Client) -> [&AtomicU64; 2] {
        let [first, second] = client.counter_indexes(self.counts[0].len());
        [&self.counts[0][first], &self.counts[1][second]]
    }

    /// Adds one, if the client stays within the limit. False if not.
    pub fn try_add_one(&self, client: Client) -> bool {
        let before = self
            .counters_of(client)
            .map(|count| count.fetch_add(1, Relaxed));
        let has_room = before[0].min(before[1]) < self.max;
        if !has_room {
            self.subtract(client, 1);
        }
        has_room
    }

    /// The count of this client.
    pub fn count(&self, client: Client) -> u64 {
        let [one, other] = self.counters_of(client).map(|count| count.load(Relaxed));
        one.min(other)
    }

    /// Whether the client stays within the limit if `more` is added.
    pub fn has_room(&self, client: Client, more: u64) -> bool {
        self.count(client) + more <= self.max
    }

    /// Adds `more`, even above the limit.
    pub fn add(&self, client: Client, more: u64) {
        for count in self.counters_of(client) {
            count.fetch_add(more, Relaxed);
        }
    }

    /// Subtracts an amount that was added before.
    pub fn subtract(&self, client: Client, amount: u64) {
        for count in self.counters_of(client) {
            let before = count.fetch_sub(amount, Relaxed);
            assert!(before >= amount, "more is subtracted than was added");
        }
    }

    /// Sets all counts to zero. Only for counters from which nothing is subtracted.
    pub fn clear(&self) {
        for count in self.counts.iter().flatten() {
            count.store(0, Relaxed);
        }
    }

    /// Whether all counts are zero.
    pub fn is_empty(&self) -> bool {
        let mut all = self.counts.iter().flatten();
        all.all(|count| count.load(Relaxed) == 0)
    }
}
