//! What shards have asked of a home while records are under way: the writes that wait for their engine, and what was asked behind them.
//!
//! Each partition has a queue; what concerns all partitions of the home stands in each of them. An entry takes effect when all that was
//! asked before it of the same partition has; one that concerns all partitions, when it is the first of each, and until then nothing
//! behind it does.
//!
//! Invariants: the writes of a queue stand in the order of their records in the log, also when the engine has failed and some are appended
//! again; at most one batch of a partition is under way.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Batch;
use crate::base::ids::PartitionId;
use crate::base::placement::Placement;
use crate::base::planted::{self, Fault};

/// Records of a batch at most.
const BATCH_RECORDS: usize = 4096;
/// Bytes at which a batch is full; a single record may be longer.
const BATCH_BYTES: usize = 512 << 10;
/// Seconds after which a batch that has no answer is appended again.
const AGAIN_S: u32 = 2;
/// Seconds after which what insists is appended again, once the engine has failed.
const REST_S: u32 = 1;

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for nothing but its turn.
    Ready,
    /// Its record is in no batch yet.
    New,
    /// Its record is at the engine.
    Sent,
    /// Its record is kept.
    Committed,
    /// Its record is not kept, and it has been taken out.
    Failed,
    /// It concerns all partitions and is the first of this one.
    Reached,
}

struct Entry<T> {
    /// Counts what was asked of the home.
    ticket: u64,
    state: State,
    record: Option<Arc<[u8]>>,
    /// Whether it is appended until it is kept.
    insists: bool,
    /// What it is; nothing where it concerns all partitions.
    what: Option<T>,
    /// Bytes that were counted for it.
    bytes: usize,
}

/// What concerns all partitions.
struct Wide<T> {
    ticket: u64,
    record: Option<Arc<[u8]>>,
    /// The partitions in which it is not the first yet.
    left: usize,
    what: T,
    /// Bytes that were counted for it.
    bytes: usize,
}

/// What waits in one partition.
struct Queue<T> {
    partition: PartitionId,
    waiting: VecDeque<Entry<T>>,
    /// How many entries have gone.
    gone: u64,
    /// The place of the first entry, counted with those that have gone, that may have a new record.
    fresh: u64,
    /// The batch under way, the entries that it is of, and the second in which it was appended last.
    sent: Option<(Batch, core::ops::Range<u64>, u32)>,
    /// The number of the last batch.
    batches: u64,
    /// The second until which nothing is appended, since the engine has failed and some insist.
    rests_until_s: u32,
}

/// An entry that is done with.
#[derive(Debug)]
pub(crate) enum Due<T> {
    /// Its turn has come; its record, if it has one, is kept.
    Turn(T, Option<Arc<[u8]>>),
    /// Its record is not kept.
    Failed(T),
}

/// Whom an entry concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The partition at this place of the home.
    One(usize),
    /// All partitions of the home.
    All,
}

/// The queues of a home.
pub(crate) struct Commits<T> {
    queues: Vec<Queue<T>>,
    wide: VecDeque<Wide<T>>,
    /// What the engine has not kept.
    failed: VecDeque<T>,
    tickets: u64,
    /// The queue that is looked at first.
    next: usize,
    /// Whether an entry may have become due.
    stirred: bool,
    /// How much was asked that has not taken effect, and bytes of it.
    entries: usize,
    bytes: usize,
}

impl<T> Queue<T> {
    fn new(partition: PartitionId) -> Queue<T> {
        Queue {
            partition,
            waiting: VecDeque::new(),
            gone: 0,
            fresh: 0,
            sent: None,
            batches: 0,
            rests_until_s: 0,
        }
    }

