//! The kinds of requests and their outcomes, shared by the code that reads (`request`), judges (`judge`) and processes requests.

use alloc::vec::Vec;

use crore_wire::http::head::Head;

use crate::base::reason::Reason;
use crate::home::Home;
use crate::io::Io;
use crate::mail::TopicRequest;
use crate::protocol::front::{Clients, Connections, Context, Front};

/// What HTTP leaves to the protocols whose connections begin as an HTTP request, or in place of one. `protocol/requests.rs` implements it.
pub(crate) trait Requests {
    /// Processes a request that was accepted.
    fn carry_out<I: Io>(
        front: &mut Front,
        slot: u32,
        head: &Head<'_>,
        task: Task,
        body: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Flow;
    /// Changes the connection to another protocol if its first byte begins that protocol. Returns whether it did.
    fn switch_if_other(conns: &mut Connections, slot: u32, first: u8) -> bool;
    /// Changes the connection to HTTP/2 if these are the first bytes of one that may speak it. Returns whether it did.
    fn switch_if_http2<I: Io>(clients: &mut Clients, slot: u32, bytes: &[u8], io: &I) -> bool;
    /// The task of a request that is for another protocol by its subprotocol or its path, or the reason to refuse the request. `None` if it is for none.
    fn task_for_other_protocol(
        ctx: &Context,
        head: &Head<'_>,
        upgrade: bool,
    ) -> Option<Result<Task, Reason>>;
    /// The methods that pages of other sites may use on a path of another protocol. `None` if this is no such path.
    fn methods_of_other_protocol(ctx: &Context, path: &[u8]) -> Option<&'static str>;
    /// Whether a request to this path may carry commands of another protocol, by any method.
    fn is_command_path(ctx: &Context, path: &[u8]) -> bool;
}

/// The kind of request that a path selects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Publish,
    Subscribe,
    PubSub,
    Interest,
    History,
    Presence,
}

impl Endpoint {
    /// Whether a `GET` of this endpoint subscribes or watches. The numbers of subscribers and watchers are limited.
    pub(crate) fn is_subscription(self) -> bool {
        matches!(
            self,
            Endpoint::Subscribe | Endpoint::PubSub | Endpoint::Interest | Endpoint::Presence
        )
    }
}

/// The request was answered after its head alone.
pub(crate) struct Answered;

/// What an accepted request demands.
pub(crate) enum Task {
    /// A change to another protocol: an upgrade to a WebSocket that carries it, or an answer that does not end.
    Upgrade,
    /// Hand commands to the connection of their session.
    Commands,
    /// Follow which topics have subscribers.
    Follow { upgrade: bool },
    /// Report who subscribes to a topic, now or from now on.
    Presence { name: Vec<u8>, upgrade: bool },
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
        is_by_filter: bool,
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
