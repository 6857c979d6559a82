//! Mail between shards: one mail per peer and turn, in order.
//!
//! A *carrier* (the shard that holds a connection) **asks** a *home* (the shard that holds a
//! topic's log); a home **tells** carriers. Messages cross once per shard: the frames of a turn lie
//! side by side in one shared [`Frames`], and each tell names its span.

pub(crate) mod inbox;
pub(crate) mod lanes;
pub(crate) mod new;
pub mod orders;
pub(crate) mod properties;
pub(crate) mod session;
mod span;

mod frames;

use crate::base::ids::{PartitionId, ShardId};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;

use crate::base::position::Since;
use crate::budget::admission::{Client, Party, Reached};
use crate::mail::session::{ConnOf, Kept, SessionId, Will};

pub use frames::{FRAMES_KEPT_BYTES, Frames, ORIGIN_BYTES, Record};
pub use span::Span;

/// The request of a connection that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The connection's row.
    pub slot: u32,
    /// Tells apart the connections that have used the row.
    pub generation: u16,
    /// The connection's request.
    pub request: u16,
    /// The topic of a set, or the line of a batch.
    pub part: u32,
}

/// The answer that a publisher wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    None,
    /// The outcome and the topic's info.
    Full(ReplyTo),
    /// Only a failure (a line of a batch).
    Failure(ReplyTo),
}

/// An action on a topic as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Make it, if it does not exist.
    Create,
    /// Report its state.
    Info,
    /// Delete it and end its subscriptions.
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
        /// The publisher's number and MQTT properties, or empty.
        attributes: Span,
        /// Seconds that it lives, if it brings a time to live.
        ttl_s: Option<u32>,
        /// MQTT's quality of service.
        qos: u8,
        /// To be retained.
        retain: bool,
        /// A binary frame.
        binary: bool,
        /// The idempotency key that a retry would repeat, and the party it belongs to.
        retry: Option<(Span, Party)>,
        /// The answer that the publisher wants.
        answer: Answer,
        /// The client for which its topic is made, if it does not exist.
        client: Client,
    },
    /// Subscribe one connection.
    Attach(Attach, Span),
    /// Subscribe one connection to filters, with a line feed between.
    AttachFilters(AttachFilters, Span),
    /// The carrier has no subscriber of this filter any more.
    LeaveFilter(Span),
    /// The carrier gives back a counted subscription: the topic has one subscriber less.
    Leave {
        /// The keyed hash of the name.
        hash: u32,
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
    },
    /// Create, describe or delete a topic.
    Topic {
        /// The action.
        verb: Verb,
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// The request to answer.
        to: ReplyTo,
        /// The client for which it is made.
        client: Client,
    },
    /// A subscriber needs the messages of a topic kept, whatever its rule says; or no longer does.
    KeepLog {
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// Whether the subscriber needs them.
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
        /// The former session ends.
        clean: bool,
        /// The client that the session is counted for.
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
        /// Its topics.
        filter: Box<[u8]>,
        /// Messages that it may have unacknowledged.
        credit: u32,
        /// Whether its session has not subscribed before.
        counts: bool,
    },
    /// A member has finished with messages, and can take as many more.
    GroupCredit {
        /// The group.
        group: u64,
        /// The member.
        to: ReplyTo,
        /// How many.
        count: u32,
    },
    /// A member leaves.
    LeaveGroup(Box<LeaveGroup>),
    /// A session whose client is away ends its subscription.
    ReleaseGroup {
        /// The share name.
        name: Box<[u8]>,
        /// Its topics.
        filter: Box<[u8]>,
    },
    /// Answer once all earlier asks are done.
    Fence(ReplyTo),
    /// From now on, tell this connection which topics have subscribers.
    Follow {
        /// The connection.
        to: ReplyTo,
        /// Its topics.
        filter: Span,
    },
    /// Send the next page of the snapshot.
    FollowOn(ReplyTo),
    /// Stop following.
    Unfollow(ReplyTo),
}

