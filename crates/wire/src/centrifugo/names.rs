//! The names of channels, and the topics that they stand for.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// How the name of a channel becomes the name of its topic. The same exchange leads back, so no two channels have one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelNames {
    /// Both are the same.
    #[default]
    Same,
    /// `:` in the one stands for `/` in the other, and `/` for `:`.
    ColonForSlash,
}

impl ChannelNames {
    /// The topic of a channel, or the channel of a topic.
    pub fn exchange(self, name: &str) -> Cow<'_, str> {
        match self.changes(name.as_bytes()) {
            true => Cow::Owned(name.chars().map(exchange_char).collect::<String>()),
            false => Cow::Borrowed(name),
        }
    }

    /// As [`ChannelNames::exchange`], for a name as bytes.
    pub fn exchange_bytes(self, name: &[u8]) -> Cow<'_, [u8]> {
        match self.changes(name) {
            true => Cow::Owned(name.iter().copied().map(exchange_byte).collect::<Vec<u8>>()),
            false => Cow::Borrowed(name),
        }
    }

    /// Whether the other name differs from this one.
    pub(super) fn changes(self, name: &[u8]) -> bool {
        self == ChannelNames::ColonForSlash && memchr::memchr2(b':', b'/', name).is_some()
    }
}

/// Both characters are ASCII, so UTF-8 stays UTF-8.
pub(super) fn exchange_byte(byte: u8) -> u8 {
    match byte {
        b':' => b'/',
        b'/' => b':',
        byte => byte,
    }
}

fn exchange_char(character: char) -> char {
    match character {
        ':' => '/',
        '/' => ':',
        character => character,
    }
}
