//! The virtual engine: one ordered log for each partition, which commits the batches of its home (the shard that owns the partition's
//! topics). The engine loses, duplicates, reorders and delays batches, and the homes must correct all of that.
//!
//! The engine reads its own log as every reader does: it commits a stored batch with the next number, and all others are *void*, which
//! means that every reader skips them. It also checks the batches that homes append: numbers rise by one, batches do not overlap, a
//! batch that is appended again is identical, and no record is in two committed batches.
//!
//! If the simulated server crashes, a [`DiskLog`] stores the batches instead of these logs, as in a real server. In a cluster a
//! [`ClusterLog`] does.

mod cluster_log;
mod disk_log;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crore_broker::batch::{self, HEADER_BYTES, Header, LogRecord};
use crore_broker::mail::Fact;
use crore_broker::{Batch, Committed, Now, PartitionId};
use crore_rng::Rng;

pub use cluster_log::ClusterLog;
pub use disk_log::{DiskLog, ReportedDamage, Start};

use crate::coverage::Coverage;
use crate::truth::Violation;

/// Probabilities of the engine's actions, in percent.
///
/// A new fault of the engine or its disk is a field here, drawn in [`EngineBehavior::draw`], and a row of `coverage.rs`, counted in
/// [`Engine::coverage`].
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineBehavior {
    /// The engine stores the arrived batches in a turn of the partition's home (a round of the shard's loop). A second draw with the same
    /// probability decides whether the engine reports the stored batches.
    pub progress: u32,
    /// The engine loses a batch.
    pub loss: u32,
    /// The engine duplicates a batch.
    pub duplication: u32,
    /// The engine swaps a batch with the previous one.
    pub reordering: u32,
}

impl EngineBehavior {
    /// Chooses the probabilities at random, those of progress and loss from these.
    ///
    /// A new fault draws from a copy of `rng` with a salt of its own, so that the worlds of old seeds stay as they are.
    pub fn draw(progress: &[u32], loss: [u32; 4], rng: &mut Rng) -> EngineBehavior {
        EngineBehavior {
            progress: rng.pick(progress),
            loss: rng.pick(&loss),
            duplication: rng.pick(&[0, 0, 5, 40]),
            reordering: rng.pick(&[0, 0, 5, 40]),
        }
    }
}

/// The log of a partition.
#[derive(Default)]
struct Log {
    arriving: Vec<Batch>,
    /// Stored batches that are not reported yet.
    stored: Vec<Committed>,
    /// The bytes of each appended batch, by number.
    appended: BTreeMap<u64, Arc<[u8]>>,
    /// The number of the last committed batch.
    last_committed: u64,
    /// The offset after the last committed record.
    next_offset: Option<u64>,
    /// The first offset and the records of each committed batch.
    records: BTreeSet<(u64, Vec<u8>)>,
}

/// The engine of all partitions.
#[derive(Default)]
pub struct Engine {
    behavior: EngineBehavior,
    logs: BTreeMap<PartitionId, Log>,
    /// The log on disk, in worlds with crashes.
    pub disk_log: Option<DiskLog>,
    /// The log of all nodes, in worlds with several.
    pub cluster_log: Option<ClusterLog>,
    /// Whether the engine loses, duplicates and reorders nothing any more.
    pub is_reliable: bool,
    /// For each message the number of committed batches that contain it. A retry with an idempotency key may be in another batch than the
    /// first attempt.
    messages: BTreeMap<u32, u32>,
    /// The committed batches. Those of one partition are in the order of its log.
    pub log: Vec<Batch>,
    /// The counts of the engine's own events.
    pub coverage: Coverage,
}

impl Engine {
    /// An engine without batches.
    pub fn new(behavior: EngineBehavior) -> Engine {
        Engine {
            behavior,
            ..Engine::default()
        }
    }

    /// The log on disk, in a world with crashes.
    pub fn disk_log(&mut self) -> &mut DiskLog {
        self.disk_log
            .as_mut()
            .expect("worlds that crash have a disk")
    }

