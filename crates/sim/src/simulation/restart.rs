//! A planned restart during a run: all connections are closed, all work in flight is finished, each home (shard that owns topics) writes
//! its snapshot, and new shards continue from the snapshots. No message may be lost or repeated, and no subscriber may be told of a gap.
//!
//! A *gap* is the notice that messages are lost.

use std::sync::Arc;

use crore_broker::Restored;
use crore_broker::admission::Admission;
use crore_broker::snapshot::{Damaged, Head};
use crore_broker::{Placement, Settled, Shard, ShardId};
use crore_rng::Rng;

use super::{ShardLoop, Simulation, now};
use crate::checkpoint::{content, head, missing, take};
use crate::net::Net;
use crate::truth::Violation;

/// Seconds after which a home appends an unanswered batch again.
const RETRY_S: u32 = 3;
/// The maximum number of rounds until no work is left. The clock stands still during these rounds.
const ROUNDS_MAX: usize = 20_000;

impl Simulation {
    /// Stops all shards and starts new ones from their snapshots.
    pub fn restart(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        self.truth.note(|| "restart".into());
        for shard in 0..self.plan.shards {
            self.shards[shard].drain(now(self.truth.now_s));
            // Connections in the accept queue are accepted before the queue is closed.
            while self.shards[shard].connection_count() > 0 || self.has_unaccepted(shard) {
                self.truth.now_s += 1;
                self.turn(shard, true, rng)?;
            }
        }
        self.settle_engine(rng)?;
        self.settle_shards(rng)?;
        let snapshots = self.snapshots(rng)?;
        for shard in &self.shards {
            self.coverage.stats += shard.stats();
        }
        self.server = Arc::new(crore_broker::World {
            settings: self.server.settings.clone(),
            rules: self.server.rules.clone(),
            admission: Admission::new(&self.server.settings, self.server.seed),
            homes: self.plan.homes_after as ShardId,
            epoch: self.server.epoch + 1,
            writer: self.server.writer.map(|writer| writer + 1),
            ..*self.server
        });
        let begin = now(self.truth.now_s);
        for (n, shard) in self.shards.iter_mut().enumerate() {
            *shard = Shard::new(n as ShardId, self.server.clone(), begin);
            shard.set_turn_limits(self.plan.turn_limits);
        }
        for home in 0..self.server.homes {
            let restored = self.restored(home, &snapshots, true);
            let restored = restored.map_err(|why| why.to_string())?;
            self.shards[usize::from(home)].adopt(restored);
        }
        self.begin_life();
        self.loops.iter_mut().for_each(ShardLoop::reset);
        self.restart_engine(snapshots)?;
        self.coverage.restarts += 1;
        Ok(())
    }

    /// Whether the log of the engine (its committed batches) contains everything that the homes know. After a restart or a loss the log
    /// does not. For a cluster this returns false, because the log is not checked there.
    pub fn has_whole_log(&self) -> bool {
        let coverage = &self.coverage;
        let interruptions = coverage.damages + coverage.log_restores + coverage.restarts;
        interruptions == 0 && self.plan.nodes == 1
    }

    /// Begins a new life of the log: the time from one start to the next. The caller makes sure that all homes have read the log of the
    /// earlier lives.
    pub(super) fn begin_life(&mut self) {
        let epoch = self.server.epoch;
        self.lives.begin(epoch, &self.ends(), epoch);
        let lives = Arc::new(self.lives.clone());
        for shard in &mut self.shards {
            shard.set_lives(&lives);
        }
    }

    /// The last offset of each partition.
    pub(super) fn ends(&self) -> Vec<u64> {
        let mut ends = vec![0; usize::from(self.server.partitions)];
        for (partition, end) in self.shards.iter().flat_map(Shard::last_offsets) {
            ends[usize::from(partition)] = end;
        }
        ends
    }

    /// Makes a checkpoint of the batches that the engine has now, if there is an engine and its log is whole.
    pub fn make_checkpoint(&mut self) -> Result<(), Violation> {
        let now = now(self.truth.now_s);
        let has_whole_log = self.has_whole_log();
        let Some(engine) = self.net.engine.as_ref().filter(|_| has_whole_log) else {
            return Ok(());
        };
        let log = engine.log.clone();
        let (server, shards) = (&self.server, &mut self.shards);
        let made = self
            .checkpoint
            .update(server, &log, shards, &mut self.net, now);
        self.coverage.checkpoints += u64::from(made.map_err(|why| why.to_string())?);
        Ok(())
    }

