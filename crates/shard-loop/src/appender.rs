//! Collects the batches that a shard makes in a turn (one round of its loop), and hands them to the engine (the log) at the end of the
//! turn. This crate has only the trait of engines; the server has the engines.

use crore_broker::batch::Header;
use crore_broker::{Batch, PartitionId};

/// An ordered log, which reports later that it has committed a batch ([`Letter::Committed`](crate::Letter::Committed)).
pub trait Engine: Send {
    /// Takes all these batches, in this order.
    fn append_all(&self, batches: &mut Vec<Batch>);

    /// Whether the engine commits every batch that it accepts, or else ends the process.
    fn is_lossless(&self) -> bool;
}

/// The batches of one shard that are not handed to the engine yet.
pub struct Appender {
    engine: Box<dyn Engine>,
    /// The number of the last batch of each partition. Only for a lossless engine, which must not get a batch twice.
    last_numbers: Vec<u64>,
    /// Batches of this turn.
    batches: Vec<Batch>,
}

impl Appender {
    /// An appender without batches. `partitions` is the number of partitions of the server.
    pub fn new(engine: Box<dyn Engine>, partitions: PartitionId) -> Appender {
        Appender {
            engine,
            last_numbers: vec![0; usize::from(partitions)],
            batches: Vec::new(),
        }
    }

    /// Adds a batch to those of this turn. If the engine is lossless, skips a batch that it has got already.
    pub fn append(&mut self, batch: Batch) {
        if self.engine.is_lossless() {
            let Header {
                partition, number, ..
            } = batch.header;
            let last = &mut self.last_numbers[usize::from(partition)];
            if number <= *last {
                return;
            }
            *last = number;
        }
        self.batches.push(batch);
    }

    /// Hands all batches of the turn to the engine together. If they came one by one, the engine would sync the first batch alone, and the others would
    /// wait for the next sync.
    pub fn flush(&mut self) {
        if self.batches.is_empty() {
            return;
        }
        self.engine.append_all(&mut self.batches);
    }
}
