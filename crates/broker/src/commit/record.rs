//! The form of a record: what a home is asked to write, without what only this process knows (who asked, and whom to answer).
//!
//! A record begins with its kind and its place in its batch. MQTT sessions, groups, subscriptions, and the counts of what needs messages kept
//! are local state of a home and are not written.

use alloc::vec::Vec;

use crate::base::snapshot::{Damaged, In, Out};
use crate::budget::admission::{Client, Party};
use crate::mail::Verb;
use crate::mail::message::{Headers, Publish, Retry};

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
}

const PUBLISH: u8 = 1;
const TOPIC: u8 = 2;
const PURGE: u8 = 3;
const FORGET_LATEST: u8 = 4;

/// Flags of a message.
const QOS: u8 = 3;
const RETAIN: u8 = 4;
const BINARY: u8 = 8;
const MORTAL: u8 = 16;
const HAS_KEY: u8 = 32;

const UNKNOWN: Damaged = Damaged("a record is of no known kind");

impl<'a> Write<'a> {
    /// The topic that it concerns.
    pub fn topic(&self) -> &'a [u8] {
        match self {
            Write::Publish(message) => message.name,
            Write::Topic(_, name) | Write::Purge(name, ..) | Write::ForgetLatest(name) => name,
        }
    }

    /// Appends the record of a write, whose offset is so far behind that of the first record of its batch.
    pub fn encode(&self, bytes: &mut Vec<u8>, behind: u32) {
        let mut out = Out(bytes);
        out.byte(match self {
            Write::Publish(_) => PUBLISH,
            Write::Topic(..) => TOPIC,
            Write::Purge(..) => PURGE,
            Write::ForgetLatest(_) => FORGET_LATEST,
        });
        out.number(behind.into());
        match self {
            Write::Publish(message) => write_message(&mut out, message),
            Write::Topic(verb, name) => {
                out.byte(*verb as u8);
                out.field(name);
            }
            Write::Purge(name, until, most) => {
                out.field(name);
                out.word(*until);
                out.number((*most).into());
            }
            Write::ForgetLatest(name) => out.field(name),
        }
    }

    /// Reads a record: how far its offset is behind that of the first record of its batch, and what it writes.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(record: &'a [u8]) -> Result<(u32, Write<'a>), Damaged> {
        let mut from = In(record);
        let kind = from.byte()?;
        let behind = from.number32()?;
        let write = match kind {
            PUBLISH => Write::Publish(read_message(&mut from)?),
            TOPIC => {
                let verbs = [Verb::Create, Verb::Info, Verb::Delete, Verb::Purge];
                let verb = verbs.get(usize::from(from.byte()?)).ok_or(UNKNOWN)?;
                Write::Topic(*verb, from.field()?)
            }
            PURGE => Write::Purge(from.field()?, from.word()?, from.number32()?),
            FORGET_LATEST => Write::ForgetLatest(from.field()?),
            _ => return Err(UNKNOWN),
        };
        match from.is_empty() {
            true => Ok((behind, write)),
            false => Err(Damaged("a record is too long")),
        }
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

#[cfg(test)]
mod tests;
