//! Reads a message from JSON text.
//!
//! Invariant: the recursion follows the schema, which is four levels deep. Deeper values are skipped without recursion.

use super::error::Error;
use super::raw::{Limits, Raw, Scratch, Span, Value};
use super::schema::{Field, Kind};
use crate::json::Fault;
use crate::json::scan::{Scan, Text};

/// Reads a text that is one object with these fields. `base` is the offset of the text in the frame.
pub(super) fn read(
    text: &[u8],
    base: usize,
    fields: &'static [Field],
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<Raw, Error> {
    let mut raw = Raw::default();
    let mut reader = Reader {
        scan: Scan::new(text),
        base,
        scratch,
        limits,
    };
    match reader.scan.peek() {
        None => return Err(Error::Empty),
        Some(b'{') => reader.message(fields, &mut raw)?,
        // The text is a value of another type, or is not JSON.
        Some(_) => {
            reader.scan.value()?;
            reader.scan.end()?;
            return Err(Error::WrongType("the command"));
        }
    }
    reader.scan.end()?;
    Ok(raw)
}

struct Reader<'a> {
    scan: Scan<'a>,
    base: usize,
    scratch: &'a mut Scratch,
    limits: &'a Limits,
}

impl Reader<'_> {
    /// Reads an object, from its opening bracket on.
    fn message(&mut self, fields: &'static [Field], raw: &mut Raw) -> Result<(), Error> {
        self.members(|reader, key| {
            let found = fields
                .iter()
                .find(|field| field.name.as_bytes() == reader.bytes(key));
            // Only the values of an object are stored, not its names.
            if key.decoded {
                reader.scratch.text.truncate(key.start);
            }
            match found {
                Some(field) => reader.value(field, raw),
                None => Ok(reader.scan.value()?),
            }
        })
    }

    /// Calls `member` with the name of each member of an object, before its value is read.
    fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, Span) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.scan.step();
        if self.scan.peek() == Some(b'}') {
            self.scan.step();
            return Ok(());
        }
        loop {
            self.scan.quote()?;
            let key = self.string()?;
            self.scan.colon()?;
            member(self, key)?;
            match self.scan.peek().ok_or(Fault::Incomplete)? {
                b',' => self.scan.step(),
                b'}' => break,
                _ => return Err(Fault::ExpectedComma.into()),
            }
        }
        self.scan.step();
        Ok(())
    }

    /// Reads the value of a field. `null` means that the field is absent, except in a field that may have any JSON value.
    fn value(&mut self, field: &'static Field, raw: &mut Raw) -> Result<(), Error> {
        let first = self.scan.peek().ok_or(Fault::Incomplete)?;
        let value = match (field.kind, first) {
            (Kind::Data, _) => Value::Span(self.skipped()?),
            (_, b'n') => return Ok(self.scan.value()?),
            (Kind::Text | Kind::TextOrBytes, b'"') => {
                self.scan.step();
                Value::Span(self.string()?)
            }
            (Kind::Bool, b't' | b'f') => {
                self.scan.value()?;
                Value::Bool(first == b't')
            }
            (Kind::U32 | Kind::U64, b'-' | b'0'..=b'9') => {
                Value::Unsigned(self.number(field.name)?)
            }
            (Kind::I32, b'-' | b'0'..=b'9') => Value::Signed(self.number(field.name)?),
            (Kind::Presence, _) => {
                self.scan.value()?;
                Value::There
            }
            (Kind::Message(fields), b'{') => {
                raw.set(field, Value::There)?;
                return self.message(fields, raw);
            }
            (Kind::Subs(fields), b'{') => {
                return self.members(|reader, channel| reader.sub(channel, fields));
            }
            (Kind::Channels, b'[') => return self.channels(field),
            (Kind::Texts, b'{') => return self.members(|reader, key| reader.header(key, field)),
            _ => {
                self.scan.value()?;
                return Err(Error::WrongType(field.name));
            }
        };
        raw.set(field, value)
    }

    /// Reads a list of channels, from its opening bracket on.
    fn channels(&mut self, field: &Field) -> Result<(), Error> {
        self.scan.step();
        if self.scan.peek() == Some(b']') {
            self.scan.step();
            return Ok(());
        }
        loop {
            if self.scan.peek().ok_or(Fault::Incomplete)? != b'"' {
                self.scan.value()?;
                return Err(Error::WrongType(field.name));
            }
            self.scan.step();
            let sub = Raw {
                channel: self.string()?,
                ..Raw::default()
            };
            self.scratch.add_sub(sub, self.limits)?;
            match self.scan.peek().ok_or(Fault::Incomplete)? {
                b',' => self.scan.step(),
                b']' => break,
                _ => return Err(Fault::ExpectedComma.into()),
            }
        }
        self.scan.step();
        Ok(())
    }

    /// Reads one entry of `subs`.
    fn sub(&mut self, channel: Span, fields: &'static [Field]) -> Result<(), Error> {
        let mut sub = Raw::default();
        match self.scan.peek().ok_or(Fault::Incomplete)? {
            b'{' => self.message(fields, &mut sub)?,
            b'n' => self.scan.value()?,
            _ => {
                self.scan.value()?;
                return Err(Error::WrongType("subs"));
            }
        }
        sub.channel = channel;
        self.scratch.add_sub(sub, self.limits)
    }

    /// Reads one entry of a map of texts.
    fn header(&mut self, name: Span, field: &Field) -> Result<(), Error> {
        if self.scan.peek() != Some(b'"') {
            self.scan.value()?;
            return Err(Error::WrongType(field.name));
        }
        self.scan.step();
        let value = self.string()?;
        self.scratch.add_header(name, value, self.limits)
    }

    /// Reads a string after its opening quote.
    fn string(&mut self) -> Result<Span, Error> {
        let start = self.scratch.text.len();
        let text = self.scan.string(&mut self.scratch.text)?;
        Ok(match text {
            Text { escaped: true, .. } => Span {
                start,
                end: self.scratch.text.len(),
                decoded: true,
            },
            Text { start, end, .. } => self.span(start, end),
        })
    }

    /// Skips any value; returns its span.
    fn skipped(&mut self) -> Result<Span, Error> {
        let start = self.scan.at();
        self.scan.value()?;
        Ok(self.span(start, self.scan.at()))
    }

    fn number<T: core::str::FromStr>(&mut self, name: &'static str) -> Result<T, Error> {
        let span = self.skipped()?;
        let digits = core::str::from_utf8(self.bytes(span)).ok();
        digits
            .and_then(|digits| digits.parse().ok())
            .ok_or(Error::BadNumber(name))
    }

    const fn span(&self, start: usize, end: usize) -> Span {
        Span {
            start: self.base + start,
            end: self.base + end,
            decoded: false,
        }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        match span.decoded {
            true => &self.scratch.text[span.start..span.end],
            false => self
                .scan
                .slice(span.start - self.base, span.end - self.base),
        }
    }
}
