//! The log: appends groups of batches to the newest segment, with one sync for each group.
//!
//! Invariants:
//! * A segment's header is on disk before its file is renamed to the segment's name.
//! * Before the first group of a segment is written, the segment's name and all groups of the previous segment are on disk.

mod files;

use std::collections::VecDeque;
use std::io;

use crate::damage::{Damage, DamageKind};
use crate::format::{
    BATCH_HEADER, DATA_BEGIN, GROUP_HEADER, Group, Identity, SegmentHeader, occupied,
};
use crate::mark::{self, MarkFile};
use crate::planted::{self, Fault};
use crate::scan::{
    Recovered, ScanEnd, ScanError, ScanEvent, is_spare, number_of, scan_to_end, segment_name,
};
use crate::storage::{File, Storage};
pub(crate) use files::Reserve;
pub use files::{CommitError, Options};
use files::{Files, is_disk_full};

/// The maximum size of a group. Writing this many bytes takes a few milliseconds. A single longer batch becomes a group of its own.
const GROUP_BYTES_MAX: u64 = 8 << 20;
/// If at most 1/16 of a segment is left, the next group may be larger than this rest. It then goes to the next segment.
const REST_PART: u64 = 16;

/// Zeros that are written ahead of the groups. The first write to an allocated but unwritten block changes metadata, which the next sync
/// must write too: such a sync took three times as long. Fewer zeros would save less. With more zeros, a publish would wait for them longer
/// than a few milliseconds.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
/// After a group larger than 1/4 of `ZEROS` no zeros are written, because they would save nothing.
const ZEROS_PART: usize = 4;

/// The end of a log. A checkpoint stores this value to record which groups it contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The first segment that can still get groups: the open segment, or the next one if none is open. A checkpoint of the whole log
    /// replaces all earlier segments.
    pub segment: u64,
    /// The number of the log's last group; 0 if it has none.
    pub group: u64,
}

/// The space that a log occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes of all files.
    pub bytes: u64,
    /// The number of the last sealed segment, which is never written again; 0 if there is none.
    pub sealed: u64,
    /// Bytes of the files of all sealed segments.
    pub sealed_bytes: u64,
    /// Bytes of the groups in the open segment.
    pub open_bytes: u64,
    /// Bytes of the groups written since the log was opened.
    pub written: u64,
}

/// The segment to which groups are written.
struct Segment<F> {
    file: F,
    header: SegmentHeader,
    /// The offset of the next group.
    offset: u64,
    /// All bytes before this offset were written once, as groups or zeros.
    zeroed: u64,
}

/// The data about earlier groups that the next group's header contains.
struct GroupTail {
    next_group: u64,
    /// Number of batches in all groups.
    batches: u64,
    /// The checksum of the last group.
    crc: u32,
}

/// A log that is open for writing.
pub struct Log<S: Storage> {
    files: Files<S>,
    identity: Identity,
    segment: Option<Segment<S::File>>,
    /// The sealed segments, with the bytes of their files.
    sealed: VecDeque<(u64, u64)>,
    /// The number of the newest segment.
    segments: u64,
    tail: GroupTail,
    /// The file that records where the log ends (see `mark`). `None` if there was no space for it.
    mark: Option<MarkFile<S::File>>,
    /// The end of the log was lost, and no checkpoint of the rest has been written yet.
    end_is_lost: bool,
    /// The buffer for the group being written.
    group: Vec<u8>,
    /// A write or a sync has failed.
    failed: bool,
}

