//! `[limits]`: hard limits; past each one the client gets a clear error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::bounds::{MAX_MESSAGE_BYTES, MAX_OUTBOX_BYTES, MAX_ROWS, MAX_TOPIC_BYTES};

/// The largest batch. It is buffered as a whole before its first line is published. It may be a single line, which is parsed at once; at
/// this size that takes some 60 ms for the worst content.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// The most lines of a batch: their answers are kept until the last one is known.
const MAX_BATCH_LINES: usize = 100_000;

/// No ordinary request of a browser would fit into less.
const MIN_HEAD_BYTES: usize = 1 << 10;

/// The largest head. It is searched again for each piece that arrives, so a limit keeps that cheap.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The most bytes of one connection's subscriptions: each new subscription walks their list.
const MAX_SUBSCRIPTION_BYTES: usize = 4 << 20;

/// Bytes of a subscription besides its name: its row, and its entries in the topic's member list and in the index.
const SUBSCRIPTION_BYTES: usize = 64;

/// The most bytes that the position of a topic and its separators add to the topic's name in the query of a resumed subscription.
const POSITION_BYTES_MAX: usize = 24;

/// A smaller log could not keep one message of the default size limit.
const MIN_LOG_BYTES: usize = 1 << 20;

/// With less the kernel's own minimum would apply, and a message would take many turns.
const MIN_SEND_BUFFER_BYTES: usize = 4 << 10;

/// This is above the kernel's own limit, `net.ipv4.tcp_wmem`.
const MAX_SEND_BUFFER_BYTES: usize = 64 << 20;

/// The kernel may take this much more than its limit of unsent bytes.
const KERNEL_EXTRA_BYTES: usize = 64 << 10;

/// The usual last number of `net.ipv4.tcp_wmem`.
const KERNEL_BYTES_MAX: usize = 4 << 20;

/// An address or user may always hold `memory_bytes` divided by this number, but no more than the largest message and its head.
const GUARANTEED_DIVISOR: usize = 32;

