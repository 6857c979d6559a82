//! The state of an MQTT connection. A client with one plain subscription has only its row and [`MqttRow`]. Everything else is in [`Mqtt`], which exists
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
use crate::protocol::mqtt::reading::{LatestShown, Start};
use crate::protocol::mqtt::receive_maximum::PastMaximum;
use crate::store::shared::Slice;
use crate::store::slab::{NONE, SlabRow};

/// The row of an MQTT connection, from its CONNECT on.
pub struct MqttRow {
    /// The session. Its row is [`NONE`] until the home has answered.
    pub session: SessionId,
    /// In seconds; 0 for no limit.
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
pub struct Mqtt {
    /// For how many seconds after the connection's end the session is kept.
    pub expiry_s: u32,
    /// The client is a bridge of 3.1.1: all its subscriptions have No Local and Retain As Published.
    pub bridge: bool,
    /// The will.
    pub will: Option<Box<Will>>,
    /// QoS 1 and 2 messages that the client has not acknowledged, in the order in which they were sent.
    pub inflight: VecDeque<Inflight>,
    /// Messages that wait for room in `inflight`: first those to be sent again, then retained messages and messages of groups.
    pub waiting: VecDeque<Inflight>,
    /// QoS 2 messages of the client that it has not released.
    pub received: BTreeSet<u16>,
    /// Packet ids of such messages on former connections of a session with a token. A message with one of these ids may have been published already. It goes
    /// to its home, which knows that.
    pub received_before: BTreeSet<u16>,
    /// In a cluster: how many more messages of former connections the client may release, at most one for each packet id. Only the log knows all of them,
    /// since one may have come to another node a moment ago.
    pub releases_before: u16,
    /// The token by which homes know the session's QoS 2 messages. 0 if the session is not recorded.
    pub token: u64,
    /// In a cluster: the offset of the claim by which this connection got the session. Otherwise 0.
    pub claim: u64,
    /// Releases of QoS 2 messages that homes have not recorded.
    pub releasing: Vec<Releasing>,
    /// Set while the client has exceeded the Receive Maximum of the CONNACK.
    pub past_maximum: Option<PastMaximum>,
    /// The answers to the client's publishes, in their order.
    pub answers: VecDeque<Answer>,
    /// SUBACKs that wait for homes, and UNSUBACKs.
    pub subacks: Vec<Suback>,
    /// Pairs of grants, of two SUBSCRIBEs for the same filter. The second of a pair belongs to the earlier SUBSCRIBE, which no home had answered when the
    /// later one came. Both are given together.
    pub grants_behind: Vec<((u16, u16), (u16, u16))>,
    /// The number of filters of the current SUBSCRIBE that are done, if they need more than one turn.
    pub filters_done: u16,
    /// The client's topic aliases, as topics; an unset alias is empty.
    pub aliases: Vec<Vec<u8>>,
    /// The client's Topic Alias Maximum.
    pub aliases_max: u16,
    /// The number of aliases that the server has assigned.
    pub aliases_given: u16,
    /// Messages of groups whose credit goes back when the socket is writable: the subscription's index, the partition and the offset.
    pub groups_behind: Vec<(u32, PartitionId, u64)>,
    /// Where subscriptions begin, while some still read from the log.
    pub starts: Vec<Start>,
    /// Subscriptions that get the latest values of their topics now, one after another.
    pub retained_latest: Vec<LatestShown>,
    /// [Stored](StoredSubscription) subscriptions of the session for which this connection had no room, so it is about to end.
    pub unplaced: Vec<Box<[u8]>>,
    /// Homes have not confirmed yet that they keep messages for a subscription.
    pub needs_told: bool,
    /// The client has left a group. Messages of the group may still arrive for the index that the subscription had.
    pub left_group: bool,
    /// Over WebSocket: the received part of an incomplete packet.
    pub partial: SpillBuffer,
    /// The progress of that packet.
    pub progress: Progress,
    /// The verdict on the CONNECT's credential, until the CONNECT is carried out.
    pub asked: Option<Box<Asked>>,
    /// Set until the CONNACK is written.
    pub connecting: Option<Box<Connecting>>,
    /// Set if the log may have records of the session.
    pub recording: Option<Box<Recording>>,
    /// The number of resumed subscriptions that the CONNACK waits for.
    pub unconfirmed: u32,
}

/// The release of a QoS 2 message, which homes record before the PUBCOMP.
pub struct Releasing {
    /// The packet id of the message.
    pub packet_id: u16,
    /// The number of homes that have not answered.
    pub waiting: u16,
    /// Whether a home, or this connection, knew the message.
    pub is_known: bool,
    /// The message itself is refused with this reason, unless a home knows it from a former connection.
    pub refused: Option<ReasonCode>,
}

/// The records of a session in the log.
#[derive(Default)]
pub struct Recording {
    /// The state of the session according to all its records, those in flight included; `None` if this connection does not know it.
    pub outline: Option<Outline>,
    /// A record is in flight.
    pub is_asked: bool,
    /// The session must be recorded in the next turn, or when the record in flight is committed.
    pub is_wanted: bool,
    /// The messages since the first one in flight may include messages of QoS 2.
    pub is_exactly_once: bool,
    /// The client has acknowledged messages since the last record.
    pub has_news: bool,
    /// The second of the last record.
    pub asked_s: u32,
    /// Set if the client had QoS 2 messages that were published before the session had a token.
    pub keyless: Option<Box<Keyless>>,
    /// Bytes of the last record of the whole session, and of the changes since.
    pub whole_bytes: u32,
    pub parts_bytes: u32,
}

/// QoS 2 messages of the client that no home knows, since they were published before the session had a token. So the records of the session have their
/// packet ids.
#[derive(Default)]
pub struct Keyless {
    /// The packet ids of those that the client has not released.
    pub unreleased: BTreeSet<u16>,
    /// Those that it has released, until a record no longer has them.
    pub released: Vec<KeylessRelease>,
}

/// A PUBREL whose PUBCOMP waits for a record of the session without its packet id. Otherwise the client could use the id for another message, which would
/// be taken for the former one after a crash.
pub struct KeylessRelease {
    /// The packet id.
    pub packet_id: PacketId,
    /// Whether the record in flight does not have the id.
    pub is_asked: bool,
}

impl Keyless {
    /// Heap bytes, with those of the struct.
    fn bytes(&self) -> usize {
        size_of::<Keyless>()
            + self.unreleased.len() * RECEIVED_BYTES
            + self.released.capacity() * size_of::<KeylessRelease>()
    }
}

/// Changes of so many bytes may follow a record of the whole session, or more if the session is longer. Then the whole session is recorded again, since a
/// process that reads the log needs time for each change.
const PARTS_BYTES_MIN: u32 = 1024;

impl Recording {
    /// The session of before has so many bytes, and an unknown number of changes may have followed its last whole record. `random` stands for their bytes: so
    /// the whole session is recorded as often as it should be, also if each connection records only a few changes.
    pub fn goes_on_from(&mut self, whole_bytes: usize, random: u64) {
        self.whole_bytes = whole_bytes as u32;
        self.parts_bytes = (random % u64::from(self.parts_bytes_max())) as u32;
    }

