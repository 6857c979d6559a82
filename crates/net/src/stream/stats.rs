//! Counts and sizes of a shard's TLS, and the reasons why connections were ended.

use rustls::Error;
use strum::{IntoStaticStr, VariantArray};

/// Why a connection with TLS, or one that should have had TLS, was ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoStaticStr, VariantArray)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Trouble {
    /// The client's handshake is malformed or breaks the protocol.
    Garbage,
    /// No version, cipher or protocol in common.
    Incompatible,
    /// The client has shown no certificate, or an invalid one.
    Certificate,
    /// The client broke off with an alert: mostly it does not trust the server's certificate.
    Distrust,
    /// The client went away within its handshake.
    Gone,
    /// The handshake was not over when the connection was ended: by the first deadline, or because the server stops.
    Slow,
    /// Too many handshakes were under way, and this was the oldest.
    Evicted,
    /// The client sent more than a handshake needs.
    TooLong,
    /// An error that is not the client's fault.
    Internal,
    /// The client asked for another handshake.
    Renegotiation,
    /// A record that was changed on its way, is too long or of a wrong kind, or one too many without data.
    Record,
    /// No room for partial records.
    Room,
    /// The key has reached its limit of records.
    Key,
    /// A connection without TLS, where it is required.
    Plain,
}

impl Trouble {
    /// All of them, by their numbers.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Its name, one word.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Why a handshake failed.
    pub(super) fn of(error: &Error) -> Trouble {
        match error {
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Trouble::Incompatible,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => Trouble::Certificate,
            Error::AlertReceived(_) => Trouble::Distrust,
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::InvalidMessage(_)
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord
            | Error::DecryptError => Trouble::Garbage,
            _ => Trouble::Internal,
        }
    }
}

/// Counts of a shard since it began.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Full handshakes.
    pub handshakes: u64,
    /// Handshakes that resumed a former connection.
    pub resumed: u64,
    /// Ended connections, by [`Trouble`].
    pub troubles: [u64; Trouble::COUNT],
}

impl Stats {
    /// How many connections were ended for this reason.
    pub fn of(&self, trouble: Trouble) -> u64 {
        self.troubles[trouble as usize]
    }
}

/// Present sizes of a shard.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Connections whose handshake is over.
    pub connections: u32,
    /// Handshakes that are not over.
    pub under_way: u32,
    /// Bytes of the tables of keys.
    pub key_bytes: usize,
    /// Bytes of the table by link.
    pub descriptor_bytes: usize,
    /// Bytes of partial records, and of sealed ones that sockets refused.
    pub record_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_number_and_a_word_of_its_own() {
        for (n, trouble) in Trouble::ALL.iter().enumerate() {
            assert_eq!(*trouble as usize, n);
            let same = Trouble::ALL
                .iter()
                .filter(|other| other.name() == trouble.name());
            assert_eq!(same.count(), 1, "{trouble:?}");
        }
    }
}
