//! The events that the log reports, and the listener that receives them.

use std::sync::Arc;

use bytes::Bytes;

/// An event of the log. The events of one partition come in the order of its batches.
#[derive(Debug)]
pub enum LogEvent {
    /// A batch is in the log.
    Batch {
        /// The partition.
        partition: u16,
        /// The sequence of the batch in the stream.
        sequence: u64,
        /// When NATS stored the batch, in seconds since 1970, by the clock of NATS. So it is the same for all nodes.
        unix_s: u32,
        /// The bytes of the batch.
        bytes: Bytes,
    },
    /// The batches with these sequences are lost: they will never be delivered.
    Lost {
        /// The partition.
        partition: u16,
        /// The first sequence.
        from: u64,
        /// The last sequence.
        to: u64,
    },
    /// This node has read everything that the log of this partition had at the start.
    CaughtUp {
        /// The partition.
        partition: u16,
    },
    /// Whether any partition is full, so that messages are refused. The last part of a stream below `max_bytes` is reserved for notes, with
    /// which nodes show that they are alive or report the death of another node.
    Full(bool),
    /// This process cannot read the log any further and must end. Either the log has lost batches that were already read, so a new epoch
    /// begins, or the log has a format that this version cannot read.
    Ended {
        /// The reason.
        why: String,
    },
}

/// Receives the events. The log calls it on its own thread.
pub trait Listener: Send + Sync + 'static {
    /// Handles an event.
    fn on_event(&self, event: LogEvent);
    /// Bytes of delivered batches that are not applied yet. While they exceed the limit, no more of the log is read.
    fn backlog_bytes(&self) -> usize;
}

pub(crate) type SharedListener = Arc<dyn Listener>;