    /// Makes a batch of the new records, unless one is under way.
    fn next_batch(&mut self, now_s: u32) -> Option<Batch> {
        if self.sent.is_some() || now_s < self.rests_until_s {
            return None;
        }
        let begin = self.fresh.max(self.gone);
        let (mut records, mut bytes, mut end) = (Vec::new(), 0, begin);
        for entry in self.waiting.range_mut((begin - self.gone) as usize..) {
            if records.len() == BATCH_RECORDS || bytes >= BATCH_BYTES {
                break;
            }
            end += 1;
            if entry.state == State::New {
                let record = entry.record.as_ref().expect("a write has a record");
                bytes += record.len();
                records.push(record.clone());
                entry.state = State::Sent;
            }
        }
        self.fresh = end;
        if records.is_empty() {
            return None;
        }
        self.batches += 1;
        let batch = Batch {
            partition: self.partition,
            number: self.batches,
            records,
        };
        self.sent = Some((batch.clone(), begin..end, now_s));
        Some(batch)
    }

    /// The engine has decided about a batch; says whether it was the one under way. What has failed does not wait for its turn: it is handed
    /// to `failed`.
    fn decided(
        &mut self,
        number: u64,
        kept: bool,
        now_s: u32,
        mut failed: impl FnMut(Entry<T>),
    ) -> bool {
        let Some((batch, entries, _)) = &self.sent else {
            return false;
        };
        if batch.number != number {
            return false;
        }
        let (begin, end) = (entries.start.max(self.gone), entries.end);
        let range = (begin - self.gone) as usize..(end.max(begin) - self.gone) as usize;
        let sent = |entry: &&mut Entry<T>| entry.state == State::Sent;
        for entry in self.waiting.range_mut(range).filter(sent) {
            entry.state = match (kept, entry.insists) {
                (true, _) => State::Committed,
                (false, true) if !planted::is(Fault::NotAgain) => State::New,
                (false, _) => State::Failed,
            };
            if entry.state == State::New {
                self.rests_until_s = now_s.saturating_add(REST_S);
            }
            if entry.state == State::Failed {
                failed(Entry {
                    record: entry.record.take(),
                    what: entry.what.take(),
                    ..*entry
                });
            }
        }
        self.sent = None;
        if !kept {
            // Those that insist come before all that is newer.
            self.fresh = begin;
        }
        true
    }

    fn is_due(&self) -> bool {
        let waits = |state| match state {
            State::New => true,
            State::Sent => !planted::is(Fault::AppliedEarly),
            State::Reached => true,
            State::Ready | State::Committed | State::Failed => false,
        };
        let is = |entry: &Entry<T>| !waits(entry.state);
        self.waiting.front().is_some_and(is)
    }
}

impl<T> Commits<T> {
    /// Empty queues of the partitions of a home, which may have none.
    pub fn new(placement: Placement, home: u16) -> Commits<T> {
        let all = (home < placement.homes()).then(|| placement.of_home(home));
        Commits {
            queues: all.into_iter().flatten().map(Queue::new).collect(),
            wide: VecDeque::new(),
            failed: VecDeque::new(),
            tickets: 0,
            next: 0,
            stirred: false,
            entries: 0,
            bytes: 0,
        }
    }

    /// Whether what concerns this place takes effect at once, if it is no write.
    pub fn is_free(&self, place: Place) -> bool {
        match place {
            Place::One(at) => self.queues[at].waiting.is_empty(),
            Place::All => self.len() == 0,
        }
    }

    /// Queues what is asked. A record is appended to the log, in each partition that it concerns; where the engine fails, `insists` has it
    /// appended again. What concerns all partitions insists always. `bytes` are those that it holds besides the record.
    pub fn push(
        &mut self,
        place: Place,
        record: Option<Arc<[u8]>>,
        insists: bool,
        what: T,
        bytes: usize,
    ) {
        self.tickets += 1;
        let ticket = self.tickets;
        let parts = match place {
            Place::One(_) => 1,
            Place::All => self.queues.len(),
        };
        let record_bytes = record.as_ref().map_or(0, |record| record.len());
        let bytes = bytes + record_bytes + parts * size_of::<Entry<T>>();
        self.entries += 1;
        self.bytes += bytes;
        let state = match record {
            Some(_) => State::New,
            None => State::Ready,
        };
        match place {
            Place::One(at) => self.queues[at].waiting.push_back(Entry {
                ticket,
                state,
                record,
                insists,
                what: Some(what),
                bytes,
            }),
            Place::All => {
                for queue in &mut self.queues {
                    queue.waiting.push_back(Entry {
                        ticket,
                        state,
                        record: record.clone(),
                        insists: true,
                        what: None,
                        bytes: 0,
                    });
                }
                self.wide.push_back(Wide {
                    ticket,
                    record,
                    left: parts,
                    what,
                    bytes,
                });
            }
        }
        self.stirred = true;
    }

