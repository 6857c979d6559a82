//! The thread of a shard: its event loop ([`ShardLoop`]), and the implementation of the broker's [`Io`](crore_broker::Io) with sockets (`shard_io.rs`).
//!
//! This is a crate of its own because the broker's generic code is compiled here, in one codegen unit for the sake of its speed. The server can then be
//! compiled quickly. So that no generic code is compiled in the server, it uses [`begin`] and [`run`].

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
pub use shard_io::AskVerifier;
pub use shard_loop::{ShardLoop, Start};
pub use tls::{FailureCounts, FailureLog, Tls};

/// Makes the loop of a shard, in its thread, over the sockets that the thread has opened.
pub fn begin(start: Start, sockets: Kernel) -> ShardLoop<Kernel> {
    ShardLoop::new(start, sockets)
}

/// Runs turns until the process ends.
pub fn run(shard: ShardLoop<Kernel>) -> ! {
    shard.run()
}
