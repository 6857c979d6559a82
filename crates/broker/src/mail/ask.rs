//! Asks of a carrier to a home.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::position::Since;
use crate::budget::admission::{Admission, Client, Party};
use crate::budget::passage::Passage;
use crate::mail::answer::{Answer, ReplyTo};
use crate::mail::fact::Change;
use crate::mail::message::{Headers, Retry};
use crate::mail::session::{SavedSession, SessionId, Will};
use crate::mail::span::Span;

/// A client's request about a topic as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRequest {
    /// Report its state.
    Info,
    /// Change it.
    Change(Change),
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
        /// The headers that its publisher gave it.
        headers: Headers<Span>,
        /// The idempotency key that a retry would repeat, if it has one.
        retry: Option<Retry<Span>>,
        /// The answer that the publisher wants.
        answer: Answer,
        /// The client for which its topic is made, if it does not exist.
        client: Client,
    },
    /// Subscribe one connection.
    Attach(Attach, Span),
    /// Subscribe one connection to filters, with a line feed between; the list says where to begin in each partition of the home,
    /// where that differs.
    AttachFilters(AttachFilters, Span, Option<Box<[Since]>>),
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
    /// Report or change a topic.
    Topic {
        /// The request.
        verb: TopicRequest,
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// The answer that is wanted.
        answer: Answer,
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
    SessionClose(Box<ClosingSession>),
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
        /// The address or user that asks: they share the shapes of filters.
        party: Party,
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
    /// Tell in the logs of this home's partitions that a writer is dead.
    DeclareWriterDead(u64),
    /// Answer once all earlier asks are done.
    Fence(ReplyTo),
    /// From now on, tell this connection which topics have subscribers.
    Follow {
        /// The connection.
        to: ReplyTo,
        /// The address or user that the pages are read for.
        party: Party,
        /// Its topics.
        filter: Span,
    },
    /// Send the next page of the snapshot.
    FollowOn(ReplyTo, Party),
    /// Stop following.
    Unfollow(ReplyTo),
}

impl Ask {
    /// The text that an ask other than a publish refers to.
    pub(crate) fn text_mut(&mut self) -> Option<&mut Span> {
        match self {
            Ask::Attach(_, text)
            | Ask::AttachFilters(_, text, _)
            | Ask::LeaveFilter(text)
            | Ask::Topic { name: text, .. }
            | Ask::KeepLog { name: text, .. }
            | Ask::Follow { filter: text, .. } => Some(text),
            _ => None,
        }
    }
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
    /// All that is wanted is what the topic keeps: nobody subscribes, and no topic is made.
    pub once: bool,
    /// It wants the retained message, unless the first message of the subscription is newer.
    pub retained: bool,
    /// The client for which the topic is made, if it does not exist.
    pub client: Client,
    /// The address or user that asks: they share the work of reading.
    pub party: Party,
}

impl Attach {
    /// Whether it reads latest values, as [`LatestValues::Wait`](crate::mail::LatestValues::Wait) asked for.
    pub fn reads_values(&self) -> bool {
        self.again && self.retained && self.since != Since::Live
    }
}

/// Filters of one connection on their way to a home, which answers for all of them together, once for each partition.
#[derive(Clone, Copy, Debug)]
pub struct AttachFilters {
    /// The request to answer.
    pub to: ReplyTo,
    /// The serial of the filters' group at the connection.
    pub serial: u32,
    /// The partition to be read; `None` stands for all partitions of the home, each with an answer of its own.
    pub partition: Option<PartitionId>,
    /// Where to begin.
    pub since: Since,
    /// For a further page: up to here only messages kept by `latest` or retained are wanted, see
    /// [`FilterPage::from`](crate::mail::FilterPage::from).
    pub from: u64,
    /// Of each topic only so many of the newest messages are wanted, up to `from`; 0: what the last line says.
    pub newest: u32,
    /// For a further page: losses up to this number do not count, see [`FilterPage::base`](crate::mail::FilterPage::base).
    pub base: u64,
    /// A long-poll: one message is enough.
    pub poll: bool,
    /// A further page: the filters are registered already.
    pub again: bool,
    /// The address or user that asks: they share the work of reading.
    pub party: Party,
}

/// The state that an MQTT connection gives back when it ends.
#[derive(Debug)]
pub struct ClosingSession {
    /// The session.
    pub id: SessionId,
    /// The client that the session is counted for.
    pub owner: Client,
    /// Its kept state, unless the session ends too.
    pub kept: Option<SavedSession>,
    /// The message to publish then.
    pub will: Option<Box<Will>>,
    /// Charges the two on their way home.
    pub passage: Passage,
}

impl ClosingSession {
    /// A session on its way home, which is charged until it is there.
    pub fn new(
        id: SessionId,
        owner: Client,
        kept: Option<SavedSession>,
        will: Option<Box<Will>>,
        admission: &Admission,
    ) -> Box<ClosingSession> {
        let state = kept.as_ref().map_or(0, |kept| kept.state.bytes.len());
        let bytes = state + will.as_ref().map_or(0, |will| will.bytes());
        let passage = Passage::new(admission, size_of::<ClosingSession>() + bytes);
        Box::new(ClosingSession {
            id,
            owner,
            kept,
            will,
            passage,
        })
    }
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
