//! TLS to the server's own data port, for the tail: what is trusted is the certificate that its handshakes are done with, and nothing
//! else, whatever names it has and whoever has signed it.
//!
//! Who holds the key is this server, so that somebody else who took the port gets neither the operator's token nor a word.

use std::sync::Arc;

use crore_net::stream::Handle;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio_rustls::TlsConnector;

/// What connects to the data port whose handshakes are done by `handle`; it follows when the certificate is replaced.
pub fn connector(handle: Arc<Handle>) -> TlsConnector {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let pinned = Pinned {
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

#[derive(Debug)]
struct Pinned {
    handle: Arc<Handle>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *shown == self.handle.certificate() {
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
        };
        (source, made.cert.der().clone())
    }

    #[test]
    fn nothing_is_trusted_but_the_certificate_that_handshakes_are_done_with_now() {
        let ((first, shown), (second, later)) = (source(), source());
        let handle = Handle::new(first).unwrap();
        let pinned = Pinned {
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
