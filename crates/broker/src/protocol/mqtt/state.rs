//! The state of an MQTT connection. A client with one plain subscription has only its row and [`MqttRow`]. Everything else is in [`MqttState`], which exists
//! while it is needed.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crore_wire::mqtt::{self, Packet, PacketId, Publish, ReasonCode, Version};

use crate::base::ids::{PartitionId, ShardId};
use crate::base::position::write_varint;
use crate::base::snapshot::FieldReader;
use crate::base::verdict::Identity;
use crate::client::progress::Progress;
use crate::client::types;
use crate::home::unreleased::ENTRY_BYTES;
use crate::mail::session::patch::Outline;
use crate::mail::session::stored::StoredSubscription;
use crate::mail::session::{EncodedSession, SessionId, Will};
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::mqtt::options::{QOS_SHIFT, RETAIN_HANDLING};
use crate::protocol::mqtt::read_positions::{LatestValuesRead, ReadStarts};
use crate::protocol::mqtt::receive_maximum::PastMaximum;
use crate::store::shared::Slice;
use crate::store::slab::{NONE, SlabRow};

/// The row of an MQTT connection, from its CONNECT on.
pub struct MqttRow {
    /// The session. Its row is [`NONE`] until the session's home (the shard that keeps the session) has answered.
    pub session: SessionId,
    /// The longest silence of the client; 0 for no limit.
    pub keep_alive_s: u16,
    /// The packet id of the last message to the client.
    pub packet_id: u16,
    /// The Receive Maximum: how many unacknowledged QoS 1 and 2 messages the client accepts.
    pub receive_max: u16,
    /// The largest packet that the client accepts.
    pub packet_bytes_max: u32,
}

const _: () = assert!(size_of::<MqttRow>() == 20);

impl SlabRow for MqttRow {
    fn vacant(next: u32) -> Self {
        MqttRow {
            session: SessionId {
                row: next,
                ..SessionId::none(0)
            },
            keep_alive_s: 0,
            packet_id: 0,
            receive_max: 0,
            packet_bytes_max: 0,
        }
    }
    fn next_vacant(&self) -> u32 {
        self.session.row
    }
}

impl MqttRow {
    /// Whether the connection has its session.
    pub fn is_open(&self) -> bool {
        self.session.row != NONE
    }

    /// Identifies the session as the publisher of its messages, unless it has a token. Equal for all its connections, and never 0.
    pub fn origin(&self) -> u64 {
        let SessionId {
            row,
            life,
            partition,
            ..
        } = self.session;
        1 << 63 | u64::from(life) << 48 | u64::from(partition) << 32 | u64::from(row)
    }
}

