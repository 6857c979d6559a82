//! The two formats of the protocol.

/// The format of all frames of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Text, with one object on each line.
    Json,
    /// Binary messages, each after its length.
    Protobuf,
}
