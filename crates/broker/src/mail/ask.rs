//! An *ask* is a request of a carrier to a home. The carrier is a shard with connections. The home is the part of a shard that stores
//! topics and sessions.
//!
//! Words: a *writer* is a process that writes to the log, and has a number. A *follower* is a client that is told which topics have subscribers.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::position::Since;
use crate::budget::admission::{Admission, Client, Party};
use crate::budget::in_flight::InFlightCharge;
use crate::mail::answer::{ReplyTo, WantedAnswer};
use crate::mail::fact::Change;
use crate::mail::message::{DedupKey, Headers, SessionKey};
use crate::mail::presence::PresenceAsk;
use crate::mail::session::record::{RecordedPatch, RecordedState, SessionChange, Terms};
use crate::mail::session::stored::StoredSession;
use crate::mail::session::{EncodedSession, SavedSession, SessionId, SessionPatch, Will};
use crate::mail::span::Span;

/// A client's request about a topic as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRequest {
    /// Report the topic's state.
    Info,
    /// Change the topic.
    Change(Change),
}

/// A request of a carrier to a home.
#[derive(Debug)]
pub enum Ask {
    /// Append a message and deliver it.
    Publish {
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// The message.
        data: Span,
        /// The headers that the publisher gave the message.
        headers: Headers<Span>,
        /// Identifies copies of the message; `None` if the publisher gave neither a key nor a packet id.
        dedup: Option<DedupKey<Span>>,
        /// The answer that the publisher wants.
        answer: WantedAnswer,
        /// The client that is charged for the topic, if it is created.
        client: Client,
    },
    /// Subscribe one connection to the topic with this name.
    Attach(Attach, Span),
    /// Subscribe one connection to filters, which are separated by line feeds. If the subscription begins at different positions in the home's partitions,
    /// the list has the position for each partition.
    AttachFilters(AttachFilters, Span, Option<Box<[Since]>>),
    /// The carrier's last subscriber with this filter has unsubscribed.
    LeaveFilter(Span),
    /// A subscriber that the home counts has left the topic.
    Leave {
        /// The keyed hash of the name.
        hash: u32,
        /// The carrier's topic row.
        topic: u32,
        /// The row's serial: each topic that takes the row gets a new one.
        serial: u16,
    },
    /// Report or change a topic.
    Topic {
        /// The request.
        request: TopicRequest,
        /// The keyed hash of the name.
        hash: u32,
        /// The topic.
        name: Span,
        /// The answer that is wanted.
        answer: WantedAnswer,
        /// The client that is charged for the topic, if it is created.
        client: Client,
    },
    /// A subscription with QoS 1 or 2 begins or ends. As long as the topic or filter has such a subscription, its messages are kept, whatever
    /// the topics' rules say.
    CountQosSubscription {
        /// The keyed hash of the name.
        hash: u32,
        /// The topic or the filter.
        name: Span,
        /// Whether the subscription begins.
        begins: bool,
    },
    /// An MQTT client connects and wants its session.
    SessionOpen {
        /// The connection.
        to: ReplyTo,
        /// The keyed hash of the client id.
        hash: u32,
        /// The client id.
        client: Box<[u8]>,
        /// Whether to discard an existing session.
        clean: bool,
        /// Seconds that the session outlives the connection.
        expiry_s: u32,
        /// The client that is charged for the session.
        owner: Client,
        /// The other fields of the claim's record, if the session is recorded.
        recorded: Option<Box<RecordedClaim>>,
        /// Whether a new session begins, according to the claim's record; `None` if there is no record yet.
        begins: Option<bool>,
    },
    /// An MQTT connection has ended.
    SessionClose(Box<ClosingSession>),
    /// Record the state of a session in the log, and answer when the record is committed.
    SessionRecord(Box<RecordSession>),
    /// A client has released a QoS 2 message, or its session has ended. Record the release, and answer when the record is committed.
    Release {
        /// The message; all messages of the session if the packet id is 0.
        key: SessionKey,
        /// The claim of the connection that releases the message (`mail/message.rs`); 0 for all messages of a session.
        claim: u64,
        /// The partitions to which the release goes.
        at: ReleaseAt,
        /// The connection that waits for the answer.
        to: Option<ReplyTo>,
    },
    /// An MQTT client joins a shared subscription.
    JoinGroup {
        /// The connection and its subscription.
        to: ReplyTo,
        /// The share name.
        name: Box<[u8]>,
        /// The topic filter.
        filter: Box<[u8]>,
        /// The maximum number of messages in flight to the client.
        credit: u32,
        /// Whether the session subscribes for the first time.
        is_new_subscriber: bool,
        /// The address or user of the client, whose quota of filter shapes applies.
        party: Party,
        /// The client that is charged for the records of the group; `None` if the member's session is not recorded.
        recorded_for: Option<Client>,
    },
    /// The delivery of a message to a member is complete, so that the member can receive another one.
    GroupCredit {
        /// The group.
        group: u64,
        /// The member.
        to: ReplyTo,
        /// The partition of the message.
        partition: PartitionId,
        /// The offset of the message.
        offset: u64,
    },
    /// A member leaves the group.
    LeaveGroup(Box<LeaveGroup>),
    /// The shared subscription of a session whose client is disconnected ends.
    ReleaseGroup {
        /// The share name.
        name: Box<[u8]>,
        /// The topic filter.
        filter: Box<[u8]>,
    },
    /// Record in the logs of this home's partitions that this writer is dead.
    DeclareWriterDead(u64),
    /// Answer when all earlier asks are done.
    Fence(ReplyTo),
    /// Tell this connection from now on which topics have subscribers.
    Follow {
        /// The connection.
        to: ReplyTo,
        /// The address or user to which the reading of pages is charged.
        party: Party,
        /// The topic filter.
        filter: Span,
    },
    /// Send the next page of the snapshot to this follower.
    NextInterestPage(ReplyTo, Party),
    /// End this follower's stream.
    Unfollow(ReplyTo),
    /// A request about the members of the topic with this name.
    Presence(PresenceAsk, Span),
}

