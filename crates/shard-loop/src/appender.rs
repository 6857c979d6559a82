//! The batches of a shard's turn on their way to the engine. Engines are in the server; this crate knows only their trait.

use crore_broker::batch::Header;
use crore_broker::{Batch, PartitionId};

/// An ordered log, which reports later that it has committed a batch ([`Letter::Committed`](crate::Letter::Committed)).
pub trait Engine: Send {
    /// Takes all these batches, in this order.
    fn append_all(&self, batches: &mut Vec<Batch>);

    /// Whether it commits every batch that it was given, or the process ends.
    fn is_lossless(&self) -> bool;
}

/// A shard's way to the engine.
pub struct Appender {
    engine: Box<dyn Engine>,
    /// The number of the last batch of each partition, if the engine is lossless: then no batch is handed over twice.
    last: Vec<u64>,
    /// Batches of this turn.
    batches: Vec<Batch>,
}

impl Appender {
    /// For a server with so many partitions.
    pub fn new(engine: Box<dyn Engine>, partitions: PartitionId) -> Appender {
        Appender {
            engine,
            last: vec![0; usize::from(partitions)],
            batches: Vec::new(),
        }
    }

    /// Takes a batch, which goes with the others of its turn.
    pub fn append(&mut self, batch: Batch) {
        if self.engine.is_lossless() {
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
        self.engine.append_all(&mut self.batches);
    }
}
