//! Tells: messages of a home (the part of a shard that keeps topics) to a carrier (a shard with subscribers): live messages, pages of kept
//! messages, and answers to asks (the carrier's requests).
//!
//! Words: a *page* is a bounded run of past messages; a *gap* is the notice that messages are lost; a *follower* is a client that is told
//! which topics have subscribers.

use alloc::boxed::Box;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::{ConnId, PartitionId};
use crate::budget::admission::Client;
use crate::mail::answer::{Attached, Outcome, ReplyTo};
use crate::mail::frames::{Frames, Record};
use crate::mail::interest::{InterestChanges, InterestPart};
use crate::mail::presence::PresencePage;
use crate::mail::session::{SavedSession, SessionId};

/// A message or an answer of a home to a carrier.
#[derive(Clone, Debug)]
pub enum Tell {
    /// A new message, for every subscriber that has read all earlier messages.
    Live {
        /// The carrier's topic row.
        topic: u32,
        /// Distinguishes the topics that have used the row.
        serial: u16,
        /// The message.
        record: Record,
    },
    /// A page of kept messages, for one subscriber.
    Page {
        /// The carrier's topic row.
        topic: u32,
        /// The subscriber.
        to: ReplyTo,
        /// The page.
        page: Page,
    },
    /// A new message, for all subscribers of its topic and of filters that match it.
    Match {
        /// The carrier's topic row, or `NONE`.
        topic: u32,
        /// Distinguishes the topics that have used the row.
        serial: u16,
        /// The partition of the topic.
        partition: PartitionId,
        /// The position of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// A page of kept messages, for one subscriber by filter.
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
        /// Distinguishes the topics that have used the row.
        serial: u16,
    },
    /// A later long-poll displaces the waiting long-polls, which end.
    Displaced {
        /// The carrier's topic row.
        topic: u32,
        /// Distinguishes the topics that have used the row.
        serial: u16,
    },
    /// The answer to a publisher.
    Outcome(ReplyTo, Outcome),
    /// All asks before an [`Ask::Fence`](crate::mail::Ask::Fence) are done.
    Fenced(ReplyTo),
    /// The answer to an [`Ask::Release`](crate::mail::Ask::Release): whether this home knew the message. Its release is in the log.
    Released(ReplyTo, bool),
    /// The answer to a client that joins a shared subscription.
    GroupJoined {
        /// The member.
        to: ReplyTo,
        /// The group; `None` if there is no room for the filter.
        group: Option<u64>,
        /// Whether the home counted the member's session as a new subscriber.
        is_new_subscriber: bool,
    },
    /// A message for one member of a shared subscription.
    Shared {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: u64,
        /// The position of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// The answer to an MQTT client that connects.
    Session(ReplyTo, Box<SessionReply>),
    /// Another connection has taken over the session of this MQTT connection.
    SessionTaken(ConnId),
    /// Topics that got their first subscriber, or lost their last.
    Interest {
        /// The follower.
        to: ReplyTo,
        /// The topics.
        news: InterestChanges,
        /// Whether these are live changes or a page of the snapshot.
        part: InterestPart,
    },
    /// Members of a topic, for a reader or a watcher.
    Presence(ReplyTo, Box<PresencePage>),
}

impl Tell {
    /// The carrier's topic row, if the tell belongs to one topic. Tells of one topic keep their order.
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
            | Tell::Released(..)
            | Tell::GroupJoined { .. }
            | Tell::Shared { .. }
            | Tell::Session(..)
            | Tell::SessionTaken(_)
            | Tell::Interest { .. }
            | Tell::Presence(..) => None,
        }
    }
}

/// The answer to an attach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// The outcome. The other fields are valid only for [`Attached::Yes`], and `head` for [`Attached::Gone`] too.
    pub attached: Attached,
    /// The index of the first record in [`Frames::pages`](crate::mail::Frames::pages).
    pub first: u32,
    /// The number of records.
    pub count: u32,
    /// The subscriber's offset after this page, or the offset at which the topic was deleted.
    pub head: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// When the newest kept message was published, in Unix seconds, if there is one.
    pub newest_s: Option<u32>,
    /// Whether the page reaches the end of the log: live messages follow.
    pub at_head: bool,
    /// Whether messages between the requested position and this page are lost.
    pub gap: bool,
    /// Whether the subscription was counted before, because this page answers an attach with `is_next_page`.
    pub is_next_page: bool,
    /// Whether the home has counted a subscriber, so that the carrier must send an [`Ask::Leave`](crate::mail::Ask::Leave) later.
    pub counted: bool,
    /// The number of records at the beginning of the page that are the topic's retained state.
    pub retained: u32,
    /// Whether only retained messages were requested. Then the subscriber's offset does not change.
    pub only_retained: bool,
    /// The topic's retained state, if its rule keeps latest values.
    pub values: LatestValues,
}

/// The latest values of a topic whose rule keeps only latest values, for a subscriber that requests retained messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LatestValues {
    /// There are no latest values, or the page has them as ordinary messages.
    #[default]
    None,
    /// There are latest values, and the carrier must request them.
    Wait,
    /// The records of this page are latest values.
    These,
}

/// The answer to an attach by filter.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilterPage {
    /// The outcome. The other fields are valid only for [`Attached::Yes`], and `head` for [`Attached::Gone`] too.
    pub attached: Attached,
    /// The partition that the page was read from.
    pub partition: PartitionId,
    /// The index of the first record in [`Frames::pages`](crate::mail::Frames::pages).
    pub first: u32,
    /// The number of records.
    pub count: u32,
    /// The index of the first record's topic name in [`Frames::names`](crate::mail::Frames::names).
    pub names: u32,
    /// The subscriber's offset in this partition after this page.
    pub head: u64,
    /// The offset at which the subscription began. The subscriber gets only a snapshot of the messages up to this offset
    /// (`AttachFilters::newest`).
    pub snapshot_end: u64,
    /// The number of the last loss when the subscription began: losses up to this number are no gap. 0 if the subscription began with a
    /// position.
    pub losses_before: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// Whether the page reaches the end of the log: live messages follow.
    pub at_head: bool,
    /// Whether messages between the requested position and the end of this page are lost.
    pub gap: bool,
}

impl FilterPage {
    /// The records, each with the position of its topic's name.
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

/// The answer to an MQTT client that connects.
#[derive(Clone, Debug)]
pub enum SessionReply {
    /// The connection has the session.
    Yes {
        /// The session.
        id: SessionId,
        /// The client that is charged for the session.
        owner: Client,
        /// The state that was saved when its last connection ended.
        kept: Option<SavedSession>,
        /// In a cluster: the offset of the record of the connection's claim. Otherwise 0.
        claim: u64,
    },
    /// The client is refused.
    Refused(ReasonCode),
}
