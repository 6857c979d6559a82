//! Reads a log: every batch in order, and every place where batches were lost.
//!
//! A wrong checksum of a group has one of two reasons:
//! * At the end of the log the group is *torn*: the power failed during the write. Nothing in it was acknowledged, so it is cut off.
//! * Anywhere else it is *damage*: a later group exists, and that one was written only after this one was synced. The scan reports the
//!   damage between the batches around it, and continues after it.
//!
//! If the newest segment is deleted or cut, the end of the log is lost. That is damage too. The scan notices it from the [mark], and from
//! the length of the file, which never changes.

use std::io;

use crate::damage::{Damage, DamageKind};
use crate::format::{
    ALIGNMENT, BATCH_HEADER, DATA_BEGIN, GROUP_HEADER, Group, Identity, NoSegment, PREVIOUS_CRC,
    Salts, SegmentHeader, VERSION,
};
use crate::mark::{self, Mark};
use crate::planted::{self, Fault};
use crate::storage::{Entry, File, Storage};

/// The name of a segment is this prefix, ten digits, and [`SUFFIX`].
const PREFIX: &str = "segment-";
const SUFFIX: &str = ".log";
/// The name of a spare file is this prefix and a number. Spare files become the next segments.
const SPARE: &str = "spare-";

/// The name of the segment with this number.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{PREFIX}{number:010}{SUFFIX}")
}

/// The number of the segment with this name; `None` if the name is not one of a segment.
pub fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let number = digits.parse().ok()?;
    ((1..u64::MAX).contains(&number) && segment_name(number) == name).then_some(number)
}

/// The name of a spare file with this number.
pub(crate) fn spare_name(number: u64) -> String {
    format!("{SPARE}{number}")
}

/// Whether a file with this name is a spare file.
pub(crate) fn is_spare(name: &str) -> bool {
    let number = name.strip_prefix(SPARE).and_then(|it| it.parse().ok());
    number.is_some_and(|number| spare_name(number) == name)
}

/// The place of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The offset in the segment, in bytes, of the group that contains the batch.
    pub offset: u64,
    /// The group's number.
    pub group: u64,
    /// The offset of the batch in the segment, in bytes. The batch's length is stored there, before its bytes.
    pub batch: u64,
}

/// What a scan finds, in the order of the log.
#[derive(Debug)]
pub enum Found<'a> {
    /// A batch.
    Batch(Place, &'a [u8]),
    /// A place where batches are missing, or may be missing.
    Damage(Damage),
}

/// A group that was being written when the power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment that contains the group.
    pub segment: u64,
    /// The offset of the group in the segment, in bytes.
    pub offset: u64,
}

/// The result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The identity of the log; `None` if no segment has an intact header.
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
    pub torn: Option<Torn>,
    /// Places where batches were lost, in the order of the log.
    pub damages: Vec<Damage>,
    /// There is no segment to read, and nothing is lost: the mark shows that all segments were before the first one to read, so a
    /// checkpoint has replaced them.
    pub is_replaced: bool,
    /// Files in the directory that do not belong to the log. The log does not touch them.
    pub foreign: Vec<String>,
}

/// Why a log cannot be read. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The disk or the file system failed, for this file.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// A segment has a format that this build does not know.
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
    /// Two segments belong to different logs.
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

/// The end of a log: what is needed to write the next group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanEnd {
    /// The header of the last segment; `None` if it is damaged or the end is lost, so that the log continues in a new segment.
    pub header: Option<SegmentHeader>,
    /// Whether the segment's file is shorter than its header says.
    pub is_cut: bool,
    /// The number of the last segment.
    pub segment: u64,
    /// The offset of the segment's last group. If it has none, 0, where the segment's header begins.
    pub last: u64,
    /// The offset of the next group: after the last group, or after the header.
    pub offset: u64,
    pub next_group: u64,
    /// Number of batches in the log.
    pub batches: u64,
    /// The checksum of the last group.
    pub crc: u32,
}

/// Added to the count of batches if it is unknown how many were lost. The sum is higher than any real count, so a later scan sees that it
/// cannot compute the number of lost batches from it.
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

