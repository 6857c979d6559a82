//! Reads a message from protobuf.
//!
//! Invariant: the recursion follows the schema, which is four levels deep. Other fields are skipped without recursion.

use super::error::Error;
use super::protobuf::{BYTES, Reader, VARINT};
use super::raw::{Limits, Raw, Scratch, Span, Value};
use super::schema::{Field, Kind};

/// Reads a message with these fields. The spans are offsets in the frame of `reader`.
pub(super) fn read(
    reader: Reader<'_>,
    fields: &'static [Field],
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<Raw, Error> {
    let mut raw = Raw::default();
    message(reader, fields, &mut raw, scratch, limits)?;
    Ok(raw)
}

fn message(
    mut reader: Reader<'_>,
    fields: &'static [Field],
    raw: &mut Raw,
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<(), Error> {
    while !reader.is_empty() {
        let (number, wire_type) = reader.tag()?;
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            reader.skip(wire_type)?;
            continue;
        };
        let expected = match field.kind {
            Kind::U32 | Kind::U64 | Kind::I32 | Kind::Bool => VARINT,
            _ => BYTES,
        };
        if wire_type != expected {
            return Err(Error::WrongType(field.name));
        }
        let value = match field.kind {
            // Of a longer number only the low bits count, as protobuf specifies.
            Kind::U32 => Value::Unsigned((reader.varint()? as u32).into()),
            Kind::U64 => Value::Unsigned(reader.varint()?),
            Kind::I32 => Value::Signed(reader.varint()? as i32),
            Kind::Bool => Value::Bool(reader.varint()? != 0),
            Kind::Text => Value::Span(text(reader.delimited()?, field.name)?),
            Kind::Data | Kind::TextOrBytes => Value::Span(span(reader.delimited()?)),
            Kind::Presence => {
                reader.delimited()?;
                Value::There
            }
            Kind::Message(fields) => {
                raw.set(field, Value::There)?;
                message(reader.delimited()?, fields, raw, scratch, limits)?;
                continue;
            }
            Kind::Texts => {
                let (name, value) = entry(reader.delimited()?, field.name)?;
                let value = value.map_or(Ok(Span::default()), |value| text(value, field.name))?;
                scratch.add_header(name, value, limits)?;
                continue;
            }
            Kind::Channels => {
                let channel = text(reader.delimited()?, field.name)?;
                let sub = Raw {
                    channel,
                    ..Raw::default()
                };
                scratch.add_sub(sub, limits)?;
                continue;
            }
            Kind::Subs(fields) => {
                let (channel, value) = entry(reader.delimited()?, field.name)?;
                let mut sub = Raw::default();
                if let Some(value) = value {
                    message(value, fields, &mut sub, scratch, limits)?;
                }
                sub.channel = channel;
                scratch.add_sub(sub, limits)?;
                continue;
            }
        };
        raw.set(field, value)?;
    }
    Ok(())
}

/// Reads an entry of a map, which is a message with a key and a value.
fn entry<'a>(
    mut reader: Reader<'a>,
    name: &'static str,
) -> Result<(Span, Option<Reader<'a>>), Error> {
    let (mut key, mut value) = (Span::default(), None);
    while !reader.is_empty() {
        match reader.tag()? {
            (1, BYTES) => key = text(reader.delimited()?, name)?,
            (2, BYTES) => value = Some(reader.delimited()?),
            (1 | 2, _) => return Err(Error::WrongType(name)),
            (_, wire_type) => reader.skip(wire_type)?,
        }
    }
    Ok((key, value))
}

fn text(reader: Reader<'_>, name: &'static str) -> Result<Span, Error> {
    let (start, end) = reader.range();
    match core::str::from_utf8(reader.slice(start, end)) {
        Ok(_) => Ok(span(reader)),
        Err(_) => Err(Error::NotUtf8(name)),
    }
}

const fn span(reader: Reader<'_>) -> Span {
    let (start, end) = reader.range();
    Span {
        start,
        end,
        decoded: false,
    }
}
