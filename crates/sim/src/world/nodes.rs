//! Nodes of a cluster: each has shards of its own, and all share a log. They are cut off from it, paused, and lost, and others take their places.
//! In some worlds a steward writes checkpoints and purges the log, and who takes a place begins with these.

use std::ops::Range;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::batch::Header;
use crore_broker::history::{CHECKPOINTS_KEPT, History, Hole};
use crore_broker::snapshot::Head;
use crore_broker::{OFFSET_BITS, PartitionId, Restored, Shadow, Shard, ShardId};

use super::{World, now};
use crate::checkpoint::{Kept, saved, take};
use crate::client::publisher::Publisher;
use crate::client::subscriber::Subscriber;
use crate::rng::Rng;
use crate::truth::Violation;

/// The documents that a node begins with.
#[derive(Default)]
struct Begun {
    /// The document of each partition, in blocks.
    documents: Vec<Vec<Vec<u8>>>,
    /// How many batches of its log it contains.
    contained: Vec<usize>,
}

/// Reads a document.
fn read(restored: &mut Restored, document: &[Vec<u8>]) -> Result<(), Violation> {
    let ended = take(restored, document).and_then(|()| restored.end());
    ended.map_err(|why| why.to_string())
}

impl World {
    /// The node that a shard belongs to.
    pub fn node_of(&self, shard: usize) -> usize {
        shard / self.plan.shards
    }

    /// Whether clients may come to a shard: its node has read the batches that were there when it began.
    pub(super) fn serves(&self, shard: usize) -> bool {
        let engine = self.net.engine.as_ref();
        let shared = engine.and_then(|(engine, _)| engine.shared.as_ref());
        shared.is_none_or(|it| it.is_ready(self.node_of(shard)))
    }

    /// Something happens to a node.
    pub fn node_event(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let node = rng.below(self.plan.nodes);
        let others = (0..self.plan.nodes).filter(|it| *it != node);
        let has_other = others
            .map(|it| it * self.plan.shards)
            .any(|it| self.serves(it));
        match rng.below(4) {
            0 => {
                self.nodes.paused[node] = !self.nodes.paused[node];
                self.truth
                    .note(|| format!("node {node} is paused or goes on"));
            }
            1 if has_other => self.lose(node, rng)?,
            _ => {
                let Some((engine, _)) = &mut self.net.engine else {
                    return Ok(());
                };
                if let Some(shared) = &mut engine.shared {
                    let is_cut = !shared.is_cut(node);
                    shared.cut(node, is_cut);
                    self.met.nodes_cut += u64::from(is_cut);
                    self.truth
                        .note(|| format!("node {node} is cut off: {is_cut}"));
                }
            }
        }
        Ok(())
    }

    /// No node is paused or cut off any more.
    pub fn heal(&mut self) {
        self.nodes.paused.fill(false);
        if let Some((engine, _)) = &mut self.net.engine
            && let Some(shared) = &mut engine.shared
        {
            (0..self.plan.nodes).for_each(|node| shared.cut(node, false));
        }
    }

    /// A node's process ends, and another one takes its place.
    fn lose(&mut self, node: usize, rng: &mut Rng) -> Result<(), Violation> {
        self.truth.note(|| format!("node {node} is lost"));
        self.met.nodes_lost += 1;
        let all = node * self.plan.shards..(node + 1) * self.plan.shards;
        let is_its = |link: Option<u32>, world: &World| {
            let link = link.map(|link| usize::from(world.net.sockets[link as usize].shard));
            link.is_some_and(|shard| all.contains(&shard))
        };
        for n in 0..self.clients.subscribers.len() {
            if is_its(self.clients.subscribers[n].link, self) {
                Subscriber::ended(&mut self.clients.subscribers[n]);
            }
        }
        for n in 0..self.clients.publishers.len() {
            if is_its(self.clients.publishers[n].link, self) {
                Publisher::ended(&mut self.clients.publishers[n]);
            }
        }
        self.net.lose(all.clone());
        let purges = !self.plan.purges_at.is_empty();
        let joins_by_checkpoints = rng.chance(60) || purges;
        let begun = match joins_by_checkpoints {
            true if purges => Some(self.kept_checkpoints()?),
            true => Some(self.checkpoints(rng)?),
            false => None,
        };
        let partitions = usize::from(self.nodes.worlds[node].partitions);
        let told = begun
            .as_ref()
            .map_or(vec![0; partitions], |it| it.contained.clone());
        if let Some((engine, _)) = &mut self.net.engine
            && let Some(shared) = &mut engine.shared
        {
            shared.join(node, told);
        }
        self.met.nodes_joined += u64::from(joins_by_checkpoints);
        self.nodes.paused[node] = false;
        let former = &self.nodes.worlds[node];
        self.nodes.writers += super::WRITERS_APART;
        let world = Arc::new(crore_broker::World {
            settings: former.settings.clone(),
            rules: former.rules.clone(),
            admission: Admission::new(&former.settings, former.seed),
            writer: Some(self.nodes.writers),
            ..**former
        });
        for shard in all {
            self.met.stats += self.shards[shard].stats();
            let local = (shard % self.plan.shards) as ShardId;
            let begin = now(self.truth.now_s);
            let mut joined = Shard::new(local, world.clone(), begin);
            joined.set_pace(self.plan.pace);
            if let Some(begun) = begun.as_ref().filter(|_| local < world.homes) {
                let mut restored = Restored::new(world.clone(), local, begin).without_local_state();
                for partition in world.placement().of_home(local) {
                    let document = &begun.documents[usize::from(partition)];
                    if !document.is_empty() {
                        read(&mut restored, document)?;
                    }
                }
                joined.adopt(restored.finish().map_err(|why| why.to_string())?);
            }
            self.shards[shard] = joined;
            self.loops[shard].links.clear();
            self.loops[shard].begin();
        }
        self.nodes.worlds[node] = world;
        Ok(())
    }