/// State that few clients need, or that clients need only for a while.
#[derive(Default)]
pub struct MqttState {
    /// For how many seconds after the connection's end the session is kept.
    pub expiry_s: u32,
    /// The client is a bridge of 3.1.1: all its subscriptions have No Local and Retain As Published.
    pub is_bridge: bool,
    /// The will.
    pub will: Option<Box<Will>>,
    /// QoS 1 and 2 messages that the client has not acknowledged, in the order in which they were sent.
    pub inflight: VecDeque<Inflight>,
    /// Messages that wait for room in `inflight`: first those to be sent again, then retained messages and messages of shared subscriptions.
    pub waiting: VecDeque<Inflight>,
    /// Packet ids of QoS 2 messages that the client has sent on this connection and not released.
    pub received_ids: BTreeSet<u16>,
    /// Packet ids of unreleased QoS 2 messages from earlier connections of a session with a token. If the client sends one of these ids again, the message
    /// goes to its home, because only the home knows whether it was published already.
    pub earlier_received_ids: BTreeSet<u16>,
    /// In a cluster: how many more unknown packet ids the client may release, at most one release for each id. This node cannot know all ids: a moment ago
    /// the client may have sent a message to another node.
    pub earlier_releases_left: u16,
    /// The token by which homes know the session's QoS 2 messages. 0 if the session is not recorded.
    pub token: u64,
    /// In a cluster: the offset of the claim by which this connection got the session. Otherwise 0.
    pub claim_offset: u64,
    /// Releases of QoS 2 messages that some homes have not recorded yet.
    pub pending_releases: Vec<PendingRelease>,
    /// Set while the client has exceeded the Receive Maximum of the CONNACK.
    pub past_maximum: Option<PastMaximum>,
    /// The answers to the client's publishes, in the order of the publishes.
    pub answers: VecDeque<PublishAnswer>,
    /// SUBACKs and UNSUBACKs that cannot be sent yet.
    pub subacks: Vec<Suback>,
    /// Pairs of (later, earlier) entries for the same filter: the client sent the later SUBSCRIBE before the home had answered the earlier one. The home's
    /// answer fills both entries.
    pub repeated_entries: Vec<(SubackEntry, SubackEntry)>,
    /// The number of filters of the current SUBSCRIBE that are done, if they need more than one turn.
    pub filters_done: u16,
    /// The client's topic aliases, as topics; an unset alias is empty.
    pub client_aliases: Vec<Vec<u8>>,
    /// The client's Topic Alias Maximum.
    pub aliases_max: u16,
    /// The number of aliases that the server has assigned.
    pub aliases_assigned: u16,
    /// Delivered messages of shared subscriptions whose credit goes back to the home when the outbox is empty: the subscription's index, the partition and
    /// the offset.
    pub owed_credit: Vec<(u32, PartitionId, u64)>,
    /// Where each subscription begins to send. Kept only while some subscriptions still read from the log.
    pub starts: ReadStarts,
    /// Subscriptions that are being sent the latest values of their topics, one subscription after another.
    pub retained_latest: Vec<LatestValuesRead>,
    /// [Stored](StoredSubscription) subscriptions of the session for which this connection had no room, so it is about to end.
    pub unplaced_subscriptions: Vec<Box<[u8]>>,
    /// A home may not know yet that it must keep messages for a subscription.
    pub is_retention_unconfirmed: bool,
    /// The client has left a shared subscription. Messages may still arrive for the index that the subscription had, so the indexes stay.
    pub has_left_group: bool,
    /// Over WebSocket: the received part of an incomplete packet.
    pub partial_packet: SpillBuffer,
    /// The progress of that packet's arrival.
    pub packet_progress: Progress,
    /// The verdict on the CONNECT's credential, until the CONNECT is carried out.
    pub credential_check: Option<Box<CredentialCheck>>,
    /// What the CONNACK will say. Set until the CONNACK is written.
    pub pending_connack: Option<Box<PendingConnack>>,
    /// Set if the log may have records of the session.
    pub recording: Option<Box<SessionRecording>>,
    /// The number of resumed subscriptions that the CONNACK waits for.
    pub unconfirmed_subscriptions: u32,
}

/// The release of a QoS 2 message, which homes record before the PUBCOMP.
pub struct PendingRelease {
    /// The packet id of the message.
    pub packet_id: u16,
    /// The number of homes that have not answered.
    pub unanswered_homes: u16,
    /// Whether a home, or this connection, knew the message.
    pub is_known: bool,
    /// The message itself is refused with this reason, unless a home knows it from a former connection.
    pub refusal: Option<ReasonCode>,
}

/// The records of a session in the log.
#[derive(Default)]
pub struct SessionRecording {
    /// The state of the session according to all its records, those in flight included; `None` if this connection does not know it.
    pub outline: Option<Outline>,
    /// A record is in flight.
    pub is_in_flight: bool,
    /// The session must be recorded in the next turn, or when the record in flight is committed.
    pub is_pending: bool,
    /// Some messages in flight, or sent after the first of them, may be of QoS 2.
    pub has_exactly_once: bool,
    /// The client has acknowledged messages since the last record.
    pub has_new_acks: bool,
    /// The second in which the last record was made.
    pub recorded_at_s: u32,
    /// Set if the client had QoS 2 messages that were published before the session had a token.
    pub keyless: Option<Box<KeylessMessages>>,
    /// Bytes of the last record of the whole session, and of the changes since.
    pub whole_bytes: u32,
    pub patch_bytes: u32,
}

