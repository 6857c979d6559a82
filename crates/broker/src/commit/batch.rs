//! The format of a batch of a log: a header, then records. The engine (which writes the log) stores the length and checksum of the batch.
//! Numbers in the header are little endian.
//!
//! ```text
//!  0 u8 format     1 u8 flags, 0     2 u16 partition
//!  4 u64 writer   12 u64 number     20 u64 first offset   28 u32 unix second   32 u32 records   36 records
//! record: varint length, u8 kind, varint offset minus the first offset, body (`record`)
//! ```
//!
//! A *writer* is a process that writes to the log, and has a number.

use alloc::sync::Arc;
use core::ops::Range;

use super::record::{self, ControlRecord};
use crate::base::ids::{OFFSETS_PER_BATCH, PartitionId};
use crate::base::placement::{Placement, SlottedOffset};
use crate::base::record_kind::RecordKind;
use crate::base::snapshot::{Damaged, FieldReader};
use crate::base::writer_set::NUMBER_MAX;
use crate::budget::admission::Client;
use crate::mail::Fact;
use crate::mail::session::record::SessionRecord;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 36;
/// The version of the format of batches and records. A change needs a new version of the cluster's format, too (`FORMATS` of the server).
pub const FORMAT: u8 = 1;

/// A replicated log must store a *fact* (a message, or a change of a topic) within this many seconds of its admission. A fact that is
/// stored later is void for every reader. So a fact takes effect before its publisher is told that the outcome is unknown (`OVERDUE_S` in
/// `queue.rs`), or never. This time is four seconds shorter than `OVERDUE_S`: both are differences of whole seconds, and the writer's clock
/// may be nearly two seconds ahead of the log's clock. The limit also holds for claims of MQTT sessions, but not for other records.
pub const STORE_WITHIN_S: u32 = 6;

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The partition of the records.
    pub partition: PartitionId,
    /// The writer of the batch.
    pub writer: u64,
    /// The number of the batch among the batches of its writer in the partition.
    pub number: u64,
    /// The first offset of the batch, if the writer assigns the offsets; otherwise 0. The offset of the first record is higher if unlogged
    /// facts (facts without a record) precede it.
    pub first_offset: u64,
    /// When the records were admitted, in Unix seconds.
    pub unix_s: u32,
    /// The number of records.
    pub record_count: u32,
}

impl Header {
    /// Writes the header into the first [`HEADER_BYTES`] of a batch.
    pub(crate) fn write(&self, batch: &mut [u8]) {
        batch[0] = FORMAT;
        batch[1] = 0;
        batch[2..4].copy_from_slice(&self.partition.to_le_bytes());
        batch[4..12].copy_from_slice(&self.writer.to_le_bytes());
        batch[12..20].copy_from_slice(&self.number.to_le_bytes());
        batch[20..28].copy_from_slice(&self.first_offset.to_le_bytes());
        batch[28..32].copy_from_slice(&self.unix_s.to_le_bytes());
        batch[32..36].copy_from_slice(&self.record_count.to_le_bytes());
    }

    /// Reads the header of a batch.
    ///
    /// # Errors
    /// The batch is too short, or has another format.
    pub fn read(batch: &[u8]) -> Result<Header, Damaged> {
        let mut fields = FieldReader(batch);
        if fields.byte()? != FORMAT {
            return Err(Damaged("a batch has another format"));
        }
        if fields.byte()? != 0 {
            return Err(Damaged("a batch has flags that its format does not have"));
        }
        let low = fields.byte()?;
        Ok(Header {
            partition: PartitionId::from_le_bytes([low, fields.byte()?]),
            writer: fields.word()?,
            number: fields.word()?,
            first_offset: fields.word()?,
            unix_s: fields.fixed32()?,
            record_count: fields.fixed32()?,
        })
    }
}

/// The content of a record.
#[derive(Clone, Copy, Debug)]
pub enum LogRecord<'a> {
    /// A message, or a change of a topic. The hash of the topic's name is 0.
    Fact(&'a Fact<'a>),
    /// A control record.
    Control(ControlRecord<'a>),
    /// A change of an MQTT session.
    Session(&'a SessionRecord<'a>),
}

impl LogRecord<'_> {
    /// The kind of the record.
    pub fn kind(&self) -> RecordKind {
        match self {
            LogRecord::Fact(fact) => fact.kind(),
            LogRecord::Control(control) => control.kind(),
            LogRecord::Session(session) => session.change.kind(),
        }
    }
}

