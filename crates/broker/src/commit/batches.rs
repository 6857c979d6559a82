//! The batches of a partition on their way to the engine.
//!
//! Invariants: several batches may be in flight; one that is not committed is appended again, as it was, with all behind it. A batch has
//! records that were admitted in one second, which is its own, so that no wait for the engine changes what a record says.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Batch;
use super::batch::{HEADER_BYTES, Header};
use crate::base::ids::{OFFSETS_PER_BATCH, PartitionId};
use crate::base::planted::{self, Fault};
use crate::base::snapshot::Out;

/// Records of a batch at most, and offsets of one that has records.
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
pub(super) const IN_FLIGHT_REPLICATED: usize = 2;
/// Seconds after which batches in flight are appended again, if none of them was committed.
pub(super) const RESEND_S: u32 = 2;

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
    pub writer: u64,
    /// The log has other writers, and gives records their offsets.
    pub is_shared: bool,
    open: Open,
    /// No fact that stands in no log may have a higher offset.
    mark: u64,
    /// Batches that are closed and not committed.
    pub in_flight: VecDeque<Batch>,
    /// How many of them, the oldest, are at the engine.
    sent: usize,
    /// When they were appended last, or one of them was committed.
    since_s: u32,
    /// The number of the last batch that was closed.
    closed: u64,
    /// The offset behind the last batch that was closed, and behind the facts between its records and after them that stand in no log.
    next_offset: u64,
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
            next_offset: 0,
        }
    }

    /// Adds a record to the open batch, and returns its length; a batch that is full, or of another second, is closed before. `encode` appends
    /// the record to the buffer; it gets the distance from the offset of the batch's first record to that of this one. `sequence` is the last offset of the partition.
    pub fn write(
        &mut self,
        (unix_s, sequence): (u32, u64),
        buffer: &mut Vec<u8>,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> usize {
        let is_full = self.open.offsets >= BATCH_RECORDS || self.open.bytes.len() >= BATCH_BYTES;
        if self.open.records > 0 && (is_full || self.open.unix_s != unix_s) {
            self.close(sequence);
        }
        let open = &mut self.open;
        open.unix_s = unix_s;
        if open.bytes.is_empty() {
            open.bytes.resize(HEADER_BYTES, 0);
        }
        buffer.clear();
        encode(buffer, open.offsets);
        Out(&mut open.bytes).field(buffer);
        open.records += 1;
        open.offsets += 1;
        buffer.len()
    }

    /// Leaves an offset of the open batch free, for a fact that stands in no log. Where the log gives offsets, those before the open batch are
    /// free without that.
    pub fn skip_offset(&mut self) {
        if !self.is_shared || self.open.records > 0 {
            self.open.offsets += 1;
        }
    }

    /// The offset of a mark, and one more for the fact behind it.
    fn highest(&self, sequence: u64) -> u64 {
        self.next_offset.max(sequence + 1) + u64::from(self.open.offsets) + 1
    }

    /// Whether a mark must stand in the log before the next fact that does not gets its offset. `sequence` is the last offset of the partition.
    /// Where the log gives offsets, those up to the next batch are free.
    pub fn needs_mark(&self, sequence: u64) -> bool {
        !self.is_shared && self.highest(sequence) > self.mark && !planted::is(Fault::NoMark)
    }

    /// The mark that must.
    pub fn mark(&mut self, sequence: u64) -> Option<u64> {
        self.needs_mark(sequence).then(|| {
            self.mark = self.highest(sequence) + MARK_STEP;
            self.mark
        })
    }

    /// Bytes of the buffer of the open batch.
    pub fn open_bytes(&self) -> usize {
        self.open.bytes.capacity()
    }

    /// Frees the buffer of the open batch, if that has no records.
    pub fn free(&mut self) {
        if self.open.records == 0 {
            self.open.bytes = Vec::new();
        }
    }

    /// Closes the open batch. `sequence` is the last offset of the partition.
    fn close(&mut self, sequence: u64) {
        // Facts that stand in no log may have taken offsets since; others may wait for their turn behind the last batch yet.
        self.next_offset = match planted::is(Fault::StaleSequence) {
            true => sequence + 1,
            false => self.next_offset.max(sequence + 1),
        };
        self.closed += 1;
        let Open {
            bytes,
            records,
            offsets,
            unix_s,
        } = &mut self.open;
        let header = Header {
            partition: self.partition,
            writer: self.writer,
            number: self.closed,
            first: match self.is_shared {
                true => 0,
                false => self.next_offset,
            },
            unix_s: *unix_s,
            records: core::mem::take(records),
        };
        header.write(bytes);
        self.next_offset += u64::from(core::mem::take(offsets));
        self.in_flight.push_back(Batch {
            header,
            bytes: Arc::from(&bytes[..]),
        });
        bytes.clear();
        bytes.shrink_to(OPEN_KEPT_BYTES);
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
            true => IN_FLIGHT_REPLICATED,
            false => IN_FLIGHT_MAX,
        };
        if self.open.records > 0 && self.in_flight.len() < most {
            self.close(sequence());
        }
        if self.sent > 0 && now_s.saturating_sub(self.since_s) >= RESEND_S {
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
        for batch in &mut self.in_flight {
            self.closed += 1;
            (batch.header.number, batch.header.writer) = (self.closed, self.writer);
            let mut bytes = batch.bytes.to_vec();
            batch.header.write(&mut bytes);
            batch.bytes = bytes.into();
        }
    }

    /// This writer is dead for all others: what is in flight does not count. It goes on as the next writer, and writes the same records in its first batches.
    pub fn restart_as_next_writer(&mut self) {
        self.writer += 1;
        (self.closed, self.sent) = (0, 0);
        self.renumber();
    }

    /// A batch of this writer stands in the log: takes its bytes, if it counts.
    pub fn committed(&mut self, number: u64, now_s: u32) -> Option<Arc<[u8]>> {
        let next = self.closed + 1 - self.in_flight.len() as u64;
        if number < next {
            return None;
        }
        if number > next && !planted::is(Fault::GapAccepted) {
            // A missing batch comes again, and then all behind it.
            self.sent = 0;
            return None;
        }
        let batch = self.in_flight.pop_front()?;
        self.since_s = now_s;
        self.sent = self.sent.saturating_sub(1);
        Some(batch.bytes)
    }

    /// The second of the oldest record that is not committed.
    pub fn oldest_s(&self) -> Option<u32> {
        let in_flight = self.in_flight.front().map(|batch| batch.header.unix_s);
        let open = || (self.open.records > 0).then_some(self.open.unix_s);
        in_flight.or_else(open)
    }
}
