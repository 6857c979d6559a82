//! Nodes of a cluster: each has shards of its own, and all share a log. They are cut off from it, paused, and lost, and others take their places.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::{Shard, ShardId};

use super::{World, now};
use crate::client::publisher::Publisher;
use crate::client::subscriber::Subscriber;
use crate::rng::Rng;
use crate::truth::Wrong;

impl World {
    /// The node that a shard belongs to.
    pub fn node_of(&self, shard: usize) -> usize {
        shard / self.plan.shards
    }

    /// Whether clients may come to a shard: its node has read what there was when it began.
    pub(super) fn serves(&self, shard: usize) -> bool {
        let engine = self.net.engine.as_ref();
        let shared = engine.and_then(|(engine, _)| engine.shared.as_ref());
        shared.is_none_or(|it| it.is_ready(self.node_of(shard)))
    }

    /// Something happens to a node.
    pub fn node_event(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        let node = rng.below(self.plan.nodes);
        let others = (0..self.plan.nodes).filter(|it| *it != node);
        let has_other = others
            .map(|it| it * self.plan.shards)
            .any(|it| self.serves(it));
        match rng.below(4) {
            0 => {
                self.paused[node] = !self.paused[node];
                self.truth
                    .note(|| format!("node {node} is paused or goes on"));
            }
            1 if has_other => self.lose(node),
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
        self.paused.fill(false);
        if let Some((engine, _)) = &mut self.net.engine
            && let Some(shared) = &mut engine.shared
        {
            (0..self.plan.nodes).for_each(|node| shared.cut(node, false));
        }
    }

    /// A node's process ends, and another one takes its place.
    fn lose(&mut self, node: usize) {
        self.truth.note(|| format!("node {node} is lost"));
        self.met.nodes_lost += 1;
        let all = node * self.plan.shards..(node + 1) * self.plan.shards;
        let is_its = |link: Option<u32>, world: &World| {
            let link = link.map(|link| usize::from(world.net.sockets[link as usize].shard));
            link.is_some_and(|shard| all.contains(&shard))
        };
        for n in 0..self.subscribers.len() {
            if is_its(self.subscribers[n].link, self) {
                Subscriber::ended(&mut self.subscribers[n]);
            }
        }
        for n in 0..self.publishers.len() {
            if is_its(self.publishers[n].link, self) {
                Publisher::ended(&mut self.publishers[n]);
            }
        }
        self.net.lose(all.clone());
        if let Some((engine, _)) = &mut self.net.engine
            && let Some(shared) = &mut engine.shared
        {
            shared.join(node);
        }
        self.paused[node] = false;
        let former = &self.nodes[node];
        self.writers += super::WRITERS_APART;
        let world = Arc::new(crore_broker::World {
            settings: former.settings.clone(),
            rules: former.rules.clone(),
            admission: Admission::new(&former.settings, former.seed),
            writer: Some(self.writers),
            ..**former
        });
        for shard in all {
            self.met.stats += self.shards[shard].stats();
            let local = (shard % self.plan.shards) as ShardId;
            self.shards[shard] = Shard::new(local, world.clone(), now(self.truth.now_s));
            self.shards[shard].set_pace(self.plan.pace);
            self.live[shard].clear();
            (self.ticked_s[shard], self.busy[shard]) = (0, false);
        }
        self.nodes[node] = world;
    }

    /// All nodes have come to the same state.
    pub fn check_nodes(&self) -> Result<(), Wrong> {
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
