//! The counters of a block, one behind the other, as plain numbers. The structs are taken apart field by field, so that
//! one that is added to them does not compile until it is here.

use crore_broker::{Accounts, Stats, Tables};
use crore_net::stream::{Stats as TlsStats, Usage as TlsUsage};

/// A shard thread's turns, and the bytes that it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Turns.
    pub turns: u64,
    /// Nanoseconds in which it did not wait.
    pub busy_ns: u64,
    /// The longest turn of the last one to two seconds in which it turned.
    pub longest_ns: u64,
    /// Bytes that came from sockets.
    pub received_bytes: u64,
    /// Bytes that sockets took.
    pub sent_bytes: u64,
    /// Connections that were turned away before they had a row.
    pub shed: u64,
    /// Connections that it has room for.
    pub room: u64,
}

/// A struct of counters, as numbers and back.
pub trait Cells: Sized {
    /// Gives each number.
    fn put(&self, put: &mut impl FnMut(u64));
    /// Takes them again, in the same order.
    fn take(take: &mut impl FnMut() -> u64) -> Self;
}

macro_rules! cells {
    ($type:ident: $($field:ident)* $([$($array:ident)*])?) => {
        impl Cells for $type {
            fn put(&self, put: &mut impl FnMut(u64)) {
                let $type { $($field,)* $($($array,)*)? } = *self;
                $(put(u64::try_from($field).expect("counters are 64 bits at most"));)*
                $($($array.iter().for_each(|value| put(u64::try_from(*value).expect("counters are 64 bits at most")));)*)?
            }
            fn take(take: &mut impl FnMut() -> u64) -> Self {
                $type {
                    $($field: take() as _,)*
                    $($($array: std::array::from_fn(|_| take() as _),)*)?
                }
            }
        }
    };
}

cells!(Stats: resumes gaps short_logs keys_refused rates_refused attaches detaches published published_bytes delivered delivered_bytes dropped packets_received
    packets_sent sessions_expired sessions_evicted fallbacks credit_waits pages_waited turned_away untrusted relieved accepted refused oversized foreign_hosts foreign_origins hidden_answers stray_upgrades mqtt_refused denied lapsed superseded expired [closed]);
cells!(Accounts: connections spills outboxes extras receive_bytes outbox_bytes carrier_topics identities relayed mqtt_connections sessions
    session_bytes groups keepers retained carrier_sets home_topics home_sets home_filters home_losses carrier_filters
    asks pages answers followers log_messages log_bytes log_chains log_keys name_bytes deliveries under_way_bytes turns_held
    waiting [transports parts]);
cells!(Tables: connections mqtt sides carrier_topics home_topics sessions log);
cells!(Turns: turns busy_ns longest_ns received_bytes sent_bytes shed room);
cells!(TlsStats: handshakes resumed [troubles]);
cells!(TlsUsage: connections under_way key_bytes descriptor_bytes record_bytes);

/// How many numbers a block has.
pub fn count() -> usize {
    let mut count = 0;
    let mut put = |_| count += 1;
    Stats::default().put(&mut put);
    Accounts::default().put(&mut put);
    Tables::default().put(&mut put);
    Turns::default().put(&mut put);
    TlsStats::default().put(&mut put);
    TlsUsage::default().put(&mut put);
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_written_are_read_back() {
        let mut stats = Stats {
            resumes: 1,
            expired: 2,
            ..Stats::default()
        };
        stats.closed = std::array::from_fn(|n| n as u64 + 3);
        let mut accounts = Accounts {
            connections: u32::MAX,
            log_bytes: 1 << 40,
            waiting: 5,
            ..Accounts::default()
        };
        accounts.transports[6] = 9;
        let mut cells = Vec::new();
        stats.put(&mut |value| cells.push(value));
        accounts.put(&mut |value| cells.push(value));
        let mut cells = cells.into_iter();
        let mut next = || cells.next().unwrap();
        assert_eq!(Stats::take(&mut next), stats);
        assert_eq!(Accounts::take(&mut next), accounts);
        assert_eq!(cells.next(), None);
    }
}
