//! The state that protocols keep for a shard as a whole.

use alloc::vec::Vec;

use crore_wire::mqtt::PropertyWriter;
use crore_wire::ndjson;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::ConnId;
use crate::base::time::Now;
use crate::mail::WillOutcome;
use crate::protocol::centrifugo::delta::LatestMessages;
use crate::protocol::front::Context;
use crate::protocol::mqtt::closing_sessions::ClosingSessions;

pub(crate) struct ShardState {
    /// Sessions of ended connections. Each is given back to its home (the part of a shard that keeps the session) when the
    /// publishes of its connection have been answered.
    pub closing_sessions: ClosingSessions,
    /// The numbers of wills whose publishes were answered, each with its outcome (`shard/wills.rs`).
    pub published_wills: Vec<(u32, WillOutcome)>,
    /// Connections whose sessions must be recorded in the next turn.
    pub unrecorded: Vec<ConnId>,
    /// The last number of `next_number`. Its high half begins as the start time, so that numbers differ between starts.
    last_number: u64,
    /// The number of the last question to a backend (`[[backend]]`). Only the answer with the number of an open question counts.
    pub last_backend_call: u32,
    /// The number of grants of backends that had an end, to spread the questions about them.
    pub renewal_count: u32,
    /// The messages of which subscribers of Centrifugo's protocol get deltas.
    pub latest_messages: LatestMessages,
    /// A buffer for the MQTT properties that are being written.
    pub properties_buffer: PropertyWriter,
    /// A buffer for the topic of an MQTT publish that is being read.
    pub topic_buffer: Vec<u8>,
    /// A buffer for the attributes of an MQTT publish that is being read.
    pub attributes_buffer: Vec<u8>,
    /// A buffer for the line of a batch that is being read.
    pub line_scratch: ndjson::Scratch,
}

impl ShardState {
    /// The state of a new shard.
    pub fn new(now: Now) -> ShardState {
        ShardState {
            closing_sessions: ClosingSessions::default(),
            unrecorded: Vec::new(),
            published_wills: Vec::new(),
            last_number: u64::from(now.unix_s) << 32,
            last_backend_call: 0,
            renewal_count: 0,
            latest_messages: LatestMessages::default(),
            properties_buffer: PropertyWriter::new(),
            topic_buffer: Vec::new(),
            attributes_buffer: Vec::new(),
            line_scratch: ndjson::Scratch::default(),
        }
    }

    /// Returns a number that no shard of this server, and no other node of its cluster, returns a second time, and that nobody can guess.
    pub fn next_number(&mut self, ctx: &Context) -> u64 {
        self.last_number += 1;
        let mut bytes = Vec::from(self.last_number.to_le_bytes());
        bytes.extend_from_slice(&ctx.own_shard.to_le_bytes());
        bytes.extend_from_slice(&ctx.world.writer.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&ctx.world.epoch.to_le_bytes());
        xxh3_64_with_seed(&bytes, ctx.world.seed)
    }
}