    /// Checkpoints of all partitions, each of a part of its log, and each made behind an earlier one.
    fn checkpoints(&mut self, rng: &mut Rng) -> Result<Begun, Violation> {
        let head = self.head(rng);
        let mut begun = Begun::default();
        for partition in 0..self.nodes.worlds[0].partitions {
            let end = rng.below(self.stored(partition) + 1);
            let middle = rng.below(end + 1);
            let mut document = Vec::new();
            for places in [0..middle, middle..end] {
                document = self.fold_on(partition, &document, places, &head)?;
            }
            begun.documents.push(document);
            begun.contained.push(end);
        }
        Ok(begun)
    }

    /// How many batches the log of a partition ever had.
    fn stored(&self, partition: PartitionId) -> usize {
        let engine = self.net.engine.as_ref();
        let shared = engine.and_then(|(engine, _)| engine.shared.as_ref());
        shared.map_or(0, |it| it.stored(partition).len())
    }

    /// The document of a partition that goes on from a former one with these batches.
    fn fold_on(
        &self,
        partition: PartitionId,
        former: &[Vec<u8>],
        places: Range<usize>,
        head: &Head,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        let moment = now(self.truth.now_s);
        let world = Shadow::world(&self.nodes.worlds[0]);
        let engine = self.net.engine.as_ref();
        let shared = engine.and_then(|(engine, _)| engine.shared.as_ref());
        let log = shared.expect("nodes share a log").stored(partition);
        let mut restored = Shadow::restored(&world, partition, moment);
        if places.start > 0 {
            read(&mut restored, former)?;
        }
        let restored = restored.finish().map_err(|why| why.to_string())?;
        let mut shadow = Shadow::new(restored);
        for place in places {
            let (bytes, unix_s) = &log[place];
            let header = Header::read(bytes).map(|header| Header {
                first: (place as u64 + 1) << OFFSET_BITS,
                unix_s: *unix_s,
                ..header
            });
            let folded = header.and_then(|header| shadow.fold(&header, bytes));
            folded.map_err(|why| why.to_string())?;
        }
        shadow.settle(moment);
        Ok(saved(&mut shadow, head))
    }

    /// A steward goes on with the checkpoints of some partitions, and purges the logs of some. What a node has not read yet stays.
    pub fn purge(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let head = self.head(rng);
        for partition in 0..self.nodes.worlds[0].partitions {
            let at = usize::from(partition);
            if rng.chance(60) {
                let former = self.nodes.kept[at].first();
                let (from, document) =
                    former.map_or((0, &[][..]), |it| (it.contained, &it.document));
                let contained = from + rng.below(self.stored(partition) - from + 1);
                let document = self.fold_on(partition, document, from..contained, &head)?;
                if contained > from {
                    let kept = &mut self.nodes.kept[at];
                    kept.insert(
                        0,
                        Kept {
                            contained,
                            document,
                        },
                    );
                    kept.truncate(CHECKPOINTS_KEPT);
                }
            }
            let contained: Vec<u64> = self.contained(partition).collect();
            let Some((engine, _)) = &mut self.net.engine else {
                return Ok(());
            };
            let Some(shared) = &mut engine.shared else {
                return Ok(());
            };
            let history = History {
                first: shared.first(partition),
                contained: &contained,
            };
            let wanted = 1 + rng.below(shared.read_by_all(partition) + 1) as u64;
            let before = history.needless_before(wanted, rng.chance(30));
            self.met.purged += shared.purge(partition, before);
            self.truth
                .note(|| format!("partition {partition} is purged before batch {before}"));
        }
        Ok(())
    }

    /// The last batches of the checkpoints of a partition, the newest first.
    fn contained(&self, partition: PartitionId) -> impl Iterator<Item = u64> {
        let kept = &self.nodes.kept[usize::from(partition)];
        kept.iter().map(|it| it.contained as u64)
    }

    /// The newest checkpoints that the steward has written: a node that begins with them, and with what the log has behind them, must have everything.
    fn kept_checkpoints(&self) -> Result<Begun, Violation> {
        let engine = self.net.engine.as_ref();
        let shared = engine.and_then(|(engine, _)| engine.shared.as_ref());
        let mut begun = Begun::default();
        for partition in 0..self.nodes.worlds[0].partitions {
            let contained: Vec<u64> = self.contained(partition).collect();
            let history = History {
                first: shared.map_or(1, |it| it.first(partition)),
                contained: &contained,
            };
            let behind = history.begins_behind().map_err(|Hole { until }| {
                format!(
                    "batches up to {until} of partition {partition} are in no checkpoint, and gone"
                )
            })?;
            let newest = self.nodes.kept[usize::from(partition)].first();
            begun
                .documents
                .push(newest.map_or(Vec::new(), |it| it.document.clone()));
            begun.contained.push(behind as usize);
        }
        Ok(begun)
    }

    /// All nodes have come to the same state.
    pub fn check_nodes(&self) -> Result<(), Violation> {
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
