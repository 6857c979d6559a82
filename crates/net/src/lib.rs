//! How bytes move: connections behind one contract ([`Transport`]), with kernel sockets below it ([`kernel`]) and TLS
//! above it ([`stream`]); mail between threads; the program's memory ([`memory`]); and the few questions that a server asks its
//! kernel.
//!
//! This crate knows nothing of HTTP, topics or shards, and it is the only one of the server that may
//! contain `unsafe`. It has three policies of its own: which connections are turned away when there is no room
//! ([`kernel::entrance`]), in which order TLS handshakes get their share of a turn ([`stream`]), and how
//! much freed memory is kept for large messages ([`memory::Pieces`]).
//! It buffers bytes only for TLS.
//!
//! Invariants:
//! * Above [`Transport`] nothing uses a descriptor. An [`Fd`] is a number in the descriptor table of the thread that made
//!   it; only the eventfd of a mailbox has the same number in every table.
//! * Nothing here blocks, but [`Transport::wait`] and [`signal::Signals::wait`].
//! * Bytes and failures of the network come back as values; nothing that a peer does panics.

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

mod sys;

pub use mailbox::{Inbox, Sender, mailbox};
pub use sys::{Fd, check, set_option};
pub use transport::Transport;
