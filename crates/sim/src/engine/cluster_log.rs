//! The log that the nodes of a cluster share. A partition has one order for the batches of all writers, and the log assigns the offset of
//! each batch and the second in which it was stored. Each node reads the log at its own pace, and may be cut off from it.
//!
//! The log reads itself as every reader does. A batch is *void* (every reader skips it) if its writer was declared dead, or if its number
//! is not the next one of that writer.
//!
//! A *writer* is a process that writes to the log, under one number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crore_broker::batch::{self, Header, LogRecord};
use crore_broker::{
    Backlog, Batch, Committed, ControlRecord, ForeignBatch, OFFSET_BITS, PartitionId, Placement,
};
use crore_rng::Rng;

use super::EngineBehavior;
use crate::coverage::Coverage;
use crate::truth::Violation;

type Bytes = Arc<[u8]>;

/// The log of a partition.
#[derive(Default)]
struct Log {
    arriving: Vec<Bytes>,
    /// Each batch, and the second in which it was stored.
    stored: Vec<(Bytes, u32)>,
    /// Number of purged batches at the beginning of `stored`. The purged batches stay there for the checks.
    purged: usize,
    /// For each writer the number of its last batch that is not void.
    last: BTreeMap<u64, u64>,
    /// The writers that were declared dead.
    dead: BTreeSet<u64>,
}

/// A node as a reader and writer of the log.
#[derive(Default)]
struct Node {
    is_cut: bool,
    /// For each partition the number of batches that the node has read.
    read: Vec<usize>,
    /// For each partition the number of batches that the node must have read before it serves clients.
    ready_at: Vec<usize>,
    /// Batches that the node has appended, by number, for each partition and writer.
    appended: BTreeMap<(PartitionId, u64), BTreeMap<u64, Bytes>>,
}

/// The log of all partitions.
pub struct ClusterLog {
    logs: Vec<Log>,
    nodes: Vec<Node>,
    backlog: Backlog,
}

impl ClusterLog {
    /// An empty log.
    pub fn new(partitions: usize, nodes: usize) -> ClusterLog {
        let mut cluster_log = ClusterLog {
            logs: (0..partitions).map(|_| Log::default()).collect(),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            backlog: Backlog::default(),
        };
        (0..nodes).for_each(|node| cluster_log.join(node, vec![0; partitions]));
        cluster_log
    }

    /// Replaces the process of a node. For each partition `contained` is the number of batches in the checkpoint of the new process. The
    /// node serves clients when it has read all other batches that are stored now.
    pub fn join(&mut self, node: usize, contained: Vec<usize>) {
        self.nodes[node] = Node {
            read: contained,
            ready_at: self.logs.iter().map(|log| log.stored.len()).collect(),
            ..Node::default()
        };
    }

    /// The log of a partition: each batch, and the second in which it was stored.
    pub fn stored(&self, partition: PartitionId) -> &[(Bytes, u32)] {
        &self.logs[usize::from(partition)].stored
    }

    /// The number of the first batch that the log of a partition still has.
    pub fn first(&self, partition: PartitionId) -> u64 {
        self.logs[usize::from(partition)].purged as u64 + 1
    }

    /// The number of batches of a partition that every node has read.
    pub fn read_by_all(&self, partition: PartitionId) -> usize {
        let read = self
            .nodes
            .iter()
            .map(|node| node.read[usize::from(partition)]);
        read.min().unwrap_or(0)
    }

    /// Purges the batches of a partition before number `before`. Returns the number of purged batches.
    pub fn purge(&mut self, partition: PartitionId, before: u64) -> u64 {
        let purged = &mut self.logs[usize::from(partition)].purged;
        let until = (before.saturating_sub(1) as usize).max(*purged);
        let count = until - *purged;
        *purged = until;
        count as u64
    }

    /// Whether a node has read all batches that were stored when it started.
    pub fn is_ready(&self, node: usize) -> bool {
        let Node { read, ready_at, .. } = &self.nodes[node];
        read.iter()
            .zip(ready_at)
            .all(|(read, ready_at)| read >= ready_at)
    }

    /// Cuts a node off, or reconnects it.
    pub fn cut(&mut self, node: usize, is_cut: bool) {
        self.nodes[node].is_cut = is_cut;
    }

    /// Whether a node is cut off.
    pub fn is_cut(&self, node: usize) -> bool {
        self.nodes[node].is_cut
    }

