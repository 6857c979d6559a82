//! Decodes received WebSocket frames into events, for servers and clients (RFC 6455).
//!
//! Call [`next`] with the received bytes, then with the bytes that it did not consume, until it has consumed all and returns no event. A
//! whole unfragmented frame is unmasked in place: its event is a slice of the input and needs no memory. An unfinished frame and a
//! fragmented or compressed message are kept in a [`Partial`]. The call after their event frees this memory.
//!
//! Invariants: events and violations do not depend on how the stream is split into reads. Memory grows with the bytes that arrived, never
//! with the length that a header announces. A frame over the limit is refused when its header arrives. Text is checked as it arrives;
//! compressed text is checked as it is inflated.
//!
//! A few bytes of empty frames or of compressed data can cost as much as thousands of other bytes. So a caller may limit the work of a call
//! ([`next_within`]), and continue with further calls.
//!
//! After [`Event::Close`] or a [`Violation`] the caller must stop reading, because this module does not remember them.

use super::frame::{HEADER_MAX, Opcode, apply_mask};
use super::head::{self, Fragmented, Frame};
pub use super::head::{Config, Role};
use super::utf8::Utf8;
pub use super::violation::Violation;
use crate::deflate::{InflateError, Inflater};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::str;

/// The fixed work of a frame, as a number of bytes. The payload is counted in addition.
const FRAME_WORK: usize = 128;

/// A received message or control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole text message; it is UTF-8.
    Text(&'a [u8]),
    /// A whole binary message.
    Binary(&'a [u8]),
    /// A ping. The pong must contain the same bytes.
    Ping(&'a [u8]),
    /// A pong.
    Pong(&'a [u8]),
    /// The peer starts or answers the closing handshake.
    Close {
        /// A close code that is allowed on the wire (RFC 6455 §7.4). `None` if the peer sent no code.
        code: Option<u16>,
        /// The reason; it is UTF-8.
        reason: &'a [u8],
    },
}

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// Consumed bytes of the input.
    pub consumed: usize,
    /// The event that the last consumed byte completed. `None` if all bytes are consumed and more are needed, or if the work of the call is
    /// used up.
    pub event: Option<Event<'a>>,
}

/// An unfinished frame or message.
#[derive(Debug, Default)]
pub struct Partial {
    /// The beginning of an incomplete header.
    head: [u8; HEADER_MAX],
    head_len: u8,
    /// The payload that the last call returned, which the next call frees.
    returned: Returned,
    /// The frame whose payload is incomplete.
    frame: Option<Frame>,
    /// The payload of that frame so far, if it is a control frame.
    control: Vec<u8>,
    /// The unfinished message.
    message: Option<Message>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Returned {
    #[default]
    Nothing,
    Control,
    Message,
}

#[derive(Debug)]
struct Message {
    opcode: Opcode,
    deflated: bool,
    /// The payload so far, unmasked. Compressed bytes are inflated when the message is complete.
    bytes: Vec<u8>,
    utf8: Utf8,
    /// Present while the complete compressed message is inflated.
    inflater: Option<Box<Inflater>>,
}

/// Where the payload of a finished event is: in the input or in the [`Partial`].
enum PayloadPlace {
    Nothing,
    Input(Opcode, Range<usize>),
    Partial(Opcode),
}

/// Reads the next event from `input`. May change the consumed bytes.
///
/// # Errors
///
/// The first [`Violation`] of the stream. `partial` is then `None`.
pub fn next<'a>(
    partial: &'a mut Option<Box<Partial>>,
    input: &'a mut [u8],
    config: &Config,
) -> Result<Decoded<'a>, Violation> {
    let mut work = usize::MAX;
    next_within(partial, input, config, &mut work)
}

/// Like [`next`], but stops when `work` is used up. Subtracted from `work` are the bytes of the input and of inflated messages, and a fixed
/// amount for each frame and each compressed block. If `work` reaches 0 without an event, the caller must call again with the remaining
/// bytes, even if there are none.
///
/// # Errors
///
/// See [`next`].
pub fn next_within<'a>(
    partial: &'a mut Option<Box<Partial>>,
    input: &'a mut [u8],
    config: &Config,
    work: &mut usize,
) -> Result<Decoded<'a>, Violation> {
    if let Some(state) = partial
        && state.free_returned()
    {
        *partial = None;
    }
    let (consumed, payload_place) = match advance(partial, input, config, work) {
        Ok(advanced) => advanced,
        Err(violation) => {
            *partial = None;
            return Err(violation);
        }
    };
    let event = match payload_place {
        PayloadPlace::Nothing => None,
        PayloadPlace::Input(opcode, range) => Some(event(opcode, &input[range])),
        PayloadPlace::Partial(opcode) => {
            let state = partial
                .as_deref()
                .expect("the payload is in the partial state");
            Some(event(opcode, state.payload(opcode)))
        }
    };
    Ok(Decoded { consumed, event })
}