impl Ask {
    /// The span of an ask; `None` for a publish, and for an ask that refers to no bytes.
    pub(crate) fn text_mut(&mut self) -> Option<&mut Span> {
        match self {
            Ask::Attach(_, text)
            | Ask::AttachFilters(_, text, _)
            | Ask::LeaveFilter(text)
            | Ask::Presence(_, text)
            | Ask::Topic { name: text, .. }
            | Ask::CountQosSubscription { name: text, .. }
            | Ask::Follow { filter: text, .. } => Some(text),
            _ => None,
        }
    }
}

/// A subscription of one connection to one topic.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    /// The keyed hash of the name.
    pub hash: u32,
    /// The carrier's topic row.
    pub topic: u32,
    /// The row's serial: each topic that takes the row gets a new one.
    pub serial: u16,
    /// The request to answer.
    pub to: ReplyTo,
    /// The position at which to begin.
    pub since: Since,
    /// Whether the subscriber is a long-poll, which needs only one message.
    pub poll: bool,
    /// The maximum number of messages that the subscriber can receive.
    pub messages_max: u32,
    /// Whether the subscriber accepts compressed frames.
    pub deflate: bool,
    /// Whether this ask reads a later page of a subscription that is counted already. A long-poll that has timed out uses such an ask to
    /// learn its position.
    pub is_next_page: bool,
    /// Whether to read kept messages without a subscription. No topic is created.
    pub read_only: bool,
    /// Whether to send the retained message first, unless it is newer than the position at which the subscription begins.
    pub retained: bool,
    /// The client that is charged for the topic, if it is created.
    pub client: Client,
    /// The address or user of the client. Addresses and users get fair shares of the reading of pages.
    pub party: Party,
}

impl Attach {
    /// Whether this ask reads latest values, after the answer [`LatestValues::MustRequest`](crate::mail::LatestValues::MustRequest).
    pub fn reads_values(&self) -> bool {
        self.is_next_page && self.retained && self.since != Since::Live
    }
}

/// A subscription of one connection to several filters. The home answers once for each partition, for all filters together.
#[derive(Clone, Copy, Debug)]
pub struct AttachFilters {
    /// The request to answer.
    pub to: ReplyTo,
    /// The number that the connection assigned to this group of filters.
    pub serial: u32,
    /// The partition to read; `None` for all partitions of the home.
    pub partition: Option<PartitionId>,
    /// The position at which to begin.
    pub since: Since,
    /// For a later page: see [`FilterPage::snapshot_end`](crate::mail::FilterPage::snapshot_end).
    pub snapshot_end: u64,
    /// The number of kept messages to send of each topic: the newest before the subscription. 0: latest values and retained messages.
    pub newest: u32,
    /// For a later page: see [`FilterPage::losses_before`](crate::mail::FilterPage::losses_before).
    pub losses_before: u64,
    /// Whether the subscriber is a long-poll, which needs only one message.
    pub poll: bool,
    /// Whether this ask reads a later page: the filters are registered already.
    pub is_next_page: bool,
    /// The address or user of the client. Addresses and users get fair shares of the reading of pages.
    pub party: Party,
}

