//! How a message looks on each transport. An encoding is made once for each kind and shard,
//! however many receive it; the plain WebSocket frame comes ready from the home.

use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::{json, sse};

use crate::conn::{DEFLATE, ENVELOPE, FRAMED, HTTP10, META, Row, State, V5};
use crate::connection::mqtt;
use crate::mail::{Frames, Record};

/// How a connection gets its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The home's frame.
    Frame,
    /// The home's compressed frame.
    Packed,
    /// `ws+meta.nchan`.
    Meta,
    /// JSON objects in text frames.
    FrameEnvelope,
    /// Events in chunks.
    Events,
    /// Events in a body that ends with the connection (HTTP/1.0).
    EventsToEnd,
    /// JSON objects as events, in chunks.
    EventsEnvelope,
    /// JSON objects as events, to the end.
    EventsEnvelopeToEnd,
    /// MQTT 3.1.1, QoS 0.
    Packet,
    /// MQTT 5.0, QoS 0.
    Packet5,
    /// The same in binary frames.
    FramedPacket,
    /// The same in binary frames.
    FramedPacket5,
}

impl Encoding {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// What a connection asked for.
    #[inline]
    pub fn of(row: &Row) -> Encoding {
        if row.state == State::Mqtt {
            return match (row.wants(V5), row.wants(FRAMED)) {
                (false, false) => Encoding::Packet,
                (true, false) => Encoding::Packet5,
                (false, true) => Encoding::FramedPacket,
                (true, true) => Encoding::FramedPacket5,
            };
        }
        let envelope = row.wants(ENVELOPE);
        if row.state == State::Sse || row.wants(crate::conn::EVENTS) {
            return match (envelope, row.wants(HTTP10)) {
                (false, false) => Encoding::Events,
                (false, true) => Encoding::EventsToEnd,
                (true, false) => Encoding::EventsEnvelope,
                (true, true) => Encoding::EventsEnvelopeToEnd,
            };
        }
        if row.options & (META | ENVELOPE | DEFLATE) == 0 {
            return Encoding::Frame;
        }
        if row.wants(META) {
            Encoding::Meta
        } else if envelope {
            Encoding::FrameEnvelope
        } else {
            Encoding::Packed
        }
    }

    /// Whether the message names its topic.
    #[inline]
    pub fn names_topic(self) -> bool {
        !matches!(
            self,
            Encoding::Frame | Encoding::Packed | Encoding::Events | Encoding::EventsToEnd
        )
    }
}

/// A message with its names.
pub struct Message<'a> {
    /// The topic, where [`Encoding::names_topic`] says so.
    pub topic: &'a [u8],
    /// The position.
    pub id: &'a [u8],
    /// Its bytes.
    pub frames: &'a Frames,
    /// Where they lie.
    pub record: &'a Record,
    /// Unix seconds: what is left of its life.
    pub now_s: u32,
}

