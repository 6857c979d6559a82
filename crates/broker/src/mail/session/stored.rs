//! The stored form of a session while its client is disconnected: subscriptions with their positions, messages that the client has not
//! acknowledged, and packet ids of the client's unreleased QoS 2 messages (MQTT 5.0 section 4.1). A session is one byte string, to save memory:
//! millions of clients may be disconnected at once.
//!
//! The bytes: a version, the epoch of all positions (4 bytes, little endian), the token of a recorded session (8 bytes, little endian), then
//! four lists, each with its length first: subscriptions, messages in flight, messages that wait for room, packet ids. The packet ids are ascending. If
//! the session has a token, the packet ids that no home knows follow once more at the end of this list, so that earlier builds can read the list too.
//! Payloads of large messages are shared with the log, so they are not in the byte string.
//!
//! Invariants: [`StoredSession::encode`] makes all stored bytes of this process. Bytes of a snapshot are [checked](StoredSession::check)
//! before use.
//!
//! Deliberately not here: how a session is resumed (`protocol/mqtt/resume.rs`).

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_settings::MAX_TOPIC_BYTES;
use crore_wire::mqtt::{self, Packet, Version};
use crore_wire::topic;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Damaged, FieldReader, FieldWriter};
use crate::store::shared::Slice;

/// The versions of the stored form: without and with a token. Other versions are refused.
const WITHOUT_TOKEN: u8 = 1;
const WITH_TOKEN: u8 = 2;
/// The bytes of the epoch.
const EPOCH_RANGE: core::ops::Range<usize> = 1..5;
/// The bytes of the token.
const TOKEN_RANGE: core::ops::Range<usize> = 5..13;

/// The bits of a stored subscription: the options QoS, No Local and Retain As Published as in SUBSCRIBE (section 3.8.3.1), and three flags.
pub(super) const OPTIONS: u8 = 0x0F;
/// Both bits of Retain Handling. No SUBSCRIBE sets both, so together they can be a flag here.
const LACKS_RETAINED: u8 = 0x30;
const HAS_STARTS: u8 = 0x40;
const HAS_POSITIONS: u8 = 0x80;
/// The QoS among the options.
const QOS: u8 = 3;

/// The flags of a stored message.
const RELEASED: u8 = 1;
const V5: u8 = 2;
const HAS_PAYLOAD: u8 = 4;
/// The time to live of the message ends after [`LATE_S`], and the stored second counts from [`LATE_S`].
const LATE: u8 = 8;
/// The highest second that has 32 bits.
const LATE_S: u64 = u32::MAX as u64;
/// The stored second of a message without a time to live.
const NO_END_S: u32 = u32::MAX;

/// A session as bytes.
#[derive(Clone, Debug, Default)]
pub struct EncodedSession {
    /// The bytes, without the payloads of large messages.
    pub bytes: Box<[u8]>,
    /// The payloads of large messages that the client has not acknowledged, in the order of these messages.
    pub payloads: Vec<Slice>,
}

/// A session, as the last connection left it and the next one resumes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredSession<'a> {
    /// The epoch of all positions.
    pub epoch: u32,
    pub subscriptions: Vec<StoredSubscription<'a>>,
    /// Messages that were sent and not acknowledged, in the order of sending.
    pub inflight: Vec<StoredMessage<'a>>,
    /// Messages that were not sent because the client's Receive Maximum was reached.
    pub waiting: Vec<StoredMessage<'a>>,
    /// Packet ids of QoS 2 messages that the client has not released, in ascending order. If the session has a token, the homes of the topics
    /// know which of these messages were published. Then this list only says for how much memory of the homes the session is charged.
    pub received: Vec<u16>,
    /// If the session has a token: the packet ids of `received` that no home knows, because these messages were published before the session got its
    /// token. In ascending order.
    pub keyless: Vec<u16>,
    /// Distinguishes a [recorded](crate::budget::world::World::records_sessions) session from all others of its client id. Otherwise 0.
    pub token: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredSubscription<'a> {
    /// The filter as in the SUBSCRIBE; for a shared subscription `$share/{name}/{filter}`.
    pub filter: Cow<'a, [u8]>,
    /// QoS, No Local and Retain As Published, as in the SUBSCRIBE.
    pub options: u8,
    /// The subscription identifier; 0 without one.
    pub identifier: u32,
    /// Whether the client still lacks some retained messages (or latest values of a topic) that it requested by subscribing.
    pub lacks_retained: bool,
    /// The offsets up to which all messages were sent to the client: one for a topic, one for each partition for a filter with wildcards. Empty
    /// if the subscription has no position: it has QoS 0, is shared, or its home has not answered.
    pub positions: Vec<u64>,
    /// For each position, the offset after which this subscription itself has sent all messages up to the position. Messages before this offset were sent
    /// by overlapping subscriptions of the client, or not at all. Empty if the offsets are equal to the positions.
    pub starts: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct StoredMessage<'a> {
    pub packet_id: u16,
    /// Whether the client has received the message, so that its PUBCOMP is due.
    pub is_released: bool,
    /// The MQTT version of the packet.
    pub version: Version,
    /// The Unix second in which the message's time to live ends.
    pub end_s: Option<u64>,
    /// The PUBLISH, without the payload if that is in `payload`. Empty if the message is released.
    pub packet: Cow<'a, [u8]>,
    pub payload: Option<Slice>,
}

