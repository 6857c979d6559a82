//! What shards say to each other: one mail per peer and turn, in order.
//!
//! A *carrier* (the shard that holds a connection) **asks** a *home* (the shard that holds a
//! topic's log); a home **tells** carriers. Messages cross once per shard: the frames of a turn lie
//! side by side in one shared [`Frames`], and each tell names its span.

mod frames;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;

use crate::admission::{Client, Reached};
use crate::position::Since;
use crate::sessions::{ConnOf, Kept, SessionId, Will};

pub use frames::{FRAMES_KEPT_BYTES, Frames, ORIGIN_BYTES, Record};

/// A shard's number.
pub type ShardId = u16;

/// Which request of which connection an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The connection's row.
    pub slot: u32,
    /// The row's life.
    pub generation: u16,
    /// The connection's request.
    pub request: u16,
    /// Which topic of a set, or which line of a batch.
    pub part: u32,
}

/// Bytes within [`Mail::bytes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Copies `part` behind `bytes`.
    pub fn of(bytes: &mut Vec<u8>, part: &[u8]) -> Span {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(part);
        Span {
            start,
            len: part.len() as u32,
        }
    }

    /// The bytes.
    pub fn in_bytes<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize..(self.start + self.len) as usize]
    }
}

/// What a publisher wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    None,
    /// The outcome and the topic's info.
    Full(ReplyTo),
    /// Only a failure (a line of a batch).
    Failure(ReplyTo),
}

/// What is done to a topic as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Make it, if it does not exist.
    Create,
    /// Say how it stands.
    Info,
    /// End it for its subscribers.
    Delete,
    /// Empty it; its subscribers stay.
    Purge,
}

/// From a carrier to a home.
#[derive(Debug)]
pub enum Ask {
    /// Append and pass on.
    Publish {
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// The message.
        data: Span,
        /// Its content type.
        content_type: Span,
        /// Its event name.
        event: Span,
        /// Its key.
        key: Span,
        /// What else was said of it.
        attributes: Span,
        /// Seconds that it lives, if it says so.
        ttl_s: Option<u32>,
        /// MQTT's quality of service.
        qos: u8,
        /// To be retained.
        retain: bool,
        /// A binary frame.
        binary: bool,
        /// What a retry would bring too.
        idempotency_key: Span,
        /// Who wants to know.
        answer: Answer,
        /// For whom its topic is made, if it does not exist.
        client: Client,
    },
    /// Subscribe one connection.
    Attach(Attach, Span),
    /// Subscribe one connection to filters, with a line feed between.
    AttachFilters(AttachFilters, Span),
    /// No subscriber of this filter any more.
    LeaveFilter(Span),
    /// One subscriber less.
    Leave {
        /// The keyed hash of the name.
        hash: u32,
        /// The carrier's topic row.
        topic: u32,
        /// The row's life.
        serial: u16,
    },
    /// Create, describe or delete a topic.
    Topic {
        /// What to do.
        verb: Verb,
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// Who wants to know.
        to: ReplyTo,
        /// For whom it is made.
        client: Client,
    },
    /// Somebody needs the messages of a topic kept, whatever its rule says; or does no more.
    KeepLog {
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// Needs them.
        on: bool,
    },
    /// An MQTT client connects and wants its session.
    SessionOpen {
        /// The connection.
        to: ReplyTo,
        /// The keyed hash of the client id.
        hash: u32,
        /// The client id.
        client: Box<[u8]>,
        /// What there was of the session ends.
        clean: bool,
        /// Whom it counts for.
        owner: Client,
    },
    /// An MQTT connection has ended.
    SessionClose(Box<Farewell>),
    /// An MQTT client joins a shared subscription.
    JoinGroup {
        /// The client and its part.
        to: ReplyTo,
        /// The share name.
        name: Box<[u8]>,
        /// Which topics.
        filter: Box<[u8]>,
        /// Messages that it may have unacknowledged.
        credit: u32,
        /// Its session has not subscribed before.
        counts: bool,
    },
    /// A member has done with messages.
    GroupCredit {
        /// The group.
        group: u64,
        /// The member.
        to: ReplyTo,
        /// How many.
        count: u32,
    },
    /// A member goes.
    LeaveGroup(Box<LeaveGroup>),
    /// A session that was away subscribes no more.
    ReleaseGroup {
        /// The share name.
        name: Box<[u8]>,
        /// Which topics.
        filter: Box<[u8]>,
    },
    /// Answer when all that was asked before is done.
    Fence(ReplyTo),
    /// Tell this connection which topics have subscribers, from now on.
    Follow {
        /// The connection.
        to: ReplyTo,
        /// Which topics.
        filter: Span,
    },
    /// The next page of the snapshot, please.
    FollowOn(ReplyTo),
    /// It follows no more.
    Unfollow(ReplyTo),
}

/// What an MQTT connection gives back when it ends.
#[derive(Debug)]
pub struct Farewell {
    /// The session.
    pub id: SessionId,
    /// Whom it counts for.
    pub owner: Client,
    /// What is left of it, unless it ends too.
    pub kept: Option<Kept>,
    /// What is published then.
    pub will: Option<Box<Will>>,
}

