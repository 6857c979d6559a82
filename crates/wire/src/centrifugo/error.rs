//! Why a frame was refused.

use crate::json::Fault;

/// What is wrong with a frame. Centrifugo ends the connection with code 3501 (bad request) for each of them. The text is the name of a
/// field of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub enum Error {
    /// A frame or a line without anything.
    #[display("nothing where a command should be")]
    Empty,
    /// More commands than [`Limits::commands`](super::Limits::commands).
    #[display("too many commands in one frame")]
    TooManyCommands,
    /// More entries of `subs` than [`Limits::subs`](super::Limits::subs).
    #[display("too many subscriptions in one connect")]
    TooManySubs,
    /// More entries of `headers` than [`Limits::headers`](super::Limits::headers).
    #[display("too many headers in one connect")]
    TooManyHeaders,
    /// Requests of different kinds in one command.
    #[display("two requests in one command")]
    TwoRequests,
    /// A command with an id and without a request that is known.
    #[display("a command without a known request")]
    NoRequest,
    /// A request that needs an answer, without an id.
    #[display("a request without an id")]
    NoId,
    /// A text that is not JSON.
    #[display("not JSON: {_0}")]
    Json(Fault),
    /// A value of another type than this field has.
    #[display("{_0} has a value of a wrong type")]
    WrongType(&'static str),
    /// A number that this field cannot have.
    #[display("{_0} is not a whole number in its range")]
    BadNumber(&'static str),
    /// Text that is not UTF-8.
    #[display("{_0} is not UTF-8")]
    NotUtf8(&'static str),
    /// The bytes end within a message of protobuf.
    #[display("not protobuf: the message ends too early")]
    Truncated,
    /// A varint of more than 64 bits.
    #[display("not protobuf: a varint is too long")]
    Varint,
    /// A field with the number 0 or with one that is too large.
    #[display("not protobuf: a bad field number")]
    FieldNumber,
    /// A wire type that does not exist.
    #[display("not protobuf: a bad wire type")]
    WireType,
    /// The end of a group that did not begin.
    #[display("not protobuf: a group ends that did not begin")]
    GroupEnd,
}

impl core::error::Error for Error {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Json(fault)
    }
}
