//! The nodes of a cluster. Each node has its own shards, and all nodes share a log. Nodes are cut off from the log, paused, or lost and
//! replaced. In some runs a steward writes checkpoints and purges the log, and a new node starts from these checkpoints. The steward of a
//! partition is the node that does this for the partition.

use std::ops::Range;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::batch::Header;
use crore_broker::log_retention::{CHECKPOINTS_KEPT, Hole, LogExtent};
use crore_broker::snapshot::Head;
use crore_broker::{OFFSET_BITS, PartitionId, Restored, SessionNeeds, Shadow, Shard, ShardId};
use crore_rng::Rng;

use super::{Simulation, now};
use crate::checkpoint::{PartitionCheckpoint, saved, take};
use crate::client::publisher::Publisher;
use crate::client::subscriber::Subscriber;
use crate::truth::Violation;

/// The checkpoints that a new node starts from.
#[derive(Default)]
struct StartingState {
    /// The snapshot of each partition, in blocks.
    snapshots: Vec<Vec<Vec<u8>>>,
    /// For each partition the number of batches that the snapshot contains.
    contained: Vec<usize>,
}

/// Reads the snapshot of a partition.
fn read_snapshot(restored: &mut Restored, snapshot: &[Vec<u8>]) -> Result<(), Violation> {
    let ended = take(restored, snapshot).and_then(|()| restored.end_snapshot());
    ended.map_err(|why| why.to_string())
}

impl Simulation {
    /// The node that a shard belongs to.
    pub fn node_of(&self, shard: usize) -> usize {
        shard / self.plan.shards
    }

    /// Whether clients may connect to a shard: its node has read all batches that the log had when the node started.
    pub(super) fn is_ready_for_clients(&self, shard: usize) -> bool {
        let cluster_log = self.net.cluster_log();
        cluster_log.is_none_or(|it| it.is_ready(self.node_of(shard)))
    }

    /// Tells the homes of a node which messages the sessions need, once the node has read the log.
    pub(super) fn finish_recovery(&mut self, node: usize) {
        let shards = node * self.plan.shards..(node + 1) * self.plan.shards;
        if self.nodes.recovered[node] || !self.is_ready_for_clients(shards.start) {
            return;
        }
        self.nodes.recovered[node] = true;
        let (shards, mut needs) = (&mut self.shards[shards], SessionNeeds::default());
        let all = shards.iter_mut();
        all.for_each(|shard| shard.add_session_needs(&mut needs));
        for shard in shards {
            shard.finish_recovery(&needs, now(self.truth.now_s));
        }
    }

    /// Pauses, resumes, replaces, cuts off or reconnects a random node.
    pub fn node_event(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let node = rng.below(self.plan.nodes);
        let others = (0..self.plan.nodes).filter(|it| *it != node);
        let other_is_ready = others
            .map(|it| it * self.plan.shards)
            .any(|it| self.is_ready_for_clients(it));
        match rng.below(4) {
            0 => {
                self.nodes.paused[node] = !self.nodes.paused[node];
                self.truth
                    .note(|| format!("node {node} is paused or goes on"));
            }
            1 if other_is_ready => self.replace_node(node, rng)?,
            _ => {
                if let Some(cluster_log) = self.net.cluster_log_mut() {
                    let is_cut = !cluster_log.is_cut(node);
                    cluster_log.cut(node, is_cut);
                    self.coverage.nodes_cut += u64::from(is_cut);
                    self.truth
                        .note(|| format!("node {node} is cut off: {is_cut}"));
                }
            }
        }
        Ok(())
    }

    /// Resumes and reconnects all nodes.
    pub fn heal(&mut self) {
        self.nodes.paused.fill(false);
        if let Some(cluster_log) = self.net.cluster_log_mut() {
            (0..self.plan.nodes).for_each(|node| cluster_log.cut(node, false));
        }
    }

