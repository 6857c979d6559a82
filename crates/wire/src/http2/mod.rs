//! The codec of HTTP/2 for servers (RFC 9113, RFC 7541, RFC 8441), sans-io.
//!
//! * [`Connection`] is the state of a connection. [`Connection::receive`] reads frames and gives [`Event`]s.
//! * A request is given as the bytes of a head of HTTP/1.1, and an answer is taken as such (`request.rs`, `response.rs`). So both versions have
//!   one parser of heads, one judge and one set of handlers.
//! * [`hpack`] compresses fields. [`frame`] has the headers of frames.
//! * [`Limits`] are what a client may do, and [`Violation`] is what it did wrong.
//!
//! Invariants: no bytes of a client cause a panic, and nothing is buffered here except a dynamic table of HPACK at the start. The memory
//! of a connection grows only with its streams. Deliberately absent: server push, priorities (they are read and ignored), and the role
//! of the client.

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
