//! Answers of a home: to which request, and the outcome of an attach, a publish or an action on a topic.

use crate::base::ids::Ticket;
use crate::base::reason::Reason;

/// The request of a connection that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The report of an order.
    Order(Ticket),
}

/// The outcome of an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attached {
    /// The subscription has begun.
    #[default]
    Yes,
    /// The topic was deleted and the position is older.
    Gone,
    /// Only publishers may create topics here, and none has done so.
    Forbidden,
    /// Another long-poll waits and stays.
    Conflict,
    /// No room for another topic, or the client creates too many.
    Full(Reason),
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

/// Subscribers of a topic at the other nodes of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSubscribers {
    /// Those of the nodes that answered.
    pub subscribers: u32,
    /// Nodes that did not.
    pub unanswered: u32,
}

/// The answer to a publish or to a [`TopicRequest`](crate::mail::TopicRequest).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done. A create has made the topic; a publish may have found subscribers.
    Done(Info),
    /// The topic to create existed already.
    Existed(Info),
    /// There is no such topic.
    Missing,
    /// So many messages of the log were removed.
    Purged(u32),
    /// No room for another topic, or the client creates too many.
    Full(Reason),
    /// A publish with this idempotency key was done before; this is its answer.
    Replayed(Info),
    /// The idempotency key came with another message before; nothing was published.
    OtherMessage,
    /// The engine has not answered for long: it may be done or not. Where the log has one writer, it may be done later.
    Unknown,
}

impl Outcome {
    /// Why a publish was refused; none where it was done.
    pub fn refusal(self) -> Option<Reason> {
        match self {
            Outcome::Full(reason) => Some(reason),
            Outcome::Missing => Some(Reason::TopicsFull),
            Outcome::OtherMessage => Some(Reason::OtherMessage),
            Outcome::Unknown => Some(Reason::OutcomeUnknown),
            Outcome::Done(_) | Outcome::Existed(_) | Outcome::Replayed(_) | Outcome::Purged(_) => {
                None
            }
        }
    }
}
