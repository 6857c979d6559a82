//! Requests to a home that wait for the engine: the writes whose records are not committed yet, and the requests behind them.
//!
//! Each partition has a queue; a request that concerns all partitions of the home stands in each of them. An entry takes effect when all
//! that was asked before it of the same partition has; one that concerns all partitions, when it is the first of each, and until then
//! nothing behind it does.
//!
//! Invariant: the writes of a queue stand in the order of their records in the log. Several batches of a partition may be in flight; one
//! that is not committed is appended again, with all behind it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::batch::{HEADER_BYTES, Header, Kept, Records};
use super::{Batch, Committed};
use crate::base::ids::PartitionId;
use crate::base::placement::Placement;
use crate::base::planted::{self, Fault};
use crate::base::snapshot::Out;
use crate::base::time::Now;

/// Records of a batch at most.
const BATCH_RECORDS: u32 = 4096;
/// Bytes at which a batch is full; a single record may be longer.
const BATCH_BYTES: usize = 512 << 10;
/// Batches of a partition in flight at most: enough to fill an engine whose answer takes some turns.
const IN_FLIGHT_MAX: usize = 16;
/// Seconds after which batches in flight are appended again, if none of them was committed.
const AGAIN_S: u32 = 2;
/// Seconds after which the asker of a write is told that its outcome is not known.
const LATE_S: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for its turn only.
    Free,
    /// It waits for its record.
    Write,
    /// It concerns all partitions, and is the first of this one.
    Reached,
}

struct Entry<T> {
    /// Counts the requests to the home.
    ticket: u64,
    state: State,
    asked_s: u32,
    /// The request; it stands in `wide` where it concerns all partitions.
    request: Option<T>,
    /// Bytes that were counted for it.
    bytes: usize,
}

/// A request that concerns all partitions.
struct Wide<T> {
    ticket: u64,
    /// The partitions in which it is not the first yet.
    left: usize,
    request: T,
    bytes: usize,
}

/// The queue of one partition.
struct Queue<T> {
    partition: PartitionId,
    waiting: VecDeque<Entry<T>>,
    /// Entries before this place were told that they are late, or write nothing.
    late: usize,
    /// The batch that is being filled, with room for its header.
    open: Vec<u8>,
    records: u32,
    /// Batches that are closed and not committed.
    in_flight: VecDeque<Batch>,
    /// How many of them, the oldest, are at the engine.
    sent: usize,
    /// When they were appended last, or one of them was committed.
    since_s: u32,
    /// The number of the last batch that was closed, and of the last one that was committed.
    closed: u64,
    committed: u64,
    /// The offset behind the last batch that was closed, while one is in flight.
    next_offset: u64,
    /// Committed batches with records that are not applied.
    kept: VecDeque<Records>,
}

/// The partitions that a request must be ordered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The partition at this place of the home.
    One(usize),
    /// All partitions of the home.
    All,
}

/// The queues of a home.
pub(crate) struct Commits<T> {
    writer: u64,
    queues: Vec<Queue<T>>,
    wide: VecDeque<Wide<T>>,
    tickets: u64,
    /// The queue that is looked at first.
    next: usize,
    /// Whether an entry may have become due.
    stirred: bool,
    /// Requests that have not taken effect, and bytes of them.
    entries: usize,
    bytes: usize,
    record: Vec<u8>,
}

