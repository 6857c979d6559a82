//! Tests TLS through a proxy that passes bytes on: it sends a PROXY header with the client's address, and then the client's own handshake.

use crate::support::port::await_metric;
use crate::support::{Server, connect};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::tool::Certificates;

const REQUEST: &str = "POST /pub/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";

/// The PROXY header of a client whose address ends with this byte.
fn header(client: u8) -> Vec<u8> {
    let fixed = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    let addresses = [192, 0, 2, client, 127, 0, 0, 1, 0x9c, 0x40, 0x22, 0x60];
    [&fixed[..], &addresses].concat()
}

fn config(certificates: &Certificates) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(certificates.path("ca.pem")).expect("PEM");
    roots.add(root).expect("a root");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    Arc::new(config.with_no_client_auth())
}

fn settings(certificates: &Certificates, extra_settings: &str) -> String {
    let http = "[http]\nproxy_protocol = true\ntrusted_proxies = ['127.0.0.0/8']";
    let limits = "[limits]\nconnections_per_address_max = 2";
    format!(
        "{http}\n{limits}\n{}",
        certificates.settings(extra_settings)
    )
}

/// The status of a request over TLS, sent after the bytes `prefix`, which go out in pieces of this length.
fn status(
    server: &Server,
    config: &Arc<ClientConfig>,
    prefix: &[u8],
    cut: usize,
) -> (String, StreamOwned<ClientConnection, TcpStream>) {
    let mut socket = connect(server.address());
    for piece in prefix.chunks(cut) {
        socket.write_all(piece).expect("it is read");
        std::thread::sleep(Duration::from_millis(2)); // the pace of the load
    }
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(config.clone(), name).expect("a client");
    let mut stream = StreamOwned::new(client, socket);
    stream.write_all(REQUEST.as_bytes()).expect("it is read");
    let mut answer = vec![0; 4096];
    let len = stream.read(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..len]).into_owned();
    let status = answer.split(' ').nth(1).expect("a status").to_string();
    (status, stream)
}

#[test]
fn tls_client_behind_a_proxy_is_counted_by_its_own_address() {
    let certificates = Certificates::new();
    let server = Server::with(&settings(&certificates, "required = true"));
    let config = config(&certificates);
    let (first, _open) = status(&server, &config, &header(7), 100);
    let (second, _open) = status(&server, &config, &header(7), 1);
    let (third, _open) = status(&server, &config, &header(7), 5);
    assert_eq!([first, second, third], ["202", "202", "429"]);
    let (other, _open) = status(&server, &config, &header(8), 16);
    assert_eq!(other, "202", "another client of the same proxy");
}

#[test]
fn plain_connections_after_a_proxy_header_follow_the_settings() {
    let certificates = Certificates::new();
    for (extra_settings, expected) in [("", "HTTP/1.1 202"), ("required = true", "HTTP/1.1 400")] {
        let server = Server::with(&settings(&certificates, extra_settings));
        let mut plain = connect(server.address());
        let request = [&header(7)[..], REQUEST.as_bytes()].concat();
        plain.write_all(&request).expect("it is read");
        let mut answer = [0; 12];
        plain.read_exact(&mut answer).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), expected);
    }
}

#[test]
fn a_handshake_without_the_header_is_not_begun() {
    let certificates = Certificates::new();
    let server = Server::with_admin(&settings(&certificates, ""));
    let mut direct = connect(server.address());
    direct.write_all(&[22, 3, 1, 2, 0, 1]).expect("it is read");
    let mut answer = Vec::new();
    let _ = direct.read_to_end(&mut answer); // a reset is an end too
    assert!(answer.is_empty(), "{answer:?}");
    let refused = "crore_closed_connections_total{reason=\"refused\"}";
    await_metric(server.admin(), refused, 1.0);
}
