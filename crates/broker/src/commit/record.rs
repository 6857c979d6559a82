//! The encoding of a record of the log. A record is a fact (a message, or a change of a topic), a change of an MQTT session
//! ([`crate::mail::session::record`]), or a [`ControlRecord`].
//!
//! A record begins with its kind (1 byte) and the varint of its offset minus the first offset of the batch. The record of a fact continues
//! with the topic. Data that only this process needs is not encoded: the client that is charged, and the receiver of the answer.
//!
//! A *writer* is a process that writes to the log, and has a number.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::placement::Placement;
use crate::base::record_kind::{Family, OPTIONAL, RecordKind};
use crate::base::snapshot::{Damaged, FieldReader, FieldWriter};
use crate::budget::admission::{Client, Party};
use crate::mail::fields::{check_fields, check_stored_message, check_stored_name};
use crate::mail::message::{DedupKey, Headers, Publish, Release, SessionKey};
use crate::mail::session::record::SessionRecord;
use crate::mail::{Change, Fact};

/// The flags of a message: two bits for the QoS, and a bit for each of the headers `retain` and `binary` and for each optional field.
const QOS_BITS: u8 = 3;
const IS_RETAINED: u8 = 4;
const IS_BINARY: u8 = 8;
const HAS_TTL: u8 = 16;
const HAS_KEY: u8 = 32;
const KNOWN_FLAGS: u8 = QOS_BITS | IS_RETAINED | IS_BINARY | HAS_TTL | HAS_KEY;

impl<'a> Fact<'a> {
    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            Fact::Publish(_) => RecordKind::Publish,
            Fact::Topic { change, .. } => match change {
                Change::Create => RecordKind::Create,
                Change::Delete => RecordKind::Delete,
                Change::Purge => RecordKind::Purge,
                Change::PurgeSome(..) => RecordKind::PurgeSome,
                Change::ForgetLatest => RecordKind::ForgetLatest,
            },
        }
    }

    /// Appends the record of a fact. `offset_delta` is the offset of the record minus the first offset of the batch.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>, offset_delta: u32) {
        let mut out = FieldWriter(bytes);
        out.byte(self.kind() as u8);
        out.number(offset_delta.into());
        out.field(self.topic().name);
        match *self {
            Fact::Publish(message) => encode_message(&mut out, message),
            Fact::Topic { change, .. } => {
                if let Change::PurgeSome(until, most) = change {
                    out.word(until);
                    out.number(most.into());
                }
            }
        }
    }

    /// Decodes the record of a fact. Calls `then` with the offset of the record minus the first offset of the batch, and with the fact.
    /// `hash` hashes the topic's name for the fact. `client` is the client that is charged.
    ///
    /// # Errors
    /// The record is not a fact, or is malformed.
    pub(crate) fn decode<T>(
        record: &'a [u8],
        hash: impl FnOnce(&[u8]) -> u32,
        client: Client,
        then: impl FnOnce(u32, &Fact<'_>) -> T,
    ) -> Result<T, Damaged> {
        let mut fields = FieldReader(record);
        fields.byte()?;
        let offset_delta = fields.number32()?;
        let name = fields.field()?;
        let hash = hash(name);
        let change = match RecordKind::read(record) {
            Some(RecordKind::Publish) => {
                let message = decode_message(&mut fields, hash, name, client)?;
                fields.expect_end()?;
                return Ok(then(offset_delta, &Fact::Publish(&message)));
            }
            Some(RecordKind::Create) => Change::Create,
            Some(RecordKind::Delete) => Change::Delete,
            Some(RecordKind::Purge) => Change::Purge,
            Some(RecordKind::PurgeSome) => Change::PurgeSome(fields.word()?, fields.number32()?),
            Some(RecordKind::ForgetLatest) => Change::ForgetLatest,
            _ => return Err(Damaged("a record is of no known kind")),
        };
        fields.expect_end()?;
        let fact = Fact::Topic {
            change,
            hash,
            name,
            client,
        };
        Ok(then(offset_delta, &fact))
    }
}

/// A record that changes neither a topic nor a session, and that no client sees: about the partition, its writers, the release of QoS 2 messages, or a
/// shared subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRecord<'a> {
    /// A mark: unlogged facts (changes of topics that are not durable, which have no records) may have offsets up to this number. In a cluster the number
    /// is 0: a node that reads its own mark has read all earlier records.
    Mark(u64),
    /// The writer of the batch is alive.
    Heartbeat(Heartbeat<'a>),
    /// This writer is dead: its batches after this record are void.
    Dead(u64),
    /// This writer becomes the steward (the node that runs wills, expiry and checkpoints for the partition), unless a living writer is the
    /// steward already.
    Steward(u64),
    /// QoS 2 messages of an MQTT session are released.
    Release(Release),
    /// The position of a shared subscription in the partition.
    Group(GroupPosition<'a>),
    /// A process has begun to serve after a crash: no connection of the crashed process holds a session any more.
    Start,
}

/// The position of a shared subscription (a group) in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPosition<'a> {
    /// The filter of the group.
    pub filter: &'a [u8],
    /// The share name.
    pub name: &'a [u8],
    /// The messages of the partition up to this offset were delivered to members; `None` if the group has ended.
    pub offset: Option<u64>,
}

