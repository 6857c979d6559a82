//! A *tell* goes from a home to a carrier. The home is the part of a shard that keeps topics and sessions. The carrier is a shard with
//! connections. A tell is a live message, a page of kept messages, a notice, or the answer to an *ask*, a request of the carrier.
//!
//! Words: a *page* is a bounded run of past messages; a *gap* is the notice that messages are lost; a *follower* is a client that is told
//! which topics have subscribers.
//!
//! `topic` is a row of the carrier's table. Each topic that takes the row gets a new `serial`.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::{ConnId, PartitionId};
use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::budget::in_flight::InFlightCharge;
use crate::mail::answer::{AttachOutcome, Outcome, ReplyTo};
use crate::mail::frames::{Frames, Record};
use crate::mail::interest::{InterestChanges, InterestPart};
use crate::mail::presence::PresencePage;
use crate::mail::session::{SavedSession, SessionId};

/// A message or an answer of a home to a carrier.
#[derive(Clone, Debug)]
pub enum Tell {
    /// A new message, for every subscriber that has got all earlier messages.
    Live {
        /// The topic.
        topic: u32,
        /// The row's serial.
        serial: u16,
        /// The message.
        record: Record,
    },
    /// A page of kept messages, for one subscriber.
    Page {
        /// The topic.
        topic: u32,
        /// The subscriber.
        to: ReplyTo,
        /// The page.
        page: Page,
    },
    /// A new message, for the subscribers of the topic and of all filters that match it.
    Match {
        /// The topic; `NONE` if the carrier subscribes only by filter.
        topic: u32,
        /// The row's serial.
        serial: u16,
        /// The partition of the topic.
        partition: PartitionId,
        /// The index of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// A page of kept messages, for one client that subscribes to filters.
    Matches {
        /// The subscriber.
        to: ReplyTo,
        /// The number that the connection assigned to this group of filters.
        serial: u32,
        /// The page.
        page: FilterPage,
    },
    /// The topic was deleted.
    Gone {
        /// The topic.
        topic: u32,
        /// The row's serial.
        serial: u16,
    },
    /// A later long-poll displaces the waiting long-polls, so they end.
    Displaced {
        /// The topic.
        topic: u32,
        /// The row's serial.
        serial: u16,
    },
    /// The answer to a publisher.
    Outcome(ReplyTo, Outcome),
    /// All asks before an [`Ask::Fence`](crate::mail::Ask::Fence) are done.
    Fenced(ReplyTo),
    /// The answer to an [`Ask::Release`](crate::mail::Ask::Release): whether this home has the message. If the release has a record, the record is
    /// committed.
    Released(ReplyTo, bool),
    /// The answer to a client that joins a shared subscription.
    GroupJoined {
        /// The member.
        to: ReplyTo,
        /// The group, or why the client cannot join it.
        group: Result<u64, Reason>,
        /// Whether the home counted the member's session as a new subscriber.
        is_new_subscriber: bool,
    },
    /// A message for one member of a shared subscription.
    Shared {
        /// The member.
        to: ReplyTo,
        /// The group.
        group: u64,
        /// The index of the topic's name in [`Frames`].
        name: u32,
        /// The message.
        record: Record,
    },
    /// The answer to an MQTT client that connects.
    Session(ReplyTo, Box<SessionReply>),
    /// Another connection has taken over the session of this MQTT connection.
    SessionTaken(ConnId),
    /// The disk, or the log of the cluster, has no more room for records of this MQTT connection's session.
    NoRoomForRecords(ConnId, Reason),
    /// For a follower: topics that have got their first subscriber or lost their last one, or a page of the topics with subscribers.
    Interest {
        /// The follower.
        to: ReplyTo,
        /// The topics.
        news: InterestChanges,
        /// The part of the follower's stream.
        part: InterestPart,
    },
    /// Members of a topic, for a reader or a watcher.
    Presence(ReplyTo, Box<PresencePage>),
    /// Commands for a connection of this shard, from a request at the sender. Any shard sends it, and gets [`Tell::Fenced`] as the answer.
    Commands(Arc<SessionCommands>),
}

/// Commands of a client that came in a separate request, since the client's connection carries bytes only from the server to the client.
#[derive(Debug)]
pub struct SessionCommands {
    /// The connection that carries out the commands.
    pub conn: ConnId,
    /// The Unix second in which that connection began, by the counted clock.
    pub began_unix_s: u32,
    /// The request, which waits until the connection has the commands.
    pub to: ReplyTo,
    /// A frame of commands.
    pub data: Box<[u8]>,
    /// Charges memory for the frame.
    pub charge: InFlightCharge,
}

impl Tell {
    /// The topic's row, if the tell must stay in order with the topic's other tells; `NONE` for a message to a carrier that subscribes only by filter.
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
            | Tell::NoRoomForRecords(..)
            | Tell::Interest { .. }
            | Tell::Presence(..)
            | Tell::Commands(_) => None,
        }
    }
}

