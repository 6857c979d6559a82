//! Makes the checkpoints of a cluster. The *steward* of a partition is the node that makes its checkpoints: it combines the last checkpoint
//! and the batches after it into the next checkpoint, and writes the new one to the object store in NATS. A node that joins starts from the
//! newest checkpoints.
//!
//! Invariants: the log alone determines a checkpoint, so two stewards at the same time write the same and do no harm. Two checkpoints of
//! each partition are kept, and the log is purged only up to the older one, so that a damaged newest checkpoint loses nothing.
//!
//! Words: the *epoch* of the log is a number in each position and each checkpoint, which changes when the log has lost batches; a *shadow*
//! is a home without clients that writes a checkpoint.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::bail;
use crore_broker::batch::Header;
use crore_broker::log_retention::{CHECKPOINTS_KEPT as KEPT, Hole, LogExtent};
use crore_broker::orders::ClusterState;
use crore_broker::snapshot::FORMAT;
use crore_broker::{Control, Now, OFFSET_BITS, PartitionId, Restored, Shadow, World};
use crore_nats::{Checkpoint, MAX_BYTES_FACTOR, NewCheckpoint, PartitionStatus, Store};
use crore_net::clock;

use super::document::{self, DocumentWriter, Unusable, new_head};
use super::{CheckpointError, CheckpointWorker, Checkpoints, RETRY_DELAY};
use crate::engine::Member;
use crate::settings::cluster::Cluster as Settings;

/// Time between two listings of the stored checkpoints.
const LIST_INTERVAL: Duration = Duration::from_secs(10);
/// A checkpoint of this age is replaced if there are batches after it. So a joining node reads few batches, even of a partition with few
/// writes.
const AGE_MAX_S: u64 = 6 * 3600;
/// The next checkpoint is due when the batches after the last one fill 1/`HISTORY_DIVISOR` of the log's history. That is long before these
/// batches are purged.
const HISTORY_DIVISOR: u64 = 4;
/// A checkpoint is reported as overdue when the batches after the last one exceed the threshold this many times, or when their age exceeds
/// the threshold twice.
const OVERDUE_FACTOR: u64 = 4;
/// Buffer size for reading an object.
const READ_BYTES: usize = 256 << 10;

/// If the log of a partition stays full this long, its steward is not working. A dead steward would have been replaced in less time.
const FULL_WITHOUT_STEWARD: Duration = Duration::from_secs(15);
/// The full partitions, and since when each is full.
type FullPartitions = BTreeMap<PartitionId, Instant>;

/// What an operator does about batches that are missing.
pub const HOLE_REMEDY: &str = "First see that all servers of NATS run and are current (`crore cluster status`), and start this node again: nothing may be lost. If this message comes again, restore the streams and the object store from a backup, or begin anew without these messages: remove the streams and the buckets of this cluster, and start again";

/// Says which batches are missing.
pub fn describe_hole(
    Hole {
        last_missing: until,
    }: Hole,
    partition: PartitionId,
) -> String {
    format!(
        "partition {partition} lacks batches up to {until}: its stream begins behind them, and no checkpoint that counts contains them."
    )
}

/// The context of the node that makes the checkpoints.
type CheckpointContext = super::CheckpointContext<Settings, Member>;

/// Starts the thread. Must be called on the control thread.
///
/// # Errors
/// The thread cannot be started.
pub fn start(context: CheckpointContext) -> std::io::Result<Checkpoints> {
    Checkpoints::start(context.shards.clone(), move |worker| {
        CheckpointMaker { context, worker }.run();
    })
}

/// When a checkpoint of a partition is due.
#[derive(Clone, Copy)]
struct CheckpointThreshold {
    /// A checkpoint is due with this many bytes of batches after the last one.
    bytes: u64,
    age_s: u64,
}

impl CheckpointThreshold {
    /// The threshold for one of `partitions` partitions, by these settings.
    fn for_partition(
        settings: &Settings,
        partitions: usize,
        status: &PartitionStatus,
    ) -> CheckpointThreshold {
        let share = settings.checkpoint_bytes as u64 / partitions.max(1) as u64;
        let former = status.checkpoint.as_ref().map_or(0, |it| it.bytes);
        let history = history_bytes(settings, partitions, status).unwrap_or(u64::MAX);
        let age_s = match settings.history_age_s {
            0 => u64::MAX,
            age_s => u64::from(age_s) / HISTORY_DIVISOR,
        };
        CheckpointThreshold {
            // As many bytes as the last checkpoint has. So checkpoints never write more than was published.
            bytes: former.max(share).min(history / HISTORY_DIVISOR),
            age_s: age_s.min(AGE_MAX_S),
        }
    }

