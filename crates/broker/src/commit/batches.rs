//! The uncommitted batches of a partition: the open batch, to which records are added, and the batches in flight to the log.
//!
//! Words: a *fact* is a message or a change of a topic. An *unlogged* fact (of a topic that is not durable) gets an offset but no record. A *mark* is a
//! record that reserves offsets for unlogged facts. A *writer* is one process under one number; the process gets a new number if the log declares it dead.
//!
//! Invariants: a batch that is not committed in time is appended again unchanged, with all batches after it. All records of a batch were admitted in the
//! second that its header has, so waiting for the engine does not change the time of a record.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Batch;
use super::batch::{HEADER_BYTES, Header};
use crate::base::ids::{OFFSETS_PER_BATCH, PartitionId};
use crate::base::planted::{self, Fault};
use crate::base::snapshot::FieldWriter;

/// The maximum number of records of a batch. A batch that has used this many offsets takes no more records.
pub(super) const BATCH_RECORDS_MAX: u32 = 4096;
const _: () = assert!(BATCH_RECORDS_MAX as u64 <= OFFSETS_PER_BATCH);
/// A batch with this many bytes is full. Its last record may exceed this limit.
pub(super) const BATCH_BYTES: usize = 512 << 10;
/// The capacity that the buffer of an open batch keeps for the next batch. This is little, since there may be hundreds of partitions.
pub(super) const OPEN_BUFFER_KEPT_BYTES: usize = 64 << 10;
/// How many offsets a mark reserves: a million unlogged facts need one mark.
const OFFSETS_PER_MARK: u64 = 1 << 20;
/// The maximum number of batches of a partition in flight. This many keep an engine busy that takes some turns (passes of the shard's loop) for a batch.
pub(super) const IN_FLIGHT_MAX: usize = 16;
/// The maximum number of batches of a partition in flight to a replicated log: one is sent while another is stored, and further records
/// wait in the open batch. With 16 batches in flight to NATS, the rate of publishes is not higher, but the records make twice as many batches, which
/// every node must read.
pub(super) const IN_FLIGHT_REPLICATED_MAX: usize = 2;
/// Seconds without a commit after which batches in flight are appended again.
pub(super) const RESEND_S: u32 = 2;

/// The batch to which records are added.
#[derive(Default)]
struct OpenBatch {
    /// The header, which is written when the batch is closed, then the records.
    bytes: Vec<u8>,
    record_count: u32,
    /// The number of offsets that the batch uses: one for each record, and one for each unlogged fact before or between the records.
    offset_count: u32,
    /// The second in which the records were admitted.
    unix_s: u32,
}

pub(super) struct Batches {
    partition: PartitionId,
    /// The number of this process as a writer of the partition.
    pub writer: u64,
    /// Whether the log is replicated: it has other writers too, and the log assigns the offsets.
    pub is_replicated: bool,
    open_batch: OpenBatch,
    /// The last mark: the highest offset that an unlogged fact may have.
    last_mark: u64,
    /// Closed batches that are not committed, the oldest first.
    pub in_flight: VecDeque<Batch>,
    /// The number of batches in flight, from the oldest, that the engine has got.
    sent_count: usize,
    /// When the oldest batch in flight was last appended, or a batch was last committed, in seconds (`Now::s`).
    progress_s: u32,
    /// The number of the last closed batch.
    last_number: u64,
    /// The first offset after the last closed batch and its unlogged facts.
    next_offset: u64,
}

impl Batches {
    pub fn new(partition: PartitionId, writer: u64, is_replicated: bool) -> Batches {
        Batches {
            partition,
            writer,
            is_replicated,
            open_batch: OpenBatch::default(),
            last_mark: 0,
            in_flight: VecDeque::new(),
            sent_count: 0,
            progress_s: 0,
            last_number: 0,
            next_offset: 0,
        }
    }

