//! The codes of errors and of close frames, as Pusher documents them.

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal, $meaning:literal;)*) => {
        impl ErrorCode {
            $(#[doc = $meaning] pub const $name: Self = Self { code: $code, text: $text, meaning: $meaning };)*

            /// All codes, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

/// Why the server refuses an event, or ends a connection. Clients do not reconnect after 4000 to 4099, reconnect later after 4100 to 4199, and at once
/// after 4200 to 4299. The connection continues after 4300 to 4399.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{code}: {text}")]
pub struct ErrorCode {
    /// The number.
    pub code: u16,
    /// The text for clients.
    pub text: &'static str,
    /// The meaning, for the documentation.
    pub meaning: &'static str,
}

codes! {
    NO_APP = 4001, "Application does not exist", "No app has the key in the path.";
    NO_PATH = 4005, "Path not found", "The path below the key does not exist.";
    BAD_VERSION = 4006, "Invalid version string format", "The version of the protocol is no number.";
    VERSION = 4007, "Unsupported protocol version", "The client speaks another version of the protocol than 5 to 7.";
    NO_VERSION = 4008, "No protocol version supplied", "The request does not name the version of the protocol.";
    UNAUTHORIZED = 4009, "Connection is unauthorized", "A signature is missing or wrong, or the server's API has ended the connections of the user.";
    OVER_CAPACITY = 4100, "Over capacity", "The server has no room. The client connects again later.";
    RECONNECT = 4200, "Generic reconnect immediately", "The server stops or restarts. The client connects again at once.";
    NO_PONG = 4201, "Pong reply not received", "The client did not answer a ping.";
    CLIENT_EVENT = 4301, "Client event rejected", "A client event is not allowed here, or too many come.";
}
