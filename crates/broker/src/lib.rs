//! The logic of the Crore server: shards, topics, logs and connections.
//!
//! The crate is sans-io: it has no sockets, clock or threads. Received bytes, the readiness of sockets, mail from other shards and the time
//! arrive as [`Input`]. All effects leave through [`Io`], so the server and the simulator run the same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod base;
mod budget;
mod client;
mod commit;
pub mod filters;
mod home;
pub mod io;
mod log;
pub mod mail;
pub mod protocol;
pub mod shard;
mod store;

pub use base::ids::{ConnId, OFFSET_BITS, PartitionId, ShardId, SocketId};
pub use base::journal::{ClientEvent, EventKind};
pub use base::notices::Notice;
pub use base::placement::{PARTITIONS, Placement, SLOTS};
pub use base::reason::{Closed, Reason, SEND_A_TOKEN};
pub use base::record_kind::RecordKind;
pub use base::time::Now;
pub use base::turn_limits::TurnLimits;
pub use base::verdict::{Identity, Verdict};
pub use base::{
    access, fair_queue, lives, loss_detector, node, planted, position, pusher, reason, rules,
    settings, snapshot, time, turn_limits, work,
};
pub use budget::stats::{
    Accounts, COUNTERS, GAUGES, LABELLED_COUNTERS, SocketBytes, Stats, Transport,
};
pub use budget::world::{Offsets, World};
pub use budget::{accept_queue, account, admission, stats, totals};
pub use commit::record::{ControlRecord, Heartbeat};
pub use commit::{Backlog, Batch, Committed, ForeignBatch, batch, log_retention};
pub use home::STREAMS;
pub use io::{CloseMode, Input, Io};
pub use mail::orders::{Control, Report, Settled, Ticket};
pub use mail::{Mail, backend, orders};
pub use shard::restore::{Restored, SessionNeeds};
pub use shard::shadow::Shadow;
pub use shard::tables::Tables;
pub use shard::{Shard, tables};
pub use store::shared::{OutputPart, Slice};