    /// Whether a checkpoint is due.
    fn is_due(self, status: &PartitionStatus) -> bool {
        let has_new_batches = status.checkpoint.as_ref().map_or(0, |it| it.sequence) < status.read;
        let is_old = age_s(status).is_some_and(|age_s| age_s >= self.age_s);
        status.behind_bytes >= self.bytes || (is_old || status.is_full) && has_new_batches
    }

    /// Whether a checkpoint is long overdue.
    fn is_late(self, status: &PartitionStatus) -> bool {
        let has_new_batches = status.checkpoint.as_ref().map_or(0, |it| it.sequence) < status.read;
        let is_old = has_new_batches && age_s(status).is_some_and(|age_s| age_s >= self.age_s * 2);
        status.behind_bytes >= self.bytes.saturating_mul(OVERDUE_FACTOR) || is_old
    }
}

/// The limit of the log of one of `partitions` partitions, in bytes, if there is one. The stream may have less room than the settings ask
/// for.
fn history_bytes(settings: &Settings, partitions: usize, status: &PartitionStatus) -> Option<u64> {
    let setting = settings.history_bytes as u64 / partitions.max(1) as u64;
    let limits = [setting, status.bytes_max / MAX_BYTES_FACTOR];
    limits.into_iter().filter(|it| *it > 0).min()
}

/// The number of partitions whose next checkpoint is long overdue.
pub fn late(settings: &Settings, all: &[PartitionStatus]) -> usize {
    let is_late = |it: &&PartitionStatus| {
        CheckpointThreshold::for_partition(settings, all.len(), it).is_late(it)
    };
    all.iter().filter(is_late).count()
}

/// The age of the newest checkpoint.
pub fn age_s(status: &PartitionStatus) -> Option<u64> {
    let checkpoint = status.checkpoint.as_ref()?;
    Some(clock::unix_s().saturating_sub(checkpoint.unix_s))
}

/// The usable checkpoints of a partition, the newest first. Checkpoints that cannot be used are logged.
///
/// # Errors
/// NATS does not answer, or another version has written a checkpoint.
pub fn usable(
    store: &Store,
    all: &[Checkpoint],
    partition: PartitionId,
) -> anyhow::Result<Vec<Checkpoint>> {
    let mut found = Vec::new();
    for checkpoint in all.iter().filter(|it| it.partition == partition) {
        if checkpoint.format != u32::from(FORMAT) {
            bail!(
                "{checkpoint} has format {}, and this version of Crore reads format {FORMAT}; install the version that the other nodes have",
                checkpoint.format
            );
        }
        match store.why_unusable(checkpoint)? {
            Some(reason) => tracing::warn!("cluster: {checkpoint} does not count: {reason}"),
            None => found.push(checkpoint.clone()),
        }
    }
    Ok(found)
}

/// Reads a checkpoint. `bytes` counts the bytes read.
///
/// # Errors
/// The checkpoint cannot be used.
pub fn read(
    store: &Store,
    checkpoint: &Checkpoint,
    restored: &mut Restored,
    bytes: &AtomicU64,
) -> Result<(), Unusable> {
    let name = checkpoint.to_string();
    let name = Path::new(&name);
    let object = store.read(checkpoint);
    let object = object.map_err(|error| Unusable::from_read_error(name, error))?;
    let counted = CountedReader(object, bytes);
    let mut from = BufReader::with_capacity(READ_BYTES, counted);
    document::read_into(restored, &mut from, name)
}

struct CountedReader<'a, R>(R, &'a AtomicU64);

impl<R: Read> Read for CountedReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

struct CheckpointMaker {
    context: CheckpointContext,
    worker: CheckpointWorker,
}