impl StoredSubscription<'_> {
    pub fn qos(&self) -> u8 {
        self.options & QOS
    }

    pub fn is_shared(&self) -> bool {
        mqtt::split_shared(&self.filter).is_some()
    }

    /// Whether logs keep messages for the subscription while the client is disconnected.
    pub fn needs_log(&self) -> bool {
        self.qos() > 0 || self.is_shared()
    }

    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut out = FieldWriter(bytes);
        let flag = |set, flag| if set { flag } else { 0 };
        out.byte(
            self.options & OPTIONS
                | flag(self.lacks_retained, LACKS_RETAINED)
                | flag(!self.starts.is_empty(), HAS_STARTS)
                | flag(!self.positions.is_empty(), HAS_POSITIONS),
        );
        out.number(self.identifier.into());
        out.field(&self.filter);
        if !self.positions.is_empty() {
            out.number(self.positions.len() as u64);
            for offset in self.positions.iter().chain(&self.starts) {
                out.number(*offset);
            }
        }
    }

    /// # Errors
    /// The bytes end too early, or a number is too large.
    pub fn decode<'a>(reader: &mut FieldReader<'a>) -> Result<StoredSubscription<'a>, Damaged> {
        let flags = reader.byte()?;
        let identifier = reader.number32()?;
        let filter = reader.field()?.into();
        let (mut positions, mut starts): (Vec<u64>, Vec<u64>) = Default::default();
        if flags & HAS_POSITIONS != 0 {
            let count = reader.number()?;
            let mut offsets = || {
                (0..count)
                    .map(|_| reader.number())
                    .collect::<Result<_, _>>()
            };
            positions = offsets()?;
            if flags & HAS_STARTS != 0 {
                starts = offsets()?;
            }
        }
        Ok(StoredSubscription {
            filter,
            options: flags & OPTIONS,
            identifier,
            lacks_retained: flags & LACKS_RETAINED == LACKS_RETAINED,
            positions,
            starts,
        })
    }

    /// # Errors
    /// The fault. No server has written these bytes.
    pub(super) fn check(&self, partitions: PartitionId) -> Result<(), Damaged> {
        let filter = match mqtt::split_shared(&self.filter) {
            Some((_, filter)) => filter,
            None => &*self.filter,
        };
        topic::check_filter(filter, MAX_TOPIC_BYTES)
            .map_err(|_| Damaged("a subscription of a session has no valid filter"))?;
        let expected = match topic::has_wildcard(filter) {
            true => usize::from(partitions),
            false => 1,
        };
        let is_valid = |offsets: &[u64]| offsets.is_empty() || offsets.len() == expected;
        match self.qos() < QOS && is_valid(&self.positions) && is_valid(&self.starts) {
            true => Ok(()),
            false => Err(Damaged("a subscription of a session is not valid")),
        }
    }
}

