//! Checkpoints: while homes serve clients, shadows of all partitions fold the engine's log and write documents. A later checkpoint
//! continues from the documents of the one before. At the end, a server that has only the documents and the log behind them must have
//! everything that the homes still have.

use std::collections::BTreeMap;
use std::sync::Arc;

use crore_broker::orders::{LogPage, TopicsPage};
use crore_broker::snapshot::{Damaged, Head};
use crore_broker::{
    Batch, Control, Input, Now, Report, Restored, Shadow, Shard, ShardId, Ticket, World,
};

use crate::net::Net;

/// Topics that a home is asked about at once: few, so that most checkpoints need several orders.
const TOPICS_PER_ORDER: usize = 3;
/// More topics than a home has, and more messages than a log has.
const ALL: u32 = 1 << 20;

/// A checkpoint of all partitions.
#[derive(Default)]
pub struct Checkpoint {
    /// How many batches of the log it contains.
    contained: usize,
    /// The document of each partition, in blocks.
    documents: Vec<Vec<Vec<u8>>>,
    /// The Unix time of its making.
    unix_s: u32,
}

impl Checkpoint {
    /// Replaces this checkpoint by one of the whole `log`. False if a home has not applied the whole log yet. The homes of `shards` serve
    /// clients through `net`.
    ///
    /// # Errors
    /// If something that was written cannot be read.
    pub fn update(
        &mut self,
        server: &Arc<World>,
        log: &[Batch],
        shards: &mut [Shard],
        net: &mut Net,
        now: Now,
    ) -> Result<bool, Damaged> {
        let shadows = Shadow::world(server);
        let mut documents = Vec::new();
        for partition in 0..server.partitions {
            let moment = Now {
                s: 1,
                unix_s: self.unix_s,
            };
            let restored = Shadow::restored(&shadows, partition, moment);
            let mut shadow = Shadow::new(self.read(restored, partition)?);
            for batch in &log[self.contained..] {
                if batch.header.partition == partition {
                    shadow.fold(&batch.header, &batch.bytes)?;
                }
            }
            let of = server.placement().home_of(partition);
            net.turn_of = of;
            let home = &mut shards[usize::from(of)];
            while let Some(order) = shadow.ask(TOPICS_PER_ORDER) {
                match told(home, order, net, now) {
                    Report::Floors(Some(floors)) => shadow.keep(&floors),
                    _ => return Ok(false),
                }
            }
            documents.push(saved(&mut shadow, &head(server, now.unix_s)));
        }
        *self = Checkpoint {
            contained: log.len(),
            documents,
            unix_s: now.unix_s,
        };
        Ok(true)
    }

    fn read(&self, mut restored: Restored, partition: u16) -> Result<Restored, Damaged> {
        if let Some(blocks) = self.documents.get(usize::from(partition)) {
            take(&mut restored, blocks)?;
        }
        restored.finish()
    }

    /// The shards of a server that has only the documents and the log. Its limits leave room for everything.
    ///
    /// # Errors
    /// If something that was written cannot be read.
    pub fn recovered(
        &self,
        server: &World,
        log: &[Batch],
        now: Now,
    ) -> Result<Vec<Shard>, Damaged> {
        let server = Shadow::world(server);
        let home = |partition| {
            let mut shard = Shard::new(partition, server.clone(), now);
            shard.adopt(self.read(Shadow::restored(&server, partition, now), partition)?);
            for batch in &log[self.contained..] {
                shard.fold(&batch.header, &batch.bytes, now)?;
            }
            Ok(shard)
        };
        (0..server.partitions).map(home).collect()
    }
}

/// A checkpoint of one partition of a cluster's log.
pub struct PartitionCheckpoint {
    /// How many batches of the log it contains.
    pub contained: usize,
    /// The document, in blocks.
    pub document: Vec<Vec<u8>>,
}

/// The logs of homes: the messages of each topic, by offset.
pub type Content = BTreeMap<Vec<u8>, BTreeMap<u64, Vec<u8>>>;

/// The logs of the durable topics of these homes. Their clients, if any, are in `net`.
pub fn content(server: &World, shards: &mut [Shard], net: &mut Net, now: Now) -> Content {
    let mut content = Content::new();
    for (id, shard) in shards.iter_mut().enumerate() {
        net.turn_of = id as ShardId;
        let page = TopicsPage {
            filter: b"#"[..].into(),
            from: 0,
            most: ALL,
        };
        let Report::Topics(topics) = told(shard, Control::Topics(page), net, now) else {
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
                let page = LogPage {
                    name: topic.name.clone(),
                    after,
                    most: ALL,
                    newest: false,
                };
                let order = Control::Log(page);
                let Report::Messages(Some(page)) = told(shard, order, net, now) else {
                    break;
                };
                after = page.messages.last().map_or(after, |message| message.offset);
                messages.extend(page.messages.into_iter().map(|it| (it.offset, it.data)));
                if !page.more {
                    break;
                }
            }
            // Messages beyond the rule are kept for sessions, which are not durable.
            while messages.len() > rule.messages_max() as usize {
                messages.pop_first();
            }
            content.insert(topic.name.to_vec(), messages);
        }
    }
    content
}

/// The document of a shadow, in blocks.
pub fn saved(shadow: &mut Shadow, head: &Head) -> Vec<Vec<u8>> {
    let blocks = core::iter::from_fn(|| Some(shadow.save(head)));
    blocks.take_while(|block| !block.is_empty()).collect()
}

/// Reads a document: its head, and the blocks behind it.
///
/// # Errors
/// If it cannot be read.
pub fn take(restored: &mut Restored, blocks: &[Vec<u8>]) -> Result<(), Damaged> {
    restored.begin_snapshot(&Head::read(&blocks[0])?)?;
    blocks[1..]
        .iter()
        .try_for_each(|block| restored.read_block(block))
}

/// The first topic and offset of a message that is in `of` and not in `by`.
pub fn missing(of: &Content, by: &Content) -> Option<String> {
    of.iter().find_map(|(topic, messages)| {
        let others = by.get(topic);
        let lost = messages
            .iter()
            .find(|(offset, data)| others.and_then(|it| it.get(offset)) != Some(data));
        let (offset, _) = lost?;
        Some(format!("{} at {offset}", String::from_utf8_lossy(topic)))
    })
}

/// The head of documents made at this time. The wall clock is correct.
pub fn head(server: &World, unix_s: u32) -> Head {
    Head {
        set: 1,
        epoch: server.epoch,
        seed: server.seed,
        partitions: server.partitions,
        homes: server.partitions,
        home: 0,
        unix_s,
        wall_s: 0,
    }
}

/// Gives a shard an order, and returns its report. Like every input, an order may end connections, since the shard may need room.
fn told(shard: &mut Shard, order: Control, net: &mut Net, now: Now) -> Report {
    shard.handle(Input::Control(Ticket(0), order), now, net);
    let report = net.report.take();
    report.expect("such an order has its report at once")
}
