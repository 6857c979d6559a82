//! Messages of a home to a carrier: messages, pages of the past, and the answers to its asks.

use alloc::boxed::Box;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::{ConnId, PartitionId};
use crate::budget::admission::Client;
use crate::mail::answer::{Attached, Outcome, ReplyTo};
use crate::mail::frames::{Frames, Record};
use crate::mail::interest::{InterestChanges, InterestPart};
use crate::mail::session::{SavedSession, SessionId};

/// From a home to a carrier.
#[derive(Clone, Debug)]
pub enum Tell {
    /// A message, for every subscriber that has read up to the head.
    Live {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
        /// The message.
        record: Record,
    },
    /// A bounded part of the past, for one subscriber.
    Page {
        /// The carrier's topic row.
        topic: u32,
        /// The subscriber.
        to: ReplyTo,
        /// The page.
        page: Page,
    },
    /// A message, for all subscribers of its topic and of filters that match it.
    Match {
        /// The carrier's topic row, or `NONE`.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
        /// The partition of the topic.
        partition: PartitionId,
        /// The place of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// A bounded part of the past, for one subscriber by filter.
    Matches {
        /// The subscriber.
        to: ReplyTo,
        /// The serial of the filters' group at the connection.
        serial: u32,
        /// The page.
        page: FilterPage,
    },
    /// The topic was deleted.
    Gone {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
    },
    /// A later long-poll displaces the waiting ones.
    Displaced {
        /// The carrier's topic row.
        topic: u32,
        /// Counts the uses of the row.
        serial: u16,
    },
    /// The answer to a publisher.
    Outcome(ReplyTo, Outcome),
    /// All asks before an [`Ask::Fence`](crate::mail::Ask::Fence) are done.
    Fenced(ReplyTo),
    /// To a member of a shared subscription: the group, unless there is no room for its filter.
    GroupJoined {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: Option<u64>,
        /// Whether the home counted its session as a new subscriber.
        counts: bool,
    },
    /// A message for a member of a group.
    Shared {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: u64,
        /// The place of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// To an MQTT client that connects.
    Session(ReplyTo, Box<SessionReply>),
    /// To an MQTT connection: another one has claimed its session.
    SessionTaken(ConnId),
    /// Topics that now have subscribers, or no longer have any.
    Interest {
        /// The follower.
        to: ReplyTo,
        /// The topics.
        news: InterestChanges,
        /// Whether it is news or a page of the snapshot.
        part: InterestPart,
    },
}

impl Tell {
    /// The carrier's topic row: tells of one topic keep their order.
    pub fn topic(&self) -> Option<u32> {
        match self {
            Tell::Live { topic, .. }
            | Tell::Match { topic, .. }
            | Tell::Page { topic, .. }
            | Tell::Gone { topic, .. }
            | Tell::Displaced { topic, .. } => Some(*topic),
            Tell::Matches { .. }
            | Tell::Outcome(..)
            | Tell::Fenced(_)
            | Tell::GroupJoined { .. }
            | Tell::Shared { .. }
            | Tell::Session(..)
            | Tell::SessionTaken(_)
            | Tell::Interest { .. } => None,
        }
    }
}

/// The answer to an attach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// The outcome; the rest counts only for [`Attached::Yes`], and `head` for [`Attached::Gone`] too.
    pub attached: Attached,
    /// The records, within [`Frames::pages`](crate::mail::Frames::pages).
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The subscriber's offset after this page, or the offset at which the topic was deleted.
    pub head: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// Unix second of the newest kept message, if there is one.
    pub newest_s: Option<u32>,
    /// The page reaches the end of the log: live messages follow.
    pub at_head: bool,
    /// Whether messages between the position asked for and this page are lost.
    pub gap: bool,
    /// The answer to an attach that was counted before.
    pub again: bool,
    /// Whether the home counted a subscriber: the carrier owes it an [`Ask::Leave`](crate::mail::Ask::Leave).
    pub counted: bool,
    /// The number of records, from the first on, that are the topic's retained state.
    pub retained: u32,
    /// Only retained messages were asked for: the subscriber's offset does not change.
    pub only_retained: bool,
    /// Whether the topic's retained state is many messages, which are not among those above.
    pub values: LatestValues,
}

/// The latest values of a topic whose rule keeps only those, for a subscriber that wants what is retained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LatestValues {
    /// There are none, or the page has them as its ordinary messages.
    #[default]
    None,
    /// They are to be asked for.
    Wait,
    /// The records of this page are some of them.
    These,
}

/// The answer to an attach by filter.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilterPage {
    /// The outcome; the rest counts only for [`Attached::Yes`], and `head` for [`Attached::Gone`] too.
    pub attached: Attached,
    /// The partition that was read.
    pub partition: PartitionId,
    /// The records, within [`Frames::pages`](crate::mail::Frames::pages).
    pub first: u32,
    /// How many.
    pub count: u32,
    /// The names of their topics, within [`Frames::names`](crate::mail::Frames::names).
    pub names: u32,
    /// The subscriber's offset in this partition after this page.
    pub head: u64,
    /// Where the subscription began; messages up to here belong to the snapshot of latest values and retained messages.
    pub from: u64,
    /// The number of the last loss when the subscription began: losses up to it are no gap. 0 when it began with a
    /// position.
    pub base: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// The page reaches the end of the log: live messages follow.
    pub at_head: bool,
    /// Whether messages between the position asked for and the end of this page are lost.
    pub gap: bool,
}

impl FilterPage {
    /// Its records, each with the number of its topic's name.
    pub fn records<'a>(
        &self,
        frames: &'a Frames,
    ) -> impl Iterator<Item = (u32, &'a Record)> + Clone {
        let (first, names) = (self.first as usize, self.names as usize);
        let names = &frames.names[names..names + self.count as usize];
        let records = &frames.pages[first..first + self.count as usize];
        names.iter().copied().zip(records)
    }
}

/// The answer to a client that wants its session.
#[derive(Clone, Debug)]
pub enum SessionReply {
    /// It has it.
    Yes {
        /// The session.
        id: SessionId,
        /// The client that the session is counted for.
        owner: Client,
        /// The state that it left when its last connection ended.
        kept: Option<SavedSession>,
    },
    /// The client is refused.
    Refused(ReasonCode),
}
