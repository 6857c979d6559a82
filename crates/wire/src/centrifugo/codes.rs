//! The codes of errors, disconnects and unsubscribes, as documented by Centrifugo.

/// Defines a type of codes, with a constant for each line and a list of all constants.
macro_rules! codes {
    ($(#[$doc:meta])* $type:ident; $($name:ident = $code:literal, $text:literal, $meaning:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
        #[display("{code}: {text}")]
        pub struct $type {
            /// The number.
            pub code: u32,
            /// The text for clients.
            pub text: &'static str,
            /// The meaning, for the documentation.
            pub meaning: &'static str,
        }

        impl $type {
            $(#[doc = $meaning] pub const $name: Self = Self { code: $code, text: $text, meaning: $meaning };)*

            /// All codes, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code with this number.
            pub fn of(code: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.code == code)
            }
        }
    };
}

codes! {
    /// Why a command failed. The connection continues.
    ErrorCode;
    INTERNAL = 100, "internal server error", "Something went wrong in the server. A retry may help.";
    UNAUTHORIZED = 101, "unauthorized", "The request is not authorized.";
    UNKNOWN_CHANNEL = 102, "unknown channel", "The channel does not exist.";
    PERMISSION_DENIED = 103, "permission denied", "The client has no right to do this.";
    METHOD_NOT_FOUND = 104, "method not found", "The method does not exist.";
    ALREADY_SUBSCRIBED = 105, "already subscribed", "The client is already subscribed to this channel.";
    LIMIT_EXCEEDED = 106, "limit exceeded", "A limit is reached. The log of the server says which.";
    BAD_REQUEST = 107, "bad request", "The request is malformed, so a retry does not help.";
    NOT_AVAILABLE = 108, "not available", "The server or the channel does not have this feature, or it is off.";
    TOKEN_EXPIRED = 109, "token expired", "The token has expired; the client should ask for a new one.";
    EXPIRED = 110, "expired", "The connection has expired, without a token.";
    TOO_MANY_REQUESTS = 111, "too many requests", "The client sends too much. A later retry may help.";
    UNRECOVERABLE_POSITION = 112, "unrecoverable position", "Messages after the position are gone, or its epoch is another one.";
}

impl ErrorCode {
    /// Whether a retry of the same command may succeed.
    pub const fn temporary(self) -> bool {
        matches!(
            self,
            Self {
                code: 100 | 111,
                ..
            }
        )
    }
}

codes! {
    /// Why the server ends a connection.
    Disconnect;
    CONNECTION_CLOSED = 3000, "connection closed", "The connection was closed without a reason from the server.";
    SHUTDOWN = 3001, "shutdown", "The node is shutting down.";
    SERVER_ERROR = 3004, "internal server error", "Something went wrong in the server.";
    EXPIRED = 3005, "connection expired", "The connection has expired and was not renewed.";
    SUB_EXPIRED = 3006, "subscription expired", "A subscription has expired and was not renewed.";
    SLOW = 3008, "slow", "The client does not read its messages fast enough.";
    WRITE_ERROR = 3009, "write error", "Writing to the connection failed.";
    INSUFFICIENT_STATE = 3010, "insufficient state", "The position of the client is wrong; it recovers after it has connected again.";
    FORCE_RECONNECT = 3011, "force reconnect", "The server asks the client to connect again.";
    NO_PONG = 3012, "no pong", "The client did not answer a ping.";
    TOO_MANY_REQUESTS = 3013, "too many requests", "The client sends too many commands.";
    INVALID_TOKEN = 3500, "invalid token", "The connection token is invalid.";
    BAD_REQUEST = 3501, "bad request", "The client sent a malformed frame.";
    STALE = 3502, "stale", "The client did not authenticate in time.";
    FORCE_NO_RECONNECT = 3503, "force disconnect", "The server asks the client to stay away.";
    CONNECTION_LIMIT = 3504, "connection limit", "The limit of connections, of the user or of the node, is reached.";
    CHANNEL_LIMIT = 3505, "channel limit", "The limit of channels of a connection is reached.";
    INAPPROPRIATE_PROTOCOL = 3506, "inappropriate protocol", "A client of JSON would get data that is not JSON.";
    PERMISSION_DENIED = 3507, "permission denied", "The client has no right to connect.";
    NOT_AVAILABLE = 3508, "not available", "The server does not have what the client wants, and the message has no reply to say it in.";
    TOO_MANY_ERRORS = 3509, "too many errors", "The client causes too many errors.";
}

impl Disconnect {
    /// Whether clients reconnect after a code, which may be unknown here. The codes from 4000 to 4999 are for the backend.
    pub const fn reconnects(code: u32) -> bool {
        !matches!(code, 3500..=3999 | 4500..=4999)
    }
}

codes! {
    /// Why the server ends a subscription.
    Unsubscribe;
    SERVER = 2000, "server unsubscribe", "The server's API has ended the subscription.";
    INSUFFICIENT_STATE = 2500, "insufficient state", "The position of the client is wrong; it subscribes again and recovers.";
    EXPIRED = 2501, "subscription expired", "The subscription has expired and was not renewed.";
}

impl Unsubscribe {
    /// Whether clients subscribe again after a code, which may be unknown here.
    pub const fn resubscribes(code: u32) -> bool {
        code >= 2500
    }
}
