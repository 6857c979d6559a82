//! A blocking connection to the server, for single requests and for clients that have a thread each.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crore_wire::mqtt::ReasonCode;

use super::mqtt::{self, Dialect, Packet};
use super::parse;

/// The pause before a client connects to the next node.
const NEXT_NODE_PAUSE: Duration = Duration::from_millis(50);

/// Why a request or a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No server listens on the address any more.
    #[error("nobody listens")]
    NotListening,
    /// The connection broke, or the server is unavailable for now.
    #[error("the connection broke")]
    Disconnected,
    /// The server refused the client with a CONNACK, or disconnected it with a DISCONNECT.
    #[error("the server refused: {0}")]
    Refused(ReasonCode),
    /// The server violated the protocol.
    #[error("{0}")]
    Violation(String),
}

impl LinkError {
    /// A violation of the protocol by the server.
    pub fn violation(why: impl std::fmt::Display) -> LinkError {
        LinkError::Violation(why.to_string())
    }
}

impl From<mqtt::Error> for LinkError {
    fn from(error: mqtt::Error) -> LinkError {
        match error {
            mqtt::Error::Refused(reason) => LinkError::Refused(reason),
            other => LinkError::violation(other),
        }
    }
}

/// Runs `session` again after each disconnect, until it succeeds, the server is gone, or the server violates the protocol. Returns the violation.
pub fn reconnect_until_gone(mut session: impl FnMut() -> Result<(), LinkError>) -> Option<String> {
    loop {
        match session() {
            Ok(()) | Err(LinkError::NotListening) => return None,
            Err(LinkError::Violation(why)) => return Some(why),
            Err(refused @ LinkError::Refused(_)) => return Some(refused.to_string()),
            Err(LinkError::Disconnected) => {}
        }
    }
}

/// Runs `session` at the nodes of a cluster in turn, until `must_stop` is set or a server violates the protocol. Returns the violation.
pub fn connect_in_turn(
    nodes: &[SocketAddr],
    must_stop: &AtomicBool,
    mut session: impl FnMut(SocketAddr) -> Result<(), LinkError>,
) -> Option<String> {
    for node in nodes.iter().cycle() {
        if must_stop.load(Relaxed) {
            break;
        }
        if let Err(LinkError::Violation(why)) = session(*node) {
            return Some(why);
        }
        std::thread::sleep(NEXT_NODE_PAUSE);
    }
    None
}

/// A connection.
pub struct Link {
    stream: TcpStream,
    /// Received bytes that are not handled yet.
    pub buffer: Vec<u8>,
}

impl Link {
    /// Connects. A read that takes longer than `timeout` returns [`LinkError::Violation`].
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Link, LinkError> {
        let stream = TcpStream::connect(address).map_err(|_| LinkError::NotListening)?;
        Link::of(stream, timeout)
    }

    /// A connection that is open. Reads have the same timeout as with [`Link::open`].
    pub fn of(stream: TcpStream, timeout: Duration) -> Result<Link, LinkError> {
        let ready = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(timeout)));
        ready.map_err(LinkError::violation)?;
        Ok(Link {
            stream,
            buffer: Vec::new(),
        })
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.stream
            .write_all(bytes)
            .map_err(|_| LinkError::Disconnected)
    }

    /// Sends an HTTP request and returns the status and the body of its answer.
    pub fn request(&mut self, request: &[u8]) -> Result<(u16, Vec<u8>), LinkError> {
        self.send(request)?;
        loop {
            if let Some(answer) = parse::response(&self.buffer).map_err(LinkError::violation)? {
                let (status, body) = (answer.head.status, answer.body.to_vec());
                let bytes = answer.bytes;
                self.buffer.drain(..bytes);
                return Ok((status, body));
            }
            self.read()?;
        }
    }

    /// Waits for the next MQTT packet, and returns the result of `handle`.
    pub fn read_packet<T>(
        &mut self,
        dialect: Dialect,
        handle: impl FnOnce(Packet<'_>) -> T,
    ) -> Result<T, LinkError> {
        loop {
            if let Some((packet, bytes)) = dialect.parse_packet(&self.buffer)? {
                let handled = handle(packet);
                self.buffer.drain(..bytes);
                return Ok(handled);
            }
            self.read()?;
        }
    }

    /// Waits for more bytes, at most `timeout`, and returns whether some came. Later reads keep this timeout.
    pub fn read_within(&mut self, timeout: Duration) -> Result<bool, LinkError> {
        let ready = self.stream.set_read_timeout(Some(timeout));
        ready.map_err(LinkError::violation)?;
        self.read_some()
    }

    /// Waits for more bytes.
    pub fn read(&mut self) -> Result<(), LinkError> {
        match self.read_some()? {
            true => Ok(()),
            false => Err(LinkError::violation("nothing came for too long")),
        }
    }

    fn read_some(&mut self) -> Result<bool, LinkError> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(LinkError::Disconnected),
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(LinkError::Disconnected),
        }
    }
}
