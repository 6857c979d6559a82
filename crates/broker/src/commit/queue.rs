//! Requests to a home that wait for the engine: the writes whose records are not committed yet, and the requests behind them.
//!
//! Each partition has a queue; a request that concerns all partitions of the home stands in each of them. An entry takes effect when all
//! that was asked before it of the same partition has; one that concerns all partitions, when it is the first of each, and until then
//! nothing behind it does.
//!
//! Where the log has other writers, their records are applied between those of this process, in the order of the log; a request that writes
//! nothing need not wait for them. Whether a batch counts is seen when all before it is applied.
//!
//! Invariant: the writes of a queue stand in the order of their records in the log (`batches`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::arrivals::{Arrivals, Unapplied};
use super::batch::Kept;
use super::batches::Batches;
use super::{Batch, Committed};
use crate::base::ids::PartitionId;
use crate::base::placement::Placement;
use crate::base::planted::{self, Fault};
use crate::base::time::Now;

/// Bytes that the buffer of a record keeps for the next one.
const RECORD_KEPT_BYTES: usize = 512 << 10;
/// Seconds after which a request is late: its asker is told that the outcome is not known.
const LATE_S: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for its turn only.
    Free,
    /// It waits for its record.
    Write,
    /// It waits for its record, and no other request for it.
    Aside,
    /// It concerns all partitions, and is the first of this one.
    Reached,
}

struct Entry<T> {
    /// Counts the requests to the home.
    ticket: u64,
    state: State,
    asked_s: u32,
    /// The request; it stands in `barriers` where it concerns all partitions.
    request: Option<T>,
    /// Bytes that were counted for it.
    bytes: usize,
}

/// A request that concerns all partitions.
struct Barrier<T> {
    ticket: u64,
    /// The partitions in which it is not the first yet.
    left: usize,
    /// The partitions in which it is not known to be late.
    in_time: usize,
    request: T,
    bytes: usize,
}

/// The queue of one partition.
struct Queue<T> {
    waiting: VecDeque<Entry<T>>,
    /// Entries before this place are known to be late.
    late: usize,
    batches: Batches,
    /// Entries that no other waits for.
    aside: usize,
    /// Batches of a log with several writers.
    arrivals: Arrivals,
}

/// The batch or request that takes effect next.
pub(crate) enum Next<T> {
    /// A request, with its record if it writes one.
    Request(T, Option<Kept>),
    /// A record of another process.
    Foreign(Kept),
}

/// The partitions that a request must be ordered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The partition at this place of the home.
    One(usize),
    /// All partitions of the home.
    All,
}

/// The parts of a home's requests that have not taken effect.
#[derive(Default)]
struct Held {
    entries: usize,
    bytes: usize,
    /// The entries that no other waits for.
    aside: usize,
    /// Bytes of the buffers of open batches.
    open_bytes: usize,
}

/// The queues of a home.
pub(crate) struct Commits<T> {
    is_shared: bool,
    queues: Vec<Queue<T>>,
    barriers: VecDeque<Barrier<T>>,
    tickets: u64,
    /// The queue that is looked at first.
    next: usize,
    /// The queue in which late requests are looked for, those of this second.
    looks_at: usize,
    late_s: u32,
    /// Whether an entry may have become due.
    stirred: bool,
    held: Held,
    /// Batches of a log with several writers that are not applied.
    unapplied: Unapplied,
    record: Vec<u8>,
}

impl<T> Queue<T> {
    fn new(partition: PartitionId, writer: u64, is_shared: bool) -> Queue<T> {
        Queue {
            waiting: VecDeque::new(),
            late: 0,
            batches: Batches::new(partition, writer, is_shared),
            aside: 0,
            arrivals: Arrivals::default(),
        }
    }

    fn is_due(&self) -> bool {
        let state = self.waiting.front().map(|entry| entry.state);
        match state {
            Some(State::Free) => true,
            Some(State::Write | State::Aside) => self.batches.has_record(),
            Some(State::Reached) | None => false,
        }
    }

    fn pop(&mut self) -> Option<Entry<T>> {
        self.late = self.late.saturating_sub(1);
        self.waiting.pop_front()
    }
}

impl<T> Commits<T> {
    /// Empty queues of the partitions of a home, which may have none.
    pub fn new(placement: Placement, home: u16, (writer, is_shared): (u64, bool)) -> Commits<T> {
        let all = (home < placement.homes()).then(|| placement.of_home(home));
        let queue = |partition| Queue::new(partition, writer, is_shared);
        Commits {
            is_shared,
            queues: all.into_iter().flatten().map(queue).collect(),
            barriers: VecDeque::new(),
            tickets: 0,
            next: 0,
            looks_at: usize::MAX,
            late_s: 0,
            stirred: false,
            held: Held::default(),
            unapplied: Unapplied::default(),
            record: Vec::new(),
        }
    }

