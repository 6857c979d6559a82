//! The queues of requests that wait at a home (the part of a shard that keeps topics) for the engine, which writes the log: writes whose
//! records are not committed yet, and the requests after these writes.
//!
//! Each partition has a queue. A request takes effect after all earlier requests to the same partition. A request that concerns all
//! partitions of the home has an entry in each queue. The request takes effect when its entry is the first of every queue, and all later
//! requests wait until then.
//!
//! A replicated log also has records of other writers. They are applied between the records of this process, in the order of the log. A request that
//! writes nothing waits neither for these records nor for the control records that a node writes without a request. Whether a batch is valid is decided only
//! when all earlier batches are applied, since an earlier record may declare the writer of the batch dead.
//!
//! An *unlogged fact* is a message or a change of a topic that gets an offset but no record. A *mark* is a record that reserves offsets for
//! unlogged facts.
//!
//! Invariant: the writes of a queue are in the order of their records in the log (`batches`).
//!
//! Words: a *writer* is a process that writes to the log, and has a number; a *turn* is a pass of the shard's loop.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::batch::{Record, Records, STORE_WITHIN_S};
use super::batches::Batches;
use super::record::{ControlRecord, is_node_control_record};
use super::{Batch, Committed, ForeignBatch};
use crate::base::placement::Placement;
use crate::base::planted::{self, Fault};
use crate::base::time::Now;

/// The capacity that the buffer for encoding a record keeps for the next record.
const RECORD_KEPT_BYTES: usize = 512 << 10;
/// A request that has waited for this many seconds is overdue: its sender is told that the outcome is unknown.
const OVERDUE_S: u32 = 10;
const _: () = assert!(OVERDUE_S >= STORE_WITHIN_S + 4);

/// The entry of a request in a queue.
struct Entry<T> {
    /// Whether the request waits for its record. The requests that wait for records are in the order of these records in the log.
    is_write: bool,
    queued_s: u32,
    /// `None` if the request concerns all partitions. Then it is in the queue `all_partitions`, and this entry only keeps its place.
    request: Option<T>,
    /// The bytes that were counted for the request.
    bytes: usize,
}

/// Entries in the order in which their requests were made.
struct RequestQueue<T> {
    entries: VecDeque<Entry<T>>,
    /// The number of entries, from the first, that were already reported as overdue.
    reported_count: usize,
}

impl<T> RequestQueue<T> {
    const fn new() -> RequestQueue<T> {
        RequestQueue {
            entries: VecDeque::new(),
            reported_count: 0,
        }
    }

    fn pop_first(&mut self) -> Option<Entry<T>> {
        self.reported_count = self.reported_count.saturating_sub(1);
        self.entries.pop_front()
    }

    fn next_overdue(&mut self, now_s: u32) -> Option<&mut Entry<T>> {
        let entry = self.entries.get_mut(self.reported_count)?;
        let is_overdue = now_s.saturating_sub(entry.queued_s) >= OVERDUE_S;
        self.reported_count += usize::from(is_overdue);
        is_overdue.then_some(entry)
    }
}

/// The batch whose records are being applied.
struct CurrentBatch {
    records: Records,
    is_own: bool,
    /// Keeps the batch counted in its backlog while its records are applied.
    foreign: Option<ForeignBatch>,
}

struct PartitionQueue<T> {
    requests: RequestQueue<T>,
    batches: Batches,
    /// Committed batches that are not applied yet, in the order of the log.
    committed: VecDeque<Committed>,
    current: Option<CurrentBatch>,
}

/// The request or record that takes effect next.
pub(crate) enum Next<T> {
    /// A request, with its record if it waited for one.
    Request(T, Option<Record>),
    /// A record that no request waits for. `is_own`: this process wrote the record's batch. The number of the batch's writer does not tell this: if an
    /// earlier record of the batch has declared that writer dead, this process has a new number.
    Record { record: Record, is_own: bool },
}

/// What takes effect next in one partition.
struct NextOfPartition<T> {
    entry: Option<Entry<T>>,
    record: Option<Record>,
    /// Whether this process wrote the record.
    is_own: bool,
}

/// The partitions that a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The partition at this index in the home.
    Partition(usize),
    /// All partitions of the home.
    All,
}

fn backlog_bytes(foreign: Option<&ForeignBatch>) -> usize {
    foreign.map_or(0, |it| it.bytes().len())
}

