//! The TLS configuration of the HTTP client: the roots that it trusts, its client certificate, and its error messages.
//!
//! The client trusts the roots of this host, or the roots in one file instead. The tools may present a client certificate. An error message
//! names the host, the reason and the remedy.
//!
//! Deliberately not here: an option that turns the verification of certificates off.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crore_net::pem;
use crore_net::stream::{alert_message, message};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};

/// The tools' flag for the file of roots.
pub const CA_FLAG: &str = "--ca";
/// The tools' flag for the client certificate.
pub const CERT_FLAG: &str = "--cert";
/// The tools' flag for the key of the client certificate. It is not `--key`, which is the key of a message.
pub const CERT_KEY_FLAG: &str = "--cert-key";

/// The protocol that the client offers by ALPN (RFC 7301). Proxies in front of a server may choose the protocol by ALPN.
const PROTOCOL: &[u8] = b"http/1.1";

/// The trusted roots, and the client certificate.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    /// The flag or the settings key that names the file of roots.
    key: &'static str,
    has_certificate: bool,
}

/// The PEM files of a client certificate.
pub struct ClientCertificate<'a> {
    /// The client certificate, followed by the intermediate certificates.
    pub certificate: &'a Path,
    pub key: &'a Path,
}

impl Trust {
    /// Trusts the roots in this PEM file, or without a file the roots of this host. `key` is the flag or the settings key that names the
    /// file.
    ///
    /// # Errors
    /// There are no roots. The error names the remedy.
    pub fn new(roots: Option<&Path>, key: &'static str) -> Result<Trust, String> {
        let roots = match roots {
            Some(file) => roots_of_file(file).map_err(|problem| {
                format!(
                    "{}: {problem}; name a PEM file with the roots to trust",
                    file.display()
                )
            })?,
            None => roots_of_host().map_err(|problem| {
                format!(
                    "{problem}; install the package ca-certificates, or name a file of roots with {key}"
                )
            })?,
        };
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider has suites for both versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Trust {
            config: Arc::new(config),
            key,
            has_certificate: false,
        })
    }

    /// Adds a client certificate, for servers that ask for one.
    ///
    /// # Errors
    /// The files do not contain a certificate and its key. The error names the remedy.
    pub fn with_certificate(mut self, files: &ClientCertificate<'_>) -> Result<Trust, String> {
        let certificate = files.certificate.display();
        let chain = read(files.certificate).and_then(|file| pem::certificates(&file));
        let chain = chain.map_err(|problem| {
            format!("{certificate}: {problem}; name a PEM file with the certificate to show with {CERT_FLAG}")
        })?;
        let key = read(files.key).and_then(|file| pem::private_key(&file));
        let key = key.map_err(|problem| {
            format!(
                "{}: {problem}; name a PEM file with its key, without a passphrase, with {CERT_KEY_FLAG}",
                files.key.display()
            )
        })?;
        let provider = aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(chain, key, &provider).map_err(|error| {
            let problem = message(&error);
            format!("{certificate}: {problem}; name a certificate with {CERT_FLAG} and its own key with {CERT_KEY_FLAG}")
        })?;
        let config = Arc::make_mut(&mut self.config);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        self.has_certificate = true;
        Ok(self)
    }

    /// Begins a TLS connection to this host.
    ///
    /// # Errors
    /// No certificate can have the name `host`.
    pub fn begin(&self, host: &str) -> io::Result<ClientConnection> {
        let name = ServerName::try_from(host.to_string()).map_err(|_| {
            let problem = format!(
                "`{host}` is no name that a certificate could have; write a DNS name or an address"
            );
            io::Error::new(io::ErrorKind::InvalidInput, problem)
        })?;
        ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)
    }

    /// Replaces a TLS error of a connection to this host by one with a reason and a remedy. Returns other errors unchanged.
    pub fn explain(&self, host: &str, error: io::Error) -> io::Error {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(tls) => {
                let problem = format!("TLS with {host}: {}", self.reason(tls));
                io::Error::new(error.kind(), problem)
            }
            // The peer ended the connection without close_notify, so the answer may be truncated.
            None if error.kind() == io::ErrorKind::UnexpectedEof => error.kind().into(),
            None => error,
        }
    }

    /// The text of a TLS error, with the reason and the remedy.
    fn reason(&self, error: &Error) -> String {
        match error {
            Error::InvalidCertificate(error) => self.certificate_reason(error),
            Error::InvalidMessage(_) => {
                "the server at this address does not speak TLS; write http://".to_string()
            }
            Error::AlertReceived(
                AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
            ) if !self.has_certificate => {
                let problem = "the server ends the handshake; if it asks clients for certificates (tls.client_ca)";
                match self.key == CA_FLAG {
                    true => {
                        format!("{problem}, name one to show with {CERT_FLAG} and {CERT_KEY_FLAG}")
                    }
                    false => format!("{problem}, this one has none to show"),
                }
            }
            Error::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown),
            ) if self.has_certificate => format!(
                "the server refuses the certificate of {CERT_FLAG}: {}; it must be a client certificate, be valid now, and be signed by a root in the server's tls.client_ca",
                alert_message(*alert)
            ),
            Error::AlertReceived(alert) => {
                format!(
                    "the server ends the handshake: {}; its log says more",
                    alert_message(*alert)
                )
            }
            other => format!(
                "{}; the server must speak TLS 1.2 (ECDHE) or 1.3",
                message(other)
            ),
        }
    }

    fn certificate_reason(&self, error: &CertificateError) -> String {
        let problem = message(&error.clone().into());
        match error {
            // `BadSignature` means that a trusted root has the issuer's name, but another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("{problem}; name the file with its root by {}", self.key)
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("{problem}; use one of the names in its certificate")
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!("{problem}; renew it, or compare the clocks")
            }
            // An error of `rustls`'s verifier, which can be recognised only by its text.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "its certificate is that of an authority (CA:TRUE), which servers may not use; give the server one with \
                 CA:FALSE (docs/TLS.md has the command)"
                    .to_string()
            }
            _ => format!("{problem}; the server needs another one"),
        }
    }
}

fn roots_of_file(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(&read(file)?)? {
        let added = roots.add(certificate);
        added
            .map_err(|error| format!("a certificate in it does not parse ({})", message(&error)))?;
    }
    Ok(roots)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("it cannot be read ({error})"))
}

fn roots_of_host() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A root that does not parse is skipped.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let first_error = found.errors.first().map(|error| format!(" ({error})"));
        return Err(format!(
            "this host has no root certificates{}",
            first_error.unwrap_or_default()
        ));
    }
    Ok(roots)
}
