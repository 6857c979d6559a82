//! Reads a log: returns every batch in order, and reports every position at which batches were lost. A log is a sequence of segment files.
//! A segment contains groups. A group contains the batches that were written and synced together.
//!
//! A group with a wrong checksum has one of two causes:
//! * At the end of the log the group is *torn*: the power failed while it was written. None of its batches was acknowledged, so the scan
//!   ignores it, and the next group overwrites it.
//! * Anywhere else the group is *damaged*: it was intact once, because the next group was written only after this one was synced. The scan
//!   reports the damage between the batches before it and the batches after it.
//!
//! If the newest segment is deleted or truncated, the end of the log is lost. The scan notices this in two ways: the [mark] records
//! where the log ended, and the header of a segment records the length of the file.

use std::io;

use crate::damage::{Damage, DamageKind};
use crate::format::{
    ALIGNMENT, BATCH_HEADER_BYTES, DATA_BEGIN, GROUP_HEADER_BYTES, Group, HeaderError, Identity,
    PREVIOUS_CRC_OFFSET, Salts, SegmentHeader, VERSION,
};
use crate::mark::{self, EndMark};
use crate::planted::{self, Fault};
use crate::storage::{Entry, File, Storage};

/// The name of a segment's file is this prefix, ten digits, and [`SUFFIX`].
const PREFIX: &str = "segment-";
const SUFFIX: &str = ".log";
/// The name of a spare file is this prefix and a number. Spare files become the next segments.
const SPARE: &str = "spare-";

pub(crate) fn segment_name(number: u64) -> String {
    format!("{PREFIX}{number:010}{SUFFIX}")
}

/// The number of the segment whose file has this name; `None` if it is not the name of a segment's file.
pub fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let number = digits.parse().ok()?;
    ((1..u64::MAX).contains(&number) && segment_name(number) == name).then_some(number)
}

pub(crate) fn spare_name(number: u64) -> String {
    format!("{SPARE}{number}")
}

pub(crate) fn is_spare(name: &str) -> bool {
    let number = name.strip_prefix(SPARE).and_then(|it| it.parse().ok());
    number.is_some_and(|number| spare_name(number) == name)
}

/// Where a batch is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    /// The segment's number.
    pub segment: u64,
    /// The offset in the segment, in bytes, of the group that contains the batch.
    pub group_offset: u64,
    /// The group's number.
    pub group: u64,
    /// The offset of the batch in the segment, in bytes. The four bytes at this offset are the batch's length. The batch follows.
    pub batch_offset: u64,
}

/// What a scan finds, in the order of the log.
#[derive(Debug)]
pub enum ScanEvent<'a> {
    /// A batch.
    Batch(BatchPlace, &'a [u8]),
    /// A range of the log from which batches are missing, or may be missing.
    Damage(Damage),
}

/// A group that was being written when the power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornGroup {
    /// The segment that contains the group.
    pub segment: u64,
    /// The offset of the group in the segment, in bytes.
    pub offset: u64,
}

/// The result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// The identity of the log; `None` if no segment that was read has an intact header.
    pub identity: Option<Identity>,
    /// Number of segments read.
    pub segments: u64,
    /// Number of groups read.
    pub groups: u64,
    /// The number of the last group; 0 if the log has none.
    pub last_group: u64,
    /// Number of batches read.
    pub batches: u64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// The torn group at the end, if there is one.
    pub torn_group: Option<TornGroup>,
    /// The losses, in the order of the log.
    pub damages: Vec<Damage>,
    /// The log has no segment to read, but nothing is lost: a checkpoint replaces all segments before the first one to read, and the mark
    /// shows that the log ended in one of them.
    pub is_replaced_by_checkpoint: bool,
    /// Files in the directory that are not files of the log. The log does not touch them.
    pub foreign_files: Vec<String>,
}

