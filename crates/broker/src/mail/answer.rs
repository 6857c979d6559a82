//! Answers of a home (the part of a shard that keeps topics): the request that an answer belongs to, and the outcome of an attach (a
//! request to subscribe), a publish or a change of a topic.
//!
//! An *epoch* is a number in each position, which changes with each start on the log.

use crate::base::ids::{ConnId, Ticket};
use crate::base::reason::Reason;
use crate::store::slab::NONE;

/// The request of a connection that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyTo {
    /// The connection's row.
    pub slot: u32,
    /// Distinguishes the connections that have used the row.
    pub generation: u16,
    /// The number of the request at the connection.
    pub request: u16,
    /// The topic, if the request names several, or the line of a batch.
    pub part: u32,
}

impl ReplyTo {
    /// The shard itself, for the outcome of the will with this number.
    pub(crate) fn of_will(number: u32) -> ReplyTo {
        ReplyTo {
            slot: NONE,
            generation: 0,
            request: 0,
            part: number,
        }
    }

    /// The connection.
    pub(crate) fn connection(self) -> ConnId {
        ConnId {
            slot: self.slot,
            generation: self.generation,
        }
    }

    /// Whether the answer is the outcome of a will, so that no connection waits for it.
    pub(crate) fn is_of_will(self) -> bool {
        self.slot == NONE
    }
}

/// The answer that a publisher wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    None,
    /// The outcome and the topic's info.
    Full(ReplyTo),
    /// The outcome, only if it is a failure (for a line of a batch).
    Failure(ReplyTo),
    /// A report to the operator who gave this order.
    Order(Ticket),
}

/// The outcome of an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attached {
    /// The subscription has begun.
    #[default]
    Yes,
    /// The topic was deleted after the requested position.
    Gone,
    /// The topic does not exist, and only publishers may create it.
    Forbidden,
    /// Another long-poll is waiting, and it has precedence.
    Conflict,
    /// There is no room for another topic, or the client creates topics too fast.
    Full(Reason),
}

impl Attached {
    /// Why the subscription has not begun.
    pub(crate) fn refusal(self) -> Reason {
        match self {
            Attached::Gone => Reason::Deleted,
            Attached::Forbidden => Reason::NotCreated,
            Attached::Conflict => Reason::Occupied,
            Attached::Full(reason) => reason,
            Attached::Yes => unreachable!("it has begun"),
        }
    }
}

/// The state of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Number of kept messages.
    pub messages: u32,
    /// Seconds since a subscriber last asked, if one did.
    pub requested_s: Option<u32>,
    /// Number of connected subscribers.
    pub subscribers: u32,
    /// Whether a subscriber, perhaps a disconnected one, needs the messages to be kept.
    pub wanted: bool,
    /// The offset of the newest message, or, without one, the offset at which the topic was created.
    pub offset: u64,
    /// The epoch of the log.
    pub epoch: u32,
}

/// Subscribers of a topic at the other nodes of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSubscribers {
    /// Subscribers at the nodes that answered.
    pub subscribers: u32,
    /// Number of nodes that did not answer.
    pub unanswered: u32,
}

/// The answer to a publish or to a [`TopicRequest`](crate::mail::TopicRequest).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done: the topic is created, or the message is published.
    Done(Info),
    /// The topic to create existed already.
    Existed(Info),
    /// There is no such topic.
    Missing,
    /// This many messages were removed from the log.
    Purged(u32),
    /// There is no room for another topic, or the client creates topics too fast.
    Full(Reason),
    /// A publish with this idempotency key was done before. This is the answer to that publish.
    Replayed(Info),
    /// The idempotency key was used before with another message; nothing was published.
    OtherMessage,
    /// The engine, which writes the log, has not answered in time: the request may be done or not. If the log has one writer, the request
    /// may still be done later.
    Unknown,
}

impl Outcome {
    /// Why a publish was refused; `None` if it was done.
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