    /// Appends a batch of a node.
    ///
    /// # Errors
    /// If the batch does not have the next number, or has the number of a different batch.
    pub fn append(&mut self, node: usize, batch: Batch, rng: &mut Rng) -> Result<(), String> {
        if let Some(cluster_log) = &mut self.cluster_log {
            let again = cluster_log.append(node, batch, self.behavior, self.is_reliable, rng)?;
            self.coverage.appended_again += u64::from(again);
            return Ok(());
        }
        if let Some(disk_log) = &mut self.disk_log {
            self.coverage.appended_again += u64::from(!disk_log.append(batch)?);
            return Ok(());
        }
        let Header {
            partition, number, ..
        } = batch.header;
        let log = self.logs.entry(partition).or_default();
        let newest = log.appended.keys().next_back().copied().unwrap_or(0);
        match log.appended.get(&number) {
            Some(before) if *before == batch.bytes => self.coverage.appended_again += 1,
            None if number == newest + 1 => {
                log.appended.insert(number, batch.bytes.clone());
            }
            _ => {
                return Err(format!(
                    "batch {number} of partition {partition} comes behind {newest}, or is another one"
                ));
            }
        }
        let mut happens = |percent| !self.is_reliable && rng.chance(percent);
        if happens(self.behavior.loss) {
            return Ok(());
        }
        if happens(self.behavior.duplication) {
            log.arriving.push(batch.clone());
        }
        let swapped = usize::from(happens(self.behavior.reordering)).min(log.arriving.len());
        log.arriving.insert(log.arriving.len() - swapped, batch);
        Ok(())
    }

    /// Takes a turn for the home of these partitions, which is at `node`: the engine stores some arrived batches and reports some stored ones.
    /// With `takes_all` it stores and reports all of them. Returns the reports.
    ///
    /// # Errors
    /// If two committed batches overlap or contain the same record, or if a batch cannot be read.
    pub fn turn(
        &mut self,
        node: usize,
        now: Now,
        partitions: impl Iterator<Item = PartitionId>,
        takes_all: bool,
        rng: &mut Rng,
    ) -> Result<Vec<Committed>, Violation> {
        if self.cluster_log.is_some() {
            return self.turn_of_cluster_log(node, now, partitions, takes_all, rng);
        }
        if self.disk_log.is_some() {
            return self.turn_of_disk_log(&partitions.collect::<Vec<_>>(), takes_all, rng);
        }
        let mut reports = Vec::new();
        for partition in partitions {
            let Some(log) = self.logs.get_mut(&partition) else {
                continue;
            };
            if takes_all || rng.chance(self.behavior.progress) {
                for batch in log.arriving.drain(..) {
                    let header = batch.header;
                    log.stored.push(Committed {
                        header,
                        batch: None,
                    });
                    if header.number != log.last_committed + 1 {
                        self.coverage.void += 1;
                        continue;
                    }
                    log.last_committed = header.number;
                    let end = header.first_offset + u64::from(header.record_count);
                    match log.next_offset.replace(end) {
                        // There may be offsets between two batches, which belong to topics that are not durable.
                        Some(due) if due > header.first_offset => {
                            return Err(format!(
                                "a batch of partition {partition} begins at {}, and the one before it ends at {due} or later",
                                header.first_offset
                            ));
                        }
                        _ => {}
                    }
                    self.coverage.committed += 1;
                    count_messages(&mut self.messages, &batch.bytes);
                    let records = &batch.bytes[HEADER_BYTES..];
                    if !log.records.insert((header.first_offset, records.to_vec())) {
                        return Err(format!("records of partition {partition} are kept twice"));
                    }
                    self.log.push(batch);
                }
            }
            if takes_all || rng.chance(self.behavior.progress) {
                reports.append(&mut log.stored);
            }
        }
        Ok(reports)
    }

    fn turn_of_cluster_log(
        &mut self,
        node: usize,
        now: Now,
        partitions: impl Iterator<Item = PartitionId>,
        takes_all: bool,
        rng: &mut Rng,
    ) -> Result<Vec<Committed>, Violation> {
        let cluster_log = self.cluster_log.as_mut().expect("it was just seen");
        let mut reports = Vec::new();
        for partition in partitions {
            if takes_all || rng.chance(self.behavior.progress) {
                let messages = &mut self.messages;
                cluster_log.store(partition, now.unix_s, &mut self.coverage, |bytes| {
                    count_messages(messages, bytes);
                })?;
            }
            if takes_all || rng.chance(self.behavior.progress) {
                let batches_max = if takes_all {
                    usize::MAX
                } else {
                    rng.range(1, 4)
                };
                reports.append(&mut cluster_log.report(node, partition, batches_max));
            }
        }
        Ok(reports)
    }

