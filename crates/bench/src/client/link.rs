//! A blocking connection of one client: for a request and its answer, and for clients that have a thread each.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::mqtt::{Dialect, Packet};
use super::parse;

/// Why a client's connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// Nobody listens any more.
    #[error("nobody listens")]
    Gone,
    /// The connection broke, or the client was turned away for now.
    #[error("the connection broke")]
    Cut,
    /// The server broke the protocol.
    #[error("{0}")]
    Wrong(String),
}

impl End {
    /// The server broke the protocol.
    pub fn wrong(why: impl std::fmt::Display) -> End {
        End::Wrong(why.to_string())
    }
}

/// Has a client connect again and again until the server is gone, all is done, or something is wrong, which it returns.
pub fn until_gone(mut session: impl FnMut() -> Result<(), End>) -> Option<String> {
    loop {
        match session() {
            Ok(()) | Err(End::Gone) => return None,
            Err(End::Wrong(why)) => return Some(why),
            Err(End::Cut) => {}
        }
    }
}

/// A connection.
pub struct Link {
    stream: TcpStream,
    /// Bytes that came and are not used yet.
    pub held: Vec<u8>,
}

impl Link {
    /// Connects. A read that takes longer than `patience` is [`End::Wrong`].
    pub fn open(address: SocketAddr, patience: Duration) -> Result<Link, End> {
        let stream = TcpStream::connect(address).map_err(|_| End::Gone)?;
        let ready = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(patience)));
        ready.map_err(End::wrong)?;
        Ok(Link {
            stream,
            held: Vec::new(),
        })
    }

    /// Sends all.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.stream.write_all(bytes).map_err(|_| End::Cut)
    }

    /// Sends a request over HTTP and waits for its answer: the status and the body.
    pub fn ask(&mut self, request: &[u8]) -> Result<(u16, Vec<u8>), End> {
        self.send(request)?;
        loop {
            if let Some(answer) = parse::response(&self.held).map_err(End::wrong)? {
                let (status, body) = (answer.head.status, answer.body.to_vec());
                let bytes = answer.bytes;
                self.held.drain(..bytes);
                return Ok((status, body));
            }
            self.read()?;
        }
    }

    /// Waits for the next packet of MQTT, and returns the result of `take`.
    pub fn packet<T>(
        &mut self,
        dialect: Dialect,
        take: impl FnOnce(Packet<'_>) -> T,
    ) -> Result<T, End> {
        loop {
            if let Some((packet, bytes)) = dialect.packet(&self.held).map_err(End::wrong)? {
                let taken = take(packet);
                self.held.drain(..bytes);
                return Ok(taken);
            }
            self.read()?;
        }
    }

    /// Waits for more bytes, so long at most.
    pub fn read_for(&mut self, patience: Duration) -> Result<(), End> {
        let ready = self.stream.set_read_timeout(Some(patience));
        ready.map_err(End::wrong)?;
        self.read()
    }

    /// Waits for more bytes.
    pub fn read(&mut self) -> Result<(), End> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(End::Cut),
            Ok(count) => {
                self.held.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(End::wrong("nothing came for too long"))
            }
            Err(_) => Err(End::Cut),
        }
    }
}
