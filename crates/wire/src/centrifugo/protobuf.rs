//! The encoding of protobuf: varints, and fields with wire types.

use super::error::Error;

/// The wire types.
pub(super) const VARINT: u8 = 0;
pub(super) const FIXED64: u8 = 1;
pub(super) const BYTES: u8 = 2;
pub(super) const GROUP: u8 = 3;
pub(super) const GROUP_END: u8 = 4;
pub(super) const FIXED32: u8 = 5;

/// The longest varint in bytes.
pub(super) const VARINT_MAX: usize = 10;

/// The largest possible field number.
const FIELD_MAX: u64 = (1 << 29) - 1;

/// The unread bytes of a frame or of a message in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    frame: &'a [u8],
    /// The offset of the next byte.
    at: usize,
    /// The end of the message.
    end: usize,
}

impl<'a> Reader<'a> {
    pub const fn new(frame: &'a [u8], at: usize) -> Reader<'a> {
        Reader {
            frame,
            at,
            end: frame.len(),
        }
    }

    pub const fn at(&self) -> usize {
        self.at
    }

    pub const fn is_empty(&self) -> bool {
        self.at == self.end
    }

    pub fn slice(&self, start: usize, end: usize) -> &'a [u8] {
        &self.frame[start..end]
    }

    /// Skips bytes; returns the offset of the first one.
    pub fn take(&mut self, len: u64) -> Result<usize, Error> {
        let start = self.at;
        let len = usize::try_from(len).map_err(|_| Error::Truncated)?;
        if len > self.end - self.at {
            return Err(Error::Truncated);
        }
        self.at += len;
        Ok(start)
    }

    pub fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for (at, byte) in self.frame[self.at..self.end]
            .iter()
            .take(VARINT_MAX)
            .enumerate()
        {
            if at == VARINT_MAX - 1 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte & 0x80 == 0 {
                self.at += at + 1;
                return Ok(value);
            }
        }
        match self.end - self.at < VARINT_MAX {
            true => Err(Error::Truncated),
            false => Err(Error::Varint),
        }
    }

    /// The number and the wire type of the next field.
    pub fn tag(&mut self) -> Result<(u32, u8), Error> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > FIELD_MAX {
            return Err(Error::FieldNumber);
        }
        Ok((number as u32, (tag & 7) as u8))
    }

    /// Reads a length, and returns a reader for the message, text or bytes after it.
    pub fn delimited(&mut self) -> Result<Reader<'a>, Error> {
        let len = self.varint()?;
        let at = self.take(len)?;
        Ok(Reader {
            frame: self.frame,
            at,
            end: self.at,
        })
    }

    /// The range of the unread bytes in the frame.
    pub const fn range(&self) -> (usize, usize) {
        (self.at, self.end)
    }

    /// Skips a value of this wire type. Groups are skipped without recursion.
    pub fn skip(&mut self, wire_type: u8) -> Result<(), Error> {
        let mut wire_type = wire_type;
        let mut groups = 0_usize;
        loop {
            match wire_type {
                VARINT => _ = self.varint()?,
                FIXED64 => _ = self.take(8)?,
                BYTES => _ = self.delimited()?,
                FIXED32 => _ = self.take(4)?,
                GROUP => groups += 1,
                GROUP_END => groups = groups.checked_sub(1).ok_or(Error::GroupEnd)?,
                _ => return Err(Error::WireType),
            }
            if groups == 0 {
                return Ok(());
            }
            (_, wire_type) = self.tag()?;
        }
    }
}

/// The bytes of a varint, and their number.
pub(super) fn varint(mut value: u64) -> ([u8; VARINT_MAX], usize) {
    let mut bytes = [0; VARINT_MAX];
    let mut len = 0;
    while value > 0x7F {
        bytes[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    bytes[len] = value as u8;
    (bytes, len + 1)
}