    fn parts_bytes_max(&self) -> u32 {
        let entries = self.outline.as_ref().map_or(0, Outline::bytes);
        self.whole_bytes.max(entries as u32).max(PARTS_BYTES_MIN)
    }

    /// The log gets changes of so many bytes. If these are as long as the session, they count as the whole session.
    pub fn add_parts(&mut self, bytes: usize) {
        let bytes = bytes as u32;
        (self.whole_bytes, self.parts_bytes) = match bytes >= self.parts_bytes_max() {
            true => (bytes, 0),
            false => (self.whole_bytes, self.parts_bytes + bytes),
        };
    }

    /// Whether the next record has the whole session.
    pub fn is_whole_due(&self) -> bool {
        self.outline.is_none() || self.parts_bytes >= self.parts_bytes_max()
    }

    /// Packet ids of unreleased QoS 2 messages that no home knows, in ascending order.
    pub fn keyless(&self) -> Vec<u16> {
        let unreleased = self.keyless.iter().flat_map(|it| &it.unreleased);
        unreleased.copied().collect()
    }

    /// Heap bytes, with those of the struct.
    fn bytes(&self) -> usize {
        size_of::<Recording>()
            + self.outline.as_ref().map_or(0, Outline::bytes)
            + self.keyless.as_ref().map_or(0, |it| it.bytes())
    }
}

/// Contents of the CONNACK, while the connection waits for its session.
pub struct Connecting {
    /// The client id that the server assigned.
    pub assigned: Option<Box<str>>,
    /// The server has set the keep alive.
    pub server_keep_alive: bool,
    /// The server has set the session expiry.
    pub server_expiry: bool,
    /// The server does not support shared subscriptions.
    pub no_groups: bool,
    /// The home's answer: the stored session, or `None` if a new one begins.
    pub given: Option<Option<EncodedSession>>,
}

/// DUP in the first byte of a PUBLISH (section 3.3.1.1). A message in `waiting` has it if it was sent before.
const DUP: u8 = 0b1000;
/// RETAIN in that byte (section 3.3.1.3).
const RETAIN: u8 = 1;

impl Connecting {
    /// Heap bytes, with those of the struct.
    fn bytes(&self) -> usize {
        let given = self.given.as_ref().and_then(Option::as_ref);
        size_of::<Connecting>()
            + self.assigned.as_ref().map_or(0, |id| id.len())
            + given.map_or(0, |state| state.bytes.len())
    }
}

/// Memory of a packet id in a `BTreeSet`: leaves have eleven slots, are two thirds full, and have a header.
const RECEIVED_BYTES: usize = 6;

/// The step of the delivery of a message (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// PUBLISH was sent; PUBACK or PUBREC is due.
    Published,
    /// PUBREC was received and PUBREL was sent; PUBCOMP is due.
    Released,
}

