//! `[tls]`: certificate and key of the data ports, and whether clients must show one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::problems::Check;

/// A handshake under way holds some ten kilobytes.
const DEFAULT_HANDSHAKES_MAX: u32 = 10_000;

/// TLS on the data ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// PEM file: the server's certificate and those between it and a root; empty: no TLS.
    pub certificate: PathBuf,
    /// PEM file: the certificate's key.
    pub key: PathBuf,
    /// Whether connections without TLS are refused.
    pub required: bool,
    /// The oldest version that is spoken.
    pub min_version: Version,
    /// PEM file: the roots of clients' certificates; empty: clients show none.
    pub client_ca: PathBuf,
    /// Whether a client must show one.
    pub client_certificates: ClientCertificates,
    /// Handshakes under way at once, of all shards together.
    pub handshakes_max: u32,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// RFC 5246.
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Whether a client must show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// Who shows none is let in.
    Optional,
    /// Who shows none is refused.
    Required,
}

impl Default for Tls {
    fn default() -> Self {
        Tls {
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            required: false,
            min_version: Version::Tls12,
            client_ca: PathBuf::new(),
            client_certificates: ClientCertificates::Required,
            handshakes_max: DEFAULT_HANDSHAKES_MAX,
        }
    }
}

impl Tls {
    /// Whether TLS is spoken at all.
    pub fn is_on(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// `asked`, as far as a running server can take it: TLS is not switched on or off, and what each shard counts by
    /// stays.
    pub fn changeable(&self, asked: &Tls) -> Tls {
        if !self.is_on() || !asked.is_on() {
            return self.clone();
        }
        Tls {
            required: self.required,
            handshakes_max: self.handshakes_max,
            ..asked.clone()
        }
    }

    /// Whether clients without a certificate are refused.
    pub fn wants_certificates(&self) -> bool {
        self.asks_clients() && self.client_certificates == ClientCertificates::Required
    }

    /// Whether clients are asked for certificates.
    pub fn asks_clients(&self) -> bool {
        !self.client_ca.as_os_str().is_empty()
    }
    /// Checks the values, but not the files themselves.
    pub fn check(&self, check: &mut Check) {
        let needs = "; set tls.certificate and tls.key, or remove it";
        if self.is_on() && self.key.as_os_str().is_empty() {
            check.fail(
                "tls.key",
                "is missing; name the PEM file with the key of tls.certificate",
            );
        }
        if !self.is_on() {
            if !self.key.as_os_str().is_empty() {
                check.fail(
                    "tls.key",
                    format!("is set, but tls.certificate is not{needs}"),
                );
            }
            if self.required {
                check.fail(
                    "tls.required",
                    format!(
                        "is on, but there is no certificate, so that nobody could connect{needs}"
                    ),
                );
            }
            if self.asks_clients() {
                check.fail(
                    "tls.client_ca",
                    format!("is set, but there is no TLS{needs}"),
                );
            }
        }
        check.range("tls.handshakes_max", self.handshakes_max, 1..=u32::MAX);
    }
}
