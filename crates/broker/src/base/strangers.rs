//! Names of what was refused: of each kind, the first name that a shard refused since the operator last asked, so that the operator
//! learns which site, or which packet, it was.
//!
//! Invariant: however many requests are refused, the shard makes one name of each kind and keeps it until it is taken.

use alloc::string::String;

/// Longest name, in bytes: the client chooses the name.
const NAME_BYTES_MAX: usize = 100;

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// A `Host` that is not the loopback, where only the loopback is answered.
    Host,
    /// An `Origin` that may not do what it asked for.
    Origin,
    /// What a client of MQTT asked for, for another reason than its rights.
    Mqtt,
}

/// The names that are kept.
#[derive(Debug, Default)]
pub(crate) struct Strangers([Option<String>; 3]);

impl Strangers {
    /// A request with this name was refused.
    pub fn refused(&mut self, kind: Stranger, name: &[u8]) {
        self.refused_since(kind, "", name);
    }

    /// The same; the kept name begins with the reason.
    pub fn refused_since(&mut self, kind: Stranger, reason: &str, name: &[u8]) {
        self.0[kind as usize].get_or_insert_with(|| {
            let plain = name.escape_ascii().take(NAME_BYTES_MAX).map(char::from);
            reason.chars().chain(plain).collect()
        });
    }

    /// Takes the kept name; the next refusal sets another.
    pub fn take(&mut self, kind: Stranger) -> Option<String> {
        self.0[kind as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_kept_until_it_is_taken() {
        let mut strangers = Strangers::default();
        strangers.refused(Stranger::Host, b"a.example");
        strangers.refused(Stranger::Host, b"b.example");
        strangers.refused(Stranger::Origin, b"null");
        assert_eq!(strangers.take(Stranger::Host).as_deref(), Some("a.example"));
        assert_eq!(strangers.take(Stranger::Host), None);
        strangers.refused(Stranger::Host, b"c.example");
        assert_eq!(strangers.take(Stranger::Host).as_deref(), Some("c.example"));
        assert_eq!(strangers.take(Stranger::Origin).as_deref(), Some("null"));
        strangers.refused_since(Stranger::Mqtt, "too long: ", b"a\x85");
        let kept = strangers.take(Stranger::Mqtt);
        assert_eq!(kept.as_deref(), Some(r"too long: a\x85"));
    }

    #[test]
    fn a_name_is_short_and_steers_nobody_s_terminal() {
        let mut strangers = Strangers::default();
        strangers.refused(Stranger::Origin, b"\x1b[2J\xe2\x80\xae\r\n");
        let name = strangers.take(Stranger::Origin);
        assert_eq!(name.as_deref(), Some(r"\x1b[2J\xe2\x80\xae\r\n"));
        strangers.refused(Stranger::Origin, &[0xff; 8_000]);
        assert_eq!(strangers.take(Stranger::Origin).unwrap().len(), 100);
    }
}
