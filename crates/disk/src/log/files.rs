//! The files of a log, and the room that they may take.
//!
//! Invariant: two files wait to become the next segments, as far as there is room, so that a full disk shows while there is room yet.

use std::io;

use crate::scan::spare_name;
use crate::storage::Storage;

/// Files that wait to become segments.
const SPARES: usize = 2;

/// How a log is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes that all files may have together.
    pub bytes_max: u64,
    /// The log begins with this segment. Earlier ones are left of a removal; they are removed without being read.
    pub first_segment: u64,
}

impl Default for Options {
    /// Segments of 64 MiB, as much as the file system has room for.
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            bytes_max: u64::MAX,
            first_segment: 1,
        }
    }
}

/// Why a group was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// There is no room, on the file system or below `bytes_max`. Nothing was written: the same group can be tried again.
    #[error("there is no room for another segment of the log")]
    Full,
    /// A write or a sync failed. It is not known how much of the group is on disk, and the log takes nothing more.
    #[error("the log cannot be written: {0}")]
    Failed(io::Error),
}

/// The files of a log, and the room that they may take.
pub struct Files<S: Storage> {
    pub storage: S,
    pub options: Options,
    /// Files of `segment_bytes` that wait, with their names.
    pub spares: Vec<(String, S::File)>,
    pub spares_made: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of other files, which count as well.
    pub beside: u64,
    /// Bytes of the file system that are to stay free, and as many more as are written from the second number on.
    pub reserve: (u64, u64),
    /// Bytes that were written.
    pub written: u64,
    /// Bytes of the file system that were free when files were made last.
    pub free_bytes: u64,
    /// No files wait any more.
    pub released: bool,
}

impl<S: Storage> Files<S> {
    pub fn is_prepared(&self) -> bool {
        self.spares.len() >= SPARES || self.released
    }

    /// Bytes of the file system that are free beyond the reserve.
    pub fn beyond_reserve(&self) -> u64 {
        self.free_bytes.saturating_sub(self.reserve())
    }

    fn reserve(&self) -> u64 {
        let (bytes, from) = self.reserve;
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
        Ok(has_room && self.free_bytes >= self.reserve())
    }

    /// A new file of this length, if there is room for it.
    pub fn make_file(&mut self, bytes: u64) -> io::Result<Option<(String, S::File)>> {
        let taken = self.bytes.saturating_add(self.beside);
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
                // Something that is none of ours, and was left alone.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if is_want_of_room(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// A file of at least this length, with its name and length.
    pub fn blank(&mut self, least: u64) -> Result<(String, S::File, u64), CommitError> {
        let bytes = least.max(self.options.segment_bytes);
        let spare = match least <= self.options.segment_bytes {
            true => self.spares.pop(),
            // One batch may be longer than a segment.
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

pub fn is_want_of_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