/// QoS 2 messages that the client published before the session had a token, so no home recognises them. The session's records contain their packet
/// ids instead.
#[derive(Default)]
pub struct KeylessMessages {
    /// The packet ids that the client has not released.
    pub unreleased: BTreeSet<u16>,
    /// The packet ids that the client has released and that are still in the last committed record.
    pub released: Vec<KeylessRelease>,
}

/// A PUBREL whose PUBCOMP waits until a record without the packet id is committed. If the PUBCOMP came earlier, the client could use the id for another
/// message, and after a crash the server would take that message for the old one.
pub struct KeylessRelease {
    /// The packet id.
    pub packet_id: PacketId,
    /// Whether the record in flight does not have the id.
    pub is_record_in_flight: bool,
}

impl KeylessMessages {
    /// Heap bytes, with those of the struct.
    fn bytes(&self) -> usize {
        size_of::<KeylessMessages>()
            + self.unreleased.len() * RECEIVED_BYTES
            + self.released.capacity() * size_of::<KeylessRelease>()
    }
}

/// After this many bytes of changes, or as many as the session has if that is more, the whole session is recorded again. Otherwise a process that reads the
/// log would need too much time for the changes.
const PATCH_BYTES_MIN: u32 = 1024;

impl SessionRecording {
    /// Continues the records of a resumed session, which has `whole_bytes` bytes. How many bytes of changes have followed the last whole record is unknown, so
    /// `random_bytes` stands for them. On average the whole session is then recorded often enough, even if each connection records only a few changes.
    pub fn continue_from(&mut self, whole_bytes: usize, random_bytes: u64) {
        self.whole_bytes = whole_bytes as u32;
        self.patch_bytes = (random_bytes % u64::from(self.patch_bytes_max())) as u32;
    }

    fn patch_bytes_max(&self) -> u32 {
        let entries = self.outline.as_ref().map_or(0, Outline::bytes);
        self.whole_bytes.max(entries as u32).max(PATCH_BYTES_MIN)
    }

    /// Counts changes of this many bytes that go to the log. If they are as long as the session, they count as a record of the whole session.
    pub fn add_patch_bytes(&mut self, bytes: usize) {
        let bytes = bytes as u32;
        (self.whole_bytes, self.patch_bytes) = match bytes >= self.patch_bytes_max() {
            true => (bytes, 0),
            false => (self.whole_bytes, self.patch_bytes + bytes),
        };
    }

    /// Whether the next record has the whole session.
    pub fn is_whole_due(&self) -> bool {
        self.outline.is_none() || self.patch_bytes >= self.patch_bytes_max()
    }

    /// Packet ids of unreleased QoS 2 messages that no home knows, in ascending order.
    pub fn keyless_ids(&self) -> Vec<u16> {
        let unreleased = self.keyless.iter().flat_map(|it| &it.unreleased);
        unreleased.copied().collect()
    }

    /// Heap bytes, with those of the struct.
    fn bytes(&self) -> usize {
        size_of::<SessionRecording>()
            + self.outline.as_ref().map_or(0, Outline::bytes)
            + self.keyless.as_ref().map_or(0, |item| item.bytes())
    }
}

/// Contents of the CONNACK, while the connection waits for its session.
pub struct PendingConnack {
    /// The client id that the server assigned.
    pub assigned_id: Option<Box<str>>,
    /// The server has set the keep alive.
    pub tells_keep_alive: bool,
    /// The server has set the session expiry.
    pub tells_expiry: bool,
    /// The server does not support shared subscriptions.
    pub tells_no_groups: bool,
    /// The home's answer: the stored session, or `None` if a new one begins.
    pub session_answer: Option<Option<EncodedSession>>,
}

