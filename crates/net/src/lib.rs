//! The server's access to the operating system: connections behind one trait ([`Transport`]), which kernel sockets
//! ([`kernel`]) and our own TCP ([`xdp`]) implement and TLS uses ([`stream`]); mailboxes between threads; the allocator ([`memory`]); clocks, signals and cores.
//!
//! This crate knows nothing of HTTP, topics or the broker. Of the server's crates, only this one may contain `unsafe`. It makes three
//! decisions itself: which connections are refused when there is no room ([`kernel::acceptor`]), in which order TLS handshakes get their
//! share of a shard's time ([`stream`]), and how much freed memory is kept for large messages ([`memory::PoolAllocator`]). It buffers bytes
//! only for TLS.
//!
//! Invariants:
//! * Only code below [`Transport`] uses descriptors. An [`Fd`] is a number in the descriptor table of the thread that made it; only the
//!   eventfd of a mailbox has the same number in every table.
//! * Only [`Transport::wait`] and [`signal::Signals::wait`] block.
//! * Failures of the network are returned as values. Nothing that a peer does causes a panic.

#[cfg(not(target_os = "linux"))]
compile_error!("crore-net is written for Linux: epoll, eventfd, close_range");

pub mod affinity;
pub mod clock;
pub mod der;
pub mod kernel;
pub mod mailbox;
pub mod memory;
pub mod pem;
pub mod signal;
pub mod stream;
pub mod transport;
pub mod xdp;

mod sys;

pub use mailbox::{Inbox, Sender, mailbox};
pub use sys::{Fd, check, set_option};
pub use transport::Transport;
