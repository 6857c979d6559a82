//! The TLS statistics of a shard (a thread with its own connections): counts, sizes, and the reasons why connections were ended.

use rustls::Error;
use strum::{IntoStaticStr, VariantArray};

/// Why the server ended a connection that used TLS, or a connection without TLS at a port that requires TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoStaticStr, VariantArray)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum TlsFailure {
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
    /// The handshake was not finished at its deadline, or the server stopped before.
    Slow,
    /// There were too many unfinished handshakes, and that of this connection was the oldest.
    Evicted,
    /// The client sent more bytes during the handshake than a handshake needs.
    TooLong,
    /// An error that is not the client's fault.
    Internal,
    /// The client asked for a renegotiation.
    Renegotiation,
    /// A record was modified in transit, is too long or has a wrong type, or there were too many records without data.
    Record,
    /// The shard had no room for more received bytes of records that were not complete.
    Room,
    /// The key has encrypted as many records as a key may encrypt, and could not be changed.
    Key,
    /// The connection does not use TLS, though the port requires it.
    Plain,
}

impl TlsFailure {
    /// All reasons, in the order of their numbers.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// The name of the reason in metrics and logs.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The reason for the failure of a handshake.
    pub(super) fn from_error(error: &Error) -> TlsFailure {
        match error {
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => TlsFailure::Incompatible,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => {
                TlsFailure::Certificate
            }
            Error::AlertReceived(_) => TlsFailure::Distrust,
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::InvalidMessage(_)
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord
            | Error::DecryptError => TlsFailure::Garbage,
            _ => TlsFailure::Internal,
        }
    }
}

/// Counts of a shard since the shard started.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Full handshakes.
    pub handshakes: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// The number of ended connections for each [`TlsFailure`], in the order of [`TlsFailure::ALL`].
    pub failures: [u64; TlsFailure::COUNT],
}

impl Stats {
    /// The number of connections that were ended for this reason.
    pub fn count_of(&self, failure: TlsFailure) -> u64 {
        self.failures[failure as usize]
    }
}

/// Current sizes of a shard.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Connections whose handshake is finished.
    pub connections: u32,
    /// Unfinished handshakes.
    pub unfinished_handshakes: u32,
    /// Bytes of the tables with the keys of connections.
    pub key_bytes: usize,
    /// Bytes of the table that has an entry for each link (file descriptor).
    pub descriptor_bytes: usize,
    /// Bytes of received records that are not complete, and of encrypted bytes that wait until their socket takes them.
    pub record_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_number_and_its_own_name() {
        for (n, failure) in TlsFailure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, n);
            let same = TlsFailure::ALL
                .iter()
                .filter(|other| other.name() == failure.name());
            assert_eq!(same.count(), 1, "{failure:?}");
        }
    }
}