    /// Ends a node's process, and starts a new one in its place.
    fn replace_node(&mut self, node: usize, rng: &mut Rng) -> Result<(), Violation> {
        self.truth.note(|| format!("node {node} is lost"));
        self.coverage.nodes_lost += 1;
        let shards = node * self.plan.shards..(node + 1) * self.plan.shards;
        let is_to_node = |link: Option<u32>, sim: &Simulation| {
            let link = link.map(|link| usize::from(sim.net.sockets[link as usize].shard));
            link.is_some_and(|shard| shards.contains(&shard))
        };
        for n in 0..self.clients.subscribers.len() {
            if is_to_node(self.clients.subscribers[n].link, self) {
                Subscriber::connection_ended(&mut self.clients.subscribers[n]);
            }
        }
        for n in 0..self.clients.publishers.len() {
            if is_to_node(self.clients.publishers[n].link, self) {
                Publisher::connection_ended(&mut self.clients.publishers[n]);
            }
        }
        for n in 0..self.clients.mqtt.len() {
            if let Some(link) = self.clients.mqtt[n].link
                && is_to_node(Some(link), self)
            {
                self.clients.mqtt[n].connection_ended();
                self.clients.mqtt[n].abandoned_links.push(link);
            }
        }
        self.nodes.recovered[node] = false;
        self.net.lose_process(shards.clone());
        let purges = !self.plan.purges_at.is_empty();
        let has_checkpoints = rng.chance(60) || purges;
        let start = match has_checkpoints {
            true if purges => Some(self.newest_checkpoints()?),
            true => Some(self.random_checkpoints(rng)?),
            false => None,
        };
        let partitions = usize::from(self.nodes.servers[node].partitions);
        let contained = start
            .as_ref()
            .map_or(vec![0; partitions], |it| it.contained.clone());
        if let Some(cluster_log) = self.net.cluster_log_mut() {
            cluster_log.join(node, contained);
        }
        self.coverage.nodes_joined += u64::from(has_checkpoints);
        self.nodes.paused[node] = false;
        let former = &self.nodes.servers[node];
        self.nodes.last_writer += super::WRITER_GAP;
        let server = Arc::new(crore_broker::World {
            settings: former.settings.clone(),
            rules: former.rules.clone(),
            admission: Admission::new(&former.settings, former.seed),
            writer: Some(self.nodes.last_writer),
            ..**former
        });
        for shard in shards {
            self.coverage.stats += self.shards[shard].stats();
            let local = (shard % self.plan.shards) as ShardId;
            let begin = now(self.truth.now_s);
            let mut joined = Shard::new(local, server.clone(), begin);
            joined.set_turn_limits(self.plan.turn_limits);
            if let Some(start) = start.as_ref().filter(|_| local < server.homes) {
                let mut restored =
                    Restored::new(server.clone(), local, begin).without_local_state();
                for partition in server.placement().of_home(local) {
                    let snapshot = &start.snapshots[usize::from(partition)];
                    if !snapshot.is_empty() {
                        read_snapshot(&mut restored, snapshot)?;
                    }
                }
                joined.adopt(restored.finish().map_err(|why| why.to_string())?);
            } else {
                joined.begin_recovery();
            }
            self.shards[shard] = joined;
            self.loops[shard].links.clear();
            self.loops[shard].reset();
        }
        self.nodes.servers[node] = server;
        Ok(())
    }

    /// New checkpoints of all partitions. Each contains a random number of the log's first batches. It is made in two stages, so that the
    /// second stage continues from the snapshot of the first.
    fn random_checkpoints(&mut self, rng: &mut Rng) -> Result<StartingState, Violation> {
        let head = self.head(rng);
        let mut start = StartingState::default();
        for partition in 0..self.nodes.servers[0].partitions {
            let end = rng.below(self.stored_batches(partition) + 1);
            let middle = rng.below(end + 1);
            let mut snapshot = Vec::new();
            for range in [0..middle, middle..end] {
                snapshot = self.fold_into_snapshot(partition, &snapshot, range, &head)?;
            }
            start.snapshots.push(snapshot);
            start.contained.push(end);
        }
        Ok(start)
    }

    /// The number of batches that were ever stored in the log of a partition.
    fn stored_batches(&self, partition: PartitionId) -> usize {
        let cluster_log = self.net.cluster_log();
        cluster_log.map_or(0, |it| it.stored(partition).len())
    }

