//! How a client broke the protocol or a limit, each with its error code.

use super::hpack;

/// The error codes of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error: the planned end of a connection, or a request whose rest is not needed.
    NoError = 0,
    /// The protocol was broken in a way that no other code tells.
    Protocol = 1,
    /// A fault of this side.
    Internal = 2,
    /// More data than the window allows.
    FlowControl = 3,
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout = 4,
    /// A frame of a stream that has ended.
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

/// What a client did wrong. [`is_of_stream`](Violation::is_of_stream) tells whether it costs the stream or the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum Violation {
    /// Other bytes than the preface at the start of the connection.
    Preface,
    /// Another first frame than SETTINGS.
    FirstFrame,
    /// A payload over the limit of this server.
    FrameTooLong,
    /// A payload whose length does not fit the type of the frame.
    FrameLength,
    /// A frame of a stream on stream 0, or of the connection on another stream.
    WrongStream,
    /// A stream number that only servers may use.
    ServerStream,
    /// A frame of a stream that was not opened.
    IdleStream,
    /// A stream number below that of an earlier stream, or of a stream that has ended.
    StreamReused,
    /// Padding that is longer than its frame.
    Padding,
    /// PUSH_PROMISE.
    PushPromise,
    /// CONTINUATION without HEADERS.
    NothingToContinue,
    /// Another frame within a field block.
    BlockInterrupted,
    /// A field block over the limit, encoded or decoded.
    BlockTooLong,
    /// A field block in more frames than the limit.
    Continuations,
    /// A field block that cannot be decoded.
    Compression,
    /// A size of the dynamic table over the limit.
    TableSize,
    /// A value that a parameter of SETTINGS must not have.
    SettingValue,
    /// An initial window over 2^31 - 1.
    InitialWindow,
    /// More parameters in one frame of SETTINGS than the limit.
    ManySettings,
    /// A window of the connection over 2^31 - 1.
    WindowOverflow,
    /// A window update of the connection by 0.
    EmptyUpdate,
    /// More data than the window of the connection.
    WindowExceeded,
    /// A stream whose priority depends on the stream itself.
    SelfDependency,
    /// Streams are opened and reset too often.
    ResetFlood,
    /// Too many frames of SETTINGS.
    SettingsFlood,
    /// Too many frames of PING.
    PingFlood,
    /// Too many frames that do nothing.
    EmptyFlood,
    /// Too many frames that bring a few bytes to one body after another.
    SmallFlood,
    /// Too many window updates.
    UpdateFlood,

    /// More streams at a time than the limit.
    Streams,
    /// A frame of a stream after its end.
    StreamClosed,
    /// More data than the window of the stream.
    StreamWindowExceeded,
    /// A window of the stream over 2^31 - 1.
    StreamWindowOverflow,
    /// A window update of the stream by 0.
    StreamEmptyUpdate,
    /// Fewer or more bytes of the body than `content-length`.
    BodyLength,
    /// Trailer fields before the end of the body, or with a pseudo-header field.
    Trailers,
    /// A pseudo-header field that is missing, repeated, unknown, empty or behind other fields.
    PseudoHeader,
    /// A field name that is empty, has upper case, or is no token.
    FieldName,
    /// A field value with a control character, or with whitespace at an end.
    FieldValue,
    /// A field about the connection, which HTTP/2 does not have.
    ConnectionField,
    /// Different hosts in `:authority` and `host`.
    Hosts,
    /// A `content-length` that is no number, is repeated, or belongs to a request without a body.
    ContentLength,
}

impl Violation {
    /// Whether only the stream must end. All others end the connection.
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

    /// The name for metrics, logs and GOAWAY: the variant in snake case.
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

/// What ends because of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Connection(Violation),
    /// The stream with this number. It may have no row.
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
