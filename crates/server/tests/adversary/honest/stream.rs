//! The sockets of honest clients, plain or with TLS, with the received bytes that were not processed yet.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::{ANSWER_TIMEOUT, Server};

/// Timeout of a read, after which the client checks whether it should end.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
/// Time between the two pieces of a message that is sent in two.
pub const BETWEEN_PIECES: Duration = Duration::from_millis(30);

enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A connection.
pub struct Stream {
    wire: Wire,
    pub unparsed: Vec<u8>,
}

impl Stream {
    pub fn plain(server: &Server) -> Result<Stream, String> {
        let wire = Wire::Plain(connect(server)?);
        Ok(Stream {
            wire,
            unparsed: Vec::new(),
        })
    }

    pub fn tls(server: &Server) -> Result<Stream, String> {
        let name = ServerName::try_from("localhost").expect("a literal name");
        let session = ClientConnection::new(Arc::clone(&server.tls), name)
            .map_err(|error| error.to_string())?;
        let wire = Wire::Tls(Box::new(StreamOwned::new(session, connect(server)?)));
        Ok(Stream {
            wire,
            unparsed: Vec::new(),
        })
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let began = Instant::now();
        let mut rest = bytes;
        while !rest.is_empty() {
            let sent = match &mut self.wire {
                Wire::Plain(stream) => stream.write(rest),
                Wire::Tls(stream) => stream.write(rest),
            };
            match sent {
                Ok(sent) => rest = &rest[sent..],
                // With TLS, the write may have to wait for handshake bytes of the server.
                Err(error) if is_timeout(&error) && began.elapsed() < ANSWER_TIMEOUT => {}
                Err(error) => return Err(format!("it cannot send: {error}")),
            }
        }
        Ok(())
    }

    /// Sends in two pieces, with some time between.
    pub fn send_in_two(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.send(first)?;
        std::thread::sleep(BETWEEN_PIECES);
        self.send(second)
    }

    /// Waits a moment for more bytes. Returns whether any arrived.
    pub fn read_available(&mut self) -> Result<bool, String> {
        let mut buffer = [0; 32 << 10];
        let read = match &mut self.wire {
            Wire::Plain(stream) => stream.read(&mut buffer),
            Wire::Tls(stream) => stream.read(&mut buffer),
        };
        match read {
            Ok(0) => Err(format!(
                "the server closed its connection{}",
                self.describe_unparsed()
            )),
            Ok(read) => {
                self.unparsed.extend_from_slice(&buffer[..read]);
                Ok(true)
            }
            Err(error) if is_timeout(&error) => Ok(false),
            Err(error) => Err(format!(
                "its connection broke: {error}{}",
                self.describe_unparsed()
            )),
        }
    }

    /// Waits until `find` finds something in the received bytes, and removes the bytes that it used.
    pub fn read_until_found<T>(
        &mut self,
        mut find: impl FnMut(&[u8]) -> Result<Option<(T, usize)>, String>,
    ) -> Result<T, String> {
        let began = Instant::now();
        loop {
            if let Some((found, bytes)) = find(&self.unparsed)? {
                self.unparsed.drain(..bytes);
                return Ok(found);
            }
            if !self.read_available()? && began.elapsed() > ANSWER_TIMEOUT {
                return Err(format!(
                    "no answer came in {ANSWER_TIMEOUT:?}{}",
                    self.describe_unparsed()
                ));
            }
        }
    }

    fn describe_unparsed(&self) -> String {
        let beginning = &self.unparsed[..self.unparsed.len().min(200)];
        match beginning {
            [] => String::new(),
            bytes => format!(", after {:?}", String::from_utf8_lossy(bytes)),
        }
    }
}

fn connect(server: &Server) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&server.address, ANSWER_TIMEOUT)
        .map_err(|error| format!("it cannot connect: {error}"))?;
    let result = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(READ_TIMEOUT)))
        .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)));
    result.map_err(|error| error.to_string())?;
    Ok(stream)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// An HTTP answer.
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }

    /// The answer in one line, for a report.
    pub fn describe(&self) -> String {
        let first = self.head.lines().next().unwrap_or_default();
        format!("{first:?} {:?}", String::from_utf8_lossy(&self.body))
    }
}

/// The head of an answer, without its body.
pub fn read_head(stream: &mut Stream) -> Result<Answer, String> {
    stream.read_until_found(|held| {
        let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = String::from_utf8_lossy(&held[..end + 2]).into_owned();
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("no status in {head:?}"))?;
        let body = Vec::new();
        Ok(Some((Answer { status, head, body }, end + 4)))
    })
}

/// A complete answer that has a length or no body.
pub fn read_answer(stream: &mut Stream) -> Result<Answer, String> {
    let mut answer = read_head(stream)?;
    let length = answer
        .field("content-length")
        .and_then(|length| length.parse().ok());
    if let Some(length) = length.filter(|length| *length > 0) {
        answer.body = stream.read_until_found(|held| {
            let body = held.get(..length);
            Ok(body.map(|body| (body.to_vec(), length)))
        })?;
    }
    Ok(answer)
}
