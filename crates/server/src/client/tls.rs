//! Whom the toolbox and the access callback trust when they speak TLS, and what they say when that fails.
//!
//! `rustls` with the roots of this host, or with those of one file in their place. What goes wrong is said with the host's name, the
//! reason and the remedy.
//!
//! Deliberately not here: client certificates, and a way not to verify a server's.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};

/// What is spoken over TLS (RFC 7301): proxies in front of a server may choose by it.
const PROTOCOL: &[u8] = b"http/1.1";

/// Whom to trust.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    /// The flag or the key that names the file of roots.
    key: &'static str,
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
        })
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
            // An end without the word for it: the end of the connection, not of what was to come.
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
            ) => "the server breaks off; if it asks clients for certificates (tls.client_ca), this one has none to show"
                .to_string(),
            Error::AlertReceived(alert) => {
                format!("the server breaks off ({alert:?}); its log says why")
            }
            other => format!("{other}; the server must speak TLS 1.2 (ECDHE) or 1.3"),
        }
    }

    fn distrust(&self, error: &CertificateError) -> String {
        use CertificateError as Wrong;
        match error {
            // The latter where a root has the name of the right one and another key.
            Wrong::UnknownIssuer | Wrong::BadSignature => format!(
                "its certificate leads to no root that is trusted here; name the file with its root by {}",
                self.key
            ),
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
                format!("{error}; ask it by one of its names")
            }
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. } => {
                format!("{error}; renew it, or compare the clocks")
            }
            other => format!("its certificate is refused ({other}); the server needs another one"),
        }
    }
}

fn of_file(file: &Path) -> Result<RootCertStore, String> {
    let pem = std::fs::read(file).map_err(|error| format!("it cannot be read ({error})"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("it is not PEM ({error})"))?;
        let added = roots.add(certificate);
        added.map_err(|error| format!("a certificate in it does not parse ({error})"))?;
    }
    if roots.is_empty() {
        return Err("there is no certificate in it".to_string());
    }
    Ok(roots)
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
