//! Mail between shards. In a turn, a shard sends at most one mail to each other shard. Mail arrives in order.
//!
//! A *carrier* (the shard of a connection) **asks** a *home* (the shard of a topic's log), and a home **tells** carriers. A message is sent to
//! each shard once: all frames of a turn are in one shared [`Frames`], and each tell refers to its frame by a span.
//!
//! `backend` has the calls of clients to the operator's backend, and its answers, which threads of the server carry. `lanes` collects asks and tells during a turn and makes the mail.

pub mod backend;
pub mod fields;
pub mod hooks;
pub(crate) mod lanes;
pub mod message;
pub mod orders;
pub mod peer_presence;
pub mod presence;
pub(crate) mod properties;
pub(crate) mod session;
pub(crate) mod spill_buffer;

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

pub use answer::{
    AttachOutcome, Outcome, RemoteSubscribers, ReplyTo, TopicInfo, WantedAnswer, WillOutcome,
};
pub use ask::{
    Ask, Attach, AttachFilters, ClosingSession, LeaveGroup, RecordSession, RecordedClaim,
    ReleaseAt, SessionContent, TopicRequest, UnackedMessage,
};
pub use fact::{Change, Fact, FactTopic};
pub use frames::{FRAMES_KEPT_BYTES, Frames, NO_CLIENT, ORIGIN_BYTES, Record};
pub use interest::{InterestChanges, InterestPart};
pub use session::record as session_record;
pub use span::Span;
pub use tell::{FilterPage, LatestValues, Page, SessionCommands, SessionReply, Tell};

/// All mail from one shard to another in one turn.
pub struct Mail {
    /// The sender.
    pub from: ShardId,
    /// Asks for the receiver's home.
    pub asks: Vec<Ask>,
    /// The bytes that the asks' spans refer to.
    pub bytes: Vec<u8>,
    /// The bytes of the sender's credit that the asks use.
    pub weight: usize,
    /// Tells of the sender's home for the receiver's connections.
    pub tells: Vec<Tell>,
    /// The frames that the tells' records refer to.
    pub frames: Option<Arc<Frames>>,
    /// The bytes of credit that return to the receiver: the weight of the receiver's earlier asks that the sender has handled.
    pub credit_bytes: usize,
    /// When the sender read the messages that the asks publish: the time of the sender's turn ([`Shard::set_turn_time`](crate::Shard::set_turn_time)).
    pub stamp: u64,
}