/// Reads frames until an event is complete, the input is consumed or `work` is used up. Returns the number of consumed bytes.
fn advance(
    partial: &mut Option<Box<Partial>>,
    input: &mut [u8],
    config: &Config,
    work: &mut usize,
) -> Result<(usize, PayloadPlace), Violation> {
    if let Some(state) = partial
        && state.is_inflating()
    {
        let found = state
            .inflate(work)?
            .map_or(PayloadPlace::Nothing, PayloadPlace::Partial);
        return Ok((0, found));
    }
    let mut consumed = 0;
    loop {
        if *work == 0 {
            return Ok((consumed, PayloadPlace::Nothing));
        }
        let mut frame = match partial.as_mut().and_then(|state| state.frame.take()) {
            Some(frame) => frame,
            None => match read_head(partial, &input[consumed..], config)? {
                Some((frame, size)) => {
                    consumed += size;
                    frame
                }
                None => return Ok((input.len(), PayloadPlace::Nothing)),
            },
        };
        let missing = frame.len - frame.received;
        let range = consumed..consumed + missing.min(input.len() - consumed);
        let piece = &mut input[range.clone()];
        if let Some(mask) = frame.mask {
            apply_mask(piece, mask, frame.received);
        }
        frame.received += piece.len();
        consumed = range.end;
        *work = work.saturating_sub(FRAME_WORK + piece.len());
        if piece.len() == frame.len && is_whole_event(&frame) {
            check_payload(frame.opcode, piece)?;
            return Ok((consumed, PayloadPlace::Input(frame.opcode, range)));
        }
        let state = partial.get_or_insert_default();
        if let Some(opcode) = state.take(frame, piece, config)? {
            return Ok((consumed, PayloadPlace::Partial(opcode)));
        }
        if state.is_inflating() {
            let found = state
                .inflate(work)?
                .map_or(PayloadPlace::Nothing, PayloadPlace::Partial);
            return Ok((consumed, found));
        }
        if state.frame.is_some() {
            return Ok((consumed, PayloadPlace::Nothing));
        }
    }
}

/// Reads a header from the bytes in `partial` and the input. Returns the frame and the number of header bytes from the input. `None` if the
/// header is incomplete; `partial` then holds all of its bytes.
fn read_head(
    partial: &mut Option<Box<Partial>>,
    input: &[u8],
    config: &Config,
) -> Result<Option<(Frame, usize)>, Violation> {
    let fragmented = partial.as_ref().and_then(|state| state.fragmented());
    let head_len = partial.as_ref().map_or(0, |state| state.head_len.into());
    if head_len == 0
        && let Some(frame_and_size) = head::parse(input, fragmented, config)?
    {
        return Ok(Some(frame_and_size));
    }
    if input.is_empty() {
        return Ok(None);
    }
    let state = partial.get_or_insert_default();
    let copied = input.len().min(HEADER_MAX - head_len);
    state.head[head_len..head_len + copied].copy_from_slice(&input[..copied]);
    match head::parse(&state.head[..head_len + copied], fragmented, config)? {
        Some((frame, size)) => {
            state.head_len = 0;
            Ok(Some((frame, size - head_len)))
        }
        None => {
            state.head_len = (head_len + copied) as u8;
            Ok(None)
        }
    }
}

/// Whether the payload of this frame is an event by itself.
fn is_whole_event(frame: &Frame) -> bool {
    frame.fin && !frame.deflated && frame.opcode != Opcode::Continuation
}

/// Checks a whole payload.
fn check_payload(opcode: Opcode, payload: &[u8]) -> Result<(), Violation> {
    let text = match opcode {
        Opcode::Text => payload,
        Opcode::Close => match payload {
            [] => return Ok(()),
            [_] => return Err(Violation::CloseTooShort),
            [high, low, reason @ ..] if is_sendable(u16::from_be_bytes([*high, *low])) => reason,
            _ => return Err(Violation::CloseCode),
        },
        _ => return Ok(()),
    };
    match str::from_utf8(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(Violation::BadUtf8),
    }
}

/// Whether a close code may appear in a frame: RFC 6455 §7.4 and the IANA registry (1012 to 1014).
/// 1004 is reserved; 1005, 1006 and 1015 are for local use only.
fn is_sendable(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

fn event(opcode: Opcode, payload: &[u8]) -> Event<'_> {
    match opcode {
        Opcode::Text => Event::Text(payload),
        Opcode::Binary => Event::Binary(payload),
        Opcode::Ping => Event::Ping(payload),
        Opcode::Pong => Event::Pong(payload),
        Opcode::Close => match payload {
            [high, low, reason @ ..] => Event::Close {
                code: Some(u16::from_be_bytes([*high, *low])),
                reason,
            },
            _ => Event::Close {
                code: None,
                reason: &[],
            },
        },
        Opcode::Continuation => unreachable!("a message has the opcode of its first frame"),
    }
}

