//! The names of channels, and what their prefixes mean.

/// The maximum bytes of the name of a channel, as Pusher documents it.
pub const CHANNEL_BYTES_MAX: usize = 164;

/// What the prefix of a channel's name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelKind {
    /// A subscription needs a signature.
    pub is_private: bool,
    /// A subscription has a user, and the subscribers are told of each other. Such a channel is private too.
    pub is_presence: bool,
    /// The publisher encrypts the events. The server cannot read them, and clients must not publish.
    pub is_encrypted: bool,
    /// The last event is kept, and a new subscriber gets it.
    pub is_cache: bool,
}

impl ChannelKind {
    /// The kind of the channel with this name.
    pub fn of(name: &str) -> ChannelKind {
        let after = |prefix| name.strip_prefix(prefix);
        let (is_private, is_presence, is_encrypted, rest) = if let Some(rest) = after("presence-") {
            (true, true, false, rest)
        } else if let Some(rest) = after("private-encrypted-") {
            (true, false, true, rest)
        } else if let Some(rest) = after("private-") {
            (true, false, false, rest)
        } else {
            (false, false, false, name)
        };
        ChannelKind {
            is_private,
            is_presence,
            is_encrypted,
            is_cache: rest.starts_with("cache-"),
        }
    }
}

/// Whether this is a valid name of a channel: letters, digits and `_-=@,.;`, at most [`CHANNEL_BYTES_MAX`].
pub fn is_channel_name(name: &str) -> bool {
    (1..=CHANNEL_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-=@,.;".contains(&byte))
}

/// Whether this has the form of a socket id: two numbers, with a dot between them.
pub fn is_socket_id(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('.')
        .is_some_and(|(first, second)| is_number(first) && is_number(second))
}