/// A heartbeat of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat<'a> {
    /// The name of the node, or empty.
    pub name: &'a [u8],
    /// The address of the node's admin API, or empty.
    pub admin_address: &'a [u8],
    /// The number of the process's connections.
    pub connections: u64,
}

impl<'a> ControlRecord<'a> {
    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            ControlRecord::Mark(_) => RecordKind::Mark,
            ControlRecord::Heartbeat(_) => RecordKind::Heartbeat,
            ControlRecord::Dead(_) => RecordKind::Dead,
            ControlRecord::Steward(_) => RecordKind::Steward,
            ControlRecord::Release(_) => RecordKind::Release,
            ControlRecord::Group(_) => RecordKind::Group,
            ControlRecord::Start => RecordKind::Start,
        }
    }

    /// Appends the encoded record. `offset_delta` is the offset of the record minus the first offset of the batch.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>, offset_delta: u32) {
        let mut out = FieldWriter(bytes);
        out.byte(self.kind() as u8);
        out.number(offset_delta.into());
        match self {
            ControlRecord::Mark(until) => out.number(*until),
            ControlRecord::Heartbeat(beat) => {
                out.field(beat.name);
                out.field(beat.admin_address);
                out.number(beat.connections);
            }
            ControlRecord::Dead(writer) | ControlRecord::Steward(writer) => out.word(*writer),
            ControlRecord::Release(Release { key, claim }) => {
                out.word(key.session.number());
                out.number(key.packet_id.into());
                if *claim != 0 {
                    out.number(*claim);
                }
            }
            ControlRecord::Group(group) => {
                out.field(group.filter);
                out.field(group.name);
                out.byte(group.offset.is_some().into());
                out.number(group.offset.unwrap_or(0));
            }
            ControlRecord::Start => {}
        }
    }

    /// Decodes a control record. Returns its offset minus the first offset of the batch, and the control record; `None` for a record of another kind.
    ///
    /// # Errors
    /// The record is malformed.
    pub(crate) fn decode(record: &'a [u8]) -> Result<Option<(u32, ControlRecord<'a>)>, Damaged> {
        let mut fields = FieldReader(record);
        fields.byte()?;
        let Some(kind) = RecordKind::read(record).filter(|kind| kind.family() == Family::Control)
        else {
            return Ok(None);
        };
        let offset_delta = fields.number32()?;
        let control = match kind {
            RecordKind::Mark => ControlRecord::Mark(fields.number()?),
            RecordKind::Heartbeat => {
                // A later version may append fields to a heartbeat. They are ignored.
                let beat = Heartbeat {
                    name: fields.field()?,
                    admin_address: fields.field()?,
                    connections: fields.number()?,
                };
                return Ok(Some((offset_delta, ControlRecord::Heartbeat(beat))));
            }
            RecordKind::Dead => ControlRecord::Dead(fields.word()?),
            RecordKind::Release => ControlRecord::Release(Release {
                key: SessionKey {
                    session: Party::from_number(fields.word()?),
                    packet_id: fields.number16()?,
                },
                claim: match fields.is_empty() {
                    true => 0,
                    false => match fields.number()? {
                        0 => return Err(Damaged("a release names no claim")),
                        claim => claim,
                    },
                },
            }),
            RecordKind::Group => {
                let (filter, name) = (fields.field()?, fields.field()?);
                let (has_offset, offset) = (fields.byte()? != 0, fields.number()?);
                ControlRecord::Group(GroupPosition {
                    filter,
                    name,
                    offset: has_offset.then_some(offset),
                })
            }
            RecordKind::Steward => ControlRecord::Steward(fields.word()?),
            // A later version may append fields, as for a heartbeat.
            RecordKind::Start => return Ok(Some((offset_delta, ControlRecord::Start))),
            RecordKind::Publish
            | RecordKind::Create
            | RecordKind::Delete
            | RecordKind::Purge
            | RecordKind::PurgeSome
            | RecordKind::ForgetLatest
            | RecordKind::SessionClaim
            | RecordKind::SessionState
            | RecordKind::SessionEnd
            | RecordKind::SessionParts => return Ok(None),
        };
        fields.expect_end()?;
        Ok(Some((offset_delta, control)))
    }
}

