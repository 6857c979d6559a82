//! The settings that the broker uses. A setting is a field with attributes: its name, type, default (`default`), range
//! (`schemars(range)`), and its doc comment as help. Without `default` it is 0, `false` or empty. Further attributes:
//!
//! * `x-zero`: the meaning of 0, if 0 is allowed besides the range.
//! * `x-changes = "restart"`: a change takes effect only at a restart.
//! * `x-flag`: the flag of `crore serve`.
//! * `x-share`: the share of a limit that one address may have, or the reason why there are no shares (`docs/internals/MEMORY.md` has
//!   the table).
//!
//! The server generates its parser, checks, flags, `docs/SETTINGS.md`, the example file and the JSON Schema from these fields
//! (`server/src/settings/schema.rs`). The sections that the broker does not use are in the server.
//!
//! This is plain data: nothing here reads a file or depends on the host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bounds;
mod centrifugo;
mod client_filter;
mod connection;
mod http;
mod limits;
mod mqtt;
mod publish;
mod pusher;
pub mod rights;
mod rule;

pub use bounds::{MAX_MESSAGE_BYTES, MAX_TOPIC_BYTES};
pub use centrifugo::Centrifugo;
pub use client_filter::ClientFilter;
pub use connection::{Deflate, Drain, Heartbeat, Timeouts};
pub use http::Http;
pub use limits::Limits;
pub use mqtt::Mqtt;
pub use publish::{Interest, Presence, Publishing};
pub use pusher::Pusher;
pub use rule::{Concurrency, RetentionMode, Rule, SlowConsumerPolicy, StartPosition};
