//! The engine: batches of all shards go to one log, on disk or in NATS, and the news that they stand there come back as letters.

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

/// A shard's way to the engine.
pub struct Appender {
    engine: Engine,
    /// The last number of each partition that was handed over to the disk. It loses nothing, so that none needs to be handed over twice.
    last: Vec<u64>,
    /// Batches of this turn.
    batches: Vec<Batch>,
}

impl Appender {
    /// For a server with so many partitions.
    pub fn new(engine: Engine, partitions: PartitionId) -> Appender {
        Appender {
            engine,
            last: vec![0; usize::from(partitions)],
            batches: Vec::new(),
        }
    }

    /// Takes a batch, which goes with the others of its turn.
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

    /// Hands the batches of a turn over: one by one, the first would be synced alone, and the others would wait for the next sync.
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