/// The state that an MQTT connection gives back when it ends.
#[derive(Debug)]
pub struct Farewell {
    /// The session.
    pub id: SessionId,
    /// The client that the session is counted for.
    pub owner: Client,
    /// Its kept state, unless the session ends too.
    pub kept: Option<Kept>,
    /// The message to publish then.
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

/// The state that a member of a group gives back when it leaves.
#[derive(Debug)]
pub struct LeaveGroup {
    /// The group.
    pub group: u64,
    /// The member.
    pub to: ReplyTo,
    /// Its unacknowledged messages, which go to other members.
    pub unacked: Vec<Unacked>,
    /// Whether its session ends the subscription.
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
        /// The client that the session is counted for.
        owner: Client,
        /// The state that it left when its last connection ended.
        kept: Option<Kept>,
    },
    /// The client is refused.
    Refused(ReasonCode),
}

/// A subscription on its way to the log.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The carrier's topic row.
    pub topic: u32,
    /// Counts the uses of the row.
    pub serial: u16,
    /// The request to answer.
    pub to: ReplyTo,
    /// Where to begin.
    pub since: Since,
    /// A long-poll: one message is enough.
    pub poll: bool,
    /// The most messages that it can take.
    pub most: u32,
    /// It takes compressed frames.
    pub deflate: bool,
    /// The next page of a subscription that is counted already; for a long-poll that is over, only where it stands.
    pub again: bool,
    /// It wants the retained message, unless the first message of the subscription is newer.
    pub retained: bool,
    /// The client for which the topic is made, if it does not exist.
    pub client: Client,
    /// The address or user that asks: they share the work of reading.
    pub party: Party,
}

/// Filters of one connection on their way to a home, which answers for all of them together.
#[derive(Clone, Copy, Debug)]
pub struct AttachFilters {
    /// The request to answer.
    pub to: ReplyTo,
    /// The serial of the filters' group at the connection.
    pub serial: u32,
    /// The partition to be read.
    pub partition: PartitionId,
    /// Where to begin.
    pub since: Since,
    /// For a further page: up to here only messages kept by `latest` or retained are wanted, see [`MatchPage::from`].
    pub from: u64,
    /// For a further page: losses up to this number do not count, see [`MatchPage::base`].
    pub base: u64,
    /// A long-poll: one message is enough.
    pub poll: bool,
    /// A further page: the filters are registered already.
    pub again: bool,
    /// The address or user that asks: they share the work of reading.
    pub party: Party,
}

/// The outcome of an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The subscription has begun.
    Yes,
    /// The topic was deleted and the position is older.
    Gone,
    /// Only publishers may create topics here, and none has done so.
    Forbidden,
    /// Another long-poll waits and stays.
    Conflict,
    /// No room for another topic, or the client creates too many.
    Full(Reached),
}

/// The state of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Messages kept.
    pub messages: u32,
    /// Seconds since a subscriber last asked, if one did.
    pub requested_s: Option<u32>,
    /// Present subscribers.
    pub subscribers: u32,
    /// A subscriber, perhaps an absent one, needs its messages kept.
    pub wanted: bool,
    /// The offset of the newest message, or where the topic begins.
    pub offset: u64,
    /// The epoch of the log.
    pub epoch: u32,
}

/// The answer to a publish or to a [`Verb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done. A create has made the topic; a publish may have found subscribers.
    Done(Info),
    /// The topic to create existed already.
    Existed(Info),
    /// There is no such topic.
    Missing,
    /// No room for another topic, or the client creates too many.
    Full(Reached),
    /// A publish with this idempotency key was done before; this is its answer.
    Replayed(Info),
    /// The idempotency key came with another message before; nothing was published.
    OtherMessage,
}

