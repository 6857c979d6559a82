//! The protocol of Centrifugo's clients (`client.proto`): reads the commands of a frame, and writes replies and pushes. All messages exist
//! as JSON and as protobuf ([`Format`]), with the same meaning.
//!
//! | format | a frame contains |
//! |---|---|
//! | JSON | one object on each line, with `\n` between them |
//! | protobuf | messages, each after its length as a varint |
//!
//! Invariants: both formats share one table of fields for client messages (`schema.rs`) and one function for each server message
//! (`reply.rs`). Unknown fields are ignored, as in Centrifugo. Each malformed input has its [`Error`], and the work is linear in the length
//! of a frame. A push about a channel contains nothing about its receiver, so it is written once and sent to many.
//!
//! **Data in JSON** is a JSON value, which is written unchanged between the fields around it. Other bytes have no form in JSON: [`encode`]
//! then returns [`NotJson`], and Centrifugo ends the connection with
//! [`Disconnect::INAPPROPRIATE_PROTOCOL`](codes::Disconnect::INAPPROPRIATE_PROTOCOL). A line end inside the value would end the object. It
//! can only be white space there, so it is omitted. Subscribers with `delta: "fossil"` get each message as a JSON *string*
//! ([`Payload::Text`]): the JSON text of the message, or a delta of two such texts.

pub mod codes;
mod command;
pub mod decode;
pub mod encode;
mod error;
mod format;
pub mod fossil;
mod names;
mod protobuf;
mod raw;
mod read_json;
mod read_protobuf;
mod reply;
mod schema;
mod write;

pub use command::{
    ClaimedData, ClaimedSub, ClaimedSubs, Command, Connect, ConnectClaims, Emulation, Headers,
    History, Position, Publish, Request, SubRefresh, Subs, Subscribe, SubscriptionClaims,
};
pub use decode::{Commands, Limits, Scratch};
pub use error::Error;
pub use format::Format;
pub use names::ChannelNames;
pub use reply::{
    Answer, ClientInfo, ConnectResult, ErrorReply, HistoryResult, Publication, Push, Reply,
    SubscribeResult, Ttl,
};
pub use write::{NotJson, Payload};
