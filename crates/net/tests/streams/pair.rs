//! A TLS server side and a client, connected by a socket pair, for tests that run each step themselves.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crore_net::Transport as _;
use crore_net::kernel::{Kernel, acceptor, steering::Group};
use crore_net::stream::{
    BUFFER_MIN, Handle, Limits, PlainReceived, Source, StreamState, TlsStreams,
};
use crore_net::transport::Link;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite, version};

pub const TOKEN: u64 = 7;
pub const LIMITS: Limits = Limits {
    handshakes_max: 4,
    receive_bytes_max: 1 << 20,
    send_bytes_max: 1 << 20,
    required: false,
    proxied: false,
};

/// A certificate for `localhost`, and its key.
pub fn source() -> Source {
    let generated =
        rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
    Source {
        certificate: generated.cert.pem().into_bytes(),
        key: generated.signing_key.serialize_pem().into_bytes(),
        clients: None,
        only_13: false,
        h2: false,
    }
}

/// A client that trusts the certificate and offers only this cipher suite.
pub fn client(source: &Source, suite: SupportedCipherSuite) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(&source.certificate).expect("PEM");
    roots.add(root).expect("a root");
    let provider = rustls::crypto::CryptoProvider {
        cipher_suites: vec![suite],
        ..aws_lc_rs::default_provider()
    };
    let version = match suite.tls13() {
        Some(_) => &version::TLS13,
        None => &version::TLS12,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// All cipher suites that work with an ECDSA key.
pub fn suites() -> [SupportedCipherSuite; 6] {
    use aws_lc_rs::cipher_suite::*;
    [
        TLS13_AES_128_GCM_SHA256,
        TLS13_AES_256_GCM_SHA384,
        TLS13_CHACHA20_POLY1305_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ]
}

pub struct Pair {
    pub streams: TlsStreams,
    pub client: ClientConnection,
    pub link: Link,
    pub sockets: Kernel,
    client_socket: UnixStream,
    buffer: Vec<u8>,
    /// Bytes received by the server's side.
    pub server_received: Vec<u8>,
    pub server_state: StreamState,
    /// Bytes received by the client.
    pub client_received: Vec<u8>,
    /// The error that ended the client's session.
    pub error: Option<rustls::Error>,
    /// Whether the client has read the end of the server's stream.
    pub server_has_ended: bool,
}

impl Pair {
    pub fn new(handle: Arc<Handle>, config: Arc<ClientConfig>) -> Pair {
        Pair::with_limits(handle, config, LIMITS)
    }

    pub fn with_limits(handle: Arc<Handle>, config: Arc<ClientConfig>, limits: Limits) -> Pair {
        let (server_socket, client_socket) = UnixStream::pair().expect("a socket");
        for end in [&server_socket, &client_socket] {
            end.set_nonblocking(true).expect("non-blocking");
        }
        let link = Link(server_socket.into_raw_fd() as u32);
        let no_limits = acceptor::Limits::default();
        let mut sockets = Kernel::open(&[], no_limits, &Group::new()).expect("a poller");
        sockets.open(link, TOKEN).expect("a registration");
        let mut streams = TlsStreams::new(handle, limits);
        streams.add_connection(link);
        let name = ServerName::try_from("localhost").expect("a name");
        Pair {
            streams,
            client: ClientConnection::new(config, name).expect("a client"),
            link,
            sockets,
            client_socket,
            buffer: vec![0; BUFFER_MIN],
            server_received: Vec::new(),
            server_state: StreamState::Open,
            client_received: Vec::new(),
            error: None,
            server_has_ended: false,
        }
    }

    /// The bytes that the client wants to send.
    pub fn outgoing(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut out).expect("a vector takes all");
        }
        out
    }

    /// Delivers bytes to the server in pieces of these lengths, which repeat.
    pub fn deliver(&mut self, mut bytes: &[u8], piece_lengths: &[usize]) {
        for length in piece_lengths.iter().cycle() {
            if bytes.is_empty() {
                return;
            }
            let (piece, rest) = bytes.split_at((*length).clamp(1, bytes.len()));
            match self.client_socket.write(piece) {
                Ok(count) => {
                    bytes = if count == piece.len() {
                        rest
                    } else {
                        &bytes[count..]
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            self.run_turn();
        }
    }

    /// Writes bytes to the socket, which accepts all of them.
    pub fn write_to_socket(&mut self, bytes: &[u8]) {
        self.client_socket
            .write_all(bytes)
            .expect("a socket with room");
    }

    /// The client closes its sending side.
    pub fn end_client_stream(&mut self) {
        let end = self.client_socket.shutdown(std::net::Shutdown::Write);
        end.expect("a socket that is open");
    }

    /// The server reads.
    pub fn server_receive(&mut self) {
        let (sockets, buffer) = (&mut self.sockets, &mut self.buffer);
        let received = self.streams.receive(sockets, self.link, TOKEN, buffer);
        self.record_received(received);
    }

    /// Runs one turn (one run of the event loop) of the server.
    pub fn run_turn(&mut self) {
        self.server_receive();
        self.run_handshakes();
    }

    /// Runs only the handshake work of a turn.
    pub fn run_handshakes(&mut self) {
        let (sockets, buffer) = (&mut self.sockets, &mut self.buffer);
        while let Some((token, received)) = self.streams.next_handshake(sockets, buffer) {
            assert_eq!(token, TOKEN);
            self.server_received
                .extend_from_slice(&buffer[..received.plain_bytes]);
            if received.state != StreamState::Open {
                self.server_state = received.state;
            }
        }
        self.streams.end_turn(sockets);
    }

    fn record_received(&mut self, received: PlainReceived) {
        self.server_received
            .extend_from_slice(&self.buffer[..received.plain_bytes]);
        if received.state != StreamState::Open {
            self.server_state = received.state;
        }
    }

    /// The client closes the connection, and the server runs a turn.
    pub fn client_hang_up(&mut self) {
        let end = self.client_socket.shutdown(std::net::Shutdown::Both);
        end.expect("a socket that is open");
        self.run_turn();
    }

    /// The client reads available bytes.
    pub fn client_read(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.client_socket.read(&mut bytes) {
                Ok(0) => {
                    self.server_has_ended = true;
                    return;
                }
                Ok(count) => self.process_received(&bytes[..count]),
                Err(_) => return,
            }
        }
    }

    /// The client reads at most `bytes_max` bytes.
    pub fn client_read_at_most(&mut self, bytes_max: usize) {
        let mut bytes = vec![0; bytes_max];
        if let Ok(count) = self.client_socket.read(&mut bytes) {
            self.process_received(&bytes[..count]);
        }
    }

    fn process_received(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.error.is_none() {
            self.client.read_tls(&mut bytes).expect("a slice");
            match self.client.process_new_packets() {
                Ok(session) => {
                    let start = self.client_received.len();
                    self.client_received
                        .resize(start + session.plaintext_bytes_to_read(), 0);
                    let read = self
                        .client
                        .reader()
                        .read_exact(&mut self.client_received[start..]);
                    read.expect("rustls has these bytes");
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    /// Exchanges bytes until the handshake is over and nothing more is sent.
    pub fn complete_handshake(&mut self, piece_lengths: &[usize]) {
        for _ in 0..6 {
            let out = self.outgoing();
            self.deliver(&out, piece_lengths);
            self.client_read();
        }
    }

    pub fn handle_writable(&mut self) -> bool {
        self.streams
            .handle_writable(&mut self.sockets, self.link, TOKEN)
    }

    /// The server sends. Returns how many bytes were accepted, if the connection has TLS.
    pub fn send(&mut self, parts: &[&[u8]]) -> Option<usize> {
        self.streams.send(&mut self.sockets, self.link, parts)
    }

    /// The server drops its state of the connection.
    pub fn forget_connection(&mut self, orderly: bool) {
        self.streams.forget(&mut self.sockets, self.link, orderly);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.forget_connection(true);
        self.sockets.close(self.link);
    }
}
