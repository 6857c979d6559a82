//! Requests to a home that wait for the engine, and whom each answers.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::budget::admission::Client;
use crate::home::Reserved;
use crate::mail::{Answer, Ask, ReplyTo};

/// A request of a shard.
pub(crate) struct Waiting {
    pub from: ShardId,
    /// The part of the sender's credit that is given back when it takes effect.
    pub weight: usize,
    /// A message that may be published once only: its publisher waits for the outcome, however late it is.
    pub once: bool,
    pub request: Request,
}

pub(crate) enum Request {
    /// To be carried out as it was asked, with its bytes.
    Ask(Box<(Ask, Vec<u8>)>),
    /// It was answered: it was late.
    Answered,
    /// A fact: the answer that is due, the client, and what is reserved.
    Fact(Answer, Client, Reserved),
    /// A fact that stands in no log, in the form of a record, likewise.
    Unlogged(Box<[u8]>, Answer, Client, Reserved),
    /// A record about the partition, or about this process: nobody waits for it.
    Note,
}

/// The answer to a late request.
pub(crate) enum LateAnswer {
    /// That the outcome is not known.
    Outcome(Answer),
    /// That all that was asked before is done or was answered.
    Fence(ReplyTo),
}

impl Waiting {
    /// A note of this shard: nobody is answered.
    pub fn note(me: ShardId) -> Waiting {
        Waiting {
            from: me,
            weight: 0,
            once: true,
            request: Request::Note,
        }
    }

    /// It is late: whom to answer, if an answer is due. There is no second one when it takes effect.
    pub fn answer_late(&mut self) -> Option<(ShardId, LateAnswer)> {
        let due = match &mut self.request {
            // A second copy must not be acknowledged while the first is in flight (MQTT QoS 2).
            Request::Fact(..) if self.once => return None,
            Request::Fact(answer, ..) => {
                LateAnswer::Outcome(core::mem::replace(answer, Answer::None))
            }
            Request::Ask(ask) => {
                let due = match ask.0 {
                    Ask::Topic { answer, .. } => LateAnswer::Outcome(answer),
                    Ask::Fence(to) => LateAnswer::Fence(to),
                    _ => return None,
                };
                self.request = Request::Answered;
                due
            }
            Request::Unlogged(..) if self.once => return None,
            Request::Unlogged(_, answer, ..) => {
                LateAnswer::Outcome(core::mem::replace(answer, Answer::None))
            }
            Request::Answered | Request::Note => return None,
        };
        Some((self.from, due))
    }
}
