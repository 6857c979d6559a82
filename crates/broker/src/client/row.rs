//! The row of a connection: its entry in the shard's table of connections.
//!
//! Invariant: an idle subscriber of one topic needs its row and no other memory.

use crate::base::ids::SocketId;
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::store::slab::{NONE, SlabRow};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The PROXY header has not arrived yet.
    Proxy,
    /// HTTP: between requests, or while one arrives.
    Http,
    /// A request waits for the answer of a home (a part of a shard that keeps topics), or for the verdict on its credential.
    Waiting,
    /// A long-poll waits for a message.
    Poll,
    /// An event stream.
    Sse,
    /// A WebSocket.
    WebSocket,
    /// MQTT, over TCP or within a WebSocket.
    Mqtt,
    /// Centrifugo's client protocol, within a WebSocket.
    Centrifugo,
    /// Pusher's protocol, within a WebSocket.
    Pusher,
    /// HTTP/2: a link whose streams have rows of their own.
    Http2,
    /// The server has sent its last bytes, which may still be in the outbox. Bytes of the peer are discarded until the peer closes.
    Draining,
}

/// The topic's home (the part of a shard that keeps the topic) counts the subscription.
pub const COUNTED: u8 = 1;
/// The subscription has read the whole log, and gets live messages.
pub const LIVE: u8 = 2;
/// The topic's home lists the connection as a member of the topic. In the same flags as `COUNTED` and `LIVE`.
pub const MEMBER: u8 = 4;
/// The socket is not read.
pub const PAUSED: u8 = 4;
/// The peer has closed its sending side while an answer was due.
pub const EOF: u8 = 8;
/// Close once the outbox is empty.
pub const CLOSING: u8 = 16;
/// The outbox is held back until its contents are true, for example until the subscriptions of a resumed session are live.
pub const HELD: u8 = 32;
/// A request was served before, so an idle connection that ends is no timeout.
pub const SERVED: u8 = 64;
/// A limit was reached when the client connected, so its first request will be refused.
pub const TURNED_AWAY: u8 = 128;

/// The connection's subscriptions are in the list of its side row, since there are several or since they have other state.
pub const SUBSCRIPTION_LIST: u32 = 1 << 10;
/// The connection subscribes by filter.
pub const FILTERS: u32 = 1 << 23;
/// The first of eight bits of the options that only the connection's protocol uses. The lower bits, except `SUBSCRIPTION_LIST` and `FILTERS`,
/// are the options of the request that the connection began with.
pub const PROTOCOL_OPTIONS_SHIFT: u32 = 24;
/// The mask of these eight bits.
pub const PROTOCOL_OPTIONS: u32 = 0xff << PROTOCOL_OPTIONS_SHIFT;

/// The second in which a connection began: the low 31 bits of [`Now::unix_s`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartSecond(u32);

impl StartSecond {
    const BITS: u32 = (1 << 31) - 1;

    /// A beginning at `now`.
    pub fn at(now: Now) -> StartSecond {
        StartSecond(now.unix_s & StartSecond::BITS)
    }

    /// All 32 bits of the second. No connection is open for 68 years, so 31 bits are enough.
    pub fn unix_s(self, now: Now) -> u32 {
        let age_s = now.unix_s.wrapping_sub(self.0) & StartSecond::BITS;
        now.unix_s.saturating_sub(age_s)
    }
}

/// In [`Consumer::side_row_or_start`]: the connection has no side row, and the other bits are [`StartSecond`].
const NO_SIDE_ROW: u32 = 1 << 31;

/// The row of a connection: a link, and the consumer on it.
pub struct Row {
    /// The socket and its buffers.
    pub link: Link,
    /// The client that is served on the link. It is in the same row, because a link has one consumer.
    pub consumer: Consumer,
}

const _: () = assert!(size_of::<Link>() == 24);
const _: () = assert!(size_of::<Consumer>() == 28);
const _: () = assert!(size_of::<Row>() == 52);

/// A socket, or a stream of a link that several share (`links.rs`), with the bytes that were received and not processed, the bytes that wait for it, and its next timeout.
pub struct Link {
    /// The socket; for a stream its number.
    pub socket: SocketId,
    /// Side row: received bytes that wait to be processed or completed.
    pub unprocessed_input: u32,
    /// Side row: bytes that the socket refused.
    pub outbox: u32,
    /// The second of the next timeout, or 0.
    pub deadline_s: u32,
    /// The second in which bytes were last sent.
    pub sent_s: u32,
    /// Counts the uses of this row.
    pub generation: u16,
    /// The flags `PAUSED` to `TURNED_AWAY`, one bit each.
    pub flags: u8,
}

