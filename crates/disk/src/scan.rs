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
    ALIGNMENT, BATCH_HEADER, DATA_BEGIN, GROUP_HEADER, Group, Identity, NoSegment, PREVIOUS_CRC,
    Salts, SegmentHeader, VERSION,
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
pub fn number_of(name: &str) -> Option<u64> {
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
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The offset in the segment, in bytes, of the group that contains the batch.
    pub offset: u64,
    /// The group's number.
    pub group: u64,
    /// The offset of the batch in the segment, in bytes. The four bytes at this offset are the batch's length. The batch follows.
    pub batch: u64,
}

/// What a scan finds, in the order of the log.
#[derive(Debug)]
pub enum ScanEvent<'a> {
    /// A batch.
    Batch(Place, &'a [u8]),
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
pub struct Recovered {
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
    pub torn: Option<TornGroup>,
    /// The losses, in the order of the log.
    pub damages: Vec<Damage>,
    /// The log has no segment to read, but nothing is lost: a checkpoint replaces all segments before the first one to read, and the mark
    /// shows that the log ended in one of them.
    pub is_replaced: bool,
    /// Files in the directory that are not files of the log. The log does not touch them.
    pub foreign: Vec<String>,
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
    NoFile(String),
}

/// The end of a log, with all that the writer of the next group needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanEnd {
    /// The header of the last segment. `None` if the header is damaged or the end of the log is lost. The log then continues in a new
    /// segment.
    pub header: Option<SegmentHeader>,
    /// Whether the segment's file is shorter than its header says.
    pub is_cut: bool,
    /// The number of the last segment.
    pub segment: u64,
    /// The offset of the segment's last group. If the segment has no group: 0, the offset of the segment's header.
    pub last: u64,
    /// The offset at which the next group will be written: after the last group, or after the header.
    pub offset: u64,
    pub next_group: u64,
    /// Number of batches in the log.
    pub batches: u64,
    /// The checksum of the last group.
    pub crc: u32,
}

/// Added to the count of batches if the number of lost batches is unknown. Each group stores the count of batches before it, and a real
/// count is never this high. So a later scan recognizes the sum and does not compute a number of lost batches from it.
const UNKNOWN: u64 = 1 << 40;

/// The identity of the log in this storage, from the first segment with an intact header.
///
/// # Errors
/// If a file cannot be read or has a format that this build does not know.
pub fn identity<S: Storage>(storage: &S) -> Result<Option<Identity>, ScanError> {
    let mut scan = Scan::new(|_| {});
    for number in scan.list_segments(storage, (None, None))? {
        if let Some(header) = scan.read_header(storage, number)? {
            return Ok(Some(header.identity));
        }
    }
    Ok(None)
}

/// The first and the last segment to read; `None` means no bound.
pub type Segments = (Option<u64>, Option<u64>);

/// Reads these segments of a log without changing them, and calls `each` with every batch and every loss. A missing first segment is
/// damage. If `segments` has an upper bound, the scan also checks that the header of the following segment refers to the last group.
///
/// # Errors
/// If a file cannot be read or has a format that this build does not know.
pub fn scan<S: Storage>(
    storage: &S,
    segments: Segments,
    each: impl FnMut(ScanEvent<'_>),
) -> Result<Recovered, ScanError> {
    Ok(scan_to_end(storage, segments, each)?.0)
}

/// Like [`scan`], but also returns the end of the log; `None` if there is no segment to read.
pub(crate) fn scan_to_end<S: Storage>(
    storage: &S,
    (first, last): Segments,
    each: impl FnMut(ScanEvent<'_>),
) -> Result<(Recovered, Option<ScanEnd>), ScanError> {
    let mut scan = Scan::new(each);
    let follower = last.and_then(|last| last.checked_add(1));
    // The mark must be read before the segments are listed. Otherwise a running server could begin a segment and write its mark in between,
    // and that segment would seem to be lost.
    let mark = match last {
        None => EndMark::read(storage).map_err(|error| ScanError::Io(mark::NAME.into(), error))?,
        Some(_) => None,
    };
    let segments = scan.list_segments(storage, (first, last))?;
    let mut headers = Vec::with_capacity(segments.len());
    for number in segments.iter().copied().chain(follower) {
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
                read_whole(storage, &name, &mut bytes)?;
                offset = scan.read_segment(header, &bytes);
                match headers.get(at + 1) {
                    None => scan.check_torn(header, &bytes, offset),
                    Some(next) => scan.check_next(header, offset, next.as_ref()),
                }
            }
        }
        end = Some(ScanEnd {
            header,
            is_cut: header.is_some_and(|header| (bytes.len() as u64) < header.bytes),
            segment: number,
            last: scan.last,
            offset,
            next_group: scan.expected.unwrap_or(1),
            batches: scan.batches_or_more(),
            crc: scan.crc,
        });
    }
    if last.is_none() {
        let first = first.unwrap_or(1);
        scan.found.is_replaced = end.is_none() && mark.is_some_and(|it| it.segment < first);
        scan.check_end(mark, &mut end);
    }
    scan.report(None);
    scan.found.last_group = end.map_or(0, |end| end.next_group - 1);
    Ok((scan.found, end))
}

