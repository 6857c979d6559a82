//! The settings that the shards decide by. A setting is one documented field with attributes: its name, type, default (`default`), range
//! (`schemars(range)`) and help; `x-zero` says what 0 stands for besides the range, `x-changes = "restart"` that a running server keeps the value
//! that it has, `x-flag` the flag of `crore serve`, `x-share` what one address may have of a limit, or why that has no shares
//! (`docs/internals/MEMORY.md` has the table). A field without `default` begins at 0, `false` or empty.
//!
//! The server makes its parser, its checks, its flags, `docs/SETTINGS.md`, the example file and the JSON Schema from these rows
//! (`server/settings/schema.rs`); the sections that no shard knows stand there.
//!
//! Plain data: nothing here parses a file or touches the host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bounds;
mod connection;
mod http;
mod limits;
mod mqtt;
mod publish;
pub mod rights;
mod rule;

pub use bounds::{MAX_MESSAGE_BYTES, MAX_TOPIC_BYTES};
pub use connection::{Deflate, Drain, Heartbeat, Timeouts};
pub use http::Http;
pub use limits::Limits;
pub use mqtt::Mqtt;
pub use publish::{Interest, Publishing};
pub use rule::{Concurrency, First, Keep, Rule, Slow};
