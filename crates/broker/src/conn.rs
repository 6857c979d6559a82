//! The connection's row, and the side rows that exist only while a connection needs them.
//!
//! Invariant: an idle subscriber of one topic has its row and nothing else.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::http::body::Chunked;
use crore_wire::websocket::receive::Partial;

use crate::admission::Client;
use crate::connection::access::Who;
use crate::connection::filtered::Opening;
use crate::connection::mqtt::{Mqtt, Shared};
use crate::connection::progress::Progress;
use crate::inbox::Inbox;
use crate::mail::{Frames, Record, ShardId};
use crate::matching::Filtered;
use crate::rope::Rope;
use crate::slab::{NONE, Vacant};
use crate::stats::Transport;

/// What the transport below calls the connection: its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u32);

/// A connection of one shard, for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnId {
    /// Its row.
    pub slot: u32,
    /// The row's life.
    pub generation: u16,
}

impl ConnId {
    /// As one number, for a poller to carry.
    pub fn token(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 32
    }

    /// Back from [`ConnId::token`].
    pub fn from_token(token: u64) -> Self {
        ConnId {
            slot: token as u32,
            generation: (token >> 32) as u16,
        }
    }
}

/// What the connection is doing.
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
    /// Our side said its last bytes, which may still wait for the socket; the peer's are thrown away until it closes too.
    Draining,
}

/// The subscription was counted at its home.
pub const COUNTED: u8 = 1;
/// The subscription is at the head: live messages are its own.
pub const LIVE: u8 = 2;
/// Reading is paused.
pub const PAUSED: u8 = 4;
/// The peer has closed its side while an answer was due.
pub const EOF: u8 = 8;
/// Close once the outbox is empty.
pub const CLOSING: u8 = 16;
/// A request was served before: a silent end is no timeout.
pub const SERVED: u8 = 64;
/// A limit was reached when it came: its request is answered with that.
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
    /// The place among its members; once our side has said its last bytes, how many of the peer's were thrown away.
    pub place: u32,
    /// Second of the next timeout; 0 is none.
    pub deadline_s: u32,
    /// Second in which something was last sent.
    pub sent_s: u32,
    /// What was asked for.
    pub options: u32,
    /// Side row: what MQTT needs.
    pub mqtt: u32,
    /// Whom it is counted for.
    pub client: Client,
    /// The row's life.
    pub generation: u16,
    /// The connection's request.
    pub request: u16,
    /// What it is doing.
    pub state: State,
    /// How far it is.
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
            mqtt: NONE,
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
    /// What it speaks.
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

/// Received bytes that wait for more.
pub enum Spill {
    /// A request.
    Http(HttpSpill),
    /// A frame or a fragmented message.
    WebSocket(Box<Partial>, Progress),
    /// A message that was begun, and frames behind it that wait for credit.
    Frames(Option<Box<Partial>>, Inbox, Progress),
    /// MQTT packets.
    Mqtt(Inbox, Progress),
}

impl Default for Spill {
    fn default() -> Self {
        Spill::Http(HttpSpill::default())
    }
}

/// Part of a request, or requests that wait for the one before them.
#[derive(Default)]
pub struct HttpSpill {
    /// Head, then the decoded body, then bytes as they came.
    pub data: Vec<u8>,
    /// A chunked body: its decoder, how much is decoded.
    pub chunked: Option<(Chunked, usize)>,
    /// Its head was looked at, and its body may come.
    pub judged: bool,
    /// How its body comes on.
    pub progress: Progress,
    /// It begins with a publish that waits for credit.
    pub held: bool,
    /// Whose request it begins with; none while that was not looked at, or an answer is due.
    pub who: Option<Who>,
    /// What it came with is being looked at elsewhere.
    pub asked: bool,
}

/// One of several topics of a connection.
#[derive(Default)]
pub struct Sub {
    /// The carrier's topic.
    pub topic: u32,
    /// The place among its members.
    pub place: u32,
    /// `COUNTED` and `LIVE`.
    pub flags: u8,
    /// What was seen.
    pub offset: u64,
    /// The life of the log.
    pub epoch: u32,
    /// Of an MQTT subscription: its options as on the wire, its identifier, the alias of its topic, and how many had
    /// its place in the list before.
    pub options: u8,
    /// See `options`.
    pub identifier: u32,
    /// See `options`.
    pub alias: u16,
    /// See `options`.
    pub serial: u16,
    /// Where its grant stands: the packet id of the SUBSCRIBE, and the place among the reasons.
    pub granted: (u16, u16),
    /// It has wildcards: the serial of its group among the connection's filters, and 1.
    pub filter: u32,
    /// It is a part in a shared subscription, and of no topic.
    pub group: Option<Box<Shared>>,
}

impl Sub {
    /// Whether its place is free.
    pub fn is_vacant(&self) -> bool {
        self.topic == NONE && self.filter == 0 && self.group.is_none()
    }
}

