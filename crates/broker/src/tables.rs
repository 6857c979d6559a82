//! How much a shard holds of everything, and the bytes of its tables. Tables grow in chunks and keep them; a chunk that was never filled
//! counts in full, though its pages may be untouched.

use crate::account::Part;
use crate::shard::Shard;
use crate::stats::Accounts;

/// Bytes by table; those of names and what waits for sockets are in [`Accounts`].
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
    /// Bytes that the log has for messages, used or not.
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

    /// Counts and bytes of all that this shard holds.
    pub fn accounts(&self) -> Accounts {
        let mut accounts = Accounts {
            connections: self.conns.len(),
            transports: match self.conns.len() {
                // Nobody sweeps an empty table.
                0 => Default::default(),
                _ => self.tally[1],
            },
            spills: self.spills.len(),
            outboxes: self.outboxes.len(),
            extras: self.extras.len(),
            parts: self.purse.parts(),
            mqtt_connections: self.mqtts.len(),
            passes: self.passes.len(),
            relayed: self.relayed.len() as u32,
            receive_bytes: self.receive_bytes,
            outbox_bytes: self.outbox_bytes,
            deliveries: self.deliveries.len(),
            under_way_bytes: self.lanes.to.iter().map(|lane| lane.under_way_bytes).sum(),
            turns_held: self.lanes.turns_held(),
            waiting: self.resumed.len()
                + self.paging.len()
                + self.stalled.len()
                + self.errands.len()
                + self.leaving.len(),
            asks: self.lanes.asks_waiting(),
            ..Accounts::default()
        };
        // They belong to no shard: the first tells them.
        if self.lanes.me == 0 {
            accounts.parts[Part::Messages as usize] = self.world.admission.account.messages_bytes();
        }
        self.topics.account(&mut accounts);
        self.sessions.account(&mut accounts);
        self.matching.account(&mut accounts);
        if let Some(home) = &self.home {
            home.account(&mut accounts);
        }
        accounts
    }
}
