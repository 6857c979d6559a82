//! Encodes messages for each transport. A shard makes each encoding once, however many connections receive it. The home (the part
//! of a shard that keeps the topic) makes the plain WebSocket frame. The data of a large message is never copied: it is shared, or
//! converted once into the form that a transport needs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::centrifugo::Format;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::{json, sse};

use crate::base::position::{Position, write_decimal};
use crate::client::row::{Row, State};
use crate::client::run::Encodings;
use crate::mail::properties::{publisher, user_properties_of};
use crate::mail::{Frames, Record};
use crate::protocol::centrifugo::publication;
use crate::protocol::http::options::{DEFLATE, ENVELOPE, META_FRAMES, UNCHUNKED};
use crate::protocol::mqtt::plain;
use crate::protocol::pusher::event;
use crate::store::rope::{Rope, RopePosition};
use crate::store::shared::{EncodingCache, Form};

/// The encoding in which a connection gets its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The home's WebSocket frame.
    PlainFrame,
    /// The home's compressed frame.
    CompressedFrame,
    /// Frames of the subprotocol `ws+meta.nchan`.
    MetaFrame,
    /// JSON objects in text frames.
    EnvelopeFrame,
    /// Events in chunks.
    Events,
    /// Events in a body that ends with the connection (HTTP/1.0).
    EventsToEnd,
    /// JSON objects as events, in chunks.
    EnvelopeEvents,
    /// JSON objects as events, in a body that ends with the connection.
    EnvelopeEventsToEnd,
    /// MQTT 3.1.1, QoS 0.
    MqttPacket,
    /// MQTT 5.0, QoS 0.
    Mqtt5Packet,
    /// MQTT 3.1.1, QoS 0, in binary frames.
    MqttFrame,
    /// MQTT 5.0, QoS 0, in binary frames.
    Mqtt5Frame,
    /// Pushes of Centrifugo's protocol in text frames.
    PushJson,
    /// Pushes of Centrifugo's protocol in protobuf, in binary frames.
    PushProtobuf,
    /// Pushes of Centrifugo's protocol as events, in chunks.
    PushEvents,
    /// The same as events, in a body that ends with the connection.
    PushEventsToEnd,
    /// Pushes of Centrifugo's protocol as lines, in chunks.
    PushLines,
    /// The same as lines, in a body that ends with the connection.
    PushLinesToEnd,
    /// Pushes of Centrifugo's protocol in protobuf, in chunks.
    PushMessages,
    /// The same in a body that ends with the connection.
    PushMessagesToEnd,
    /// Pushes of Centrifugo's protocol to a client that sends no commands, in text frames.
    OneWayFrame,
    /// The same as events, in chunks.
    OneWayEvents,
    /// The same as events, in a body that ends with the connection.
    OneWayEventsToEnd,
    /// The same as lines, in chunks.
    OneWayLines,
    /// The same as lines, in a body that ends with the connection.
    OneWayLinesToEnd,
    /// Events of Pusher's protocol in text frames.
    PusherFrame,
}

impl Encoding {
    /// The encoding that a request has asked for.
    #[inline]
    pub(crate) fn of_request(row: &Row) -> Encoding {
        let envelope = row.has_option(ENVELOPE);
        if row.consumer.state == State::Sse
            || row.has_option(crate::protocol::http::options::AS_EVENTS)
        {
            return match (envelope, row.has_option(UNCHUNKED)) {
                (false, false) => Encoding::Events,
                (false, true) => Encoding::EventsToEnd,
                (true, false) => Encoding::EnvelopeEvents,
                (true, true) => Encoding::EnvelopeEventsToEnd,
            };
        }
        if row.consumer.options & (META_FRAMES | ENVELOPE | DEFLATE) == 0 {
            return Encoding::PlainFrame;
        }
        if row.has_option(META_FRAMES) {
            Encoding::MetaFrame
        } else if envelope {
            Encoding::EnvelopeFrame
        } else {
            Encoding::CompressedFrame
        }
    }

    /// Whether a message names its topic, even to a subscriber of one topic.
    #[inline]
    pub fn names_topic(self) -> bool {
        !matches!(
            self,
            Encoding::PlainFrame
                | Encoding::CompressedFrame
                | Encoding::MetaFrame
                | Encoding::Events
                | Encoding::EventsToEnd
        )
    }

    /// Whether a message contains its position.
    #[inline]
    pub fn names_position(self) -> bool {
        // Pushes of Centrifugo's protocol have the offset alone.
        !self.names_channel()
            && !matches!(
                self,
                Encoding::PlainFrame
                    | Encoding::CompressedFrame
                    | Encoding::MqttPacket
                    | Encoding::Mqtt5Packet
                    | Encoding::MqttFrame
                    | Encoding::Mqtt5Frame
                    | Encoding::PusherFrame
            )
    }