/// What waits for another shard's answer.
pub enum Pending {
    /// A publish.
    Publish,
    /// `PUT`, `GET` or `DELETE` on a topic.
    Verb(crate::mail::Verb),
    /// A batch: the homes that have not answered, lines, and what failed.
    Batch(Batch),
}

/// A batch on its way.
#[derive(Default)]
pub struct Batch {
    /// Homes whose fence has not come back.
    pub homes: u32,
    /// Lines that were handed on and did not fail.
    pub lines: u32,
    /// Those of them that had been published before.
    pub replayed: u32,
    /// Line numbers and reasons.
    pub failed: Vec<(u32, &'static str)>,
    /// Lines that were read.
    pub number: u32,
    /// Homes, but for that of this shard, that were handed a line; a bit each.
    pub remote: [u64; 4],
    /// Lines that the turns so far had no time for.
    pub rest: Vec<u8>,
}

/// A response that waits for its attaches.
#[derive(Default)]
pub struct Attaching {
    /// The response's head.
    pub head: Vec<u8>,
    /// The first messages, encoded.
    pub body: Rope,
    /// Attaches without an answer.
    pub waiting: u32,
    /// Of a set: what is encoded when all positions are known; a long-poll holds the first message that came.
    pub held: Vec<Held>,
    /// What the held records mean.
    pub frames: Frames,
    /// A topic that has answered was deleted meanwhile.
    pub gone: bool,
}

/// What a connection on several topics holds back until the last of them has answered.
pub enum Held {
    /// A message of this part.
    Message(u32, Record),
    /// Messages of this part before this offset are lost.
    Gap(u32, u64),
}

/// What few connections need.
#[derive(Default)]
pub struct Extra {
    /// A response that is not yet begun.
    pub attaching: Option<Attaching>,
    /// Several topics.
    pub list: Vec<Sub>,
    /// The hash of their names.
    pub set: u32,
    /// The topic that the client's frames are published to, with its keyed hash.
    pub publish_to: Option<(u32, Vec<u8>)>,
    /// Frames published so far.
    pub published: u32,
    /// The answer that is due.
    pub pending: Option<Pending>,
    /// A subscription that fell behind: what it has seen.
    pub behind: Vec<Behind>,
    /// It follows which topics have subscribers.
    pub follow: Option<Follow>,
    /// It speaks MQTT.
    pub mqtt: Option<Box<Mqtt>>,
    /// Its filters.
    pub filters: Option<Box<Filtered>>,
    /// A response to a request by filter that is not yet begun.
    pub opening: Option<Box<Opening>>,
    /// Bytes of it that the account was charged.
    charged_bytes: usize,
}

impl Extra {
    /// Bytes of the row and of what it holds; of messages that others hold too its part.
    pub fn weight(&self) -> usize {
        let attaching = self.attaching.as_ref();
        let opening = self.opening.as_ref();
        self.own_bytes()
            + attaching.map_or(0, |it| it.frames.large_weight() + it.body.shared_weight())
            + opening.map_or(0, |opening| opening.large_weight())
            + self.mqtt.as_ref().map_or(0, |mqtt| mqtt.payload_weight())
    }

    /// The same without large messages.
    fn own_bytes(&self) -> usize {
        let attaching = self.attaching.as_ref().map_or(0, |it| {
            it.head.capacity()
                + it.body.own.capacity()
                + it.frames.own_bytes()
                + it.held.capacity() * size_of::<Held>()
        });
        size_of::<Extra>()
            + attaching
            + self.list.capacity() * size_of::<Sub>()
            + self.behind.capacity() * size_of::<Behind>()
            + self.publish_to.as_ref().map_or(0, |to| to.1.capacity())
            + self.follow.as_ref().map_or(0, |it| it.filter.capacity())
            + self.mqtt.as_ref().map_or(0, |mqtt| mqtt.bytes())
            + self.filters.as_ref().map_or(0, |filters| filters.bytes())
            + self.opening.as_ref().map_or(0, |it| it.own_bytes())
    }

    /// Bytes that the account was charged for it, and those that it is charged from now on.
    pub fn weigh(&mut self) -> (usize, usize) {
        let now = self.own_bytes();
        (core::mem::replace(&mut self.charged_bytes, now), now)
    }
}

/// How far a follower is. The homes are asked one after the other, so that one page at most is under way.
#[derive(Default)]
pub struct Follow {
    /// Which topics.
    pub filter: Vec<u8>,
    /// The home whose part of the snapshot is due; past the last one the snapshot is whole.
    pub home: ShardId,
    /// That home was asked for the beginning.
    pub begun: bool,
    /// A page is under way.
    pub asked: bool,
    /// Topics that it was told of and that have subscribers.
    pub topics: u64,
}

/// A subscription that must read on from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Which of the connection's topics.
    pub part: u32,
    /// What was seen.
    pub offset: u64,
    /// The life of the log.
    pub epoch: u32,
}
