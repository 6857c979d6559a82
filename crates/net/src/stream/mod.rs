//! Connections with TLS, beside those without, on the same port: the first byte tells them apart. Their bytes are moved by
//! a [`Transport`](crate::Transport), which each call is given.
//!
//! `rustls` does the handshakes. Afterwards a connection needs only two secrets and two counts (80 or 112 bytes, `keys`)
//! and 4 bytes by link (`table`); from then on records are sealed and opened here (`record`). A connection without TLS takes one
//! bit, until its first bytes.
//!
//! Invariants:
//! * After the handshake, bytes of a connection are held only while they are under way: a record that has come in part, and
//!   one whose sealed form the socket has refused in part. Both are counted and bounded.
//! * Sealed bytes go out before anything else is sealed. Until they are out their last byte counts as not taken, so that
//!   the sender comes back for it; that byte is then not sealed again.
//! * Handshakes have a share of each turn, in time, in which the addresses of their clients take turns (`due`). Past the
//!   limit of handshakes under way, the oldest ends.
//!
//! Deliberately not here: how long a handshake may take (the broker's first deadline ends it).

mod cache;
mod cipher;
mod config;
mod early;
mod handshake;
mod keys;
mod out;
mod preface;
mod ready;
mod receive;
mod record;
mod state;
mod stats;
mod table;
mod words;

pub use config::{Clients, Error as ConfigError, Handle, Source};
pub use receive::BUFFER_MIN;
pub use state::{Limits, Streams, Taken, Then};
pub use stats::{Stats, Trouble, Usage};
pub use words::{of_alert, words};
