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
    /// The value of [`Files::written_bytes`] when `bytes` was computed. All bytes written since then are added to `bytes`.
    pub since_written: u64,
}

pub struct Files<S: Storage> {
    pub storage: S,
    pub options: Options,
    /// The spare files, of `segment_bytes` each, with their names.
    pub spares: Vec<(String, S::File)>,
    /// The number in the name of the newest spare file.
    pub last_spare: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of other files that count towards `bytes_max`.
    pub other_bytes: u64,
    /// Bytes of the file system that the log keeps free for a checkpoint.
    pub reserve: Reserve,
    /// Bytes of groups written since the log was opened.
    pub written_bytes: u64,
    /// Free bytes of the file system at the last call of `make_spares`.
    pub free_bytes: u64,
    /// The spare files were removed for the final checkpoint, so no new ones may be made.
    pub spares_removed: bool,
}

impl<S: Storage> Files<S> {
    pub fn has_spares(&self) -> bool {
        self.spares.len() >= SPARES || self.spares_removed
    }

    /// Free bytes of the file system beyond the reserve.
    pub fn free_beyond_reserve(&self) -> u64 {
        self.free_bytes.saturating_sub(self.reserve_bytes())
    }

    fn reserve_bytes(&self) -> u64 {
        let Reserve {
            bytes,
            since_written,
        } = self.reserve;
        bytes.saturating_add(self.written_bytes.saturating_sub(since_written))
    }

    pub fn remove_spares(&mut self) -> io::Result<()> {
        self.spares_removed = true;
        for (name, _) in self.spares.drain(..) {
            self.storage.remove(&name)?;
            self.bytes -= self.options.segment_bytes;
        }
        Ok(())
    }

    pub fn make_spares(&mut self) -> io::Result<bool> {
        let mut has_room = true;
        while has_room && !self.has_spares() {
            let made = self.make_file(self.options.segment_bytes)?;
            has_room = made.is_some();
            self.spares.extend(made);
        }
        self.free_bytes = self.storage.free_bytes()?;
        Ok(has_room && self.free_bytes >= self.reserve_bytes())
    }

    /// Bytes that count towards `bytes_max`.
    pub fn used_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.other_bytes)
    }

    /// Makes a file that has the name of a spare file; `None` if there is no space.
    fn make_file(&mut self, bytes: u64) -> io::Result<Option<(String, S::File)>> {
        if self.used_bytes().saturating_add(bytes) > self.options.bytes_max {
            return Ok(None);
        }
        loop {
            self.last_spare += 1;
            let name = spare_name(self.last_spare);
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

    /// Takes a spare file, or makes a file if a spare one is shorter than `bytes_min`. Returns its name, the file and its length.
    pub fn take_file(&mut self, bytes_min: u64) -> Result<(String, S::File, u64), CommitError> {
        let bytes = bytes_min.max(self.options.segment_bytes);
        let spare = match bytes_min <= self.options.segment_bytes {
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
