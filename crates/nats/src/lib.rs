//! A log in NATS JetStream. It stores *batches* (opaque bytes), and every node of a cluster reads all of them in the same order.
//!
//! * [`connect()`] connects, or explains why it cannot. [`Connection::read_or_create_identity`] creates or reads the identity that all nodes must agree on.
//!   [`Connection::open_streams`] creates or checks the streams.
//! * [`Connection::start`] starts to read all partitions and to publish batches. [`Cluster`] is the handle to the running log.
//! * [`Connection::open_store`] opens the store of checkpoints, which are objects in a bucket. The log is read from the end of a checkpoint on.
//! * [`Connection::open_table`] opens a small table that all nodes share.
//! * [`Peers`] carries messages between nodes outside the log.
//!
//! There is one file stream for each partition, one message for each batch, and one consumer for each partition and node. When a message or
//! heartbeat is missing, a new consumer replaces the old one and starts after the last batch read. So batches arrive once and in order, or
//! are reported as lost.
//!
//! Invariants:
//! * The batches of a partition are delivered once and in the order of their sequences. A sequence that can no longer be delivered is
//!   reported as lost ([`LogEvent::Lost`]).
//! * An appended batch may be lost, duplicated or delayed. The writer looks for its own batches in the log, and appends missing ones again.
//! * The threads of shards do not touch the file descriptors of the runtime.
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
mod events;
mod identity;
mod log_state;
mod monitor;
mod peers;
mod permissions;
mod reader;
mod settings;
mod store;
mod streams;
mod table;
mod transfer;
mod watch;

pub use append::Append;
pub use checkpoint::{Checkpoint, NewCheckpoint};
pub use cluster::Cluster;
pub use connect::{Connection, connect};
pub use error::Error;
pub use events::{Listener, LogEvent};
pub use identity::{ClusterIdentity, PARTITIONS};
pub use log_state::{PartitionStatus, Status, SyncInterval};
pub use peers::{Peers, Question};
pub use settings::{Credentials, Settings, Tls};
pub use store::Store;
pub use streams::{MAX_BYTES_FACTOR, MESSAGE_BYTES_MIN, VERSION_MIN};
pub use table::Table;
pub use transfer::{Batches, Download, StoredBatch, Upload};