impl CheckpointMaker {
    fn run(self) {
        let stats = &*self.context.stats;
        let mut list_at = Instant::now();
        // When the next attempt is due for the partitions whose last one failed. It is kept for each, so that one that fails again and
        // again does not hold up the others.
        let mut not_before: BTreeMap<PartitionId, Instant> = BTreeMap::new();
        let mut full = BTreeMap::new();
        while self.worker.wait_for_next_check() {
            let partitions = self.context.engine.cluster.status().partitions;
            if Instant::now() >= list_at || partitions.iter().any(|it| it.is_full) {
                list_at = Instant::now() + LIST_INTERVAL;
                if let Err(error) = self.purge_all(&full) {
                    tracing::debug!("cluster: {error}");
                    continue;
                }
            }
            for (partition, status) in (0..).zip(&partitions) {
                let began = Instant::now();
                match status.is_full {
                    true => _ = full.entry(partition).or_insert(began),
                    false => _ = full.remove(&partition),
                }
                let threshold = CheckpointThreshold::for_partition(
                    &self.context.settings,
                    partitions.len(),
                    status,
                );
                let waits = not_before.get(&partition).is_some_and(|at| began < *at);
                if waits || !threshold.is_due(status) || !self.is_responsible(partition, &full) {
                    continue;
                }
                match self.make_checkpoint(partition) {
                    Ok(()) => {
                        stats.count_completed(began);
                        not_before.remove(&partition);
                        // Batches that the new checkpoint makes unnecessary are purged at once.
                        list_at = began;
                    }
                    Err(CheckpointError::Stops) => return,
                    Err(CheckpointError::Other(reason) | CheckpointError::Damaged(reason)) => {
                        stats.failed.fetch_add(1, Relaxed);
                        tracing::error!(
                            "cluster: no checkpoint of partition {partition}, so that its log only grows: {reason}"
                        );
                        not_before.insert(partition, Instant::now() + RETRY_DELAY);
                    }
                }
            }
        }
    }

    fn store(&self) -> &Store {
        &self.context.engine.store
    }

    /// Whether this node makes the checkpoints of a partition and purges its log. It does if it is the steward, or if the log has been full
    /// for long: a full log may not even have room for the record that replaces a dead steward. Two nodes that do so at the same time do no
    /// harm.
    fn is_responsible(&self, partition: PartitionId, full: &FullPartitions) -> bool {
        let is_full_for_long = |since: &Instant| since.elapsed() >= FULL_WITHOUT_STEWARD;
        self.is_steward(partition) || full.get(&partition).is_some_and(is_full_for_long)
    }

    /// Whether this node is the steward of the partition.
    fn is_steward(&self, partition: PartitionId) -> bool {
        let home = (self.context.world)().placement().home_of(partition);
        let state = self
            .worker
            .ask::<Option<Box<ClusterState>>>(home, Control::Cluster);
        let Some(state) = state.flatten() else {
            return false;
        };
        let mut partitions = state.partitions.iter();
        let is_steward =
            partitions.any(|it| it.partition == partition && it.steward == Some(it.writer));
        is_steward && !state.is_cut_off
    }

    /// Makes a checkpoint of a partition, up to the batch that this node has read.
    fn make_checkpoint(&self, partition: PartitionId) -> Result<(), CheckpointError> {
        let (store, world) = (self.store(), (self.context.world)());
        let (last, read_bytes) = store.read_progress(partition);
        let (mut shadow, former, mut damaged) = self.load_shadow(&world, partition)?;
        if former >= last {
            // Another node has already made this checkpoint.
            store.list_and_update_status()?;
            return Ok(());
        }
        let mut newest = None;
        let mut batches = store.read_batches(partition, former + 1..=last)?;
        while let Some(stored) = batches.read()? {
            self.worker.check_not_stopping()?;
            // A message that is not a batch is void.
            if let Ok(mut header) = Header::read(&stored.bytes)
                && header.partition == partition
            {
                header.first_offset = stored.sequence << OFFSET_BITS;
                header.unix_s = stored.unix_s;
                let folded = shadow.apply_batch(&header, &stored.bytes);
                folded.map_err(|reason| format!("batch {}: {reason}", stored.sequence))?;
            }
            newest = Some(stored.bytes);
        }
        if shadow.has_unread_sessions() {
            // Another node has begun with the new format. This one ends as soon as it learns that the format was raised.
            let why = "the log has MQTT sessions, and this node does not read them";
            return Err(CheckpointError::Other(why.into()));
        }
        let upload = store.write(&NewCheckpoint {
            partition,
            sequence: last,
            batch: &newest.unwrap_or_default(),
            log_s: shadow.log_s(),
            writer: world.writer.expect("a node writes"),
            format: FORMAT.into(),
        });
        let failed = |error: std::io::Error| format!("the checkpoint: {error}");
        let mut blocks = DocumentWriter::begin(upload).map_err(failed)?;
        let home = world.placement().home_of(partition);
        let write = |block: &[u8]| blocks.write_block(block).map_err(failed);
        self.worker
            .complete(&mut shadow, home, &new_head(&world), write)?;
        let bytes = blocks.written_bytes;
        // From here on the checkpoint is stored.
        blocks.into_inner().end()?;
        tracing::debug!(partition, sequence = last, bytes, "checkpoint");
        // A damaged one up to the same batch may have the name of the new one.
        damaged.retain(|it| it.sequence < last);
        let removed = self.remove_needless(partition, &damaged);
        store.record_checkpoint(partition, read_bytes);
        if let Err(error) = removed {
            tracing::warn!("cluster: old checkpoints of partition {partition} stay: {error}");
        }
        Ok(())
    }