    /// Whether a message is a push of Centrifugo's protocol, which names its channel.
    #[inline]
    pub fn names_channel(self) -> bool {
        matches!(
            self,
            Encoding::PushJson
                | Encoding::PushProtobuf
                | Encoding::PushEvents
                | Encoding::PushEventsToEnd
                | Encoding::PushLines
                | Encoding::PushLinesToEnd
                | Encoding::PushMessages
                | Encoding::PushMessagesToEnd
                | Encoding::OneWayFrame
                | Encoding::OneWayEvents
                | Encoding::OneWayEventsToEnd
                | Encoding::OneWayLines
                | Encoding::OneWayLinesToEnd
        )
    }
}

impl Encodings for Encoding {
    const COUNT: usize = 26;

    fn number(self) -> usize {
        self as usize
    }
}

/// A message with everything that its encoding needs.
pub struct Message<'a> {
    /// The topic, if [`Encoding::names_topic`] or if the connection has several topics. Else empty.
    pub topic: &'a [u8],
    /// The message's position, as text.
    pub id: &'a [u8],
    /// The bytes of the message.
    pub frames: &'a Frames,
    /// The message's record, which tells where its bytes are in `frames`.
    pub record: &'a Record,
    /// The current Unix second. The remaining lifetime of the message is computed from it.
    pub now_s: u32,
}

