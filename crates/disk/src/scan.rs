//! Reading a log: every batch in order, and every place where batches were lost.
//!
//! A group that does not verify is one of two things. At the end of the log it is *torn*: the power went while it was written, so
//! nobody was answered, and it is cut. Anywhere else it is *damage*: a later group stands in the log, and was written only after
//! this one was synced. Damage is reported with the batches, in its place, and the scan goes on behind it.
//!
//! The end itself can be lost: the newest segment was deleted, or cut. Its length (a segment has all of its bytes from the beginning) and the
//! [mark] show that, and it is damage too.

use std::io;

use crate::damage::{Damage, DamageKind};
use crate::format::{
    ALIGNMENT, BATCH_HEADER, DATA_BEGIN, GROUP_HEADER, Group, Identity, NoSegment, PREVIOUS_CRC,
    Salts, SegmentHeader, VERSION,
};
use crate::mark::{self, Mark};
use crate::planted::{self, Fault};
use crate::storage::{Entry, File, Storage};

/// Names of segments: this, ten digits, and [`SUFFIX`].
const PREFIX: &str = "segment-";
const SUFFIX: &str = ".log";
/// Names of files that wait to become segments.
const SPARE: &str = "spare-";

/// The name of the segment with this number.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{PREFIX}{number:010}{SUFFIX}")
}

/// The number of the segment with this name; `None` where it is the name of none.
pub fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let number = digits.parse().ok()?;
    ((1..u64::MAX).contains(&number) && segment_name(number) == name).then_some(number)
}

/// The name of a spare file with this number.
pub(crate) fn spare_name(number: u64) -> String {
    format!("{SPARE}{number}")
}

/// Whether a file of this name is a spare one.
pub(crate) fn is_spare(name: &str) -> bool {
    let number = name.strip_prefix(SPARE).and_then(|it| it.parse().ok());
    number.is_some_and(|number| spare_name(number) == name)
}

/// Where a batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The offset of its group in the segment, in bytes.
    pub offset: u64,
    /// The group's number.
    pub group: u64,
    /// The offset of the batch in the segment: that of its length, behind which it stands.
    pub batch: u64,
}

/// The events of a scan, in the order of the log.
#[derive(Debug)]
pub enum Found<'a> {
    /// A batch.
    Batch(Place, &'a [u8]),
    /// Here batches may be missing.
    Damage(Damage),
}

/// A group that was being written when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its segment.
    pub segment: u64,
    /// Its offset there.
    pub offset: u64,
}

/// The result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The identity of the log; none where it has no segment.
    pub identity: Option<Identity>,
    /// Segments that were read.
    pub segments: u64,
    /// Groups, batches, and bytes of batches.
    pub groups: u64,
    /// The number of the last group; 0 where the log has none.
    pub last_group: u64,
    /// Batches in them.
    pub batches: u64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// The group at the end that was cut.
    pub torn: Option<Torn>,
    /// Places where batches were lost, in the order of the log.
    pub damages: Vec<Damage>,
    /// Files in the directory that are none of the log's. They are left alone.
    pub foreign: Vec<String>,
}

/// Why a log cannot be read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The disk or the file system failed; the file's name.
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
        /// The version of its format.
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

/// The end of a log: where the next group goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanEnd {
    /// The last segment; none where its header is damaged.
    pub header: Option<SegmentHeader>,
    /// Whether its file is shorter than it was made.
    pub is_cut: bool,
    /// Its number.
    pub segment: u64,
    /// The offset of its last group, and the one behind that; the beginning and the end of the header where it has none.
    pub last: u64,
    pub offset: u64,
    pub next_group: u64,
    /// Batches of the log before that.
    pub batches: u64,
    /// The checksum of the last group.
    pub crc: u32,
}

/// Added to the count of batches where nobody knows how many were lost: so many were not, and no count of losses that is known fits.
const UNKNOWN: u64 = 1 << 40;