/// The end of a message without a time to live.
pub const NO_END_S: u64 = u64::MAX;

/// A QoS 1 or 2 message to the client that is not acknowledged.
pub struct Inflight {
    /// Its packet id.
    pub packet_id: u16,
    /// The step of its delivery.
    pub step: Step,
    /// The Unix second in which its time to live ends, or [`NO_END_S`]. 64 bits, since a time to live may end after 2106.
    pub end_s: u64,
    /// Its offset.
    pub offset: u64,
    /// For a message of a group: the subscription's index and the partition of the topic.
    pub group: Option<(u16, PartitionId)>,
    /// The version of its packet.
    pub version: Version,
    /// The PUBLISH packet; that of a large message has an empty payload.
    pub packet: Box<[u8]>,
    /// The payload of a large message.
    pub payload: Option<Slice>,
    /// Whether its next packet to the client waits for a record of the session.
    pub unsent: Unsent,
}

/// Whether a packet of a QoS 2 message waits until the step of its delivery is in the log. If it did not wait, the server would not know after a crash that
/// it has sent the message, and the client could get it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// It does not wait.
    No,
    /// It waits for a record that is not asked for yet.
    Wanted,
    /// It waits for the record in flight.
    Asked,
}

/// The PUBLISH of a large message with an empty payload. `head` is the packet up to the payload.
pub fn without_payload(head: &[u8]) -> Option<Box<[u8]>> {
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
    /// The topic that its packet names.
    pub fn topic(&self) -> &[u8] {
        let packet = self.publish();
        packet.map_or(b"", |publish| publish.topic.as_bytes())
    }

    /// The QoS of its packet; 0 if the packet was dropped because the client has received it.
    pub fn qos(&self) -> u8 {
        self.packet.first().map_or(0, |first| first >> 1 & 3)
    }

    /// Whether it is of QoS 2.
    pub fn is_exactly_once(&self) -> bool {
        self.step == Step::Released || self.qos() == 2
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
    pub fn is_first_unsent(&self) -> bool {
        self.unsent != Unsent::No && self.step == Step::Published
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

    /// The client has received it: drops the packet.
    pub fn let_go(&mut self) {
        (self.packet, self.payload) = ([].into(), None);
    }
}

/// The answer to one publish of the client.
pub struct Answer {
    /// Its packet id.
    pub packet_id: u16,
    /// PUBREC instead of PUBACK.
    pub exactly_once: bool,
    /// The client has sent the message again. The home's answer to the first one answers this one too.
    pub again: bool,
    /// The reason code, when the home has answered.
    pub reason: Option<ReasonCode>,
}

impl Answer {
    /// Whether the message with this id waits for the answer of a home.
    pub fn is_due(&self, id: u16, exactly_once: bool) -> bool {
        self.reason.is_none()
            && !self.again
            && (self.packet_id, self.exactly_once) == (id, exactly_once)
    }
}

/// A SUBACK that waits for homes, or an UNSUBACK that waits for a record of the session.
pub struct Suback {
    /// Its packet id.
    pub packet_id: u16,
    /// The number of answers of homes that it waits for.
    pub waiting: u32,
    /// The record of the session that it waits for is in flight.
    pub is_asked: bool,
    /// It answers an UNSUBSCRIBE.
    pub is_unsuback: bool,
    /// A reason code for each filter.
    pub reasons: Vec<ReasonCode>,
}

/// The verdict on the credential of a CONNECT.
pub enum Asked {
    /// The verifier has not answered.
    Pending,
    /// The verdict.
    Answered(Identity),
}

/// In place of a grant: the subscription is a resumed one, and the CONNACK waits for it. No packet has the id 0.
pub const RESUMED: (u16, u16) = (0, 1);

/// The options of a subscription in MQTT.
#[derive(Default)]
pub struct SubscriptionState {
    /// Its options as on the wire.
    pub options: u8,
    /// Its identifier; 0 without one.
    pub identifier: u32,
    /// The alias of its topic.
    pub alias: u16,
    /// The grant that is not given yet: the packet id of the SUBSCRIBE and the index of the reason code in its SUBACK, or [`RESUMED`].
    pub granted: (u16, u16),
    /// Set for a shared subscription, which has no topic.
    pub group: Option<Box<Shared>>,
}

impl types::SubscriptionState for SubscriptionState {
    fn name(&self) -> Option<&[u8]> {
        self.group.as_deref().map(|group| &*group.text)
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

/// A client's subscription to a group.
pub struct Shared {
    /// `$share/{name}/{filter}` as in the SUBSCRIBE.
    pub text: Box<[u8]>,
    /// The group at each home that has answered.
    pub homes: Vec<(ShardId, u64)>,
    /// The number of homes that have not answered.
    pub waiting: u16,
    /// The session had the subscription before this connection.
    pub restored: bool,
}

impl Shared {
    /// Heap bytes, with those of the struct. They never change.
    pub fn bytes(&self) -> usize {
        size_of::<Shared>() + self.text.len() + self.homes.capacity() * size_of::<(ShardId, u64)>()
    }
}

impl Mqtt {
    /// Whether the connection waits for the verdict on its credential.
    pub fn awaits_verdict(&self) -> bool {
        matches!(self.asked.as_deref(), Some(Asked::Pending))
    }

    /// Whether none of this state is needed any more.
    pub fn is_idle(&self) -> bool {
        self.expiry_s == 0
            && !self.bridge
            && self.will.is_none()
            && self.inflight.is_empty()
            && self.waiting.is_empty()
            && self.received.is_empty()
            && self.received_before.is_empty()
            && self.releasing.is_empty()
            && self.answers.is_empty()
            && self.subacks.is_empty()
            && self.grants_behind.is_empty()
            && self.filters_done == 0
            && self.aliases.is_empty()
            && self.aliases_max == 0
            && self.groups_behind.is_empty()
            && self.starts.is_empty()
            && self.retained_latest.is_empty()
            && self.unplaced.is_empty()
            && !self.needs_told
            && !self.left_group
            && self.partial.is_empty()
            && self.connecting.is_none()
            && self.recording.is_none()
            && self.unconfirmed == 0
            && self.asked.is_none()
    }

    /// Adds a message in flight and returns its place. Messages that have not been sent, since they wait for a record, stay last: messages are sent
    /// again in the order in which they were sent first [MQTT-4.6.0-1].
    pub fn add_inflight(&mut self, message: Inflight) -> usize {
        let mut at = self.inflight.len();
        if !message.is_first_unsent() {
            let last = self.inflight.iter().rev();
            at -= last.take_while(|it| it.is_first_unsent()).count();
        }
        self.inflight.insert(at, message);
        at
    }

    /// Subscriptions of the session for which this connection had no room.
    pub(super) fn unplaced(&self) -> impl Iterator<Item = StoredSubscription<'_>> {
        let stored = self.unplaced.iter();
        // This connection has encoded them.
        stored.filter_map(|bytes| StoredSubscription::decode(&mut FieldReader(bytes)).ok())
    }

    /// Notes the outcome of a publish for all messages that the client has sent with its packet id. Returns false if none waits for one.
    pub fn answer(&mut self, id: u16, exactly_once: bool, reason: ReasonCode) -> bool {
        let answers = self.answers.iter_mut();
        let own = answers
            .filter(|it| (it.packet_id, it.exactly_once) == (id, exactly_once))
            .filter(|it| it.reason.is_none());
        // Two of QoS 1 with one id are two messages, each with its own answer.
        let most = if exactly_once { usize::MAX } else { 1 };
        let noted = own.take(most).map(|answer| answer.reason = Some(reason));
        noted.count() > 0
    }

    /// Heap bytes, with those of the struct. Visits each message in flight and waiting.
    pub fn bytes(&self) -> usize {
        let packets = |list: &VecDeque<Inflight>| {
            let packets: usize = list.iter().map(|sent| sent.packet.len()).sum();
            list.capacity() * size_of::<Inflight>() + packets
        };
        let subacks: usize = self.subacks.iter().map(|it| it.reasons.capacity()).sum();
        let aliases: usize = self.aliases.iter().map(Vec::capacity).sum();
        let unplaced: usize = self.unplaced.iter().map(|sub| sub.len()).sum();
        let connecting = self.connecting.as_ref().map_or(0, |it| it.bytes());
        size_of::<Mqtt>()
            + self.will.as_ref().map_or(0, |will| will.bytes())
            + packets(&self.inflight)
            + packets(&self.waiting)
            + (self.received.len() + self.received_before.len()) * RECEIVED_BYTES
            + self.releasing.capacity() * size_of::<Releasing>()
            + self.answers.capacity() * size_of::<Answer>()
            + self.subacks.capacity() * size_of::<Suback>()
            + subacks
            + self.grants_behind.capacity() * size_of::<[(u16, u16); 2]>()
            + self.aliases.capacity() * size_of::<Vec<u8>>()
            + aliases
            + self.groups_behind.capacity() * size_of::<(u32, PartitionId, u64)>()
            + self.starts.capacity() * size_of::<Start>()
            + self.retained_latest.capacity() * size_of::<LatestShown>()
            + self.unplaced.capacity() * size_of::<Box<[u8]>>()
            + unplaced
            + connecting
            + self.recording.as_ref().map_or(0, |it| it.bytes())
            + self.asked.as_ref().map_or(0, |_| size_of::<Asked>())
    }

    /// What of the session is in the log. Only for a session that is recorded.
    pub fn recording(&mut self) -> &mut Recording {
        self.recording.get_or_insert_default()
    }

    /// Packet ids of QoS 2 messages from the client that it has not released, in ascending order.
    pub fn unreleased(&self) -> impl Iterator<Item = u16> {
        self.received.union(&self.received_before).copied()
    }

    /// Its part of the bytes of large messages that it shares, and of what homes keep to recognise its QoS 2 messages.
    pub fn elsewhere_bytes(&self) -> usize {
        let all = self.inflight.iter().chain(&self.waiting);
        let parts = all.filter_map(|sent| Some(sent.payload.as_ref()?.weight()));
        let kept_by_homes = match self.token {
            0 => 0,
            _ => self.received.len() + self.received_before.len(),
        };
        parts.sum::<usize>() + kept_by_homes * ENTRY_BYTES
    }

    /// The packet id of the next message: the first one after `last` that no message in flight or waiting has. Visits each message once, however
    /// many ids in a row are taken.
    pub fn next_packet_id(&self, last: u16) -> u16 {
        const IDS: usize = u16::MAX as usize;
        let first = usize::from(last) % IDS;
        let all = || self.inflight.iter().chain(&self.waiting);
        // The distance of a message's id from the first candidate.
        let distance = |sent: &Inflight| (usize::from(sent.packet_id) + 2 * IDS - 1 - first) % IDS;
        let mut at = 0;
        if all().any(|sent| distance(sent) == 0) {
            let mut taken = alloc::vec![false; self.inflight.len() + self.waiting.len() + 1];
            for sent in all() {
                if let Some(taken) = taken.get_mut(distance(sent)) {
                    *taken = true;
                }
            }
            at = taken.iter().position(|taken| !taken).unwrap_or(0);
        }
        ((first + at) % IDS) as u16 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(packet_id: u16) -> Inflight {
        Inflight {
            packet_id,
            step: Step::Published,
            end_s: 0,
            offset: 0,
            group: None,
            version: Version::V5,
            packet: [].into(),
            payload: None,
            unsent: Unsent::No,
        }
    }

    #[test]
    fn the_next_packet_id_is_the_first_free_one_and_never_zero() {
        let mut mqtt = Mqtt::default();
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
        let mut mqtt = Mqtt::default();
        let places = [(1, Unsent::Asked), (2, Unsent::No), (3, Unsent::Wanted)]
            .map(|(id, unsent)| mqtt.add_inflight(Inflight { unsent, ..sent(id) }));
        assert_eq!(places, [0, 0, 2]);
        // The first one is sent now.
        mqtt.inflight[1].unsent = Unsent::No;
        assert_eq!(mqtt.add_inflight(sent(4)), 2);
        let ids: Vec<u16> = mqtt.inflight.iter().map(|it| it.packet_id).collect();
        assert_eq!(ids, [2, 1, 4, 3]);
    }

    #[test]
    fn state_of_a_connection_is_weighed() {
        let mut mqtt = Mqtt::default();
        assert_eq!(mqtt.bytes(), size_of::<Mqtt>());
        let sent = |packet: &[u8]| Inflight {
            packet_id: 1,
            step: Step::Published,
            end_s: 0,
            offset: 0,
            group: None,
            version: Version::V5,
            packet: packet.into(),
            payload: None,
            unsent: Unsent::No,
        };
        mqtt.inflight.push_back(sent(&[0; 10_000]));
        mqtt.waiting.push_back(sent(&[0; 20_000]));
        mqtt.aliases = alloc::vec![alloc::vec![0; 1_000]; 16];
        mqtt.received.extend(1..=1_000);
        mqtt.unplaced.push([0; 300].into());
        mqtt.will = Some(Box::new(Will {
            data: [0; 4_000].into(),
            topic: [0; 100].into(),
            ..Will::default()
        }));
        mqtt.received_before.extend(2_000..2_500);
        let named = 10_000 + 20_000 + 16_000 + 9_000 + 300 + 4_100;
        let bytes = mqtt.bytes() - size_of::<Mqtt>();
        assert!(
            (named..named * 11 / 10).contains(&bytes),
            "{bytes} of {named}"
        );
        assert_eq!(mqtt.elsewhere_bytes(), 0);
        mqtt.token = 1;
        assert_eq!(mqtt.elsewhere_bytes(), 1_500 * ENTRY_BYTES);
    }
}
