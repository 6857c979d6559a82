//! The thread of a shard: its event loop (`ShardLoop`), and the implementation of the broker's [`Io`](crore_broker::Io) with sockets (`shard_io.rs`).
//!
//! The broker's generic code is compiled in this crate, in one codegen unit so that the code runs fast. The crate is separate so that the server
//! compiles quickly: the server calls only [`new_loop`] and [`new_xdp_loop`], which are not generic. Each has a copy of the code of its own, so that
//! kernel sockets do not pay for the choice.

mod appender;
mod client_log;
pub mod counters;
mod letters;
mod shard_io;
mod shard_loop;
mod tls;

use crore_net::kernel::Kernel;
use crore_net::xdp::XdpTransport;
use shard_loop::ShardLoop;

pub use appender::{Appender, Engine};
pub use letters::{ControlLetter, Letter};
pub use shard_io::{AskBackend, AskVerifier};
pub use shard_loop::{Run, ShardStart};
pub use tls::{FailureCounts, FailureLog, Tls};

/// Makes the loop of a shard, in its thread, over the sockets that the thread has opened.
pub fn new_loop(start: ShardStart, sockets: Kernel) -> Box<dyn Run> {
    Box::new(ShardLoop::new(start, sockets))
}

/// Makes the loop of a shard that has connections over `AF_XDP` beside sockets.
pub fn new_xdp_loop(start: ShardStart, sockets: XdpTransport) -> Box<dyn Run> {
    Box::new(ShardLoop::new(start, sockets))
}