impl Message<'_> {
    /// Appends the message.
    pub fn encode(&self, encoding: Encoding, encodings: &mut EncodingCache, out: &mut Rope) {
        let (frames, record) = (self.frames, self.record);
        let start = out.end();
        match encoding {
            Encoding::PlainFrame => match frames.large(record) {
                Some(frame) => out.push_slice(frame.clone()),
                None => out.own.extend_from_slice(frames.frame(record)),
            },
            Encoding::CompressedFrame => match frames.large_compressed(record) {
                Some(frame) => out.push_slice(frame.clone()),
                None => out.own.extend_from_slice(frames.compressed(record)),
            },
            Encoding::MetaFrame => {
                meta_line(&mut out.own, b"id", self.id);
                // Nchan's own client accepts no unknown line here, so a subscriber of one topic gets neither topic nor time.
                if !self.topic.is_empty() {
                    meta_line(&mut out.own, b"topic", self.topic);
                    out.own.extend_from_slice(b"time: ");
                    write_decimal(&mut out.own, record.time_s.into());
                    out.own.push(b'\n');
                }
                if !frames.content_type(record).is_empty() {
                    meta_line(&mut out.own, b"content-type", frames.content_type(record));
                }
                if !frames.key(record).is_empty() {
                    meta_line(&mut out.own, b"key", frames.key(record));
                }
                let publisher = publisher(frames, record);
                if !publisher.is_empty() {
                    meta_line(&mut out.own, b"publisher", publisher);
                }
                out.own.push(b'\n');
                self.data(out);
                let opcode = match record.binary {
                    true => Opcode::Binary,
                    false => Opcode::Text,
                };
                frame_rope(out, start, opcode);
            }
            Encoding::EnvelopeFrame => {
                self.envelope(encodings, out);
                frame_rope(out, start, Opcode::Text);
            }
            Encoding::MqttPacket | Encoding::Mqtt5Packet => {
                self.packet(encoding == Encoding::Mqtt5Packet, out);
            }
            Encoding::MqttFrame | Encoding::Mqtt5Frame => {
                self.packet(encoding == Encoding::Mqtt5Frame, out);
                frame_rope(out, start, Opcode::Binary);
            }
            Encoding::PushJson
            | Encoding::PushProtobuf
            | Encoding::PushEvents
            | Encoding::PushEventsToEnd
            | Encoding::PushLines
            | Encoding::PushLinesToEnd
            | Encoding::PushMessages
            | Encoding::PushMessagesToEnd
            | Encoding::OneWayFrame
            | Encoding::OneWayEvents
            | Encoding::OneWayEventsToEnd
            | Encoding::OneWayLines
            | Encoding::OneWayLinesToEnd => {
                write_push(encoding, self.topic, (record, frames), encodings, out);
            }
            Encoding::PusherFrame => {
                write_pusher_frame(self.topic, (record, frames), encodings, out);
            }
            Encoding::Events | Encoding::EventsToEnd => {
                self.event_name(out);
                self.event_data(encodings, out);
                sse::write_end(&mut out.own, Some(self.id));
                if encoding == Encoding::Events {
                    chunk_rope(out, start);
                }
            }
            Encoding::EnvelopeEvents | Encoding::EnvelopeEventsToEnd => {
                // JSON contains no line ends, so it is one line of data.
                self.event_name(out);
                out.own.extend_from_slice(b"data: ");
                self.envelope(encodings, out);
                out.own.push(b'\n');
                sse::write_end(&mut out.own, Some(self.id));
                if encoding == Encoding::EnvelopeEvents {
                    chunk_rope(out, start);
                }
            }
        }
    }

    fn packet(&self, v5: bool, out: &mut Rope) {
        let message = (self.record, self.frames);
        if plain::write_plain_head(self.topic, message, self.now_s, v5, &mut out.own) {
            self.data(out);
        }
    }

    /// Appends the data unchanged.
    pub fn data(&self, out: &mut Rope) {
        match self.frames.large_data(self.record) {
            Some(data) => out.push_slice(data),
            None => out.own.extend_from_slice(self.frames.data(self.record)),
        }
    }

    fn event_name(&self, out: &mut Rope) {
        let event = self.frames.event(self.record);
        sse::write_name(&mut out.own, (!event.is_empty()).then_some(event));
    }

    fn event_data(&self, encodings: &mut EncodingCache, out: &mut Rope) {
        let data = self.frames.data(self.record);
        let base64 = self.record.binary && core::str::from_utf8(data).is_err();
        let write_lines = |data: &[u8], out: &mut Vec<u8>| match base64 {
            true => sse::write_data(out, STANDARD.encode(data).as_bytes()),
            false => sse::write_data(out, data),
        };
        let Some(large) = self.frames.large_data(self.record) else {
            return write_lines(data, &mut out.own);
        };
        let form = match base64 {
            true => Form::EventBase64,
            false => Form::Event,
        };
        out.push_shared(encodings.get(&large, form, |data| {
            exact_bytes(|out| write_lines(data, out))
        }));
    }

    /// Appends the message as a JSON object.
    pub fn envelope(&self, encodings: &mut EncodingCache, out: &mut Rope) {
        let (frames, record) = (self.frames, self.record);
        let bytes = &mut out.own;
        bytes.extend_from_slice(b"{\"topic\":");
        json::write_string(bytes, self.topic);
        bytes.extend_from_slice(b",\"id\":");
        json::write_string(bytes, self.id);
        bytes.extend_from_slice(b",\"time\":");
        write_decimal(bytes, record.time_s.into());
        for (name, value) in [
            (&b",\"content_type\":"[..], frames.content_type(record)),
            (b",\"event\":", frames.event(record)),
            (b",\"key\":", frames.key(record)),
            (b",\"publisher\":", publisher(frames, record)),
        ] {
            if !value.is_empty() && core::str::from_utf8(value).is_ok() {
                bytes.extend_from_slice(name);
                json::write_string(bytes, value);
            }
        }
        let mut separator: &[u8] = b",\"properties\":[[";
        for (name, value) in user_properties_of(frames, record) {
            bytes.extend_from_slice(core::mem::replace(&mut separator, b",["));
            json::write_string(bytes, name.as_bytes());
            bytes.push(b',');
            json::write_string(bytes, value.as_bytes());
            bytes.push(b']');
        }
        if separator == b",[" {
            bytes.push(b']');
        }
        let (name, form): (&[u8], Form) = match record.binary {
            true => (b",\"data_base64\":", Form::JsonBase64),
            false => (b",\"data\":", Form::Json),
        };
        let write_data = |out: &mut Vec<u8>, data: &[u8]| match record.binary {
            true => json::write_base64(out, data),
            false => json::write_string(out, data),
        };
        bytes.extend_from_slice(name);
        match frames.large_data(record) {
            None => write_data(bytes, frames.data(record)),
            Some(large) => {
                let form = encodings.get(&large, form, |data| {
                    exact_bytes(|out| write_data(out, data))
                });
                out.push_shared(form);
            }
        }
        out.own.push(b'}');
    }
}

/// The bytes that `write` writes, with no spare capacity.
fn exact_bytes(write: impl FnOnce(&mut Vec<u8>)) -> Box<[u8]> {
    let mut out = Vec::new();
    write(&mut out);
    out.into_boxed_slice()
}

/// Appends `name: value` and a line end.
pub fn meta_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\n"] {
        out.extend_from_slice(part);
    }
}

/// Appends a message as a push of Centrifugo's protocol.
pub(crate) fn write_push(
    encoding: Encoding,
    topic: &[u8],
    (record, frames): (&Record, &Frames),
    encodings: &mut EncodingCache,
    out: &mut Rope,
) {
    let form = Form::Whole(encoding.number() as u8);
    share_if_large(form, (record, frames), encodings, out, |out| {
        write_push_by(encoding, out, |format, is_one_way, out| {
            publication::write_message_push(format, is_one_way, topic, (record, frames), out);
        });
    });
}