fn read_whole<S: Storage>(storage: &S, name: &str, bytes: &mut Vec<u8>) -> Result<(), ScanError> {
    let failed = |error| ScanError::Io(name.to_string(), error);
    let file = storage.open(name).map_err(failed)?;
    // The length comes from the file system, because the file may be shorter than its header says.
    let most = usize::try_from(file.bytes().map_err(failed)?).unwrap_or(usize::MAX);
    bytes.resize(most, 0);
    let len = file.read_at(bytes, 0).map_err(failed)?;
    bytes.truncate(len);
    Ok(())
}

struct Scan<E> {
    each: E,
    found: Recovered,
    /// The number of the next group; `None` before the first segment is read.
    expected: Option<u64>,
    /// The checksum of the last group.
    crc: u32,
    /// A loss that is not reported yet. The next group shows how many batches were lost, so the report waits for it, or for the end of the
    /// scan.
    loss: Option<Damage>,
    /// Number of batches in the log so far. `None` before the first group of a scan that does not start at the beginning of the log.
    batches: Option<u64>,
    /// The offset of the last group that was read in this segment. Before the first group: 0, the offset of the segment's header.
    last: u64,
}

impl<E: FnMut(ScanEvent<'_>)> Scan<E> {
    fn new(each: E) -> Scan<E> {
        Scan {
            each,
            found: Recovered::default(),
            expected: None,
            crc: 0,
            loss: None,
            batches: None,
            last: 0,
        }
    }

    /// Lists the numbers of the segments to read in ascending order, and records the foreign files.
    fn list_segments<S: Storage>(
        &mut self,
        storage: &S,
        (first, last): Segments,
    ) -> Result<Vec<u64>, ScanError> {
        let failed = |error| ScanError::Io("the directory".into(), error);
        let mut numbers = Vec::new();
        for Entry { name, is_file, .. } in storage.list().map_err(failed)? {
            match number_of(&name) {
                Some(number) if first.is_some_and(|first| number < first) => {}
                Some(number) if last.is_some_and(|last| number > last) => {}
                Some(_) if !is_file => return Err(ScanError::NoFile(name)),
                Some(number) => numbers.push(number),
                None if is_file && (is_spare(&name) || name == mark::NAME) => {}
                None => self.found.foreign.push(name),
            }
        }
        numbers.sort_unstable();
        self.found.foreign.sort_unstable();
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
        let mut bytes = [0; crate::format::SEGMENT_HEADER];
        let len = file.read_at(&mut bytes, 0).map_err(failed)?;
        let header = match SegmentHeader::decode(&bytes[..len]) {
            Ok(header) if header.number == number => header,
            Ok(_) | Err(NoSegment::Damaged) => return Ok(None),
            Err(NoSegment::Version(found)) => return Err(ScanError::Version { name, found }),
        };
        match self.found.identity {
            Some(identity) if identity.log != header.identity.log => {
                return Err(ScanError::OtherLog(name));
            }
            _ => self.found.identity = Some(header.identity),
        }
        Ok(Some(header))
    }

    /// Records a loss. Of several losses before the same group, only the first one is reported.
    fn record_loss(&mut self, kind: DamageKind, segment: u64, offset: u64) {
        self.loss.get_or_insert(Damage {
            kind,
            segment,
            offset,
            batches: None,
        });
    }

    /// Reports the recorded loss, if there is one. `batches` is the number of lost batches, if it is known.
    fn report(&mut self, batches: Option<u64>) {
        if let Some(loss) = self.loss.take() {
            let damage = Damage { batches, ..loss };
            self.found.damages.push(damage);
            (self.each)(ScanEvent::Damage(damage));
        }
    }

    /// The number of batches before the next group, plus [`UNKNOWN`] if batches were lost after the last group.
    fn batches_or_more(&self) -> u64 {
        let unknown = if self.loss.is_some() { UNKNOWN } else { 0 };
        self.batches.unwrap_or(0) + unknown
    }

    /// Reads the groups of a segment. Returns the offset after the last group.
    fn read_segment(&mut self, header: &SegmentHeader, bytes: &[u8]) -> u64 {
        self.found.segments += 1;
        self.last = 0;
        let begins = (header.first_group, header.previous_crc);
        if self
            .expected
            .is_some_and(|expected| (expected, self.crc) != begins)
        {
            self.record_loss(DamageKind::Chain, header.number, 0);
        }
        let (mut expected, crc) = begins;
        self.crc = crc;
        let mut offset = DATA_BEGIN;
        loop {
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let next = Group::decode(rest, header.salts())
                .filter(|group| group.number == expected || planted::is(Fault::Recycled));
            if let Some(group) = next {
                if group.previous_crc != self.crc {
                    self.record_loss(DamageKind::Chain, header.number, offset);
                }
                self.take_group(header.number, offset, &group);
                offset += group.bytes();
                expected = expected.saturating_add(1);
                continue;
            }
            let Some((later, number)) = find_later(bytes, offset, header.salts(), expected) else {
                break;
            };
            self.record_loss(DamageKind::Bytes, header.number, offset);
            (offset, expected) = (later, number);
        }
        self.expected = Some(expected);
        offset
    }

    /// Checks whether there is a torn group at `offset`, after the last group of the last segment.
    fn check_torn(&mut self, header: &SegmentHeader, bytes: &[u8], offset: u64) {
        let expected = self.expected.unwrap_or(header.first_group);
        self.found.torn = is_torn(bytes, offset, expected, self.crc).then_some(TornGroup {
            segment: header.number,
            offset,
        });
    }

    /// Checks by the length of the last segment's file and by the mark whether the log was longer. If it was, records that the end is lost.
    /// The log then continues in a new segment.
    fn check_end(&mut self, mark: Option<EndMark>, end: &mut Option<ScanEnd>) {
        if planted::is(Fault::LostEnd) {
            return;
        }
        let of_this_log = |mark: &EndMark| self.found.identity.is_none_or(|it| it.log == mark.log);
        let (segment, group) = end.map_or((0, 0), |end| (end.segment, end.next_group - 1));
        let is_lost = |mark: EndMark| mark.segment > segment || mark.group > group;
        let is_cut = end.is_some_and(|end| end.is_cut);
        let mark = mark.filter(|mark| of_this_log(mark) && !self.found.is_replaced);
        if is_cut || mark.is_some_and(is_lost) {
            let offset = end.map_or(0, |end| end.offset);
            self.record_loss(DamageKind::End, segment, offset);
            self.found.torn = None;
        }
        if let Some(end) = end.as_mut().filter(|_| self.loss.is_some()) {
            end.header = None;
            end.batches = self.batches_or_more();
        }
    }

    /// Checks that no group is missing between this segment, whose last group ends at `offset`, and the next segment.
    fn check_next(&mut self, header: &SegmentHeader, offset: u64, next: Option<&SegmentHeader>) {
        let ends = (self.expected, self.crc);
        let follows = |next: &SegmentHeader| (Some(next.first_group), next.previous_crc) == ends;
        let adjoins = |next: &&SegmentHeader| Some(next.number) == header.number.checked_add(1);
        if next.filter(adjoins).is_some_and(|next| !follows(next)) {
            self.record_loss(DamageKind::Bytes, header.number, offset);
        }
    }

    fn take_group(&mut self, segment: u64, offset: u64, group: &Group<'_>) {
        let before = group.batches_before;
        let lost = self.batches.and_then(|known| before.checked_sub(known));
        // If batches were lost but the count did not grow, the group is from another history of the log. The number of lost batches is then
        // unknown.
        self.report(lost.filter(|lost| (1..UNKNOWN).contains(lost)));
        self.last = offset;
        self.crc = group.crc;
        self.found.groups += 1;
        let mut place = Place {
            segment,
            offset,
            group: group.number,
            batch: offset + GROUP_HEADER as u64,
        };
        for batch in group.batches() {
            self.found.batches += 1;
            self.found.bytes += batch.len() as u64;
            (self.each)(ScanEvent::Batch(place, batch));
            place.batch += (BATCH_HEADER + batch.len()) as u64;
        }
        self.batches = Some(before + group.batches().count() as u64);
    }
}

/// The search for a group skips this many zeros at once. The number is a multiple of the alignment of groups.
const ZEROS: [u8; 4096] = [0; 4096];

/// Searches after `offset` for the next intact group whose number is at least `expected`. Returns the offset and the number of the group.
fn find_later(bytes: &[u8], offset: u64, salts: Salts, expected: u64) -> Option<(u64, u64)> {
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
    let begins = |at: usize, wanted: &[u8]| header.get(at..at + wanted.len()) == Some(wanted);
    begins(8, &expected.to_le_bytes()) && begins(PREVIOUS_CRC, &crc.to_le_bytes())
}
