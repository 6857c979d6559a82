//! Checkpoints of the engine's log (the committed batches of all partitions). While homes (shards that own topics) serve clients, each
//! partition has a shadow, a home without clients, which replays the log and writes a snapshot. A later checkpoint continues from the
//! snapshots of the one before. At the end, a server that starts from the snapshots and the later batches must have every message that the
//! homes still have.

use std::collections::BTreeMap;
use std::sync::Arc;

use crore_broker::orders::{LogPageRequest, TopicsPageRequest};
use crore_broker::snapshot::{Damaged, Head};
use crore_broker::{
    Batch, Control, Input, Now, Report, Restored, Shadow, Shard, ShardId, Ticket, World,
};

use crate::net::Net;

/// Number of topics in one order to a home. It is small, so that most checkpoints need several orders.
const TOPICS_PER_ORDER: usize = 3;
/// A limit that is never reached: more topics than a home has, and more messages than a log has.
const ALL: u32 = 1 << 20;

/// A checkpoint of all partitions.
#[derive(Default)]
pub struct Checkpoint {
    /// How many batches of the log the checkpoint contains.
    contained: usize,
    /// The snapshot of each partition, in blocks.
    snapshots: Vec<Vec<Vec<u8>>>,
    /// The Unix time at which the checkpoint was made.
    unix_s: u32,
}

impl Checkpoint {
    /// Replaces this checkpoint by one of the whole `log`. `shards` are the homes, which serve clients through `net`. Returns false, and keeps
    /// this checkpoint, if a home has not applied the whole log yet.
    ///
    /// # Errors
    /// If a snapshot or a batch cannot be read.
    pub fn update(
        &mut self,
        server: &Arc<World>,
        log: &[Batch],
        shards: &mut [Shard],
        net: &mut Net,
        now: Now,
    ) -> Result<bool, Damaged> {
        let shadows = Shadow::world(server, server.epoch);
        let mut snapshots = Vec::new();
        for partition in 0..server.partitions {
            let last_checkpoint = Now {
                s: 1,
                unix_s: self.unix_s,
            };
            let restored = Shadow::restored(&shadows, partition, last_checkpoint);
            let mut shadow = Shadow::new(self.read(restored, partition)?);
            for batch in &log[self.contained..] {
                if batch.header.partition == partition {
                    shadow.apply_batch(&batch.header, &batch.bytes)?;
                }
            }
            let home = server.placement().home_of(partition);
            net.current_shard = home;
            let home = &mut shards[usize::from(home)];
            while let Some(order) = shadow.next_floors_order(TOPICS_PER_ORDER) {
                match report_of(home, order, net, now) {
                    Report::Floors(Some(floors)) => shadow.apply_floors(&floors),
                    _ => return Ok(false),
                }
            }
            snapshots.push(saved(&mut shadow, &head(server, now.unix_s)));
        }
        *self = Checkpoint {
            contained: log.len(),
            snapshots,
            unix_s: now.unix_s,
        };
        Ok(true)
    }

    /// The state of a partition in this checkpoint.
    fn read(&self, mut restored: Restored, partition: u16) -> Result<Restored, Damaged> {
        if let Some(blocks) = self.snapshots.get(usize::from(partition)) {
            take(&mut restored, blocks)?;
        }
        restored.finish()
    }

    /// The shards of a server that starts from this checkpoint and the log after it. This server has no limit that removes messages.
    ///
    /// # Errors
    /// If a snapshot or a batch cannot be read.
    pub fn recovered(
        &self,
        server: &World,
        log: &[Batch],
        now: Now,
    ) -> Result<Vec<Shard>, Damaged> {
        let server = Shadow::world(server, server.epoch);
        let home = |partition| {
            let mut shard = Shard::new(partition, server.clone(), now);
            shard.adopt(self.read(Shadow::restored(&server, partition, now), partition)?);
            for batch in &log[self.contained..] {
                shard.apply_logged_batch(&batch.header, &batch.bytes, now)?;
            }
            Ok(shard)
        };
        (0..server.partitions).map(home).collect()
    }
}

