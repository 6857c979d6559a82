//! Mail between shards: one mail per peer and turn, in order.
//!
//! A *carrier* (the shard that holds a connection) **asks** a *home* (the shard that holds a topic's log); a home **tells** carriers. A message
//! crosses to each shard once: all frames of a turn are in one shared [`Frames`], and each tell refers to its frame by a span.
//!
//! `ask` and `tell` define these requests and replies, `fact` the changes of topics, `answer` the addressee and the outcome of a request,
//! `interest` the notifications of followers. `lanes` collects all of them during a turn and makes the mail.

pub mod fields;
pub(crate) mod inbox;
pub(crate) mod lanes;
pub mod message;
pub mod orders;
pub(crate) mod properties;
pub(crate) mod session;

mod answer;
mod ask;
mod fact;
mod frames;
mod interest;
mod span;
mod tell;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::ShardId;

pub use answer::{Answer, Attached, Info, Outcome, RemoteSubscribers, ReplyTo};
pub use ask::{Ask, Attach, AttachFilters, ClosingSession, LeaveGroup, TopicRequest, Unacked};
pub use fact::{Change, Fact};
pub use frames::{FRAMES_KEPT_BYTES, Frames, NO_CLIENT, ORIGIN_BYTES, Record};
pub use interest::{InterestChanges, InterestPart};
pub use span::Span;
pub use tell::{FilterPage, LatestValues, Page, SessionReply, Tell};

/// All mail from one shard to another in one turn.
pub struct Mail {
    /// The sender.
    pub from: ShardId,
    /// Asks to the receiver as a home.
    pub asks: Vec<Ask>,
    /// The bytes that the asks' spans refer to.
    pub bytes: Vec<u8>,
    /// The bytes of the sender's credit that the asks use.
    pub weight: usize,
    /// Tells to the receiver as a carrier.
    pub tells: Vec<Tell>,
    /// The frames that the tells' records refer to.
    pub frames: Option<Arc<Frames>>,
    /// Credit given back: the weight of earlier asks of the receiver that the sender has handled.
    pub credit_bytes: usize,
    /// When the sender read the messages that the asks publish: the [`Shard::stamp`](crate::Shard::stamp) of its turn.
    pub stamp: u64,
}
