//! The two forms of the protocol.

/// The form of all frames of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Text, one object a line.
    Json,
    /// Binary messages behind their lengths.
    Protobuf,
}
