//! The batches of a log with several writers, of one partition, that the engine has told: those of this process among them.
//!
//! Invariant: a batch is begun when all before it is applied, and only then it is seen whether it counts, since a record before it may say
//! that its writer is dead.

use alloc::collections::VecDeque;

use super::batch::{Header, Kept, Records};
use super::batches::Batches;
use super::{Committed, Foreign};

/// The batches that are not applied.
#[derive(Default)]
pub(super) struct Arrivals {
    /// In the order of the log.
    waiting: VecDeque<Committed>,
    /// The batch of another writer that is being applied.
    foreign: Option<(Records, Foreign)>,
    /// It has a record that this version does not understand: nothing behind it is applied.
    pub is_halted: bool,
}

/// Their number and bytes, those of all partitions of a home together.
#[derive(Default)]
pub(super) struct Unapplied {
    pub batches: usize,
    pub bytes: usize,
}

fn bytes_of(of: &Committed) -> usize {
    of.batch.as_ref().map_or(0, |it| it.bytes().len())
}

impl Unapplied {
    fn done(&mut self, bytes: usize) {
        self.batches -= 1;
        self.bytes -= bytes;
    }
}

impl Arrivals {
    /// A batch stands in the log, behind all others.
    pub fn push(&mut self, of: Committed, unapplied: &mut Unapplied) {
        unapplied.batches += 1;
        unapplied.bytes += bytes_of(&of);
        self.waiting.push_back(of);
    }

    /// Takes the next record of the other writer's batch that is being applied.
    pub fn next_record(&mut self, unapplied: &mut Unapplied) -> Option<Kept> {
        if self.is_halted {
            return None;
        }
        let (records, foreign) = self.foreign.as_mut()?;
        let record = records.next();
        if records.is_empty() {
            unapplied.done(foreign.bytes().len());
            self.foreign = None;
        }
        Some(record)
    }

    /// Begins with the next batch, if all before it is applied; `batches` are those of this process. `counts` says whether one counts, of this
    /// writer and with this number. False if there is none to begin.
    pub fn begin_next(
        &mut self,
        batches: &mut Batches,
        now_s: u32,
        unapplied: &mut Unapplied,
        counts: impl FnOnce(u64, u64) -> bool,
    ) -> bool {
        if self.is_halted || self.foreign.is_some() || batches.has_record() {
            return false;
        }
        let Some(of) = self.waiting.pop_front() else {
            return false;
        };
        let bytes = bytes_of(&of);
        if of.writer == batches.writer() {
            if batches.committed(of.number, (of.first, of.unix_s), now_s) {
                counts(of.writer, of.number);
            }
            unapplied.done(bytes);
            return true;
        }
        let batch = of.batch.filter(|it| {
            let header = Header::read(it.bytes());
            header.is_ok_and(|it| {
                (it.partition, it.writer, it.number) == (of.partition, of.writer, of.number)
                    && it.records > 0
            })
        });
        let batch = batch.filter(|_| counts(of.writer, of.number));
        match batch {
            Some(batch) => {
                let records = Records::new(batch.bytes().clone(), of.first, of.unix_s);
                self.foreign = Some((records, batch));
            }
            None => unapplied.done(bytes),
        }
        true
    }
}
