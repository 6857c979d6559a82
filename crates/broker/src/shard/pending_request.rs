//! The requests that wait at a home, the shard that orders and stores the messages of a topic, until the engine (the log on disk or in a
//! cluster) has committed their records or the records before them.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::Client;
use crate::home::Reservation;
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

    /// An [`Ask`] that refers to no other bytes.
    pub fn of_ask(from: ShardId, ask: Ask) -> PendingRequest {
        PendingRequest::new(from, Request::Ask(Box::new((ask, Vec::new()))))
    }
}

pub(crate) enum Request {
    /// An ask, which waits for the earlier changes, or for its record if it concerns a session. The second field has the names and other
    /// bytes to which the [`Ask`] refers.
    Ask(Box<(Ask, Vec<u8>)>),
    /// A request that needs no answer: nobody waits for its record, or it was answered already because it waited too long.
    Answered,
    /// The record of a session that has ended, or whose will was published. When it is committed, homes forget the QoS 2 messages of the
    /// session with the first token, and the will with the second. 0: there is none.
    EndRecorded([u64; 2]),
    /// A change of a topic, such as a message.
    Fact {
        /// The encoded change, if the topic is not durable, so that the change has no record.
        unlogged: Option<Box<[u8]>>,
        answer: WantedAnswer,
        client: Client,
        reserved: Reservation,
        /// Whether the change is a message with MQTT QoS 2, or the will of a recorded session. Its publisher waits for the real outcome,
        /// however long that takes. Other publishers are told after some time that the outcome is unknown.
        once: bool,
    },
}
