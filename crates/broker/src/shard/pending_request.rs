//! Requests to a home that wait for the engine, and whom each answers.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::Client;
use crate::home::Reserved;
use crate::mail::{Answer, Ask};

/// A request of a shard.
pub(crate) struct PendingRequest {
    pub from: ShardId,
    /// The part of the sender's credit that is given back when it takes effect.
    pub weight: usize,
    pub request: Request,
}

pub(crate) enum Request {
    /// To be carried out as it was asked, with its bytes.
    Ask(Box<(Ask, Vec<u8>)>),
    /// It was answered: it was late.
    Answered,
    /// A fact.
    Fact {
        /// One that stands in no log, in the form of a record.
        unlogged: Option<Box<[u8]>>,
        answer: Answer,
        client: Client,
        reserved: Reserved,
        /// A message that may be published once only: its publisher waits for the outcome, however late it is.
        once: bool,
    },
}
