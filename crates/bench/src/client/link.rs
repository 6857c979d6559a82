//! A blocking connection to the server, for single requests and for clients that have a thread each.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::mqtt::{Dialect, Packet};
use super::parse;

/// Why a client's connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// No server listens on the address any more.
    #[error("nobody listens")]
    NotListening,
    /// The connection broke, or the server is unavailable for now.
    #[error("the connection broke")]
    Disconnected,
    /// The server violated the protocol.
    #[error("{0}")]
    Violation(String),
}

impl End {
    /// A violation of the protocol by the server.
    pub fn violation(why: impl std::fmt::Display) -> End {
        End::Violation(why.to_string())
    }
}

/// Runs `session` again after each disconnect, until it succeeds, the server is gone, or the server violates the protocol. Returns the violation.
pub fn reconnect_until_gone(mut session: impl FnMut() -> Result<(), End>) -> Option<String> {
    loop {
        match session() {
            Ok(()) | Err(End::NotListening) => return None,
            Err(End::Violation(why)) => return Some(why),
            Err(End::Disconnected) => {}
        }
    }
}

/// A connection.
pub struct Link {
    stream: TcpStream,
    /// Received bytes that are not handled yet.
    pub held: Vec<u8>,
}

impl Link {
    /// Connects. A read that takes longer than `timeout` returns [`End::Violation`].
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Link, End> {
        let stream = TcpStream::connect(address).map_err(|_| End::NotListening)?;
        let ready = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(timeout)));
        ready.map_err(End::violation)?;
        Ok(Link {
            stream,
            held: Vec::new(),
        })
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.stream.write_all(bytes).map_err(|_| End::Disconnected)
    }

    /// Sends an HTTP request and returns the status and the body of its answer.
    pub fn ask(&mut self, request: &[u8]) -> Result<(u16, Vec<u8>), End> {
        self.send(request)?;
        loop {
            if let Some(answer) = parse::response(&self.held).map_err(End::violation)? {
                let (status, body) = (answer.head.status, answer.body.to_vec());
                let bytes = answer.bytes;
                self.held.drain(..bytes);
                return Ok((status, body));
            }
            self.read()?;
        }
    }

    /// Waits for the next MQTT packet, and returns the result of `take`.
    pub fn packet<T>(
        &mut self,
        dialect: Dialect,
        take: impl FnOnce(Packet<'_>) -> T,
    ) -> Result<T, End> {
        loop {
            if let Some((packet, bytes)) = dialect.packet(&self.held).map_err(End::violation)? {
                let taken = take(packet);
                self.held.drain(..bytes);
                return Ok(taken);
            }
            self.read()?;
        }
    }

    /// Waits for more bytes, at most `timeout`, and returns whether some came. Later reads keep this timeout.
    pub fn read_within(&mut self, timeout: Duration) -> Result<bool, End> {
        let ready = self.stream.set_read_timeout(Some(timeout));
        ready.map_err(End::violation)?;
        self.read_some()
    }

    /// Waits for more bytes.
    pub fn read(&mut self) -> Result<(), End> {
        match self.read_some()? {
            true => Ok(()),
            false => Err(End::violation("nothing came for too long")),
        }
    }

    fn read_some(&mut self) -> Result<bool, End> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(End::Disconnected),
            Ok(count) => {
                self.held.extend_from_slice(&bytes[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(_) => Err(End::Disconnected),
        }
    }
}
