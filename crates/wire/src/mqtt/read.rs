//! Reads the data types of MQTT 5.0 section 1.5.

use super::base::PacketId;
use super::error::Error;

/// The unread bytes of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Error> {
        let (&byte, rest) = self.0.split_first().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(byte)
    }

    /// Two Byte Integer (section 1.5.2).
    pub fn u16(&mut self) -> Result<u16, Error> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    /// Four Byte Integer (section 1.5.3).
    pub fn u32(&mut self) -> Result<u32, Error> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// Variable Byte Integer (section 1.5.5). More bytes than the value needs are an error.
    pub fn variable(&mut self) -> Result<u32, Error> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7F) << (7 * index);
            if byte & 0x80 == 0 {
                return match byte == 0 && index > 0 {
                    true => Err(Error::VariableByteInteger),
                    false => Ok(value),
                };
            }
        }
        Err(Error::VariableByteInteger)
    }

    /// Binary Data (section 1.5.6).
    pub fn binary(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u16()?;
        self.take(len.into())
    }

    /// UTF-8 Encoded String (section 1.5.4).
    pub fn text(&mut self) -> Result<&'a str, Error> {
        let bytes = self.binary()?;
        if bytes.contains(&0) {
            return Err(Error::Nul);
        }
        core::str::from_utf8(bytes).map_err(|_| Error::NotUtf8)
    }

    /// A packet identifier, never zero [MQTT-2.2.1-3].
    pub fn packet_id(&mut self) -> Result<PacketId, Error> {
        PacketId::new(self.u16()?).ok_or(Error::PacketId)
    }

    /// Checks that no bytes are left.
    pub fn expect_end(self) -> Result<(), Error> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(Error::TrailingBytes),
        }
    }
}
