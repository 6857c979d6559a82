//! Mail between shards: one mail per peer and turn, in order.
//!
//! A *carrier* (the shard that holds a connection) **asks** a *home* (the shard that holds a
//! topic's log); a home **tells** carriers. Messages cross once per shard: the frames of a turn lie
//! side by side in one shared [`Frames`], and each tell names its span. `ask` and `tell` have what they say, `fact` what
//! changes topics, `answer` whom a home answers and how what was asked has ended, `news` what followers of interest are told; `lanes` makes the mail.

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
    /// The bytes that the asks count against the sender's credit.
    pub weight: usize,
    /// Tells to the receiver as a carrier.
    pub tells: Vec<Tell>,
    /// The frames that the tells' records refer to.
    pub frames: Option<Arc<Frames>>,
    /// The weight of earlier asks that the sender has handled: the receiver may send as much again.
    pub credit_bytes: usize,
    /// When the messages that the asks publish were read: [`Shard::stamp`](crate::Shard::stamp) of the sender's turn.
    pub stamp: u64,
}
