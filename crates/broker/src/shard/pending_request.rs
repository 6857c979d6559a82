//! The requests that wait at a home, which is the shard that orders and stores the messages of a topic. They wait until the engine (the log
//! on disk or in a cluster) has committed a batch.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::Client;
use crate::home::Reserved;
use crate::mail::{Ask, WantedAnswer};

pub(crate) struct PendingRequest {
    pub from: ShardId,
    /// The credit that the sending shard gets back when the request takes effect.
    pub weight: usize,
    pub request: Request,
}

impl PendingRequest {
    /// A request that has no credit to give back.
    pub fn new(from: ShardId, request: Request) -> PendingRequest {
        PendingRequest {
            from,
            weight: 0,
            request,
        }
    }

    /// An [`Ask`] that refers to no bytes outside of itself.
    pub fn of_ask(from: ShardId, ask: Ask) -> PendingRequest {
        PendingRequest::new(from, Request::Ask(Box::new((ask, Vec::new()))))
    }
}

pub(crate) enum Request {
    /// A request that the engine does not store. It waits for the earlier changes. The second field has the names and other bytes to which
    /// the [`Ask`] refers.
    Ask(Box<(Ask, Vec<u8>)>),
    /// A request that waited so long that it was already answered: its outcome is unknown.
    Answered,
    /// The record of a session that has ended, or whose will was published. Then homes forget the QoS 2 messages of the session, and the will, with these
    /// tokens; 0: there is none.
    EndRecorded([u64; 2]),
    /// A change of a topic, such as a message.
    Fact {
        /// The encoded change, if the topic is not durable, so that the engine does not store the change.
        unlogged: Option<Box<[u8]>>,
        answer: WantedAnswer,
        client: Client,
        reserved: Reserved,
        /// Whether the change is a message with MQTT QoS 2, or the will of a recorded session. Then the publisher waits for the real outcome, however
        /// long that takes. Other publishers are told after some time that the outcome is unknown.
        once: bool,
    },
}
