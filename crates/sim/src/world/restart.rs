//! A planned restart in the middle of a run: all clients are closed, all work under way is finished, each home hands over
//! its snapshot, and new shards go on with it. It must not lose or repeat any message, nor report a loss.

use std::sync::Arc;

use crore_broker::Restored;
use crore_broker::admission::Admission;
use crore_broker::snapshot::{Damaged, Head};
use crore_broker::{Placement, Settled, Shard, ShardId};

use super::{ShardLoop, World, now};
use crate::checkpoint::{content, head, missing, take};
use crate::net::Net;
use crate::rng::Rng;
use crate::truth::Violation;

/// Seconds after which homes append batches without an answer again.
const AGAIN_S: u32 = 3;
/// Rounds within which a world whose clock stands still comes to rest.
const ROUNDS_MAX: usize = 20_000;

impl World {
    /// Stops all shards and starts new ones from their snapshots.
    pub fn restart(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        self.truth.note(|| "restart".into());
        for shard in 0..self.plan.shards {
            self.shards[shard].drain(now(self.truth.now_s));
            // Connections in the queue are accepted before it is closed.
            while self.shards[shard].connections() > 0 || self.has_queue(shard) {
                self.truth.now_s += 1;
                self.turn(shard, true, rng)?;
            }
        }
        self.hear_all(rng)?;
        self.settle_all(rng)?;
        let snapshots = self.snapshots(rng)?;
        for shard in &self.shards {
            self.met.stats += shard.stats();
        }
        self.shared = Arc::new(crore_broker::World {
            settings: self.shared.settings.clone(),
            rules: self.shared.rules.clone(),
            admission: Admission::new(&self.shared.settings, self.shared.seed),
            homes: self.plan.homes_after as ShardId,
            epoch: self.shared.epoch + 1,
            writer: self.shared.writer.map(|writer| writer + 1),
            ..*self.shared
        });
        let begin = now(self.truth.now_s);
        for (n, shard) in self.shards.iter_mut().enumerate() {
            *shard = Shard::new(n as ShardId, self.shared.clone(), begin);
            shard.set_pace(self.plan.pace);
        }
        for home in 0..self.shared.homes {
            let restored = self.restored(home, &snapshots, true);
            let restored = restored.map_err(|why| why.to_string())?;
            self.shards[usize::from(home)].adopt(restored);
        }
        self.begin_life();
        self.loops.iter_mut().for_each(ShardLoop::begin);
        self.go_on_behind(snapshots)?;
        self.met.restarts += 1;
        Ok(())
    }

    /// Whether the engine's log alone says all that the only node knows.
    pub fn has_whole_log(&self) -> bool {
        let goes_on = self.met.damages + self.met.put_back + self.met.restarts == 0;
        goes_on && self.plan.nodes == 1
    }

    /// A life begins: all homes have read what the log has of those before.
    pub(super) fn begin_life(&mut self) {
        self.lives.begin(self.shared.epoch, &self.ends());
        let lives = Arc::new(self.lives.clone());
        for shard in &mut self.shards {
            shard.follow_lives(&lives);
        }
    }

    /// The last offset of each partition.
    pub(super) fn ends(&self) -> Vec<u64> {
        let mut ends = vec![0; usize::from(self.shared.partitions)];
        for (partition, end) in self.shards.iter().flat_map(Shard::ends) {
            ends[usize::from(partition)] = end;
        }
        ends
    }

    /// Makes a checkpoint of the batches that the engine has by now. Logs of before a restart are not in the engine's.
    pub fn checkpoint(&mut self) -> Result<(), Violation> {
        let now = now(self.truth.now_s);
        let is_apart = self.has_whole_log();
        let Some((engine, _)) = self.net.engine.as_ref().filter(|_| is_apart) else {
            return Ok(());
        };
        let log = engine.log.clone();
        let (world, shards) = (&self.shared, &mut self.shards);
        let made = self
            .checkpoint
            .go_on(world, &log, shards, &mut self.net, now);
        self.met.checkpoints += u64::from(made.map_err(|why| why.to_string())?);
        Ok(())
    }

    /// A server that begins with the last checkpoint and the log behind it has all messages that homes have in their logs.
    pub fn check_checkpoints(&mut self) -> Result<(), Violation> {
        self.checkpoint()?;
        let now = now(self.truth.now_s);
        let is_apart = self.has_whole_log();
        let Some((engine, _)) = self.net.engine.as_ref().filter(|_| is_apart) else {
            return Ok(());
        };
        let world = &self.shared;
        let recovered = self.checkpoint.recovered(world, &engine.log, now);
        let mut recovered = recovered.map_err(|why| why.to_string())?;
        let mut nobody = Net::new(1, recovered.len(), 0, None);
        let comes_back = content(world, &mut recovered, &mut nobody, now);
        let mut has = content(world, &mut self.shards, &mut self.net, now);
        // A home keeps messages beyond the rule for sessions, and those that run out in this second until its next tick.
        let truth = &self.truth;
        let stays = |data: &[u8]| {
            let number = truth.read(data);
            number.is_ok_and(|number| !truth.may_have_run_out(number))
        };
        let logs = has.values_mut();
        logs.for_each(|log| log.retain(|_, data| stays(data)));
        match missing(&has, &comes_back) {
            Some(what) => Err(format!("a checkpoint and the log behind it lack {what}")),
            None => Ok(()),
        }
    }