/// Checks a record of this partition that another process may have written: its kind, its encoding, and each field. Returns the offset of
/// the record minus the first offset of the batch. `None` for a record of an unknown kind that may be skipped.
///
/// # Errors
/// What is wrong with the record.
pub(crate) fn check_record(
    record: &[u8],
    partition: PartitionId,
    placement: Placement,
    is_replicated: bool,
) -> Result<Option<u32>, Damaged> {
    // Most records are facts. For them the other decoders are not called.
    let family = RecordKind::read(record).map(RecordKind::family);
    if family.is_none() {
        return match may_skip_unknown(record) {
            Some(true) => Ok(None),
            Some(false) | None => Err(Damaged("a record is of no known kind")),
        };
    }
    if family == Some(Family::Control)
        && let Some((offset_delta, control)) = ControlRecord::decode(record)?
    {
        if let ControlRecord::Heartbeat(beat) = control {
            // Control characters are refused, since the admin console and terminals show both fields.
            check_fields(beat.name, b"", beat.admin_address).map_err(Damaged)?;
        }
        return Ok(Some(offset_delta));
    }
    if family == Some(Family::Session)
        && let Some((offset_delta, session)) = SessionRecord::decode(record)?
    {
        if !session.has_right_fence(is_replicated) {
            return Err(Damaged(
                "a session is changed without the condition that its log needs",
            ));
        }
        return match placement.partition_of(session.name) == partition {
            true => Ok(Some(offset_delta)),
            false => Err(Damaged("a record is of another partition")),
        };
    }
    let check_fact = |offset_delta, fact: &Fact<'_>| {
        let name = fact.topic().name;
        check_stored_name(name)?;
        if placement.partition_of(name) != partition {
            return Err("a record is of another partition");
        }
        match fact {
            Fact::Publish(it) => check_stored_message(&it.headers, it.data, it.dedup.as_ref())?,
            Fact::Topic { .. } => {}
        }
        Ok(Some(offset_delta))
    };
    // The check does not look at the hash.
    Fact::decode(record, |_| 0, Client::NOBODY, check_fact)?.map_err(Damaged)
}

/// Whether a record is a control record that a node of a cluster writes without a request.
pub(crate) fn is_node_control_record(record: &[u8]) -> bool {
    use RecordKind::{Dead, Heartbeat, Mark, Steward};
    RecordKind::read(record).is_some_and(|kind| matches!(kind, Mark | Heartbeat | Dead | Steward))
}

/// Whether a record of an unknown kind may be skipped; `None` if this version knows the kind.
pub(crate) fn may_skip_unknown(record: &[u8]) -> Option<bool> {
    let byte = record.first()?;
    RecordKind::read(record)
        .is_none()
        .then_some(byte & OPTIONAL != 0)
}

fn encode_message(out: &mut FieldWriter<'_>, message: &Publish<'_>) {
    let headers = &message.headers;
    let flags = [
        (headers.retain, IS_RETAINED),
        (headers.binary, IS_BINARY),
        (headers.ttl_s.is_some(), HAS_TTL),
        (message.dedup.is_some(), HAS_KEY),
    ];
    let set_flags = flags.iter().filter(|(is_set, _)| *is_set);
    out.byte(set_flags.fold(headers.qos & QOS_BITS, |all, (_, flag)| all | flag));
    for field in headers.fields() {
        out.field(field);
    }
    out.field(message.data);
    if let Some(ttl_s) = headers.ttl_s {
        out.number(ttl_s.into());
    }
    if let Some(DedupKey { key, publisher }) = message.dedup {
        out.field(key);
        out.word(publisher.number());
    }
}

fn decode_message<'a>(
    fields: &mut FieldReader<'a>,
    hash: u32,
    name: &'a [u8],
    client: Client,
) -> Result<Publish<'a>, Damaged> {
    let flags = fields.byte()?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Damaged(
            "a message has a flag that this format does not have",
        ));
    }
    let has = |flag| flags & flag != 0;
    let mut headers = Headers {
        content_type: fields.field()?,
        event: fields.field()?,
        key: fields.field()?,
        attributes: fields.field()?,
        ttl_s: None,
        qos: flags & QOS_BITS,
        retain: has(IS_RETAINED),
        binary: has(IS_BINARY),
    };
    let data = fields.field()?;
    if has(HAS_TTL) {
        headers.ttl_s = Some(fields.number32()?);
    }
    let mut dedup = None;
    if has(HAS_KEY) {
        let (key, publisher) = (fields.field()?, Party::from_number(fields.word()?));
        dedup = Some(DedupKey { key, publisher });
    }
    Ok(Publish {
        hash,
        name,
        data,
        headers,
        dedup,
        client,
    })
}

#[cfg(test)]
mod tests;
