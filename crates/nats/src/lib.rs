//! A log in NATS JetStream. It takes *batches*, opaque runs of bytes, and every node of a cluster reads all of them back in the same order.
//!
//! * [`connect()`] makes the connection and says plainly why there is none; [`Connected::numbers`] makes or reads what all nodes must agree
//!   on, and [`Connected::streams`] makes or checks the streams.
//! * [`Connected::start`] reads all partitions and publishes batches; [`Cluster`] is the way to it.
//! * [`Connected::store`] has checkpoints of partitions, documents in an object store bucket that the log is read on from.
//! * [`Connected::table`] has small facts that each node must know.
//! * [`Neighbours`] carries messages between nodes beside the log.
//!
//! One file stream for each partition, one message for each batch, one consumer for each partition and node. A consumer is made anew
//! behind the last batch that was read whenever something is missing, so that batches come once and in order, or are told as lost.
//!
//! Invariants: the batches of a partition are handed over in the order of their sequences, each once; a sequence that will not come is told
//! ([`News::Lost`]). A batch that is appended may be lost, doubled or late: the writer looks for its own batches in the log, and appends those again
//! that do not come. No shard's thread touches the runtime's descriptors.
//!
//! Deliberately not here: the meaning of a batch, and who may write one.
#![forbid(unsafe_code)]

mod append;
mod bucket;
mod checkpoint;
mod cluster;
mod connect;
mod driver;
mod error;
mod monitor;
mod neighbours;
mod news;
mod numbers;
mod reader;
mod rights;
mod settings;
mod shared;
mod store;
mod streams;
mod table;
mod transfer;
mod watch;

pub use append::Append;
pub use checkpoint::{Checkpoint, New};
pub use cluster::Cluster;
pub use connect::{Connected, connect};
pub use error::Error;
pub use neighbours::{Neighbours, Question};
pub use news::{Listener, News};
pub use numbers::{Numbers, PARTITIONS};
pub use settings::{Credentials, Settings, Tls};
pub use shared::{PartitionStatus, Status, SyncInterval};
pub use store::Store;
pub use streams::{MESSAGE_BYTES_MIN, ROOM, VERSION_MIN};
pub use table::Table;
pub use transfer::{Batches, Download, Stored, Upload};
