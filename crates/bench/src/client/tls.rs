//! TLS for the load tools: a `rustls` client over the tools' non-blocking sockets.
//!
//! The client trusts the certificates in one file, and expects every server's certificate to be for `localhost`. The code is not optimized.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use crore_net::pem;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::sys;

/// The name in the server's certificate.
pub const NAME: &str = "localhost";
/// The maximum number of bytes that wait for the handshake or the socket.
const WAITING_BYTES: usize = 1 << 20;

/// The configuration of a client that trusts the certificates in this PEM file. With `resumes` it keeps session tickets.
///
/// # Errors
/// If the file has no certificate.
pub fn client(roots: &Path, resumes: bool) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    let file = std::fs::read(roots).with_context(|| format!("cannot read {}", roots.display()))?;
    let certificates = pem::certificates(&file);
    for certificate in certificates.map_err(|what| anyhow!("{}: {what}", roots.display()))? {
        store.add(certificate)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    Ok(Arc::new(config))
}

/// The TLS state of one connection.
pub struct Tls(ClientConnection);

impl Tls {
    /// The state of a new connection.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: &Arc<ClientConfig>) -> Result<Tls> {
        let name = ServerName::try_from(NAME).expect("a literal name");
        let mut connection = ClientConnection::new(config.clone(), name)?;
        connection.set_buffer_limit(Some(WAITING_BYTES));
        Ok(Tls(connection))
    }

    /// Accepts as many of the bytes as fit into the buffer, and sends as much as the socket accepts.
    ///
    /// # Errors
    /// The socket fails.
    pub fn send(&mut self, fd: i32, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.0.writer().write(bytes)?;
        self.flush(fd)?;
        Ok(taken)
    }

    /// Sends the waiting bytes. Returns whether all are sent.
    ///
    /// # Errors
    /// The socket fails.
    pub fn flush(&mut self, fd: i32) -> io::Result<bool> {
        while self.0.wants_write() {
            if self.0.write_tls(&mut Socket(fd))? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Receives bytes as [`sys::receive`] does.
    ///
    /// # Errors
    /// The socket fails, or the server violates TLS.
    pub fn receive(&mut self, fd: i32, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let ended = match self.0.read_tls(&mut Socket(fd)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            count => count? == 0,
        };
        let state = self.0.process_new_packets();
        let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.flush(fd)?;
        let mut count = 0;
        while count < state.plaintext_bytes_to_read() {
            count += self.0.reader().read(&mut buffer[count..])?;
        }
        let is_over = ended || state.peer_has_closed();
        Ok((count > 0 || is_over).then_some(count))
    }
}

struct Socket(i32);

impl io::Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        sys::receive(self.0, buffer)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

impl io::Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
