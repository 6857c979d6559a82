//! What the readers of both forms fill: the values of one request, with places in place of slices.
//!
//! The places become slices only after the whole command is read, since the scratch buffer may move when it grows.

use super::error::Error;
use super::schema::{Field, RequestKind, Slot};
use alloc::vec::Vec;

/// The place of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
    /// In [`Scratch::text`], else in the frame.
    pub decoded: bool,
}

/// A value that a reader has found.
#[derive(Clone, Copy)]
pub(super) enum Value {
    /// Any value where only its presence matters, and the beginning of a message.
    There,
    Span(Span),
    Bool(bool),
    Unsigned(u64),
    Signed(i32),
}

/// The values of a command. A request has only some of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raw {
    pub id: u32,
    pub request: Option<RequestKind>,
    pub channel: Span,
    pub token: Span,
    pub data: Span,
    pub name: Span,
    pub version: Span,
    pub method: Span,
    pub epoch: Span,
    pub delta: Span,
    pub node: Span,
    pub session: Span,
    pub offset: u64,
    pub limit: i32,
    pub kind: i32,
    pub recover: bool,
    pub positioned: bool,
    pub recoverable: bool,
    pub join_leave: bool,
    pub reverse: bool,
    pub since: bool,
    pub filter: bool,
}

impl Raw {
    /// Keeps a value. The last of several values of a field counts, and parts of a message that comes twice are joined, as in protobuf.
    pub fn set(&mut self, field: &Field, value: Value) -> Result<(), Error> {
        match (field.slot, value) {
            (Slot::Request(kind), Value::There) => {
                if self.request.replace(kind).is_some_and(|old| old != kind) {
                    return Err(Error::TwoRequests);
                }
            }
            (Slot::Since, Value::There) => self.since = true,
            (Slot::Filter, Value::There) => self.filter = true,
            (Slot::Id, Value::Unsigned(id)) => {
                self.id = u32::try_from(id).map_err(|_| Error::BadNumber(field.name))?;
            }
            (Slot::Offset, Value::Unsigned(offset)) => self.offset = offset,
            (Slot::Limit, Value::Signed(limit)) => self.limit = limit,
            (Slot::Type, Value::Signed(kind)) => self.kind = kind,
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

/// Limits on the lists of a frame. The receiver bounds the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of commands of one frame.
    pub commands: usize,
    /// The maximum number of subscriptions of one connect.
    pub subs: usize,
    /// The maximum number of headers of one connect.
    pub headers: usize,
}

/// Buffers for what is not a slice of the frame: strings with escapes, and the lists of a connect. Empty buffers allocate nothing.
/// They keep their memory between commands, so they should be dropped with the frame.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) text: Vec<u8>,
    pub(super) subs: Vec<Raw>,
    pub(super) headers: Vec<(Span, Span)>,
}

impl Scratch {
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