impl<T> Queue<T> {
    fn new(partition: PartitionId) -> Queue<T> {
        Queue {
            partition,
            waiting: VecDeque::new(),
            late: 0,
            open: Vec::new(),
            records: 0,
            in_flight: VecDeque::new(),
            sent: 0,
            since_s: 0,
            closed: 0,
            committed: 0,
            next_offset: 0,
            kept: VecDeque::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.records == BATCH_RECORDS || self.open.len() >= BATCH_BYTES
    }

    /// Closes the open batch. `sequence` is the last offset of the partition.
    fn close(&mut self, writer: u64, sequence: u64, unix_s: u32) {
        if self.in_flight.is_empty() && self.kept.is_empty() {
            self.next_offset = sequence + 1;
        }
        self.closed += 1;
        let header = Header {
            partition: self.partition,
            writer,
            number: self.closed,
            first: self.next_offset,
            unix_s,
            records: self.records,
        };
        header.write(&mut self.open);
        self.next_offset += u64::from(core::mem::take(&mut self.records));
        self.in_flight.push_back(Batch {
            partition: self.partition,
            number: self.closed,
            bytes: Arc::from(&self.open[..]),
        });
        self.open.clear();
        // A long message must not keep its memory here.
        self.open.shrink_to(2 * BATCH_BYTES);
    }

    /// Appends the batches that are not at the engine.
    fn send(&mut self, now_s: u32, append: &mut impl FnMut(Batch)) {
        if self.sent > 0 && now_s.saturating_sub(self.since_s) >= AGAIN_S {
            self.sent = 0;
            if planted::is(Fault::NewNumber) {
                self.renumber();
            }
        }
        if self.sent == 0 {
            self.since_s = now_s;
        }
        while self.sent < IN_FLIGHT_MAX
            && let Some(batch) = self.in_flight.get(self.sent)
        {
            append(batch.clone());
            self.sent += 1;
        }
    }

    /// A fault: batches that are appended again look like new ones.
    fn renumber(&mut self) {
        for batch in &mut self.in_flight {
            let mut bytes = batch.bytes.to_vec();
            self.closed += 1;
            let header = Header::read(&bytes).expect("this process wrote it");
            let number = self.closed;
            Header { number, ..header }.write(&mut bytes);
            (batch.number, batch.bytes) = (number, bytes.into());
        }
        self.committed = self.closed - self.in_flight.len() as u64;
    }

    /// A batch of this writer stands in the log; says whether it counts.
    fn committed(&mut self, number: u64, first: u64, now_s: u32) -> bool {
        if number <= self.committed {
            return false;
        }
        if number > self.committed + 1 && !planted::is(Fault::GapAccepted) {
            // What is missing comes again, and then all behind it.
            self.sent = 0;
            return false;
        }
        let Some(batch) = self.in_flight.pop_front() else {
            return false;
        };
        (self.committed, self.since_s) = (number, now_s);
        self.sent = self.sent.saturating_sub(1);
        self.kept.push_back(Records::new(batch.bytes, first));
        true
    }

    fn is_due(&self) -> bool {
        let state = self.waiting.front().map(|entry| entry.state);
        match state {
            Some(State::Free) => true,
            Some(State::Write) => !self.kept.is_empty(),
            Some(State::Reached) | None => false,
        }
    }

    fn pop(&mut self) -> Option<Entry<T>> {
        self.late = self.late.saturating_sub(1);
        self.waiting.pop_front()
    }

    /// The next record that stands in the log.
    fn next_record(&mut self) -> Option<Kept> {
        let records = self.kept.front_mut()?;
        let record = records.next();
        if records.is_empty() {
            self.kept.pop_front();
        }
        Some(record)
    }
}

impl<T> Commits<T> {
    /// Empty queues of the partitions of a home, which may have none.
    pub fn new(placement: Placement, home: u16, writer: u64) -> Commits<T> {
        let all = (home < placement.homes()).then(|| placement.of_home(home));
        Commits {
            writer,
            queues: all.into_iter().flatten().map(Queue::new).collect(),
            wide: VecDeque::new(),
            tickets: 0,
            next: 0,
            stirred: false,
            entries: 0,
            bytes: 0,
            record: Vec::new(),
        }
    }

    /// Whether a request that writes nothing takes effect at once in this place.
    pub fn is_free(&self, place: Place) -> bool {
        match place {
            Place::One(at) => self.queues[at].waiting.is_empty(),
            Place::All => self.entries == 0,
        }
    }

    fn count(&mut self, bytes: usize) -> u64 {
        self.tickets += 1;
        self.entries += 1;
        self.bytes += bytes;
        self.stirred = true;
        self.tickets
    }

    /// Queues a request that writes nothing and holds so many bytes.
    pub fn push(&mut self, place: Place, request: T, bytes: usize) {
        let parts = match place {
            Place::One(_) => 1,
            Place::All => self.queues.len(),
        };
        let bytes = bytes + parts * size_of::<Entry<T>>();
        let ticket = self.count(bytes);
        let entry = |request, bytes| Entry {
            ticket,
            state: State::Free,
            asked_s: 0,
            request,
            bytes,
        };
        match place {
            Place::One(at) => self.queues[at]
                .waiting
                .push_back(entry(Some(request), bytes)),
            Place::All => {
                for queue in &mut self.queues {
                    queue.waiting.push_back(entry(None, 0));
                }
                self.wide.push_back(Wide {
                    ticket,
                    left: parts,
                    request,
                    bytes,
                });
            }
        }
    }