/// Checks a batch of the log before any record of it is applied: the format, the order of the records, and each field, with the checks
/// of a publish.
///
/// In a replicated log (`is_replicated`) a batch that fails this check is void: no node wrote it, since nodes write only valid batches. Every reader of
/// the log uses this function (a node that serves, a node that starts, and a shadow that makes a checkpoint), so that all agree.
///
/// # Errors
/// What is wrong with the batch.
pub fn check(batch: &[u8], placement: Placement, is_replicated: bool) -> Result<Header, Damaged> {
    let header = Header::read(batch)?;
    if header.partition >= placement.partitions() {
        return Err(Damaged("there is no such partition"));
    }
    if header.writer == 0 || !(1..NUMBER_MAX).contains(&header.number) || header.record_count == 0 {
        return Err(Damaged("the header of a batch is impossible"));
    }
    let mut records = FieldReader(&batch[HEADER_BYTES..]);
    let mut next_offset_delta = 0;
    for _ in 0..header.record_count {
        let record = records.field()?;
        let checked = record::check_record(record, header.partition, placement, is_replicated)?;
        let Some(offset_delta) = checked else {
            continue;
        };
        if u64::from(offset_delta) < next_offset_delta {
            return Err(Damaged("the records of a batch are in disorder"));
        }
        next_offset_delta = u64::from(offset_delta) + 1;
    }
    records.expect_end()?;
    let fits = match is_replicated {
        true => next_offset_delta <= OFFSETS_PER_BATCH,
        false => {
            header.first_offset > 0
                && header.first_offset.saturating_add(next_offset_delta)
                    <= SlottedOffset::OFFSET_MAX
        }
    };
    match fits {
        true => Ok(header),
        false => Err(Damaged("a batch has impossible offsets")),
    }
}

