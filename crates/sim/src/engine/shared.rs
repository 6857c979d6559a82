//! The log that the nodes of a cluster share: of each partition one order for all, batches of all writers, offsets and seconds of its own. Nodes read it
//! each at its own pace, and may be cut off from it.
//!
//! It folds the log as any reader does, with the records about writers: a batch counts if its number is the next one of a writer that is
//! not dead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crore_broker::batch::{self, Entry, Header};
use crore_broker::{Backlog, Batch, Committed, Foreign, Note, OFFSET_BITS, PartitionId, Placement};

use super::Manner;
use crate::rng::Rng;
use crate::truth::Violation;

type Bytes = Arc<[u8]>;

/// The log of a partition.
#[derive(Default)]
struct Log {
    arriving: Vec<Bytes>,
    /// Each batch, and the second in which it was stored.
    stored: Vec<(Bytes, u32)>,
    /// The batches before this place are purged. They stay here, so that it is seen what was in them.
    purged: usize,
    /// The number of the last batch of each writer that counts.
    last: BTreeMap<u64, u64>,
    dead: BTreeSet<u64>,
}

/// A node's way to the log.
#[derive(Default)]
struct Node {
    is_cut: bool,
    /// Batches that it was told, by partition.
    told: Vec<usize>,
    /// It serves when it was told so many.
    begins_at: Vec<usize>,
    /// The batches that it has appended, by partition and writer.
    appended: BTreeMap<(PartitionId, u64), BTreeMap<u64, Bytes>>,
}

/// The log of all partitions.
pub struct Shared {
    logs: Vec<Log>,
    nodes: Vec<Node>,
    backlog: Backlog,
    /// Batches of writers that are dead.
    pub of_dead: u64,
    /// Deaths.
    pub deaths: u64,
    /// Batches whose messages are void, since they were stored too late.
    pub late: u64,
}

impl Shared {
    /// Of so many partitions, for so many nodes.
    pub fn new(partitions: usize, nodes: usize) -> Shared {
        let mut shared = Shared {
            logs: (0..partitions).map(|_| Log::default()).collect(),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            backlog: Backlog::default(),
            of_dead: 0,
            deaths: 0,
            late: 0,
        };
        (0..nodes).for_each(|node| shared.join(node, vec![0; partitions]));
        shared
    }

    /// A new process takes the place of a node, and reads all there is behind so many batches of each partition before it serves.
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

    /// How many batches of a partition all nodes have read.
    pub fn read_by_all(&self, partition: PartitionId) -> usize {
        let told = self
            .nodes
            .iter()
            .map(|node| node.told[usize::from(partition)]);
        told.min().unwrap_or(0)
    }

    /// Purges the batches of a partition before the one with this number; returns how many.
    pub fn purge(&mut self, partition: PartitionId, before: u64) -> u64 {
        let purged = &mut self.logs[usize::from(partition)].purged;
        let until = (before.saturating_sub(1) as usize).max(*purged);
        let count = until - *purged;
        *purged = until;
        count as u64
    }

    /// Whether a node has read the batches that were there when it began.
    pub fn is_ready(&self, node: usize) -> bool {
        let Node {
            told, begins_at, ..
        } = &self.nodes[node];
        told.iter()
            .zip(begins_at)
            .all(|(told, begin)| told >= begin)
    }

    /// Cuts a node off, or no longer does.
    pub fn cut(&mut self, node: usize, is_cut: bool) {
        self.nodes[node].is_cut = is_cut;
    }

    /// Whether a node is cut off.
    pub fn is_cut(&self, node: usize) -> bool {
        self.nodes[node].is_cut
    }

    /// Takes a batch of a node; says whether it has it already.
    ///
    /// # Errors
    /// The fault of the node.
    pub fn append(
        &mut self,
        (node, batch): (usize, Batch),
        manner: Manner,
        is_calm: bool,
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
        let mut happens = |percent| !is_calm && rng.chance(percent);
        if *is_cut || happens(manner.loses) {
            return Ok(again);
        }
        let arriving = &mut self.logs[usize::from(partition)].arriving;
        if happens(manner.doubles) {
            arriving.push(batch.bytes.clone());
        }
        let back = usize::from(happens(manner.reorders)).min(arriving.len());
        arriving.insert(arriving.len() - back, batch.bytes);
        Ok(again)
    }

    /// Stores the batches of a partition that have arrived in this second. `keep` is given each batch that counts; returns how many do not.
    ///
    /// # Errors
    /// When a batch cannot be read.
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

    /// Tells a node some of the batches of a partition that it does not know yet.
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
            let (header, batch) =
                Foreign::checked(bytes.clone(), placement, &self.backlog).expect("a node wrote it");
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

    /// Whether there is something to store or to tell a node of a partition.
    pub fn has_work(&self, node: usize, partition: PartitionId) -> bool {
        let (log, node) = (&self.logs[usize::from(partition)], &self.nodes[node]);
        let is_told = node.is_cut || node.told[usize::from(partition)] == log.stored.len();
        !log.arriving.is_empty() || !is_told
    }
}
