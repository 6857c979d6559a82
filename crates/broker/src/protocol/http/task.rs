//! The kinds of requests and their outcomes, shared by the code that reads (`request`), judges (`judge`) and processes requests.

use alloc::vec::Vec;

use crate::mail::TopicRequest;

/// The kind of request that a path selects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Publish,
    Subscribe,
    PubSub,
    Interest,
    History,
}

impl Endpoint {
    /// Whether a `GET` there subscribes, and so takes a place that is limited.
    pub(crate) fn subscribes(self) -> bool {
        matches!(
            self,
            Endpoint::Subscribe | Endpoint::PubSub | Endpoint::Interest
        )
    }
}

/// The request was answered after its head alone.
pub(crate) struct Answered;

/// What an accepted request demands.
pub(crate) enum Task {
    /// An upgrade to a WebSocket that carries another protocol.
    Upgrade,
    /// Follow which topics have subscribers.
    Follow { upgrade: bool },
    /// Publish many messages, each with its topic.
    Batch,
    /// Publish one message.
    Publish(Vec<u8>),
    /// Publish the frames of a WebSocket.
    PublishFrames(Vec<u8>),
    /// Report the state of a topic, or change the topic.
    Verb(TopicRequest, Vec<u8>),
    /// Send the kept messages of a topic.
    History(Vec<u8>),
    /// Subscribe to these topics or filters.
    Subscribe {
        names: Vec<Vec<u8>>,
        filtered: bool,
        publishes: bool,
        upgrade: bool,
    },
}

/// What happens to the connection after a request.
pub(crate) enum Flow {
    /// The answer is in `reply`. The next request may follow.
    Next,
    /// The answer comes later, or the connection is no longer HTTP.
    Wait,
}