/// Appends what `write` writes: all that clients get of a message in this form. If the message is large, all these clients share the bytes, also those whose
/// outboxes have no room for it yet.
pub(crate) fn share_if_large(
    form: Form,
    (record, frames): (&Record, &Frames),
    encodings: &mut EncodingCache,
    out: &mut Rope,
    write: impl FnOnce(&mut Rope),
) {
    let Some(large) = frames.large_data(record) else {
        return write(out);
    };
    out.push_shared(encodings.get(&large, form, |_| {
        let mut whole = Rope::default();
        write(&mut whole);
        debug_assert!(!whole.is_shared());
        whole.own.into_boxed_slice()
    }));
}

/// Appends a message as an event of Pusher's protocol, in a frame.
pub(crate) fn write_pusher_frame(
    topic: &[u8],
    (record, frames): (&Record, &Frames),
    encodings: &mut EncodingCache,
    out: &mut Rope,
) {
    let form = Form::Whole(Encoding::PusherFrame.number() as u8);
    share_if_large(form, (record, frames), encodings, out, |out| {
        let start = out.end();
        event::write_message(topic, (record, frames), &mut out.own);
        frame_rope(out, start, Opcode::Text);
    });
}

/// Appends the position after a message as an event of Pusher's protocol, in a frame.
pub(crate) fn write_pusher_position(topic: &[u8], position: Position, out: &mut Rope) {
    let start = out.end();
    event::write_position(topic, position, &mut out.own);
    frame_rope(out, start, Opcode::Text);
}

/// Appends the push that `write` writes, in the frame, event or line of its transport.
pub(crate) fn write_push_by(
    encoding: Encoding,
    out: &mut Rope,
    write: impl FnOnce(Format, bool, &mut Vec<u8>),
) {
    let start = out.end();
    let format = match encoding {
        Encoding::PushProtobuf | Encoding::PushMessages | Encoding::PushMessagesToEnd => {
            Format::Protobuf
        }
        _ => Format::Json,
    };
    let is_one_way = matches!(
        encoding,
        Encoding::OneWayFrame
            | Encoding::OneWayEvents
            | Encoding::OneWayEventsToEnd
            | Encoding::OneWayLines
            | Encoding::OneWayLinesToEnd
    );
    write(format, is_one_way, &mut out.own);
    match encoding {
        Encoding::PushProtobuf => return frame_rope(out, start, Opcode::Binary),
        Encoding::PushEvents
        | Encoding::PushEventsToEnd
        | Encoding::OneWayEvents
        | Encoding::OneWayEventsToEnd => {
            // JSON contains no line ends, so it is one line of data.
            out.insert_at(start, b"data: ");
            out.own.extend_from_slice(b"\n\n");
        }
        Encoding::PushLines
        | Encoding::PushLinesToEnd
        | Encoding::OneWayLines
        | Encoding::OneWayLinesToEnd => out.own.push(b'\n'),
        // A message in protobuf begins with its length.
        Encoding::PushMessages | Encoding::PushMessagesToEnd => {}
        _ => return frame_rope(out, start, Opcode::Text),
    }
    let is_in_chunks = matches!(
        encoding,
        Encoding::PushEvents
            | Encoding::PushLines
            | Encoding::PushMessages
            | Encoding::OneWayEvents
            | Encoding::OneWayLines
    );
    if is_in_chunks {
        chunk_rope(out, start);
    }
}

/// Turns the bytes after `start` into one chunk. Their length is known only now.
fn chunk_rope(out: &mut Rope, start: RopePosition) {
    let bytes = out.len_after(start) as u32;
    out.insert_at_with(start, |own| {
        crate::base::position::write_hex(own, bytes);
        own.extend_from_slice(b"\r\n");
    });
    out.own.extend_from_slice(b"\r\n");
}

/// Turns the bytes after `start` into one frame.
pub(crate) fn frame_rope(out: &mut Rope, start: RopePosition, opcode: Opcode) {
    let (header, len) = frame::header(opcode, false, out.len_after(start));
    out.insert_at(start, &header[..len]);
}

/// Turns the bytes after `start` into one frame.
pub(crate) fn frame_from(out: &mut Vec<u8>, start: usize, opcode: Opcode) {
    let (header, len) = frame::header(opcode, false, out.len() - start);
    out.extend_from_slice(&header[..len]);
    out[start..].rotate_right(len);
}
