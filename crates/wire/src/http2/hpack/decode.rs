//! Decodes blocks of header fields (RFC 7541 sections 3 to 6).
//!
//! # The dynamic table
//!
//! The server announces SETTINGS_HEADER_TABLE_SIZE = 0, so that an idle connection needs no table. But a client may use the initial size,
//! 4,096 bytes, until it has read that setting, and most clients send their first request before. So a decoder has three phases:
//!
//! 1. Until the client acknowledges the settings, its limit is the initial size.
//! 2. After that ([`Decoder::limit`]) the client must begin its next block with a change of the table size to 0. The table stays until this
//!    block, because the block may still refer to it.
//! 3. After the change there is no table, and its memory is freed.
//!
//! By RFC 9113 section 4.3.1 a server should close a connection whose next block does not begin with the change. This decoder keeps the
//! table instead, because some clients ignore the setting (h2spec does). The cost is the same as that of a client that never acknowledges:
//! one bounded table.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::table::{Dynamic, FIELD_OVERHEAD, STATIC};
use super::{Error, huffman};

/// The initial size of the dynamic table (RFC 9113 section 6.5.2).
pub const DEFAULT_TABLE_BYTES: usize = 4096;
/// The longest integer, in bytes after its prefix. Five bytes have 35 bits, and 32 are needed.
const INTEGER_MAX: usize = 5;

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    /// The largest table size that the client may choose.
    limit: u16,
    /// The table size that the client chose last.
    size: u16,
    table: Option<Box<Dynamic>>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder {
            limit: DEFAULT_TABLE_BYTES as u16,
            size: DEFAULT_TABLE_BYTES as u16,
            table: None,
        }
    }
}

/// A name or value of the field that is being decoded.
enum Text<'b> {
    /// A slice of the block or of the static table.
    Borrowed(&'b [u8]),
    /// This range of the scratch.
    Scratch(usize, usize),
}

impl<'b> Text<'b> {
    fn bytes<'a>(&'a self, scratch: &'a [u8]) -> &'a [u8]
    where
        'b: 'a,
    {
        match *self {
            Text::Borrowed(bytes) => bytes,
            Text::Scratch(start, end) => &scratch[start..end],
        }
    }
}

impl Decoder {
    /// Forbids a dynamic table, because the client has acknowledged SETTINGS_HEADER_TABLE_SIZE = 0.
    pub fn limit(&mut self) {
        self.limit = 0;
    }

    /// Decodes a whole block, and calls `field` with each name and value. `scratch` keeps nothing between calls. `most` limits the decoded
    /// bytes, including [`FIELD_OVERHEAD`] for each field. The limit is needed because one byte of a block can refer to a field as large as
    /// the table.
    ///
    /// # Errors
    /// [`Error`]. The connection must end, because the table may now differ from the encoder's.
    pub fn decode(
        &mut self,
        block: &[u8],
        scratch: &mut Vec<u8>,
        most: usize,
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Error> {
        let mut left = most;
        let mut field = |name: &[u8], value: &[u8]| {
            let size = name.len() + value.len() + FIELD_OVERHEAD;
            left = left.checked_sub(size).ok_or(Error::TooLong)?;
            field(name, value);
            Ok(())
        };
        let mut rest = self.change_size(block)?;
        while let [first, ..] = *rest {
            scratch.clear();
            let (prefix, is_inserted) = match first {
                0x80.. => {
                    let index = integer(&mut rest, 7)?;
                    let (name, value) = self.field_at(index)?;
                    field(name, value)?;
                    continue;
                }
                0x40.. => (6, true),
                0x20.. => return Err(Error::TableSize),
                // A literal without indexing, or a never-indexed one. The difference matters only to intermediaries.
                _ => (4, false),
            };
            let name = match integer(&mut rest, prefix)? {
                0 => string(&mut rest, scratch)?,
                index => self.name_at(index, scratch)?,
            };
            let value = string(&mut rest, scratch)?;
            let (name, value) = (name.bytes(scratch), value.bytes(scratch));
            field(name, value)?;
            if is_inserted && self.size > 0 {
                let table = self.table.get_or_insert_default();
                table.insert(name, value, self.size.into());
            }
        }
        Ok(())
    }

    /// Bytes of heap that the dynamic table occupies.
    pub fn heap_bytes(&self) -> usize {
        let table = self.table.as_deref();
        table.map_or(0, |table| size_of::<Dynamic>() + table.heap_bytes())
    }

    /// Reads the changes of the table size at the start of a block. Returns the rest of the block.
    fn change_size<'b>(&mut self, mut block: &'b [u8]) -> Result<&'b [u8], Error> {
        while let [0x20..0x40, ..] = *block {
            let size = integer(&mut block, 5)?;
            if size > self.limit.into() {
                return Err(Error::TableSize);
            }
            self.size = size as u16;
            match &mut self.table {
                Some(table) if size > 0 => table.shrink(size as usize),
                table => *table = None,
            }
        }
        Ok(block)
    }

    /// The name and the value at an index of the static and dynamic tables (RFC 7541 section 2.3.3).
    fn field_at(&self, index: u32) -> Result<(&[u8], &[u8]), Error> {
        let index = (index as usize).checked_sub(1).ok_or(Error::UnknownIndex)?;
        match STATIC.get(index) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => {
                let table = self.table.as_ref().ok_or(Error::UnknownIndex)?;
                table.get(index - STATIC.len())
            }
        }
    }

    /// The name at an index. A name in the dynamic table is copied, because inserting its field may remove the name.
    fn name_at(&self, index: u32, scratch: &mut Vec<u8>) -> Result<Text<'static>, Error> {
        if let Some((name, _)) = STATIC.get(index as usize - 1) {
            return Ok(Text::Borrowed(name.as_bytes()));
        }
        let (name, _) = self.field_at(index)?;
        let start = scratch.len();
        scratch.extend_from_slice(name);
        Ok(Text::Scratch(start, scratch.len()))
    }
}

/// Reads an integer whose first byte has a prefix of `bits` bits (RFC 7541 section 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Result<u32, Error> {
    let (&first, mut after) = rest.split_first().ok_or(Error::Truncated)?;
    let max = (1 << bits) - 1;
    let mut value = u64::from(first & max);
    if value == u64::from(max) {
        for place in 0..=INTEGER_MAX {
            let (&byte, then) = after.split_first().ok_or(Error::Truncated)?;
            if place == INTEGER_MAX {
                return Err(Error::Integer);
            }
            after = then;
            value += u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = after;
    u32::try_from(value).map_err(|_| Error::Integer)
}

/// Reads a string (RFC 7541 section 5.2).
fn string<'b>(rest: &mut &'b [u8], scratch: &mut Vec<u8>) -> Result<Text<'b>, Error> {
    let is_huffman = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(rest, 7)? as usize;
    let (bytes, after) = rest.split_at_checked(length).ok_or(Error::Truncated)?;
    *rest = after;
    if !is_huffman {
        return Ok(Text::Borrowed(bytes));
    }
    let start = scratch.len();
    huffman::decode(bytes, scratch)?;
    Ok(Text::Scratch(start, scratch.len()))
}