/// DUP in the first byte of a PUBLISH (section 3.3.1.1). A message in [`MqttState::waiting`] has it if it was sent before.
const DUP: u8 = 0b1000;
/// RETAIN in that byte (section 3.3.1.3).
const RETAIN: u8 = 1;

impl PendingConnack {
    /// Heap bytes, with those of the struct.
    fn bytes(&self) -> usize {
        let given_session = self.session_answer.as_ref().and_then(Option::as_ref);
        size_of::<PendingConnack>()
            + self.assigned_id.as_ref().map_or(0, |id| id.len())
            + given_session.map_or(0, |state| state.bytes.len())
    }
}

/// Memory of a packet id in a `BTreeSet`: leaves have eleven slots, are two thirds full, and have a header.
const RECEIVED_BYTES: usize = 6;

/// How far the delivery of a message to the client has come (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryStep {
    /// PUBLISH was sent; PUBACK or PUBREC is due.
    Published,
    /// PUBREC was received and PUBREL was sent; PUBCOMP is due.
    Released,
}

/// Stands for the end of a message that has no time to live.
pub const NO_END_S: u64 = u64::MAX;

/// A QoS 1 or 2 message to the client that is not acknowledged.
pub struct Inflight {
    /// Its packet id.
    pub packet_id: u16,
    /// The step of its delivery.
    pub step: DeliveryStep,
    /// The Unix second in which its time to live ends, or [`NO_END_S`]. 64 bits, since a time to live may end after 2106.
    pub end_s: u64,
    /// Its offset.
    pub offset: u64,
    /// For a message of a shared subscription: the subscription's index and the partition of the topic.
    pub group: Option<(u16, PartitionId)>,
    /// The MQTT version in which its packet is encoded.
    pub version: Version,
    /// The PUBLISH packet; that of a large message has an empty payload.
    pub packet: Box<[u8]>,
    /// The payload of a large message.
    pub payload: Option<Slice>,
    /// Whether its next packet to the client waits for a record of the session.
    pub record_wait: RecordWait,
}

/// Which record of the session a message's next packet waits for. A packet of a QoS 2 message must wait until the log has the step of its delivery: otherwise
/// the server would not know after a crash that it has sent the message, and the client could get it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordWait {
    /// None: the packet was sent, or may be sent.
    None,
    /// The next record, which was not sent to the home yet.
    NextRecord,
    /// The record in flight.
    RecordInFlight,
}

/// Turns the head of a PUBLISH (the packet up to its payload) into a whole packet with an empty payload.
pub fn packet_without_payload(head: &[u8]) -> Option<Box<[u8]>> {
    let (_, len) = mqtt::fixed_header(head, usize::MAX).ok()??;
    let body = &head[len..];
    let mut packet = Vec::with_capacity(head.len());
    packet.push(head[0]);
    // A variable byte integer (section 1.5.5).
    write_varint(&mut packet, body.len() as u64);
    packet.extend_from_slice(body);
    Some(packet.into_boxed_slice())
}

impl Inflight {
    /// The topic in its packet; empty if the packet was dropped.
    pub fn topic(&self) -> &[u8] {
        let packet = self.publish();
        packet.map_or(b"", |publish| publish.topic.as_bytes())
    }

    /// The QoS in its packet; 0 if the packet was dropped because the client has received it.
    pub fn qos(&self) -> u8 {
        self.packet.first().map_or(0, |first| first >> 1 & 3)
    }

    /// Whether it is of QoS 2.
    pub fn is_exactly_once(&self) -> bool {
        self.step == DeliveryStep::Released || self.qos() == 2
    }

    /// Whether its packet has RETAIN.
    pub fn has_retain(&self) -> bool {
        self.packet.first().is_some_and(|first| first & RETAIN != 0)
    }

    /// Whether it was sent before. Then it is sent again with DUP.
    pub fn was_sent(&self) -> bool {
        self.packet.first().is_some_and(|first| first & DUP != 0)
    }

