//! Connections from the admin port to the server's own data port, for tails: streams of a topic's new messages that the console shows.
//!
//! If the data port requires TLS, a tail trusts only the certificate that the port itself uses, whatever its names and whoever signed it. A
//! foreign program that listens on the port in the server's place lacks the private key, so it gets neither the operator's token nor a
//! request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crore_net::stream::Handle;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use crate::http_client::port_in_use::loopback;
use crate::tls;

/// The maximum number of open tails. Each tail is a connection to the data port. A console page has one tail.
pub const TAILS_MAX: usize = 64;
/// A PROXY protocol v2 header with the command `LOCAL` and no addresses, as health checks send it.
const PROXY_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// The data port, and the open tails.
#[derive(Clone)]
pub struct DataPortClient {
    /// An address of this host.
    pub address: SocketAddr,
    /// Set if the port requires TLS.
    tls: Option<TlsConnector>,
    /// Permits for further tails.
    pub tail_permits: Arc<Semaphore>,
    /// Open tails by topic.
    tails: Arc<Mutex<HashMap<String, u32>>>,
}

/// Counts an open tail of a topic, until it is dropped.
pub struct OpenTail {
    data_port: DataPortClient,
    topic: String,
}

impl Drop for OpenTail {
    fn drop(&mut self) {
        let mut tails = self.data_port.tails.lock().expect("nobody panics with it");
        if let Entry::Occupied(mut count) = tails.entry(std::mem::take(&mut self.topic)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl DataPortClient {
    /// `listen` has the addresses of the data port, at least one; the first is used. `tls` is set if the port requires TLS.
    pub fn new(listen: &[SocketAddr], tls: Option<&tls::Shared>) -> Self {
        DataPortClient {
            address: loopback(listen[0]),
            tls: tls.map(|tls| connector(tls.handle.clone())),
            tail_permits: Arc::new(Semaphore::new(TAILS_MAX)),
            tails: Arc::default(),
        }
    }

    /// Counts a tail of this topic as open.
    pub fn open_tail(&self, topic: &str) -> OpenTail {
        let mut tails = self.tails.lock().expect("nobody panics with it");
        *tails.entry(topic.to_string()).or_default() += 1;
        OpenTail {
            data_port: self.clone(),
            topic: topic.to_string(),
        }
    }

    /// The number of a topic's subscribers without tails, from the number with them.
    pub fn subscribers_without_tails(&self, topic: &str, subscribers: u32) -> u32 {
        let tails = self.tails.lock().expect("nobody panics with it");
        subscribers.saturating_sub(tails.get(topic).copied().unwrap_or_default())
    }

    /// The URL of the data port for a client on this host.
    pub fn url(&self) -> String {
        let scheme = if self.requires_tls() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Whether the port requires TLS.
    pub fn requires_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects to the data port. If `proxied` is set, sends the PROXY protocol header that the port expects.
    pub async fn connect(&self, proxied: bool) -> std::io::Result<Stream> {
        let mut stream = TcpStream::connect(self.address).await?;
        if proxied {
            stream.write_all(PROXY_LOCAL).await?;
        }
        Ok(match &self.tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.connect(self.address.ip().into(), stream).await?),
        })
    }
}

/// A connection to the data port.
pub type Stream = Box<dyn Duplex>;

/// A stream with TLS or without.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A TLS connector that trusts only the certificate in `handle`. A reload that replaces the certificate takes effect here too.
fn connector(handle: Arc<Handle>) -> TlsConnector {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let pinned = PinnedCertificate {
        handle,
        provider: provider.clone(),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Accepts a server only if it shows the certificate in `handle`.
#[derive(Debug)]
struct PinnedCertificate {
    handle: Arc<Handle>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *certificate == self.handle.certificate() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crore_net::stream::Source;

    fn source() -> (Source, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let source = Source {
            certificate: made.cert.pem().into_bytes(),
            key: made.signing_key.serialize_pem().into_bytes(),
            clients: None,
            only_13: false,
            h2: false,
        };
        (source, made.cert.der().clone())
    }

    #[test]
    fn only_the_present_certificate_of_the_data_port_is_trusted() {
        let ((first, shown), (second, later)) = (source(), source());
        let handle = Handle::new(first).unwrap();
        let pinned = PinnedCertificate {
            handle: handle.clone(),
            provider: Arc::new(aws_lc_rs::default_provider()),
        };
        let trusts = |certificate: &CertificateDer<'_>| {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let verified = pinned.verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
            verified.is_ok()
        };
        assert_eq!((trusts(&shown), trusts(&later)), (true, false));
        handle.replace(second).unwrap();
        assert_eq!((trusts(&shown), trusts(&later)), (false, true));
    }
}
