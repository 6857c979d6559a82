//! The virtual engine: an ordered log of each partition that has each batch at least once. It loses batches, doubles them, stores them in
//! another order, and takes its time; the homes' side of the seam must make up for all of that.
//!
//! It folds its log as any reader does: a batch counts if its number is the next one. It also checks the homes' side: numbers that rise by one,
//! batches that do not overlap, a batch that is the same when it is appended again, and no record in two batches that count.
//!
//! In worlds that crash a [`Drive`] has the log, as in a real server.

mod drive;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crore_broker::batch::{HEADER_BYTES, Header};
use crore_broker::{Batch, Committed, PartitionId};

pub use drive::{Drive, Start};
pub use shared::Shared;

use crate::rng::Rng;
use crate::truth::Violation;

/// How it behaves, each in percent of the turns of a partition's home, or of batches.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Batches that have arrived are stored, and batches that are stored are told.
    pub goes_on: u32,
    /// A batch is lost.
    pub loses: u32,
    /// A batch arrives twice.
    pub doubles: u32,
    /// A batch arrives before the one that was appended before it.
    pub reorders: u32,
}

/// The log of a partition.
#[derive(Default)]
struct Log {
    arriving: Vec<Batch>,
    /// Batches that are stored and not told yet.
    stored: Vec<Committed>,
    /// The bytes of each batch that was appended, by number.
    appended: BTreeMap<u64, Arc<[u8]>>,
    /// The number of the last batch that counts.
    last: u64,
    /// The offset behind its records.
    next: Option<u64>,
    /// The first offset and the records of each batch that counts.
    records: BTreeSet<(u64, Vec<u8>)>,
}

/// The engine of all partitions.
#[derive(Default)]
pub struct Engine {
    logs: BTreeMap<PartitionId, Log>,
    /// The disk, in worlds that crash.
    pub drive: Option<Drive>,
    /// The log of all nodes, in worlds that have several.
    pub shared: Option<Shared>,
    /// Neither loses, doubles nor reorders.
    pub is_calm: bool,
    /// The numbers of the messages in batches that count, and in how many of them each stands: a retry with a key may stand in another
    /// batch than its message.
    messages: BTreeMap<u32, u32>,
    /// The batches that count, each partition's in the order of its log.
    pub log: Vec<Batch>,
    /// Batches that count.
    pub kept: u64,
    /// Batches that do not: duplicates, and those behind a gap.
    pub void: u64,
    /// Batches that were appended again.
    pub again: u64,
    /// Batches that came back although no home knew of them.
    pub came: u64,
}

impl Engine {
    /// Takes a batch of a node.
    ///
    /// # Errors
    /// The fault of a home.
    pub fn append(
        &mut self,
        node: usize,
        batch: Batch,
        manner: Manner,
        rng: &mut Rng,
    ) -> Result<(), String> {
        if let Some(shared) = &mut self.shared {
            let again = shared.append((node, batch), manner, self.is_calm, rng)?;
            self.again += u64::from(again);
            return Ok(());
        }
        if let Some(drive) = &mut self.drive {
            self.again += u64::from(!drive.append(batch)?);
            return Ok(());
        }
        let Header {
            partition, number, ..
        } = batch.header;
        let log = self.logs.entry(partition).or_default();
        let newest = log.appended.keys().next_back().copied().unwrap_or(0);
        match log.appended.get(&number) {
            Some(before) if *before == batch.bytes => self.again += 1,
            None if number == newest + 1 => {
                log.appended.insert(number, batch.bytes.clone());
            }
            _ => {
                return Err(format!(
                    "batch {number} of partition {partition} comes behind {newest}, or is another one"
                ));
            }
        }
        let mut happens = |percent| !self.is_calm && rng.chance(percent);
        if happens(manner.loses) {
            return Ok(());
        }
        if happens(manner.doubles) {
            log.arriving.push(batch.clone());
        }
        let back = usize::from(happens(manner.reorders)).min(log.arriving.len());
        log.arriving.insert(log.arriving.len() - back, batch);
        Ok(())
    }

    /// A turn of the home of these partitions: stores batches, and tells of those that are stored. `whole` does so with all.
    ///
    /// # Errors
    /// When a record is in two batches that count.
    pub fn turn(
        &mut self,
        partitions: impl Iterator<Item = PartitionId>,
        whole: bool,
        manner: Manner,
        rng: &mut Rng,
    ) -> Result<Vec<Committed>, String> {
        if self.drive.is_some() {
            return self.turn_of_drive(&partitions.collect::<Vec<_>>(), whole, manner, rng);
        }
        let mut told = Vec::new();
        for partition in partitions {
            let Some(log) = self.logs.get_mut(&partition) else {
                continue;
            };
            if whole || rng.chance(manner.goes_on) {
                for batch in log.arriving.drain(..) {
                    let header = batch.header;
                    log.stored.push(Committed {
                        header,
                        batch: None,
                    });
                    if header.number != log.last + 1 {
                        self.void += 1;
                        continue;
                    }
                    log.last = header.number;
                    let next = header.first + u64::from(header.records);
                    match log.next.replace(next) {
                        // Topics that stand in no log take offsets between two batches.
                        Some(due) if due > header.first => {
                            return Err(format!(
                                "a batch of partition {partition} begins at {}, and the one before it ends at {due} or later",
                                header.first
                            ));
                        }
                        _ => {}
                    }
                    self.kept += 1;
                    let records = &batch.bytes[HEADER_BYTES..];
                    count(&mut self.messages, records);
                    if !log.records.insert((header.first, records.to_vec())) {
                        return Err(format!("records of partition {partition} are kept twice"));
                    }
                    self.log.push(batch);
                }
            }
            if whole || rng.chance(manner.goes_on) {
                told.append(&mut log.stored);
            }
        }
        Ok(told)
    }

