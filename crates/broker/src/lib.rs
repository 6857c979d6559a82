//! What the Crore server decides: shards, topics, logs and connections.
//!
//! Sans-io: no sockets, no clock, no threads. Bytes, readiness, mail and the time come in as
//! [`Input`], everything goes out through [`Io`], so that the server and a
//! simulator run the same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod account;
pub mod admission;
mod asks;
mod blobs;
mod carrier;
pub mod conn;
pub mod connection;
pub mod control;
mod deliver;
mod drain;
mod encode;
mod ending;
mod ends;
pub mod filters;
mod following;
mod home;
mod inbox;
mod index;
pub mod io;
mod lanes;
mod log;
pub mod mail;
mod matched;
mod matching;
mod outbox;
pub mod pace;
pub mod planted;
pub mod position;
mod properties;
mod relief;
mod rope;
pub mod rules;
mod run;
mod sessions;
pub mod settings;
pub mod shard;
mod shared;
mod slab;
pub mod snapshot;
pub mod stats;
mod sys;
pub mod tables;
pub mod time;
pub mod totals;
pub mod work;

pub use conn::{ConnId, Link};
pub use control::{Control, Report, Ticket};
pub use drain::Settled;
pub use io::{Close, Input, Io, Moved};
pub use mail::{Mail, ShardId};
pub use pace::Pace;
pub use shard::{Shard, World};
pub use stats::{Accounts, Reason, Stats, Transport};
pub use tables::Tables;
pub use time::Now;
