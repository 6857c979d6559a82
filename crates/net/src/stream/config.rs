//! The settings of handshakes: certificate, key, root certificates for clients, TLS versions. They can be replaced as a whole while
//! connections are open: each shard uses the new settings from its next handshake on.
//!
//! Invariant: if texts do not parse or do not fit together, the settings do not change.
//!
//! The caller reads the files. A choice between several certificates by server name is deliberately not supported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::{ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use super::handshake::{HandshakeConfig, INCOMING_MAX, RECORD_MAX, SecretLog};
use super::messages::message;
use crate::pem;

/// The protocols that are offered by ALPN. Whatever is negotiated, the first bytes decide which protocol the client speaks.
const ALPN_PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"mqtt"];
/// The protocol that comes first if the server speaks it.
const HTTP2_PROTOCOL: &[u8] = b"h2";
/// Number of tickets that a TLS 1.3 client gets. One ticket resumes one connection, and the resumed connection gets the next ticket.
const TICKETS_PER_HANDSHAKE: usize = 1;

/// Whether clients present certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clients {
    /// A client may present a certificate; if it does, it must be valid.
    Optional,
    /// A client without a certificate is refused.
    Required,
}

/// The settings: the texts of the files, and options.
#[derive(Clone, Debug)]
pub struct Source {
    /// PEM: the certificate and its intermediate certificates.
    pub certificate: Vec<u8>,
    /// PEM: the private key of the certificate.
    pub key: Vec<u8>,
    /// PEM: the root certificates for client certificates, and whether these are required.
    pub clients: Option<(Vec<u8>, Clients)>,
    /// Whether TLS 1.2 is refused.
    pub only_13: bool,
    /// Whether HTTP/2 is offered.
    pub h2: bool,
}

/// The faulty part of a [`Source`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The certificate's text.
    #[error("the certificate: {0}")]
    Certificate(String),
    /// The key's text.
    #[error("the key: {0}")]
    Key(String),
    /// The key belongs to another certificate.
    #[error("certificate and key: {0}")]
    Pair(String),
    /// The text of the root certificates for clients.
    #[error("the clients' roots: {0}")]
    Clients(String),
    /// An error that is not in the texts.
    #[error("{0}")]
    Other(String),
}

/// The settings of new handshakes.
#[derive(Debug)]
struct HandshakeSettings {
    source: Source,
    config: Arc<ServerConfig>,
}

/// The current settings for the handshakes of all shards.
#[derive(Debug)]
pub struct Handle {
    current: Mutex<HandshakeSettings>,
    /// Counts how often the settings were replaced.
    version: AtomicU64,
}

impl Handle {
    /// Makes the settings from the texts.
    ///
    /// # Errors
    /// If the texts do not parse or do not fit together.
    pub fn new(source: Source) -> Result<Arc<Handle>, Error> {
        let tickets = aws_lc_rs::Ticketer::new();
        let tickets =
            tickets.map_err(|error| Error::Other(format!("no tickets: {}", message(&error))))?;
        let config = Arc::new(build_config(&source, tickets)?);
        Ok(Arc::new(Handle {
            current: Mutex::new(HandshakeSettings { source, config }),
            version: AtomicU64::new(0),
        }))
    }

    /// Replaces the settings for all handshakes that begin from now on. Open connections are not affected. Tickets stay valid unless the
    /// trusted roots have changed: a ticket could then belong to a client that is no longer trusted.
    ///
    /// # Errors
    /// Those of [`Handle::new`]; then nothing changes.
    pub fn replace(&self, source: Source) -> Result<(), Error> {
        let mut current = self.lock();
        let tickets = if current.source.clients == source.clients {
            current.config.ticketer.clone()
        } else {
            let tickets = aws_lc_rs::Ticketer::new();
            tickets.map_err(|error| Error::Other(format!("no tickets: {}", message(&error))))?
        };
        let config = Arc::new(build_config(&source, tickets)?);
        *current = HandshakeSettings { source, config };
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The server's own certificate.
    pub fn certificate(&self) -> CertificateDer<'static> {
        let chain = pem::certificates(&self.lock().source.certificate);
        chain.expect("the current texts have parsed").swap_remove(0)
    }

    fn handshake_config(&self) -> HandshakeConfig {
        let current = self.lock();
        HandshakeConfig {
            config: current.config.clone(),
            incoming_max: match current.source.clients {
                Some(_) => INCOMING_MAX,
                None => RECORD_MAX,
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, HandshakeSettings> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shard's copy of the settings, so that a handshake needs no lock.
pub struct ShardSettings {
    handle: Arc<Handle>,
    config: HandshakeConfig,
    version: u64,
}

impl ShardSettings {
    pub fn new(handle: Arc<Handle>) -> ShardSettings {
        ShardSettings {
            version: handle.version.load(Ordering::Acquire),
            config: handle.handshake_config(),
            handle,
        }
    }

    /// The settings for a new handshake.
    pub fn get(&mut self) -> HandshakeConfig {
        let version = self.handle.version.load(Ordering::Acquire);
        if version != self.version {
            (self.version, self.config) = (version, self.handle.handshake_config());
        }
        self.config.clone()
    }
}

/// The ciphers, in the server's order of preference. AES-128 comes before AES-256, because its secrets are shorter, and secrets take nearly
/// all of the memory of an idle connection. ChaCha20 comes last.
fn crypto_provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite::*;
    CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    }
}

fn build_config(source: &Source, tickets: Arc<dyn ProducesTickets>) -> Result<ServerConfig, Error> {
    let chain = pem::certificates(&source.certificate).map_err(Error::Certificate)?;
    let key = pem::private_key(&source.key).map_err(Error::Key)?;
    let versions: &[&SupportedProtocolVersion] = if source.only_13 {
        &[&version::TLS13]
    } else {
        &[&version::TLS13, &version::TLS12]
    };
    let provider = Arc::new(crypto_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| Error::Other(message(&error)))?;
    let builder = match &source.clients {
        None => builder.with_no_client_auth(),
        Some((roots, clients)) => {
            let mut store = RootCertStore::empty();
            for root in pem::certificates(roots).map_err(Error::Clients)? {
                let added = store.add(root);
                added.map_err(|error| Error::Clients(message(&error)))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider.clone());
            let verifier = match clients {
                Clients::Optional => verifier.allow_unauthenticated(),
                Clients::Required => verifier,
            };
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| Error::Clients(error.to_string()))?,
            )
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| Error::Pair(message(&error)))?;
    let http2 = source.h2.then_some(HTTP2_PROTOCOL);
    let protocols = http2.into_iter().chain(ALPN_PROTOCOLS);
    config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    config.ignore_client_order = true;
    config.ticketer = tickets;
    config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(SecretLog);
    Ok(config)
}