/// The answer to an attach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// The outcome. With [`AttachOutcome::Yes`] all fields are valid, with [`AttachOutcome::Gone`] only `head`, with the others none.
    pub attached: AttachOutcome,
    /// The index of the first record in [`Frames::pages`](crate::mail::Frames::pages).
    pub first: u32,
    /// The number of records.
    pub count: u32,
    /// The subscriber's offset after this page, or the offset at which the topic was deleted.
    pub head: u64,
    /// The offset of the topic's newest message, or of its deletion.
    pub last: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// When the newest kept message was published, in Unix seconds, if there is one.
    pub newest_s: Option<u32>,
    /// Whether the page reaches the end of the log, so that live messages follow.
    pub at_head: bool,
    /// Whether messages between the requested position and this page are lost.
    pub gap: bool,
    /// Whether this page continues an earlier one, so that the subscription is counted already.
    pub is_next_page: bool,
    /// Whether the home has counted a subscriber, so that the carrier must send an [`Ask::Leave`](crate::mail::Ask::Leave) later.
    pub counted: bool,
    /// The number of records of the topic's retained state, which come first in the page.
    pub retained: u32,
    /// Whether only retained messages were requested, so that the subscriber's offset does not change.
    pub only_retained: bool,
    /// Where the topic's latest values are.
    pub values: LatestValues,
}

/// Where a subscriber that requests retained messages finds the latest values of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LatestValues {
    /// The topic's rule keeps no latest values, or they are ordinary messages of the page.
    #[default]
    None,
    /// The carrier must request them.
    MustRequest,
    /// In this page: its records are the latest values.
    InThisPage,
}

/// The answer to an attach by filter.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilterPage {
    /// The outcome. With [`AttachOutcome::Yes`] all fields are valid, with [`AttachOutcome::Gone`] only `head`, with the others none.
    pub attached: AttachOutcome,
    /// The partition of the page's messages.
    pub partition: PartitionId,
    /// The index of the first record in [`Frames::pages`](crate::mail::Frames::pages).
    pub first: u32,
    /// The number of records.
    pub count: u32,
    /// The index of the first record's topic name in [`Frames::names`](crate::mail::Frames::names).
    pub first_name: u32,
    /// The subscriber's offset in this partition after this page.
    pub head: u64,
    /// The offset at which the subscription began. The subscriber gets only the newest of the messages up to this offset (see
    /// `AttachFilters::newest`).
    pub snapshot_end: u64,
    /// The number of the last loss before the subscription began. Losses up to this number are no gap for the subscription. 0 if the
    /// subscription began with a position.
    pub losses_before: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// Whether the page reaches the end of the log, so that live messages follow.
    pub at_head: bool,
    /// Whether messages between the requested position and the end of this page are lost.
    pub gap: bool,
}

impl FilterPage {
    /// The records, each with the index of its topic's name.
    pub fn records<'a>(
        &self,
        frames: &'a Frames,
    ) -> impl Iterator<Item = (u32, &'a Record)> + Clone {
        let (first, first_name) = (self.first as usize, self.first_name as usize);
        let names = &frames.names[first_name..first_name + self.count as usize];
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
        /// The state that was saved when the session's last connection ended.
        kept: Option<SavedSession>,
        /// In a cluster, the offset of the record in the log by which the connection claimed the session. Otherwise 0.
        claim: u64,
    },
    /// The client is refused.
    Refused(ReasonCode),
}
