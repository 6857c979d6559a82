//! How bytes move: sockets, readiness, descriptor tables, mail between threads, and the few
//! questions that a server asks its kernel.
//!
//! This crate knows nothing of HTTP, topics or shards, and it is the only one of the server that may
//! contain `unsafe`. It decides nothing: no retries beyond `EINTR`, no timeouts, no buffers of its own.
//!
//! Invariants:
//! * An [`Fd`] is a number in the descriptor table of the thread that made it. Each shard thread has a
//!   table of its own ([`fd_table::part`]), so the same number means another socket elsewhere. What owns
//!   a descriptor ([`Driver`], [`Listener`], [`Reserve`]) is therefore `!Send`. The one exception is the
//!   eventfd of a mailbox, which keeps its number in every table.
//! * Nothing here blocks, but [`Driver::wait`] and [`signal::Signals::wait`].
//! * Bytes and failures of the network come back as values; nothing that a peer does panics.

#[cfg(not(target_os = "linux"))]
compile_error!("crore-net is written for Linux: epoll, eventfd, close_range");

pub mod affinity;
pub mod clock;
pub mod driver;
pub mod entrance;
pub mod fd_table;
pub mod listener;
pub mod mailbox;
pub mod memory;
pub mod signal;
pub mod socket;
pub mod steering;
pub mod stream;

mod address;
mod sys;

pub use driver::{Driver, Event};
pub use entrance::{Arrival, Entrance};
pub use listener::{Accepted, Listener, Reserve, Shed, SocketOptions};
pub use mailbox::{Inbox, Sender, mailbox};
pub use socket::{Received, Sent};

/// A descriptor: a number in the table of the thread that made it, and meaningless elsewhere.
///
/// It is `Copy` and owns nothing: whoever keeps a connection's row closes it, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fd(pub u32);