    /// The next entry that is done with.
    pub fn next(&mut self) -> Option<Due<T>> {
        if let Some(what) = self.failed.pop_front() {
            return Some(Due::Failed(what));
        }
        if !self.stirred {
            return None;
        }
        for n in 0..self.queues.len() {
            let at = (self.next + n) % self.queues.len();
            while self.queues[at].is_due() {
                if let Some(due) = self.pop(at) {
                    self.next = at;
                    return Some(due);
                }
            }
        }
        let due = self.pop_wide();
        self.stirred = due.is_some();
        due
    }

    /// Takes the first entry of a queue; what concerns all partitions stays there until it takes effect.
    fn pop(&mut self, at: usize) -> Option<Due<T>> {
        let queue = &mut self.queues[at];
        let first = queue.waiting.front_mut()?;
        if first.what.is_none() && first.state != State::Failed {
            first.state = State::Reached;
            let found = self
                .wide
                .binary_search_by_key(&first.ticket, |it| it.ticket);
            self.wide[found.expect("it stands in each partition")].left -= 1;
            return None;
        }
        let entry = queue.waiting.pop_front()?;
        queue.gone += 1;
        // What has failed was counted no more when it did.
        let what = entry.what?;
        self.forget(entry.bytes);
        Some(Due::Turn(what, entry.record))
    }

    fn pop_wide(&mut self) -> Option<Due<T>> {
        if self.wide.front()?.left > 0 {
            return None;
        }
        let Wide {
            record,
            what,
            bytes,
            ..
        } = self.wide.pop_front()?;
        for queue in &mut self.queues {
            queue.waiting.pop_front();
            queue.gone += 1;
        }
        self.forget(bytes);
        Some(Due::Turn(what, record))
    }

    fn forget(&mut self, bytes: usize) {
        self.entries -= 1;
        self.bytes -= bytes;
    }

    /// Whether an entry may be due.
    pub fn is_stirred(&self) -> bool {
        self.stirred || !self.failed.is_empty()
    }

    /// Entries that wait.
    pub fn len(&self) -> usize {
        self.entries + self.failed.len()
    }

    /// Bytes that they occupy.
    pub fn bytes(&self) -> usize {
        self.bytes + self.failed.len() * size_of::<T>()
    }

    /// Calls `append` with each batch that may go to its engine now.
    pub fn send(&mut self, now_s: u32, append: impl FnMut(Batch)) {
        let queues = self.queues.iter_mut();
        queues
            .filter_map(|queue| queue.next_batch(now_s))
            .for_each(append);
    }

    /// Calls `append` with each batch whose answer is late.
    pub fn send_again(&mut self, now_s: u32, mut append: impl FnMut(Batch)) {
        for queue in &mut self.queues {
            if let Some((batch, _, since_s)) = &mut queue.sent
                && now_s.saturating_sub(*since_s) >= AGAIN_S
            {
                *since_s = now_s;
                if planted::is(Fault::NewNumber) {
                    queue.batches += 1;
                    batch.number = queue.batches;
                }
                append(batch.clone());
            }
        }
    }

    /// The engine of the partition at this place has decided about a batch.
    pub fn decided(&mut self, at: usize, number: u64, kept: bool, now_s: u32) {
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        let (mut entries, mut bytes) = (0, 0);
        let failed = |entry: Entry<T>| {
            entries += 1;
            bytes += entry.bytes;
            self.failed.extend(entry.what);
        };
        self.stirred |= queue.decided(number, kept, now_s, failed);
        self.entries -= entries;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests;
