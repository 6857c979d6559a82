//! The values of one command, as the readers of both formats find them. Texts are stored as spans of bytes. The spans become slices only
//! after the whole command is read, because the scratch buffer may move when it grows.

use super::error::Error;
use super::names::{ChannelNames, exchange_byte};
use super::schema::{Field, RequestKind, Slot};
use alloc::vec::Vec;

/// A range of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
    /// Whether the bytes are in [`Scratch::text`]; otherwise they are in the frame.
    pub decoded: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Value {
    /// A value of which only the presence matters, or the beginning of a message.
    There,
    Span(Span),
    Bool(bool),
    Unsigned(u64),
    Signed(i32),
}

/// The values of a command. Each request uses only some of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raw {
    pub id: u32,
    pub request: Option<RequestKind>,
    pub channel: Span,
    pub token: Span,
    pub data: Span,
    pub base64_data: Span,
    pub meta: Span,
    pub name: Span,
    pub version: Span,
    pub method: Span,
    pub epoch: Span,
    pub delta: Span,
    pub node: Span,
    pub session: Span,
    pub offset: u64,
    pub expire_at: Option<u64>,
    pub limit: i32,
    pub kind: i32,
    pub flags: u64,
    pub recover: bool,
    pub positioned: bool,
    pub recoverable: bool,
    pub join_leave: bool,
    pub reverse: bool,
    pub since: bool,
    pub filter: bool,
}

impl Raw {
    /// Stores a value. As in protobuf, the last value of a field wins, and the fields of a repeated message are merged.
    pub fn set(&mut self, field: &Field, value: Value) -> Result<(), Error> {
        match (field.slot, value) {
            (Slot::Request(kind), Value::There) => {
                if self.request.replace(kind).is_some_and(|old| old != kind) {
                    return Err(Error::TwoRequests);
                }
            }
            (Slot::Since, Value::There) => self.since = true,
            (Slot::Filter, Value::There) => self.filter = true,
            (Slot::Override, Value::There) => {}
            (Slot::Id, Value::Unsigned(id)) => {
                self.id = u32::try_from(id).map_err(|_| Error::BadNumber(field.name))?;
            }
            (Slot::Offset, Value::Unsigned(offset)) => self.offset = offset,
            (Slot::ExpireAt, Value::Unsigned(unix_s)) => self.expire_at = Some(unix_s),
            (Slot::Limit, Value::Signed(limit)) => self.limit = limit,
            (Slot::Type, Value::Signed(kind)) => self.kind = kind,
            (Slot::Flags, Value::Unsigned(flags)) => self.flags = flags,
            (slot, Value::Bool(value)) => *self.flag(slot) = value,
            (slot, Value::Span(span)) => *self.span(slot) = span,
            _ => unreachable!("the schema gives each slot one type"),
        }
        Ok(())
    }

    fn flag(&mut self, slot: Slot) -> &mut bool {
        match slot {
            Slot::Recover => &mut self.recover,
            Slot::Positioned => &mut self.positioned,
            Slot::Recoverable => &mut self.recoverable,
            Slot::JoinLeave => &mut self.join_leave,
            Slot::Reverse => &mut self.reverse,
            _ => unreachable!("the schema has no other flag"),
        }
    }

    fn span(&mut self, slot: Slot) -> &mut Span {
        match slot {
            Slot::Channel => &mut self.channel,
            Slot::Token => &mut self.token,
            Slot::Data => &mut self.data,
            Slot::Base64Data => &mut self.base64_data,
            Slot::Meta => &mut self.meta,
            Slot::Name => &mut self.name,
            Slot::Version => &mut self.version,
            Slot::Method => &mut self.method,
            Slot::Epoch => &mut self.epoch,
            Slot::Delta => &mut self.delta,
            Slot::Node => &mut self.node,
            Slot::Session => &mut self.session,
            _ => unreachable!("the schema has no other text"),
        }
    }
}

/// Limits for the lists of a frame. The receiver limits the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of commands of one frame.
    pub commands: usize,
    /// The maximum number of subscriptions of one connect.
    pub subs: usize,
    /// The maximum number of headers of one connect.
    pub headers: usize,
}

/// Buffers for values that are not slices of the frame: strings with escapes, and the lists of a connect request. They keep their memory
/// between commands, so the caller should drop them with the frame.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) text: Vec<u8>,
    pub(super) subs: Vec<Raw>,
    pub(super) headers: Vec<(Span, Span)>,
    names: ChannelNames,
}

impl Scratch {
    /// Buffers whose reader gives each channel the name of its topic.
    pub fn new(names: ChannelNames) -> Scratch {
        Scratch {
            names,
            ..Scratch::default()
        }
    }

    /// Gives the channels of a message the names of their topics. `frame` is what the message was read from.
    pub(super) fn name_topics(&mut self, raw: &mut Raw, frame: &[u8]) {
        let (text, names) = (&mut self.text, self.names);
        let channels = self.subs.iter_mut().map(|sub| &mut sub.channel);
        for span in channels.chain([&mut raw.channel]) {
            let bytes = match span.decoded {
                true => &text[span.start..span.end],
                false => &frame[span.start..span.end],
            };
            if !names.changes(bytes) {
                continue;
            }
            let start = text.len();
            match span.decoded {
                true => text.extend_from_within(span.start..span.end),
                false => text.extend_from_slice(&frame[span.start..span.end]),
            }
            for byte in &mut text[start..] {
                *byte = exchange_byte(*byte);
            }
            *span = Span {
                start,
                end: text.len(),
                decoded: true,
            };
        }
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.subs.clear();
        self.headers.clear();
    }

    pub(super) fn add_sub(&mut self, sub: Raw, limits: &Limits) -> Result<(), Error> {
        if self.subs.len() >= limits.subs {
            return Err(Error::TooManySubs);
        }
        self.subs.push(sub);
        Ok(())
    }

    pub(super) fn add_header(
        &mut self,
        name: Span,
        value: Span,
        limits: &Limits,
    ) -> Result<(), Error> {
        if self.headers.len() >= limits.headers {
            return Err(Error::TooManyHeaders);
        }
        self.headers.push((name, value));
        Ok(())
    }
}
