//! The thread of a shard: its event loop ([`ShardLoop`]), and the broker's [`Io`](crore_broker::Io) over the thread's transport (`links.rs`).
//!
//! This is a crate, and not a folder of the server, because the broker's generic code is compiled here. The crate has one codegen unit, for
//! speed, and the rest of the server is compiled quickly. So callers use [`begin`] and [`run`], which are not generic.

mod appender;
mod client_log;
pub mod counters;
mod letters;
mod links;
mod shard_loop;
mod tls;

use crore_net::kernel::Kernel;

pub use appender::{Appender, Engine};
pub use letters::{Letter, Reported};
pub use links::Questions;
pub use shard_loop::{ShardLoop, Start};
pub use tls::{FailureLog, Reasons, Tls};

/// Makes the loop of a shard, in its thread, over the sockets that the thread has opened.
pub fn begin(start: Start, sockets: Kernel) -> ShardLoop<Kernel> {
    ShardLoop::new(start, sockets)
}

/// Runs turns until the process ends.
pub fn run(shard: ShardLoop<Kernel>) -> ! {
    shard.run()
}
