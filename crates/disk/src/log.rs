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
    BATCH_HEADER_BYTES, DATA_BEGIN, GROUP_HEADER_BYTES, Group, Identity, SegmentHeader, group_bytes,
};
use crate::mark::{self, MarkFile};
use crate::planted::{self, Fault};
use crate::scan::{
    ScanEnd, ScanError, ScanEvent, ScanSummary, is_spare, scan_to_end, segment_name, segment_number,
};
use crate::storage::{File, Storage};
pub(crate) use files::Reserve;
pub use files::{CommitError, Options};
use files::{Files, is_disk_full};

/// The maximum size of a group. Writing this many bytes takes a few milliseconds. A single longer batch becomes a group of its own.
const GROUP_BYTES_MAX: u64 = 8 << 20;
/// If at most 1/16 of a segment is left, the next group may be larger than this rest. It then goes to the next segment.
const SMALL_REST_DIVISOR: u64 = 16;

/// Zeros that are written ahead of the groups. The first write to an allocated but unwritten block changes metadata, which the next sync
/// must write too: such a sync took three times as long. Fewer zeros would save less. With more zeros, a publish would wait for them longer
/// than a few milliseconds.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
/// After a group larger than 1/4 of `ZEROS` no zeros are written, because they would save nothing.
const ZEROS_DIVISOR: usize = 4;

/// The end of a log. A checkpoint stores this value to record which groups it contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
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
    pub last_sealed: u64,
    /// Bytes of the files of all sealed segments.
    pub sealed_bytes: u64,
    /// Bytes of the groups in the open segment.
    pub open_bytes: u64,
    /// Bytes of the groups written since the log was opened.
    pub written_bytes: u64,
}

/// The segment to which groups are written.
struct Segment<F> {
    file: F,
    header: SegmentHeader,
    /// The offset of the next group.
    offset: u64,
    /// All bytes before this offset have been written, as groups or zeros.
    zeroed_end: u64,
}

/// A segment to which nothing is written any more.
#[derive(Clone, Copy)]
struct SealedSegment {
    number: u64,
    /// Bytes of its file.
    bytes: u64,
}

/// The data about earlier groups that the next group's header contains.
struct LogTail {
    next_group: u64,
    /// Number of batches in all groups.
    batches: u64,
    /// The checksum of the last group.
    last_crc: u32,
}

/// A log that is open for writing.
pub struct Log<S: Storage> {
    files: Files<S>,
    identity: Identity,
    segment: Option<Segment<S::File>>,
    sealed: VecDeque<SealedSegment>,
    /// The number of the newest segment.
    newest_segment: u64,
    tail: LogTail,
    /// The file that records where the log ends (see `mark`). `None` if there was no space for it.
    mark_file: Option<MarkFile<S::File>>,
    /// The end of the log was lost, and no checkpoint of the rest has been written yet.
    end_is_lost: bool,
    /// The buffer for the group being written.
    group: Vec<u8>,
    /// A write or a sync has failed.
    has_failed: bool,
}