impl StoredMessage<'_> {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.packet_id.to_le_bytes());
        let (end_s, late) = match self.end_s {
            None => (NO_END_S, 0),
            Some(end_s) if end_s < LATE_S => (end_s as u32, 0),
            Some(end_s) => ((end_s - LATE_S) as u32, LATE),
        };
        bytes.extend_from_slice(&end_s.to_le_bytes());
        let flag = |set, flag| if set { flag } else { 0 };
        let mut out = FieldWriter(bytes);
        out.byte(
            flag(self.is_released, RELEASED)
                | flag(self.version == Version::V5, V5)
                | flag(self.payload.is_some(), HAS_PAYLOAD)
                | late,
        );
        out.field(&self.packet);
    }

    pub(super) fn decode<'a>(
        reader: &mut FieldReader<'a>,
        payloads: &mut impl Iterator<Item = Slice>,
    ) -> Result<StoredMessage<'a>, Damaged> {
        let packet_id = reader.fixed16()?;
        let end_s = reader.fixed32()?;
        let flags = reader.byte()?;
        let packet = reader.field()?.into();
        let missing = Damaged("the payload of a session's message is missing");
        Ok(StoredMessage {
            packet_id,
            is_released: flags & RELEASED != 0,
            version: match flags & V5 {
                0 => Version::V311,
                _ => Version::V5,
            },
            end_s: match end_s {
                end_s if flags & LATE != 0 => Some(LATE_S + u64::from(end_s)),
                NO_END_S => None,
                end_s => Some(end_s.into()),
            },
            packet,
            payload: match flags & HAS_PAYLOAD {
                0 => None,
                _ => Some(payloads.next().ok_or(missing)?),
            },
        })
    }

    fn skip(reader: &mut FieldReader<'_>) -> Result<(), Damaged> {
        reader.fixed16()?;
        reader.fixed32()?;
        reader.byte()?;
        reader.field().map(drop)
    }

    /// # Errors
    /// Its packet is no PUBLISH.
    pub(super) fn check(&self) -> Result<(), Damaged> {
        let publish = || {
            let (header, length) = mqtt::fixed_header(&self.packet, usize::MAX).ok()??;
            let packet = mqtt::decode(self.version, header, &self.packet[length..]).ok()?;
            matches!(packet, Packet::Publish(_)).then_some(())
        };
        let is_valid = self.is_released && self.packet.is_empty() || publish().is_some();
        match is_valid && self.packet_id != 0 {
            true => Ok(()),
            false => Err(Damaged("a message of a session is not valid")),
        }
    }
}

impl<'a> StoredSession<'a> {
    pub fn encode(&self) -> EncodedSession {
        let (mut bytes, mut payloads) = (Vec::with_capacity(64), Vec::new());
        bytes.push(match self.token {
            0 => WITHOUT_TOKEN,
            _ => WITH_TOKEN,
        });
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        if self.token != 0 {
            bytes.extend_from_slice(&self.token.to_le_bytes());
        }
        FieldWriter(&mut bytes).number(self.subscriptions.len() as u64);
        for subscription in &self.subscriptions {
            subscription.encode(&mut bytes);
        }
        for messages in [&self.inflight, &self.waiting] {
            FieldWriter(&mut bytes).number(messages.len() as u64);
            for message in messages {
                message.encode(&mut bytes);
                payloads.extend(message.payload.clone());
            }
        }
        let packet_ids = self.received.len() + self.keyless.len();
        FieldWriter(&mut bytes).number(packet_ids as u64);
        for packet_id in self.received.iter().chain(&self.keyless) {
            bytes.extend_from_slice(&packet_id.to_le_bytes());
        }
        EncodedSession {
            bytes: bytes.into_boxed_slice(),
            payloads,
        }
    }

    /// # Errors
    /// The version is unknown, bytes or payloads are missing, or other bytes follow the session.
    pub fn decode(session: &'a EncodedSession) -> Result<StoredSession<'a>, Damaged> {
        let mut reader = FieldReader(&session.bytes);
        let mut payloads = session.payloads.iter().cloned();
        let (epoch, token) = read_head(&mut reader)?;
        let subscriptions = read_list(&mut reader, StoredSubscription::decode)?;
        let mut messages = || {
            read_list(&mut reader, |reader| {
                StoredMessage::decode(reader, &mut payloads)
            })
        };
        let (inflight, waiting) = (messages()?, messages()?);
        let mut received = read_list(&mut reader, FieldReader::fixed16)?;
        let mut pairs = received.windows(2);
        let end = pairs.position(|pair| token != 0 && pair[0] >= pair[1]);
        let keyless = received.split_off(end.map_or(received.len(), |at| at + 1));
        reader.expect_end()?;
        Ok(StoredSession {
            epoch,
            subscriptions,
            inflight,
            waiting,
            received,
            keyless,
            token,
        })
    }

    /// Gives a token to a session without one. Homes do not know the QoS 2 messages that the session has received until now.
    pub fn set_token(&mut self, token: u64) {
        self.token = token;
        self.keyless.clone_from(&self.received);
    }

    /// Checks a session of a snapshot with this number of partitions: a filter with wildcards must have a position for each partition.
    ///
    /// # Errors
    /// The fault. No server has written these bytes.
    pub fn check(&self, partitions: PartitionId) -> Result<(), Damaged> {
        (self.subscriptions.iter()).try_for_each(|subscription| subscription.check(partitions))?;
        let mut messages = self.inflight.iter().chain(&self.waiting);
        messages.try_for_each(StoredMessage::check)
    }
}

fn read_head(reader: &mut FieldReader<'_>) -> Result<(u32, u64), Damaged> {
    match reader.byte()? {
        WITHOUT_TOKEN => Ok((reader.fixed32()?, 0)),
        WITH_TOKEN => Ok((reader.fixed32()?, reader.word()?)),
        _ => Err(Damaged("a session is stored in a form of another version")),
    }
}

pub(super) fn read_list<'a, T>(
    reader: &mut FieldReader<'a>,
    mut read: impl FnMut(&mut FieldReader<'a>) -> Result<T, Damaged>,
) -> Result<Vec<T>, Damaged> {
    // A damaged count reserves no memory: each item takes at least one byte of `reader`.
    let count = reader.number()?;
    (0..count).map(|_| read(reader)).collect()
}

/// The subscriptions of a stored session; none if the bytes cannot be decoded.
pub(crate) fn subscriptions(bytes: &[u8]) -> impl Iterator<Item = StoredSubscription<'_>> {
    let mut reader = FieldReader(bytes);
    let count = read_head(&mut reader).and_then(|_| reader.number());
    (0..count.unwrap_or(0)).map_while(move |_| StoredSubscription::decode(&mut reader).ok())
}