/// A message of a group that its member has not acknowledged.
#[derive(Clone, Debug)]
pub struct Unacked {
    /// Its topic.
    pub topic: Box<[u8]>,
    /// Its position.
    pub offset: u64,
}

/// What a member of a group gives back when it goes.
#[derive(Debug)]
pub struct LeaveGroup {
    /// The group.
    pub group: u64,
    /// The member.
    pub to: ReplyTo,
    /// Messages for somebody else.
    pub unacked: Vec<Unacked>,
    /// Its session subscribes no more.
    pub ends: bool,
}

/// The answer to a client that wants its session.
#[derive(Debug)]
pub enum Given {
    /// It has it.
    Yes {
        /// The home.
        home: ShardId,
        /// The session.
        id: SessionId,
        /// Whom it counts for.
        owner: Client,
        /// What it left behind when it was away.
        kept: Option<Kept>,
    },
    /// It goes without.
    Refused(ReasonCode),
}

/// A subscription on its way to the log.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The carrier's topic row.
    pub topic: u32,
    /// The row's life.
    pub serial: u16,
    /// Who asks.
    pub to: ReplyTo,
    /// From where on.
    pub since: Since,
    /// A long-poll: one message is enough.
    pub poll: bool,
    /// Messages that it can take at most.
    pub most: u32,
    /// It takes compressed frames.
    pub deflate: bool,
    /// The next page of a subscription that is counted already; of a long-poll that is over, where it stands.
    pub again: bool,
    /// It wants the retained message, unless what it begins with is newer.
    pub retained: bool,
    /// For whom the topic is made, if it does not exist.
    pub client: Client,
}

/// Filters of one connection on their way to a home, which answers for all of them together.
#[derive(Clone, Copy, Debug)]
pub struct AttachFilters {
    /// Who asks.
    pub to: ReplyTo,
    /// The life of these filters at the connection.
    pub serial: u32,
    /// From where on.
    pub since: Since,
    /// For a further page: up to here only what is kept by `latest` or retained is wanted, see [`MatchPage::from`].
    pub from: u64,
    /// For a further page: losses up to this number are not missed, see [`MatchPage::base`].
    pub base: u64,
    /// A long-poll: one message is enough.
    pub poll: bool,
    /// The next page: the filters are registered.
    pub again: bool,
}

/// How an attach ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The subscription stands.
    Yes,
    /// The topic was deleted and the position is older.
    Gone,
    /// Publishers create topics here, and none did.
    Forbidden,
    /// Another long-poll waits and stays.
    Conflict,
    /// No room for another topic, or this client makes too many.
    Full(Reached),
}

/// How a topic stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Messages kept.
    pub messages: u32,
    /// Seconds since a subscriber last asked, if one did.
    pub requested_s: Option<u32>,
    /// Present subscribers.
    pub subscribers: u32,
    /// Somebody who may be away needs its messages kept.
    pub wanted: bool,
    /// The newest message, or where the topic begins.
    pub offset: u64,
    /// The life of the log.
    pub epoch: u32,
}

/// The answer to a publish or to a [`Verb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; for a create, the topic is new; for a publish, it may have found subscribers.
    Done(Info),
    /// A create found the topic there.
    Existed(Info),
    /// There is no such topic.
    Missing,
    /// No room for another topic, or this client makes too many.
    Full(Reached),
    /// A publish with this idempotency key was done before; this is the first answer.
    Replayed(Info),
    /// The idempotency key came with another message before; nothing is published.
    OtherMessage,
}

/// From a home to a carrier.
#[derive(Debug)]
pub enum Tell {
    /// A message, for every subscriber that is at the head.
    Live {
        /// The carrier's topic row.
        topic: u32,
        /// The row's life.
        serial: u16,
        /// The message.
        record: Record,
    },
    /// A bounded part of the past, for one subscriber.
    Page {
        /// The carrier's topic row.
        topic: u32,
        /// The row's life.
        serial: u16,
        /// For whom.
        to: ReplyTo,
        /// The page.
        page: Page,
    },
    /// A message, for all subscribers of its topic and of filters that match it.
    Match {
        /// The carrier's topic row, or `NONE`.
        topic: u32,
        /// The row's life.
        serial: u16,
        /// Where the topic's name lies in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// A bounded part of the past, for one subscriber by filter.
    Matches {
        /// For whom.
        to: ReplyTo,
        /// The life of its filters.
        serial: u32,
        /// The page.
        page: MatchPage,
    },
    /// The topic was deleted.
    Gone {
        /// The carrier's topic row.
        topic: u32,
        /// The row's life.
        serial: u16,
    },
    /// A later long-poll takes the place of those that wait.
    Displaced {
        /// The carrier's topic row.
        topic: u32,
        /// The row's life.
        serial: u16,
    },
    /// To a publisher.
    Outcome(ReplyTo, Outcome),
    /// All that stood before a [`Ask::Fence`] is done.
    Fenced(ReplyTo),
    /// To a member of a shared subscription: the group, unless there is no room for its filter.
    GroupJoined {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: Option<u64>,
        /// Its session counts among those that have subscribed since then.
        counts: bool,
    },
    /// A message for a member of a group.
    Shared {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: u64,
        /// Where the topic's name lies.
        name: u32,
        /// The message.
        record: Record,
    },
    /// To an MQTT client that connects.
    Session(ReplyTo, Box<Given>),
    /// To an MQTT connection: another one has claimed its session.
    SessionTaken(ConnOf),
    /// Topics that have subscribers now, or have none any more.
    Interest {
        /// The follower.
        to: ReplyTo,
        /// Which topics.
        news: News,
        /// What else it means.
        part: Part,
    },
}

/// What a follower's news mean besides what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// They happened.
    Live,
    /// They hold a page of the snapshot, and there is more.
    More,
    /// They hold the last page of this home.
    Last,
}

