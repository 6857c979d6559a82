//! Writes messages as JSON and as protobuf. A message lists its fields once, for either writer.

use super::protobuf::{self, BYTES, VARINT};
use crate::json;
use alloc::vec::Vec;

/// A message that can be written.
pub(super) trait Message {
    fn write(&self, w: &mut impl Writer);
}

/// The JSON name and the protobuf number of a field.
pub(super) type Field = (&'static str, u32);

/// Data for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// In JSON: these bytes, which must be one JSON value. In protobuf: any bytes. Without bytes the field is absent.
    Value(&'a [u8]),
    /// In JSON: a string with these bytes, which must be UTF-8. In protobuf: the bytes.
    Text(&'a [u8]),
}

/// The data cannot be sent to a JSON client, because it is not a JSON value or not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("the data is not JSON, so a client of JSON cannot get it")]
pub struct NotJson;

impl core::error::Error for NotJson {}

/// Writes the fields of a message. Values that are empty, 0 or false are omitted, except by [`Writer::required`] and [`Writer::message`].
pub(super) trait Writer {
    fn text(&mut self, field: Field, value: &str);
    /// A text that JSON contains even if it is empty.
    fn required(&mut self, field: Field, value: &str);
    fn data(&mut self, field: Field, value: Payload<'_>);
    fn number(&mut self, field: Field, value: u64);
    /// A number that JSON contains even if it is 0.
    fn required_number(&mut self, field: Field, value: u64) {
        self.number(field, value);
    }
    fn flag(&mut self, field: Field, value: bool);
    fn message(&mut self, field: Field, value: &impl Message);
    fn list<M: Message>(&mut self, field: Field, values: &[M]);
    /// A map from text to messages.
    fn messages<M: Message>(&mut self, field: Field, entries: &[(&str, M)]);
    /// A map from text to messages that JSON contains even if it is empty.
    fn required_messages<M: Message>(&mut self, field: Field, entries: &[(&str, M)]) {
        self.messages(field, entries);
    }
    /// A map from text to text.
    fn texts(&mut self, field: Field, entries: &[(&str, &str)]);
}

/// Appends a message as JSON.
pub(super) fn json(message: &impl Message, out: &mut Vec<u8>) -> Result<(), NotJson> {
    let start = out.len();
    let mut writer = Json {
        out,
        first: true,
        refused: false,
    };
    writer.object(message);
    match writer.refused {
        true => {
            out.truncate(start);
            Err(NotJson)
        }
        false => Ok(()),
    }
}

/// Appends a message as protobuf, with its length before it.
pub(super) fn delimited(message: &impl Message, out: &mut Vec<u8>) {
    let len = len(message);
    out.reserve(len + protobuf::VARINT_MAX);
    let mut writer = Protobuf(out);
    writer.varint(len as u64);
    message.write(&mut writer);
}

struct Json<'a> {
    out: &'a mut Vec<u8>,
    /// Whether the next field is the first one of its object.
    first: bool,
    /// Whether some data is not valid in JSON.
    refused: bool,
}

impl Json<'_> {
    fn object(&mut self, message: &impl Message) {
        self.out.push(b'{');
        self.first = true;
        message.write(self);
        self.out.push(b'}');
        self.first = false;
    }

    fn comma(&mut self) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
    }

    fn key(&mut self, (name, _): Field) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn any_key(&mut self, name: &str) {
        self.comma();
        json::write_string(self.out, name.as_bytes());
        self.out.push(b':');
    }
}