    /// Appends a batch of a node. If the node is cut off, the batch is lost. Returns whether the node has appended the batch before.
    ///
    /// # Errors
    /// If the batch does not have the writer's next number, or has the number of a different batch.
    pub fn append(
        &mut self,
        node: usize,
        batch: Batch,
        behavior: EngineBehavior,
        is_reliable: bool,
        rng: &mut Rng,
    ) -> Result<bool, Violation> {
        let Header {
            partition,
            writer,
            number,
            ..
        } = batch.header;
        let Node {
            appended, is_cut, ..
        } = &mut self.nodes[node];
        let batches = appended.entry((partition, writer)).or_default();
        let newest = batches.keys().next_back().copied().unwrap_or(0);
        let again = match batches.get(&number) {
            Some(before) if *before == batch.bytes => true,
            None if number == newest + 1 => {
                batches.insert(number, batch.bytes.clone());
                false
            }
            _ => {
                return Err(format!(
                    "batch {number} of partition {partition} comes behind {newest}, or is another one"
                ));
            }
        };
        let mut happens = |percent| !is_reliable && rng.chance(percent);
        if *is_cut || happens(behavior.loss) {
            return Ok(again);
        }
        let arriving = &mut self.logs[usize::from(partition)].arriving;
        if happens(behavior.duplication) {
            arriving.push(batch.bytes.clone());
        }
        let back = usize::from(happens(behavior.reordering)).min(arriving.len());
        arriving.insert(arriving.len() - back, batch.bytes);
        Ok(again)
    }

    /// Stores the arrived batches of a partition in the second `unix_s`, and passes each batch that takes effect to `keep`.
    ///
    /// # Errors
    /// If a batch cannot be read.
    pub fn store(
        &mut self,
        partition: PartitionId,
        unix_s: u32,
        coverage: &mut Coverage,
        mut keep: impl FnMut(&Bytes),
    ) -> Result<(), Violation> {
        let log = &mut self.logs[usize::from(partition)];
        for bytes in log.arriving.drain(..) {
            let header = Header::read(&bytes).map_err(|why| why.to_string())?;
            log.stored.push((bytes.clone(), unix_s));
            let last = log.last.entry(header.writer).or_default();
            let is_dead = log.dead.contains(&header.writer);
            coverage.from_dead_writers += u64::from(is_dead);
            if is_dead || header.number != *last + 1 {
                coverage.void += 1;
                continue;
            }
            *last = header.number;
            match batch::is_late(header.unix_s, unix_s) {
                true => coverage.too_late += 1,
                false => {
                    coverage.committed += 1;
                    keep(&bytes);
                }
            }
            let dead = &mut log.dead;
            let record_death = |_, entry: LogRecord<'_>| {
                if let LogRecord::Control(ControlRecord::Dead(writer)) = entry {
                    coverage.deaths += u64::from(dead.insert(writer));
                }
            };
            batch::for_each_record(&bytes, record_death).map_err(|why| why.to_string())?;
        }
        Ok(())
    }

    /// Reports at most `batches_max` batches of a partition that the node has not read yet.
    pub fn report(
        &mut self,
        node: usize,
        partition: PartitionId,
        batches_max: usize,
    ) -> Vec<Committed> {
        let Node { read, is_cut, .. } = &mut self.nodes[node];
        if *is_cut {
            return Vec::new();
        }
        let at = usize::from(partition);
        let stored = &self.logs[at].stored[read[at]..];
        let unread = stored.iter().take(batches_max).zip(read[at]..);
        let committed = unread.map(|((bytes, unix_s), before)| {
            let placement = Placement::new(self.logs.len() as PartitionId, 1);
            let (header, batch) = ForeignBatch::checked(bytes.clone(), placement, &self.backlog)
                .expect("a node wrote it");
            Committed {
                header: Header {
                    first_offset: (before as u64 + 1) << OFFSET_BITS,
                    unix_s: *unix_s,
                    ..header
                },
                batch: Some(batch),
            }
        });
        let committed: Vec<Committed> = committed.collect();
        read[at] += committed.len();
        committed
    }

    /// Whether there is something to store in a partition, or something that the node can read.
    pub fn has_work(&self, node: usize, partition: PartitionId) -> bool {
        let (log, node) = (&self.logs[usize::from(partition)], &self.nodes[node]);
        let can_read = !node.is_cut && node.read[usize::from(partition)] < log.stored.len();
        !log.arriving.is_empty() || can_read
    }
}
