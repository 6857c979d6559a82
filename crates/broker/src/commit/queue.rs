//! Requests to a home that wait for the engine: the writes whose records are not committed yet, and the requests behind them.
//!
//! Each partition has a queue; a request that concerns all partitions of the home stands in each of them. An entry takes effect when all
//! that was asked before it of the same partition has; one that concerns all partitions, when it is the first of each, and until then
//! nothing behind it does.
//!
//! Where the log has other writers, their records are applied between those of this process, in the order of the log; a request that writes
//! nothing need not wait for them, nor for notes of this process. Whether a batch counts is seen when all before it is applied, since a
//! record before it may say that its writer is dead.
//!
//! Invariant: the writes of a queue stand in the order of their records in the log (`batches`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::batch::{BOUND_S, Record, Records};
use super::batches::Batches;
use super::record::{Note, is_note};
use super::{Batch, Committed, ForeignBatch};
use crate::base::placement::Placement;
use crate::base::planted::{self, Fault};
use crate::base::time::Now;

/// Bytes that the buffer of a record keeps for the next one.
const RECORD_KEPT_BYTES: usize = 512 << 10;
/// Seconds after which a request is late: its asker is told that the outcome is not known.
const LATE_S: u32 = 10;
const _: () = assert!(LATE_S >= BOUND_S + 3);

struct Entry<T> {
    /// It waits for its record: the next one of this process.
    writes: bool,
    asked_s: u32,
    /// None in a partition's queue where it concerns all partitions.
    request: Option<T>,
    /// Bytes that were counted for it.
    bytes: usize,
}

/// Requests, in the order in which they were asked.
struct RequestQueue<T> {
    entries: VecDeque<Entry<T>>,
    /// Entries before this place are known to be late.
    late: usize,
}

impl<T> RequestQueue<T> {
    const fn new() -> RequestQueue<T> {
        RequestQueue {
            entries: VecDeque::new(),
            late: 0,
        }
    }

    fn pop(&mut self) -> Option<Entry<T>> {
        self.late = self.late.saturating_sub(1);
        self.entries.pop_front()
    }

    fn next_late(&mut self, now_s: u32) -> Option<&mut Entry<T>> {
        let entry = self.entries.get_mut(self.late)?;
        let is_late = now_s.saturating_sub(entry.asked_s) >= LATE_S;
        self.late += usize::from(is_late);
        is_late.then_some(entry)
    }
}

/// The batch that is being applied.
struct CurrentBatch {
    records: Records,
    is_own: bool,
    /// Its bytes count until it is applied.
    foreign: Option<ForeignBatch>,
}

/// The queue of one partition.
struct Queue<T> {
    line: RequestQueue<T>,
    batches: Batches,
    /// Batches that the engine has told, in the order of the log.
    told: VecDeque<Committed>,
    current: Option<CurrentBatch>,
}

/// The batch or request that takes effect next.
pub(crate) enum Next<T> {
    /// A request, with its record if it writes one.
    Request(T, Option<Record>),
    /// A record that no request waits for.
    Record(Record),
}

/// The partitions that a request must be ordered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The partition at this place of the home.
    Partition(usize),
    /// All partitions of the home.
    All,
}

fn bytes_of(foreign: Option<&ForeignBatch>) -> usize {
    foreign.map_or(0, |it| it.bytes().len())
}

/// The queues of a home.
pub(crate) struct Commits<T> {
    is_shared: bool,
    queues: Vec<Queue<T>>,
    /// The requests that concern all partitions.
    of_all: RequestQueue<T>,
    /// The queue that is looked at first.
    next: usize,
    /// The queue in which late requests are looked for, those of this second; the last one is `of_all`.
    looks_at: usize,
    late_s: u32,
    /// Whether an entry may have become due.
    may_have_due: bool,
    /// Requests that wait.
    requests: usize,
    /// Bytes that they and the batches that were told occupy.
    bytes: usize,
    /// Open batches may have buffers, which are kept until a second comes in which no request waits.
    has_buffers: bool,
    record: Vec<u8>,
}

impl<T> Queue<T> {
    /// Begins with the next batch that was told and counts; false if there is none.
    fn begin(
        &mut self,
        held_bytes: &mut usize,
        now_s: u32,
        mut counts: impl FnMut(u64, u64) -> bool,
    ) -> bool {
        while let Some(Committed { header, batch }) = self.told.pop_front() {
            let is_own = header.writer == self.batches.writer;
            let bytes = match is_own {
                true => self.batches.committed(header.number, now_s),
                false => batch.as_ref().map(|it| it.bytes().clone()),
            };
            let bytes = bytes.filter(|_| counts(header.writer, header.number) || is_own);
            let records = bytes.map(|bytes| Records::new(header, bytes));
            if let Some(records) = records.filter(|it| !it.is_empty()) {
                self.current = Some(CurrentBatch {
                    records,
                    is_own,
                    foreign: batch,
                });
                return true;
            }
            *held_bytes -= bytes_of(batch.as_ref());
        }
        false
    }