    /// Whether its first PUBLISH still waits for a record.
    pub fn is_publish_unsent(&self) -> bool {
        self.record_wait != RecordWait::None && self.step == DeliveryStep::Published
    }

    /// Marks it as sent.
    pub fn mark_sent(&mut self) {
        if let Some(first) = self.packet.first_mut() {
            *first |= DUP;
        }
    }

    /// The decoded packet; `None` if it was dropped because the client has received it.
    pub fn publish(&self) -> Option<Publish<'_>> {
        let (header, len) = mqtt::fixed_header(&self.packet, usize::MAX).ok()??;
        match mqtt::decode(self.version, header, &self.packet[len..]).ok()? {
            Packet::Publish(publish) => Some(Publish {
                payload: self.payload.as_deref().unwrap_or(publish.payload),
                ..publish
            }),
            _ => None,
        }
    }

    /// Bytes on the wire.
    pub fn wire_bytes(&self) -> usize {
        self.packet.len() + self.payload.as_ref().map_or(0, |payload| payload.len())
    }

    /// Drops the packet, because the client has received it.
    pub fn drop_packet(&mut self) {
        (self.packet, self.payload) = ([].into(), None);
    }
}

/// The answer to one publish of the client.
pub struct PublishAnswer {
    /// The packet id of the publish.
    pub packet_id: u16,
    /// The answer is a PUBREC, and not a PUBACK.
    pub is_exactly_once: bool,
    /// The publish repeats an unanswered one. The home's answer to the first one answers this one too.
    pub is_repeat: bool,
    /// The reason code; `None` until the home has answered.
    pub reason: Option<ReasonCode>,
}

impl PublishAnswer {
    /// Whether the home still owes this answer, and it is for a message with this id and QoS.
    pub fn is_due_for(&self, id: u16, exactly_once: bool) -> bool {
        self.reason.is_none()
            && !self.is_repeat
            && (self.packet_id, self.is_exactly_once) == (id, exactly_once)
    }
}

/// A SUBACK that waits for homes, or an UNSUBACK that waits for a record of the session.
pub struct Suback {
    /// Its packet id.
    pub packet_id: u16,
    /// The number of answers of homes that it still waits for.
    pub unanswered_homes: u32,
    /// It waits for the record of the session that is in flight.
    pub is_record_in_flight: bool,
    /// It answers an UNSUBSCRIBE.
    pub is_unsuback: bool,
    /// The reason codes, one for each filter.
    pub reasons: Vec<ReasonCode>,
}

/// The check of a CONNECT's credential.
pub enum CredentialCheck {
    /// The verifier has not answered.
    Pending,
    /// The verifier's verdict.
    Answered(Identity),
}

/// The place of a filter's reason code in a SUBACK.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SubackEntry {
    /// The packet id of the SUBSCRIBE. No packet has the id 0, which [`SubackEntry::NONE`] and [`SubackEntry::RESUMED`] use.
    pub packet_id: u16,
    /// The index of the reason code.
    pub code_index: u16,
}

impl SubackEntry {
    /// No SUBACK waits for the subscription.
    pub const NONE: SubackEntry = SubackEntry {
        packet_id: 0,
        code_index: 0,
    };
    /// The subscription is a resumed one, and the CONNACK waits for it.
    pub const RESUMED: SubackEntry = SubackEntry {
        packet_id: 0,
        code_index: 1,
    };
}

/// The options of a subscription in MQTT.
#[derive(Default)]
pub struct SubscriptionState {
    /// Its options, encoded as in the SUBSCRIBE packet.
    pub options: u8,
    /// The subscription identifier; 0 for none.
    pub identifier: u32,
    /// The topic alias that the server has assigned; 0 for none.
    pub alias: u16,
    /// The entry that the home's answer will fill.
    pub suback_entry: SubackEntry,
    /// Set for a shared subscription, which has no topic.
    pub group: Option<Box<GroupMembership>>,
}

