//! TLS. Connections with and without it share a port, and the first byte tells them apart. Each call gets the
//! [`Transport`](crate::Transport) that carries the bytes.
//!
//! `rustls` does the handshakes. Afterwards a connection needs only two secrets and two counts (80 or 112 bytes, `keys`) and 4 bytes
//! in a table by link (`table`), and this module encrypts and decrypts its records (`record`); the code calls that seal and open. A
//! connection without TLS takes one bit, until its first bytes arrive.
//!
//! Invariants:
//! * After the handshake, a connection holds only the bytes of one record that has arrived in part, and of one encrypted record that the
//!   socket has taken in part. Both are counted and limited.
//! * The rest of an encrypted record is sent before anything else is encrypted. Until then the last byte of its content is reported
//!   as not taken, so that the sender tries again; that byte is not encrypted a second time.
//! * Handshakes get a share of the time of each turn, and the addresses of their clients share it fairly (`ready`). When there are too
//!   many handshakes, the oldest is ended.
//!
//! The broker's first deadline ends a handshake that takes too long.

mod cache;
mod cipher;
mod config;
mod early;
mod handshake;
mod keys;
mod messages;
mod preface;
mod ready;
mod receive;
mod record;
mod send;
mod state;
mod stats;
mod table;

pub use config::{Clients, Error as ConfigError, Handle, Source};
pub use messages::{alert_message, message};
pub use receive::BUFFER_MIN;
pub use state::{Limits, PlainReceived, StreamState, Streams};
pub use stats::{Stats, Trouble, Usage};
