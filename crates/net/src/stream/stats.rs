//! The TLS statistics of a shard: counts, sizes, and the reasons why connections were ended.

use rustls::Error;
use strum::{IntoStaticStr, VariantArray};

/// Why a connection was ended that used TLS or should have used it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoStaticStr, VariantArray)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Trouble {
    /// The client's handshake is malformed or breaks the protocol.
    Garbage,
    /// Client and server have no version, cipher or protocol in common.
    Incompatible,
    /// The client sent no certificate, or an invalid one.
    Certificate,
    /// The client ended the handshake with an alert, mostly because it does not trust the server's certificate.
    Distrust,
    /// The client disconnected during its handshake.
    Gone,
    /// The handshake was not finished at the first deadline, or when the server stopped.
    Slow,
    /// There were too many handshakes, and this was the oldest.
    Evicted,
    /// The client sent more than a handshake needs.
    TooLong,
    /// An error that is not the client's fault.
    Internal,
    /// The client asked for a renegotiation.
    Renegotiation,
    /// A record was modified in transit, is too long or has a wrong type, or there were too many records without data.
    Record,
    /// There was no room for more partial records.
    Room,
    /// The key has reached its limit of records.
    Key,
    /// The connection does not use TLS, though the port requires it.
    Plain,
}

impl Trouble {
    /// All reasons, in the order of their numbers.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// The name of the reason in metrics and logs.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The reason for the failure of a handshake.
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

/// Counts of a shard since it started.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Full handshakes.
    pub handshakes: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Ended connections by [`Trouble`].
    pub troubles: [u64; Trouble::COUNT],
}

impl Stats {
    /// The number of connections that were ended for this reason.
    pub fn of(&self, trouble: Trouble) -> u64 {
        self.troubles[trouble as usize]
    }
}

/// Current sizes of a shard.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Connections whose handshake is finished.
    pub connections: u32,
    /// Unfinished handshakes.
    pub under_way: u32,
    /// Bytes of the key tables.
    pub key_bytes: usize,
    /// Bytes of the table by link.
    pub descriptor_bytes: usize,
    /// Bytes of partial received records, and of sealed bytes that wait for sockets.
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
