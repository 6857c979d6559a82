//! Crashes during a run. The process is killed, or the power fails, at any point of a turn (round of a shard's loop). As in a server, new
//! shards start from the base (a checkpoint on disk) and the log alone, and clients reconnect. Sometimes the log is compacted: a new base
//! replaces its sealed segments.
//!
//! An *epoch* is a number in each position, which changes with each start on the log.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::batch::Header;
use crore_broker::loss_detector::{LastBatch, LossDetector};
use crore_broker::snapshot::Head;
use crore_broker::{
    Control, Input, PartitionId, Report, SessionNeeds, Shadow, Shard, ShardId, Ticket,
};
use crore_rng::Rng;

use super::restart::read_snapshots;
use super::{ShardLoop, Simulation, now};
use crate::checkpoint::{Checkpoint, saved};
use crate::client::follower::Follower;
use crate::client::track::KnownOffsets;
use crate::engine::{ReportedDamage, Start};
use crate::truth::Violation;

/// The process crashes after fewer effects than this. An effect is a send, a close, an append to the log or a mail between shards.
const EFFECTS_MAX: usize = 30;
/// Number of topics in one order to a home (a shard that owns topics).
const TOPICS_PER_ORDER: usize = 3;

impl Simulation {
    /// Writes a base from the state of the homes, if the log is on disk. A server writes a base at its first start, too.
    pub fn write_base(&mut self, rng: &mut Rng) {
        let engine = self.net.engine.as_ref();
        if engine.is_none_or(|engine| engine.disk_log.is_none()) {
            return;
        }
        let head = self.head(rng);
        let homes = (0..self.server.homes).zip(&mut self.shards);
        let snapshots = homes.map(|(home, shard)| {
            let head = Head { home, ..head };
            let blocks = core::iter::from_fn(|| Some(shard.save(&head, usize::MAX)));
            blocks.take_while(|block| !block.is_empty()).collect()
        });
        self.base_snapshots = snapshots.collect();
    }

    /// Ends the process within a turn, and starts a new one.
    pub fn crash(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let is_power_cut = rng.chance(50);
        self.truth
            .note(|| ["kill", "power cut"][usize::from(is_power_cut)].into());
        self.end_mid_turn(rng)?;
        self.read_last_answers(rng)?;
        let engine = self.net.engine();
        engine.crash(is_power_cut, rng);
        if self.plan.disk_damage {
            engine.disk_log().inject_damage(rng)?;
        }
        let sockets = &self.net.sockets;
        let is_open = |link: u32| {
            let socket = &sockets[link as usize];
            !(socket.client_fin || socket.server_fin || socket.server_closed || socket.reset)
        };
        let mut links = self.clients.mqtt.iter().map(|client| client.link);
        let were_open: Vec<bool> = links.by_ref().map(|it| it.is_some_and(is_open)).collect();
        self.net.restart_process();
        self.loops.iter_mut().for_each(|it| it.links.clear());
        self.clients.http_connections_ended();
        self.clients
            .followers
            .iter_mut()
            .for_each(Follower::connection_ended);
        for (client, was_open) in self.clients.mqtt.iter_mut().zip(were_open) {
            client.server_crashed(was_open, &self.truth);
        }
        self.truth.crash_step = Some(self.truth.step);
        // The new homes restore from the log also messages that the former homes had removed, so the checkpoint is no longer valid.
        self.checkpoint = Checkpoint::default();
        self.start_from_log(rng)?;
        match is_power_cut {
            true => self.coverage.power_cuts += 1,
            false => self.coverage.process_kills += 1,
        }
        Ok(())
    }

    /// Lets some shards take last turns. The process ends after a random number of effects.
    fn end_mid_turn(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        self.net.effects_left = rng.below(EFFECTS_MAX);
        for _ in 0..self.plan.shards {
            let shard = rng.below(self.plan.shards);
            let turn = self.turn(shard, rng.chance(50), rng);
            if self.net.is_dead() {
                break;
            }
            turn?;
        }
        Ok(())
    }

    /// Lets some clients read the bytes that were sent before the crash.
    fn read_last_answers(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        for n in 0..self.clients.publishers.len() {
            if rng.chance(60) {
                self.read_publisher(n, usize::MAX)?;
            }
        }
        for n in 0..self.clients.subscribers.len() {
            if rng.chance(60) {
                self.read_subscriber(n, usize::MAX)?;
            }
        }
        for n in 0..self.clients.centrifugo.len() {
            if rng.chance(60) {
                self.centrifugo_read(n, usize::MAX)?;
            }
        }
        for n in 0..self.clients.mqtt.len() {
            if rng.chance(60) {
                self.mqtt_read(n, usize::MAX, rng)?;
            }
        }
        Ok(())
    }

