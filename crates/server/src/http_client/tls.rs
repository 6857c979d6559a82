//! The roots that the toolbox and the access callback trust when they speak TLS, and the error messages when that fails.
//!
//! `rustls` with the roots of this host, or with those of one file in their place, and a certificate to show where the tools name
//! one. An error message names the host, the reason and the remedy.
//!
//! Deliberately not here: a way not to verify a server's certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crore_net::pem;
use crore_net::stream::{of_alert, words};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};

/// The tools' flag for the file of roots.
pub const CA_FLAG: &str = "--ca";
/// The flag for the certificate to show.
pub const CERT_FLAG: &str = "--cert";
/// The flag for its key; `--key` is a message's.
pub const CERT_KEY_FLAG: &str = "--cert-key";

/// The protocol spoken over TLS (RFC 7301): proxies in front of a server may choose by it.
const PROTOCOL: &[u8] = b"http/1.1";

/// The roots to trust, and the certificate to show.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    /// The flag or the key that names the file of roots.
    key: &'static str,
    /// Whether there is a certificate to show.
    shows: bool,
}

/// The PEM files of a certificate to show to servers that ask for one.
pub struct Shown<'a> {
    /// The certificate, and those between it and a root.
    pub certificate: &'a Path,
    /// Its key.
    pub key: &'a Path,
}

impl Trust {
    /// Trusts the roots in this PEM file, or without one those of the host. `key` is what names the file.
    ///
    /// # Errors
    /// When there are no roots, with the remedy.
    pub fn new(roots: Option<&Path>, key: &'static str) -> Result<Trust, String> {
        let roots = match roots {
            Some(file) => of_file(file).map_err(|what| {
                format!(
                    "{}: {what}; name a PEM file with the roots to trust",
                    file.display()
                )
            })?,
            None => of_host().map_err(|what| {
                format!(
                    "{what}; install the package ca-certificates, or name a file of roots with {key}"
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
            shows: false,
        })
    }

    /// The same, which shows this certificate where a server asks for one.
    ///
    /// # Errors
    /// When the files do not hold it and its key, with the remedy.
    pub fn showing(mut self, shown: &Shown<'_>) -> Result<Trust, String> {
        let certificate = shown.certificate.display();
        let chain = read(shown.certificate).and_then(|file| pem::certificates(&file));
        let chain = chain.map_err(|what| {
            format!("{certificate}: {what}; name a PEM file with the certificate to show with {CERT_FLAG}")
        })?;
        let key = read(shown.key).and_then(|file| pem::private_key(&file));
        let key = key.map_err(|what| {
            format!(
                "{}: {what}; name a PEM file with its key, without a passphrase, with {CERT_KEY_FLAG}",
                shown.key.display()
            )
        })?;
        let provider = aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(chain, key, &provider).map_err(|error| {
            let what = words(&error);
            format!("{certificate}: {what}; name a certificate with {CERT_FLAG} and its own key with {CERT_KEY_FLAG}")
        })?;
        let config = Arc::make_mut(&mut self.config);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        self.shows = true;
        Ok(self)
    }

    /// The client's side of a connection to this host.
    ///
    /// # Errors
    /// When no certificate could name it.
    pub fn begin(&self, host: &str) -> io::Result<ClientConnection> {
        let name = ServerName::try_from(host.to_string()).map_err(|_| {
            let what = format!(
                "`{host}` is no name that a certificate could have; write a DNS name or an address"
            );
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)
    }

    /// `error` of a connection to this host, in words that help, if it is one of TLS.
    pub fn explain(&self, host: &str, error: io::Error) -> io::Error {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(tls) => {
                let what = format!("TLS with {host}: {}", self.reason(tls));
                io::Error::new(error.kind(), what)
            }
            // The peer ended the connection without a close_notify: that ends the connection, but does not say that the answer is whole.
            None if error.kind() == io::ErrorKind::UnexpectedEof => error.kind().into(),
            None => error,
        }
    }

    /// Why, and what to do.
    fn reason(&self, error: &Error) -> String {
        match error {
            Error::InvalidCertificate(error) => self.distrust(error),
            Error::InvalidMessage(_) => {
                "what answers there speaks no TLS; write http://".to_string()
            }
            Error::AlertReceived(
                AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure,
            ) if !self.shows => {
                let what =
                    "the server breaks off; if it asks clients for certificates (tls.client_ca)";
                match self.key == CA_FLAG {
                    true => {
                        format!("{what}, name one to show with {CERT_FLAG} and {CERT_KEY_FLAG}")
                    }
                    false => format!("{what}, this one has none to show"),
                }
            }
            Error::AlertReceived(
                alert @ (AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown),
            ) if self.shows => format!(
                "the server refuses the certificate of {CERT_FLAG}: {}; it must be one for clients, in its time, and lead to a root in the server's tls.client_ca",
                of_alert(*alert)
            ),
            Error::AlertReceived(alert) => {
                format!(
                    "the server breaks off: {}; its log says more",
                    of_alert(*alert)
                )
            }
            other => format!(
                "{}; the server must speak TLS 1.2 (ECDHE) or 1.3",
                words(other)
            ),
        }
    }

    fn distrust(&self, error: &CertificateError) -> String {
        let what = words(&error.clone().into());
        match error {
            // The latter where a root has the name of the right one and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("{what}; name the file with its root by {}", self.key)
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("{what}; ask it by one of its names")
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!("{what}; renew it, or compare the clocks")
            }
            // The verifier's own error, of which `rustls` gives only the words.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "its certificate is one of an authority (CA:TRUE), which signs others and no server may show; give the server one with \
                 CA:FALSE (docs/TLS.md has the command)"
                    .to_string()
            }
            _ => format!("{what}; the server needs another one"),
        }
    }
}

fn of_file(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(&read(file)?)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("a certificate in it does not parse ({})", words(&error)))?;
    }
    Ok(roots)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("it cannot be read ({error})"))
}

fn of_host() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // One that does not parse is not trusted, and no reason to do without the others.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})"));
        return Err(format!(
            "this host has no root certificates{}",
            why.unwrap_or_default()
        ));
    }
    Ok(roots)
}
