//! The events of the log, and their listener.

use std::sync::Arc;

use bytes::Bytes;

/// An event of the log. The events of a partition come in its order.
#[derive(Debug)]
pub enum LogEvent {
    /// A batch is in the log.
    Batch {
        /// The partition.
        partition: u16,
        /// Its sequence in the stream.
        sequence: u64,
        /// When the log stored it, in seconds since 1970, by the clock of NATS. The same for all nodes.
        unix_s: u32,
        /// The batch.
        bytes: Bytes,
    },
    /// The batches with these sequences are gone and will not come.
    Lost {
        /// The partition.
        partition: u16,
        /// The first sequence.
        from: u64,
        /// The last sequence.
        to: u64,
    },
    /// Everything that the log of this partition had at the start was read.
    CaughtUp {
        /// The partition.
        partition: u16,
    },
    /// Whether any partition is full. A stream accepts nothing beyond `max_bytes`, and the last part of that is reserved for the nodes' signs
    /// of life and the deaths of nodes.
    Full(bool),
    /// This process cannot read the log any further and must end. Either the log has gone back, so that a new epoch begins, or it has a
    /// format that this version cannot read.
    Ended {
        /// Why.
        why: String,
    },
}

/// The listener to events. It is called on the thread of the log.
pub trait Listener: Send + Sync + 'static {
    /// Handles an event.
    fn on_event(&self, event: LogEvent);
    /// Bytes of delivered batches that are not applied yet. While they exceed the limit, the log is read no further.
    fn backlog_bytes(&self) -> usize;
}

pub(crate) type Listening = Arc<dyn Listener>;