/// Hard limits.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of the request line and the headers of one request. A larger request gets 431.
    #[default(8 << 10)]
    #[schemars(range(min = MIN_HEAD_BYTES, max = MAX_HEAD_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one request, which its own connection holds; `limits.memory_bytes` has the shares"))]
    pub head_bytes: usize,
    /// Bytes of data of one message. A larger message gets 413, or the WebSocket close code 1009.
    ///
    /// While a message is copied and encoded as JSON or as an event, other clients of the shard wait: some 5 ms for each MiB of the worst
    /// content.
    #[default(1 << 20)]
    #[schemars(range(min = 1, max = MAX_MESSAGE_BYTES), extend("x-flag" = "--message-bytes SIZE"))]
    #[schemars(extend("x-share" = "none: it bounds one request, which its own connection holds; `limits.memory_bytes` has the shares"))]
    pub message_bytes: usize,
    /// Bytes of the body of one NDJSON batch.
    #[default(8 << 20)]
    #[schemars(range(min = 1, max = MAX_BATCH_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one request, which its own connection holds; `limits.memory_bytes` has the shares"))]
    pub batch_bytes: usize,
    /// Number of lines of one NDJSON batch.
    #[default(10_000)]
    #[schemars(range(min = 1, max = MAX_BATCH_LINES))]
    #[schemars(extend("x-share" = "none: it bounds one request, which its own connection holds; `limits.memory_bytes` has the shares"))]
    pub batch_lines: usize,
    /// Bytes of the name of a topic.
    #[default(255)]
    #[schemars(range(min = 1, max = MAX_TOPIC_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one name; topics and filters have shares"))]
    pub topic_bytes: usize,
    /// Bytes of all subscriptions of one connection: the names of its topics and filters, and 64 B for each. A further subscription gets
    /// 400 (MQTT 0x97, 3.1.1: 0x80).
    ///
    /// 256 KiB have room for some 3,000 topics with names of 20 B. Over HTTP, all names and positions must also fit into three quarters of `head_bytes`, so that a
    /// client can resume: by default some 140 topics of 20 B. That does not apply if `topics_per_connection` is set. A
    /// [filter](PROTOCOLS.md#filters) needs less.
    #[default(256 << 10)]
    #[schemars(range(min = 1 << 10, max = MAX_SUBSCRIPTION_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one connection; topics and filters have shares"))]
    pub subscription_bytes: usize,
    /// Number of topics and filters that one connection may subscribe to. A further one gets 400 (MQTT 0x97, 3.1.1: 0x80).
    #[schemars(range(min = 1, max = u16::MAX), extend("x-zero" = "as many as `subscription_bytes` has room for"))]
    #[schemars(extend("x-share" = "none: it bounds one connection; topics and filters have shares"))]
    pub topics_per_connection: usize,
    /// Topics that exist at once on all shards together. At the limit, a new topic gets 503.
    ///
    /// Each shard that keeps topics has an equal part of the limit. Names are hashed, so the parts fill evenly.
    #[schemars(range(min = 1, max = MAX_ROWS), extend("x-zero" = "only `topics_per_shard`"))]
    #[schemars(extend("x-share" = "of an address from half on: fewer than are free; past it its own idle topics go"))]
    pub topics_max: usize,
    /// Topics that exist at once on one shard. At the limit, a new topic gets 503. [Shared](#shares).
    #[default(2_000_000)]
    #[schemars(range(min = 1, max = MAX_ROWS))]
    #[schemars(extend("x-share" = "of an address from half on: fewer than are free; past it its own idle topics go"))]
    pub topics_per_shard: usize,
    /// Different filters that the connections of one shard subscribe to at once. At the limit, a new filter gets 503. [Shared](#shares).
    #[default(2_000_000)]
    #[schemars(range(min = 1, max = MAX_ROWS))]
    #[schemars(extend("x-share" = "of an address from half on: fewer than are free"))]
    pub filters_per_shard: usize,
    /// Connections of all shards together. At the limit, a new connection gets 503. [Shared](#shares).
    #[schemars(range(min = 1, max = MAX_ROWS), extend("x-zero" = "as many as four fifths of the memory hold, at 4,274 B each"))]
    #[schemars(extend("x-share" = "of an address: eight times as many as are free"))]
    pub connections_max: usize,
    /// Connections of one client address to all shards together. At the limit, a new connection gets 429. 0: no limit.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub connections_per_address_max: u32,
    /// Connections that all shards together accept in a second. More connections wait; none is refused. 0: 5,000 for each core that has a
    /// shard.
    ///
    /// For each shard, up to 512 connections wait, but at most a 16th of the connections that it has room for; addresses take turns. The
    /// others wait in the queues of the sockets (`backlog`). A connection that is turned away at once counts as a quarter of one.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "addresses take turns"))]
    pub accepts_per_s: u32,
    /// Messages published in a second by all clients together. Further ones get 503. 0: no limit.
    #[schemars(extend("x-share" = "none: who comes first in a second has them; `publishes_per_address_per_s` bounds an address, and neither is set by default"))]
    pub publishes_per_s: u32,
    /// The burst for `publishes_per_s`: messages that are accepted at once after a quiet time. 0: as many as in one second.
    #[schemars(extend("x-share" = "none: as `publishes_per_s`"))]
    pub publishes_burst: u32,
    /// Messages published in a second from one client address. Further ones get 429. 0: no limit.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub publishes_per_address_per_s: u32,
    /// The burst for `publishes_per_address_per_s`: messages that are accepted at once after a quiet time. 0: as many as in one second.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub publishes_per_address_burst: u32,
    /// New topics that one client address may make in a second. Further ones get 429 ([below](#what-one-address-can-take)). 0: no limit.
    ///
    /// A client makes a topic when it publishes to, subscribes to or creates (`PUT`) one that does not exist.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub topics_per_address_per_s: u32,
    /// The burst for `topics_per_address_per_s`: topics that may be made at once after a quiet time. 0: as many as in one second.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub topics_per_address_burst: u32,
    /// Memory, in all logs together, of the messages published from one client address. At the limit, a publish gets 429
    /// ([below](#what-one-address-can-take)). 0: no limit.
    #[schemars(extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "it is the limit of one address"))]
    pub log_bytes_per_address_max: usize,
    /// Connections of one shard. When all shards are full, the answer is 503. The operating system's limit of open files may be reached first.
    /// [Shared](#shares).
    ///
    /// Shards with more room get the new connections: a nearly full shard (with room for less than a sixteenth of this limit, and less than `backlog`)
    /// gets none while a quarter of the shards have more room.
    #[default(1_000_000)]
    #[schemars(range(min = 1, max = MAX_ROWS), extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "of an address: eight times as many as are free in all shards; new connections go to shards with room"))]
    pub connections_per_shard: usize,
    /// Memory for all logs of all shards together. When it is full, the oldest messages are removed. [Shared](#shares).
    ///
    /// The memory of the machine, or of the control group if its limit is lower.
    #[schemars(range(min = MIN_LOG_BYTES, max = isize::MAX as usize), extend("x-zero" = "an eighth of the memory", "x-flag" = "--log-bytes SIZE"))]
    #[schemars(extend("x-share" = "of an address: a 16th; past it its own messages go before those of addresses that have less than half as much"))]
    pub log_bytes: usize,
    /// Bytes that the kernel keeps unsent for one connection (`TCP_NOTSENT_LOWAT`). More bytes wait in the process.
    ///
    /// The kernel may take up to 64 KiB more. If a client has taken nothing for two seconds, both count as held by it
    /// ([kernel_buffers](#what-clients-make-the-server-hold)). Bytes on their way to the client do not count, so a fast connection is not slowed
    /// down. Without a limit, the kernel keeps up to 4 MB for each connection that does not read (the last number of `net.ipv4.tcp_wmem`): some
    /// hundred of them use up `net.ipv4.tcp_mem`, and then the kernel drops packets of all other connections.
    #[default(128 << 10)]
    #[schemars(range(min = MIN_SEND_BUFFER_BYTES, max = MAX_SEND_BUFFER_BYTES), extend("x-zero" = "as much as the kernel likes", "x-changes" = "restart"))]
    #[schemars(extend("x-share" = "none: it bounds one connection; who does not read is charged for it in `limits.memory_bytes`"))]
    pub send_buffer_bytes: usize,
    /// Bytes that may wait for one connection that does not read, if the topic's rule does not set `outbox_bytes`.
    #[default(1 << 20)]
    #[schemars(range(min = 1, max = MAX_OUTBOX_BYTES))]
    #[schemars(extend("x-share" = "none: it bounds one connection; `limits.memory_bytes` has the shares"))]
    pub outbox_bytes: usize,
    /// Memory for everything that the server holds for clients, except rows, names and logs ([below](#what-clients-make-the-server-hold)).
    /// 0: an eighth of the machine's memory, or of the control group's limit if that is lower.
    #[schemars(extend("x-share" = "of an address or user, past seven eighths: a 32nd, and no more than the largest message; then what holds most ends first"))]
    pub memory_bytes: usize,
    /// Bytes of publishes in flight from one shard to another. At the limit no further publish begins: its connection is not read until
    /// there is room.
    ///
    /// Each publish counts 4 KiB more than its bytes, so 1 MiB has room for 256 small ones. Received bytes of a connection that waits count
    /// towards `memory_bytes`. The last publish may exceed the limit; a batch may do so as a whole.
    #[default(4 << 20)]
    #[schemars(extend("x-share" = "addresses and users take turns when there is credit again"))]
    pub publish_credit_bytes: usize,
}