    /// A shadow of a partition from its newest intact checkpoint, the place of the checkpoint's last batch, and the damaged checkpoints. They
    /// are kept until a newer one is stored: NATS may only have said so, for example soon after the election of a leader that lags behind.
    fn load_shadow(
        &self,
        world: &World,
        partition: PartitionId,
    ) -> Result<(Shadow, u64, Vec<Checkpoint>), CheckpointError> {
        let store = self.store();
        // This is read before the list of checkpoints. If another node has purged batches, the list then has the newer checkpoint
        // that contains them.
        let first = store.first_sequence(partition)?;
        let all = store.list_and_update_status()?;
        let usable = usable(store, &all, partition).map_err(|reason| format!("{reason:#}"))?;
        let (shadows, mut damaged) = (Shadow::world(world, world.epoch), Vec::new());
        for checkpoint in usable {
            self.worker.check_not_stopping()?;
            let now = Now {
                s: 1,
                unix_s: checkpoint.log_s,
            };
            let mut restored = Shadow::restored(&shadows, partition, now);
            match read(store, &checkpoint, &mut restored, &AtomicU64::new(0)) {
                Ok(()) => {
                    let restored = restored.finish().map_err(|reason| reason.to_string())?;
                    return Ok((Shadow::new(restored), checkpoint.sequence, damaged));
                }
                Err(Unusable::Damaged(reason)) => {
                    tracing::error!(
                        "cluster: {reason}: the one before counts, and it is removed when a newer one is stored"
                    );
                    damaged.push(checkpoint);
                }
                Err(reason) => return Err(reason.into()),
            }
        }
        let history = LogExtent {
            first_batch: first,
            checkpoint_ends: &[],
        };
        if let Err(hole) = history.replay_after() {
            let reason = describe_hole(hole, partition);
            return Err(format!(
                "{reason} No further one can be made, publishes are refused once the log is full, and a node that is started now exits. {HOLE_REMEDY}"
            )
            .into());
        }
        let restored = Shadow::restored(&shadows, partition, Now { s: 1, unix_s: 0 });
        let shadow = Shadow::new(restored.finish().map_err(|reason| reason.to_string())?);
        Ok((shadow, 0, damaged))
    }

    /// Removes these damaged checkpoints, which a newer one replaces, and those that are unnecessary because of the newest ones.
    fn remove_needless(
        &self,
        partition: PartitionId,
        damaged: &[Checkpoint],
    ) -> anyhow::Result<()> {
        let store = self.store();
        if !damaged.is_empty() {
            store.tidy(damaged)?;
        }
        let all = store.list_and_update_status()?;
        let epoch = (self.context.world)().epoch;
        let kept = self.kept(&all, partition);
        if kept.len() < KEPT {
            return Ok(());
        }
        let oldest = kept.last().map_or(0, |it| it.sequence);
        let mut needless = Vec::new();
        for checkpoint in all.iter().filter(|it| it.partition == partition) {
            // After the log was restored from a backup, a checkpoint of the lost branch may seem newer.
            let is_void = checkpoint.epoch != epoch && store.why_unusable(checkpoint)?.is_some();
            if checkpoint.sequence < oldest || is_void {
                needless.push(checkpoint.clone());
            }
        }
        store.tidy(&needless)?;
        Ok(())
    }

    /// The newest checkpoints of the current epoch.
    fn kept(&self, all: &[Checkpoint], partition: PartitionId) -> Vec<Checkpoint> {
        let epoch = (self.context.world)().epoch;
        let current = all
            .iter()
            .filter(|it| it.partition == partition && it.epoch == epoch);
        current.take(KEPT).cloned().collect()
    }