    /// The same for a node of several, in this second.
    ///
    /// # Errors
    /// When a batch cannot be read.
    pub fn turn_of_node(
        &mut self,
        (node, unix_s): (usize, u32),
        partitions: impl Iterator<Item = PartitionId>,
        whole: bool,
        manner: Manner,
        rng: &mut Rng,
    ) -> Result<Vec<Committed>, Violation> {
        let Some(shared) = &mut self.shared else {
            return Ok(Vec::new());
        };
        let mut told = Vec::new();
        for partition in partitions {
            if whole || rng.chance(manner.goes_on) {
                let (messages, kept) = (&mut self.messages, &mut self.kept);
                self.void += shared.store(partition, unix_s, |bytes| {
                    count(messages, &bytes[HEADER_BYTES..]);
                    *kept += 1;
                })?;
            }
            if whole || rng.chance(manner.goes_on) {
                let most = if whole { usize::MAX } else { rng.range(1, 4) };
                told.append(&mut shared.tell(node, partition, most));
            }
        }
        Ok(told)
    }

    fn turn_of_drive(
        &mut self,
        partitions: &[PartitionId],
        whole: bool,
        manner: Manner,
        rng: &mut Rng,
    ) -> Result<Vec<Committed>, Violation> {
        let drive = self.drive.as_mut().expect("it was just seen");
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        if drive.waiting() > 0 && (whole || rng.chance(manner.goes_on)) {
            let most = if whole { usize::MAX } else { rng.range(1, 8) };
            for batch in drive.commit(most, rng)? {
                keep(&mut self.messages, &mut self.log, batch);
                self.kept += 1;
            }
        }
        let tells = whole || rng.chance(manner.goes_on);
        Ok(if tells {
            drive.tell(partitions)
        } else {
            Vec::new()
        })
    }

    /// The process ends; with `cuts` the power goes.
    pub fn crash(&mut self, cuts: bool, rng: &mut Rng) {
        let drive = self.drive.as_mut().expect("worlds that crash have a disk");
        for batch in drive.crash(cuts, rng) {
            keep(&mut self.messages, &mut self.log, batch);
        }
    }

    /// A new process reads the log behind the base.
    ///
    /// # Errors
    /// Its faults.
    pub fn start(&mut self) -> Result<Start, Violation> {
        let drive = self.drive.as_mut().expect("worlds that crash have a disk");
        let start = drive.start()?;
        for bytes in &start.batches[start.batches.len() - start.came..] {
            let header = Header::read(bytes).map_err(|why| why.to_string())?;
            let bytes = bytes.clone();
            keep(&mut self.messages, &mut self.log, Batch { header, bytes });
        }
        self.came += start.came as u64;
        for lost in &start.lost {
            for message in numbers_in(&lost[HEADER_BYTES..]) {
                *self.messages.entry(message).or_insert(1) -= 1;
            }
        }
        Ok(start)
    }

    /// Whether a message is kept.
    pub fn has(&self, message: u32) -> bool {
        self.messages.get(&message).is_some_and(|count| *count > 0)
    }

    /// The homes begin anew, with numbers of their own.
    pub fn restart(&mut self) {
        self.logs.clear();
        self.is_calm = false;
    }

    /// Whether it has something to do for one of these partitions.
    pub fn has_work(&self, node: usize, mut partitions: impl Iterator<Item = PartitionId>) -> bool {
        if let Some(shared) = &self.shared {
            return partitions.any(|partition| shared.has_work(node, partition));
        }
        if let Some(drive) = &self.drive {
            return drive.has_work(partitions);
        }
        partitions.any(|partition| {
            let log = self.logs.get(&partition);
            log.is_some_and(|log| !log.arriving.is_empty() || !log.stored.is_empty())
        })
    }
}

/// A batch counts.
fn keep(messages: &mut BTreeMap<u32, u32>, log: &mut Vec<Batch>, batch: Batch) {
    count(messages, &batch.bytes[HEADER_BYTES..]);
    log.push(batch);
}

/// Counts the messages in the records of a batch.
fn count(messages: &mut BTreeMap<u32, u32>, records: &[u8]) {
    for message in numbers_in(records) {
        *messages.entry(message).or_default() += 1;
    }
}

/// The numbers of the messages whose data are in a batch: each begins with `m`, its number and `;`.
fn numbers_in(batch: &[u8]) -> impl Iterator<Item = u32> {
    let begins = batch.split(|byte| *byte == b'm').skip(1);
    begins.filter_map(|rest| {
        let len = rest.iter().position(|byte| *byte == b';')?;
        std::str::from_utf8(&rest[..len]).ok()?.parse().ok()
    })
}