impl types::SubscriptionState for SubscriptionState {
    fn name(&self) -> Option<&[u8]> {
        self.group.as_deref().map(|group| &*group.name)
    }

    fn unpack_options(options: &mut u32) -> SubscriptionState {
        let qos = (*options >> QOS_SHIFT & 3) as u8;
        *options &= !(3 << QOS_SHIFT);
        SubscriptionState {
            options: qos,
            ..SubscriptionState::default()
        }
    }

    fn pack_options(&self, options: &mut u32) -> bool {
        *options |= u32::from(self.options & 3) << QOS_SHIFT;
        self.identifier == 0 && self.options & !(3 | RETAIN_HANDLING) == 0
    }
}

/// A client's membership in the group of a shared subscription.
pub struct GroupMembership {
    /// `$share/{name}/{filter}` as in the SUBSCRIBE.
    pub name: Box<[u8]>,
    /// The home and the group's number there, for each home that has answered.
    pub homes: Vec<(ShardId, u64)>,
    /// The number of homes that have not answered.
    pub unanswered_homes: u16,
    /// The session had the subscription before this connection.
    pub is_restored: bool,
}

impl GroupMembership {
    /// Heap bytes, with those of the struct. They never change.
    pub fn bytes(&self) -> usize {
        size_of::<GroupMembership>()
            + self.name.len()
            + self.homes.capacity() * size_of::<(ShardId, u64)>()
    }
}

impl MqttState {
    /// Whether the connection waits for the verdict on its credential.
    pub fn awaits_verdict(&self) -> bool {
        matches!(
            self.credential_check.as_deref(),
            Some(CredentialCheck::Pending)
        )
    }

    /// Whether none of this state is needed any more.
    pub fn is_idle(&self) -> bool {
        self.expiry_s == 0
            && !self.is_bridge
            && self.will.is_none()
            && self.inflight.is_empty()
            && self.waiting.is_empty()
            && self.received_ids.is_empty()
            && self.earlier_received_ids.is_empty()
            && self.pending_releases.is_empty()
            && self.answers.is_empty()
            && self.subacks.is_empty()
            && self.repeated_entries.is_empty()
            && self.filters_done == 0
            && self.client_aliases.is_empty()
            && self.aliases_max == 0
            && self.owed_credit.is_empty()
            && self.starts.is_empty()
            && self.retained_latest.is_empty()
            && self.unplaced_subscriptions.is_empty()
            && !self.is_retention_unconfirmed
            && !self.has_left_group
            && self.partial_packet.is_empty()
            && self.pending_connack.is_none()
            && self.recording.is_none()
            && self.unconfirmed_subscriptions == 0
            && self.credential_check.is_none()
    }

    /// Adds a message in flight and returns its index. Messages whose first PUBLISH waits for a record stay last, since messages must be sent again in the
    /// order in which they were first sent [MQTT-4.6.0-1].
    pub fn add_inflight(&mut self, message: Inflight) -> usize {
        let mut index = self.inflight.len();
        if !message.is_publish_unsent() {
            let newest_first = self.inflight.iter().rev();
            index -= newest_first
                .take_while(|entry| entry.is_publish_unsent())
                .count();
        }
        self.inflight.insert(index, message);
        index
    }