/// Reads these segments of a log without changing them. A missing first segment counts as damage. Of the segment after the last one it
/// reads only the header, to check that this header continues the log.
///
/// # Errors
/// If a file cannot be read or has a format that this build does not know.
pub fn scan<S: Storage>(
    storage: &S,
    segments: Segments,
    each: impl FnMut(Found<'_>),
) -> Result<Recovered, ScanError> {
    Ok(scan_to_end(storage, segments, each)?.0)
}

/// Like `scan`, but returns the end of the log too; `None` if there is no segment.
pub(crate) fn scan_to_end<S: Storage>(
    storage: &S,
    (first, last): Segments,
    each: impl FnMut(Found<'_>),
) -> Result<(Recovered, Option<ScanEnd>), ScanError> {
    let mut scan = Scan::new(each);
    let follower = last.and_then(|last| last.checked_add(1));
    // The mark is read before the segments are listed, because a running server may begin a segment in between.
    let mark = match last {
        None => Mark::read(storage).map_err(|error| ScanError::Io(mark::NAME.into(), error))?,
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

/// Reads all bytes of a segment.
fn read_whole<S: Storage>(storage: &S, name: &str, bytes: &mut Vec<u8>) -> Result<(), ScanError> {
    let failed = |error| ScanError::Io(name.to_string(), error);
    let file = storage.open(name).map_err(failed)?;
    // Takes the length from the file system, because the length in the header may be damaged.
    let most = usize::try_from(file.bytes().map_err(failed)?).unwrap_or(usize::MAX);
    bytes.resize(most, 0);
    let len = file.read_at(bytes, 0).map_err(failed)?;
    bytes.truncate(len);
    Ok(())
}

/// A scan in progress.
struct Scan<E> {
    each: E,
    found: Recovered,
    /// The number that the next group should have; `None` before the first segment.
    expected: Option<u64>,
    /// The checksum of the last group.
    crc: u32,
    /// A loss that will be reported with the next group, or at the end.
    loss: Option<Damage>,
    /// Number of batches in the log so far. `None` before the first group, if the scan does not start at the log's beginning.
    batches: Option<u64>,
    /// The offset of the segment's last group so far. Before the first group 0, where the segment's header begins.
    last: u64,
}

impl<E: FnMut(Found<'_>)> Scan<E> {
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

    /// Lists the numbers of the segments in ascending order, and notes foreign files.
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

    /// The header of a segment; `None` if it is damaged. Checks that all headers are of the same log.
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

    /// Records a loss. If several are recorded before the next group, only the first one is reported.
    fn record_loss(&mut self, kind: DamageKind, segment: u64, offset: u64) {
        self.loss.get_or_insert(Damage {
            kind,
            segment,
            offset,
            batches: None,
        });
    }

    /// Reports the recorded loss, if there is one, with the number of lost batches if it is known.
    fn report(&mut self, batches: Option<u64>) {
        if let Some(loss) = self.loss.take() {
            let damage = Damage { batches, ..loss };
            self.found.damages.push(damage);
            (self.each)(Found::Damage(damage));
        }
    }

    /// The number of batches before the next group, increased by `UNKNOWN` if batches were lost just before it.
    fn batches_or_more(&self) -> u64 {
        let unknown = if self.loss.is_some() { UNKNOWN } else { 0 };
        self.batches.unwrap_or(0) + unknown
    }

    /// Reads the groups of a segment. Returns the offset after the last one.
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

    /// Checks whether a torn group is at this offset, the end of the last segment.
    fn check_torn(&mut self, header: &SegmentHeader, bytes: &[u8], offset: u64) {
        let expected = self.expected.unwrap_or(header.first_group);
        self.found.torn = is_torn(bytes, offset, expected, self.crc).then_some(Torn {
            segment: header.number,
            offset,
        });
    }

    /// Checks by the length of the last segment and by the mark whether the log was longer. If so, the end is damaged, and the log
    /// continues in a new segment.
    fn check_end(&mut self, mark: Option<Mark>, end: &mut Option<ScanEnd>) {
        if planted::is(Fault::LostEnd) {
            return;
        }
        let of_this_log = |mark: &Mark| self.found.identity.is_none_or(|it| it.log == mark.log);
        let (segment, group) = end.map_or((0, 0), |end| (end.segment, end.next_group - 1));
        let is_lost = |mark: Mark| mark.segment > segment || mark.group > group;
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

    /// Checks that no group is missing between this segment, which ends at this offset, and the next one.
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
        // If no batch is missing, the group is from another history of the log.
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
            (self.each)(Found::Batch(place, batch));
            place.batch += (BATCH_HEADER + batch.len()) as u64;
        }
        self.batches = Some(before + group.batches().count() as u64);
    }
}

/// Zeros that are skipped at once. The length is a multiple of the alignment of groups.
const ZEROS: [u8; 4096] = [0; 4096];

/// The offset and number of the next intact group after this offset whose number is at least `expected`.
fn find_later(bytes: &[u8], offset: u64, salts: Salts, expected: u64) -> Option<(u64, u64)> {
    let mut at = offset + ALIGNMENT;
    while let Some(rest) = bytes.get(at as usize..).filter(|rest| !rest.is_empty()) {
        // Skips the unused rest of a segment, which is zeros: no group begins with zeros.
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

/// Whether a part of the next group was written here.
fn is_torn(bytes: &[u8], offset: u64, expected: u64, crc: u32) -> bool {
    let header = bytes.get(offset as usize..).unwrap_or_default();
    let begins = |at: usize, wanted: &[u8]| header.get(at..at + wanted.len()) == Some(wanted);
    begins(8, &expected.to_le_bytes()) && begins(PREVIOUS_CRC, &crc.to_le_bytes())
}
