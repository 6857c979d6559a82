//! Reads single batches again at the positions that a scan has found. So a caller that needs batches in another order stores only their
//! positions.
//!
//! Checksums are deliberately not verified again. A disk may return other bytes the second time, so the caller compares.

use std::io;

use crate::format::BATCH_HEADER_BYTES;
use crate::scan::{BatchPlace, segment_name};
use crate::storage::{File, Storage};

/// Bytes of one read. Most batches are shorter, so one read also serves neighbouring batches.
const WINDOW_BYTES: usize = 64 << 10;

/// Reads batches in any order. Ascending order costs the fewest reads.
pub struct Reader<S: Storage> {
    storage: S,
    /// The open segment, with its number.
    file: Option<(u64, S::File)>,
    /// A part of the open segment.
    window: Vec<u8>,
    /// The offset of `window` in the segment.
    window_offset: u64,
}

impl<S: Storage> Reader<S> {
    /// A reader of the log in this storage.
    pub fn new(storage: S) -> Reader<S> {
        Reader {
            storage,
            file: None,
            window: Vec::new(),
            window_offset: 0,
        }
    }

    /// Reads the batch at this segment and offset ([`BatchPlace::segment_and_offset`]).
    ///
    /// # Errors
    /// Errors of the disk; `InvalidData` if there is no batch.
    pub fn read_batch(&mut self, (segment, offset): (u64, u64)) -> io::Result<&[u8]> {
        if (self.file.as_ref()).is_none_or(|(number, _)| *number != segment) {
            self.window.clear();
            self.file = Some((segment, self.storage.open(&segment_name(segment))?));
        }
        let header = self.read_bytes(offset, BATCH_HEADER_BYTES)?;
        let header = header.first_chunk().expect("as many as were asked for");
        let len = u32::from_le_bytes(*header) as usize;
        self.read_bytes(offset + BATCH_HEADER_BYTES as u64, len)
    }

    /// Reads the `len` bytes at this offset.
    fn read_bytes(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let end = offset.saturating_add(len as u64);
        if offset < self.window_offset || end > self.window_offset + self.window.len() as u64 {
            let (_, file) = self.file.as_ref().expect("it was opened");
            if end > file.bytes()? {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.window.resize(len.max(WINDOW_BYTES), 0);
            let read = file.read_at(&mut self.window, offset)?;
            self.window.truncate(read);
            self.window_offset = offset;
        }
        let start = (offset - self.window_offset) as usize;
        let batch = self.window.get(start..start + len);
        batch.ok_or(io::ErrorKind::InvalidData.into())
    }
}

impl BatchPlace {
    /// The segment of the batch, and its offset in the segment, for [`Reader::read_batch`].
    pub fn segment_and_offset(&self) -> (u64, u64) {
        (self.segment, self.batch_offset)
    }
}
