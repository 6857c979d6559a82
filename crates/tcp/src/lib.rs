//! TCP as a state machine: packets in, packets out, and the clock as an argument. `no_std` with `alloc`.
//!
//! A [`Table`] has all connections of one thread, of servers and of clients. An idle connection costs one row of at most 96 bytes. A
//! connection with bytes or acknowledgements on their way also has an entry in a side table, until these have arrived.
//!
//! The caller gives every packet to [`Table::receive`], calls [`Table::poll`] at the end of each of its turns and when
//! [`Table::next_us`] is due, and sends what both give to its [`Device`]. Packets begin with their IP header. A caller that finds connections
//! by itself may keep idle ones in [`PARKED_BYTES`] each.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod account;
mod acknowledgement;
mod api;
mod config;
mod congestion;
mod cookie;
mod counters;
mod ending;
mod expiry;
mod handshake;
mod incoming_data;
mod input;
mod orphans;
mod output;
mod packet;
mod parked;
mod path_mtu;
pub mod planted;
mod rack;
mod reassembly;
mod row;
mod rtt;
mod scoreboard;
mod send_buffer;
mod sequence;
mod side_table;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
mod siphash;
mod table;
mod timers;
mod transfer;

#[cfg(test)]
mod tests;

pub use account::{Account, Part};
pub use api::{Readiness, Received, Sent};
pub use config::{Checksums, Config, KeepAlive};
pub use counters::Counters;
pub use packet::{
    End, Head, Options, Packet, Refusal, Sacks, Segment, TooBig, flag, header_bytes, parse, write,
};
pub use parked::{PARKED_BYTES, Parked};
pub use row::{Conn, Failure, ROW_BYTES, State};
pub use siphash::Secret;
pub use table::{Device, Table};