/// The queues of all partitions of a home.
pub(crate) struct CommitQueues<T> {
    is_replicated: bool,
    queues: Vec<PartitionQueue<T>>,
    /// The requests that concern all partitions of the home.
    all_partitions: RequestQueue<T>,
    /// The index of the queue that is examined first.
    next_queue: usize,
    /// The cursor of the search for requests that were overdue at `overdue_search_s`: the index of a partition's queue, or the number of partitions for
    /// `all_partitions`. If the cursor is higher, no search is in progress.
    overdue_search_queue: usize,
    overdue_search_s: u32,
    may_have_due: bool,
    request_count: usize,
    /// The bytes of waiting requests, and of committed batches of other writers.
    bytes: usize,
    /// Whether open batches may have buffers. The buffers are freed in the first second that begins while no request waits.
    has_buffers: bool,
    record_buffer: Vec<u8>,
}

impl<T> PartitionQueue<T> {
    /// Makes the next valid committed batch the current one. False if there is no such batch.
    fn take_next_batch(
        &mut self,
        held_bytes: &mut usize,
        now_s: u32,
        mut is_valid: impl FnMut(u64, u64) -> bool,
    ) -> bool {
        while let Some(Committed { header, batch }) = self.committed.pop_front() {
            let is_own = header.writer == self.batches.writer;
            let bytes = match is_own {
                true => self.batches.take_committed(header.number, now_s),
                false => batch.as_ref().map(|it| it.bytes().clone()),
            };
            let bytes = bytes.filter(|_| is_valid(header.writer, header.number) || is_own);
            let records = bytes.map(|bytes| Records::new(header, bytes));
            if let Some(records) = records.filter(|it| !it.is_empty()) {
                self.current = Some(CurrentBatch {
                    records,
                    is_own,
                    foreign: batch,
                });
                return true;
            }
            *held_bytes -= backlog_bytes(batch.as_ref());
        }
        false
    }

    /// Takes what takes effect next. `is_valid` tells by writer and number whether the next batch is valid.
    fn take_next(
        &mut self,
        held_bytes: &mut usize,
        now_s: u32,
        is_replicated: bool,
        is_valid: impl FnMut(u64, u64) -> bool,
    ) -> Option<NextOfPartition<T>> {
        let first = self.requests.entries.front();
        if first.is_some_and(|it| !it.is_write && it.request.is_some()) {
            return Some(NextOfPartition {
                entry: self.requests.pop_first(),
                record: None,
                is_own: false,
            });
        }
        let first_is_write = first.is_some_and(|it| it.is_write);
        if self.current.is_none() && !self.take_next_batch(held_bytes, now_s, is_valid) {
            return None;
        }
        let current = self.current.as_mut()?;
        let is_own = current.is_own;
        let has_request =
            is_own && !(is_replicated && is_node_control_record(current.records.peek()));
        if has_request && !first_is_write {
            return None;
        }
        let record = current.records.take_next();
        if current.records.is_empty() {
            *held_bytes -= backlog_bytes(current.foreign.as_ref());
            self.current = None;
        }
        let entry = if has_request {
            self.requests.pop_first()
        } else {
            None
        };
        Some(NextOfPartition {
            entry,
            record: Some(record),
            is_own,
        })
    }
}

impl<T> CommitQueues<T> {
    /// Empty queues for the partitions of a home. A shard without a home has no queues.
    pub fn new(
        placement: Placement,
        home: u16,
        writer: u64,
        is_replicated: bool,
    ) -> CommitQueues<T> {
        let partitions = (home < placement.homes()).then(|| placement.of_home(home));
        let queue = |partition| PartitionQueue {
            requests: RequestQueue::new(),
            batches: Batches::new(partition, writer, is_replicated),
            committed: VecDeque::new(),
            current: None,
        };
        CommitQueues {
            is_replicated,
            queues: partitions.into_iter().flatten().map(queue).collect(),
            all_partitions: RequestQueue::new(),
            next_queue: 0,
            overdue_search_queue: usize::MAX,
            overdue_search_s: 0,
            may_have_due: false,
            request_count: 0,
            bytes: 0,
            has_buffers: false,
            record_buffer: Vec::new(),
        }
    }

    /// Whether a request that writes nothing can take effect at once.
    pub fn can_take_effect(&self, scope: Scope) -> bool {
        match scope {
            Scope::Partition(partition_index) => {
                self.queues[partition_index].requests.entries.is_empty()
            }
            Scope::All => self.request_count == 0,
        }
    }

    /// Whether an unlogged fact can take effect at once in the partition at this index. `sequence` is the last offset of the partition.
    pub fn can_unlogged_take_effect(&self, partition_index: usize, sequence: u64) -> bool {
        self.can_take_effect(Scope::Partition(partition_index))
            && !self.queues[partition_index].batches.needs_mark(sequence)
    }