    /// The engine goes on behind these documents.
    fn go_on_behind(&mut self, documents: Vec<Vec<Vec<u8>>>) -> Result<(), Violation> {
        let Some((engine, _)) = &mut self.net.engine else {
            return Ok(());
        };
        engine.restart();
        let Some(drive) = &mut engine.drive else {
            return Ok(());
        };
        let end = drive.ends();
        drive.based(end)?;
        drive.stop();
        self.documents = documents;
        match drive.start()?.batches.len() {
            0 => Ok(()),
            left => Err(format!("{left} batches are not in the documents of a stop")),
        }
    }

    /// From now on the engine loses nothing; batches that it has lost are appended again.
    pub fn hear_all(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let Some((engine, _)) = &mut self.net.engine else {
            return Ok(());
        };
        engine.is_calm = true;
        for _ in 0..3 {
            self.truth.now_s += AGAIN_S;
            // A home looks at all that the engine has told before it appends anything again.
            self.work_off(rng)?;
        }
        Ok(())
    }

    /// Takes a turn of each shard, and more while one of them has work left.
    fn work_off(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        for _ in 0..ROUNDS_MAX {
            for shard in 0..self.shards.len() {
                self.turn(shard, true, rng)?;
            }
            if !self.loops.iter().any(|it| it.is_busy) {
                return Ok(());
            }
        }
        Err("no shard comes to an end of its work".into())
    }

    fn has_queue(&self, shard: usize) -> bool {
        let queued = |link: &u32| !self.net.sockets[*link as usize].accepted;
        self.loops[shard].links.iter().any(queued)
    }

    /// Takes turns until nothing is under way.
    fn settle_all(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let mut former = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let settled: Vec<Settled> = self.shards.iter_mut().map(Shard::settle).collect();
            let posted: u64 = settled.iter().map(|shard| shard.posted).sum();
            let received: u64 = settled.iter().map(|shard| shard.received).sum();
            let rests = |shard: &Settled| !shard.busy && shard.connections == 0;
            if settled == former && posted == received && settled.iter().all(rests) {
                return Ok(());
            }
            former = settled;
            for shard in 0..self.plan.shards {
                self.turn(shard, false, rng)?;
            }
        }
        Err("no rest before a restart".into())
    }

    /// Takes the snapshots block by block, with turns between, one home after the other.
    fn snapshots(&mut self, rng: &mut Rng) -> Result<Vec<Vec<Vec<u8>>>, Violation> {
        let head = self.head(rng);
        let mut snapshots = Vec::new();
        for home in 0..self.shared.homes {
            let (head, mut blocks) = (Head { home, ..head }, Vec::new());
            loop {
                let block = self.shards[usize::from(home)].save(&head, usize::MAX);
                if block.is_empty() {
                    break;
                }
                blocks.push(block);
                self.turn(usize::from(home), false, rng)?;
            }
            snapshots.push(blocks);
        }
        Ok(snapshots)
    }

    /// The state that is left for a home, from the snapshots of all homes of before; `local` state too.
    pub(super) fn restored(
        &self,
        home: ShardId,
        snapshots: &[Vec<Vec<u8>>],
        local: bool,
    ) -> Result<Restored, Damaged> {
        let begin = now(self.truth.now_s);
        let mut restored = Restored::new(self.shared.clone(), home, begin);
        if !local {
            restored = restored.without_local_state();
        }
        read(restored, self.shared.placement(), home, snapshots)
    }

    /// The head of documents of this moment; that of the first home.
    pub(super) fn head(&self, rng: &mut Rng) -> Head {
        Head {
            set: rng.next(),
            homes: self.shared.homes,
            ..head(&self.shared, now(self.truth.now_s).unix_s)
        }
    }
}

/// Reads the part of these snapshots that belongs to a home of this placement.
pub(super) fn read(
    mut restored: Restored,
    placement: Placement,
    home: ShardId,
    snapshots: &[Vec<Vec<u8>>],
) -> Result<Restored, Damaged> {
    for blocks in snapshots {
        let head = Head::read(&blocks[0])?;
        let before = Placement::new(head.partitions, head.homes);
        let mut heirs = placement.heirs(before, head.home);
        if !heirs.any(|heir| heir == home) {
            continue;
        }
        take(&mut restored, blocks)?;
    }
    restored.finish()
}
