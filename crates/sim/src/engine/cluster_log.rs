//! The log that the nodes of a cluster share. Each partition has one order for the batches of all writers, and the log assigns offsets
//! and seconds. Each node reads it at its own pace, and may be cut off from it.
//!
//! The log reads itself as every reader does, including the records about writers: a batch counts if its writer is not dead and its
//! number is the next one of that writer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crore_broker::batch::{self, Entry, Header};
use crore_broker::{
    Backlog, Batch, Committed, ForeignBatch, Note, OFFSET_BITS, PartitionId, Placement,
};
use crore_rng::Rng;

use super::EngineBehavior;
use crate::truth::Violation;

type Bytes = Arc<[u8]>;

/// The log of a partition.
#[derive(Default)]
struct Log {
    arriving: Vec<Bytes>,
    /// Each batch, and the second in which it was stored.
    stored: Vec<(Bytes, u32)>,
    /// How many batches are purged, from the first one on. They stay in `stored`, for the checks.
    purged: usize,
    /// The number of the last batch of each writer that counts.
    last: BTreeMap<u64, u64>,
    dead: BTreeSet<u64>,
}

/// A node as a reader and writer of the log.
#[derive(Default)]
struct Node {
    is_cut: bool,
    /// For each partition, how many batches the node has read.
    told: Vec<usize>,
    /// For each partition, how many batches the node must have read before it serves clients.
    begins_at: Vec<usize>,
    /// Batches that it has appended, by partition and writer.
    appended: BTreeMap<(PartitionId, u64), BTreeMap<u64, Bytes>>,
}

/// The log of all partitions.
pub struct ClusterLog {
    logs: Vec<Log>,
    nodes: Vec<Node>,
    backlog: Backlog,
    /// Number of batches whose writer was dead already.
    pub of_dead: u64,
    /// Number of writers declared dead, per partition.
    pub deaths: u64,
    /// Number of batches that were stored too late, so that their messages are void.
    pub late: u64,
}

impl ClusterLog {
    /// An empty log.
    pub fn new(partitions: usize, nodes: usize) -> ClusterLog {
        let mut cluster_log = ClusterLog {
            logs: (0..partitions).map(|_| Log::default()).collect(),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            backlog: Backlog::default(),
            of_dead: 0,
            deaths: 0,
            late: 0,
        };
        (0..nodes).for_each(|node| cluster_log.join(node, vec![0; partitions]));
        cluster_log
    }

    /// A new process replaces a node. `told` is the number of batches of each partition that its checkpoints contain. It serves clients once
    /// it has read the rest of what is stored now.
    pub fn join(&mut self, node: usize, told: Vec<usize>) {
        self.nodes[node] = Node {
            told,
            begins_at: self.logs.iter().map(|log| log.stored.len()).collect(),
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

    /// How many batches of a partition every node has read.
    pub fn read_by_all(&self, partition: PartitionId) -> usize {
        let told = self
            .nodes
            .iter()
            .map(|node| node.told[usize::from(partition)]);
        told.min().unwrap_or(0)
    }

    /// Purges the batches of a partition before number `before`. Returns how many.
    pub fn purge(&mut self, partition: PartitionId, before: u64) -> u64 {
        let purged = &mut self.logs[usize::from(partition)].purged;
        let until = (before.saturating_sub(1) as usize).max(*purged);
        let count = until - *purged;
        *purged = until;
        count as u64
    }

    /// Whether a node has read all batches that were stored when it started.
    pub fn is_ready(&self, node: usize) -> bool {
        let Node {
            told, begins_at, ..
        } = &self.nodes[node];
        told.iter()
            .zip(begins_at)
            .all(|(told, begin)| told >= begin)
    }

    /// Cuts a node off, or reconnects it.
    pub fn cut(&mut self, node: usize, is_cut: bool) {
        self.nodes[node].is_cut = is_cut;
    }

    /// Whether a node is cut off.
    pub fn is_cut(&self, node: usize) -> bool {
        self.nodes[node].is_cut
    }

    /// Appends a batch of a node. True if the node has appended it before.
    ///
    /// # Errors
    /// If the node has broken a rule of numbering.
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
        let of = appended.entry((partition, writer)).or_default();
        let newest = of.keys().next_back().copied().unwrap_or(0);
        let again = match of.get(&number) {
            Some(before) if *before == batch.bytes => true,
            None if number == newest + 1 => {
                of.insert(number, batch.bytes.clone());
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

    /// Stores the arrived batches of a partition in this second. Passes each batch that counts to `keep`, and returns how many do not.
    ///
    /// # Errors
    /// If a batch cannot be read.
    pub fn store(
        &mut self,
        partition: PartitionId,
        unix_s: u32,
        mut keep: impl FnMut(&Bytes),
    ) -> Result<u64, Violation> {
        let log = &mut self.logs[usize::from(partition)];
        let mut void = 0;
        for bytes in log.arriving.drain(..) {
            let header = Header::read(&bytes).map_err(|why| why.to_string())?;
            log.stored.push((bytes.clone(), unix_s));
            let last = log.last.entry(header.writer).or_default();
            let is_dead = log.dead.contains(&header.writer);
            self.of_dead += u64::from(is_dead);
            if is_dead || header.number != *last + 1 {
                void += 1;
                continue;
            }
            *last = header.number;
            match batch::is_late(header.unix_s, unix_s) {
                true => self.late += 1,
                false => keep(&bytes),
            }
            let dead = &mut log.dead;
            let mut deaths = 0;
            let see = |_, entry: Entry<'_>| {
                if let Entry::Note(Note::Dead(writer)) = entry {
                    deaths += u64::from(dead.insert(writer));
                }
            };
            batch::read(&bytes, see).map_err(|why| why.to_string())?;
            self.deaths += deaths;
        }
        Ok(void)
    }

    /// At most `most` batches of a partition that the node has not read yet.
    pub fn tell(&mut self, node: usize, partition: PartitionId, most: usize) -> Vec<Committed> {
        let Node { told, is_cut, .. } = &mut self.nodes[node];
        if *is_cut {
            return Vec::new();
        }
        let at = usize::from(partition);
        let stored = &self.logs[at].stored[told[at]..];
        let some = stored.iter().take(most).zip(told[at]..);
        let committed = some.map(|((bytes, unix_s), before)| {
            let placement = Placement::new(self.logs.len() as PartitionId, 1);
            let (header, batch) = ForeignBatch::checked(bytes.clone(), placement, &self.backlog)
                .expect("a node wrote it");
            Committed {
                header: Header {
                    first: (before as u64 + 1) << OFFSET_BITS,
                    unix_s: *unix_s,
                    ..header
                },
                batch: Some(batch),
            }
        });
        let committed: Vec<Committed> = committed.collect();
        told[at] += committed.len();
        committed
    }

    /// Whether there is something to store in a partition, or something that the node can read.
    pub fn has_work(&self, node: usize, partition: PartitionId) -> bool {
        let (log, node) = (&self.logs[usize::from(partition)], &self.nodes[node]);
        let is_told = node.is_cut || node.told[usize::from(partition)] == log.stored.len();
        !log.arriving.is_empty() || !is_told
    }
}