    /// Purges the batches beyond `cluster.history_bytes` and `cluster.history_age_s` that checkpoints contain. A failure is retried at the
    /// next check.
    fn purge_all(&self, full: &FullPartitions) -> Result<(), crore_nats::Error> {
        let all = self.store().list_and_update_status()?;
        let partitions = self.context.engine.cluster.status().partitions;
        for (partition, status) in (0..).zip(&partitions) {
            let bytes_max = history_bytes(&self.context.settings, partitions.len(), status);
            let is_long = bytes_max.is_some_and(|bytes_max| status.bytes > bytes_max);
            let may_be_old = self.context.settings.history_age_s > 0;
            if !(is_long || may_be_old) || !self.is_responsible(partition, full) {
                continue;
            }
            match self.purge(partition, status, bytes_max, &all) {
                Ok(()) | Err(CheckpointError::Stops) => {}
                Err(CheckpointError::Other(reason) | CheckpointError::Damaged(reason)) => {
                    tracing::warn!("cluster: partition {partition} is not purged: {reason}");
                }
            }
        }
        Ok(())
    }

    fn purge(
        &self,
        partition: PartitionId,
        status: &PartitionStatus,
        bytes_max: Option<u64>,
        all: &[Checkpoint],
    ) -> Result<(), CheckpointError> {
        let store = self.store();
        let usable = usable(store, all, partition).map_err(|reason| format!("{reason:#}"))?;
        let contained: Vec<u64> = usable.iter().map(|it| it.sequence).collect();
        let history = LogExtent {
            first_batch: store.first_sequence(partition)?,
            checkpoint_ends: &contained,
        };
        let by_bytes =
            bytes_max.map(|bytes_max| store.first_sequence_within_bytes(partition, bytes_max));
        let by_age = match self.context.settings.history_age_s {
            0 => None,
            age_s => Some(clock::counted_s().saturating_sub(age_s.into())),
        };
        let by_age = by_age.map(|before_s| store.first_sequence_since(partition, before_s));
        let first_allowed = by_bytes.transpose()?.max(by_age.transpose()?).unwrap_or(0);
        let mut before = history.first_to_keep(first_allowed, status.is_full);
        if before <= history.first_batch {
            return Ok(());
        }
        if before > contained.get(KEPT - 1).copied().unwrap_or(0) {
            // The newest checkpoint must be intact: the one before it is useless without these batches.
            let (_, read_until, _) = self.load_shadow(&(self.context.world)(), partition)?;
            before = before.min(read_until);
        }
        if before > history.first_batch {
            store.purge(partition, before)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The status of one of 16 partitions. `former` has the bytes and the age of its checkpoint; `behind_bytes` were read after it.
    fn partition(former: Option<(u64, u64)>, behind_bytes: u64) -> PartitionStatus {
        let checkpoint = former.map(|(bytes, age_s)| {
            let mut checkpoint = Checkpoint::default();
            (checkpoint.sequence, checkpoint.bytes) = (10, bytes);
            checkpoint.unix_s = clock::unix_s() - age_s;
            checkpoint
        });
        PartitionStatus {
            checkpoint,
            behind_bytes,
            read: 10 + behind_bytes.min(1),
            ..PartitionStatus::default()
        }
    }

    #[test]
    fn a_checkpoint_is_due_by_bytes_or_age_and_late_much_later() {
        let settings = Settings {
            history_bytes: 4 << 30,
            ..Settings::default()
        };
        let short = Settings {
            history_bytes: 64 << 20,
            history_age_s: 3600,
            ..Settings::default()
        };
        for (settings, former, behind_bytes, is_due, is_late) in [
            (&settings, None, 32 * MIB - 1, false, false),
            (&settings, None, 32 * MIB, true, false),
            (&settings, None, 128 * MIB, true, true),
            (&settings, Some((50 * MIB, 0)), 50 * MIB - 1, false, false),
            (&settings, Some((50 * MIB, 0)), 50 * MIB, true, false),
            // A checkpoint is due at the latest when the batches fill a quarter of the history.
            (&settings, Some((900 * MIB, 0)), 64 * MIB, true, false),
            (&settings, Some((900 * MIB, 7 * 3600)), 1, true, false),
            (&settings, Some((900 * MIB, 7 * 3600)), 0, false, false),
            (&settings, Some((900 * MIB, 13 * 3600)), 1, true, true),
            (&short, None, MIB, true, false),
            (&short, Some((1, 1000)), 1, true, false),
            (&short, Some((1, 800)), 1, false, false),
        ] {
            let of = partition(former, behind_bytes);
            let threshold = CheckpointThreshold::for_partition(settings, 16, &of);
            let found = (threshold.is_due(&of), threshold.is_late(&of));
            assert_eq!(found, (is_due, is_late), "{former:?}, {behind_bytes}");
        }
    }
}