    /// Starts new shards from the base and the log, with a random number of homes.
    fn start_from_log(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let engine = self.net.engine();
        let mut start = engine.start()?;
        let lost = match self.plan.restores_old_log {
            true => start.batches.split_off(rng.range(0, start.batches.len())),
            false => Vec::new(),
        };
        for shard in &self.shards {
            self.coverage.stats += shard.stats();
        }
        let homes = rng.range(1, self.plan.shards.min(self.plan.partitions));
        self.server = Arc::new(crore_broker::World {
            settings: self.server.settings.clone(),
            rules: self.server.rules.clone(),
            admission: Admission::new(&self.server.settings, self.server.seed),
            homes: homes as ShardId,
            epoch: self.server.epoch + 1,
            writer: self.server.writer.map(|writer| writer + 1),
            ..*self.server
        });
        let begin = now(self.truth.now_s);
        let mut last_batches = Vec::new();
        for n in 0..self.shards.len() {
            let home = n as ShardId;
            let mut shard = Shard::new(home, self.server.clone(), begin);
            shard.set_turn_limits(self.plan.turn_limits);
            if n < homes {
                let restored = self.restored(home, &self.base_snapshots, false);
                shard.adopt(restored.map_err(|why| why.to_string())?);
            }
            last_batches.extend(shard.last_batches());
            for batch in &start.batches {
                let header = Header::read(batch);
                let folded =
                    header.and_then(|header| shard.apply_logged_batch(&header, batch, begin));
                folded.map_err(|why| why.to_string())?;
            }
            shard.lose_unlogged();
            self.shards[n] = shard;
        }
        let mut needs = SessionNeeds::default();
        let shards = self.shards.iter_mut();
        shards.for_each(|shard| shard.add_session_needs(&mut needs));
        for shard in &mut self.shards {
            shard.finish_recovery(&needs, begin);
        }
        self.loops.iter_mut().for_each(ShardLoop::reset);
        self.begin_epochs(&start, last_batches, rng)?;
        // The position just before the life of the log that has just ended: a subscriber may have received it.
        let begin = self.lives.first_offset().saturating_sub(1);
        let ends = self.ends();
        self.begin_life();
        match lost.is_empty() {
            true => Ok(()),
            false => self.log_restored(&lost, &ends, begin, rng),
        }
    }

    /// Updates the clients after the log was restored from a copy without the batches `lost`. The log continues after the copy, so new
    /// messages get the offsets of the lost ones. In each partition the server knows the positions up to the one in `ends`. It also knows
    /// the position `begin`, just before the first offset of the life of the log that has ended (the time from its start to the crash).
    fn log_restored(
        &mut self,
        lost: &[Arc<[u8]>],
        ends: &[u64],
        begin: u64,
        rng: &mut Rng,
    ) -> Result<(), Violation> {
        self.truth
            .note(|| format!("put back without {} batches", lost.len()));
        let is_first_restore = self.coverage.log_restores == 0;
        self.coverage.log_restores += 1;
        for subscriber in &self.clients.subscribers {
            subscriber.check(&self.truth, &[])?;
        }
        let mut partitions = Vec::new();
        for batch in lost {
            let header = Header::read(batch).map_err(|why| why.to_string())?;
            partitions.push(header.partition);
        }
        self.truth.has_damaged_partition |= !partitions.is_empty();
        let placement = self.server.placement();
        let mut known_offsets = Vec::new();
        for topic in 0..self.truth.topics.len() {
            let partition = placement.partition_of(self.truth.topics[topic].name.as_bytes());
            if partitions.contains(&partition) {
                self.truth.mark_damaged(topic);
            }
            known_offsets.push(KnownOffsets {
                restored_end: ends[usize::from(partition)],
                before_ended_life: begin,
            });
        }
        for subscriber in &mut self.clients.subscribers {
            self.coverage.lost_branches +=
                subscriber.log_restored(&self.truth, &known_offsets, is_first_restore);
        }
        self.start_new_base(rng)
    }

    /// Begins a new epoch in each partition that may have lost batches because of damage, and writes a new base.
    fn begin_epochs(
        &mut self,
        start: &Start,
        last_batches: Vec<(PartitionId, LastBatch)>,
        rng: &mut Rng,
    ) -> Result<(), Violation> {
        let Some(ReportedDamage { at, missing }) = start.damage else {
            return Ok(());
        };
        let mut loss_detector = LossDetector::new(self.server.partitions);
        for (n, batch) in start.batches.iter().enumerate() {
            if n == at {
                loss_detector.record_damage(missing);
            }
            let header = Header::read(batch).map_err(|why| why.to_string())?;
            loss_detector.record_batch(header.partition, header.writer, header.number);
        }
        if at == start.batches.len() {
            loss_detector.record_damage(missing);
        }
        let damaged = loss_detector.partitions_with_loss(last_batches);
        let placement = self.server.placement();
        for lost in &start.lost {
            let Header { partition, .. } = Header::read(lost).map_err(|why| why.to_string())?;
            if !damaged.contains(&partition) {
                return Err(format!(
                    "partition {partition} has lost a batch, not {damaged:?}"
                ));
            }
        }
        self.truth
            .note(|| format!("damage in partitions {damaged:?}"));
        self.coverage.damages += 1;
        self.truth.has_damaged_partition |= !damaged.is_empty();
        self.coverage.damaged_partitions += damaged.len() as u64;
        self.coverage.intact_partitions += u64::from(self.server.partitions) - damaged.len() as u64;
        for subscriber in &self.clients.subscribers {
            subscriber.check(&self.truth, &[])?;
        }
        for topic in 0..self.truth.topics.len() {
            let name = self.truth.topics[topic].name.as_bytes();
            if damaged.contains(&placement.partition_of(name)) {
                self.truth.mark_damaged(topic);
            }
        }
        for subscriber in &mut self.clients.subscribers {
            subscriber.partitions_damaged(&self.truth);
        }
        for partition in damaged {
            let home = usize::from(placement.home_of(partition));
            self.shards[home].begin_epoch(partition, self.lives.first_offset());
        }
        self.start_new_base(rng)
    }

