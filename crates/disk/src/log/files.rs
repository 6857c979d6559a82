//! The files of a log and the disk space that they may use.
//!
//! As long as there is space, two spare files are kept ready for the next segments. So the log notices a full disk while it can still
//! commit into the spare files.

use std::io;

use crate::scan::spare_name;
use crate::storage::Storage;

/// Number of spare files.
const SPARES: usize = 2;

/// The sizes of a log, and its first segment.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The maximum size of all files together in bytes, including files of the caller (`set_other_bytes`).
    pub bytes_max: u64,
    /// The first segment of the log. An earlier segment has reappeared after its removal, so it is removed without being read.
    pub first_segment: u64,
    /// The last group in the caller's checkpoint. If the checkpoint has replaced all segments, the next group gets the number after this
    /// one.
    pub checkpoint_group: u64,
}

impl Default for Options {
    /// Segments of 64 MiB, and no limit except the file system's.
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            bytes_max: u64::MAX,
            first_segment: 1,
            checkpoint_group: 0,
        }
    }
}

/// Why a group was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// There is no space in the file system or below `bytes_max`. Nothing was written, so the caller can retry the same group.
    #[error("there is no room for another segment of the log")]
    Full,
    /// A write or a sync failed. It is unknown how much of the group is on disk, so the log accepts nothing more.
    #[error("the log cannot be written: {0}")]
    Failed(io::Error),
}

/// Bytes of the file system that the log keeps free for a checkpoint.
#[derive(Clone, Copy, Default)]
pub struct Reserve {
    pub bytes: u64,
    /// The value of [`Files::written`] when `bytes` was computed. All bytes written since then are added to `bytes`.
    pub from: u64,
}

pub struct Files<S: Storage> {
    pub storage: S,
    pub options: Options,
    /// The spare files, of `segment_bytes` each, with their names.
    pub spares: Vec<(String, S::File)>,
    pub spares_made: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of other files that count towards `bytes_max`.
    pub other_bytes: u64,
    /// Bytes of the file system that the log keeps free for a checkpoint.
    pub reserve: Reserve,
    /// Bytes of groups written since the log was opened.
    pub written: u64,
    /// Free bytes of the file system at the last call of `prepare`.
    pub free_bytes: u64,
    /// The spare files were removed for the final checkpoint, so no new ones may be made.
    pub released: bool,
}

impl<S: Storage> Files<S> {
    pub fn is_prepared(&self) -> bool {
        self.spares.len() >= SPARES || self.released
    }

    /// Free bytes of the file system beyond the reserve.
    pub fn beyond_reserve(&self) -> u64 {
        self.free_bytes.saturating_sub(self.reserve_bytes())
    }

    fn reserve_bytes(&self) -> u64 {
        let Reserve { bytes, from } = self.reserve;
        bytes.saturating_add(self.written.saturating_sub(from))
    }

    pub fn release(&mut self) -> io::Result<()> {
        self.released = true;
        for (name, _) in self.spares.drain(..) {
            self.storage.remove(&name)?;
            self.bytes -= self.options.segment_bytes;
        }
        Ok(())
    }

    pub fn prepare(&mut self) -> io::Result<bool> {
        let mut has_room = true;
        while has_room && !self.is_prepared() {
            let made = self.make_file(self.options.segment_bytes)?;
            has_room = made.is_some();
            self.spares.extend(made);
        }
        self.free_bytes = self.storage.free_bytes()?;
        Ok(has_room && self.free_bytes >= self.reserve_bytes())
    }

    pub fn make_file(&mut self, bytes: u64) -> io::Result<Option<(String, S::File)>> {
        let taken = self.bytes.saturating_add(self.other_bytes);
        if taken.saturating_add(bytes) > self.options.bytes_max {
            return Ok(None);
        }
        loop {
            self.spares_made += 1;
            let name = spare_name(self.spares_made);
            match self.storage.create(&name, bytes) {
                Ok(file) => {
                    self.bytes += bytes;
                    return Ok(Some((name, file)));
                }
                // Another program's file has this name, so the next name is tried.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if is_disk_full(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// A spare file, or a new file if the group does not fit a spare file. Returned with its name and length.
    pub fn blank(&mut self, least: u64) -> Result<(String, S::File, u64), CommitError> {
        let bytes = least.max(self.options.segment_bytes);
        let spare = match least <= self.options.segment_bytes {
            true => self.spares.pop(),
            false => None,
        };
        let made = match spare {
            Some(spare) => Ok(Some(spare)),
            None => self.make_file(bytes),
        };
        match made {
            Ok(Some((name, file))) => Ok((name, file, bytes)),
            Ok(None) => Err(CommitError::Full),
            Err(error) => Err(CommitError::Failed(error)),
        }
    }
}

pub fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
