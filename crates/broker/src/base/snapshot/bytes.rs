//! The encoding of numbers and byte strings in the records of snapshots and logs.

use alloc::vec::Vec;

use super::Damaged;
use crate::base::position::{read_varint, write_varint};

const TOO_SHORT: Damaged = Damaged("a record ends too early");

/// Appends numbers and byte strings to a record.
pub(crate) struct FieldWriter<'a>(pub &'a mut Vec<u8>);

impl FieldWriter<'_> {
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
    /// Appends a number below 2^63 as a varint, so that a small number takes few bytes.
    pub fn number(&mut self, value: u64) {
        debug_assert!(value >> 63 == 0);
        write_varint(self.0, value);
    }
    /// Appends a number of 8 bytes, little endian, for hashes and seeds.
    pub fn word(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Appends the length of the bytes, then the bytes.
    pub fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Reads numbers and byte strings from the unread rest of a record.
pub(crate) struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn expect_end(&self) -> Result<(), Damaged> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(Damaged("a record has bytes after its end")),
        }
    }
    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let (byte, rest) = self.0.split_first().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(*byte)
    }
    pub fn number(&mut self) -> Result<u64, Damaged> {
        read_varint(&mut self.0).ok_or(TOO_SHORT)
    }
    pub fn number32(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.number()?).map_err(|_| Damaged("a number is too large"))
    }
    pub fn number16(&mut self) -> Result<u16, Damaged> {
        u16::try_from(self.number()?).map_err(|_| Damaged("a number is too large"))
    }
    pub fn word(&mut self) -> Result<u64, Damaged> {
        let (word, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }
    /// Reads a number of 2 bytes, little endian.
    pub fn fixed16(&mut self) -> Result<u16, Damaged> {
        let (word, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(u16::from_le_bytes(*word))
    }
    /// Reads a number of 4 bytes, little endian.
    pub fn fixed32(&mut self) -> Result<u32, Damaged> {
        let (word, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*word))
    }
    pub fn field(&mut self) -> Result<&'a [u8], Damaged> {
        let len = usize::try_from(self.number()?).map_err(|_| TOO_SHORT)?;
        let (field, rest) = self.0.split_at_checked(len).ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(field)
    }
}
