//! Counts a shard's objects, and the bytes of its tables. Tables grow in chunks. A chunk counts in full, although memory pages that were
//! never written may occupy no memory.

use crate::budget::stats::Accounts;
use crate::client::send::most_messages_waiting;
use crate::shard::Shard;

/// Bytes by table. Bytes of names and of outboxes are in [`Accounts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Rows of connections.
    pub connections: usize,
    /// Rows of MQTT connections.
    pub mqtt: usize,
    /// Rows for unhandled bytes, outboxes and rare state of connections, without the heap data of these rows.
    pub sides: usize,
    /// Topics to which connections of this shard subscribe, with the index.
    pub carrier_topics: usize,
    /// Topics of this shard's home (the part that keeps topics), with the index.
    pub home_topics: usize,
    /// MQTT sessions, with the index.
    pub sessions: usize,
    /// Bytes allocated for messages of logs, used or not.
    pub log: usize,
}

impl Shard {
    /// The bytes of the shard's tables.
    pub fn tables(&self) -> Tables {
        let (connections, mqtt, sides) = self.front.clients.conns.table_bytes();
        Tables {
            connections,
            mqtt,
            sides,
            carrier_topics: self.front.subs.topics.bytes(),
            home_topics: self
                .home
                .as_ref()
                .map_or(0, |home| home.topics.table_bytes()),
            sessions: self.sessions.bytes(),
            log: self
                .home
                .as_ref()
                .map_or(0, |home| home.logs.log_reserved_bytes()),
        }
    }

    /// The maximum number of messages that wait for one socket.
    pub fn most_messages_waiting(&self) -> usize {
        most_messages_waiting(&self.front.clients.conns)
    }

    /// The bytes charged to this shard's account.
    pub fn charged_bytes(&self) -> usize {
        self.front.clients.conns.charged_bytes()
    }

    /// Counts and bytes of everything in this shard. Large messages belong to no shard: see
    /// [`MemoryAccount::unowned_bytes`](crate::account::MemoryAccount::unowned_bytes).
    pub fn accounts(&self) -> Accounts {
        let mut accounts = Accounts {
            transports: match self.front.clients.conns.len() {
                // No sweep runs over an empty table, so the tally of the last sweep would be too old.
                0 => Default::default(),
                _ => self.sweep.last_counts(),
            },
            deliveries: self.front.feed.deliveries.len(),
            in_flight_bytes: self
                .front
                .subs
                .lanes
                .to
                .iter()
                .map(|lane| lane.in_flight_bytes)
                .sum(),
            turns_held: self.front.subs.lanes.turns_held(),
            waiting: self.front.queues.len()
                + self.front.clients.protocol_state.closing_sessions.len(),
            asks: self.front.subs.lanes.asks_waiting() + self.commits.len(),
            ..Accounts::default()
        };
        self.front.clients.conns.add_to_accounts(&mut accounts);
        self.front.subs.topics.add_to_accounts(&mut accounts);
        self.sessions.account(&mut accounts);
        self.front.subs.matching.account(&mut accounts);
        if let Some(home) = &self.home {
            home.fill_accounts(&mut accounts);
        }
        accounts
    }
}