/// Fields for the record of a claim.
#[derive(Debug)]
pub struct RecordedClaim {
    /// The token of the session, if a new session begins.
    pub token: u64,
    /// The will of the connection.
    pub will: Option<Box<Will>>,
    /// Charges memory for the will until the home has recorded it.
    pub charge: InFlightCharge,
}

/// The request to record in the log the state of a session that a connection holds.
#[derive(Debug)]
pub struct RecordSession {
    /// The session.
    pub id: SessionId,
    /// The client that is charged for the session.
    pub owner: Client,
    /// The connection, with the number of the request.
    pub to: ReplyTo,
    /// The state, or its changes since the last record.
    pub content: SessionContent,
    /// Charges memory for the state until the home has it.
    pub charge: InFlightCharge,
}

/// The contents of a record of a session that a connection holds.
#[derive(Debug)]
pub enum SessionContent {
    /// The changes since the last record.
    Patch(SessionPatch),
    /// The whole state, because the state in the log is unknown.
    Whole(EncodedSession, Terms),
}

impl RecordSession {
    /// The change to record.
    pub(crate) fn change(&self) -> SessionChange<'_> {
        match &self.content {
            SessionContent::Patch(patch) => SessionChange::Patch(RecordedPatch::new(patch, None)),
            SessionContent::Whole(state, terms) => {
                SessionChange::State(RecordedState::new(state, terms.clone()))
            }
        }
    }
}

/// The partitions of a home to which the release of a QoS 2 message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAt {
    /// The partitions that have the message.
    Known,
    /// All partitions, if the message came over an earlier connection. In a cluster, that connection may have been at another node, and this
    /// home may not have read the message yet.
    Everywhere,
    /// No partition: the connection only wants to know whether this home has the message.
    Nowhere,
}

/// The state that an MQTT connection returns to the home when the connection ends.
#[derive(Debug)]
pub struct ClosingSession {
    /// The session.
    pub id: SessionId,
    /// The client that is charged for the session.
    pub owner: Client,
    /// The state to save, unless the session ends with the connection.
    pub kept: Option<SavedSession>,
    /// The changes of `kept` since the last record, if they are known.
    pub patch: Option<SessionPatch>,
    /// The will to publish.
    pub will: Option<Box<Will>>,
    /// Whether the log may have records of the session.
    pub is_recorded: bool,
    /// The token of the session, or 0.
    pub token: u64,
    /// The other connection to which the last record in the log gives the session, if there is one.
    pub recorded_for: Option<(ShardId, ReplyTo)>,
    /// Charges memory for state and will until the home has them.
    pub charge: InFlightCharge,
}

impl ClosingSession {
    /// Charges memory for state and will until the home has them.
    pub fn new(
        id: SessionId,
        owner: Client,
        (kept, patch): (Option<SavedSession>, Option<SessionPatch>),
        will: Option<Box<Will>>,
        (is_recorded, token): (bool, u64),
        admission: &Admission,
    ) -> Box<ClosingSession> {
        let state = kept.as_ref().map_or(0, |kept| kept.state.bytes.len());
        let changes = patch.as_ref().map_or(0, |it| it.changes.bytes.len());
        let bytes = state + changes + will.as_ref().map_or(0, |will| will.bytes());
        let charge = InFlightCharge::new(admission, size_of::<ClosingSession>() + bytes);
        Box::new(ClosingSession {
            id,
            owner,
            kept,
            patch,
            will,
            is_recorded,
            token,
            recorded_for: None,
            charge,
        })
    }

    /// The stored form, without subscriptions and messages, in which an ended session stays in the log until its will is published.
    pub(crate) fn without_state(&self) -> EncodedSession {
        let session = StoredSession {
            token: self.token,
            ..StoredSession::default()
        };
        session.encode()
    }

    /// The change to record: the state `kept` and these terms.
    pub(crate) fn change<'a>(
        &'a self,
        kept: &'a EncodedSession,
        terms: Terms,
    ) -> SessionChange<'a> {
        match &self.patch {
            Some(patch) => SessionChange::Patch(RecordedPatch::new(patch, Some(terms))),
            None => SessionChange::State(RecordedState::new(kept, terms)),
        }
    }
}

/// A message of a group that the member has not acknowledged.
#[derive(Clone, Debug)]
pub struct UnackedMessage {
    /// The topic.
    pub topic: Box<[u8]>,
    /// The offset.
    pub offset: u64,
}

/// The state that a member of a group returns when it leaves.
#[derive(Debug)]
pub struct LeaveGroup {
    /// The group.
    pub group: u64,
    /// The member.
    pub to: ReplyTo,
    /// The member's unacknowledged messages, which go to other members.
    pub unacked: Vec<UnackedMessage>,
    /// Whether the session ends the subscription, instead of only disconnecting.
    pub ends: bool,
}