/// The number of a stored session's unreleased QoS 2 messages, for which homes keep packet ids; 0 if the bytes cannot be decoded. Ids that no home knows
/// count twice.
pub(crate) fn unreleased(bytes: &[u8]) -> usize {
    let count = || -> Result<usize, Damaged> {
        let mut reader = FieldReader(bytes);
        if read_head(&mut reader)?.1 == 0 {
            return Ok(0);
        }
        for _ in 0..reader.number()? {
            StoredSubscription::decode(&mut reader)?;
        }
        for _ in 0..2 {
            for _ in 0..reader.number()? {
                StoredMessage::skip(&mut reader)?;
            }
        }
        Ok(reader.number()? as usize)
    };
    count().unwrap_or(0)
}

/// The token of a stored session; 0 if it has none.
pub(crate) fn token_of(bytes: &[u8]) -> u64 {
    let token = bytes.get(TOKEN_RANGE).filter(|_| bytes[0] == WITH_TOKEN);
    let token = token.and_then(|token| token.try_into().ok());
    token.map_or(0, u64::from_le_bytes)
}

/// Sets the epoch of the positions of a stored session. The offsets stay, because a log that continues under a new epoch continues its offsets.
pub(crate) fn set_epoch(bytes: &mut [u8], epoch: u32) {
    if let Some(of_session) = bytes.get_mut(EPOCH_RANGE) {
        of_session.copy_from_slice(&epoch.to_le_bytes());
    }
}

