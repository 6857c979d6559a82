//! The Pusher Channels protocol, version 7: reads the events of clients, and writes those of the server. Each event is a JSON object in a text frame.
//!
//! Invariants: an event that is read has valid JSON and valid UTF-8. An event that is written is valid JSON if its parts are.
//!
//! Deliberately not here: signatures, which need a secret, and limits of lengths, which are settings.

mod channel;
mod codes;
mod read;
mod write;

pub use channel::{CHANNEL_BYTES_MAX, ChannelKind, is_channel_name, is_socket_id};
pub use codes::ErrorCode;
pub use read::{Data, Error, Request, User};
pub use write::{EventData, write_event};
