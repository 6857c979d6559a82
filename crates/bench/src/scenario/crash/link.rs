//! A connection of one client: blocking, because each client has a thread of its own, and the end of the server ends it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Why a client's connection ended.
#[derive(Debug)]
pub enum End {
    /// Nobody listens any more.
    Gone,
    /// The connection broke, or the client was turned away for now.
    Cut,
    /// The server did what no server may do.
    Wrong(String),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Gone => f.write_str("nobody listens"),
            End::Cut => f.write_str("the connection broke"),
            End::Wrong(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for End {}

impl End {
    /// What no server may do.
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
