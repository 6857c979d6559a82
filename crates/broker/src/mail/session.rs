//! MQTT sessions in mail between shards: the session's id, its will, and its stored form ([`stored`]).

pub(crate) mod patch;
pub mod record;
pub(crate) mod stored;

use alloc::boxed::Box;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Damaged, FieldReader, FieldWriter};
use crate::budget::admission::Client;
use crate::mail::fields::{check_stored_message, check_stored_name};
use crate::mail::message::{Headers, is_binary};
use crate::store::slab::NONE;

pub use patch::SessionPatch;
pub use stored::EncodedSession;

/// Identifies a session and the connection that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The session's row in its partition.
    pub row: u32,
    /// The number of connections that have held the session.
    pub serial: u16,
    /// The number of sessions that have used the row.
    pub life: u8,
    /// The partition of the client id; there are at most 256.
    pub partition: u8,
}

const _: () = assert!(size_of::<SessionId>() == 8);

impl SessionId {
    /// The id of a client without a session. The client id belongs to this partition.
    pub fn none(partition: PartitionId) -> SessionId {
        SessionId {
            row: NONE,
            serial: 0,
            life: 0,
            partition: partition as u8,
        }
    }
}

/// A message that the server publishes when a client disconnects (MQTT 5.0 section 3.1.2.5).
#[derive(Clone, Debug, Default)]
pub struct Will {
    /// Seconds that the server waits for the client to reconnect before it publishes the message.
    pub delay_s: u32,
    /// The topic.
    pub topic: Box<[u8]>,
    /// The message.
    pub data: Box<[u8]>,
    /// The message's headers.
    pub headers: Headers<Box<[u8]>>,
    /// The client that is charged for the topic, if it is created; [`Client::NOBODY`] after a restart.
    pub client: Client,
    /// Identifies the will of a recorded session, so that it is published once. Otherwise 0.
    pub token: u64,
}

/// Flags of a will in a snapshot.
const RETAIN: u8 = 1;
const HAS_TTL: u8 = 2;
const QOS_SHIFT: u8 = 2;
const HAS_TOKEN: u8 = 16;

impl Will {
    /// The bytes of the will, including the struct itself.
    pub fn bytes(&self) -> usize {
        size_of::<Will>() + self.fields().iter().map(|part| part.len()).sum::<usize>()
    }

    fn fields(&self) -> [&[u8]; 6] {
        let headers = &self.headers;
        [
            &self.topic,
            &self.data,
            &headers.content_type,
            &headers.key,
            &headers.event,
            &headers.attributes,
        ]
    }

    /// Writes the will without its client.
    pub(crate) fn write(&self, out: &mut FieldWriter<'_>) {
        let flag = |set, flag| if set { flag } else { 0 };
        let headers = &self.headers;
        out.number(self.delay_s.into());
        out.byte(
            flag(headers.retain, RETAIN)
                | flag(headers.ttl_s.is_some(), HAS_TTL)
                | headers.qos << QOS_SHIFT
                | flag(self.token != 0, HAS_TOKEN),
        );
        if self.token != 0 {
            out.word(self.token);
        }
        out.number(headers.ttl_s.unwrap_or(0).into());
        for field in self.fields() {
            out.field(field);
        }
    }

    /// Reads a will, whose client is [`Client::NOBODY`].
    pub(crate) fn read(reader: &mut FieldReader<'_>) -> Result<Will, Damaged> {
        let delay_s = reader.number32()?;
        let flags = reader.byte()?;
        let token = match flags & HAS_TOKEN {
            0 => 0,
            _ => reader.word()?,
        };
        let ttl_s = reader.number32()?;
        let mut field = || reader.field().map(Box::<[u8]>::from);
        let (topic, data) = (field()?, field()?);
        let (content_type, key, event, attributes) = (field()?, field()?, field()?, field()?);
        let headers = Headers {
            binary: is_binary(&content_type, &data),
            content_type,
            event,
            key,
            attributes,
            ttl_s: (flags & HAS_TTL != 0).then_some(ttl_s),
            qos: flags >> QOS_SHIFT & 3,
            retain: flags & RETAIN != 0,
        };
        check_stored_name(&topic).map_err(Damaged)?;
        check_stored_message(&headers.map(|field| &**field), &data, None).map_err(Damaged)?;
        Ok(Will {
            delay_s,
            topic,
            headers,
            data,
            client: Client::NOBODY,
            token,
        })
    }
}

/// The state of a session while its client is disconnected.
#[derive(Clone, Debug)]
pub struct SavedSession {
    /// Seconds until the session expires.
    pub expiry_s: u32,
    /// The state.
    pub state: EncodedSession,
}
