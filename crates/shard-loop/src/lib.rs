//! The thread of a shard: its event loop ([`ShardLoop`]), and the implementation of the broker's [`Io`](crore_broker::Io) with sockets (`shard_io.rs`).
//!
//! The broker's generic code is compiled in this crate, in one codegen unit so that the code runs fast. The crate is separate so that the server
//! compiles quickly: the server calls only [`new_loop`] and [`run_loop`], which are not generic.

mod appender;
mod client_log;
pub mod counters;
mod letters;
mod shard_io;
mod shard_loop;
mod tls;

use crore_net::kernel::Kernel;

pub use appender::{Appender, Engine};
pub use letters::{ControlLetter, Letter};
pub use shard_io::{AskBackend, AskVerifier};
pub use shard_loop::{ShardLoop, ShardStart};
pub use tls::{FailureCounts, FailureLog, Tls};

/// Makes the loop of a shard, in its thread, over the sockets that the thread has opened.
pub fn new_loop(start: ShardStart, sockets: Kernel) -> ShardLoop<Kernel> {
    ShardLoop::new(start, sockets)
}

/// Runs the loop until the process ends.
pub fn run_loop(shard: ShardLoop<Kernel>) -> ! {
    shard.run()
}