/// The identity of the log in this directory, from its first segment with a good header.
///
/// # Errors
/// When a file cannot be read, or is none that this build may read.
pub fn identity<S: Storage>(storage: &S) -> Result<Option<Identity>, ScanError> {
    let mut scan = Scan::new(|_| {});
    for number in scan.segments(storage, (None, None))? {
        if let Some(header) = scan.header(storage, number)? {
            return Ok(Some(header.identity));
        }
    }
    Ok(None)
}

/// The first and the last segment that are asked for; `None`: there is no such bound.
pub type Segments = (Option<u64>, Option<u64>);

/// Reads these segments of a log without changing them. The first one that is asked for must be there. Behind the last one that is asked for
/// the next segment is expected to go on from it, and is not read.
///
/// # Errors
/// When a file cannot be read, or is none that this build may read.
pub fn scan<S: Storage>(
    storage: &S,
    segments: Segments,
    each: impl FnMut(Found<'_>),
) -> Result<Recovered, ScanError> {
    Ok(scan_to_end(storage, segments, each)?.0)
}

/// The same, and where the log ends; `None` where it has no segment.
pub(crate) fn scan_to_end<S: Storage>(
    storage: &S,
    (first, last): Segments,
    each: impl FnMut(Found<'_>),
) -> Result<(Recovered, Option<ScanEnd>), ScanError> {
    let mut scan = Scan::new(each);
    let follower = last.and_then(|last| last.checked_add(1));
    // Before the segments are listed: a server that runs may begin one meanwhile.
    let mark = match last {
        None => Mark::read(storage).map_err(|error| ScanError::Io(mark::NAME.into(), error))?,
        Some(_) => None,
    };
    let segments = scan.segments(storage, (first, last))?;
    let mut headers = Vec::with_capacity(segments.len());
    for number in segments.iter().copied().chain(follower) {
        headers.push(scan.header(storage, number)?);
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
            scan.damage(DamageKind::Missing, number, 0);
        }
        let header = headers[at];
        let mut offset = DATA_BEGIN;
        match &header {
            None => scan.damage(DamageKind::Header, number, 0),
            Some(header) => {
                let name = segment_name(number);
                read_whole(storage, &name, &mut bytes)?;
                offset = scan.segment(header, &bytes);
                match headers.get(at + 1) {
                    None => scan.end(header, &bytes, offset),
                    Some(next) => scan.goes_on(header, offset, next.as_ref()),
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
    // The length in its header may be damaged.
    let most = usize::try_from(file.bytes().map_err(failed)?).unwrap_or(usize::MAX);
    bytes.resize(most, 0);
    let len = file.read_at(bytes, 0).map_err(failed)?;
    bytes.truncate(len);
    Ok(())
}

/// A scan under way.
struct Scan<E> {
    each: E,
    found: Recovered,
    /// The number of the next group; `None` before the first.
    expected: Option<u64>,
    /// The checksum of the last group.
    crc: u32,
    /// A loss that is reported with the next group, or at the end.
    loss: Option<Damage>,
    /// Batches of the log up to here; none before the first group of a log whose beginning is not read.
    batches: Option<u64>,
    /// The offset of the segment's last group; of its header before the first.
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

    /// The numbers of the segments, in order.
    fn segments<S: Storage>(
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

    /// The header of a segment; `None` where it is damaged.
    fn header<S: Storage>(
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

    /// Notes a loss; one until the next group.
    fn damage(&mut self, kind: DamageKind, segment: u64, offset: u64) {
        self.loss.get_or_insert(Damage {
            kind,
            segment,
            offset,
            batches: None,
        });
    }

    /// Reports the loss of so many batches, if one was noted.
    fn report(&mut self, batches: Option<u64>) {
        if let Some(loss) = self.loss.take() {
            let damage = Damage { batches, ..loss };
            self.found.damages.push(damage);
            (self.each)(Found::Damage(damage));
        }
    }

    /// The count of batches with which the log goes on here.
    fn batches_or_more(&self) -> u64 {
        let unknown = if self.loss.is_some() { UNKNOWN } else { 0 };
        self.batches.unwrap_or(0) + unknown
    }

    /// Reads the groups of a segment; returns where they end.
    fn segment(&mut self, header: &SegmentHeader, bytes: &[u8]) -> u64 {
        self.found.segments += 1;
        self.last = 0;
        let begins = (header.first_group, header.previous_crc);
        if self
            .expected
            .is_some_and(|expected| (expected, self.crc) != begins)
        {
            self.damage(DamageKind::Chain, header.number, 0);
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
                    self.damage(DamageKind::Chain, header.number, offset);
                }
                self.group(header.number, offset, &group);
                offset += group.bytes();
                expected = expected.saturating_add(1);
                continue;
            }
            let Some((later, number)) = find_later(bytes, offset, header.salts(), expected) else {
                break;
            };
            self.damage(DamageKind::Bytes, header.number, offset);
            (offset, expected) = (later, number);
        }
        self.expected = Some(expected);
        offset
    }

    /// The last segment ends at this offset.
    fn end(&mut self, header: &SegmentHeader, bytes: &[u8], offset: u64) {
        let expected = self.expected.unwrap_or(header.first_group);
        self.found.torn = is_torn(bytes, offset, expected, self.crc).then_some(Torn {
            segment: header.number,
            offset,
        });
    }

    /// The log had come further than to this end, by its last segment's length or by the mark: that is damage, and the log goes on in a new segment.
    fn check_end(&mut self, mark: Option<Mark>, end: &mut Option<ScanEnd>) {
        if planted::is(Fault::LostEnd) {
            return;
        }
        let of_this_log = |mark: &Mark| self.found.identity.is_none_or(|it| it.log == mark.log);
        let (segment, group) = end.map_or((0, 0), |end| (end.segment, end.next_group - 1));
        let is_lost = |mark: Mark| mark.segment > segment || mark.group > group;
        let is_cut = end.is_some_and(|end| end.is_cut);
        if is_cut || mark.filter(of_this_log).is_some_and(is_lost) {
            let offset = end.map_or(0, |end| end.offset);
            self.damage(DamageKind::End, segment, offset);
            self.found.torn = None;
        }
        if let Some(end) = end.as_mut().filter(|_| self.loss.is_some()) {
            end.header = None;
            end.batches = self.batches_or_more();
        }
    }

    /// A segment ends at this offset, and another one comes: no group between the two may be missing.
    fn goes_on(&mut self, header: &SegmentHeader, offset: u64, next: Option<&SegmentHeader>) {
        let ends = (self.expected, self.crc);
        let follows = |next: &SegmentHeader| (Some(next.first_group), next.previous_crc) == ends;
        let adjoins = |next: &&SegmentHeader| Some(next.number) == header.number.checked_add(1);
        if next.filter(adjoins).is_some_and(|next| !follows(next)) {
            self.damage(DamageKind::Bytes, header.number, offset);
        }
    }

    fn group(&mut self, segment: u64, offset: u64, group: &Group<'_>) {
        let before = group.batches_before;
        let lost = self.batches.and_then(|known| before.checked_sub(known));
        // None lost: this is a group of another history.
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

/// Zeros that are compared at once: a multiple of the alignment.
const ZEROS: [u8; 4096] = [0; 4096];

/// The offset and number of the next group behind this offset that verifies and is not older than `expected`.
fn find_later(bytes: &[u8], offset: u64, salts: Salts, expected: u64) -> Option<(u64, u64)> {
    let mut at = offset + ALIGNMENT;
    while let Some(rest) = bytes.get(at as usize..).filter(|rest| !rest.is_empty()) {
        // The rest of a segment that is not full is zeros, and no group begins with them.
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

/// Whether the group that was to come next had begun.
fn is_torn(bytes: &[u8], offset: u64, expected: u64, crc: u32) -> bool {
    let header = bytes.get(offset as usize..).unwrap_or_default();
    let begins = |at: usize, wanted: &[u8]| header.get(at..at + wanted.len()) == Some(wanted);
    begins(8, &expected.to_le_bytes()) && begins(PREVIOUS_CRC, &crc.to_le_bytes())
}