/// A client that is served on a link: its subscriptions, its rights, and the answers that it waits for.
pub struct Consumer {
    /// The side row: all other state that few connections need, and the connection's [`StartSecond`]. Without a side row this field is
    /// [`NO_SIDE_ROW`] and the [`StartSecond`].
    side_row_or_start: u32,
    /// The topic, if there is only one.
    pub topic: u32,
    /// The place among the topic's members. In [`State::Draining`]: the number of discarded bytes.
    pub member_place: u32,
    /// The options of the consumer.
    pub options: u32,
    /// The row of the connection's protocol, if the protocol has such rows.
    pub protocol_row: u32,
    /// The client whose limits count the connection.
    pub client: Client,
    /// The number of the connection's requests.
    pub request: u16,
    /// The state of the connection.
    pub state: State,
    /// The flags `COUNTED`, `LIVE` and `MEMBER`, one bit each.
    pub flags: u8,
}

/// The socket of a free row.
pub const NO_SOCKET: SocketId = SocketId(u32::MAX);

impl SlabRow for Row {
    fn vacant(next: u32) -> Self {
        Row {
            link: Link {
                socket: NO_SOCKET,
                unprocessed_input: NONE,
                outbox: NONE,
                deadline_s: 0,
                sent_s: 0,
                generation: 0,
                flags: 0,
            },
            consumer: Consumer {
                side_row_or_start: NONE,
                topic: next,
                member_place: 0,
                options: 0,
                protocol_row: NONE,
                client: Client::NOBODY,
                request: 0,
                state: State::Draining,
                flags: 0,
            },
        }
    }
    fn next_vacant(&self) -> u32 {
        self.consumer.topic
    }
    fn inherit(&mut self, former: &Self) {
        self.link.generation = former.link.generation.wrapping_add(1);
    }
}

impl Row {
    /// The row of a connection that begins now.
    pub fn new(socket: SocketId, state: State, now: Now, deadline_s: u32) -> Self {
        let mut row = Row::vacant(NONE);
        (row.link.socket, row.link.deadline_s, row.link.sent_s) = (socket, deadline_s, now.s);
        row.consumer.side_row_or_start = NO_SIDE_ROW | StartSecond::at(now).0;
        row.consumer.state = state;
        row
    }
    /// The side row, or [`NONE`].
    #[inline]
    pub fn side_row(&self) -> u32 {
        match self.consumer.side_row_or_start & NO_SIDE_ROW {
            0 => self.consumer.side_row_or_start,
            _ => NONE,
        }
    }
    /// Records the first side row, which from now on stores when the connection began.
    pub fn start_side_row(&mut self, extra: u32) -> StartSecond {
        StartSecond(
            core::mem::replace(&mut self.consumer.side_row_or_start, extra) & StartSecond::BITS,
        )
    }
    /// Records that there is no side row, so the row stores when the connection began.
    pub fn end_side_row(&mut self, began: StartSecond) {
        self.consumer.side_row_or_start = NO_SIDE_ROW | began.0;
    }
    /// When the connection began, if it has no side row.
    pub fn start_second(&self) -> StartSecond {
        StartSecond(self.consumer.side_row_or_start & StartSecond::BITS)
    }
    /// Whether the row is in use.
    pub fn is_open(&self) -> bool {
        self.link.socket != NO_SOCKET
    }
    /// Whether the subscriptions of the connection change while it is open. Several subscriptions are then a list with free places.
    #[inline]
    pub fn has_changing_subscriptions(&self) -> bool {
        match self.consumer.state {
            State::Mqtt | State::Centrifugo | State::Pusher => true,
            State::Proxy | State::Http | State::Waiting | State::Poll | State::Http2 => false,
            State::Sse | State::WebSocket | State::Draining => false,
        }
    }
    /// Whether any bit of `option` is set.
    #[inline]
    pub fn has_option(&self, option: u32) -> bool {
        self.consumer.options & option != 0
    }
}

impl Link {
    /// Whether all bits of `flag` are set.
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}
