//! Names for the operator's log: of each kind, the first site, packet or topic that was met since the operator last asked.
//!
//! Invariant: however often it happens, one name of each kind is made, and kept until it is taken.

use alloc::string::String;
use alloc::vec::Vec;

/// Longest name, in bytes: the client chooses the name.
const NAME_BYTES_MAX: usize = 100;
/// Longest refusal, in characters: it may show a value of the client's.
const WORDS_MAX: usize = 400;

/// A kind of trouble that an operator is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A `Host` that is not the loopback, where only the loopback is answered.
    Host,
    /// An `Origin` that may not do what it asked for.
    Origin,
    /// An `Origin` whose pages may not read the answer that was sent.
    Reader,
    /// The path of an upgrade to WebSocket where there is none.
    Upgrade,
    /// A packet of an MQTT client that was refused, for another reason than its rights.
    Mqtt,
    /// A topic whose log no longer had what its subscriber was to get.
    ShortLog,
    /// The words in which an event stream or a WebSocket was refused.
    Stream,
    /// A path, topic or filter that a client had no right to, with its user.
    Denied,
    /// A topic to which a publish was refused, since there was no room for its idempotency key.
    Keys,
    /// An MQTT client whose session ends with its connection, although it asked for another one.
    ShortSession,
}

/// The names that are kept.
#[derive(Debug, Default)]
pub(crate) struct Notices(Vec<(Notice, String)>);

impl Notices {
    /// This one was met.
    pub fn met(&mut self, kind: Notice, name: &[u8]) {
        self.met_since(kind, "", name);
    }

    /// Whether one of this kind waits to be taken.
    pub fn has(&self, kind: Notice) -> bool {
        self.0.iter().any(|(met, _)| *met == kind)
    }

    /// The same; the kept name begins with the reason.
    pub fn met_since(&mut self, kind: Notice, reason: &str, name: &[u8]) {
        if !self.has(kind) {
            let plain = name.escape_ascii().take(NAME_BYTES_MAX).map(char::from);
            self.0.push((kind, reason.chars().chain(plain).collect()));
        }
    }

    /// A client was refused in these words.
    pub fn said(&mut self, kind: Notice, words: &str) {
        if !self.has(kind) {
            let plain = words.chars().take(WORDS_MAX).map(|c| match c {
                ' '..='~' => c,
                _ => '?',
            });
            self.0.push((kind, plain.collect()));
        }
    }

    /// Takes the kept name; the next one that is met sets another.
    pub fn take(&mut self, kind: Notice) -> Option<String> {
        let place = self.0.iter().position(|(met, _)| *met == kind)?;
        Some(self.0.swap_remove(place).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_kept_until_it_is_taken() {
        let mut notices = Notices::default();
        notices.met(Notice::Host, b"a.example");
        notices.met(Notice::Host, b"b.example");
        notices.met(Notice::Origin, b"null");
        assert_eq!(notices.take(Notice::Host).as_deref(), Some("a.example"));
        assert_eq!(notices.take(Notice::Host), None);
        notices.met(Notice::Host, b"c.example");
        assert_eq!(notices.take(Notice::Host).as_deref(), Some("c.example"));
        assert_eq!(notices.take(Notice::Origin).as_deref(), Some("null"));
        notices.met_since(Notice::Mqtt, "too long: ", b"a\x85");
        let kept = notices.take(Notice::Mqtt);
        assert_eq!(kept.as_deref(), Some(r"too long: a\x85"));
        notices.said(Notice::Stream, "no 'a'\u{202e}\r\n");
        assert_eq!(notices.take(Notice::Stream).as_deref(), Some("no 'a'???"));
    }

    #[test]
    fn a_name_is_short_and_steers_nobody_s_terminal() {
        let mut notices = Notices::default();
        notices.met(Notice::Origin, b"\x1b[2J\xe2\x80\xae\r\n");
        let name = notices.take(Notice::Origin);
        assert_eq!(name.as_deref(), Some(r"\x1b[2J\xe2\x80\xae\r\n"));
        notices.met(Notice::Origin, &[0xff; 8_000]);
        assert_eq!(notices.take(Notice::Origin).unwrap().len(), 100);
    }
}
