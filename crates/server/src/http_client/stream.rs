//! The bytes of a connection to a server, with TLS or without: blocking, with a bound on each wait or on all of them
//! together.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::server::Server;
use super::tls::Trust;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(Socket),
    /// With it.
    Tls(Box<Sealed>),
}

/// A connection with TLS.
#[derive(Debug)]
pub struct Sealed {
    stream: StreamOwned<ClientConnection, Socket>,
    host: String,
    trust: Trust,
}

/// A socket whose waits may have to end at one moment.
#[derive(Debug)]
pub struct Socket {
    tcp: TcpStream,
    /// The bounds of each wait to read and to write.
    timeouts: [Option<Duration>; 2],
    end: Option<Instant>,
}

impl Socket {
    /// Bounds the next wait by the moment, where there is one.
    fn limit(&self) -> io::Result<()> {
        let Some(end) = self.end else {
            return Ok(());
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let [read, write] = self
            .timeouts
            .map(|wait| wait.map_or(left, |wait| wait.min(left)));
        self.tcp.set_read_timeout(Some(read))?;
        self.tcp.set_write_timeout(Some(write))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        self.tcp.read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        self.tcp.write(bytes)
    }

    // The records that TLS writes lie in several buffers, and its last ones in two.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.limit()?;
        self.tcp.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Connects, and greets where the server's URL says TLS: so much time for each address, and for the handshake.
    ///
    /// # Errors
    /// As [`Server::connect`]; the fault of the server's TLS, with the remedy.
    pub fn open(server: &Server, timeout: Duration) -> io::Result<Stream> {
        let tcp = server.connect(timeout)?;
        let mut socket = Socket {
            tcp,
            timeouts: [None; 2],
            end: None,
        };
        let Some(trust) = server.trust()? else {
            return Ok(Stream::Plain(socket));
        };
        socket.end = Some(Instant::now() + timeout);
        let host = server.host().to_string();
        let mut tls = trust.begin(&host)?;
        while tls.is_handshaking() {
            let step = tls.complete_io(&mut socket);
            step.map_err(|error| in_handshake(&host, trust.explain(&host, error)))?;
        }
        socket.end = None;
        Ok(Stream::Tls(Box::new(Sealed {
            stream: StreamOwned::new(tls, socket),
            host,
            trust,
        })))
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(sealed) => &mut sealed.stream.sock,
        }
    }

    /// Bounds each wait for bytes from now on, and each write; `None` waits without end.
    ///
    /// # Errors
    /// The socket refuses.
    pub fn set_timeouts(&mut self, read: Option<Duration>, write: Duration) -> io::Result<()> {
        let socket = self.socket();
        socket.timeouts = [read, Some(write)];
        socket.tcp.set_read_timeout(read)?;
        socket.tcp.set_write_timeout(Some(write))
    }

    /// All that is read and written from now on must be done by this moment.
    pub fn set_end(&mut self, end: Instant) {
        self.socket().end = Some(end);
    }

    /// Whether the peer is still there, and has said nothing that was not asked for.
    pub fn is_quiet(&mut self) -> bool {
        let quiet = |stream: &mut Stream| match stream {
            Stream::Plain(socket) => {
                let peeked = socket.tcp.peek(&mut [0]);
                peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            }
            Stream::Tls(sealed) => sealed.is_quiet(),
        };
        let begun = self.socket().tcp.set_nonblocking(true).is_ok();
        let quiet = begun && quiet(self);
        self.socket().tcp.set_nonblocking(false).is_ok() && quiet
    }
}

impl Sealed {
    /// Takes what TLS says for itself, such as tickets, from a socket that does not block.
    fn is_quiet(&mut self) -> bool {
        let StreamOwned { conn, sock } = &mut self.stream;
        loop {
            match conn.read_tls(&mut sock.tcp) {
                Ok(0) => return false,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
                Ok(_) => match conn.process_new_packets() {
                    Ok(state)
                        if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
                    _ => return false,
                },
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(sealed) => {
                let read = sealed.stream.read(buffer);
                read.map_err(|error| sealed.trust.explain(&sealed.host, error))
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(sealed) => {
                let written = sealed.stream.write(bytes);
                written.map_err(|error| sealed.trust.explain(&sealed.host, error))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(sealed) => {
                let flushed = sealed.stream.flush();
                flushed.map_err(|error| sealed.trust.explain(&sealed.host, error))
            }
        }
    }
}

/// Silence and an end within a handshake mean something else than later.
fn in_handshake(host: &str, error: io::Error) -> io::Error {
    let what = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer to the handshake in time",
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it closes the connection within the handshake"
        }
        _ => return error,
    };
    let remedy = "see that it speaks TLS on this port, or write http://";
    io::Error::new(error.kind(), format!("TLS with {host}: {what}; {remedy}"))
}
