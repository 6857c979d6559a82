//! The kinds of requests and of their outcomes, which the code that reads requests (`http`), judges them (`judge`) and carries them
//! out has in common.

use alloc::vec::Vec;

use crate::mail::TopicRequest;

/// The kind of request that a path stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Publish,
    Subscribe,
    PubSub,
    Interest,
    History,
}

impl Door {
    /// Whether a `GET` there holds a place for what comes later.
    pub(crate) fn subscribes(self) -> bool {
        matches!(self, Door::Subscribe | Door::PubSub | Door::Interest)
    }
}

/// The request was answered from its head alone.
pub(crate) struct Answered;

/// The task of a request whose head was accepted.
pub(crate) enum Task {
    /// An upgrade to a WebSocket that carries another protocol.
    Upgrade,
    /// Following which topics have subscribers.
    Follow { upgrade: bool },
    /// Many messages, each with its topic.
    Batch,
    /// One message.
    Publish(Vec<u8>),
    /// Frames to publish.
    PublishFrames(Vec<u8>),
    /// Something done to a topic as a whole.
    Verb(TopicRequest, Vec<u8>),
    /// The kept messages of a topic.
    History(Vec<u8>),
    /// Messages of these topics or filters.
    Subscribe {
        names: Vec<Vec<u8>>,
        filtered: bool,
        publishes: bool,
        upgrade: bool,
    },
}

/// The effect of a request on its connection.
pub(crate) enum Flow {
    /// Answered in `reply`; the next request may follow.
    Next,
    /// The answer comes later, or the connection is no longer HTTP.
    Wait,
}
