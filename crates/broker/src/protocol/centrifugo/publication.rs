//! Encodes messages as publications, which clients get in replies and pushes.

use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::centrifugo::{ClientInfo, Format, Payload, Publication, Push, encode};
use crore_wire::json::is_json;

use crate::mail::properties::publisher;
use crate::mail::{Frames, Record};

/// The tags of a publication: names and values.
pub(super) type Tags = &'static [(&'static str, &'static str)];

/// The tags of data in base64.
const BASE64: Tags = &[("encoding", "base64")];

/// The data of a message in one format. In JSON, data that is a JSON value is sent unchanged, other text as a string, and other bytes as a string in base64
/// with the tag `encoding`.
pub(super) enum Data<'a> {
    Value(&'a [u8]),
    Text(&'a [u8]),
    Base64(Vec<u8>),
}

impl<'a> Data<'a> {
    pub fn of(format: Format, data: &'a [u8]) -> Data<'a> {
        match format {
            Format::Protobuf => Data::Value(data),
            Format::Json if is_json(data) => Data::Value(data),
            Format::Json if core::str::from_utf8(data).is_ok() => Data::Text(data),
            Format::Json => Data::Base64(STANDARD.encode(data).into_bytes()),
        }
    }

    /// Data that may be absent (empty): what comes with a subscription, and the info about a member, which may be of another node that checks it otherwise.
    pub fn optional(format: Format, data: &'a [u8]) -> Data<'a> {
        match data {
            [] => Data::Value(data),
            _ => Data::of(format, data),
        }
    }

    /// The data without its tags.
    pub fn payload(&self) -> Payload<'_> {
        match self {
            Data::Value(data) => Payload::Value(data),
            Data::Text(data) => Payload::Text(data),
            Data::Base64(data) => Payload::Text(data),
        }
    }

    pub fn tags(&self) -> Tags {
        match self {
            Data::Value(_) | Data::Text(_) => &[],
            Data::Base64(_) => BASE64,
        }
    }
}

/// What clients get of a message, in one format.
pub(super) struct MessageContent<'a> {
    pub data: Data<'a>,
    pub offset: u64,
    /// The user who published the message, or empty.
    publisher: &'a str,
}

impl<'a> MessageContent<'a> {
    pub fn of(format: Format, (record, frames): (&Record, &'a Frames)) -> MessageContent<'a> {
        let publisher = publisher(frames, record);
        MessageContent {
            data: Data::of(format, frames.data(record)),
            offset: record.offset,
            // Users are UTF-8.
            publisher: core::str::from_utf8(publisher).unwrap_or_default(),
        }
    }

    /// The message for a client that gets its delta, so that its data is not examined.
    pub fn without_data((record, frames): (&Record, &'a Frames)) -> MessageContent<'a> {
        MessageContent {
            data: Data::Value(b""),
            offset: record.offset,
            publisher: core::str::from_utf8(publisher(frames, record)).unwrap_or_default(),
        }
    }

    pub fn publication(&self) -> Publication<'_> {
        Publication {
            data: self.data.payload(),
            info: self.info(),
            offset: self.offset,
            tags: self.data.tags(),
            delta: false,
        }
    }

    /// The message in this form.
    pub fn publication_in<'f>(&self, format: Format, form: DeltaForm<'f>) -> Publication<'f>
    where
        'a: 'f,
    {
        let (bytes, tags) = match form {
            DeltaForm::Text(text) => (text, self.data.tags()),
            DeltaForm::Delta(delta, tags) => (delta, tags),
        };
        Publication {
            data: match format {
                Format::Json => Payload::Text(bytes),
                Format::Protobuf => Payload::Value(bytes),
            },
            info: self.info(),
            offset: self.offset,
            tags,
            delta: matches!(form, DeltaForm::Delta(..)),
        }
    }

    /// The publisher, as far as it is known.
    fn info(&self) -> Option<ClientInfo<'a>> {
        (!self.publisher.is_empty()).then_some(ClientInfo {
            user: self.publisher,
            client: "",
            conn_info: Payload::Value(b""),
            chan_info: Payload::Value(b""),
        })
    }
}

/// The form of a message for a client of deltas.
#[derive(Clone, Copy)]
pub(super) enum DeltaForm<'a> {
    /// The whole text.
    Text(&'a [u8]),
    /// The delta from the previous text, and the tags of the new data.
    Delta(&'a [u8], Tags),
}

/// Appends the push of a message in a form for a client of deltas.
pub(super) fn write_delta_form(
    format: Format,
    is_one_way: bool,
    topic: &[u8],
    (content, form): (&MessageContent<'_>, DeltaForm<'_>),
    out: &mut Vec<u8>,
) {
    let publication = content.publication_in(format, form);
    write_publication(format, is_one_way, topic, publication, out);
}

/// Appends the push of a message, which is the same for all subscribers with the same format.
pub(crate) fn write_message_push(
    format: Format,
    is_one_way: bool,
    topic: &[u8],
    message: (&Record, &Frames),
    out: &mut Vec<u8>,
) {
    let content = MessageContent::of(format, message);
    write_publication(format, is_one_way, topic, content.publication(), out);
}

fn write_publication(
    format: Format,
    is_one_way: bool,
    topic: &[u8],
    publication: Publication<'_>,
    out: &mut Vec<u8>,
) {
    // Topics are UTF-8.
    let topic = core::str::from_utf8(topic).unwrap_or_default();
    let push = Push::Publication(topic, publication);
    let written = match is_one_way {
        true => encode::bare_push(format, &push, out),
        false => encode::push(format, &push, out),
    };
    written.expect("`Data` is what the form can have");
}
