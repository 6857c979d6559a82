//! A client that only does TLS handshakes: it connects, waits for a session ticket if it resumes sessions, and disconnects.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion};

use crate::client::tls::{self, NAME};
use crate::rig::Certificate;

/// Timeout for data of the server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Threads of a storm. There are more than cores, so that some compute while others wait.
const THREADS: u32 = 8;

/// The results of a series of handshakes.
pub struct Handshakes {
    /// The number of handshakes.
    pub handshakes: u32,
    /// Handshakes that resumed an earlier session.
    pub resumed: u32,
    /// The duration in seconds.
    pub elapsed_s: f64,
}

/// Does `count` handshakes, one after the other.
///
/// # Errors
/// If a handshake fails.
pub fn do_handshakes(
    server: SocketAddr,
    certificate: &Certificate,
    resumes: bool,
    count: u32,
) -> Result<Handshakes> {
    let config = tls::client(&certificate.chain, resumes)?;
    let (mut resumed, start) = (0, Instant::now());
    for _ in 0..count {
        let kind = do_handshake(server, &config, resumes)?;
        resumed += u32::from(kind == Some(HandshakeKind::Resumed));
    }
    Ok(Handshakes {
        handshakes: count,
        resumed,
        elapsed_s: start.elapsed().as_secs_f64(),
    })
}

fn do_handshake(
    server: SocketAddr,
    config: &Arc<ClientConfig>,
    resumes: bool,
) -> Result<Option<HandshakeKind>> {
    let mut stream = TcpStream::connect(server).context("a handshake's connect")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(NAME).expect("a literal name");
    let mut connection = ClientConnection::new(config.clone(), name)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).context("a handshake")?;
    }
    if connection.wants_write() {
        connection.write_tls(&mut stream)?;
    }
    if resumes && connection.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
        // If there is a ticket, it arrives after the handshake.
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        if connection.read_tls(&mut stream).is_ok() {
            connection.process_new_packets()?;
        }
    }
    connection.send_close_notify();
    connection.write_tls(&mut stream)?;
    stream.flush()?;
    // This reads until the server has closed the connection, so that the server's work for this handshake ends before the next one begins.
    let mut buffer = [0; 512];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
    Ok(connection.handshake_kind())
}

/// Does handshakes at a rate, in the background, until this value is dropped.
pub struct BackgroundHandshakes {
    shared: Arc<(AtomicBool, AtomicU64)>,
    threads: Vec<JoinHandle<()>>,
}

impl BackgroundHandshakes {
    /// Starts the handshakes.
    ///
    /// # Errors
    /// If the certificate cannot be read.
    pub fn start(
        server: SocketAddr,
        certificate: &Certificate,
        per_s: u32,
    ) -> Result<BackgroundHandshakes> {
        let config = tls::client(&certificate.chain, false)?;
        let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let threads = (0..THREADS).map(|_| {
            let (shared, config) = (shared.clone(), config.clone());
            std::thread::spawn(move || {
                let (start, mut own_count) = (Instant::now(), 0);
                while !shared.0.load(Relaxed) {
                    if do_handshake(server, &config, false).is_ok() {
                        shared.1.fetch_add(1, Relaxed);
                    }
                    own_count += 1;
                    let due =
                        Duration::from_secs_f64(f64::from(own_count * THREADS) / f64::from(per_s));
                    std::thread::sleep(due.saturating_sub(start.elapsed()));
                }
            })
        });
        Ok(BackgroundHandshakes {
            threads: threads.collect(),
            shared,
        })
    }

    /// The number of handshakes so far.
    pub fn count(&self) -> u64 {
        self.shared.1.load(Relaxed)
    }
}

impl Drop for BackgroundHandshakes {
    fn drop(&mut self) {
        self.shared.0.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