impl<S: Storage> Log<S> {
    /// Reads the log in this storage and continues it. If there is no log, creates one with `new_identity`. Passes each batch and each
    /// loss to `on_event`, in order. Removes segments before [`Options::first_segment`] without reading them.
    ///
    /// # Errors
    /// If a file cannot be read or has a format that this build does not know; then nothing was changed. Also if the disk fails while the
    /// log is prepared for writing.
    pub fn open(
        storage: S,
        options: Options,
        new_identity: Identity,
        on_event: impl FnMut(ScanEvent<'_>),
    ) -> Result<(Log<S>, ScanSummary), ScanError> {
        let first = (!planted::is_on(Fault::Returned)).then_some(options.first_segment);
        let (recovered, end) = scan_to_end(&storage, (first, None), on_event)?;
        let is_lost_end = |damage: &Damage| damage.kind == DamageKind::End;
        let end_is_lost = recovered.damages.iter().any(is_lost_end);
        let failed = |name: &str, error| ScanError::Io(name.to_string(), error);
        let mut log = Log {
            files: Files {
                storage,
                options,
                spares: Vec::new(),
                last_spare: 0,
                bytes: 0,
                other_bytes: 0,
                reserve: Reserve::default(),
                written_bytes: 0,
                free_bytes: u64::MAX,
                spares_removed: false,
            },
            identity: recovered.identity.unwrap_or(new_identity),
            segment: None,
            sealed: VecDeque::new(),
            newest_segment: options.first_segment.max(1) - 1,
            tail: LogTail {
                next_group: 1,
                batches: 0,
                last_crc: 0,
            },
            mark_file: None,
            end_is_lost,
            group: Vec::new(),
            has_failed: false,
        };
        let entries = log
            .files
            .storage
            .list()
            .map_err(|error| failed("the directory", error))?;
        for entry in entries {
            match segment_number(&entry.name) {
                Some(number) if number >= options.first_segment => {
                    log.files.bytes += entry.bytes;
                    log.sealed.push_back(SealedSegment {
                        number,
                        bytes: entry.bytes,
                    });
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
        let sealed = log.sealed.make_contiguous();
        sealed.sort_unstable_by_key(|segment| segment.number);
        match end {
            Some(end) => log.resume(end)?,
            None if recovered.is_replaced_by_checkpoint => {
                log.tail.next_group = options.checkpoint_group + 1
            }
            None => {}
        }
        let marked = match log.end_is_lost {
            true => log.write_mark(mark::END_IS_LOST, mark::END_IS_LOST),
            false => log.write_end_mark(),
        };
        marked.map_err(|error| failed(mark::FILE_NAME, error))?;
        // If this fails, the first commit tries again.
        let _ = log.files.make_spares();
        Ok((log, recovered))
    }

    /// Writes the end of the log to the mark, so that a later start notices if the log has become shorter. The caller must have synced
    /// everything. A lost end stays marked as lost.
    ///
    /// # Errors
    /// Errors of the disk. After an error the log must not be written any more.
    pub(crate) fn write_end_mark(&mut self) -> io::Result<()> {
        match self.end_is_lost {
            true => Ok(()),
            false => match self.write_mark(self.newest_segment, self.tail.next_group - 1) {
                // A copy-on-write file system needs free space even to overwrite. The previous mark is older, but still true.
                Err(error) if is_disk_full(&error) => Ok(()),
                marked => marked,
            },
        }
    }

    fn write_mark(&mut self, segment: u64, group: u64) -> io::Result<()> {
        if self.mark_file.is_none() {
            self.mark_file = match MarkFile::open(&self.files.storage) {
                Ok(file) => Some(file),
                Err(error) if is_disk_full(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        let log = self.identity.log;
        self.mark_file
            .as_mut()
            .map_or(Ok(()), |mark| mark.write(log, segment, group))
    }

    /// Continues after the last group of the last segment. After a kill between a write and its sync, or after a failed sync, this group
    /// may be only in the kernel's memory. So it is written again, and everything is synced.
    fn resume(&mut self, end: ScanEnd) -> Result<(), ScanError> {
        (self.newest_segment, self.tail.next_group) = (end.segment, end.next_group);
        self.tail.batches = end.batches;
        if !planted::is_on(Fault::NoChain) {
            self.tail.last_crc = end.crc;
        }
        let name = segment_name(end.segment);
        let failed = |error| ScanError::Io(name.clone(), error);
        // A new segment begins if the header of the last one is damaged, or if the end of the log is lost.
        if let Some(header) = end.header {
            let file = self.files.storage.open(&name).map_err(failed)?;
            let mut last_group = vec![0; (end.next_offset - end.last_group_offset) as usize];
            file.read_at(&mut last_group, end.last_group_offset)
                .map_err(failed)?;
            file.write_at(&last_group, end.last_group_offset)
                .map_err(failed)?;
            file.sync().map_err(failed)?;
            self.segment = Some(Segment {
                file,
                header,
                offset: end.next_offset,
                zeroed_end: end.next_offset,
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
        self.begin_segment_for(0)
    }

    /// Seals the open segment, if there is one. This needs no disk space, because only the next commit begins a new segment.
    pub fn seal(&mut self) {
        let open = self.segment.take();
        self.sealed.extend(open.map(|open| SealedSegment {
            number: open.header.number,
            bytes: open.header.bytes,
        }));
    }

    /// The end of the log.
    pub fn end(&self) -> LogEnd {
        LogEnd {
            segment: self.newest_segment + u64::from(self.segment.is_none()),
            group: self.tail.next_group - 1,
        }
    }

    /// The numbers that all segments have in common.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The space that the log occupies.
    pub fn usage(&self) -> LogUsage {
        LogUsage {
            bytes: self.files.bytes,
            last_sealed: self.newest_segment - u64::from(self.segment.is_some()),
            sealed_bytes: self.sealed.iter().map(|segment| segment.bytes).sum(),
            open_bytes: (self.segment.as_ref()).map_or(0, |open| open.offset - DATA_BEGIN),
            written_bytes: self.files.written_bytes,
        }
    }

    /// The number of the oldest segment. If there is none, the number of the next one.
    pub(crate) fn first_segment(&self) -> u64 {
        let oldest = self.sealed.front();
        oldest.map_or(self.end().segment, |segment| segment.number)
    }

    /// Sets the size of the caller's other files, which counts towards [`Options::bytes_max`].
    pub fn set_other_bytes(&mut self, bytes: u64) {
        self.files.other_bytes = bytes;
    }

    /// Sets how much of the file system stays free for a checkpoint: `bytes`, plus the bytes written since [`LogUsage::written_bytes`] was
    /// `since_written`; see [`make_spares`](Self::make_spares).
    pub fn reserve(&mut self, bytes: u64, since_written: u64) {
        self.files.reserve = Reserve {
            bytes,
            since_written,
        };
    }

    /// Removes the spare files. No new ones are made.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn remove_spares(&mut self) -> io::Result<()> {
        self.files.remove_spares()
    }

    /// Removes the sealed segments before this one. Removed segments may reappear after a power cut, so a checkpoint on disk must contain
    /// their batches and the number of the first segment that is left. After the removal a lost end is no longer reported.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn remove_before(&mut self, segment: u64) -> io::Result<()> {
        while let Some(SealedSegment { number, bytes }) = self.sealed.front().copied()
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
        self.write_end_mark()
    }

    /// Bytes of groups that can be committed for certain, even if other programs fill the disk.
    pub fn guaranteed_bytes(&self) -> u64 {
        let spare = self.files.options.segment_bytes - DATA_BEGIN;
        self.open_room_bytes() + self.files.spares.len() as u64 * spare
    }

    /// Bytes of groups for which the open segment has room.
    fn open_room_bytes(&self) -> u64 {
        self.segment.as_ref().map_or(0, Segment::room_bytes)
    }

    /// [`Options::bytes_max`].
    pub(crate) fn bytes_max(&self) -> u64 {
        self.files.options.bytes_max
    }

    /// Bytes that can be written before there is no space for another spare file, in [`Options::bytes_max`] and in the file system.
    pub(crate) fn free_bytes(&self) -> u64 {
        // The full size of the next spare file is used as soon as a spare file becomes a segment.
        self.bytes_max()
            .saturating_sub(self.files.used_bytes())
            .min(self.files.free_beyond_reserve())
            .saturating_sub(self.files.options.segment_bytes)
            .saturating_add(self.open_room_bytes())
    }

    /// The maximum size of the batches of the next group, counted with [`bytes_in_group`].
    pub(crate) fn next_group_bytes_max(&self) -> usize {
        let whole_segment = self.files.options.segment_bytes - DATA_BEGIN;
        let room = match self.open_room_bytes() {
            rest if rest > whole_segment / SMALL_REST_DIVISOR => rest,
            _ => whole_segment,
        };
        (room.min(GROUP_BYTES_MAX) as usize).saturating_sub(GROUP_HEADER_BYTES)
    }

    /// Whether all spare files exist, or were removed for good.
    pub fn has_spares(&self) -> bool {
        self.files.has_spares()
    }

    /// Makes the missing spare files, as far as there is space. Returns whether all spare files exist and the reserve of the file system is
    /// free.
    ///
    /// # Errors
    /// If a file cannot be made for a reason other than lack of space. The log can still use its existing files.
    pub fn make_spares(&mut self) -> io::Result<bool> {
        self.files.make_spares()
    }

    /// Writes and syncs the batches as one group. Once this returns, they survive a power cut.
    ///
    /// # Errors
    /// [`CommitError::Full`]: the log has not changed. [`CommitError::Failed`]: the log accepts nothing more.
    pub fn commit<'a>(
        &mut self,
        batches: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), CommitError> {
        if self.has_failed {
            return Err(CommitError::Failed(io::Error::other(
                "an earlier write or sync of the log has failed",
            )));
        }
        Group::begin(&mut self.group);
        let (header_bytes, mut count) = (self.group.len(), 0);
        for batch in batches {
            Group::push(&mut self.group, batch);
            count += 1;
        }
        if self.group.len() == header_bytes {
            return Ok(());
        }
        let needed = group_bytes(self.group.len() - header_bytes);
        if (self.segment.as_ref()).is_none_or(|segment| segment.room_bytes() < needed) {
            self.begin_segment_for(needed)?;
        }
        let segment = self.segment.as_mut().expect("there is one now");
        let salts = segment.header.salts();
        let crc = Group::seal(
            &mut self.group,
            self.tail.next_group,
            self.tail.batches,
            self.tail.last_crc,
            salts,
        );
        let written = segment.write(&self.group);
        let synced = written.and_then(|()| match planted::is_on(Fault::NoSync) {
            true => Ok(()),
            false => segment.file.sync(),
        });
        if let Err(error) = synced {
            self.has_failed = true;
            return Err(CommitError::Failed(error));
        }
        segment.offset += self.group.len() as u64;
        self.files.written_bytes += self.group.len() as u64;
        (self.tail.next_group, self.tail.last_crc) = (self.tail.next_group + 1, crc);
        self.tail.batches += count;
        Ok(())
    }

    /// Begins the next segment, with space for a group of `needed` bytes.
    fn begin_segment_for(&mut self, needed: u64) -> Result<(), CommitError> {
        let file = self.files.take_file(DATA_BEGIN + needed);
        self.has_failed |= matches!(file, Err(CommitError::Failed(_)));
        let (name, file, bytes) = file?;
        let number = self.newest_segment + 1;
        let header = SegmentHeader {
            salt: self.salt(number),
            number,
            first_group: self.tail.next_group,
            previous_crc: self.tail.last_crc,
            bytes,
            identity: self.identity,
        };
        let written = file.write_at(&header.encode(), 0);
        let synced = written.and_then(|()| file.sync());
        let named = synced.and_then(|()| self.files.storage.rename(&name, &segment_name(number)));
        let named = named.and_then(|()| self.files.storage.sync_names());
        self.newest_segment = number;
        if let Err(error) = named.and_then(|()| self.write_end_mark()) {
            self.has_failed = true;
            return Err(CommitError::Failed(error));
        }
        self.seal();
        self.segment = Some(Segment {
            file,
            header,
            offset: DATA_BEGIN,
            zeroed_end: DATA_BEGIN,
        });
        Ok(())
    }

    /// The seed of the checksums of a segment. Different segments, also of other logs, almost certainly have different seeds.
    fn salt(&self, number: u64) -> u32 {
        let mut seed = self.identity.log.to_le_bytes().to_vec();
        if !planted::is_on(Fault::Recycled) {
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
        if end > self.zeroed_end && group.len() <= ZEROS.len() / ZEROS_DIVISOR {
            let room = self.header.bytes.saturating_sub(end);
            let zeros = room.min(ZEROS.len() as u64);
            self.file.write_at(&ZEROS[..zeros as usize], end)?;
            self.zeroed_end = end + zeros;
        }
        Ok(())
    }
}

/// Bytes that a batch of this length adds to its group.
pub(crate) fn bytes_in_group(batch_bytes: usize) -> usize {
    BATCH_HEADER_BYTES + batch_bytes
}
