//! The ways in which a client can violate the protocol or a limit, with their error codes.

use super::hpack;

/// The error codes of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error: a planned end of the connection, or a request whose remaining body is not needed.
    NoError = 0,
    /// A violation for which there is no other code.
    Protocol = 1,
    /// An internal error of this side.
    Internal = 2,
    /// More data than the window allows.
    FlowControl = 3,
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout = 4,
    /// A frame for a stream that has ended.
    StreamClosed = 5,
    /// A frame whose length does not fit its type.
    FrameSize = 6,
    /// The stream was not processed; the client may send the request again.
    RefusedStream = 7,
    /// The stream is not needed any more.
    Cancel = 8,
    /// A field block that cannot be decoded.
    Compression = 9,
    /// The tunnel of a CONNECT was broken.
    Connect = 10,
    /// The peer causes too much work.
    EnhanceYourCalm = 11,
    /// TLS is too weak.
    InadequateSecurity = 12,
    /// The request must be sent over HTTP/1.1.
    Http11Required = 13,
}

/// How a client violated the protocol or a limit. [`is_of_stream`](Violation::is_of_stream) tells whether the stream or the connection must
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum Violation {
    /// The connection does not begin with the preface.
    Preface,
    /// The first frame is not SETTINGS.
    FirstFrame,
    /// A payload over the limit of this server.
    FrameTooLong,
    /// A payload length that is not allowed for the type of the frame.
    FrameLength,
    /// A stream's frame on stream 0, or a frame of the connection on another stream.
    WrongStream,
    /// A stream number that is reserved for servers.
    ServerStream,
    /// A frame for a stream that was never opened.
    IdleStream,
    /// HEADERS whose stream number was used before, or is below a number that was used.
    StreamReused,
    /// Padding longer than its frame.
    Padding,
    /// PUSH_PROMISE.
    PushPromise,
    /// CONTINUATION without HEADERS.
    NothingToContinue,
    /// Another frame inside a field block.
    BlockInterrupted,
    /// A field block over the limit, encoded or decoded.
    BlockTooLong,
    /// A field block in more frames than the limit.
    Continuations,
    /// A field block that cannot be decoded.
    Compression,
    /// A dynamic table size over the limit.
    TableSize,
    /// A forbidden value of a SETTINGS parameter.
    SettingValue,
    /// An initial window over 2^31 - 1.
    InitialWindow,
    /// More parameters in a SETTINGS frame than the limit.
    ManySettings,
    /// A window of the connection over 2^31 - 1.
    WindowOverflow,
    /// A window update of the connection with the increment 0.
    EmptyUpdate,
    /// More data than the connection's window allows.
    WindowExceeded,
    /// A stream whose priority depends on the stream itself.
    SelfDependency,
    /// The client resets streams too often, or makes the server reset them.
    ResetFlood,
    /// Too many SETTINGS frames.
    SettingsFlood,
    /// Too many PING frames.
    PingFlood,
    /// Too many frames without an effect.
    EmptyFlood,
    /// Too many small DATA frames that alternate between streams.
    SmallFlood,
    /// Too many window updates.
    UpdateFlood,

    /// More concurrent streams than the limit.
    Streams,
    /// A frame for a stream after its end.
    StreamClosed,
    /// More data than the stream's window allows.
    StreamWindowExceeded,
    /// A window of the stream over 2^31 - 1.
    StreamWindowOverflow,
    /// A window update of the stream with the increment 0.
    StreamEmptyUpdate,
    /// A body that is shorter or longer than its `content-length`.
    BodyLength,
    /// Trailer fields without END_STREAM, or with a pseudo-header field.
    Trailers,
    /// A pseudo-header field that is missing, repeated, unknown, invalid or after other fields.
    PseudoHeader,
    /// A field name that is empty, contains upper case, or is no token.
    FieldName,
    /// A field value with a control character, or with whitespace at either end.
    FieldValue,
    /// A connection-specific field of HTTP/1.1, which HTTP/2 forbids.
    ConnectionField,
    /// `:authority` and `host` differ.
    Hosts,
    /// A `content-length` that is no number, is repeated, or belongs to a CONNECT.
    ContentLength,
}

impl Violation {
    /// Whether only the stream must end. All other violations end the connection.
    pub const fn is_of_stream(self) -> bool {
        self as u8 >= Violation::Streams as u8
    }

    /// The error code for RST_STREAM or GOAWAY.
    pub const fn code(self) -> ErrorCode {
        match self {
            Violation::FrameTooLong | Violation::FrameLength => ErrorCode::FrameSize,
            Violation::StreamReused | Violation::StreamClosed => ErrorCode::StreamClosed,
            Violation::Compression | Violation::TableSize => ErrorCode::Compression,
            Violation::InitialWindow
            | Violation::WindowOverflow
            | Violation::WindowExceeded
            | Violation::StreamWindowExceeded
            | Violation::StreamWindowOverflow => ErrorCode::FlowControl,
            Violation::Streams => ErrorCode::RefusedStream,
            Violation::BlockTooLong
            | Violation::Continuations
            | Violation::ManySettings
            | Violation::ResetFlood
            | Violation::SettingsFlood
            | Violation::PingFlood
            | Violation::EmptyFlood
            | Violation::SmallFlood
            | Violation::UpdateFlood => ErrorCode::EnhanceYourCalm,
            _ => ErrorCode::Protocol,
        }
    }

    /// The name for metrics, logs and GOAWAY: the variant's name in snake case.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl From<hpack::Error> for Violation {
    fn from(error: hpack::Error) -> Violation {
        match error {
            hpack::Error::TableSize => Violation::TableSize,
            hpack::Error::TooLong => Violation::BlockTooLong,
            _ => Violation::Compression,
        }
    }
}

/// What must end because of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Connection(Violation),
    /// The stream with this number. It may be unknown here.
    Stream(u32, Violation),
}

impl From<Violation> for Fault {
    fn from(violation: Violation) -> Fault {
        debug_assert!(!violation.is_of_stream(), "{violation:?}");
        Fault::Connection(violation)
    }
}

impl From<hpack::Error> for Fault {
    fn from(error: hpack::Error) -> Fault {
        Violation::from(error).into()
    }
}