impl Writer for Json<'_> {
    fn text(&mut self, field: Field, value: &str) {
        if !value.is_empty() {
            self.required(field, value);
        }
    }

    fn required(&mut self, field: Field, value: &str) {
        self.key(field);
        json::write_string(self.out, value.as_bytes());
    }

    fn data(&mut self, field: Field, value: Payload<'_>) {
        match value {
            Payload::Value([]) => {}
            Payload::Value(value) if json::is_json(value) => {
                self.key(field);
                // Line ends are white space in JSON. They would end the line of an event or of a list of replies.
                let mut written = 0;
                for line_end in memchr::memchr2_iter(b'\r', b'\n', value) {
                    self.out.extend_from_slice(&value[written..line_end]);
                    written = line_end + 1;
                }
                self.out.extend_from_slice(&value[written..]);
            }
            Payload::Text(text) if core::str::from_utf8(text).is_ok() => {
                self.key(field);
                json::write_string(self.out, text);
            }
            _ => self.refused = true,
        }
    }

    fn number(&mut self, field: Field, value: u64) {
        if value == 0 {
            return;
        }
        self.key(field);
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = value;
        while rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.out.extend_from_slice(&digits[at..]);
    }

    fn required_number(&mut self, field: Field, value: u64) {
        match value {
            0 => {
                self.key(field);
                self.out.push(b'0');
            }
            value => self.number(field, value),
        }
    }

    fn flag(&mut self, field: Field, value: bool) {
        if value {
            self.key(field);
            self.out.extend_from_slice(b"true");
        }
    }

    fn message(&mut self, field: Field, value: &impl Message) {
        self.key(field);
        self.object(value);
    }

    fn list<M: Message>(&mut self, field: Field, values: &[M]) {
        if values.is_empty() {
            return;
        }
        self.key(field);
        self.out.push(b'[');
        self.first = true;
        for value in values {
            self.comma();
            self.object(value);
        }
        self.out.push(b']');
    }

    fn messages<M: Message>(&mut self, field: Field, entries: &[(&str, M)]) {
        if !entries.is_empty() {
            self.required_messages(field, entries);
        }
    }

    fn required_messages<M: Message>(&mut self, field: Field, entries: &[(&str, M)]) {
        self.key(field);
        self.out.push(b'{');
        self.first = true;
        for (name, value) in entries {
            self.any_key(name);
            self.object(value);
        }
        self.out.push(b'}');
        self.first = false;
    }

    fn texts(&mut self, field: Field, entries: &[(&str, &str)]) {
        if entries.is_empty() {
            return;
        }
        self.key(field);
        self.out.push(b'{');
        self.first = true;
        for (name, value) in entries {
            self.any_key(name);
            json::write_string(self.out, value.as_bytes());
        }
        self.out.push(b'}');
    }
}

/// The output of the protobuf writer: a buffer, or a counter of bytes. The length of each message is written before the message, so it is
/// counted first.
trait Out {
    fn put(&mut self, bytes: &[u8]);
    /// Writes a message whose length is known.
    fn nested(&mut self, len: usize, message: &impl Message);
}

impl Out for &mut Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn nested(&mut self, _: usize, message: &impl Message) {
        message.write(&mut Protobuf(&mut **self));
    }
}

struct Count(usize);

impl Out for Count {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn nested(&mut self, len: usize, _: &impl Message) {
        self.0 += len;
    }
}

/// The length of a message as protobuf, in bytes. A message is counted once for each of the levels above it, which are at most five.
fn len(message: &impl Message) -> usize {
    let mut count = Protobuf(Count(0));
    message.write(&mut count);
    count.0.0
}

struct Protobuf<O>(O);

impl<O: Out> Protobuf<O> {
    fn varint(&mut self, value: u64) {
        let (bytes, len) = protobuf::varint(value);
        self.0.put(&bytes[..len]);
    }

    fn tag(&mut self, (_, number): Field, wire_type: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire_type));
    }
}

impl<O: Out> Writer for Protobuf<O> {
    fn text(&mut self, field: Field, value: &str) {
        self.data(field, Payload::Value(value.as_bytes()));
    }

    fn required(&mut self, field: Field, value: &str) {
        self.text(field, value);
    }

    fn data(&mut self, field: Field, value: Payload<'_>) {
        let (Payload::Value(bytes) | Payload::Text(bytes)) = value;
        if !bytes.is_empty() {
            self.tag(field, BYTES);
            self.varint(bytes.len() as u64);
            self.0.put(bytes);
        }
    }

    fn number(&mut self, field: Field, value: u64) {
        if value != 0 {
            self.tag(field, VARINT);
            self.varint(value);
        }
    }

    fn flag(&mut self, field: Field, value: bool) {
        self.number(field, value.into());
    }

    fn message(&mut self, field: Field, value: &impl Message) {
        let len = len(value);
        self.tag(field, BYTES);
        self.varint(len as u64);
        self.0.nested(len, value);
    }

    fn list<M: Message>(&mut self, field: Field, values: &[M]) {
        for value in values {
            self.message(field, value);
        }
    }

    fn messages<M: Message>(&mut self, field: Field, entries: &[(&str, M)]) {
        for (name, value) in entries {
            self.message(field, &Entry(name, value));
        }
    }

    fn texts(&mut self, field: Field, entries: &[(&str, &str)]) {
        for (name, value) in entries {
            self.message(field, &TextEntry(name, value));
        }
    }
}

/// An entry of a map, which protobuf writes as a message.
struct Entry<'a, M>(&'a str, &'a M);

impl<M: Message> Message for Entry<'_, M> {
    fn write(&self, w: &mut impl Writer) {
        w.text(("key", 1), self.0);
        w.message(("value", 2), self.1);
    }
}

struct TextEntry<'a>(&'a str, &'a str);

impl Message for TextEntry<'_> {
    fn write(&self, w: &mut impl Writer) {
        w.text(("key", 1), self.0);
        w.text(("value", 2), self.1);
    }
}
