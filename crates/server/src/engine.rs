//! The two engines that store the log: one on disk, one for a cluster in NATS. Shards hand batches to the engine, and get a letter when a
//! batch is committed.

mod disk;
mod nats;

use crore_broker::Batch;

pub use disk::{Durable, start as start_disk};
pub use nats::{Listener, Member};

/// The engine, which all shards share.
#[derive(Clone)]
pub enum Engine {
    /// The log on disk.
    Disk(Durable),
    /// The log of a cluster.
    Nats(Box<Member>),
}

impl crore_shard_loop::Engine for Engine {
    fn append_all(&self, batches: &mut Vec<Batch>) {
        match self {
            Engine::Disk(log) => log.append_all(batches.drain(..)),
            Engine::Nats(member) => member.append_all(batches.drain(..)),
        }
    }

    fn is_lossless(&self) -> bool {
        match self {
            Engine::Disk(_) => true,
            // NATS may refuse a batch or not confirm it. Then the shard appends the batch again.
            Engine::Nats(_) => false,
        }
    }
}
