//! `[tls]`: the certificate and key of the data ports, and the roots and policy for the certificates of clients.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::problems::Problems;

/// TLS on the data ports.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// PEM: the server's certificate, followed by the intermediate certificates. `""`: no TLS.
    #[schemars(extend("format" = "a file"))]
    pub certificate: PathBuf,
    /// PEM: the certificate's private key, without a passphrase.
    #[schemars(extend("format" = "a file"))]
    pub key: PathBuf,
    /// Whether connections without TLS are refused.
    #[schemars(extend("x-changes" = "restart"))]
    pub required: bool,
    /// The oldest version that the server accepts: `"1.2"` or `"1.3"`.
    pub min_version: TlsVersion,
    /// PEM: the root certificates that sign the clients' certificates. `""`: clients are not asked for certificates.
    #[schemars(extend("format" = "a file"))]
    pub client_ca: PathBuf,
    /// Whether a client must show a certificate (`"required"`), or may connect without one (`"optional"`). An invalid one is always refused.
    pub client_certificates: ClientCertificates,
    /// The maximum number of unfinished handshakes of the whole server. If one more begins, the server ends the oldest.
    // Each handshake takes about ten kilobytes.
    #[default(10_000)]
    #[schemars(range(min = 1, max = u32::MAX), extend("x-changes" = "restart"))]
    #[schemars(extend("x-share" = "none: connections are accepted from all addresses in turn, so even if one address opens many, a handshake gets some seconds before it is the oldest"))]
    pub handshakes_max: u32,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    /// RFC 5246.
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Whether a client must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// A client without a certificate may connect.
    Optional,
    /// A client without a certificate is refused.
    #[default]
    Required,
}

impl Tls {
    /// Whether the data ports have TLS.
    pub fn is_on(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// Whether clients without a certificate are refused.
    pub fn requires_client_certificates(&self) -> bool {
        self.requests_client_certificates()
            && self.client_certificates == ClientCertificates::Required
    }

    /// Whether clients are asked for certificates.
    pub fn requests_client_certificates(&self) -> bool {
        !self.client_ca.as_os_str().is_empty()
    }

    /// Checks the values, but not the files themselves.
    pub fn check(&self, problems: &mut Problems) {
        let remedy = "; set tls.certificate and tls.key, or remove it";
        if self.is_on() && self.key.as_os_str().is_empty() {
            problems.fail(
                "tls.key",
                "is missing; name the PEM file with the key of tls.certificate",
            );
        }
        if !self.is_on() {
            if !self.key.as_os_str().is_empty() {
                problems.fail(
                    "tls.key",
                    format!("is set, but tls.certificate is not{remedy}"),
                );
            }
            if self.required {
                problems.fail(
                    "tls.required",
                    format!(
                        "is on, but tls.certificate is not set, so nobody could connect{remedy}"
                    ),
                );
            }
            if self.requests_client_certificates() {
                problems.fail(
                    "tls.client_ca",
                    format!("is set, but there is no TLS{remedy}"),
                );
            }
        }
    }
}