    /// Queues a write of the partition at this place. `encode` appends its record, whose offset is so far behind that of the batch's
    /// first record. Returns the bytes of the record. `sequence` is the last offset of the partition.
    pub fn write(
        &mut self,
        at: usize,
        request: T,
        (now, sequence): (Now, u64),
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> usize {
        let queue = &mut self.queues[at];
        if queue.is_full() {
            queue.close(self.writer, sequence, now.unix_s);
        }
        self.record.clear();
        encode(&mut self.record, queue.records);
        if queue.open.is_empty() {
            queue.open.resize(HEADER_BYTES, 0);
        }
        Out(&mut queue.open).field(&self.record);
        queue.records += 1;
        let len = self.record.len();
        self.record.shrink_to(BATCH_BYTES);
        let bytes = len + size_of::<Entry<T>>();
        let ticket = self.count(bytes);
        self.queues[at].waiting.push_back(Entry {
            ticket,
            state: State::Write,
            asked_s: now.s,
            request: Some(request),
            bytes,
        });
        len
    }

    /// The next request that takes effect, with its record if it writes one.
    pub fn next(&mut self) -> Option<(T, Option<Kept>)> {
        if !self.stirred {
            return None;
        }
        for n in 0..self.queues.len() {
            let at = (self.next + n) % self.queues.len();
            while self.queues[at].is_due() {
                if let Some(due) = self.take(at) {
                    // The next queue's turn: one that is filled again and again must not hold up the others.
                    self.next = at + 1;
                    return Some(due);
                }
            }
        }
        let due = self.take_wide();
        self.stirred = due.is_some();
        Some((due?, None))
    }

    /// Takes the first entry of a queue; a request that concerns all partitions stays there until it takes effect.
    fn take(&mut self, at: usize) -> Option<(T, Option<Kept>)> {
        let queue = &mut self.queues[at];
        let first = queue.waiting.front_mut()?;
        if first.request.is_none() {
            first.state = State::Reached;
            let ticket = first.ticket;
            let found = self.wide.binary_search_by_key(&ticket, |it| it.ticket);
            self.wide[found.expect("it stands in each partition")].left -= 1;
            return None;
        }
        let entry = queue.pop()?;
        let record = match entry.state {
            State::Write => queue.next_record(),
            State::Free | State::Reached => None,
        };
        self.forget(entry.bytes);
        Some((entry.request?, record))
    }

    fn take_wide(&mut self) -> Option<T> {
        if self.wide.front()?.left > 0 {
            return None;
        }
        let Wide { request, bytes, .. } = self.wide.pop_front()?;
        self.queues.iter_mut().for_each(|queue| drop(queue.pop()));
        self.forget(bytes);
        Some(request)
    }

    fn forget(&mut self, bytes: usize) {
        self.entries -= 1;
        self.bytes -= bytes;
    }

    /// Whether an entry may be due.
    pub fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Bytes that they occupy.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Closes batches and hands them to `append`, and again those that the engine does not commit. `sequence` tells the last offset of
    /// the partition at a place.
    pub fn send(
        &mut self,
        now: Now,
        sequence: impl Fn(usize) -> u64,
        mut append: impl FnMut(Batch),
    ) {
        for (at, queue) in self.queues.iter_mut().enumerate() {
            if queue.records > 0 && queue.in_flight.len() < IN_FLIGHT_MAX {
                queue.close(self.writer, sequence(at), now.unix_s);
            }
            queue.send(now.s, &mut append);
            if planted::is(Fault::AppliedEarly) {
                while let Some(batch) = queue.in_flight.front() {
                    let header = Header::read(&batch.bytes).expect("this process wrote it");
                    queue.committed(header.number, header.first, now.s);
                    self.stirred = true;
                }
            }
        }
    }

    /// A batch of the partition at this place stands in the log.
    pub fn committed(&mut self, at: usize, of: Committed, now: Now) {
        if of.writer == self.writer
            && let Some(queue) = self.queues.get_mut(at)
        {
            self.stirred |= queue.committed(of.number, of.first, now.s);
        }
    }

    /// Calls `tell` with each write that has become late since the last call. It stays in its place.
    pub fn tell_late(&mut self, now_s: u32, mut tell: impl FnMut(&mut T)) {
        for queue in &mut self.queues {
            while let Some(entry) = queue.waiting.get_mut(queue.late) {
                if entry.state == State::Write {
                    if now_s.saturating_sub(entry.asked_s) < LATE_S {
                        break;
                    }
                    entry.request.iter_mut().for_each(&mut tell);
                }
                queue.late += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
