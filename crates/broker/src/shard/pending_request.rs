//! The requests to a home that wait until the engine has committed a batch.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::Client;
use crate::home::Reserved;
use crate::mail::{Answer, Ask};

pub(crate) struct PendingRequest {
    pub from: ShardId,
    /// The sender's credit, given back when the request takes effect.
    pub weight: usize,
    pub request: Request,
}

pub(crate) enum Request {
    /// An ask, with its bytes.
    Ask(Box<(Ask, Vec<u8>)>),
    /// The request was late and has been answered.
    Answered,
    Fact {
        /// The encoded fact, if it is not logged.
        unlogged: Option<Box<[u8]>>,
        answer: Answer,
        client: Client,
        reserved: Reserved,
        /// The message has MQTT QoS 2: the publisher gets no answer that the outcome is unknown, but waits for the outcome.
        once: bool,
    },
}
