//! Examples of refusals and losses for the operator's log: of each kind, the first origin, packet or topic since the last report.
//!
//! Invariant: each kind has at most one example, which stays until a report takes it.

use alloc::string::String;
use alloc::vec::Vec;

/// Longest name in an example, in bytes. Clients choose names.
const NAME_BYTES_MAX: usize = 100;
/// Longest text of a refusal, in characters. The text may quote a client's value.
const REFUSAL_CHARS_MAX: usize = 400;

/// A kind of refusal or loss that operators are told about. Each variant says what its example names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A `Host` that is not a loopback name, on a server that answers loopback names only.
    Host,
    /// An `Origin` whose request was refused.
    Origin,
    /// An `Origin` whose request was answered, though the browser hides the answer from the page.
    Reader,
    /// The path of a WebSocket upgrade that was answered 404.
    Upgrade,
    /// A packet of an MQTT client that was refused for another reason than a missing right.
    Mqtt,
    /// A topic whose log no longer had the messages that a subscriber asked for.
    ShortLog,
    /// The text of the refusal of an event stream or a WebSocket.
    Stream,
    /// A path, topic or filter for which a client lacked a right, with the client's user name.
    Denied,
    /// A topic to which a publish was refused because there was no room for its idempotency key.
    Keys,
    /// An MQTT client that asked for a session which outlives its connection, but did not get one.
    ShortSession,
    /// An MQTT client id that several clients use, so that they take its session over from each other.
    Takeovers,
}

/// The examples that wait for the next report.
#[derive(Debug, Default)]
pub(crate) struct Notices(Vec<(Notice, String)>);

impl Notices {
    /// Stores a name as the example of this kind, if the kind has none.
    pub fn note(&mut self, kind: Notice, name: &[u8]) {
        self.note_with_reason(kind, "", name);
    }

    /// Whether this kind has an example.
    pub fn has(&self, kind: Notice) -> bool {
        self.0.iter().any(|(known, _)| *known == kind)
    }

    /// Like [`Notices::note`], but the example begins with the reason.
    pub fn note_with_reason(&mut self, kind: Notice, reason: &str, name: &[u8]) {
        if !self.has(kind) {
            let escaped = name.escape_ascii().take(NAME_BYTES_MAX).map(char::from);
            self.0.push((kind, reason.chars().chain(escaped).collect()));
        }
    }

    /// Stores the text of a refusal as the example of this kind, if the kind has none.
    pub fn note_refusal(&mut self, kind: Notice, text: &str) {
        if !self.has(kind) {
            let printable = text.chars().take(REFUSAL_CHARS_MAX).map(|c| match c {
                ' '..='~' => c,
                _ => '?',
            });
            self.0.push((kind, printable.collect()));
        }
    }

    /// Takes the example of this kind.
    pub fn take(&mut self, kind: Notice) -> Option<String> {
        let index = self.0.iter().position(|(known, _)| *known == kind)?;
        Some(self.0.swap_remove(index).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_name_is_kept_until_it_is_taken() {
        let mut notices = Notices::default();
        notices.note(Notice::Host, b"a.example");
        notices.note(Notice::Host, b"b.example");
        notices.note(Notice::Origin, b"null");
        assert_eq!(notices.take(Notice::Host).as_deref(), Some("a.example"));
        assert_eq!(notices.take(Notice::Host), None);
        notices.note(Notice::Host, b"c.example");
        assert_eq!(notices.take(Notice::Host).as_deref(), Some("c.example"));
        assert_eq!(notices.take(Notice::Origin).as_deref(), Some("null"));
        notices.note_with_reason(Notice::Mqtt, "too long: ", b"a\x85");
        let example = notices.take(Notice::Mqtt);
        assert_eq!(example.as_deref(), Some(r"too long: a\x85"));
        notices.note_refusal(Notice::Stream, "no 'a'\u{202e}\r\n");
        assert_eq!(notices.take(Notice::Stream).as_deref(), Some("no 'a'???"));
    }

    #[test]
    fn name_is_short_and_has_no_control_characters() {
        let mut notices = Notices::default();
        notices.note(Notice::Origin, b"\x1b[2J\xe2\x80\xae\r\n");
        let name = notices.take(Notice::Origin);
        assert_eq!(name.as_deref(), Some(r"\x1b[2J\xe2\x80\xae\r\n"));
        notices.note(Notice::Origin, &[0xff; 8_000]);
        assert_eq!(notices.take(Notice::Origin).unwrap().len(), 100);
    }
}