/// Why a log cannot be read. The scan has changed nothing on disk.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Reading this file failed.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The segment has a format version that this build does not know.
    #[error(
        "{name} has version {found} of the log's format, and this program reads version {VERSION}: \
         start the version of crore that wrote it, or move the directory away to begin a new log"
    )]
    Version {
        /// The file.
        name: String,
        /// The version of the file's format.
        found: u32,
    },
    /// The segment belongs to another log than the segments before it.
    #[error(
        "{0} belongs to another log than the segments before it: move the files of one of the two logs away"
    )]
    OtherLog(String),
    /// A segment is a symbolic link, a directory or a device.
    #[error(
        "{0} is no ordinary file (a symbolic link, a directory or a device): move it away, and the file that it stands \
         for into its place"
    )]
    NotRegularFile(String),
}

/// The end of a log, with all that the writer of the next group needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanEnd {
    /// The header of the last segment. `None` if the header is damaged or the end of the log is lost. The log then continues in a new
    /// segment.
    pub header: Option<SegmentHeader>,
    /// Whether the segment's file is shorter than its header says.
    pub is_truncated: bool,
    /// The number of the last segment.
    pub segment: u64,
    /// The offset of the segment's last group. If the segment has no group: 0, the offset of the segment's header.
    pub last_group_offset: u64,
    /// The offset at which the next group will be written: after the last group, or after the header.
    pub next_offset: u64,
    pub next_group: u64,
    /// Number of batches in the log.
    pub batches: u64,
    /// The checksum of the last group.
    pub crc: u32,
}

/// Added to the count of batches if the number of lost batches is unknown. Each group stores the count of batches before it, and a real
/// count is never this high. So a later scan recognizes the sum and does not compute a number of lost batches from it.
const UNKNOWN_BATCHES: u64 = 1 << 40;

/// Reads the identity of the log in this storage from the first segment with an intact header.
///
/// # Errors
/// If a file cannot be read or has a format that this build does not know.
pub fn read_identity<S: Storage>(storage: &S) -> Result<Option<Identity>, ScanError> {
    let mut scan = Scan::new(|_| {});
    for number in scan.list_segments(storage, (None, None))? {
        if let Some(header) = scan.read_header(storage, number)? {
            return Ok(Some(header.identity));
        }
    }
    Ok(None)
}

/// The first and the last segment to read; `None` means no bound.
pub type SegmentBounds = (Option<u64>, Option<u64>);