    /// Replays the batches in `range`, which follow the snapshot `former`. Returns a new snapshot of the partition.
    fn fold_into_snapshot(
        &self,
        partition: PartitionId,
        former: &[Vec<u8>],
        range: Range<usize>,
        head: &Head,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        let moment = now(self.truth.now_s);
        let server = Shadow::world(&self.nodes.servers[0], self.nodes.servers[0].epoch);
        let cluster_log = self.net.cluster_log();
        let log = cluster_log.expect("nodes share a log").stored(partition);
        let mut restored = Shadow::restored(&server, partition, moment);
        if range.start > 0 {
            read_snapshot(&mut restored, former)?;
        }
        let restored = restored.finish().map_err(|why| why.to_string())?;
        let mut shadow = Shadow::new(restored);
        for at in range {
            let (bytes, unix_s) = &log[at];
            let header = Header::read(bytes).map(|header| Header {
                first_offset: (at as u64 + 1) << OFFSET_BITS,
                unix_s: *unix_s,
                ..header
            });
            let folded = header.and_then(|header| shadow.apply_batch(&header, bytes));
            folded.map_err(|why| why.to_string())?;
        }
        shadow.drop_expired(moment);
        Ok(saved(&mut shadow, head))
    }

    /// Lets a steward write newer checkpoints of some partitions and purge the logs. The steward purges no batch that a node has not read
    /// yet.
    pub fn purge(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let head = self.head(rng);
        for partition in 0..self.nodes.servers[0].partitions {
            let at = usize::from(partition);
            if rng.chance(60) {
                let former = self.nodes.checkpoints[at].first();
                let (from, snapshot) =
                    former.map_or((0, &[][..]), |it| (it.contained, &it.snapshot));
                let contained = from + rng.below(self.stored_batches(partition) - from + 1);
                let snapshot =
                    self.fold_into_snapshot(partition, snapshot, from..contained, &head)?;
                if contained > from {
                    let kept = &mut self.nodes.checkpoints[at];
                    kept.insert(
                        0,
                        PartitionCheckpoint {
                            contained,
                            snapshot,
                        },
                    );
                    kept.truncate(CHECKPOINTS_KEPT);
                }
            }
            let contained: Vec<u64> = self.contained(partition).collect();
            let Some(cluster_log) = self.net.cluster_log_mut() else {
                return Ok(());
            };
            let history = LogExtent {
                first_batch: cluster_log.first(partition),
                checkpoint_ends: &contained,
            };
            let wanted = 1 + rng.below(cluster_log.read_by_all(partition) + 1) as u64;
            let before = history.first_to_keep(wanted, rng.chance(30));
            self.coverage.purged += cluster_log.purge(partition, before);
            self.truth
                .note(|| format!("partition {partition} is purged before batch {before}"));
        }
        Ok(())
    }

    /// For each checkpoint of a partition, the newest first, the number of the last batch that it contains.
    fn contained(&self, partition: PartitionId) -> impl Iterator<Item = u64> {
        let kept = &self.nodes.checkpoints[usize::from(partition)];
        kept.iter().map(|it| it.contained as u64)
    }

    /// The newest checkpoints of the steward. Checks that no batch is missing between them and the logs.
    fn newest_checkpoints(&self) -> Result<StartingState, Violation> {
        let cluster_log = self.net.cluster_log();
        let mut start = StartingState::default();
        for partition in 0..self.nodes.servers[0].partitions {
            let contained: Vec<u64> = self.contained(partition).collect();
            let history = LogExtent {
                first_batch: cluster_log.map_or(1, |it| it.first(partition)),
                checkpoint_ends: &contained,
            };
            let contained_to = history.replay_after().map_err(|Hole { last_missing: until }| {
                format!(
                    "batches up to {until} of partition {partition} are in no checkpoint, and gone"
                )
            })?;
            let newest = self.nodes.checkpoints[usize::from(partition)].first();
            start
                .snapshots
                .push(newest.map_or(Vec::new(), |it| it.snapshot.clone()));
            start.contained.push(contained_to as usize);
        }
        Ok(start)
    }

    /// Checks that all nodes have the same digest.
    pub fn check_digests(&self) -> Result<(), Violation> {
        let digest = |node: usize| {
            let shards = self.shards.chunks(self.plan.shards).nth(node);
            let shards = shards.into_iter().flatten();
            shards.fold(0, |digest, shard| digest ^ shard.digest())
        };
        match (1..self.plan.nodes).find(|node| digest(*node) != digest(0)) {
            Some(node) => Err(format!("node {node} has come to another state than node 0")),
            None => Ok(()),
        }
    }
}