    /// Checks that a server that starts from the last checkpoint and the log after it has all messages that the homes have.
    pub fn check_checkpoints(&mut self) -> Result<(), Violation> {
        self.make_checkpoint()?;
        let now = now(self.truth.now_s);
        let has_whole_log = self.has_whole_log();
        let Some(engine) = self.net.engine.as_ref().filter(|_| has_whole_log) else {
            return Ok(());
        };
        let server = &self.server;
        let recovered = self.checkpoint.recovered(server, &engine.log, now);
        let mut recovered = recovered.map_err(|why| why.to_string())?;
        let mut empty_net = Net::new(1, recovered.len(), 0, None);
        let restored = content(server, &mut recovered, &mut empty_net, now);
        let mut required = content(server, &mut self.shards, &mut self.net, now);
        // The checkpoint may lack two kinds of messages that homes have: those that a home keeps for MQTT sessions beyond the limits of the
        // rule, and those that expire in this second.
        let truth = &self.truth;
        let is_required = |data: &[u8]| {
            let number = truth.number_of(data);
            number.is_ok_and(|number| !truth.may_have_been_removed(number))
        };
        let logs = required.values_mut();
        logs.for_each(|log| log.retain(|_, data| is_required(data)));
        match missing(&required, &restored) {
            Some(what) => Err(format!("a checkpoint and the log behind it lack {what}")),
            None => Ok(()),
        }
    }

    /// Restarts the engine. `snapshots` become the base of its log, from which a new process starts.
    fn restart_engine(&mut self, snapshots: Vec<Vec<Vec<u8>>>) -> Result<(), Violation> {
        let Some(engine) = &mut self.net.engine else {
            return Ok(());
        };
        engine.restart();
        let Some(disk_log) = &mut engine.disk_log else {
            return Ok(());
        };
        let end = disk_log.end();
        disk_log.set_base(end)?;
        disk_log.stop();
        self.base_snapshots = snapshots;
        match disk_log.start()?.batches.len() {
            0 => Ok(()),
            left => Err(format!("{left} batches are not in the snapshots of a stop")),
        }
    }

    /// Makes the engine lose no batch any more. Waits until the homes have appended lost batches again.
    pub fn settle_engine(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let Some(engine) = &mut self.net.engine else {
            return Ok(());
        };
        engine.is_reliable = true;
        for _ in 0..3 {
            self.truth.now_s += RETRY_S;
            // Each round waits until the homes have handled all answers, since only then do they append again.
            self.run_until_not_busy(rng)?;
        }
        Ok(())
    }

    /// Lets all shards take turns until none has work left.
    fn run_until_not_busy(&mut self, rng: &mut Rng) -> Result<(), Violation> {
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

    fn has_unaccepted(&self, shard: usize) -> bool {
        let queued = |link: &u32| !self.net.sockets[*link as usize].accepted;
        self.loops[shard].links.iter().any(queued)
    }

    /// Lets all shards take turns until nothing is in flight.
    fn settle_shards(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let mut former = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let settled: Vec<Settled> = self.shards.iter_mut().map(Shard::settle).collect();
            let posted: u64 = settled.iter().map(|shard| shard.posted).sum();
            let received: u64 = settled.iter().map(|shard| shard.received).sum();
            let is_settled = |shard: &Settled| !shard.busy && shard.connections == 0;
            if settled == former && posted == received && settled.iter().all(is_settled) {
                return Ok(());
            }
            former = settled;
            for shard in 0..self.plan.shards {
                self.turn(shard, false, rng)?;
            }
        }
        Err("no rest before a restart".into())
    }

    /// Takes the snapshots of all homes, block by block, with a turn between two blocks.
    fn snapshots(&mut self, rng: &mut Rng) -> Result<Vec<Vec<Vec<u8>>>, Violation> {
        let head = self.head(rng);
        let mut snapshots = Vec::new();
        for home in 0..self.server.homes {
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

    /// The state of a new home, from the snapshots of all former homes. `local` includes state that is in no log, such as sessions.
    pub(super) fn restored(
        &self,
        home: ShardId,
        snapshots: &[Vec<Vec<u8>>],
        local: bool,
    ) -> Result<Restored, Damaged> {
        let begin = now(self.truth.now_s);
        let mut restored = Restored::new(self.server.clone(), home, begin);
        if !local {
            restored = restored.without_local_state();
        }
        read_snapshots(restored, self.server.placement(), home, snapshots)
    }

    /// The head of a snapshot of the first home, taken now.
    pub(super) fn head(&self, rng: &mut Rng) -> Head {
        Head {
            stop_id: rng.draw(),
            homes: self.server.homes,
            ..head(&self.server, now(self.truth.now_s).unix_s)
        }
    }
}

/// Reads the parts of these snapshots that now belong to this home.
pub(super) fn read_snapshots(
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
