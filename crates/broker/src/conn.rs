//! The connection's row, and the side rows that exist only while a connection needs them.
//!
//! Invariant: an idle subscriber of one topic has its row and nothing else.

pub mod io;
pub(crate) mod topics;

use crate::base::ids::Link;
use crate::budget::admission::Client;
use crate::budget::stats::Transport;
use crate::store::slab::{NONE, Vacant};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A PROXY header must come first.
    Proxy,
    /// Between or within requests.
    Http,
    /// A request waits for another shard's answer.
    Waiting,
    /// A long-poll waits for a message.
    Poll,
    /// An event stream.
    Sse,
    /// A WebSocket.
    WebSocket,
    /// MQTT, over TCP or within a WebSocket.
    Mqtt,
    /// Our side has sent its last bytes, which may still wait for the socket; the peer's are thrown away until it
    /// closes too.
    Draining,
}

/// The subscription was counted at its home.
pub const COUNTED: u8 = 1;
/// The subscription is at the head: it gets live messages.
pub const LIVE: u8 = 2;
/// Reading is paused.
pub const PAUSED: u8 = 4;
/// The peer has closed its side while an answer was due.
pub const EOF: u8 = 8;
/// Close once the outbox is empty.
pub const CLOSING: u8 = 16;
/// A request was served before: a silent end is no timeout.
pub const SERVED: u8 = 64;
/// A limit was reached when it connected: its request is refused for that.
pub const TURNED_AWAY: u8 = 128;

/// HTTP/1.0.
pub const HTTP10: u32 = 1;
/// The connection stays open after the answer.
pub const KEEP: u32 = 1 << 1;
/// A HEAD request.
pub const HEAD: u32 = 1 << 2;
/// `ws+meta.nchan`.
pub const META: u32 = 1 << 3;
/// permessage-deflate.
pub const DEFLATE: u32 = 1 << 4;
/// The client's frames are publishes.
pub const PUBLISHES: u32 = 1 << 5;
/// It subscribes.
pub const RECEIVES: u32 = 1 << 6;
/// Messages come as JSON objects.
pub const ENVELOPE: u32 = 1 << 7;
/// The long-poll came with a validator.
pub const CONDITIONAL: u32 = 1 << 8;
/// The client prefers JSON.
pub const JSON: u32 = 1 << 9;
/// Several topics.
pub const MULTI: u32 = 1 << 10;
/// An upgrade to WebSocket is being answered.
pub const UPGRADE: u32 = 1 << 11;
/// An event stream is being answered.
pub const EVENTS: u32 = 1 << 12;
/// Unanswered heartbeats, two bits.
pub const PINGS: u32 = 3 << 13;
/// One unanswered heartbeat.
pub const PING: u32 = 1 << 13;
/// The long-poll's position could not be honoured.
pub const GAP: u32 = 1 << 15;
/// It follows which topics have subscribers.
pub const FOLLOWS: u32 = 1 << 16;
/// The answer is the first one to an idempotency key, given again.
pub const REPLAYED: u32 = 1 << 17;
/// MQTT 5.0, not 3.1.1.
pub const V5: u32 = 1 << 18;
/// The same bit where HTTP is spoken: the answer is a topic's history.
pub const HISTORY: u32 = V5;
/// MQTT within a WebSocket.
pub const FRAMED: u32 = 1 << 19;
/// Where the QoS of the only subscription begins: two bits.
pub const QOS_SHIFT: u32 = 20;
/// The MQTT client limits the size of packets.
pub const SMALL: u32 = 1 << 22;
/// It subscribes by filter.
pub const FILTERS: u32 = 1 << 23;
/// Where the number of the allowed origin begins: eight bits, 0 for none, 255 for any.
pub const ORIGIN_SHIFT: u32 = 24;

/// The row.
pub struct Row {
    /// The descriptor.
    pub link: Link,
    /// Side row: bytes that did not end on a frame boundary.
    pub spill: u32,
    /// Side row: bytes that the socket refused.
    pub outbox: u32,
    /// Side row: all else that is rarely needed.
    pub extra: u32,
    /// The only topic.
    pub topic: u32,
    /// The place among the topic's members; in [`State::Draining`], how many of the peer's bytes were thrown away.
    pub place: u32,
    /// Second of the next timeout; 0 is none.
    pub deadline_s: u32,
    /// Second in which something was last sent.
    pub sent_s: u32,
    /// The options that were asked for.
    pub options: u32,
    /// Side row: what the protocol of the connection needs, if that has such rows.
    pub own: u32,
    /// The client that it is counted for.
    pub client: Client,
    /// The row's life.
    pub generation: u16,
    /// The connection's request.
    pub request: u16,
    /// Its state.
    pub state: State,
    /// Flags that say how far it is.
    pub flags: u8,
}

const _: () = assert!(size_of::<Row>() == 52);

/// A free row has this link.
const NO_LINK: Link = Link(u32::MAX);

impl Vacant for Row {
    fn vacant(next: u32) -> Self {
        Row {
            link: NO_LINK,
            spill: NONE,
            outbox: NONE,
            extra: NONE,
            topic: next,
            place: 0,
            deadline_s: 0,
            sent_s: 0,
            options: 0,
            own: NONE,
            client: Client::NOBODY,
            generation: 0,
            request: 0,
            state: State::Draining,
            flags: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.topic
    }
    fn inherit(&mut self, former: &Self) {
        self.generation = former.generation.wrapping_add(1);
    }
}

impl Row {
    /// A new connection.
    pub fn new(link: Link, state: State, deadline_s: u32) -> Self {
        Row {
            link,
            state,
            deadline_s,
            ..Row::vacant(NONE)
        }
    }
    /// Whether it is in use.
    pub fn is_open(&self) -> bool {
        self.link != NO_LINK
    }
    /// The transport that it counts as.
    #[inline]
    pub fn transport(&self) -> Transport {
        match self.state {
            State::Proxy | State::Http | State::Waiting => Transport::Http,
            State::Poll => Transport::LongPoll,
            State::Sse => Transport::Sse,
            State::WebSocket => Transport::WebSocket,
            State::Mqtt if self.wants(FRAMED) => Transport::MqttWebSocket,
            State::Mqtt => Transport::Mqtt,
            State::Draining => Transport::Closing,
        }
    }
    /// Whether a home is to tell it what a topic keeps.
    pub fn waits_for_history(&self) -> bool {
        self.state == State::Waiting && self.wants(HISTORY)
    }
    /// Whether all bits of `flag` are set.
    #[inline]
    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }
    /// Whether the option was asked for.
    #[inline]
    pub fn wants(&self, option: u32) -> bool {
        self.options & option != 0
    }
}
