//! The engine: one log, on disk or in NATS, for the batches of all shards. The engine confirms each committed batch with a letter to the shard.

mod disk;
mod nats;

use crore_broker::batch::Header;
use crore_broker::{Batch, PartitionId};

pub use disk::{Durable, start as start_disk};
pub use nats::{Listener, Member};

/// The engine, for all shards.
#[derive(Clone)]
pub enum Engine {
    /// The log on disk.
    Disk(Durable),
    /// The log of a cluster.
    Nats(Box<Member>),
}

/// Appends a shard's batches to the log.
pub struct Appender {
    engine: Engine,
    /// By partition: the number of the last batch handed to the log on disk. That log loses nothing, so that a repeated batch is skipped.
    last: Vec<u64>,
    /// Batches of this turn, not handed over yet.
    batches: Vec<Batch>,
}

impl Appender {
    pub fn new(engine: Engine, partitions: PartitionId) -> Appender {
        Appender {
            engine,
            last: vec![0; usize::from(partitions)],
            batches: Vec::new(),
        }
    }

    /// Queues a batch until the turn's [`hand_over`](Self::hand_over).
    pub fn append(&mut self, batch: Batch) {
        if matches!(self.engine, Engine::Disk(_)) {
            let Header {
                partition, number, ..
            } = batch.header;
            let last = &mut self.last[usize::from(partition)];
            if number <= *last {
                return;
            }
            *last = number;
        }
        self.batches.push(batch);
    }

    /// Hands over all batches of a turn together. One by one, the first would be synced alone, and the others would wait for the next sync.
    pub fn hand_over(&mut self) {
        if self.batches.is_empty() {
            return;
        }
        let batches = self.batches.drain(..);
        match &self.engine {
            Engine::Disk(log) => log.append_all(batches),
            Engine::Nats(member) => member.append_all(batches),
        }
    }
}