    /// The entry or record that takes effect next.
    fn next(
        &mut self,
        held_bytes: &mut usize,
        (now_s, is_shared): (u32, bool),
        counts: impl FnMut(u64, u64) -> bool,
    ) -> Option<(Option<Entry<T>>, Option<Record>)> {
        let first = self.line.entries.front();
        if first.is_some_and(|it| !it.writes && it.request.is_some()) {
            return Some((self.line.pop(), None));
        }
        let is_first = first.is_some_and(|it| it.writes);
        if self.current.is_none() && !self.begin(held_bytes, now_s, counts) {
            return None;
        }
        let current = self.current.as_mut()?;
        let is_asked = current.is_own && !(is_shared && is_note(current.records.peek()));
        if is_asked && !is_first {
            return None;
        }
        let record = current.records.take();
        if current.records.is_empty() {
            *held_bytes -= bytes_of(current.foreign.as_ref());
            self.current = None;
        }
        let entry = if is_asked { self.line.pop() } else { None };
        Some((entry, Some(record)))
    }
}

impl<T> Commits<T> {
    /// Empty queues of the partitions of a home, which may have none.
    pub fn new(placement: Placement, home: u16, (writer, is_shared): (u64, bool)) -> Commits<T> {
        let all = (home < placement.homes()).then(|| placement.of_home(home));
        let queue = |partition| Queue {
            line: RequestQueue::new(),
            batches: Batches::new(partition, writer, is_shared),
            told: VecDeque::new(),
            current: None,
        };
        Commits {
            is_shared,
            queues: all.into_iter().flatten().map(queue).collect(),
            of_all: RequestQueue::new(),
            next: 0,
            looks_at: usize::MAX,
            late_s: 0,
            may_have_due: false,
            requests: 0,
            bytes: 0,
            has_buffers: false,
            record: Vec::new(),
        }
    }

    /// Whether a request that writes nothing takes effect at once in this place.
    pub fn is_free(&self, place: Scope) -> bool {
        match place {
            Scope::Partition(at) => self.queues[at].line.entries.is_empty(),
            Scope::All => self.requests == 0,
        }
    }

    /// The same for a fact that stands in no log. `sequence` is the last offset of the partition.
    pub fn is_free_unlogged(&self, at: usize, sequence: u64) -> bool {
        self.is_free(Scope::Partition(at)) && !self.queues[at].batches.needs_mark(sequence)
    }

    fn enqueue(&mut self, place: Scope, writes: bool, request: T, bytes: usize, now: Now) {
        let parts = match place {
            Scope::Partition(_) => 1,
            Scope::All => self.queues.len(),
        };
        let bytes = bytes + parts * size_of::<Entry<T>>();
        self.has_buffers |= writes;
        let entry = |request, bytes| Entry {
            writes,
            asked_s: now.s,
            request,
            bytes,
        };
        let line = match place {
            Scope::Partition(at) => &mut self.queues[at].line,
            Scope::All => {
                for queue in &mut self.queues {
                    queue.line.entries.push_back(entry(None, 0));
                }
                &mut self.of_all
            }
        };
        line.entries.push_back(entry(Some(request), bytes));
        self.requests += 1;
        self.bytes += bytes;
    }

    /// Queues a request that writes nothing and holds so many bytes.
    pub fn push(&mut self, place: Scope, request: T, bytes: usize, now: Now) {
        self.enqueue(place, false, request, bytes, now);
        self.may_have_due = true;
    }