impl Message<'_> {
    /// Appends the message.
    pub fn encode(&self, encoding: Encoding, out: &mut Vec<u8>) {
        let (frames, record) = (self.frames, self.record);
        let data = frames.data(record);
        match encoding {
            Encoding::Frame => out.extend_from_slice(frames.frame(record)),
            Encoding::Packed => out.extend_from_slice(frames.packed(record)),
            Encoding::Meta => {
                let start = out.len();
                meta_line(out, b"id", self.id);
                meta_line(out, b"topic", self.topic);
                if !frames.content_type(record).is_empty() {
                    meta_line(out, b"content-type", frames.content_type(record));
                }
                if !frames.key(record).is_empty() {
                    meta_line(out, b"key", frames.key(record));
                }
                out.push(b'\n');
                out.extend_from_slice(data);
                let opcode = if record.binary {
                    Opcode::Binary
                } else {
                    Opcode::Text
                };
                frame_from(out, start, opcode);
            }
            Encoding::FrameEnvelope => {
                let start = out.len();
                self.envelope(out);
                frame_from(out, start, Opcode::Text);
            }
            Encoding::Packet | Encoding::Packet5 => {
                mqtt::encode_plain(self, encoding == Encoding::Packet5, out);
            }
            Encoding::FramedPacket | Encoding::FramedPacket5 => {
                let start = out.len();
                mqtt::encode_plain(self, encoding == Encoding::FramedPacket5, out);
                frame_from(out, start, Opcode::Binary);
            }
            Encoding::Events | Encoding::EventsToEnd => {
                let base64;
                let text = if record.binary && core::str::from_utf8(data).is_err() {
                    base64 = STANDARD.encode(data);
                    base64.as_bytes()
                } else {
                    data
                };
                self.event(encoding == Encoding::Events, text, out);
            }
            Encoding::EventsEnvelope | Encoding::EventsEnvelopeToEnd => {
                let mut text = Vec::with_capacity(data.len() + 128);
                self.envelope(&mut text);
                self.event(encoding == Encoding::EventsEnvelope, &text, out);
            }
        }
    }

    fn event(&self, chunked: bool, data: &[u8], out: &mut Vec<u8>) {
        let event = self.frames.event(self.record);
        let start = out.len();
        sse::write_event(
            out,
            Some(self.id),
            (!event.is_empty()).then_some(event),
            data,
        );
        if chunked {
            chunk_from(out, start);
        }
    }

    /// Appends the message as a JSON object.
    pub fn envelope(&self, out: &mut Vec<u8>) {
        let (frames, record) = (self.frames, self.record);
        out.extend_from_slice(b"{\"topic\":");
        json::write_string(out, self.topic);
        out.extend_from_slice(b",\"id\":");
        json::write_string(out, self.id);
        for (name, value) in [
            (&b",\"content_type\":"[..], frames.content_type(record)),
            (b",\"event\":", frames.event(record)),
            (b",\"key\":", frames.key(record)),
        ] {
            if !value.is_empty() && core::str::from_utf8(value).is_ok() {
                out.extend_from_slice(name);
                json::write_string(out, value);
            }
        }
        let data = frames.data(record);
        if record.binary {
            out.extend_from_slice(b",\"data_base64\":");
            json::write_base64(out, data);
        } else {
            out.extend_from_slice(b",\"data\":");
            json::write_string(out, data);
        }
        out.push(b'}');
    }
}

/// Appends `name: value` and a line end.
pub fn meta_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\n"] {
        out.extend_from_slice(part);
    }
}

/// Appends one chunk (RFC 9112 section 7.1).
pub fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    crate::position::write_hex(out, data.len() as u32);
    for part in [b"\r\n", data, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Makes what stands behind `start` one chunk, in place: its length is known only now.
fn chunk_from(out: &mut Vec<u8>, start: usize) {
    let end = out.len();
    crate::position::write_hex(out, (end - start) as u32);
    out.extend_from_slice(b"\r\n");
    let header = out.len() - end;
    out[start..].rotate_right(header);
    out.extend_from_slice(b"\r\n");
}

/// Makes what stands behind `start` one frame, in place.
pub(crate) fn frame_from(out: &mut Vec<u8>, start: usize, opcode: Opcode) {
    let (header, len) = frame::header(opcode, false, out.len() - start);
    out.extend_from_slice(&header[..len]);
    out[start..].rotate_right(len);
}

/// One encoding of the messages of a run, made when it is asked for.
#[derive(Default)]
pub struct Encoded {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Encoded {
    /// Forgets the messages.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether nothing was encoded yet.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a message.
    pub fn push(&mut self, message: &Message<'_>, encoding: Encoding) {
        message.encode(encoding, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// The messages of these numbers, side by side.
    pub fn span(&self, messages: core::ops::Range<usize>) -> &[u8] {
        &self.bytes[self.start(messages.start)..self.start(messages.end)]
    }

    fn start(&self, message: usize) -> usize {
        match message {
            0 => 0,
            n => self.ends[n - 1],
        }
    }
}