    /// Decodes the subscriptions of the session for which this connection had no room.
    pub(super) fn decode_unplaced(&self) -> impl Iterator<Item = StoredSubscription<'_>> {
        let stored = self.unplaced_subscriptions.iter();
        // This connection has encoded them.
        stored.filter_map(|bytes| StoredSubscription::decode(&mut FieldReader(bytes)).ok())
    }

    /// Sets the outcome of a publish. With QoS 2 it is the outcome of all publishes with this packet id that wait for one, otherwise of the first one. Returns
    /// false if no publish waits.
    pub fn set_outcome(&mut self, id: u16, exactly_once: bool, reason: ReasonCode) -> bool {
        let answers = self.answers.iter_mut();
        let waiting = answers
            .filter(|it| (it.packet_id, it.is_exactly_once) == (id, exactly_once))
            .filter(|it| it.reason.is_none());
        // Two QoS 1 publishes with the same id are two messages, each with its own answer.
        let count_max = if exactly_once { usize::MAX } else { 1 };
        let updated = waiting
            .take(count_max)
            .map(|answer| answer.reason = Some(reason));
        updated.count() > 0
    }

    /// Heap bytes, with those of the struct. Visits each message in flight and waiting.
    pub fn bytes(&self) -> usize {
        let packets = |list: &VecDeque<Inflight>| {
            let packets: usize = list.iter().map(|message| message.packet.len()).sum();
            list.capacity() * size_of::<Inflight>() + packets
        };
        let subacks: usize = self
            .subacks
            .iter()
            .map(|item| item.reasons.capacity())
            .sum();
        let aliases: usize = self.client_aliases.iter().map(Vec::capacity).sum();
        let unplaced: usize = self
            .unplaced_subscriptions
            .iter()
            .map(|bytes| bytes.len())
            .sum();
        let connecting = self.pending_connack.as_ref().map_or(0, |item| item.bytes());
        size_of::<MqttState>()
            + self.will.as_ref().map_or(0, |will| will.bytes())
            + packets(&self.inflight)
            + packets(&self.waiting)
            + (self.received_ids.len() + self.earlier_received_ids.len()) * RECEIVED_BYTES
            + self.pending_releases.capacity() * size_of::<PendingRelease>()
            + self.answers.capacity() * size_of::<PublishAnswer>()
            + self.subacks.capacity() * size_of::<Suback>()
            + subacks
            + self.repeated_entries.capacity() * size_of::<[SubackEntry; 2]>()
            + self.client_aliases.capacity() * size_of::<Vec<u8>>()
            + aliases
            + self.owed_credit.capacity() * size_of::<(u32, PartitionId, u64)>()
            + self.starts.heap_bytes()
            + self.retained_latest.capacity() * size_of::<LatestValuesRead>()
            + self.unplaced_subscriptions.capacity() * size_of::<Box<[u8]>>()
            + unplaced
            + connecting
            + self.recording.as_ref().map_or(0, |item| item.bytes())
            + self
                .credential_check
                .as_ref()
                .map_or(0, |_| size_of::<CredentialCheck>())
    }

    /// The records of the session, made if there are none. Only for a session that is recorded.
    pub fn recording(&mut self) -> &mut SessionRecording {
        self.recording.get_or_insert_default()
    }

    /// Packet ids of QoS 2 messages that the client has not released, in ascending order.
    pub fn unreleased(&self) -> impl Iterator<Item = u16> {
        self.received_ids.union(&self.earlier_received_ids).copied()
    }

    /// The client's share of the bytes of large messages, which several connections use, and the bytes that homes keep to recognise its QoS 2 messages.
    pub fn shared_bytes(&self) -> usize {
        let messages = self.inflight.iter().chain(&self.waiting);
        let payload_shares =
            messages.filter_map(|message| Some(message.payload.as_ref()?.weight()));
        let kept_by_homes = match self.token {
            0 => 0,
            _ => self.received_ids.len() + self.earlier_received_ids.len(),
        };
        payload_shares.sum::<usize>() + kept_by_homes * ENTRY_BYTES
    }

    /// The packet id for the next message: the first one after `last` that no message in flight or waiting uses. Visits each message at most twice, however
    /// many ids in a row are taken.
    pub fn next_packet_id(&self, last_id: u16) -> u16 {
        const IDS: usize = u16::MAX as usize;
        let first = usize::from(last_id) % IDS;
        let messages = || self.inflight.iter().chain(&self.waiting);
        // The distance of a message's id from the first candidate.
        let distance =
            |message: &Inflight| (usize::from(message.packet_id) + 2 * IDS - 1 - first) % IDS;
        let mut offset = 0;
        if messages().any(|message| distance(message) == 0) {
            let mut is_taken = alloc::vec![false; self.inflight.len() + self.waiting.len() + 1];
            for message in messages() {
                if let Some(is_taken) = is_taken.get_mut(distance(message)) {
                    *is_taken = true;
                }
            }
            offset = is_taken.iter().position(|is_taken| !is_taken).unwrap_or(0);
        }
        ((first + offset) % IDS) as u16 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(packet_id: u16) -> Inflight {
        Inflight {
            packet_id,
            step: DeliveryStep::Published,
            end_s: 0,
            offset: 0,
            group: None,
            version: Version::V5,
            packet: [].into(),
            payload: None,
            record_wait: RecordWait::None,
        }
    }

    #[test]
    fn the_next_packet_id_is_the_first_free_one_and_never_zero() {
        let mut mqtt = MqttState::default();
        assert_eq!(
            [0, 1, u16::MAX].map(|last| mqtt.next_packet_id(last)),
            [1, 2, 1]
        );
        mqtt.inflight.extend([1, 2, u16::MAX].map(sent));
        mqtt.waiting.extend([3, 5].map(sent));
        let next = [0, 2, 3, 4, u16::MAX - 1].map(|last| mqtt.next_packet_id(last));
        assert_eq!(next, [4, 4, 4, 6, 4]);
        mqtt.inflight = (1..u16::MAX).map(sent).collect();
        assert_eq!(mqtt.next_packet_id(7), u16::MAX);
    }

    #[test]
    fn messages_that_wait_for_a_record_stay_behind_those_that_were_sent() {
        let mut mqtt = MqttState::default();
        let places = [
            (1, RecordWait::RecordInFlight),
            (2, RecordWait::None),
            (3, RecordWait::NextRecord),
        ]
        .map(|(id, unsent)| {
            mqtt.add_inflight(Inflight {
                record_wait: unsent,
                ..sent(id)
            })
        });
        assert_eq!(places, [0, 0, 2]);
        // The first one is sent now.
        mqtt.inflight[1].record_wait = RecordWait::None;
        assert_eq!(mqtt.add_inflight(sent(4)), 2);
        let ids: Vec<u16> = mqtt.inflight.iter().map(|it| it.packet_id).collect();
        assert_eq!(ids, [2, 1, 4, 3]);
    }

    #[test]
    fn state_of_a_connection_is_weighed() {
        let mut mqtt = MqttState::default();
        assert_eq!(mqtt.bytes(), size_of::<MqttState>());
        let sent = |packet: &[u8]| Inflight {
            packet_id: 1,
            step: DeliveryStep::Published,
            end_s: 0,
            offset: 0,
            group: None,
            version: Version::V5,
            packet: packet.into(),
            payload: None,
            record_wait: RecordWait::None,
        };
        mqtt.inflight.push_back(sent(&[0; 10_000]));
        mqtt.waiting.push_back(sent(&[0; 20_000]));
        mqtt.client_aliases = alloc::vec![alloc::vec![0; 1_000]; 16];
        mqtt.received_ids.extend(1..=1_000);
        mqtt.unplaced_subscriptions.push([0; 300].into());
        mqtt.will = Some(Box::new(Will {
            data: [0; 4_000].into(),
            topic: [0; 100].into(),
            ..Will::default()
        }));
        mqtt.earlier_received_ids.extend(2_000..2_500);
        let named = 10_000 + 20_000 + 16_000 + 9_000 + 300 + 4_100;
        let bytes = mqtt.bytes() - size_of::<MqttState>();
        assert!(
            (named..named * 11 / 10).contains(&bytes),
            "{bytes} of {named}"
        );
        assert_eq!(mqtt.shared_bytes(), 0);
        mqtt.token = 1;
        assert_eq!(mqtt.shared_bytes(), 1_500 * ENTRY_BYTES);
    }
}