/// Topics with and without subscribers, one behind the other: 1 or 0, the length of the name, the name.
#[derive(Debug, Default)]
pub struct News(Vec<u8>);

impl News {
    /// Adds a topic whose interest begins or ends.
    pub fn push(&mut self, begins: bool, name: &[u8]) {
        let len = u16::try_from(name.len()).expect("names are shorter");
        self.0.push(u8::from(begins));
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(name);
    }

    /// In the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (bool, &[u8])> {
        let mut rest = &self.0[..];
        core::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk::<3>()?;
            let len = u16::from_le_bytes([head[1], head[2]]) as usize;
            let (name, after) = after.split_at(len);
            rest = after;
            Some((head[0] == 1, name))
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer to an attach.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// How it ended; the rest counts only for [`Attached::Yes`], and `head` for [`Attached::Gone`].
    pub attached: Attached,
    /// The records, within [`Frames::pages`].
    pub first: u32,
    /// How many.
    pub count: u32,
    /// What the subscriber has seen once it has this page, or where the topic was deleted.
    pub head: u64,
    /// The life of the log.
    pub epoch: u32,
    /// Unix second of the newest message that is kept, if one is.
    pub newest_s: Option<u32>,
    /// Nothing newer is in the log: live messages follow.
    pub at_head: bool,
    /// Messages between the asked position and this page are lost.
    pub gap: bool,
    /// The answer to an attach that was counted before.
    pub again: bool,
    /// The home counted a subscriber: the carrier owes it a leave.
    pub counted: bool,
    /// So many records, from the first on, are the topic's retained state.
    pub retained: u32,
    /// Nothing else was asked for: what the subscriber has seen stays as it is.
    pub only_retained: bool,
}

/// The answer to an attach by filter.
#[derive(Clone, Copy, Debug)]
pub struct MatchPage {
    /// How it ended; the rest counts only for [`Attached::Yes`], and `head` for [`Attached::Gone`].
    pub attached: Attached,
    /// The records, within [`Frames::pages`].
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The names of their topics, within [`Frames::names`].
    pub names: u32,
    /// What the subscriber has seen of this home once it has this page.
    pub head: u64,
    /// Where the subscription began; messages up to here are of the snapshot of latest values and retained messages.
    pub from: u64,
    /// The number of the last loss before the subscription began, which promised nothing of what was lost by then; 0
    /// when it began with a position.
    pub base: u64,
    /// The life of the log.
    pub epoch: u32,
    /// Nothing newer is in the log: live messages follow.
    pub at_head: bool,
    /// Messages between the asked position and the end of this page are lost.
    pub gap: bool,
}

impl Tell {
    /// The topic that it concerns at the carrier: tells of one topic keep their order.
    pub fn topic(&self) -> Option<u32> {
        match self {
            Tell::Live { topic, .. }
            | Tell::Match { topic, .. }
            | Tell::Page { topic, .. }
            | Tell::Gone { topic, .. }
            | Tell::Displaced { topic, .. } => Some(*topic),
            Tell::Matches { .. }
            | Tell::Outcome(..)
            | Tell::Fenced(_)
            | Tell::GroupJoined { .. }
            | Tell::Shared { .. }
            | Tell::Session(..)
            | Tell::SessionTaken(_)
            | Tell::Interest { .. } => None,
        }
    }
}

/// All that one shard says to another in one turn.
pub struct Mail {
    /// Who says it.
    pub from: ShardId,
    /// To the receiver as a home.
    pub asks: Vec<Ask>,
    /// What the asks' spans mean.
    pub bytes: Vec<u8>,
    /// To the receiver as a carrier.
    pub tells: Vec<Tell>,
    /// What the tells' records mean.
    pub frames: Option<Arc<Frames>>,
    /// Bytes of earlier asks that the sender has dealt with: the receiver may send as many again.
    pub credit_bytes: usize,
    /// When what the asks publish was read: [`Shard::stamp`](crate::Shard::stamp) of the sender's turn.
    pub stamp: u64,
}