/// Reads these segments of a log, changes nothing, and calls `on_event` with every batch and every loss. A missing first segment is
/// damage. If `segments` has an upper bound, the scan also checks that the header of the following segment refers to the last group.
///
/// # Errors
/// If a file cannot be read or has a format that this build does not know.
pub fn scan<S: Storage>(
    storage: &S,
    segments: SegmentBounds,
    on_event: impl FnMut(ScanEvent<'_>),
) -> Result<ScanSummary, ScanError> {
    Ok(scan_to_end(storage, segments, on_event)?.0)
}

/// Like [`scan`], but also returns the end of the log; `None` if there is no segment to read.
pub(crate) fn scan_to_end<S: Storage>(
    storage: &S,
    (first, last): SegmentBounds,
    on_event: impl FnMut(ScanEvent<'_>),
) -> Result<(ScanSummary, Option<ScanEnd>), ScanError> {
    let mut scan = Scan::new(on_event);
    let following_segment = last.and_then(|last| last.checked_add(1));
    // The mark must be read before the segments are listed. Otherwise a running server could begin a segment and write its mark in between,
    // and that segment would seem to be lost.
    let mark = match last {
        None => {
            EndMark::read(storage).map_err(|error| ScanError::Io(mark::FILE_NAME.into(), error))?
        }
        Some(_) => None,
    };
    let segments = scan.list_segments(storage, (first, last))?;
    let mut headers = Vec::with_capacity(segments.len());
    for number in segments.iter().copied().chain(following_segment) {
        headers.push(scan.read_header(storage, number)?);
    }
    let mut end = None;
    let mut bytes = Vec::new();
    for (at, number) in segments.iter().copied().enumerate() {
        let expected = match at.checked_sub(1) {
            None => first.unwrap_or(number),
            Some(at) => segments[at] + 1,
        };
        if at == 0 && expected == 1 {
            scan.batches = Some(0);
        }
        if expected != number {
            scan.record_loss(DamageKind::Missing, number, 0);
        }
        let header = headers[at];
        let mut offset = DATA_BEGIN;
        match &header {
            None => scan.record_loss(DamageKind::Header, number, 0),
            Some(header) => {
                let name = segment_name(number);
                read_file(storage, &name, &mut bytes)?;
                offset = scan.read_segment(header, &bytes);
                match headers.get(at + 1) {
                    None => scan.check_torn(header, &bytes, offset),
                    Some(next) => scan.check_next(header, offset, next.as_ref()),
                }
            }
        }
        end = Some(ScanEnd {
            header,
            is_truncated: header.is_some_and(|header| (bytes.len() as u64) < header.bytes),
            segment: number,
            last_group_offset: scan.last_group_offset,
            next_offset: offset,
            next_group: scan.next_group.unwrap_or(1),
            batches: scan.batches_or_unknown(),
            crc: scan.crc,
        });
    }
    if last.is_none() {
        let first = first.unwrap_or(1);
        scan.summary.is_replaced_by_checkpoint =
            end.is_none() && mark.is_some_and(|it| it.segment < first);
        scan.check_end(mark, &mut end);
    }
    scan.report(None);
    scan.summary.last_group = end.map_or(0, |end| end.next_group - 1);
    Ok((scan.summary, end))
}

fn read_file<S: Storage>(storage: &S, name: &str, bytes: &mut Vec<u8>) -> Result<(), ScanError> {
    let failed = |error| ScanError::Io(name.to_string(), error);
    let file = storage.open(name).map_err(failed)?;
    // The length comes from the file system, because the file may be shorter than its header says.
    let file_bytes = usize::try_from(file.bytes().map_err(failed)?).unwrap_or(usize::MAX);
    bytes.resize(file_bytes, 0);
    let len = file.read_at(bytes, 0).map_err(failed)?;
    bytes.truncate(len);
    Ok(())
}

struct Scan<E> {
    on_event: E,
    summary: ScanSummary,
    /// The number of the next group; `None` before the first segment is read.
    next_group: Option<u64>,
    /// The checksum of the last group.
    crc: u32,
    /// A loss that is not reported yet. The next group shows how many batches were lost, so the report waits for it, or for the end of the
    /// scan.
    unreported_loss: Option<Damage>,
    /// Number of batches in the log so far. `None` before the first group of a scan that does not start at the beginning of the log.
    batches: Option<u64>,
    /// The offset of the last group that was read in this segment. Before the first group: 0, the offset of the segment's header.
    last_group_offset: u64,
}

impl<E: FnMut(ScanEvent<'_>)> Scan<E> {
    fn new(on_event: E) -> Scan<E> {
        Scan {
            on_event,
            summary: ScanSummary::default(),
            next_group: None,
            crc: 0,
            unreported_loss: None,
            batches: None,
            last_group_offset: 0,
        }
    }

    /// Lists the numbers of the segments to read in ascending order, and records the foreign files.
    fn list_segments<S: Storage>(
        &mut self,
        storage: &S,
        (first, last): SegmentBounds,
    ) -> Result<Vec<u64>, ScanError> {
        let failed = |error| ScanError::Io("the directory".into(), error);
        let mut numbers = Vec::new();
        for Entry { name, is_file, .. } in storage.list().map_err(failed)? {
            match segment_number(&name) {
                Some(number) if first.is_some_and(|first| number < first) => {}
                Some(number) if last.is_some_and(|last| number > last) => {}
                Some(_) if !is_file => return Err(ScanError::NotRegularFile(name)),
                Some(number) => numbers.push(number),
                None if is_file && (is_spare(&name) || name == mark::FILE_NAME) => {}
                None => self.summary.foreign_files.push(name),
            }
        }
        numbers.sort_unstable();
        self.summary.foreign_files.sort_unstable();
        Ok(numbers)
    }

    /// Reads the header of a segment; `None` if the header is damaged. Checks that the segment belongs to the same log as the earlier ones.
    fn read_header<S: Storage>(
        &mut self,
        storage: &S,
        number: u64,
    ) -> Result<Option<SegmentHeader>, ScanError> {
        let name = segment_name(number);
        let failed = |error| ScanError::Io(name.clone(), error);
        let file = storage.open(&name).map_err(failed)?;
        let mut bytes = [0; crate::format::SEGMENT_HEADER_BYTES];
        let len = file.read_at(&mut bytes, 0).map_err(failed)?;
        let header = match SegmentHeader::decode(&bytes[..len]) {
            Ok(header) if header.number == number => header,
            Ok(_) | Err(HeaderError::Damaged) => return Ok(None),
            Err(HeaderError::Version(found)) => return Err(ScanError::Version { name, found }),
        };
        match self.summary.identity {
            Some(identity) if identity.log != header.identity.log => {
                return Err(ScanError::OtherLog(name));
            }
            _ => self.summary.identity = Some(header.identity),
        }
        Ok(Some(header))
    }

    /// Records a loss. Of several losses before the same group, only the first one is reported.
    fn record_loss(&mut self, kind: DamageKind, segment: u64, offset: u64) {
        self.unreported_loss.get_or_insert(Damage {
            kind,
            segment,
            offset,
            batches: None,
        });
    }

    /// Reports the recorded loss, if there is one. `batches` is the number of lost batches, if it is known.
    fn report(&mut self, batches: Option<u64>) {
        if let Some(loss) = self.unreported_loss.take() {
            let damage = Damage { batches, ..loss };
            self.summary.damages.push(damage);
            (self.on_event)(ScanEvent::Damage(damage));
        }
    }

    /// The number of batches before the next group, plus [`UNKNOWN_BATCHES`] if batches were lost after the last group.
    fn batches_or_unknown(&self) -> u64 {
        let unknown = if self.unreported_loss.is_some() {
            UNKNOWN_BATCHES
        } else {
            0
        };
        self.batches.unwrap_or(0) + unknown
    }

    /// Reads the groups of a segment. Returns the offset after the last group.
    fn read_segment(&mut self, header: &SegmentHeader, bytes: &[u8]) -> u64 {
        self.summary.segments += 1;
        self.last_group_offset = 0;
        let start = (header.first_group, header.previous_crc);
        if self
            .next_group
            .is_some_and(|next_group| (next_group, self.crc) != start)
        {
            self.record_loss(DamageKind::Chain, header.number, 0);
        }
        let (mut expected, crc) = start;
        self.crc = crc;
        let mut offset = DATA_BEGIN;
        loop {
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let next = Group::decode(rest, header.salts())
                .filter(|group| group.number == expected || planted::is_on(Fault::Recycled));
            if let Some(group) = next {
                if group.previous_crc != self.crc {
                    self.record_loss(DamageKind::Chain, header.number, offset);
                }
                self.report_group(header.number, offset, &group);
                offset += group.bytes();
                expected = expected.saturating_add(1);
                continue;
            }
            let Some((group_offset, number)) = find_group(bytes, offset, header.salts(), expected)
            else {
                break;
            };
            self.record_loss(DamageKind::Bytes, header.number, offset);
            (offset, expected) = (group_offset, number);
        }
        self.next_group = Some(expected);
        offset
    }

    /// Checks whether there is a torn group at `offset`, after the last group of the last segment.
    fn check_torn(&mut self, header: &SegmentHeader, bytes: &[u8], offset: u64) {
        let expected = self.next_group.unwrap_or(header.first_group);
        self.summary.torn_group = is_torn(bytes, offset, expected, self.crc).then_some(TornGroup {
            segment: header.number,
            offset,
        });
    }

    /// Checks by the length of the last segment's file and by the mark whether the log was longer. If it was, records that the end is lost.
    /// The log then continues in a new segment.
    fn check_end(&mut self, mark: Option<EndMark>, end: &mut Option<ScanEnd>) {
        if planted::is_on(Fault::LostEnd) {
            return;
        }
        let of_this_log =
            |mark: &EndMark| self.summary.identity.is_none_or(|it| it.log == mark.log);
        let (segment, group) = end.map_or((0, 0), |end| (end.segment, end.next_group - 1));
        let is_lost = |mark: EndMark| mark.segment > segment || mark.group > group;
        let is_truncated = end.is_some_and(|end| end.is_truncated);
        let mark = mark.filter(|mark| of_this_log(mark) && !self.summary.is_replaced_by_checkpoint);
        if is_truncated || mark.is_some_and(is_lost) {
            let offset = end.map_or(0, |end| end.next_offset);
            self.record_loss(DamageKind::End, segment, offset);
            self.summary.torn_group = None;
        }
        if let Some(end) = end.as_mut().filter(|_| self.unreported_loss.is_some()) {
            end.header = None;
            end.batches = self.batches_or_unknown();
        }
    }

    /// Checks that no group is missing between this segment, whose last group ends at `offset`, and the next segment.
    fn check_next(&mut self, header: &SegmentHeader, offset: u64, next: Option<&SegmentHeader>) {
        let log_end = (self.next_group, self.crc);
        let continues_log =
            |next: &SegmentHeader| (Some(next.first_group), next.previous_crc) == log_end;
        let adjoins = |next: &&SegmentHeader| Some(next.number) == header.number.checked_add(1);
        if next
            .filter(adjoins)
            .is_some_and(|next| !continues_log(next))
        {
            self.record_loss(DamageKind::Bytes, header.number, offset);
        }
    }

    fn report_group(&mut self, segment: u64, offset: u64, group: &Group<'_>) {
        let before = group.batches_before;
        let lost = self.batches.and_then(|known| before.checked_sub(known));
        // If batches were lost but the count did not grow, the group is from another history of the log. The number of lost batches is then
        // unknown.
        self.report(lost.filter(|lost| (1..UNKNOWN_BATCHES).contains(lost)));
        self.last_group_offset = offset;
        self.crc = group.crc;
        self.summary.groups += 1;
        let mut place = BatchPlace {
            segment,
            group_offset: offset,
            group: group.number,
            batch_offset: offset + GROUP_HEADER_BYTES as u64,
        };
        for batch in group.batches() {
            self.summary.batches += 1;
            self.summary.bytes += batch.len() as u64;
            (self.on_event)(ScanEvent::Batch(place, batch));
            place.batch_offset += (BATCH_HEADER_BYTES + batch.len()) as u64;
        }
        self.batches = Some(before + group.batches().count() as u64);
    }
}

/// The search for a group skips this many zeros at once. The number is a multiple of the alignment of groups.
const ZEROS: [u8; 4096] = [0; 4096];

/// Searches after `offset` for the next intact group whose number is at least `expected`. Returns the offset and the number of the group.
fn find_group(bytes: &[u8], offset: u64, salts: Salts, expected: u64) -> Option<(u64, u64)> {
    let mut at = offset + ALIGNMENT;
    while let Some(rest) = bytes.get(at as usize..).filter(|rest| !rest.is_empty()) {
        // The unused rest of a segment is zeros, and no group begins with zeros.
        if rest.starts_with(&ZEROS) {
            at += ZEROS.len() as u64;
            continue;
        }
        let group = Group::decode(rest, salts).filter(|group| group.number >= expected);
        if let Some(group) = group {
            return Some((at, group.number));
        }
        at += ALIGNMENT;
    }
    None
}

/// Whether the bytes at `offset` begin like the next group.
fn is_torn(bytes: &[u8], offset: u64, expected: u64, crc: u32) -> bool {
    let header = bytes.get(offset as usize..).unwrap_or_default();
    let has_bytes = |at: usize, wanted: &[u8]| header.get(at..at + wanted.len()) == Some(wanted);
    has_bytes(8, &expected.to_le_bytes()) && has_bytes(PREVIOUS_CRC_OFFSET, &crc.to_le_bytes())
}