/// A checkpoint of one partition of a cluster's log.
pub struct PartitionCheckpoint {
    /// How many batches of the log the checkpoint contains.
    pub contained: usize,
    /// The snapshot, in blocks.
    pub snapshot: Vec<Vec<u8>>,
}

/// The messages of each topic, by topic and offset.
pub type Content = BTreeMap<Vec<u8>, BTreeMap<u64, Vec<u8>>>;

/// The messages of the durable topics of these homes. `net` has the connections of their clients.
pub fn content(server: &World, shards: &mut [Shard], net: &mut Net, now: Now) -> Content {
    let mut content = Content::new();
    for (id, shard) in shards.iter_mut().enumerate() {
        net.current_shard = id as ShardId;
        let page = TopicsPageRequest {
            filter: b"#"[..].into(),
            from: 0,
            topics_max: ALL,
        };
        let Report::Topics(topics) = report_of(shard, Control::Topics(page), net, now) else {
            unreachable!("each order has its report");
        };
        for topic in topics.found {
            let rule = server.rules.get(topic.rule);
            if !rule.durable {
                continue;
            }
            let mut messages = BTreeMap::new();
            let mut after = 0;
            loop {
                let page = LogPageRequest {
                    epoch: None,
                    name: topic.name.clone(),
                    after,
                    messages_max: ALL,
                    newest: false,
                };
                let order = Control::Log(page);
                let Report::Messages(Some(page)) = report_of(shard, order, net, now) else {
                    break;
                };
                messages.extend(page.messages.into_iter().map(|it| (it.offset, it.data)));
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            // For MQTT sessions homes keep more messages than the rule allows. Sessions are not durable, so these messages may be lost and
            // are not compared.
            while messages.len() > rule.messages_max() as usize {
                messages.pop_first();
            }
            content.insert(topic.name.to_vec(), messages);
        }
    }
    content
}

/// The snapshot of a shadow, in blocks.
pub fn saved(shadow: &mut Shadow, head: &Head) -> Vec<Vec<u8>> {
    let blocks = core::iter::from_fn(|| Some(shadow.save(head)));
    blocks.take_while(|block| !block.is_empty()).collect()
}

/// Reads the head and the blocks of a snapshot into `restored`.
///
/// # Errors
/// If the snapshot cannot be read.
pub fn take(restored: &mut Restored, blocks: &[Vec<u8>]) -> Result<(), Damaged> {
    restored.begin_snapshot(&Head::read(&blocks[0])?)?;
    blocks[1..]
        .iter()
        .try_for_each(|block| restored.read_block(block))
}

/// The topic and offset of the first message of `required` that `restored` lacks.
pub fn missing(required: &Content, restored: &Content) -> Option<String> {
    required.iter().find_map(|(topic, messages)| {
        let others = restored.get(topic);
        let lost = messages
            .iter()
            .find(|(offset, data)| others.and_then(|it| it.get(offset)) != Some(data));
        let (offset, _) = lost?;
        Some(format!("{} at {offset}", String::from_utf8_lossy(topic)))
    })
}

/// The head of a snapshot that is made at this time.
pub fn head(server: &World, unix_s: u32) -> Head {
    Head {
        stop_id: 1,
        epoch: server.epoch,
        seed: server.seed,
        partitions: server.partitions,
        homes: server.partitions,
        home: 0,
        unix_s,
        wall_s: 0,
    }
}

/// Gives a shard an order, and returns its report. Connections may end meanwhile, as with every input, since the shard may need room.
fn report_of(shard: &mut Shard, order: Control, net: &mut Net, now: Now) -> Report {
    shard.handle(Input::Control(Ticket(0), order), now, net);
    let report = net.report.take();
    report.expect("such an order has its report at once")
}
