//! What the tables of a shard occupy, in bytes. Tables grow in chunks and keep them; a chunk that was never filled
//! counts in full, though its pages may be untouched.

use crate::shard::Shard;

/// Bytes by table; those of names, logs and what waits for sockets are in [`Accounts`](crate::Accounts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Rows of connections.
    pub connections: usize,
    /// Rows of MQTT connections.
    pub mqtt: usize,
    /// Side rows of connections, without what they hold on the heap.
    pub sides: usize,
    /// Topics that connections subscribe to, with their index.
    pub carrier_topics: usize,
    /// Topics that are kept as a home, with their index.
    pub home_topics: usize,
    /// MQTT sessions, with their index.
    pub sessions: usize,
    /// What the log has for messages, used or not.
    pub log: usize,
}

impl Shard {
    /// What its tables occupy.
    pub fn tables(&self) -> Tables {
        Tables {
            connections: self.conns.bytes(),
            mqtt: self.mqtts.bytes(),
            sides: self.spills.bytes() + self.outboxes.bytes() + self.extras.bytes(),
            carrier_topics: self.topics.bytes(),
            home_topics: self.home.as_ref().map_or(0, |home| home.table_bytes()),
            sessions: self.sessions.bytes(),
            log: self
                .home
                .as_ref()
                .map_or(0, |home| home.log_reserved_bytes()),
        }
    }
}
