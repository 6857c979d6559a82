//! The batches of a partition on their way to the engine and back.
//!
//! Invariants: several batches may be in flight; one that is not committed is appended again, as it was, with all behind it. A batch has
//! records that were admitted in one second, which is its own, so that no wait for the engine changes what a record says.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Batch;
use super::batch::{HEADER_BYTES, Header, Kept, Records};
use crate::base::ids::{OFFSET_BITS, OFFSETS_PER_BATCH, PartitionId};
use crate::base::planted::{self, Fault};
use crate::base::snapshot::Out;

/// Records of a batch at most.
pub(super) const BATCH_RECORDS: u32 = 4096;
const _: () = assert!(BATCH_RECORDS as u64 <= OFFSETS_PER_BATCH);
/// Bytes at which a batch is full; a single record may be longer.
pub(super) const BATCH_BYTES: usize = 512 << 10;
/// Bytes that the buffer of a partition keeps between two batches: there may be hundreds of partitions.
pub(super) const OPEN_KEPT_BYTES: usize = 64 << 10;
/// So many offsets are marked ahead: one mark for a million facts that stand in no log.
const MARK_STEP: u64 = 1 << 20;
/// Batches of a partition in flight at most: enough to fill an engine whose answer takes some turns.
pub(super) const IN_FLIGHT_MAX: usize = 16;
/// The same where the log has several writers: one is on its way while the other is stored, and what waits meanwhile is one batch. With NATS 16 of them
/// answer no more publishes, in twice as many batches, each of which every node reads.
pub(super) const IN_FLIGHT_SHARED: usize = 2;
/// Seconds after which batches in flight are appended again, if none of them was committed.
pub(super) const AGAIN_S: u32 = 2;
/// The batch that is being filled.
#[derive(Default)]
struct Open {
    /// Its bytes, with room for its header.
    bytes: Vec<u8>,
    records: u32,
    /// Its offsets: those of its records, and of facts between them that stand in no log.
    offsets: u32,
    /// The second in which its records were admitted.
    unix_s: u32,
}

/// The batches of one partition.
pub(super) struct Batches {
    partition: PartitionId,
    /// The number of this process among the writers of the log.
    writer: u64,
    /// The log has other writers, and gives records their offsets.
    is_shared: bool,
    open: Open,
    /// No fact that stands in no log may have a higher offset.
    mark: u64,
    /// Batches that are closed and not committed.
    in_flight: VecDeque<Batch>,
    /// How many of them, the oldest, are at the engine.
    sent: usize,
    /// When they were appended last, or one of them was committed.
    since_s: u32,
    /// The number of the last batch that was closed, and of the last one that was committed.
    closed: u64,
    committed: u64,
    /// The offset behind the last batch that was closed, and behind the facts between its records and after them that stand in no log.
    next_offset: u64,
    /// Committed batches with records that are not applied.
    kept: VecDeque<Records>,
}

impl Batches {
    pub fn new(partition: PartitionId, writer: u64, is_shared: bool) -> Batches {
        Batches {
            partition,
            writer,
            is_shared,
            open: Open::default(),
            mark: 0,
            in_flight: VecDeque::new(),
            sent: 0,
            since_s: 0,
            closed: 0,
            committed: 0,
            next_offset: 0,
            kept: VecDeque::new(),
        }
    }

    /// A record of this second comes next: closes the open batch if it is full, or of another second.
    pub fn begin(&mut self, unix_s: u32, sequence: u64) {
        let is_full = self.open.records == BATCH_RECORDS || self.open.bytes.len() >= BATCH_BYTES;
        if self.open.records > 0 && (is_full || self.open.unix_s != unix_s) {
            self.close(sequence);
        }
        self.open.unix_s = unix_s;
        if self.open.bytes.is_empty() {
            self.open.bytes.resize(HEADER_BYTES, 0);
        }
    }

    /// Offsets of the open batch that are taken.
    pub fn offsets(&self) -> u32 {
        self.open.offsets
    }

    /// Adds a record to the open batch.
    pub fn add(&mut self, record: &[u8]) {
        Out(&mut self.open.bytes).field(record);
        self.open.records += 1;
        self.open.offsets += 1;
    }

    /// Leaves an offset of the open batch free, for a fact that stands in no log.
    pub fn skip_offset(&mut self) {
        self.open.offsets += 1;
    }

    /// The mark that must stand in the log before the next fact that does not gets its offset; none if one is high enough. `sequence` is the
    /// last offset of the partition.
    ///
    /// Where the log gives offsets, those between the last record and the next batch are free. When few of them are left a mark brings new
    /// ones, unless a batch is on its way that does.
    pub fn mark(&mut self, sequence: u64) -> Option<u64> {
        if self.is_shared {
            let spent = sequence % OFFSETS_PER_BATCH >= OFFSETS_PER_BATCH / 2;
            let comes = self.open.records > 0 || !self.in_flight.is_empty() || self.has_record();
            return (spent && !comes).then_some(0);
        }
        // One more for the mark's own record.
        let highest = self.next_offset.max(sequence + 1) + u64::from(self.open.offsets) + 1;
        (highest > self.mark).then(|| {
            self.mark = highest + MARK_STEP;
            self.mark
        })
    }