impl<S: Storage> Log<S> {
    /// Reads the log in this storage and continues it. If there is no log, creates one with the identity `new`. Passes each batch and each
    /// loss to `each`, in order. Removes segments before [`Options::first_segment`] without reading them.
    ///
    /// # Errors
    /// If a file cannot be read or has a format that this build does not know; then nothing was changed. Also if the disk fails while the
    /// log is prepared for writing.
    pub fn open(
        storage: S,
        options: Options,
        new: Identity,
        each: impl FnMut(ScanEvent<'_>),
    ) -> Result<(Log<S>, Recovered), ScanError> {
        let first = (!planted::is(Fault::Returned)).then_some(options.first_segment);
        let (found, end) = scan_to_end(&storage, (first, None), each)?;
        let is_lost = |damage: &Damage| damage.kind == DamageKind::End;
        let end_is_lost = found.damages.iter().any(is_lost);
        let failed = |name: &str, error| ScanError::Io(name.to_string(), error);
        let mut log = Log {
            files: Files {
                storage,
                options,
                spares: Vec::new(),
                spares_made: 0,
                bytes: 0,
                other_bytes: 0,
                reserve: Reserve::default(),
                written: 0,
                free_bytes: u64::MAX,
                released: false,
            },
            identity: found.identity.unwrap_or(new),
            segment: None,
            sealed: VecDeque::new(),
            segments: options.first_segment.max(1) - 1,
            tail: GroupTail {
                next_group: 1,
                batches: 0,
                crc: 0,
            },
            mark: None,
            end_is_lost,
            group: Vec::new(),
            failed: false,
        };
        let entries = log
            .files
            .storage
            .list()
            .map_err(|error| failed("the directory", error))?;
        for entry in entries {
            match number_of(&entry.name) {
                Some(number) if number >= options.first_segment => {
                    log.files.bytes += entry.bytes;
                    log.sealed.push_back((number, entry.bytes));
                }
                // Symbolic links, directories and devices are not removed.
                _ if !entry.is_file => {}
                None if !is_spare(&entry.name) => {}
                Some(_) | None => {
                    let removed = log.files.storage.remove(&entry.name);
                    removed.map_err(|error| failed(&entry.name, error))?;
                }
            }
        }
        log.sealed.make_contiguous().sort_unstable();
        match end {
            Some(end) => log.resume(end)?,
            None if found.is_replaced => log.tail.next_group = options.checkpoint_group + 1,
            None => {}
        }
        let marked = match log.end_is_lost {
            true => log.mark(mark::LOST, mark::LOST),
            false => log.mark_end(),
        };
        marked.map_err(|error| failed(mark::NAME, error))?;
        // If this fails, the first commit tries again.
        let _ = log.files.prepare();
        Ok((log, found))
    }

    /// Records the end in the mark, so that a later start notices if the log has become shorter. The caller must have synced everything. A
    /// lost end stays marked as lost.
    ///
    /// # Errors
    /// Errors of the disk. After an error the log must not be written any more.
    pub(crate) fn mark_end(&mut self) -> io::Result<()> {
        match self.end_is_lost {
            true => Ok(()),
            false => match self.mark(self.segments, self.tail.next_group - 1) {
                // A copy-on-write file system needs free space even to overwrite. The previous mark is older, but still true.
                Err(error) if is_disk_full(&error) => Ok(()),
                marked => marked,
            },
        }
    }

    fn mark(&mut self, segment: u64, group: u64) -> io::Result<()> {
        if self.mark.is_none() {
            self.mark = match MarkFile::open(&self.files.storage) {
                Ok(file) => Some(file),
                Err(error) if is_disk_full(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        let log = self.identity.log;
        self.mark
            .as_mut()
            .map_or(Ok(()), |mark| mark.write(log, segment, group))
    }

    /// Continues after the last group of the last segment. After a kill between a write and its sync, or after a failed sync, this group
    /// may be only in the kernel's memory. So it is written again, and everything is synced.
    fn resume(&mut self, end: ScanEnd) -> Result<(), ScanError> {
        (self.segments, self.tail.next_group) = (end.segment, end.next_group);
        self.tail.batches = end.batches;
        if !planted::is(Fault::NoChain) {
            self.tail.crc = end.crc;
        }
        let name = segment_name(end.segment);
        let failed = |error| ScanError::Io(name.clone(), error);
        // A new segment begins if the header of the last one is damaged, or if the end of the log is lost.
        if let Some(header) = end.header {
            let file = self.files.storage.open(&name).map_err(failed)?;
            let mut last = vec![0; (end.offset - end.last) as usize];
            file.read_at(&mut last, end.last).map_err(failed)?;
            file.write_at(&last, end.last).map_err(failed)?;
            file.sync().map_err(failed)?;
            self.segment = Some(Segment {
                file,
                header,
                offset: end.offset,
                zeroed: end.offset,
            });
            self.sealed.pop_back();
        }
        self.files.storage.sync_names().map_err(failed)
    }

    /// Begins a new segment. The caller can then remove the earlier segments, once a checkpoint contains their batches.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn begin_segment(&mut self) -> Result<(), CommitError> {
        self.next_segment(0)
    }

    /// Seals the open segment, if there is one. This needs no disk space, because only the next commit begins a new segment.
    pub fn seal(&mut self) {
        let open = self.segment.take();
        let sealed = open.map(|open| (open.header.number, open.header.bytes));
        self.sealed.extend(sealed);
    }

    /// The end of the log.
    pub fn end(&self) -> End {
        End {
            segment: self.segments + u64::from(self.segment.is_none()),
            group: self.tail.next_group - 1,
        }
    }

    /// The numbers that all segments have in common.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The space that the log occupies.
    pub fn figures(&self) -> LogUsage {
        LogUsage {
            bytes: self.files.bytes,
            sealed: self.segments - u64::from(self.segment.is_some()),
            sealed_bytes: self.sealed.iter().map(|(_, bytes)| bytes).sum(),
            open_bytes: (self.segment.as_ref()).map_or(0, |open| open.offset - DATA_BEGIN),
            written: self.files.written,
        }
    }

    /// The number of the oldest segment. If there is none, the number of the next one.
    pub(crate) fn first_segment(&self) -> u64 {
        let sealed = self.sealed.front().map(|(number, _)| *number);
        sealed.unwrap_or(self.end().segment)
    }

    /// Sets the size of the caller's other files, which counts towards [`Options::bytes_max`].
    pub fn set_other_bytes(&mut self, bytes: u64) {
        self.files.other_bytes = bytes;
    }

    /// Sets how much of the file system stays free for a checkpoint: `bytes`, plus the bytes written since [`LogUsage::written`] was
    /// `from`; see [`prepare`](Self::prepare).
    pub fn reserve(&mut self, bytes: u64, from: u64) {
        self.files.reserve = Reserve { bytes, from };
    }

    /// Removes the spare files. No new ones are made.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        self.files.release()
    }

    /// Removes the sealed segments before this one. Removed segments may reappear after a power cut, so a checkpoint on disk must contain
    /// their batches and the number of the first segment that is left. After the removal a lost end is no longer reported.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn remove_before(&mut self, segment: u64) -> io::Result<()> {
        while let Some((number, bytes)) = self.sealed.front().copied()
            && number < segment
        {
            match self.files.storage.remove(&segment_name(number)) {
                // Another program has already removed the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
            self.sealed.pop_front();
            self.files.bytes -= bytes;
        }
        self.end_is_lost = false;
        self.mark_end()
    }

    /// Bytes of groups that can be committed for certain, even if other programs fill the disk.
    pub fn room_bytes(&self) -> u64 {
        let here = self.segment.as_ref().map_or(0, Segment::room_bytes);
        let spare = self.files.options.segment_bytes - DATA_BEGIN;
        here + self.files.spares.len() as u64 * spare
    }

    /// Returns two numbers: the bytes that can be written before there is no space for another spare file (in [`Options::bytes_max`] and in
    /// the file system), and `bytes_max`.
    pub(crate) fn free_bytes(&self) -> (u64, u64) {
        let Options {
            bytes_max,
            segment_bytes,
            ..
        } = self.files.options;
        let taken = self.files.bytes.saturating_add(self.files.other_bytes);
        // The full size of the next spare file is taken as soon as a spare file becomes a segment.
        let more = bytes_max
            .saturating_sub(taken)
            .min(self.files.beyond_reserve())
            .saturating_sub(segment_bytes);
        let here = self.segment.as_ref().map_or(0, Segment::room_bytes);
        (more.saturating_add(here), bytes_max)
    }

    /// The maximum size of the batches of the next group, counted with [`bytes_in_group`].
    pub(crate) fn group_bytes(&self) -> usize {
        let whole = self.files.options.segment_bytes - DATA_BEGIN;
        let here = self.segment.as_ref().map_or(0, Segment::room_bytes);
        let room = if here > whole / REST_PART {
            here
        } else {
            whole
        };
        (room.min(GROUP_BYTES_MAX) as usize).saturating_sub(GROUP_HEADER)
    }

    /// Whether all spare files exist.
    pub fn is_prepared(&self) -> bool {
        self.files.is_prepared()
    }

    /// Makes the missing spare files, as far as there is space. Returns whether all spare files exist and the reserve of the file system is
    /// free.
    ///
    /// # Errors
    /// If a file cannot be made for a reason other than lack of space. The log can still use its existing files.
    pub fn prepare(&mut self) -> io::Result<bool> {
        self.files.prepare()
    }

    /// Writes and syncs the batches as one group. Once this returns, they survive a power cut.
    ///
    /// # Errors
    /// [`CommitError::Full`]: the log has not changed. [`CommitError::Failed`]: the log accepts nothing more.
    pub fn commit<'a>(
        &mut self,
        batches: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), CommitError> {
        if self.failed {
            return Err(CommitError::Failed(io::Error::other(
                "an earlier write or sync of the log has failed",
            )));
        }
        Group::begin(&mut self.group);
        let (empty, mut count) = (self.group.len(), 0);
        for batch in batches {
            Group::push(&mut self.group, batch);
            count += 1;
        }
        if self.group.len() == empty {
            return Ok(());
        }
        let needed = occupied(self.group.len() - empty);
        if (self.segment.as_ref()).is_none_or(|segment| segment.room_bytes() < needed) {
            self.next_segment(needed)?;
        }
        let segment = self.segment.as_mut().expect("there is one now");
        let salts = segment.header.salts();
        let crc = Group::seal(
            &mut self.group,
            self.tail.next_group,
            self.tail.batches,
            self.tail.crc,
            salts,
        );
        let written = segment.write(&self.group);
        let synced = written.and_then(|()| match planted::is(Fault::NoSync) {
            true => Ok(()),
            false => segment.file.sync(),
        });
        if let Err(error) = synced {
            self.failed = true;
            return Err(CommitError::Failed(error));
        }
        segment.offset += self.group.len() as u64;
        self.files.written += self.group.len() as u64;
        (self.tail.next_group, self.tail.crc) = (self.tail.next_group + 1, crc);
        self.tail.batches += count;
        Ok(())
    }

    /// Begins the next segment, with space for a group of `needed` bytes.
    fn next_segment(&mut self, needed: u64) -> Result<(), CommitError> {
        let blank = self.files.blank(DATA_BEGIN + needed);
        self.failed |= matches!(blank, Err(CommitError::Failed(_)));
        let (name, file, bytes) = blank?;
        let number = self.segments + 1;
        let header = SegmentHeader {
            salt: self.salt(number),
            number,
            first_group: self.tail.next_group,
            previous_crc: self.tail.crc,
            bytes,
            identity: self.identity,
        };
        let written = file.write_at(&header.encode(), 0);
        let synced = written.and_then(|()| file.sync());
        let named = synced.and_then(|()| self.files.storage.rename(&name, &segment_name(number)));
        let named = named.and_then(|()| self.files.storage.sync_names());
        self.segments = number;
        if let Err(error) = named.and_then(|()| self.mark_end()) {
            self.failed = true;
            return Err(CommitError::Failed(error));
        }
        self.seal();
        self.segment = Some(Segment {
            file,
            header,
            offset: DATA_BEGIN,
            zeroed: DATA_BEGIN,
        });
        Ok(())
    }

    /// The seed of the checksums of a segment. Different segments, also of other logs, almost certainly have different seeds.
    fn salt(&self, number: u64) -> u32 {
        let mut seed = self.identity.log.to_le_bytes().to_vec();
        if !planted::is(Fault::Recycled) {
            seed.extend_from_slice(&number.to_le_bytes());
        }
        crc32c::crc32c(&seed)
    }
}

impl<F> Segment<F> {
    fn room_bytes(&self) -> u64 {
        self.header.bytes.saturating_sub(self.offset)
    }
}

impl<F: File> Segment<F> {
    /// Appends a group, and writes more zeros ahead of it when the earlier zeros are used up.
    fn write(&mut self, group: &[u8]) -> io::Result<()> {
        self.file.write_at(group, self.offset)?;
        let end = self.offset + group.len() as u64;
        if end > self.zeroed && group.len() <= ZEROS.len() / ZEROS_PART {
            let room = self.header.bytes.saturating_sub(end);
            let zeros = room.min(ZEROS.len() as u64);
            self.file.write_at(&ZEROS[..zeros as usize], end)?;
            self.zeroed = end + zeros;
        }
        Ok(())
    }
}

/// Bytes that a batch of this length adds to its group.
pub(crate) fn bytes_in_group(batch: usize) -> usize {
    BATCH_HEADER + batch
}