/// Sets the epoch of the positions of a stored session to `to`, if it is `from`. For a log that continues under a new epoch.
pub(crate) fn move_positions(bytes: &mut [u8], from: u32, to: u32) {
    if let Some(epoch) = bytes.get_mut(EPOCH_RANGE)
        && epoch == from.to_le_bytes()
    {
        epoch.copy_from_slice(&to.to_le_bytes());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::settings::Settings;
    use crate::budget::admission::Admission;
    use crate::store::shared::Shared;
    use proptest::prelude::*;

    fn subscription() -> impl Strategy<Value = StoredSubscription<'static>> {
        let filter = prop_oneof![Just("a/b"), Just("a/+"), Just("$share/workers/a/b")];
        let offsets = proptest::option::of((0..1_u64 << 62, any::<bool>()));
        let rest = (0..3_u8, 0..1_u32 << 28, any::<bool>(), offsets);
        (filter, rest).prop_map(|(filter, (qos, identifier, lacks_retained, offsets))| {
            let positions: Vec<u64> = offsets.iter().map(|(offset, _)| *offset).collect();
            let started = offsets.filter(|(_, has_starts)| *has_starts);
            StoredSubscription {
                filter: filter.as_bytes().into(),
                options: qos | 0b1100,
                identifier,
                lacks_retained,
                positions,
                starts: started.iter().map(|(offset, _)| offset / 2).collect(),
            }
        })
    }

    /// A message that is released, or a PUBLISH, large or small.
    fn message() -> impl Strategy<Value = StoredMessage<'static>> {
        let end_s = proptest::option::of(0..1_u64 << 33);
        (1..=u16::MAX, end_s, 0..3_u8).prop_map(|(packet_id, end_s, kind)| {
            let packet: &[u8] = if kind == 0 {
                b""
            } else {
                b"\x32\x05\0\x01t\0\x09"
            };
            let payload =
                || Shared::new([7; 9].into(), &Admission::new(&Settings::default(), 7)).slice(0..9);
            StoredMessage {
                packet_id,
                is_released: kind == 0,
                version: Version::V311,
                end_s,
                packet: packet.into(),
                payload: (kind == 2).then(payload),
            }
        })
    }

    pub fn session() -> impl Strategy<Value = StoredSession<'static>> {
        let messages = || proptest::collection::vec(message(), 0..4);
        let subscriptions = proptest::collection::vec(subscription(), 0..4);
        let received = proptest::collection::btree_set(any::<u16>(), 0..4);
        let parts = (
            any::<u32>(),
            subscriptions,
            messages(),
            messages(),
            received,
            0..3_u64,
        );
        parts.prop_map(
            |(epoch, subscriptions, inflight, waiting, received, token)| {
                let mut session = StoredSession {
                    epoch,
                    subscriptions,
                    inflight,
                    waiting,
                    received: received.into_iter().collect(),
                    keyless: Vec::new(),
                    token,
                };
                if token > 1 {
                    session.set_token(token);
                }
                session
            },
        )
    }

    /// The fields of a message for a comparison, since payloads have no equality.
    fn fields<'a>(message: &'a StoredMessage<'_>) -> impl PartialEq + core::fmt::Debug + 'a {
        let payload = message.payload.as_deref();
        let StoredMessage {
            packet_id,
            is_released,
            version,
            end_s,
            packet,
            ..
        } = message;
        (packet_id, is_released, version, end_s, packet, payload)
    }

    proptest! {
        #[test]
        fn stored_session_round_trips(session in session()) {
            let encoded = session.encode();
            let read = StoredSession::decode(&encoded).expect("it was just encoded");
            prop_assert_eq!(read.check(1), Ok(()));
            prop_assert_eq!(read.epoch, session.epoch);
            prop_assert_eq!(&read.subscriptions, &session.subscriptions);
            prop_assert_eq!(&read.received, &session.received);
            prop_assert_eq!(&read.keyless, &session.keyless);
            let stored = session.received.len() + session.keyless.len();
            let charged = if session.token == 0 { 0 } else { stored };
            prop_assert_eq!(unreleased(&encoded.bytes), charged);
            for (read, written) in [
                (&read.inflight, &session.inflight),
                (&read.waiting, &session.waiting),
            ] {
                let read: Vec<_> = read.iter().map(fields).collect();
                let written: Vec<_> = written.iter().map(fields).collect();
                prop_assert_eq!(read, written);
            }
            let alone: Vec<_> = subscriptions(&encoded.bytes).collect();
            prop_assert_eq!(alone, session.subscriptions);
        }

        #[test]
        fn a_cut_or_longer_session_is_refused(session in session(), at in any::<prop::sample::Index>()) {
            let encoded = session.encode();
            let cut = encoded.bytes[..at.index(encoded.bytes.len())].into();
            let longer = [&*encoded.bytes, b"x"].concat().into_boxed_slice();
            for bytes in [cut, longer] {
                let payloads = encoded.payloads.clone();
                let changed = EncodedSession { bytes, payloads };
                prop_assert!(StoredSession::decode(&changed).is_err());
            }
        }

        #[test]
        fn moved_positions_have_the_new_epoch(session in session(), to in any::<u32>()) {
            let mut encoded = session.encode();
            move_positions(&mut encoded.bytes, session.epoch.wrapping_add(1), to);
            prop_assert_eq!(StoredSession::decode(&encoded).map(|it| it.epoch), Ok(session.epoch));
            move_positions(&mut encoded.bytes, session.epoch, to);
            prop_assert_eq!(StoredSession::decode(&encoded).map(|it| it.epoch), Ok(to));
        }
    }

    #[test]
    fn what_no_server_has_written_is_refused() {
        let subscription = StoredSubscription {
            filter: b"a/b"[..].into(),
            options: 1,
            identifier: 0,
            lacks_retained: false,
            positions: alloc::vec![7],
            starts: Vec::new(),
        };
        let changed = |change: fn(&mut StoredSubscription<'_>)| {
            let mut it = subscription.clone();
            change(&mut it);
            it.check(4)
        };
        assert_eq!(changed(|_| {}), Ok(()));
        assert!(changed(|it| it.options = 3).is_err());
        assert!(changed(|it| it.filter = b"a/#/b"[..].into()).is_err());
        assert!(changed(|it| it.filter = b"$share/g/"[..].into()).is_err());
        assert!(changed(|it| it.filter = b"a/+"[..].into()).is_err());
        assert!(changed(|it| it.starts = alloc::vec![1, 2]).is_err());
    }
}
