//! The engines: the log on disk, and the log of a cluster in NATS. Shards hand batches over, and get a letter when a batch is committed.

mod disk;
mod nats;

use crore_broker::Batch;

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
            // What NATS does not confirm is sent again.
            Engine::Nats(_) => false,
        }
    }
}
