//! The form of a record: what a home is asked to write, without what only this process knows (who asked, and whom to answer).
//!
//! A record begins with its kind and the second of its admission. It carries neither an offset nor the offset of the message before it: both
//! follow from its place in the log.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::snapshot::{Damaged, In, Out};
use crate::budget::admission::{Admission, Client, Party};
use crate::mail::message::{Headers, Publish, Retry};
use crate::mail::session::{Kept, SessionId, Will, Written};
use crate::mail::{Unacked, Verb};
use crate::store::shared::Shared;

/// What a home writes.
#[derive(Debug)]
pub(crate) enum Write<'a> {
    /// A message; its `hash` and `client` are not in the record.
    Publish(Publish<'a>),
    /// A topic is made, deleted or emptied.
    Topic(Verb, &'a [u8]),
    /// The messages of a topic up to this offset are removed, so many at most.
    Purge(&'a [u8], u64, u32),
    /// The message without a key is removed from a topic that keeps the latest.
    ForgetLatest(&'a [u8]),
    /// A subscription to this topic or filter needs messages kept, or no longer does.
    KeepLog(&'a [u8], bool),
    /// A session subscribes to a group; it may have done so before.
    JoinGroup(Share<'a>, bool),
    /// A member of a group goes, and gives back what it has not acknowledged; its session may end the subscription.
    LeaveGroup(Share<'a>, Vec<Unacked>, bool),
    /// A session that is away ends its subscription to a group.
    ReleaseGroup(Share<'a>),
    /// A client claims its session, which begins anew if the flag says so.
    OpenSession(&'a [u8], bool),
    /// The holder of a session gives it back, with what is kept of it and its will.
    CloseSession(SessionId, Option<Kept>, Option<Box<Will>>),
    /// What is due of the sessions of the partition: a will, or an end.
    EndSession,
}

/// A shared subscription: its filter, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share<'a> {
    pub filter: &'a [u8],
    pub name: &'a [u8],
}

const PUBLISH: u8 = 1;
const TOPIC: u8 = 2;
const PURGE: u8 = 3;
const FORGET_LATEST: u8 = 4;
const KEEP_LOG: u8 = 5;
const JOIN_GROUP: u8 = 6;
const LEAVE_GROUP: u8 = 7;
const RELEASE_GROUP: u8 = 8;
const OPEN_SESSION: u8 = 9;
const CLOSE_SESSION: u8 = 10;
const END_SESSION: u8 = 11;

/// Flags of a message.
const QOS: u8 = 3;
const RETAIN: u8 = 4;
const BINARY: u8 = 8;
const MORTAL: u8 = 16;
const HAS_KEY: u8 = 32;
/// Flags of what a session leaves.
const KEPT: u8 = 1;
const WILL: u8 = 2;

const UNKNOWN: Damaged = Damaged("a record is of no known kind");

impl<'a> Write<'a> {
    /// The record of a write that is admitted in this second.
    pub fn encode(&self, unix_s: u32) -> Arc<[u8]> {
        let mut bytes = Vec::new();
        let mut out = Out(&mut bytes);
        let mut begin = |kind| {
            out.byte(kind);
            out.number(unix_s.into());
        };
        match self {
            Write::Publish(message) => {
                begin(PUBLISH);
                write_message(&mut out, message);
            }
            Write::Topic(verb, name) => {
                begin(TOPIC);
                out.byte(*verb as u8);
                out.field(name);
            }
            Write::Purge(name, until, most) => {
                begin(PURGE);
                out.field(name);
                out.word(*until);
                out.number((*most).into());
            }
            Write::ForgetLatest(name) => {
                begin(FORGET_LATEST);
                out.field(name);
            }
            Write::KeepLog(name, on) => {
                begin(KEEP_LOG);
                out.byte((*on).into());
                out.field(name);
            }
            Write::JoinGroup(share, counts) => {
                begin(JOIN_GROUP);
                out.byte((*counts).into());
                share.write(&mut out);
            }
            Write::LeaveGroup(share, unacked, ends) => {
                begin(LEAVE_GROUP);
                out.byte((*ends).into());
                share.write(&mut out);
                out.number(unacked.len() as u64);
                for Unacked { topic, offset } in unacked {
                    out.field(topic);
                    out.number(*offset);
                }
            }
            Write::ReleaseGroup(share) => {
                begin(RELEASE_GROUP);
                share.write(&mut out);
            }
            Write::OpenSession(client, clean) => {
                begin(OPEN_SESSION);
                out.byte((*clean).into());
                out.field(client);
            }
            Write::CloseSession(id, kept, will) => {
                begin(CLOSE_SESSION);
                write_farewell(&mut out, *id, kept.as_ref(), will.as_deref());
            }
            Write::EndSession => begin(END_SESSION),
        }
        bytes.into()
    }

    /// Reads a record: the second of its admission, and what it writes. `admission` counts the bytes of payloads.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(record: &'a [u8], admission: &Admission) -> Result<(u32, Write<'a>), Damaged> {
        let mut from = In(record);
        let kind = from.byte()?;
        let unix_s = from.number32()?;
        let write = match kind {
            PUBLISH => Write::Publish(read_message(&mut from)?),
            TOPIC => {
                let verbs = [Verb::Create, Verb::Info, Verb::Delete, Verb::Purge];
                let verb = verbs.get(usize::from(from.byte()?)).ok_or(UNKNOWN)?;
                Write::Topic(*verb, from.field()?)
            }
            PURGE => Write::Purge(from.field()?, from.word()?, from.number32()?),
            FORGET_LATEST => Write::ForgetLatest(from.field()?),
            KEEP_LOG => {
                let on = from.byte()? != 0;
                Write::KeepLog(from.field()?, on)
            }
            JOIN_GROUP => {
                let counts = from.byte()? != 0;
                Write::JoinGroup(Share::read(&mut from)?, counts)
            }
            LEAVE_GROUP => {
                let ends = from.byte()? != 0;
                let share = Share::read(&mut from)?;
                let unacked = (0..from.number()?).map(|_| {
                    let topic = from.field()?.into();
                    let offset = from.number()?;
                    Ok(Unacked { topic, offset })
                });
                Write::LeaveGroup(share, unacked.collect::<Result<_, _>>()?, ends)
            }
            RELEASE_GROUP => Write::ReleaseGroup(Share::read(&mut from)?),
            OPEN_SESSION => {
                let clean = from.byte()? != 0;
                Write::OpenSession(from.field()?, clean)
            }
            CLOSE_SESSION => read_farewell(&mut from, admission)?,
            END_SESSION => Write::EndSession,
            _ => return Err(UNKNOWN),
        };
        match from.is_empty() {
            true => Ok((unix_s, write)),
            false => Err(Damaged("a record is too long")),
        }
    }
}

impl<'a> Share<'a> {
    fn write(self, out: &mut Out<'_>) {
        out.field(self.filter);
        out.field(self.name);
    }

    fn read(from: &mut In<'a>) -> Result<Share<'a>, Damaged> {
        Ok(Share {
            filter: from.field()?,
            name: from.field()?,
        })
    }
}

fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

fn write_message(out: &mut Out<'_>, message: &Publish<'_>) {
    let headers = &message.headers;
    out.byte(
        headers.qos & QOS
            | flag(headers.retain, RETAIN)
            | flag(headers.binary, BINARY)
            | flag(headers.ttl_s.is_some(), MORTAL)
            | flag(message.retry.is_some(), HAS_KEY),
    );
    out.field(message.name);
    for field in headers.fields() {
        out.field(field);
    }
    out.field(message.data);
    if let Some(ttl_s) = headers.ttl_s {
        out.number(ttl_s.into());
    }
    if let Some(Retry { key, publisher }) = message.retry {
        out.field(key);
        out.word(publisher.number());
    }
}

fn read_message<'a>(from: &mut In<'a>) -> Result<Publish<'a>, Damaged> {
    let flags = from.byte()?;
    let has = |flag| flags & flag != 0;
    let name = from.field()?;
    let headers = Headers {
        content_type: from.field()?,
        event: from.field()?,
        key: from.field()?,
        attributes: from.field()?,
        ttl_s: None,
        qos: flags & QOS,
        retain: has(RETAIN),
        binary: has(BINARY),
    };
    Ok(Publish {
        hash: 0,
        name,
        data: from.field()?,
        headers: Headers {
            ttl_s: match has(MORTAL) {
                true => Some(from.number32()?),
                false => None,
            },
            ..headers
        },
        retry: match has(HAS_KEY) {
            true => Some(Retry {
                key: from.field()?,
                publisher: Party::from_number(from.word()?),
            }),
            false => None,
        },
        client: Client::NOBODY,
    })
}

fn write_farewell(out: &mut Out<'_>, id: SessionId, kept: Option<&Kept>, will: Option<&Will>) {
    out.byte(flag(kept.is_some(), KEPT) | flag(will.is_some(), WILL));
    out.number(id.row.into());
    out.number(id.serial.into());
    out.byte(id.life);
    out.byte(id.partition);
    if let Some(Kept { expiry_s, state }) = kept {
        out.number((*expiry_s).into());
        out.field(&state.bytes);
        out.number(state.payloads.len() as u64);
        for payload in &state.payloads {
            out.field(payload);
        }
    }
    if let Some(will) = will {
        out.number(will.client.number().into());
        will.write(out);
    }
}

fn read_farewell<'a>(from: &mut In<'a>, admission: &Admission) -> Result<Write<'a>, Damaged> {
    let flags = from.byte()?;
    let id = SessionId {
        row: from.number32()?,
        serial: from.number16()?,
        life: from.byte()?,
        partition: from.byte()?,
    };
    let kept = match flags & KEPT != 0 {
        true => {
            let expiry_s = from.number32()?;
            let bytes = from.field()?.into();
            let payloads = (0..from.number()?).map(|_| {
                let payload = from.field()?;
                Ok(Shared::new(payload.into(), admission).slice(0..payload.len()))
            });
            let payloads = payloads.collect::<Result<_, _>>()?;
            let state = Written { bytes, payloads };
            Some(Kept { expiry_s, state })
        }
        false => None,
    };
    let will = match flags & WILL != 0 {
        true => {
            let client = Client::from_number(from.number32()?);
            let will = Will::read(from)?;
            Some(Box::new(Will { client, ..will }))
        }
        false => None,
    };
    Ok(Write::CloseSession(id, kept, will))
}

#[cfg(test)]
mod tests;
