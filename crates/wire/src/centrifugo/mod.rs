//! The protocol of Centrifugo's clients (`client.proto`): reads the commands of a frame, and writes replies and pushes. Each of them exists
//! as JSON and as protobuf ([`Format`]), and means the same in both.
//!
//! | form | a frame is |
//! |---|---|
//! | JSON | one object a line, with `\n` between them |
//! | protobuf | messages, each behind its length as a varint |
//!
//! Invariants: one table of fields (`schema.rs`) for what clients send, and one function for each message that they get (`reply.rs`), serve both
//! forms. Unknown fields are ignored, as in Centrifugo. Each malformed input has its [`Error`], and the work is linear in the length of a
//! frame. The bytes of a push say nothing of the connection or the subscriber, so that they are written once and sent to many.
//!
//! **Data in JSON** is a JSON value, written as it is, between the fields around it. There is no form for other bytes: Centrifugo ends the
//! connection with [`Disconnect::INAPPROPRIATE_PROTOCOL`](codes::Disconnect::INAPPROPRIATE_PROTOCOL) when a client of JSON would get them, and
//! [`encode`] returns [`NotJson`] for that. A line end within the value is left out, since it would end the object; it can only be
//! white space there. Subscribers with `delta: "fossil"` get each message as a JSON *string* ([`Payload::Text`]): the JSON text of the message or a
//! delta of two such texts.

pub mod codes;
mod command;
pub mod decode;
pub mod encode;
mod error;
mod format;
pub mod fossil;
mod protobuf;
mod raw;
mod read_json;
mod read_protobuf;
mod reply;
mod schema;
mod write;

pub use command::{
    Command, Connect, Emulation, Headers, History, Position, Publish, Request, SubRefresh, Subs,
    Subscribe,
};
pub use decode::{Commands, Limits, Scratch};
pub use error::Error;
pub use format::Format;
pub use reply::{
    Answer, ClientInfo, ConnectResult, ErrorReply, HistoryResult, Publication, Push, Reply,
    SubscribeResult, Ttl,
};
pub use write::{NotJson, Payload};
