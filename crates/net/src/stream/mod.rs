//! TLS for the connections of a shard. Connections with and without TLS share a port, and the first byte tells them apart. Each call gets
//! the [`Transport`](crate::Transport) that carries the bytes.
//!
//! `rustls` does the handshakes. After its handshake, a connection needs only two secrets and two counts (80 or 112 bytes, `keys`), and 4
//! bytes in a table by link (`table`). This module encrypts ("seals") and decrypts ("opens") its records (`record`). A connection without
//! TLS takes one bit until its first bytes arrive.
//!
//! Invariants:
//! * After the handshake, a connection holds only the bytes of one record that has arrived in part, and of one sealed record that the
//!   socket has taken in part. Both are counted and limited.
//! * The rest of a sealed record is sent before anything else is sealed. Until then the last byte of its content is reported as not taken,
//!   so that the sender tries again; that byte is not sealed a second time.
//! * Handshakes get a share of the time of each turn (round of the shard's loop), and the addresses of the clients share it fairly
//!   (`ready`). When there are too many handshakes, the oldest one is ended.
//!
//! If a handshake takes too long, the broker's first deadline for the connection ends it.

mod cache;
mod cipher;
mod config;

mod handshake;
mod handshakes;
mod keys;
mod messages;
mod proxy_header;
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
pub use state::{Limits, PlainReceived, StreamState, TlsStreams};
pub use stats::{Stats, TlsFailure, Usage};
