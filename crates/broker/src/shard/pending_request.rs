//! The requests that wait at a home (the part of a shard that keeps topics) until the engine (which writes the log) has committed their records, or the
//! records of earlier requests.

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
    /// An ask, and the names and other bytes to which the [`Ask`] refers. It waits for earlier requests, or for its own record if it concerns a session.
    Ask(Box<(Ask, Vec<u8>)>),
    /// A request that needs no answer: nobody waits for its record, or it was answered already because it waited too long.
    Answered,
    /// The record of a session that has ended, or whose will was published. When the record is committed, homes forget the QoS 2 messages of the session
    /// with the first token, and the will with the second token. A token is 0 if there is none.
    EndRecorded([u64; 2]),
    /// A message, or a change of a topic.
    Fact {
        /// The encoded fact, if the topic is not durable, so that the fact has no record in the log.
        unlogged: Option<Box<[u8]>>,
        answer: WantedAnswer,
        client: Client,
        reserved: Reservation,
        /// Whether the fact is a message with MQTT QoS 2 whose session may outlive its connection, or the will of a recorded session. Its publisher waits for
        /// the real outcome, however long that takes. Other publishers are told after some time that the outcome is unknown.
        is_exactly_once: bool,
    },
}
