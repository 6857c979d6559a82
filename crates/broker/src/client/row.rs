//! The row of a connection.
//!
//! Invariant: an idle subscriber of one topic has its row and nothing else.

use crate::base::ids::Link;
use crate::base::time::Now;
use crate::budget::admission::Client;
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
/// What is sent waits in the outbox until something that it says holds.
pub const HELD: u8 = 32;
/// A request was served before: a silent end is no timeout.
pub const SERVED: u8 = 64;
/// A limit was reached when it connected: its request is refused for that.
pub const TURNED_AWAY: u8 = 128;

/// Several topics.
pub const MULTI: u32 = 1 << 10;
/// It subscribes by filter.
pub const FILTERS: u32 = 1 << 23;
/// Where eight bits of the options begin that only the protocol of the connection knows. Those below, but for the two that stand here, are the options
/// of the request that the connection began with.
pub const OWN_SHIFT: u32 = 24;
/// These bits.
pub const OWN: u32 = 0xff << OWN_SHIFT;

/// The second in which a connection began, as [`Now::unix_s`] counts, in 31 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Began(u32);

impl Began {
    const BITS: u32 = (1 << 31) - 1;

    /// Now.
    pub fn at(now: Now) -> Began {
        Began(now.unix_s & Began::BITS)
    }

    /// All 32 bits of the second. No connection is open for 68 years, so its age fits 31 bits.
    pub fn unix_s(self, now: Now) -> u32 {
        let age_s = now.unix_s.wrapping_sub(self.0) & Began::BITS;
        now.unix_s.saturating_sub(age_s)
    }
}

/// Of [`Row::extra`]: the connection has no side row.
const NO_EXTRA: u32 = 1 << 31;

/// The row.
pub struct Row {
    /// The descriptor.
    pub link: Link,
    /// Side row: bytes that did not end on a frame boundary.
    pub spill: u32,
    /// Side row: bytes that the socket refused.
    pub outbox: u32,
    /// Side row: all else that is rarely needed. While there is none, [`NO_EXTRA`] and when the connection [`Began`], which the side row keeps
    /// otherwise: so no connection needs room for both.
    extra: u32,
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
    /// A connection that begins now.
    pub fn new(link: Link, state: State, now: Now, deadline_s: u32) -> Self {
        Row {
            link,
            state,
            deadline_s,
            sent_s: now.s,
            extra: NO_EXTRA | Began::at(now).0,
            ..Row::vacant(NONE)
        }
    }
    /// Its side row with all else that is rarely needed, or [`NONE`].
    #[inline]
    pub fn extra(&self) -> u32 {
        match self.extra & NO_EXTRA {
            0 => self.extra,
            _ => NONE,
        }
    }
    /// Notes its first side row, which must keep from now on when the connection began.
    pub fn begin_extra(&mut self, extra: u32) -> Began {
        Began(core::mem::replace(&mut self.extra, extra) & Began::BITS)
    }
    /// It has no side row any more: the row keeps when the connection began.
    pub fn end_extra(&mut self, began: Began) {
        self.extra = NO_EXTRA | began.0;
    }
    /// When it began, if it has no side row.
    pub fn began(&self) -> Began {
        Began(self.extra & Began::BITS)
    }
    /// Whether it is in use.
    pub fn is_open(&self) -> bool {
        self.link != NO_LINK
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
