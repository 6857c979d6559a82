//! The state that protocols keep for a shard as a whole.

use alloc::vec::Vec;

use crore_wire::mqtt::PropertyBuf;
use crore_wire::ndjson;

use crate::base::ids::ConnId;
use crate::base::time::Now;
use crate::protocol::mqtt::closing_sessions::ClosingSessions;

pub(crate) struct Own {
    /// Sessions of ended connections. Each is given back to its home (the part of a shard that keeps the session) when the
    /// publishes of its connection have been answered.
    pub closing_sessions: ClosingSessions,
    /// Connections whose sessions must be recorded in the next turn.
    pub unrecorded: Vec<ConnId>,
    /// The last number used for the id of an MQTT client. It begins with the start time in the high half, so that ids differ
    /// between starts.
    pub clients_named: u64,
    /// A buffer for the MQTT properties that are being written.
    pub properties: PropertyBuf,
    /// A buffer for the topic of an MQTT publish that is being read.
    pub name: Vec<u8>,
    /// A buffer for the attributes of an MQTT publish that is being read.
    pub attributes: Vec<u8>,
    /// A buffer for the line of a batch that is being read.
    pub lines: ndjson::Scratch,
}

impl Own {
    /// The state of a new shard.
    pub fn new(now: Now) -> Own {
        Own {
            closing_sessions: ClosingSessions::default(),
            unrecorded: Vec::new(),
            clients_named: u64::from(now.unix_s) << 32,
            properties: PropertyBuf::new(),
            name: Vec::new(),
            attributes: Vec::new(),
            lines: ndjson::Scratch::default(),
        }
    }
}
