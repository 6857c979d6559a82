//! The virtual engine: it keeps batches of records after a while, or fails, and sometimes neither hears nor answers.
//!
//! Invariant: it decides once about each batch. What it has heard of the homes' side of the seam it checks: one batch of a partition at a
//! time, numbers that rise, and a batch that is appended again is the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crore_broker::{Batch, PartitionId};

use crate::rng::Rng;

/// How it behaves, each in percent of the turns of a partition's home, or of batches.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// A batch under way is decided.
    pub decides: u32,
    /// A batch that is decided is not kept.
    pub fails: u32,
    /// A batch is not heard, or its answer is lost.
    pub forgets: u32,
}

/// The log of a partition.
#[derive(Default)]
struct Log {
    under_way: Option<Batch>,
    /// All records that are kept: none has the address of another.
    kept: Vec<Arc<[u8]>>,
    /// The last batch that was decided about, and how.
    decided: Option<(Batch, bool)>,
    answers: VecDeque<(u64, bool)>,
}

/// The answer about a batch: its partition, its number, and whether it is kept.
pub type Answer = (PartitionId, u64, bool);

/// The engine of all partitions.
#[derive(Default)]
pub struct Engine {
    logs: BTreeMap<PartitionId, Log>,
    /// Neither fails nor forgets.
    pub is_calm: bool,
    /// The addresses of the records that are kept.
    records: BTreeSet<(PartitionId, usize)>,
    /// The numbers of the messages in them.
    messages: BTreeSet<u32>,
    /// A record that was kept twice.
    twice: Option<PartitionId>,
    /// Batches that were kept.
    pub kept: u64,
    /// Batches that were not.
    pub failed: u64,
    /// Batches that were appended again.
    pub again: u64,
}

impl Engine {
    /// Takes a batch.
    ///
    /// # Errors
    /// What a home did wrong.
    pub fn append(&mut self, batch: Batch, manner: Manner, rng: &mut Rng) -> Result<(), String> {
        let forgets = rng.chance(manner.forgets) && !self.is_calm;
        let log = self.logs.entry(batch.partition).or_default();
        let same = |other: &Batch| other.number == batch.number && other.records == batch.records;
        if let Some(under_way) = &log.under_way {
            self.again += 1;
            return match same(under_way) {
                true => Ok(()),
                false => Err(format!(
                    "two batches of partition {} are under way",
                    batch.partition
                )),
            };
        }
        if let Some((last, kept)) = &log.decided {
            if same(last) {
                self.again += 1;
                log.answers.push_back((batch.number, *kept));
                return Ok(());
            }
            if batch.number <= last.number {
                return Err(format!(
                    "batch {} of partition {} comes behind {}",
                    batch.number, batch.partition, last.number
                ));
            }
        }
        if batch.records.is_empty() {
            return Err("a batch has no record".into());
        }
        if !forgets {
            log.under_way = Some(batch);
        }
        Ok(())
    }

    /// A turn of the home of these partitions: decides about batches, and answers. `whole` decides about all.
    pub fn turn(
        &mut self,
        partitions: impl Iterator<Item = PartitionId>,
        whole: bool,
        manner: Manner,
        rng: &mut Rng,
    ) -> Vec<Answer> {
        let mut told = Vec::new();
        for partition in partitions {
            let Some(log) = self.logs.get_mut(&partition) else {
                continue;
            };
            if log.under_way.is_some() && (whole || rng.chance(manner.decides)) {
                let batch = log.under_way.take().expect("it was just seen");
                let keeps = self.is_calm || !rng.chance(manner.fails);
                let answers = self.is_calm || !rng.chance(manner.forgets);
                if answers {
                    log.answers.push_back((batch.number, keeps));
                }
                if keeps {
                    self.kept += 1;
                    for record in &batch.records {
                        let place = (partition, record.as_ptr() as usize);
                        if !self.records.insert(place) {
                            self.twice = Some(partition);
                        }
                        self.messages.extend(numbers_in(record));
                        log.kept.push(record.clone());
                    }
                } else {
                    self.failed += 1;
                }
                log.decided = Some((batch, keeps));
            }
            if whole || rng.chance(manner.decides) {
                let answers = log.answers.drain(..);
                told.extend(answers.map(|(number, kept)| (partition, number, kept)));
            }
        }
        told
    }

    /// Whether a message is kept.
    pub fn has(&self, message: u32) -> bool {
        self.messages.contains(&message)
    }

    /// A partition in which a record was kept twice.
    pub fn twice(&self) -> Option<PartitionId> {
        self.twice
    }

    /// The homes begin anew, with numbers of their own.
    pub fn restart(&mut self) {
        self.logs.clear();
        self.records.clear();
        self.is_calm = false;
    }

    /// Whether it has something to do for one of these partitions.
    pub fn has_work(&self, mut partitions: impl Iterator<Item = PartitionId>) -> bool {
        partitions.any(|partition| {
            let log = self.logs.get(&partition);
            log.is_some_and(|log| log.under_way.is_some() || !log.answers.is_empty())
        })
    }
}

/// The numbers of the messages whose data are in a record: each begins with `m`, its number and `;`.
fn numbers_in(record: &[u8]) -> impl Iterator<Item = u32> {
    let begins = record.split(|byte| *byte == b'm').skip(1);
    begins.filter_map(|rest| {
        let len = rest.iter().position(|byte| *byte == b';')?;
        std::str::from_utf8(&rest[..len]).ok()?.parse().ok()
    })
}