/// From a home to a carrier.
#[derive(Debug)]
pub enum Tell {
    /// A message, for every subscriber that has read up to the head.
    Live {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
        /// The message.
        record: Record,
    },
    /// A bounded part of the past, for one subscriber.
    Page {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
        /// The subscriber.
        to: ReplyTo,
        /// The page.
        page: Page,
    },
    /// A message, for all subscribers of its topic and of filters that match it.
    Match {
        /// The carrier's topic row, or `NONE`.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
        /// The place of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// A bounded part of the past, for one subscriber by filter.
    Matches {
        /// The subscriber.
        to: ReplyTo,
        /// The serial of the filters' group at the connection.
        serial: u32,
        /// The page.
        page: MatchPage,
    },
    /// The topic was deleted.
    Gone {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
    },
    /// A later long-poll displaces the waiting ones.
    Displaced {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
    },
    /// The answer to a publisher.
    Outcome(ReplyTo, Outcome),
    /// All asks before an [`Ask::Fence`] are done.
    Fenced(ReplyTo),
    /// To a member of a shared subscription: the group, unless there is no room for its filter.
    GroupJoined {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: Option<u64>,
        /// Whether the home counted its session as a new subscriber.
        counts: bool,
    },
    /// A message for a member of a group.
    Shared {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: u64,
        /// The place of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// To an MQTT client that connects.
    Session(ReplyTo, Box<Given>),
    /// To an MQTT connection: another one has claimed its session.
    SessionTaken(ConnOf),
    /// Topics that now have subscribers, or no longer have any.
    Interest {
        /// The follower.
        to: ReplyTo,
        /// The topics.
        news: News,
        /// Whether it is news or a page of the snapshot.
        part: Part,
    },
}

/// The part of a follower's stream that some news belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Changes as they happen.
    Live,
    /// A page of the snapshot; there are more.
    More,
    /// The last page of the snapshot of this home.
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

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer to an attach.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The outcome; the rest counts only for [`Attached::Yes`], and `head` for [`Attached::Gone`] too.
    pub attached: Attached,
    /// The records, within [`Frames::pages`].
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The subscriber's offset after this page, or the offset at which the topic was deleted.
    pub head: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// Unix second of the newest kept message, if there is one.
    pub newest_s: Option<u32>,
    /// The page reaches the end of the log: live messages follow.
    pub at_head: bool,
    /// Whether messages between the position asked for and this page are lost.
    pub gap: bool,
    /// The answer to an attach that was counted before.
    pub again: bool,
    /// Whether the home counted a subscriber: the carrier owes it an [`Ask::Leave`].
    pub counted: bool,
    /// The number of records, from the first on, that are the topic's retained state.
    pub retained: u32,
    /// Only retained messages were asked for: the subscriber's offset does not change.
    pub only_retained: bool,
}

/// The answer to an attach by filter.
#[derive(Clone, Copy, Debug)]
pub struct MatchPage {
    /// The outcome; the rest counts only for [`Attached::Yes`], and `head` for [`Attached::Gone`] too.
    pub attached: Attached,
    /// The records, within [`Frames::pages`].
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The names of their topics, within [`Frames::names`].
    pub names: u32,
    /// The subscriber's offset at this home after this page.
    pub head: u64,
    /// Where the subscription began; messages up to here belong to the snapshot of latest values and retained messages.
    pub from: u64,
    /// The number of the last loss when the subscription began: losses up to it are no gap. 0 when it began with a
    /// position.
    pub base: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// The page reaches the end of the log: live messages follow.
    pub at_head: bool,
    /// Whether messages between the position asked for and the end of this page are lost.
    pub gap: bool,
}

impl Tell {
    /// The carrier's topic row: tells of one topic keep their order.
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

/// All mail from one shard to another in one turn.
pub struct Mail {
    /// The sender.
    pub from: ShardId,
    /// Asks to the receiver as a home.
    pub asks: Vec<Ask>,
    /// The bytes that the asks' spans refer to.
    pub bytes: Vec<u8>,
    /// What the asks count against the sender's credit.
    pub weight: usize,
    /// Tells to the receiver as a carrier.
    pub tells: Vec<Tell>,
    /// The frames that the tells' records refer to.
    pub frames: Option<Arc<Frames>>,
    /// The weight of earlier asks that the sender has handled: the receiver may send as much again.
    pub credit_bytes: usize,
    /// When the messages that the asks publish were read: [`Shard::stamp`](crate::Shard::stamp) of the sender's turn.
    pub stamp: u64,
}
