//! Reading batches once more, by the places at which a scan has found them: a caller that needs them in another order keeps the places only.
//!
//! Deliberately not here: checksums. The scan has verified them, and a segment that is sealed does not change.

use std::io;

use crate::format::BATCH_HEADER;
use crate::scan::{Place, segment_name};
use crate::storage::{File, Storage};

/// Bytes that are read at once: batches that stand near one another share a read.
const WINDOW_BYTES: usize = 64 << 10;

/// A reader of batches. It reads forward cheaply, and in any order.
pub struct Reader<S: Storage> {
    storage: S,
    /// The segment at hand.
    file: Option<(u64, S::File)>,
    /// Bytes of it, from this offset on.
    window: Vec<u8>,
    begins: u64,
}

impl<S: Storage> Reader<S> {
    /// For the log in this directory.
    pub fn new(storage: S) -> Reader<S> {
        Reader {
            storage,
            file: None,
            window: Vec::new(),
            begins: 0,
        }
    }

    /// The batch that stands there ([`Place::segment`], [`Place::batch`]).
    ///
    /// # Errors
    /// Those of the disk; `InvalidData` where no batch stands there.
    pub fn batch(&mut self, (segment, offset): (u64, u64)) -> io::Result<&[u8]> {
        if (self.file.as_ref()).is_none_or(|(number, _)| *number != segment) {
            self.window.clear();
            self.file = Some((segment, self.storage.open(&segment_name(segment))?));
        }
        let header = self.bytes(offset, BATCH_HEADER)?;
        let header = header.first_chunk().expect("as many as were asked for");
        let len = u32::from_le_bytes(*header) as usize;
        self.bytes(offset + BATCH_HEADER as u64, len)
    }

    /// So many bytes at this offset.
    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let end = offset.saturating_add(len as u64);
        if offset < self.begins || end > self.begins + self.window.len() as u64 {
            let (_, file) = self.file.as_ref().expect("it was opened");
            if end > file.bytes()? {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.window.resize(len.max(WINDOW_BYTES), 0);
            let read = file.read_at(&mut self.window, offset)?;
            self.window.truncate(read);
            self.begins = offset;
        }
        let at = (offset - self.begins) as usize;
        let found = self.window.get(at..at + len);
        found.ok_or(io::ErrorKind::InvalidData.into())
    }
}

impl Place {
    /// The place, as [`Reader::batch`] needs it.
    pub fn of_batch(&self) -> (u64, u64) {
        (self.segment, self.batch)
    }
}