    /// Whether a request that writes nothing takes effect at once in this place.
    pub fn is_free(&self, place: Place) -> bool {
        match place {
            Place::One(at) => self.queues[at].waiting.len() == self.queues[at].aside,
            Place::All => self.held.entries == self.held.aside,
        }
    }

    fn count(&mut self, bytes: usize) -> u64 {
        self.tickets += 1;
        self.held.entries += 1;
        self.held.bytes += bytes;
        self.stirred = true;
        self.tickets
    }

    /// Queues a request that writes nothing and holds so many bytes.
    pub fn push(&mut self, place: Place, request: T, bytes: usize, now: Now) {
        let parts = match place {
            Place::One(_) => 1,
            Place::All => self.queues.len(),
        };
        let bytes = bytes + parts * size_of::<Entry<T>>();
        let ticket = self.count(bytes);
        let entry = |request, bytes| Entry {
            ticket,
            state: State::Free,
            asked_s: now.s,
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
                self.barriers.push_back(Barrier {
                    ticket,
                    left: parts,
                    in_time: parts,
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
        let batches = &mut self.queues[at].batches;
        let before = batches.open_bytes();
        batches.begin(now.unix_s, sequence);
        self.record.clear();
        encode(&mut self.record, batches.offsets());
        batches.add(&self.record);
        self.held.open_bytes = self.held.open_bytes + batches.open_bytes() - before;
        let len = self.record.len();
        self.record.shrink_to(RECORD_KEPT_BYTES);
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

    /// The same, for a record that no other request waits for.
    pub fn write_aside(
        &mut self,
        at: usize,
        request: T,
        moment: (Now, u64),
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) {
        self.write(at, request, moment, encode);
        let queue = &mut self.queues[at];
        queue.waiting.back_mut().expect("it was queued").state = State::Aside;
        queue.aside += 1;
        self.held.aside += 1;
    }

    /// Queues a fact of the partition at this place that stands in no log and holds so many bytes. [`mark`](Self::mark) must have been asked.
    pub fn push_unlogged(&mut self, at: usize, request: T, bytes: usize, now: Now) {
        self.push(Place::One(at), request, bytes, now);
        self.queues[at].batches.skip_offset();
    }

    /// The mark that must stand in the log before the next fact of the partition at this place that does not.
    pub fn mark(&mut self, at: usize, sequence: u64) -> Option<u64> {
        self.queues[at].batches.mark(sequence)
    }

    /// The batch or request that takes effect next. `counts` says whether a batch does that comes next in the log of the partition at a place, of this writer and
    /// with this number.
    pub fn next(
        &mut self,
        now: Now,
        mut counts: impl FnMut(usize, u64, u64) -> bool,
    ) -> Option<Next<T>> {
        if !self.stirred {
            return None;
        }
        for n in 0..self.queues.len() {
            let at = (self.next + n) % self.queues.len();
            loop {
                while self.queues[at].is_due() {
                    if let Some((request, record)) = self.take(at) {
                        // The next queue's turn: one that is filled again and again must not hold up the others.
                        self.next = at + 1;
                        return Some(Next::Request(request, record));
                    }
                }
                let (queue, unapplied) = (&mut self.queues[at], &mut self.unapplied);
                if let Some(record) = queue.arrivals.next_record(unapplied) {
                    self.next = at + 1;
                    return Some(Next::Foreign(record));
                }
                let counts = |writer, number| counts(at, writer, number);
                let (arrivals, batches) = (&mut queue.arrivals, &mut queue.batches);
                if !arrivals.begin_next(batches, now.s, unapplied, counts) {
                    break;
                }
            }
        }
        let due = self.take_wide();
        self.stirred = due.is_some();
        Some(Next::Request(due?, None))
    }

    /// Takes the first entry of a queue; a request that concerns all partitions stays there until it takes effect.
    fn take(&mut self, at: usize) -> Option<(T, Option<Kept>)> {
        let queue = &mut self.queues[at];
        let first = queue.waiting.front_mut()?;
        if first.request.is_none() {
            first.state = State::Reached;
            let ticket = first.ticket;
            let found = self.barriers.binary_search_by_key(&ticket, |it| it.ticket);
            self.barriers[found.expect("it stands in each partition")].left -= 1;
            return None;
        }
        let entry = queue.pop()?;
        let record = match entry.state {
            State::Aside => {
                queue.aside -= 1;
                self.held.aside -= 1;
                queue.batches.next_record()
            }
            State::Write => queue.batches.next_record(),
            State::Free | State::Reached => None,
        };
        self.forget(entry.bytes);
        Some((entry.request?, record))
    }

    fn take_wide(&mut self) -> Option<T> {
        if self.barriers.front()?.left > 0 {
            return None;
        }
        let Barrier { request, bytes, .. } = self.barriers.pop_front()?;
        self.queues.iter_mut().for_each(|queue| drop(queue.pop()));
        self.forget(bytes);
        Some(request)
    }

    fn forget(&mut self, bytes: usize) {
        self.held.entries -= 1;
        self.held.bytes -= bytes;
        if self.held.entries == 0 && core::mem::take(&mut self.held.open_bytes) > 0 {
            let all = self.queues.iter_mut();
            all.for_each(|queue| queue.batches.free());
        }
    }

    /// Whether an entry may be due.
    pub fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.held.entries
    }

    /// Bytes that they and the open batches occupy.
    pub fn bytes(&self) -> usize {
        self.held.bytes + self.held.open_bytes + self.unapplied.bytes
    }

    /// Whether neither a request waits nor a batch.
    pub fn is_empty(&self) -> bool {
        self.held.entries == 0 && self.unapplied.batches == 0
    }

    /// The number of this process among the writers of the partition at this place.
    pub fn writer(&self, at: usize) -> u64 {
        self.queues[at].batches.writer()
    }

    /// In the log of the partition at this place it says that this process is dead: it goes on as another one.
    pub fn go_on_as_another(&mut self, at: usize) {
        self.queues[at].batches.go_on_as_another();
    }

    /// Nothing more of the partition at this place is applied.
    pub fn halt(&mut self, at: usize) {
        self.queues[at].arrivals.is_halted = true;
    }

    /// Whether nothing more of it is applied.
    pub fn is_halted(&self, at: usize) -> bool {
        self.queues[at].arrivals.is_halted
    }

    /// The second of the oldest record that is not applied; those to come are of this second or a later one.
    pub fn oldest_s(&self, now: Now) -> u32 {
        if self.held.entries == 0 {
            return now.unix_s;
        }
        let oldest = self
            .queues
            .iter()
            .filter_map(|queue| queue.batches.oldest_s());
        oldest.fold(now.unix_s, u32::min)
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
            let batches = &mut queue.batches;
            let before = batches.open_bytes();
            batches.send(now.s, || sequence(at), &mut append);
            self.held.open_bytes = self.held.open_bytes + batches.open_bytes() - before;
            if planted::is(Fault::AppliedEarly) {
                self.stirred |= batches.commit_all(sequence(at), now.s);
            }
        }
    }

    /// A batch of the partition at this place stands in the log.
    pub fn committed(&mut self, at: usize, of: Committed, now: Now) {
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        if self.is_shared {
            queue.arrivals.push(of, &mut self.unapplied);
            self.stirred = true;
        } else if of.writer == queue.batches.writer() {
            let begins = (of.first, of.unix_s);
            self.stirred |= queue.batches.committed(of.number, begins, now.s);
        }
    }

    /// A second has begun: looks for requests that have become late.
    pub fn look_for_late(&mut self, now_s: u32) {
        if self.held.entries > 0 {
            (self.looks_at, self.late_s) = (0, now_s);
        }
    }

    /// Whether it is not known of all requests whether they are late.
    pub fn may_have_late(&self) -> bool {
        self.looks_at < self.queues.len()
    }

    /// Looks at the next place of a queue. A request that was asked long ago is returned once, behind all that were asked before it of
    /// the same partitions, and stays in its place.
    pub fn next_late(&mut self) -> Option<&mut T> {
        let queue = self.queues.get_mut(self.looks_at)?;
        let is_late = |entry: &&mut Entry<T>| self.late_s.saturating_sub(entry.asked_s) >= LATE_S;
        let Some(entry) = queue.waiting.get_mut(queue.late).filter(is_late) else {
            self.looks_at += 1;
            return None;
        };
        queue.late += 1;
        if entry.request.is_some() {
            return entry.request.as_mut();
        }
        let found = self
            .barriers
            .binary_search_by_key(&entry.ticket, |it| it.ticket);
        let barriers = &mut self.barriers[found.expect("it stands in each partition")];
        barriers.in_time -= 1;
        (barriers.in_time == 0).then_some(&mut barriers.request)
    }
}

#[cfg(test)]
mod tests;