impl Partial {
    /// Bytes of heap memory of this state, the state itself included.
    pub fn buffered_bytes(&self) -> usize {
        let message = self.message.as_ref().map_or(0, Message::heap_bytes);
        size_of::<Self>() + self.control.capacity() + message
    }

    /// Received bytes of the incomplete header, plus those of the unfinished message or, without one, of the unfinished control frame.
    pub fn received_bytes(&self) -> usize {
        let message = self.message.as_ref();
        usize::from(self.head_len)
            + message.map_or(self.control.len(), |message| message.bytes.len())
    }

    /// Whether a complete message is being inflated. The next call continues, even without input.
    pub fn is_inflating(&self) -> bool {
        let message = self.message.as_ref();
        message.is_some_and(|message| message.inflater.is_some())
    }

    /// Continues to inflate the message. `Some` if it is now complete.
    fn inflate(&mut self, work: &mut usize) -> Result<Option<Opcode>, Violation> {
        let Some(message) = &mut self.message else {
            return Ok(None);
        };
        if !message.inflate(work)? {
            return Ok(None);
        }
        self.returned = Returned::Message;
        Ok(Some(message.opcode))
    }

    /// Frees the payload that the last call returned. Returns whether the state is now empty.
    fn free_returned(&mut self) -> bool {
        match self.returned {
            Returned::Nothing => {}
            Returned::Control => self.control.clear(),
            Returned::Message => self.message = None,
        }
        self.returned = Returned::Nothing;
        self.head_len == 0 && self.frame.is_none() && self.message.is_none()
    }

    fn fragmented(&self) -> Option<Fragmented> {
        self.message.as_ref().map(|message| Fragmented {
            bytes: message.bytes.len(),
            deflated: message.deflated,
        })
    }

    fn payload(&self, opcode: Opcode) -> &[u8] {
        match &self.message {
            _ if opcode.is_control() => &self.control,
            Some(message) => &message.bytes,
            None => &[],
        }
    }

    /// Adds a piece of the payload of `frame`. `Some` if a control frame or a message is now complete.
    fn take(
        &mut self,
        frame: Frame,
        piece: &[u8],
        config: &Config,
    ) -> Result<Option<Opcode>, Violation> {
        let is_complete = frame.received == frame.len;
        if !is_complete {
            self.frame = Some(frame);
            if piece.is_empty() {
                return Ok(None); // allocate nothing yet: the payload may arrive in one piece
            }
        }
        if frame.opcode.is_control() {
            self.control.extend_from_slice(piece);
            if !is_complete {
                return Ok(None);
            }
            check_payload(frame.opcode, &self.control)?;
            self.returned = Returned::Control;
            return Ok(Some(frame.opcode));
        }
        let message = self.message.get_or_insert_with(|| Message::new(&frame));
        message.take(piece)?;
        if !(is_complete && frame.fin) {
            return Ok(None);
        }
        if message.deflated {
            message.inflater = Some(Box::new(Inflater::new(config.message_bytes)));
            return Ok(None);
        }
        if !message.utf8.is_complete() {
            return Err(Violation::BadUtf8);
        }
        self.returned = Returned::Message;
        Ok(Some(message.opcode))
    }
}

impl Message {
    fn new(first: &Frame) -> Message {
        Message {
            opcode: first.opcode,
            deflated: first.deflated,
            bytes: Vec::new(),
            utf8: Utf8::default(),
            inflater: None,
        }
    }

    fn heap_bytes(&self) -> usize {
        let inflater = self.inflater.as_deref();
        self.bytes.capacity() + inflater.map_or(0, |it| size_of::<Inflater>() + it.bytes())
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), Violation> {
        if self.opcode == Opcode::Text && !self.deflated && !self.utf8.feed(piece) {
            return Err(Violation::BadUtf8);
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Continues to inflate the message and checks its text. Returns whether the message is complete.
    fn inflate(&mut self, work: &mut usize) -> Result<bool, Violation> {
        let Some(inflater) = &mut self.inflater else {
            return Ok(true);
        };
        let plain_len = inflater.plain().len();
        let result = inflater.advance(&self.bytes, work);
        let is_text = self.opcode == Opcode::Text;
        // The text is checked before the result of inflating. Otherwise the violation of a message with both faults would depend on how the
        // work is divided into calls.
        if is_text && !self.utf8.feed(&inflater.plain()[plain_len..]) {
            return Err(Violation::BadUtf8);
        }
        let is_complete = result.map_err(|error| match error {
            InflateError::TooBig => Violation::TooBig,
            InflateError::Malformed => Violation::BadDeflate,
        })?;
        if !is_complete {
            return Ok(false);
        }
        self.bytes = self
            .inflater
            .take()
            .map_or(Vec::new(), |it| it.into_plain());
        match is_text && !self.utf8.is_complete() {
            true => Err(Violation::BadUtf8),
            false => Ok(true),
        }
    }
}
