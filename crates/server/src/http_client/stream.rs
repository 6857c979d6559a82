//! A blocking connection to a server, with or without TLS. Each read and write has a timeout, and the connection may have a deadline.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::server::Server;
use super::tls::Trust;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

/// A connection with TLS.
#[derive(Debug)]
pub struct TlsStream {
    stream: StreamOwned<ClientConnection, Socket>,
    host: String,
    trust: Trust,
}

/// A socket that may have a deadline.
#[derive(Debug)]
pub struct Socket {
    tcp: TcpStream,
    /// The timeouts of each read and each write.
    timeouts: [Option<Duration>; 2],
    /// The deadline of all reads and writes.
    deadline: Option<Instant>,
}

impl Socket {
    /// Shortens the timeouts of the next read or write to the time that is left until the deadline. Fails after the deadline.
    fn apply_deadline(&self) -> io::Result<()> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        let time_left = deadline.saturating_duration_since(Instant::now());
        if time_left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        let [read, write] = self
            .timeouts
            .map(|timeout| timeout.map_or(time_left, |timeout| timeout.min(time_left)));
        self.tcp.set_read_timeout(Some(read))?;
        self.tcp.set_write_timeout(Some(write))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.apply_deadline()?;
        self.tcp.read(buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.apply_deadline()?;
        self.tcp.write(bytes)
    }

    // `rustls` writes records from several buffers in one call.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.apply_deadline()?;
        self.tcp.write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Connects, with a TLS handshake if the URL is `https`. The timeout applies to each address of the host, and again to the handshake. The deadline, if there
    /// is one, applies to everything after the look-up of the host's name.
    ///
    /// # Errors
    /// As [`Server::connect`], or the handshake fails. Then the error names the remedy.
    pub fn open(
        server: &Server,
        timeout: Duration,
        deadline: Option<Instant>,
    ) -> io::Result<Stream> {
        let tcp = server.connect(timeout, deadline)?;
        let mut socket = Socket {
            tcp,
            timeouts: [None; 2],
            deadline: None,
        };
        let Some(trust) = server.trust()? else {
            return Ok(Stream::Plain(socket));
        };
        let handshake_end = Instant::now() + timeout;
        socket.deadline = Some(deadline.map_or(handshake_end, |end| end.min(handshake_end)));
        let host = server.host().to_string();
        let mut tls = trust.begin(&host)?;
        while tls.is_handshaking() {
            let step = tls.complete_io(&mut socket);
            step.map_err(|error| explain_handshake(&host, trust.explain(&host, error)))?;
        }
        socket.deadline = None;
        Ok(Stream::Tls(Box::new(TlsStream {
            stream: StreamOwned::new(tls, socket),
            host,
            trust,
        })))
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &mut tls.stream.sock,
        }
    }

    /// Sets the timeouts of reads and writes; `None` is no timeout.
    pub fn set_timeouts(&mut self, read: Option<Duration>, write: Duration) -> io::Result<()> {
        let socket = self.socket();
        socket.timeouts = [read, Some(write)];
        socket.tcp.set_read_timeout(read)?;
        socket.tcp.set_write_timeout(Some(write))
    }

    /// Sets the deadline: reads and writes after `deadline` fail.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.socket().deadline = Some(deadline);
    }

    /// Whether the peer has neither closed the connection nor sent bytes that are still unread.
    pub fn is_idle(&mut self) -> bool {
        let is_idle = |stream: &mut Stream| match stream {
            Stream::Plain(socket) => {
                let peeked = socket.tcp.peek(&mut [0]);
                peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            }
            Stream::Tls(tls) => tls.is_idle(),
        };
        let is_nonblocking = self.socket().tcp.set_nonblocking(true).is_ok();
        let is_idle = is_nonblocking && is_idle(self);
        self.socket().tcp.set_nonblocking(false).is_ok() && is_idle
    }
}

impl TlsStream {
    /// [`Stream::is_idle`], for a socket in non-blocking mode. Reads records that carry no data, such as session tickets.
    fn is_idle(&mut self) -> bool {
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
            Stream::Tls(tls) => {
                let read = tls.stream.read(buffer);
                read.map_err(|error| tls.trust.explain(&tls.host, error))
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(tls) => {
                let written = tls.stream.write(bytes);
                written.map_err(|error| tls.trust.explain(&tls.host, error))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(tls) => {
                let flushed = tls.stream.flush();
                flushed.map_err(|error| tls.trust.explain(&tls.host, error))
            }
        }
    }
}

/// Adds to the error that the peer may not speak TLS: this is the usual reason of a timeout or a close within the handshake.
fn explain_handshake(host: &str, error: io::Error) -> io::Error {
    let message = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer to the handshake in time",
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it closes the connection within the handshake"
        }
        _ => return error,
    };
    let remedy = "see that it speaks TLS on this port, or write http://";
    io::Error::new(
        error.kind(),
        format!("TLS with {host}: {message}; {remedy}"),
    )
}
