//! The codec of HTTP/2 for servers (RFC 9113, RFC 7541, RFC 8441). It does no I/O.
//!
//! * [`Connection`] is the state of a connection. [`Connection::receive`] reads frames and returns [`Event`]s.
//! * Requests are returned and responses are accepted as heads in the form of HTTP/1.1 (`request.rs`, `response.rs`). So both versions
//!   share the parser of heads, the checks and the handlers.
//! * [`hpack`] compresses fields. [`frame`] contains the frame headers.
//! * [`Limits`] says what a client may do. [`Violation`] says what a client did wrong.
//!
//! Invariants: no bytes of a client cause a panic. Except for a dynamic table of HPACK, nothing is buffered here, and the memory of a
//! connection grows only with its streams. Deliberately not here: server push, priorities (they are read and ignored), and the client side.

mod connection;
mod data;
mod event;
mod fields;
mod flow;
pub mod frame;
pub mod hpack;
mod limits;
mod receive;
mod refusal;
mod request;
mod response;
mod send;
mod streams;
mod violation;

pub use connection::Connection;
pub use event::{Event, Received, Scratch};
pub use limits::{Limits, PERIOD_S};
pub use receive::bytes_kept;
pub use refusal::{is_preface, refuse};
pub use streams::NO_SLOT;
pub use violation::{ErrorCode, Violation};
