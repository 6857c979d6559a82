//! The options of a segment.

use super::checksum::{u16_at, u32_at};

/// Blocks of selective acknowledgements that fit into a header (RFC 2018 §3).
const SACKS: usize = 4;

/// The options of a segment that this crate knows. Others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The maximum segment size (RFC 9293 §3.7.1).
    pub segment_bytes: Option<u16>,
    /// The shift of the windows that follow (RFC 7323 §2).
    pub window_shift: Option<u8>,
    /// Whether selective acknowledgements are understood (RFC 2018 §2).
    pub sack_permitted: bool,
    /// The sender's clock, and the clock that it echoes (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// Ranges of bytes that have arrived out of order.
    pub sacks: Sacks,
}

/// Ranges of bytes that have arrived out of order: the first byte of each, and the one after its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sacks {
    list: [(u32, u32); SACKS],
    count: u8,
}

impl Sacks {
    /// The ranges.
    pub fn list(&self) -> &[(u32, u32)] {
        &self.list[..usize::from(self.count)]
    }

    /// The ranges in the order of their distance from this number.
    pub fn sorted(mut self, from: u32) -> Sacks {
        let list = &mut self.list[..usize::from(self.count)];
        list.sort_unstable_by_key(|(start, _)| start.wrapping_sub(from));
        self
    }
}

impl Options {
    /// Adds a range if there is room for it. Returns whether there was.
    pub fn add_sack(&mut self, range: (u32, u32)) -> bool {
        let room = if self.timestamps.is_some() {
            SACKS - 1
        } else {
            SACKS
        };
        let place = usize::from(self.sacks.count);
        if place < room {
            self.sacks.list[place] = range;
            self.sacks.count += 1;
        }
        place < room
    }

    /// The bytes that they take in a header.
    pub(super) fn bytes(&self) -> usize {
        let sacks = usize::from(self.sacks.count);
        [
            (self.segment_bytes.is_some(), 4),
            (self.sack_permitted, 4),
            (self.timestamps.is_some(), 12),
            (self.window_shift.is_some(), 4),
            (sacks > 0, 4 + 8 * sacks),
        ]
        .into_iter()
        .map(|(is_there, bytes)| if is_there { bytes } else { 0 })
        .sum()
    }

    /// Every option begins at a multiple of four bytes; one-byte options fill the gaps.
    pub(super) fn write(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(bytes) = self.segment_bytes {
            put(&[2, 4]);
            put(&bytes.to_be_bytes());
        }
        if self.sack_permitted {
            put(&[1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            put(&[1, 1, 8, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_shift {
            put(&[1, 3, 3, shift]);
        }
        if self.sacks.count > 0 {
            put(&[1, 1, 5, 2 + 8 * self.sacks.count]);
            for (from, to) in self.sacks.list() {
                put(&from.to_be_bytes());
                put(&to.to_be_bytes());
            }
        }
    }

    /// Parses the options of a header; `None` if one of them has an impossible length.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Options> {
        let mut options = Options::default();
        while let Some(&kind) = bytes.first() {
            match kind {
                0 => break,
                1 => {
                    bytes = &bytes[1..];
                    continue;
                }
                _ => {}
            }
            let length = usize::from(*bytes.get(1)?);
            let value = bytes.get(2..length)?;
            match (kind, value.len()) {
                (2, 2) => options.segment_bytes = Some(u16_at(value, 0)),
                // A larger shift counts as 14 (RFC 7323 §2.3).
                (3, 1) => options.window_shift = Some(value[0].min(14)),
                (4, 0) => options.sack_permitted = true,
                (5, 8 | 16 | 24 | 32) => {
                    options.sacks.count = (value.len() / 8) as u8;
                    for (block, place) in value.chunks_exact(8).zip(&mut options.sacks.list) {
                        *place = (u32_at(block, 0), u32_at(block, 4));
                    }
                }
                (8, 8) => options.timestamps = Some((u32_at(value, 0), u32_at(value, 4))),
                (2 | 3 | 4 | 5 | 8, _) => return None,
                _ => {}
            }
            bytes = &bytes[length..];
        }
        Some(options)
    }
}