impl Limits {
    /// Bytes that one address or user may hold, however much the others hold.
    pub fn little_bytes(&self) -> usize {
        (self.memory_bytes / GUARANTEED_DIVISOR).min(self.message_bytes + self.head_bytes)
    }

    /// The most topics and filters that one connection may subscribe to; the length of their names has a limit of its own.
    pub fn subscriptions_max(&self) -> usize {
        match self.topics_per_connection {
            0 => usize::MAX,
            max => max,
        }
    }

    /// The most subscriptions that one connection can have, even with the shortest names.
    pub fn subscriptions_with_room(&self) -> usize {
        let with_room = self.subscription_bytes / SUBSCRIPTION_BYTES;
        with_room.min(self.subscriptions_max())
    }

    /// Whether one connection may have `count` subscriptions, with `name_bytes` bytes of names in all.
    pub fn has_room_for_names(&self, count: usize, name_bytes: usize) -> bool {
        name_bytes + count * SUBSCRIPTION_BYTES <= self.subscription_bytes
    }

    /// Whether a request for `count` names can be resumed: whether the names and their positions fit into the head of a request. This is
    /// not checked if the operator has set `topics_per_connection`.
    pub fn may_resume_names(&self, count: usize, name_bytes: usize) -> bool {
        count == 1
            || self.topics_per_connection > 0
            || name_bytes + count * POSITION_BYTES_MAX <= self.head_bytes / 4 * 3
    }

    /// The approximate number of bytes that the kernel holds for a connection that does not read.
    pub fn kernel_bytes(&self) -> usize {
        match self.send_buffer_bytes {
            0 => KERNEL_BYTES_MAX,
            send_buffer_bytes => send_buffer_bytes + KERNEL_EXTRA_BYTES,
        }
    }

    /// The most topics of each home: its share of the process's limit. Names are hashed, so the homes fill evenly.
    pub fn topics_per_home(&self, homes: usize) -> usize {
        match self.topics_max {
            0 => self.topics_per_shard,
            max => self.topics_per_shard.min(max.div_ceil(homes)),
        }
    }
}