    /// Writes a base from the state of the homes. The log continues in a new segment.
    fn start_new_base(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        self.write_base(rng);
        let disk_log = self.net.engine().disk_log();
        let end = disk_log.begin_segment()?;
        disk_log.set_base(end)
    }

    /// Writes a new base that contains the sealed segments, and removes these segments. Does nothing while a home has not applied all
    /// batches in the segments. In some worlds the documents (the snapshots of the partitions) of the last base are replaced one by one.
    /// The work may end when only some are replaced. Then the segments stay, and the base still names its old end.
    pub fn compact_log(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let disk_log = self.net.engine().disk_log();
        let (batches, end) = disk_log.sealed_batches()?;
        if batches.is_empty() {
            return Ok(());
        }
        let server = Shadow::world(&self.server, self.server.epoch);
        let moment = now(self.truth.now_s);
        let in_place = self.head_of_replaceable_base()?;
        let mut snapshots = Vec::new();
        for partition in 0..server.partitions {
            let restored = Shadow::restored(&server, partition, moment);
            let restored = read_snapshots(
                restored,
                server.placement(),
                partition,
                &self.base_snapshots,
            );
            let mut shadow = Shadow::new(restored.map_err(|why| why.to_string())?);
            for batch in &batches {
                let header = Header::read(batch).map_err(|why| why.to_string())?;
                if header.partition == partition {
                    let folded = shadow.apply_batch(&header, batch);
                    folded.map_err(|why| why.to_string())?;
                }
            }
            shadow.drop_expired(moment);
            while let Some(order) = shadow.next_floors_order(TOPICS_PER_ORDER) {
                let home = self.server.placement().home_of(partition);
                match self.loss_floors(usize::from(home), order, rng)? {
                    Some(floors) => shadow.apply_floors(&floors),
                    None => return Ok(()),
                }
            }
            // All documents of a base have the same head.
            let head = in_place.unwrap_or_else(|| self.head(rng));
            snapshots.push(saved(&mut shadow, &head));
        }
        if in_place.is_some() {
            let mut order: Vec<usize> = (0..snapshots.len()).collect();
            rng.shuffle(&mut order);
            let replaced = rng.range(1, order.len());
            for at in &order[..replaced] {
                self.base_snapshots[*at] = core::mem::take(&mut snapshots[*at]);
            }
            if replaced < order.len() {
                let disk_log = self.net.engine().disk_log();
                disk_log.note_replaced(&order[..replaced], &batches)?;
                self.coverage.partial_bases += 1;
                self.truth
                    .note(|| format!("documents {:?} are replaced", &order[..replaced]));
                return Ok(());
            }
        } else {
            self.base_snapshots = snapshots;
        }
        self.coverage.bases += 1;
        self.net.engine().disk_log().set_base(end)
    }

    /// The head of the last base, if its documents can be replaced one by one: each is of one partition.
    fn head_of_replaceable_base(&self) -> Result<Option<Head>, Violation> {
        let count = self.base_snapshots.len();
        if !self.plan.replaces_in_place || count != usize::from(self.server.partitions) {
            return Ok(None);
        }
        let head = Head::read(&self.base_snapshots[0][0]);
        head.map(Some).map_err(|why| why.to_string())
    }

    /// Asks a home for the loss floors of some topics. A topic's loss floor is the offset up to which the topic may have lost messages.
    /// `None` if the home has not applied the log yet.
    fn loss_floors(
        &mut self,
        home: usize,
        order: Control,
        rng: &mut Rng,
    ) -> Result<Option<Vec<Option<u64>>>, Violation> {
        self.net.current_shard = home as ShardId;
        let order = Input::Control(Ticket(1), order);
        self.shards[home].handle(order, now(self.truth.now_s), &mut self.net);
        self.turn(home, false, rng)?;
        match self.net.report.take() {
            Some(Report::Floors(floors)) => Ok(floors),
            _ => Err("a home does not answer an order".into()),
        }
    }
}
