//! The answers of a home (the part of a shard that keeps topics) to an *attach* (a request to subscribe), a publish, or a change of a
//! topic. [`ReplyTo`] identifies the request.
//!
//! Each start on the log gets a new number, the *epoch*. Every position contains its epoch.

use crate::base::ids::{ConnId, Ticket};
use crate::base::reason::Reason;
use crate::store::slab::NONE;

/// The request that an answer is for, and the connection that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyTo {
    /// The connection's row.
    pub slot: u32,
    /// The row's generation: each connection that takes the row gets a new one.
    pub generation: u16,
    /// The number of the connection's request.
    pub request: u16,
    /// The index of the topic in the request, the line of the batch, or the number of a will.
    pub part: u32,
}

impl ReplyTo {
    /// The address for the outcome of a will. The shard reads this outcome, and no connection waits for it.
    pub(crate) fn for_will(number: u32) -> ReplyTo {
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

    /// Whether the answer is the outcome of a will.
    pub(crate) fn is_for_will(self) -> bool {
        self.slot == NONE
    }
}

/// The answer that a publisher wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedAnswer {
    /// Nothing.
    None,
    /// The outcome and the topic's info.
    OutcomeAndInfo(ReplyTo),
    /// The outcome of a line of a batch, only if it is a failure.
    Failure(ReplyTo),
    /// A report to the operator who gave this order.
    Report(Ticket),
}

/// The outcome of an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachOutcome {
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
    NoRoom(Reason),
}

impl AttachOutcome {
    /// The reason why the subscription has not begun. Must not be called for `Yes`.
    pub(crate) fn refusal(self) -> Reason {
        match self {
            AttachOutcome::Gone => Reason::Deleted,
            AttachOutcome::Forbidden => Reason::NotCreated,
            AttachOutcome::Conflict => Reason::Occupied,
            AttachOutcome::NoRoom(reason) => reason,
            AttachOutcome::Yes => unreachable!("it has begun"),
        }
    }
}

/// The state of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicInfo {
    /// Number of kept messages.
    pub messages: u32,
    /// Seconds since a subscriber last requested messages, if there was one.
    pub requested_s: Option<u32>,
    /// Number of connected subscribers.
    pub subscribers: u32,
    /// Whether the messages are kept for a subscriber, who may be disconnected.
    pub needs_log: bool,
    /// The offset of the newest message; without a message, the offset at which the topic was created.
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
    Done(TopicInfo),
    /// The topic was not created, since it exists already.
    Existed(TopicInfo),
    /// There is no such topic.
    Missing,
    /// This many messages were removed from the log.
    Purged(u32),
    /// There is no room for another topic, key or message, or the client creates topics too fast.
    NoRoom(Reason),
    /// A publish with this idempotency key was done before. The info is the answer to that publish.
    Replayed(TopicInfo),
    /// The idempotency key was used before with another message; nothing was published.
    OtherMessage,
    /// The engine, which writes the log, has not answered in time, so it is unknown whether the request is done. With a single writer, the
    /// request may still be done later.
    Unknown,
}

/// The outcome of the publish of a recorded session's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WillOutcome {
    /// The will is published, or can never be published.
    Published,
    /// A limit has refused the will for now.
    Refused,
    /// It is unknown whether the will is published.
    Unknown,
}

impl Outcome {
    /// The reason why a publish was refused, or for an unknown outcome; `None` if the publish was done.
    pub fn refusal(self) -> Option<Reason> {
        match self {
            Outcome::NoRoom(reason) => Some(reason),
            Outcome::Missing => Some(Reason::TopicsFull),
            Outcome::OtherMessage => Some(Reason::OtherMessage),
            Outcome::Unknown => Some(Reason::OutcomeUnknown),
            Outcome::Done(_) | Outcome::Existed(_) | Outcome::Replayed(_) | Outcome::Purged(_) => {
                None
            }
        }
    }
}
