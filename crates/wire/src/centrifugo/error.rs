//! Why a frame was refused.

use crate::json::Fault;

/// Why a frame was refused. Centrifugo ends the connection with code 3501 (bad request) for all of these errors. The text in some variants
/// is the name of a protocol field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub enum Error {
    /// An empty frame or an empty line.
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
    /// Different requests in one command.
    #[display("two requests in one command")]
    TwoRequests,
    /// A command with an id but without a known request.
    #[display("a command without a known request")]
    NoRequest,
    /// A request that needs a reply but has no id.
    #[display("a request without an id")]
    NoId,
    /// A text that is not JSON.
    #[display("not JSON: {_0}")]
    Json(Fault),
    /// A value whose type is wrong for this field.
    #[display("{_0} has a value of a wrong type")]
    WrongType(&'static str),
    /// A number that is out of range for this field.
    #[display("{_0} is not a whole number in its range")]
    BadNumber(&'static str),
    /// Text that is not UTF-8.
    #[display("{_0} is not UTF-8")]
    NotUtf8(&'static str),
    /// The bytes end inside a protobuf message.
    #[display("not protobuf: the message ends too early")]
    Truncated,
    /// A varint of more than 64 bits.
    #[display("not protobuf: a varint is too long")]
    Varint,
    /// A field number that is 0 or too large.
    #[display("not protobuf: a bad field number")]
    FieldNumber,
    /// A wire type that does not exist.
    #[display("not protobuf: a bad wire type")]
    WireType,
    /// The end of a group without a beginning.
    #[display("not protobuf: a group ends that did not begin")]
    GroupEnd,
}

impl core::error::Error for Error {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Json(fault)
    }
}