    /// Bytes of the buffer of the open batch.
    pub fn open_bytes(&self) -> usize {
        self.open.bytes.capacity()
    }

    /// Frees the buffer of the open batch, which has no records.
    pub fn free(&mut self) {
        self.open.bytes = Vec::new();
    }

    /// Closes the open batch. `sequence` is the last offset of the partition.
    fn close(&mut self, sequence: u64) {
        // Facts that stand in no log may have taken offsets since; others may wait for their turn behind the last batch yet.
        self.next_offset = match planted::is(Fault::StaleSequence) {
            true => sequence + 1,
            false => self.next_offset.max(sequence + 1),
        };
        self.closed += 1;
        let header = Header {
            partition: self.partition,
            writer: self.writer,
            number: self.closed,
            first: match self.is_shared {
                true => 0,
                false => self.next_offset,
            },
            unix_s: self.open.unix_s,
            records: self.open.records,
        };
        header.write(&mut self.open.bytes);
        self.open.records = 0;
        self.next_offset += u64::from(core::mem::take(&mut self.open.offsets));
        self.in_flight.push_back(Batch {
            partition: self.partition,
            number: self.closed,
            bytes: Arc::from(&self.open.bytes[..]),
        });
        self.open.bytes.clear();
        self.open.bytes.shrink_to(OPEN_KEPT_BYTES);
    }

    /// Closes the open batch if the engine is not far behind, and appends the batches that are not at the engine, or have been there for
    /// long. `sequence` tells the last offset of the partition.
    pub fn send(
        &mut self,
        now_s: u32,
        sequence: impl FnOnce() -> u64,
        append: &mut impl FnMut(Batch),
    ) {
        let most = match self.is_shared {
            true => IN_FLIGHT_SHARED,
            false => IN_FLIGHT_MAX,
        };
        if self.open.records > 0 && self.in_flight.len() < most {
            self.close(sequence());
        }
        if self.sent > 0 && now_s.saturating_sub(self.since_s) >= AGAIN_S {
            self.sent = 0;
            if planted::is(Fault::NewNumber) {
                self.renumber();
            }
        }
        if self.sent == 0 {
            self.since_s = now_s;
        }
        while self.sent < most
            && let Some(batch) = self.in_flight.get(self.sent)
        {
            append(batch.clone());
            self.sent += 1;
        }
    }

    /// Gives the batches in flight numbers behind the last one.
    fn renumber(&mut self) {
        let writer = self.writer;
        for batch in &mut self.in_flight {
            let mut bytes = batch.bytes.to_vec();
            self.closed += 1;
            let header = Header::read(&bytes).expect("this process wrote it");
            let number = self.closed;
            let header = Header {
                number,
                writer,
                ..header
            };
            header.write(&mut bytes);
            (batch.number, batch.bytes) = (number, bytes.into());
        }
        self.committed = self.closed - self.in_flight.len() as u64;
    }

    /// The number of this process among the writers.
    pub fn writer(&self) -> u64 {
        self.writer
    }

    /// This writer is dead for all others: what is in flight does not count. It goes on as the next one, whose first batches have the same records.
    pub fn go_on_as_another(&mut self) {
        self.writer += 1;
        (self.closed, self.sent) = (0, 0);
        self.renumber();
    }

    /// A batch of this writer stands in the log; says whether it counts.
    pub fn committed(&mut self, number: u64, (first, unix_s): (u64, u32), now_s: u32) -> bool {
        if number <= self.committed {
            return false;
        }
        if number > self.committed + 1 && !planted::is(Fault::GapAccepted) {
            // A missing batch comes again, and then all behind it.
            self.sent = 0;
            return false;
        }
        let Some(batch) = self.in_flight.pop_front() else {
            return false;
        };
        (self.committed, self.since_s) = (number, now_s);
        self.sent = self.sent.saturating_sub(1);
        self.kept
            .push_back(Records::new(batch.bytes, first, unix_s));
        true
    }

    /// The second of the oldest record that is not applied.
    pub fn oldest_s(&self) -> Option<u32> {
        let kept = self.kept.front().map(Records::unix_s);
        let in_flight = self.in_flight.front();
        let in_flight = || Some(Header::read(&in_flight?.bytes).ok()?.unix_s);
        let open = || (self.open.records > 0).then_some(self.open.unix_s);
        kept.or_else(in_flight).or_else(open)
    }

    /// A fault: the engine's answer is not waited for. `sequence` is the last offset of the partition.
    pub fn commit_all(&mut self, sequence: u64, now_s: u32) -> bool {
        let mut any = false;
        while let Some(batch) = self.in_flight.front() {
            let header = Header::read(&batch.bytes).expect("this process wrote it");
            let first = match self.is_shared {
                true => ((sequence >> OFFSET_BITS) + 1) << OFFSET_BITS,
                false => header.first,
            };
            any |= self.committed(header.number, (first, header.unix_s), now_s);
        }
        any
    }

    /// Whether a record stands in the log that was not taken.
    pub fn has_record(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The next record that stands in the log.
    pub fn next_record(&mut self) -> Option<Kept> {
        let records = self.kept.front_mut()?;
        let record = records.next();
        if records.is_empty() {
            self.kept.pop_front();
        }
        Some(record)
    }
}