    /// Queues a write of the partition at this place. `encode` appends its record and is given the distance of its offset from that of the
    /// batch's first record. Returns the bytes of the record. `sequence` is the last offset of the partition.
    pub fn write(
        &mut self,
        at: usize,
        request: T,
        (now, sequence): (Now, u64),
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> usize {
        let batches = &mut self.queues[at].batches;
        let len = batches.write((now.unix_s, sequence), &mut self.record, encode);
        self.record.shrink_to(RECORD_KEPT_BYTES);
        self.enqueue(Scope::Partition(at), true, request, len, now);
        len
    }

    /// Writes a note that no request waits for, to a log with several writers.
    pub fn note(&mut self, at: usize, (now, sequence): (Now, u64), note: &Note<'_>) {
        let encode = |out: &mut Vec<u8>, behind| note.encode(out, behind);
        let batches = &mut self.queues[at].batches;
        batches.write((now.unix_s, sequence), &mut self.record, encode);
        self.has_buffers = true;
    }

    /// Queues a fact of the partition at this place that stands in no log and holds so many bytes. Where its offset is not marked, a mark is
    /// its record: after a crash the partition goes on behind that, so that no offset is given twice.
    pub fn push_unlogged(
        &mut self,
        at: usize,
        request: T,
        bytes: usize,
        (now, sequence): (Now, u64),
    ) -> usize {
        let batches = &mut self.queues[at].batches;
        let mark = batches.mark(sequence);
        if let Some(until) = mark {
            let encode = |out: &mut Vec<u8>, behind| Note::Mark(until).encode(out, behind);
            batches.write((now.unix_s, sequence), &mut self.record, encode);
        }
        batches.skip_offset();
        self.enqueue(Scope::Partition(at), mark.is_some(), request, bytes, now);
        self.may_have_due = true;
        bytes
    }

    /// The request or record that takes effect next. `counts` says whether a batch of this writer and with this number does, which comes next in
    /// the log of the partition at a place.
    pub fn next(
        &mut self,
        now: Now,
        mut counts: impl FnMut(usize, u64, u64) -> bool,
    ) -> Option<Next<T>> {
        if !self.may_have_due {
            return None;
        }
        for n in 0..self.queues.len() {
            let at = (self.next + n) % self.queues.len();
            let (queue, held) = (&mut self.queues[at], &mut self.bytes);
            let counts = |writer, number| counts(at, writer, number);
            let Some(next) = queue.next(held, (now.s, self.is_shared), counts) else {
                continue;
            };
            // Behind its batch it is the next queue's turn: one that is filled again and again must not hold up the others.
            self.next = at + usize::from(queue.current.is_none());
            return Some(match next {
                (Some(entry), record) => Next::Request(self.takes_effect(entry)?, record),
                (None, record) => Next::Record(record?),
            });
        }
        let mut firsts = self.queues.iter().map(|queue| queue.line.entries.front());
        self.may_have_due = firsts.all(|first| first.is_some_and(|it| it.request.is_none()));
        if !self.may_have_due {
            return None;
        }
        self.queues.iter_mut().for_each(|it| drop(it.line.pop()));
        let entry = self.of_all.pop()?;
        Some(Next::Request(self.takes_effect(entry)?, None))
    }

    fn takes_effect(&mut self, entry: Entry<T>) -> Option<T> {
        self.requests -= 1;
        self.bytes -= entry.bytes;
        entry.request
    }

    /// Whether an entry may be due.
    pub fn may_have_due(&self) -> bool {
        self.may_have_due
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.requests
    }

    /// Bytes that they, the open batches and the batches that were told occupy.
    pub fn bytes(&self) -> usize {
        if !self.has_buffers {
            return self.bytes;
        }
        let open = self.queues.iter().map(|it| it.batches.open_bytes());
        self.bytes + open.sum::<usize>()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// The number of this process among the writers of the partition at this place.
    pub fn writer(&self, at: usize) -> u64 {
        self.queues[at].batches.writer
    }

    /// In the log of the partition at this place it says that this process is dead: it goes on as another one.
    pub fn restart_as_next_writer(&mut self, at: usize) {
        self.queues[at].batches.restart_as_next_writer();
    }

    /// The second of the oldest record that is not applied; those to come are of this second or a later one.
    pub fn oldest_s(&self, now: Now) -> u32 {
        if self.requests == 0 {
            return now.unix_s;
        }
        let current = |queue: &Queue<T>| Some(queue.current.as_ref()?.records.unix_s());
        let oldest = |queue: &Queue<T>| current(queue).or_else(|| queue.batches.oldest_s());
        let all = self.queues.iter().filter_map(oldest);
        all.fold(now.unix_s, u32::min)
    }

    /// Closes batches and hands them to `append`, and again those that the engine does not commit. `sequence` tells the last offset of
    /// the partition at a place.
    pub fn send(
        &mut self,
        now: Now,
        sequence: impl Fn(usize) -> u64,
        mut append: impl FnMut(Batch),
    ) {
        if self.is_empty() && !self.is_shared {
            return;
        }
        for at in 0..self.queues.len() {
            let batches = &mut self.queues[at].batches;
            batches.send(now.s, || sequence(at), &mut append);
            if self.requests == 0 {
                // A note goes alone each second.
                batches.free();
            }
            if planted::is(Fault::AppliedEarly) {
                let headers: Vec<_> = batches.in_flight.iter().map(|it| it.header).collect();
                let told = headers.into_iter().map(|header| Committed {
                    header,
                    batch: None,
                });
                told.for_each(|of| self.committed(at, of));
            }
        }
    }

    /// A batch of the partition at this place stands in the log.
    pub fn committed(&mut self, at: usize, of: Committed) {
        self.bytes += bytes_of(of.batch.as_ref());
        self.queues[at].told.push_back(of);
        self.may_have_due = true;
    }

    /// A second has begun: looks for requests that have become late.
    pub fn look_for_late(&mut self, now_s: u32) {
        if self.requests > 0 {
            (self.looks_at, self.late_s) = (0, now_s);
        } else if core::mem::take(&mut self.has_buffers) {
            self.queues.iter_mut().for_each(|it| it.batches.free());
        }
    }

    /// Whether it is not known of all requests whether they are late.
    pub fn may_have_late(&self) -> bool {
        self.looks_at <= self.queues.len()
    }

    /// Looks at the next place of a queue. A request that was asked long ago is returned once, behind all that were asked before it of
    /// the same partitions, and stays in its place.
    pub fn next_late(&mut self) -> Option<&mut T> {
        let line = match self.queues.get_mut(self.looks_at) {
            Some(queue) => &mut queue.line,
            None => &mut self.of_all,
        };
        let entry = line.next_late(self.late_s);
        self.looks_at += usize::from(entry.is_none());
        entry?.request.as_mut()
    }
}

#[cfg(test)]
mod tests;
