//! The mark: a small file that records where the log ended. If the newest segment is deleted, or lost by the file system, the remaining
//! segments look like a shorter, complete log. Only the mark shows the loss.
//!
//! The log writes the mark when it is opened, when a segment begins, when old segments are removed, and at a planned stop. Invariants:
//! * Everything up to the mark was synced before the mark was written. So a log that ends before its mark has lost something.
//! * Marks are written alternately to two slots, so a power cut during the write leaves the previous mark.
//! * A missing or damaged mark proves nothing.
//!
//! If the end of the log is lost, every start must report it until the caller has written a checkpoint of the rest, because the process may
//! be killed before that. Until then the mark has the value [`END_IS_LOST`], which no log reaches.

use std::io;

use crate::format::{read_u32, read_u64};
use crate::storage::{File, Storage};

/// The name of the file.
pub(crate) const FILE_NAME: &str = "end";
const MAGIC: &[u8; 8] = b"CROREEND";
const VERSION: u32 = 1;
/// Bytes of a mark.
const MARK_BYTES: usize = 48;
/// Distance between the two slots. It is more than a disk writes at once.
const SLOT_DISTANCE: u64 = 4096;
const SLOTS: u64 = 2;

/// A mark with this segment number and group number records that the end is lost.
pub(crate) const END_IS_LOST: u64 = u64::MAX;

/// Where a log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndMark {
    /// The number of the mark. The mark with the highest number is valid.
    pub number: u64,
    /// The identity of the log.
    pub log: u64,
    /// The last segment of the log.
    pub segment: u64,
    /// The last synced group; 0 if there is none.
    pub group: u64,
}

impl EndMark {
    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.log.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.segment.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.group.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<EndMark> {
        let bytes = bytes.get(..MARK_BYTES)?;
        let verifies = &bytes[..8] == MAGIC && crc32c::crc32c(&bytes[..44]) == read_u32(bytes, 44);
        (verifies && read_u32(bytes, 8) == VERSION).then(|| EndMark {
            number: read_u64(bytes, 12),
            log: read_u64(bytes, 20),
            segment: read_u64(bytes, 28),
            group: read_u64(bytes, 36),
        })
    }

    /// The mark in this directory; `None` if it is missing or damaged.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn read<S: Storage>(storage: &S) -> io::Result<Option<EndMark>> {
        match storage.open(FILE_NAME) {
            Ok(file) => read_newest(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn read_newest(file: &impl File) -> io::Result<Option<EndMark>> {
    let mut newest: Option<EndMark> = None;
    for slot in 0..SLOTS {
        let mut bytes = [0; MARK_BYTES];
        let len = file.read_at(&mut bytes, slot * SLOT_DISTANCE)?;
        let newer = EndMark::decode(&bytes[..len])
            .filter(|mark| newest.is_none_or(|newest| mark.number > newest.number));
        newest = newer.or(newest);
    }
    Ok(newest)
}

/// The open file of the mark.
pub(crate) struct MarkFile<F> {
    file: F,
    /// The number of the last mark.
    number: u64,
}

impl<F: File> MarkFile<F> {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// Errors of the file system, including a full disk.
    pub fn open<S: Storage<File = F>>(storage: &S) -> io::Result<MarkFile<F>> {
        let file = match storage.open(FILE_NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                storage.create(FILE_NAME, SLOTS * SLOT_DISTANCE)?
            }
            opened => opened?,
        };
        let number = read_newest(&file)?.map_or(0, |mark| mark.number);
        Ok(MarkFile { file, number })
    }

    /// Writes and syncs the next mark: the log with this identity ends in this segment, with this group.
    ///
    /// # Errors
    /// Errors of the disk.
    pub fn write(&mut self, log: u64, segment: u64, group: u64) -> io::Result<()> {
        let number = self.number + 1;
        let mark = EndMark {
            number,
            log,
            segment,
            group,
        };
        self.file
            .write_at(&mark.encode(), number % SLOTS * SLOT_DISTANCE)?;
        self.file.sync()?;
        self.number = number;
        Ok(())
    }
}