/// Reads a batch for tools that show a log: calls `visit` with the offset of each record, and the record.
///
/// # Errors
/// The batch is malformed. `visit` was already called for the records before the fault.
pub fn for_each_record(
    batch: &[u8],
    mut visit: impl FnMut(u64, LogRecord<'_>),
) -> Result<Header, Damaged> {
    let header = Header::read(batch)?;
    let mut records = FieldReader(&batch[HEADER_BYTES..]);
    let offset = |offset_delta: u32| header.first_offset.saturating_add(offset_delta.into());
    for _ in 0..header.record_count {
        let record = records.field()?;
        if record::may_skip_unknown(record) == Some(true) {
            continue;
        }
        if let Some((offset_delta, control)) = ControlRecord::decode(record)? {
            visit(offset(offset_delta), LogRecord::Control(control));
        } else if let Some((offset_delta, session)) = SessionRecord::decode(record)? {
            visit(offset(offset_delta), LogRecord::Session(&session));
        } else {
            Fact::decode(
                record,
                |_| 0,
                Client::NOBODY,
                |offset_delta, fact| {
                    visit(offset(offset_delta), LogRecord::Fact(fact));
                },
            )?;
        }
    }
    records.expect_end()?;
    Ok(header)
}

/// The header of a batch that the log has stored, with the time at which the batch was written.
#[derive(Clone, Copy)]
pub(crate) struct StoredHeader {
    /// The header. In a replicated log, the log has assigned its `first_offset` and `unix_s`.
    pub header: Header,
    /// When the records were admitted, by the clock of the writer.
    pub admitted_unix_s: u32,
}

impl StoredHeader {
    /// The stored header of a batch; `header` is as the engine reports it.
    pub fn new(header: Header, batch: &[u8]) -> StoredHeader {
        let written_s = Header::read(batch).map_or(header.unix_s, |it| it.unix_s);
        StoredHeader {
            header,
            admitted_unix_s: written_s,
        }
    }

    /// Whether a replicated log stored the batch too late. Then its facts and its claims of sessions are void, since other nodes may have published newer
    /// values in the meantime. The batch itself is valid, and so is the writer's next batch.
    pub fn is_late(&self) -> bool {
        is_late(self.admitted_unix_s, self.header.unix_s)
    }
}

/// Whether facts that were admitted at `written_s` are void because a replicated log stored them as late as `stored_s`.
pub const fn is_late(written_s: u32, stored_s: u32) -> bool {
    stored_s.saturating_sub(written_s) > STORE_WITHIN_S
}

/// The records of a committed batch. Each call of [`take_next`](Records::take_next) returns the next record.
pub(crate) struct Records {
    stored: StoredHeader,
    batch: Arc<[u8]>,
    position: usize,
}

/// A record of a committed batch.
pub(crate) struct Record {
    pub stored: StoredHeader,
    batch: Arc<[u8]>,
    range: Range<usize>,
}

impl Record {
    pub fn bytes(&self) -> &[u8] {
        &self.batch[self.range.clone()]
    }

    /// Whether this is the last record of its batch.
    pub fn is_last(&self) -> bool {
        self.range.end == self.batch.len()
    }
}

impl Records {
    /// The records of a batch; `header` is as the engine reports it.
    pub fn new(header: Header, batch: Arc<[u8]>) -> Records {
        Records {
            stored: StoredHeader::new(header, &batch),
            batch,
            position: HEADER_BYTES,
        }
    }

    pub fn unix_s(&self) -> u32 {
        self.stored.header.unix_s
    }

    pub fn is_empty(&self) -> bool {
        self.position >= self.batch.len()
    }

    /// The range of the next record's bytes in the batch. After the last record, the range is empty and at the end of the batch.
    fn next_range(&self) -> Range<usize> {
        let end = self.batch.len();
        let mut fields = FieldReader(&self.batch[self.position..]);
        match fields.field() {
            Ok(record) => end - fields.0.len() - record.len()..end - fields.0.len(),
            Err(_) => end..end,
        }
    }

    /// The bytes of the next record.
    pub fn peek(&self) -> &[u8] {
        &self.batch[self.next_range()]
    }

    /// Takes the next record.
    pub fn take_next(&mut self) -> Record {
        let range = self.next_range();
        self.position = range.end;
        Record {
            stored: self.stored,
            batch: self.batch.clone(),
            range,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::base::snapshot::FieldWriter;
    use crate::mail::Change;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = Header {
            partition: 0x0102,
            writer: 1 << 60,
            number: 3,
            first_offset: 1 << 40,
            unix_s: u32::MAX,
            record_count: 4096,
        };
        let mut bytes = [0; HEADER_BYTES];
        header.write(&mut bytes);
        assert_eq!(Header::read(&bytes), Ok(header));
        for len in 0..HEADER_BYTES {
            assert!(Header::read(&bytes[..len]).is_err());
        }
        bytes[0] = 2;
        assert!(Header::read(&bytes).is_err());
    }

    #[test]
    fn records_of_a_batch_are_read_with_their_offsets_and_a_cut_batch_is_refused() {
        let name = &b"a/b"[..];
        let client = Client::NOBODY;
        let fact = |change| Fact::Topic {
            change,
            hash: 0,
            name,
            client,
        };
        let header = Header {
            partition: 1,
            writer: 2,
            number: 3,
            first_offset: 100,
            unix_s: 4,
            record_count: 4,
        };
        let mut bytes = alloc::vec![0; HEADER_BYTES];
        header.write(&mut bytes);
        let mut record = Vec::new();
        for (offset_delta, change) in [(0, Change::Create), (5, Change::PurgeSome(7, 8))] {
            record.clear();
            fact(change).encode(&mut record, offset_delta);
            FieldWriter(&mut bytes).field(&record);
        }
        record.clear();
        ControlRecord::Mark(1000).encode(&mut record, 6);
        FieldWriter(&mut bytes).field(&record);
        // A kind of record that a later version may add, and that readers may skip.
        FieldWriter(&mut bytes).field(&[0xff, 7]);
        let mut found = Vec::new();
        let mut visit = |offset, entry: LogRecord<'_>| match entry {
            LogRecord::Fact(fact) => {
                let Fact::Topic { change, name, .. } = *fact else {
                    panic!("no message was written");
                };
                found.push((offset, Some((change, name.to_vec())), 0));
            }
            LogRecord::Control(ControlRecord::Mark(until)) => found.push((offset, None, until)),
            LogRecord::Control(control) => panic!("{control:?}"),
            LogRecord::Session(session) => panic!("{session:?}"),
        };
        assert_eq!(for_each_record(&bytes, &mut visit), Ok(header));
        let change = |change| Some((change, name.to_vec()));
        let expected = [
            (100, change(Change::Create), 0),
            (105, change(Change::PurgeSome(7, 8)), 0),
            (106, None, 1000),
        ];
        assert_eq!(found, expected);
        for len in 0..bytes.len() {
            assert!(
                for_each_record(&bytes[..len], |_, _| ()).is_err(),
                "{len} bytes"
            );
        }
        bytes.push(0);
        assert!(for_each_record(&bytes, |_, _| ()).is_err());
    }
}