    fn enqueue(&mut self, scope: Scope, is_write: bool, request: T, bytes: usize, now: Now) {
        let entry_count = match scope {
            Scope::Partition(_) => 1,
            Scope::All => self.queues.len(),
        };
        let bytes = bytes + entry_count * size_of::<Entry<T>>();
        self.has_buffers |= is_write;
        let entry = |request, bytes| Entry {
            is_write,
            queued_s: now.s,
            request,
            bytes,
        };
        let queue = match scope {
            Scope::Partition(partition_index) => &mut self.queues[partition_index].requests,
            Scope::All => {
                for queue in &mut self.queues {
                    queue.requests.entries.push_back(entry(None, 0));
                }
                &mut self.all_partitions
            }
        };
        queue.entries.push_back(entry(Some(request), bytes));
        self.request_count += 1;
        self.bytes += bytes;
    }

    /// Queues a request that writes nothing and holds `bytes`.
    pub fn push(&mut self, scope: Scope, request: T, bytes: usize, now: Now) {
        self.enqueue(scope, false, request, bytes, now);
        self.may_have_due = true;
    }

    /// Queues a write to the partition at this index. `encode` appends the record of the write; its argument is the record's offset minus
    /// the first offset of the batch. `sequence` is the last offset of the partition. Returns the length of the record.
    pub fn push_write(
        &mut self,
        partition_index: usize,
        request: T,
        now: Now,
        sequence: u64,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> usize {
        let batches = &mut self.queues[partition_index].batches;
        let len = batches.write(now.unix_s, sequence, &mut self.record_buffer, encode);
        self.record_buffer.shrink_to(RECORD_KEPT_BYTES);
        self.enqueue(Scope::Partition(partition_index), true, request, len, now);
        len
    }

    /// Adds a control record to the open batch of a replicated log. No request waits for the control record.
    pub fn push_control_record(
        &mut self,
        partition_index: usize,
        now: Now,
        sequence: u64,
        control: &ControlRecord<'_>,
    ) {
        let encode = |out: &mut Vec<u8>, offset_delta| control.encode(out, offset_delta);
        let batches = &mut self.queues[partition_index].batches;
        batches.write(now.unix_s, sequence, &mut self.record_buffer, encode);
        self.has_buffers = true;
    }

    /// Queues an unlogged fact, which holds `bytes`. If its offset would be above the last mark, the fact waits for the record of a new mark. After a
    /// crash the partition continues above the last mark, so no offset is assigned twice.
    pub fn push_unlogged(
        &mut self,
        partition_index: usize,
        request: T,
        bytes: usize,
        now: Now,
        sequence: u64,
    ) -> usize {
        let batches = &mut self.queues[partition_index].batches;
        let mark = batches.new_mark(sequence);
        if let Some(until) = mark {
            let encode = |out: &mut Vec<u8>, offset_delta| {
                ControlRecord::Mark(until).encode(out, offset_delta)
            };
            batches.write(now.unix_s, sequence, &mut self.record_buffer, encode);
        }
        batches.skip_offset();
        self.enqueue(
            Scope::Partition(partition_index),
            mark.is_some(),
            request,
            bytes,
            now,
        );
        self.may_have_due = true;
        bytes
    }

    /// The request or record that takes effect next. `is_valid` tells whether the next batch in a partition's log is valid. Its arguments are
    /// the index of the partition, the writer, and the number of the batch.
    pub fn take_next(
        &mut self,
        now: Now,
        mut is_valid: impl FnMut(usize, u64, u64) -> bool,
    ) -> Option<Next<T>> {
        if !self.may_have_due {
            return None;
        }
        for n in 0..self.queues.len() {
            let partition_index = (self.next_queue + n) % self.queues.len();
            let (queue, held) = (&mut self.queues[partition_index], &mut self.bytes);
            let is_valid = |writer, number| is_valid(partition_index, writer, number);
            let Some(next) = queue.take_next(held, now.s, self.is_replicated, is_valid) else {
                continue;
            };
            // After each batch the next partition takes over, so that a partition that always has batches does not delay the others.
            self.next_queue = partition_index + usize::from(queue.current.is_none());
            let record = next.record;
            return Some(match next.entry {
                Some(entry) => Next::Request(self.remove_counted(entry)?, record),
                None => Next::Record {
                    record: record?,
                    is_own: next.is_own,
                },
            });
        }
        let mut first_entries = self
            .queues
            .iter()
            .map(|queue| queue.requests.entries.front());
        self.may_have_due = first_entries.all(|first| first.is_some_and(|it| it.request.is_none()));
        if !self.may_have_due {
            return None;
        }
        self.queues
            .iter_mut()
            .for_each(|it| drop(it.requests.pop_first()));
        let entry = self.all_partitions.pop_first()?;
        Some(Next::Request(self.remove_counted(entry)?, None))
    }

    fn remove_counted(&mut self, entry: Entry<T>) -> Option<T> {
        self.request_count -= 1;
        self.bytes -= entry.bytes;
        entry.request
    }

    /// Whether a request or record may be ready to take effect.
    pub fn may_have_due(&self) -> bool {
        self.may_have_due
    }

    pub fn len(&self) -> usize {
        self.request_count
    }

    /// The bytes of waiting requests, open batches and committed batches.
    pub fn bytes(&self) -> usize {
        if !self.has_buffers {
            return self.bytes;
        }
        let open_bytes = self.queues.iter().map(|it| it.batches.open_bytes());
        self.bytes + open_bytes.sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.request_count == 0
    }

    /// The number of this process as a writer of the partition at this index.
    pub fn writer(&self, partition_index: usize) -> u64 {
        self.queues[partition_index].batches.writer
    }

    /// Continues as the next writer of the partition at this index, after its log declared this one dead.
    pub fn restart_as_next_writer(&mut self, partition_index: usize) {
        self.queues[partition_index]
            .batches
            .restart_as_next_writer();
    }

    /// The time of the oldest record that is not applied, or the present time. No record that is applied later is older.
    pub fn oldest_unix_s(&self, now: Now) -> u32 {
        if self.request_count == 0 {
            return now.unix_s;
        }
        let current = |queue: &PartitionQueue<T>| Some(queue.current.as_ref()?.records.unix_s());
        let oldest =
            |queue: &PartitionQueue<T>| current(queue).or_else(|| queue.batches.oldest_unix_s());
        let all = self.queues.iter().filter_map(oldest);
        all.fold(now.unix_s, u32::min)
    }

    /// Closes batches and passes them to `append`. Passes a batch again if the engine does not commit it in time. `sequence` returns the last
    /// offset of the partition at an index.
    pub fn append_batches(
        &mut self,
        now: Now,
        sequence: impl Fn(usize) -> u64,
        mut append: impl FnMut(Batch),
    ) {
        if self.is_empty() && !self.is_replicated {
            return;
        }
        for partition_index in 0..self.queues.len() {
            let batches = &mut self.queues[partition_index].batches;
            batches.append_batches(now.s, || sequence(partition_index), &mut append);
            if self.request_count == 0 {
                // Without requests, only a control record each second needs the buffer.
                batches.free_buffer();
            }
            if planted::is(Fault::AppliedEarly) {
                let headers: Vec<_> = batches.in_flight.iter().map(|it| it.header).collect();
                let all = headers.into_iter().map(|header| Committed {
                    header,
                    batch: None,
                });
                all.for_each(|of| self.push_committed(partition_index, of));
            }
        }
    }

    /// Queues a committed batch of the partition at this index.
    pub fn push_committed(&mut self, partition_index: usize, committed: Committed) {
        self.bytes += backlog_bytes(committed.batch.as_ref());
        self.queues[partition_index].committed.push_back(committed);
        self.may_have_due = true;
    }

    /// Begins the search for overdue requests, if a request waits. Called once a second.
    pub fn begin_overdue_search(&mut self, now_s: u32) {
        if self.request_count > 0 {
            (self.overdue_search_queue, self.overdue_search_s) = (0, now_s);
        } else if core::mem::take(&mut self.has_buffers) {
            self.queues
                .iter_mut()
                .for_each(|it| it.batches.free_buffer());
        }
    }

    /// Whether the search for overdue requests has not finished.
    pub fn is_overdue_search_unfinished(&self) -> bool {
        self.overdue_search_queue <= self.queues.len()
    }

    /// Continues the search for overdue requests by one entry. Returns each overdue request once, and leaves the request in its queue. Returns requests to
    /// the same partition in order, and requests that concern all partitions at the end.
    pub fn next_overdue(&mut self) -> Option<&mut T> {
        let queue = match self.queues.get_mut(self.overdue_search_queue) {
            Some(queue) => &mut queue.requests,
            None => &mut self.all_partitions,
        };
        let entry = queue.next_overdue(self.overdue_search_s);
        self.overdue_search_queue += usize::from(entry.is_none());
        entry?.request.as_mut()
    }
}

#[cfg(test)]
mod tests;