    fn turn_of_disk_log(
        &mut self,
        partitions: &[PartitionId],
        takes_all: bool,
        rng: &mut Rng,
    ) -> Result<Vec<Committed>, Violation> {
        let disk_log = self.disk_log.as_mut().expect("it was just seen");
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        if disk_log.waiting() > 0 && (takes_all || rng.chance(self.behavior.progress)) {
            let batches_max = if takes_all {
                usize::MAX
            } else {
                rng.range(1, 8)
            };
            for batch in disk_log.commit(batches_max, rng)? {
                record_committed(&mut self.messages, &mut self.log, batch);
                self.coverage.committed += 1;
            }
        }
        let may_report = takes_all || rng.chance(self.behavior.progress);
        Ok(if may_report {
            disk_log.report(partitions)
        } else {
            Vec::new()
        })
    }

    /// Kills the process. With `is_power_cut` the power fails.
    pub fn crash(&mut self, is_power_cut: bool, rng: &mut Rng) {
        for batch in self.disk_log().crash(is_power_cut, rng) {
            record_committed(&mut self.messages, &mut self.log, batch);
        }
    }

    /// Reads the log after its base (the checkpoint from which a process starts), for a new process.
    ///
    /// # Errors
    /// The errors of [`DiskLog::start`].
    pub fn start(&mut self) -> Result<Start, Violation> {
        let start = self.disk_log().start()?;
        for bytes in &start.batches[start.batches.len() - start.unreported..] {
            let header = Header::read(bytes).map_err(|error| error.to_string())?;
            let bytes = bytes.clone();
            record_committed(&mut self.messages, &mut self.log, Batch { header, bytes });
        }
        self.coverage.unreported_batches += start.unreported as u64;
        for lost in &start.lost {
            for message in numbers_in(lost) {
                *self.messages.entry(message).or_insert(1) -= 1;
            }
        }
        Ok(start)
    }

    /// Whether a committed batch contains the message.
    pub fn has(&self, message: u32) -> bool {
        self.messages.get(&message).is_some_and(|count| *count > 0)
    }

    /// Forgets the numbers of batches, since new homes start and number their batches from the beginning.
    pub fn restart(&mut self) {
        self.logs.clear();
        self.is_reliable = false;
    }

    /// Whether the engine can store or report something for one of these partitions.
    pub fn has_work(&self, node: usize, mut partitions: impl Iterator<Item = PartitionId>) -> bool {
        if let Some(cluster_log) = &self.cluster_log {
            return partitions.any(|partition| cluster_log.has_work(node, partition));
        }
        if let Some(disk_log) = &self.disk_log {
            return disk_log.has_work(partitions);
        }
        partitions.any(|partition| {
            let log = self.logs.get(&partition);
            log.is_some_and(|log| !log.arriving.is_empty() || !log.stored.is_empty())
        })
    }
}

/// Records a committed batch.
fn record_committed(messages: &mut BTreeMap<u32, u32>, log: &mut Vec<Batch>, batch: Batch) {
    count_messages(messages, &batch.bytes);
    log.push(batch);
}

/// Counts the messages in a batch.
fn count_messages(messages: &mut BTreeMap<u32, u32>, batch: &[u8]) {
    for message in numbers_in(batch) {
        *messages.entry(message).or_default() += 1;
    }
}

/// The numbers of the messages that were published in a batch. The data of each begins with `m`, its number and `;`. The record of a session may
/// also contain messages, but does not publish them.
fn numbers_in(batch: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    let read = batch::for_each_record(batch, |_, entry| {
        if let LogRecord::Fact(Fact::Publish(message)) = entry {
            numbers.extend(number_of(message.data));
        }
    });
    read.expect("a home has written it");
    numbers
}

fn number_of(data: &[u8]) -> Option<u32> {
    let rest = data.strip_prefix(b"m")?;
    let len = rest.iter().position(|byte| *byte == b';')?;
    std::str::from_utf8(&rest[..len]).ok()?.parse().ok()
}
