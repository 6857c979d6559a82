//! The news of the log, and its receiver.

use std::sync::Arc;

use bytes::Bytes;

/// News of the log, in the order of each partition.
#[derive(Debug)]
pub enum News {
    /// A batch stands in the log.
    Batch {
        /// The partition.
        partition: u16,
        /// Its place in the log.
        sequence: u64,
        /// When the log stored it, in seconds since 1970, by the clock of NATS: the same for all nodes.
        unix_s: u32,
        /// The batch.
        bytes: Bytes,
    },
    /// Records at these places will not come any more.
    Lost {
        /// The partition.
        partition: u16,
        /// The first place.
        from: u64,
        /// The last place.
        to: u64,
    },
    /// All that stood in the log of this partition at the start has come.
    CaughtUp {
        /// The partition.
        partition: u16,
    },
    /// A partition is full, up to what signs of life and deaths need, or none is any more: a stream takes nothing beyond `max_bytes`.
    Full(bool),
    /// The log can be read no further by this process, which must end: it has gone back, so that a new epoch begins, or this version cannot read
    /// what comes.
    Ended {
        /// Why.
        why: String,
    },
}

/// The receiver of the news, on the thread of the log.
pub trait Listener: Send + Sync + 'static {
    /// Takes it.
    fn tell(&self, news: News);
    /// Bytes of batches that were told and are not made use of yet. While they are many the log is read no further.
    fn backlog_bytes(&self) -> usize;
}

pub(crate) type Listening = Arc<dyn Listener>;