    /// Adds a record to the open batch and returns the length of the record. Closes the open batch first if it is full, or if its records are of another
    /// second than `unix_s`. `encode` appends the record to the buffer; its argument is the record's offset minus the first offset of the batch.
    /// `sequence` is the last offset of the partition.
    pub fn write(
        &mut self,
        unix_s: u32,
        sequence: u64,
        buffer: &mut Vec<u8>,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> usize {
        let is_full = self.open_batch.offset_count >= BATCH_RECORDS_MAX
            || self.open_batch.bytes.len() >= BATCH_BYTES;
        if self.open_batch.record_count > 0 && (is_full || self.open_batch.unix_s != unix_s) {
            self.close(sequence);
        }
        let open = &mut self.open_batch;
        open.unix_s = unix_s;
        if open.bytes.is_empty() {
            open.bytes.resize(HEADER_BYTES, 0);
        }
        buffer.clear();
        encode(buffer, open.offset_count);
        FieldWriter(&mut open.bytes).field(buffer);
        open.record_count += 1;
        open.offset_count += 1;
        buffer.len()
    }

    /// Leaves an offset of the open batch to an unlogged fact. Not needed if the log assigns the offsets and the open batch has no records: then the
    /// offsets before the batch are free.
    pub fn skip_offset(&mut self) {
        if !self.is_replicated || self.open_batch.record_count > 0 {
            self.open_batch.offset_count += 1;
        }
    }

    /// The offset that an unlogged fact would have at most, if a mark and then the fact were queued now.
    fn offset_after_mark(&self, sequence: u64) -> u64 {
        self.next_offset.max(sequence + 1) + u64::from(self.open_batch.offset_count) + 1
    }

    /// Whether the log needs a new mark before the next unlogged fact gets an offset. False if the log assigns the offsets, since it leaves offsets free
    /// after each batch. `sequence` is the last offset of the partition.
    pub fn needs_mark(&self, sequence: u64) -> bool {
        !self.is_replicated
            && self.offset_after_mark(sequence) > self.last_mark
            && !planted::is(Fault::NoMark)
    }

    /// Sets and returns a new mark, if the log [needs](Self::needs_mark) one.
    pub fn new_mark(&mut self, sequence: u64) -> Option<u64> {
        self.needs_mark(sequence).then(|| {
            self.last_mark = self.offset_after_mark(sequence) + OFFSETS_PER_MARK;
            self.last_mark
        })
    }

    pub fn open_bytes(&self) -> usize {
        self.open_batch.bytes.capacity()
    }

    /// Frees the open batch's buffer if the batch has no records.
    pub fn free_buffer(&mut self) {
        if self.open_batch.record_count == 0 {
            self.open_batch.bytes = Vec::new();
        }
    }

    /// Closes the open batch. `sequence` is the last offset of the partition.
    fn close(&mut self, sequence: u64) {
        // Unlogged facts after the last batch use offsets, too: facts that were applied up to `sequence`, and facts that wait below `next_offset`.
        self.next_offset = match planted::is(Fault::StaleSequence) {
            true => sequence + 1,
            false => self.next_offset.max(sequence + 1),
        };
        self.last_number += 1;
        let OpenBatch {
            bytes,
            record_count: records,
            offset_count: offsets,
            unix_s,
        } = &mut self.open_batch;
        let header = Header {
            partition: self.partition,
            writer: self.writer,
            number: self.last_number,
            first_offset: match self.is_replicated {
                true => 0,
                false => self.next_offset,
            },
            unix_s: *unix_s,
            record_count: core::mem::take(records),
        };
        header.write(bytes);
        self.next_offset += u64::from(core::mem::take(offsets));
        self.in_flight.push_back(Batch {
            header,
            bytes: Arc::from(&bytes[..]),
        });
        bytes.clear();
        bytes.shrink_to(OPEN_BUFFER_KEPT_BYTES);
    }

    /// Closes the open batch, unless too many batches are in flight. Appends the batches that the engine has not got yet, or all batches
    /// in flight if no batch was committed for [`RESEND_S`]. `sequence` returns the last offset of the partition.
    pub fn append_batches(
        &mut self,
        now_s: u32,
        sequence: impl FnOnce() -> u64,
        append: &mut impl FnMut(Batch),
    ) {
        let in_flight_max = match self.is_replicated {
            true => IN_FLIGHT_REPLICATED_MAX,
            false => IN_FLIGHT_MAX,
        };
        if self.open_batch.record_count > 0 && self.in_flight.len() < in_flight_max {
            self.close(sequence());
        }
        if self.sent_count > 0 && now_s.saturating_sub(self.progress_s) >= RESEND_S {
            self.sent_count = 0;
            if planted::is(Fault::NewNumber) {
                self.renumber();
            }
        }
        if self.sent_count == 0 {
            self.progress_s = now_s;
        }
        while self.sent_count < in_flight_max
            && let Some(batch) = self.in_flight.get(self.sent_count)
        {
            append(batch.clone());
            self.sent_count += 1;
        }
    }

    /// Gives the batches in flight the numbers after `last_number`, and the present writer.
    fn renumber(&mut self) {
        for batch in &mut self.in_flight {
            self.last_number += 1;
            (batch.header.number, batch.header.writer) = (self.last_number, self.writer);
            let mut bytes = batch.bytes.to_vec();
            batch.header.write(&mut bytes);
            batch.bytes = bytes.into();
        }
    }

    /// Continues as the next writer, after the log has declared this writer dead. The batches in flight are void, so the next writer
    /// appends their records in its first batches.
    pub fn restart_as_next_writer(&mut self) {
        self.writer += 1;
        (self.last_number, self.sent_count) = (0, 0);
        self.renumber();
    }

    /// Handles the report that the log contains the batch `number` of this writer. Returns the batch if it is the next one.
    pub fn take_committed(&mut self, number: u64, now_s: u32) -> Option<Arc<[u8]>> {
        let next_number = self.last_number + 1 - self.in_flight.len() as u64;
        if number < next_number {
            return None;
        }
        if number > next_number && !planted::is(Fault::GapAccepted) {
            // The log lacks a batch. That batch and all later ones are appended again.
            self.sent_count = 0;
            return None;
        }
        let batch = self.in_flight.pop_front()?;
        self.progress_s = now_s;
        self.sent_count = self.sent_count.saturating_sub(1);
        Some(batch.bytes)
    }

    /// The Unix second in which the oldest record that is not committed was admitted.
    pub fn oldest_unix_s(&self) -> Option<u32> {
        let in_flight = self.in_flight.front().map(|batch| batch.header.unix_s);
        let open = || (self.open_batch.record_count > 0).then_some(self.open_batch.unix_s);
        in_flight.or_else(open)
    }
}
