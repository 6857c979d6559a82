//! A small HTTP/1.1 client (RFC 9112) that sends one request at a time on a blocking connection, which is kept alive.
//!
//! Response heads, trailers and bodies that are read as a whole have size limits. A server that breaks the protocol causes an error, never a
//! panic.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::server::Server;
use super::stream::Stream;

/// Maximum bytes of a response's head with the interim heads before it. The trailers after a chunked body have the same limit. Heads of a Crore
/// server are far smaller.
const MAX_HEAD_BYTES: u64 = 64 << 10;

/// Maximum length of the line with a chunk's size and extensions, in bytes.
const MAX_CHUNK_LINE_BYTES: u64 = 4 << 10;

/// Timeout of a connection attempt to one address, and of a TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of each read and write. A caller that expects to wait longer can change the timeout of reads.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The head of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    reason: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// The value of the first header `name`. `name` must be in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The status as text for people.
    pub fn status_text(&self) -> String {
        format!("{} {}", self.status, self.reason)
            .trim_end()
            .to_string()
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        values.any(|(_, value)| {
            value
                .split(',')
                .any(|item| item.trim().eq_ignore_ascii_case(token))
        })
    }
}

/// The unread rest of a response's body (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// This number of bytes is unread.
    Length(u64),
    /// This number of bytes of the current chunk is unread. At 0 the line with the next chunk's size follows.
    Chunk(u64),
    /// All bytes until the peer closes the connection.
    UntilClose,
    Done,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
    body: Body,
    keep_alive: bool,
}

fn protocol_error(message: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("the server's answer is not HTTP/1.1: {message}"),
    )
}

impl Connection {
    /// Connects. The timeout of reads is [`ANSWER_TIMEOUT`] until [`Connection::set_read_timeout`].
    pub fn open(server: &Server) -> io::Result<Self> {
        Self::open_within(server, CONNECT_TIMEOUT)
    }

    /// As `Connection::open`, with another timeout for the connection attempt.
    pub fn open_within(server: &Server, timeout: Duration) -> io::Result<Self> {
        Self::open_stream(server, timeout, None)
    }

    fn open_stream(
        server: &Server,
        timeout: Duration,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        let mut stream = Stream::open(server, timeout, deadline)?;
        stream.set_timeouts(Some(ANSWER_TIMEOUT), ANSWER_TIMEOUT)?;
        Ok(Connection {
            stream: BufReader::new(stream),
            body: Body::Done,
            keep_alive: true,
        })
    }

    /// As `Connection::open`, with a deadline: connecting, reads and writes after `deadline` fail.
    pub fn open_with_deadline(server: &Server, deadline: Instant) -> io::Result<Self> {
        let timeout = deadline.saturating_duration_since(Instant::now());
        let mut connection =
            Self::open_stream(server, timeout.min(CONNECT_TIMEOUT), Some(deadline))?;
        connection.set_deadline(deadline);
        Ok(connection)
    }

    /// Sets the timeout of reads; `None` is no timeout.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.set_timeouts(timeout, ANSWER_TIMEOUT)
    }

    /// From now on, reads and writes after `deadline` fail.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.stream.get_mut().set_deadline(deadline);
    }

    /// The connection, if it can take another request: the last response was read to its end, and the peer has neither closed the
    /// connection nor sent unexpected bytes.
    pub fn into_reusable(mut self) -> Option<Self> {
        let is_reusable = self.keep_alive
            && self.body == Body::Done
            && self.stream.buffer().is_empty()
            && self.stream.get_mut().is_idle();
        is_reusable.then_some(self)
    }

    /// Sends a request and reads the head of its final response.
    ///
    /// # Errors
    /// The connection fails, or the answer is not HTTP/1.1.
    pub fn request(
        &mut self,
        server: &Server,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Head> {
        let mut request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\n",
            server.authority()
        );
        for (name, value) in headers {
            // A line end in a value would begin another header or request. A caller should check first, since it can say better what is wrong.
            if value.chars().any(char::is_control) {
                let message = format!("the header {name} would hold a control character");
                return Err(io::Error::new(ErrorKind::InvalidInput, message));
            }
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(token) = server.token() {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(body) = body {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        // A server may refuse a request and close the connection before it has read the whole request. Its answer says more than the failed
        // write.
        let written = self.stream.get_mut().write_all(&bytes);
        let head = match self.read_head() {
            Err(_) if written.is_err() => return Err(written.unwrap_err()),
            read => read?,
        };
        self.keep_alive = written.is_ok() && !head.has_token("connection", "close");
        self.body = body_of(&head)?;
        Ok(head)
    }

    /// Reads the next bytes of the body. Returns their number, 0 at the end of the body.
    ///
    /// # Errors
    /// The connection fails or ends within the body, or a chunk is malformed.
    pub fn read_body(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.body == Body::Chunk(0) {
            self.next_chunk()?;
        }
        let bytes_left = match self.body {
            Body::Done => return Ok(0),
            Body::UntilClose => u64::MAX,
            Body::Length(bytes_left) | Body::Chunk(bytes_left) => bytes_left,
        };
        let len = self.stream.by_ref().take(bytes_left).read(buffer)?;
        let bytes_left = bytes_left - len as u64;
        match &mut self.body {
            Body::UntilClose if len == 0 => self.body = Body::Done,
            Body::UntilClose | Body::Done => {}
            _ if len == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Body::Length(_) if bytes_left == 0 => self.body = Body::Done,
            Body::Length(rest) => *rest = bytes_left,
            Body::Chunk(rest) => {
                *rest = bytes_left;
                let mut limit = MAX_CHUNK_LINE_BYTES;
                if bytes_left == 0 && !self.read_line(&mut limit)?.is_empty() {
                    return Err(protocol_error("a chunk is longer than it says"));
                }
            }
        }
        Ok(len)
    }

    /// The whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Connection::read_body`], or the body is longer.
    pub fn read_whole_body(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        let mut buffer = [0; 8192];
        loop {
            match self.read_body(&mut buffer)? {
                0 => return Ok(body),
                len if body.len() + len > limit => {
                    return Err(protocol_error("the body is too long"));
                }
                len => body.extend_from_slice(&buffer[..len]),
            }
        }
    }

    /// Ends the use of HTTP. Returns the stream, and the bytes after the response's head that were already read.
    pub fn into_stream(self) -> (Stream, Vec<u8>) {
        let rest = self.stream.buffer().to_vec();
        (self.stream.into_inner(), rest)
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let mut bytes_left = MAX_CHUNK_LINE_BYTES;
        let line = self.read_line(&mut bytes_left)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(digits, 16)
            .map_err(|_| protocol_error("a chunk without a size"))?;
        self.body = Body::Chunk(size);
        if size == 0 {
            let mut bytes_left = MAX_HEAD_BYTES;
            while !self.read_line(&mut bytes_left)?.is_empty() {} // trailers
            self.body = Body::Done;
        }
        Ok(())
    }

    /// Reads heads up to the first that is final, or that switches protocols (RFC 9110 section 15.2).
    fn read_head(&mut self) -> io::Result<Head> {
        let mut bytes_left = MAX_HEAD_BYTES;
        loop {
            let head = self.read_one_head(&mut bytes_left)?;
            if !(100..200).contains(&head.status) || head.status == 101 {
                return Ok(head);
            }
        }
    }

    /// Reads a head of at most `bytes_left` bytes, and subtracts its bytes from `bytes_left`.
    fn read_one_head(&mut self, bytes_left: &mut u64) -> io::Result<Head> {
        let first = self.read_line(bytes_left)?;
        let (version, rest) = first
            .split_once(' ')
            .ok_or_else(|| protocol_error("no status line"))?;
        let (status, reason) = rest.split_once(' ').unwrap_or((rest, ""));
        let status = status.parse().map_err(|_| protocol_error("no status"))?;
        if !version.starts_with("HTTP/1.") {
            return Err(protocol_error("no status line"));
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        loop {
            let line = self.read_line(bytes_left)?;
            if line.is_empty() {
                return Ok(Head {
                    status,
                    reason: reason.to_string(),
                    headers,
                });
            }
            // Obsolete line folding (RFC 9112 section 5.2): the line continues the last value.
            if line.starts_with([' ', '\t'])
                && let Some((_, value)) = headers.last_mut()
            {
                *value = format!("{value} {}", line.trim()).trim().to_string();
                continue;
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| protocol_error("a header without a colon"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
    }

    /// Reads a line of at most `bytes_left` bytes, and returns it without its end. Subtracts its bytes from `bytes_left`.
    fn read_line(&mut self, bytes_left: &mut u64) -> io::Result<String> {
        let mut line = Vec::new();
        let stream = self.stream.by_ref();
        *bytes_left -= stream.take(*bytes_left).read_until(b'\n', &mut line)? as u64;
        if line.pop() != Some(b'\n') {
            return Err(match line.is_empty() && *bytes_left > 0 {
                true => ErrorKind::UnexpectedEof.into(),
                false => protocol_error("a line or a head is too long or cut off"),
            });
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        // Bytes that are not ASCII have no meaning here (RFC 9110 section 5.5).
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

fn body_of(head: &Head) -> io::Result<Body> {
    if matches!(head.status, 101 | 204 | 304) {
        return Ok(Body::Done);
    }
    if head.has_token("transfer-encoding", "chunked") {
        return Ok(Body::Chunk(0));
    }
    match head.header("content-length") {
        None => Ok(Body::UntilClose),
        Some("0") => Ok(Body::Done),
        Some(length) => Ok(Body::Length(
            length
                .parse()
                .map_err(|_| protocol_error("a bad Content-Length"))?,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body that the client reads if the server sends `begin`, `times` times `part`, and `end`.
    fn body_from_server(begin: &str, part: &str, times: usize, end: &str) -> io::Result<Vec<u8>> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let bytes = format!("{begin}{}{end}", part.repeat(times));
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            let _ = peer.read(&mut request).expect("a request");
            // The client may close the connection before the end.
            let _ = peer.write_all(bytes.as_bytes());
        });
        let server_url: Server = url.parse().expect("a URL");
        let mut connection = Connection::open(&server_url)?;
        let body = connection
            .request(&server_url, "GET", "/", &[], None)
            .and_then(|_| connection.read_whole_body(64));
        drop(connection);
        server.join().expect("the server");
        body
    }

    #[test]
    fn heads_before_the_final_one_share_its_limit() {
        let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        let end = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!(
            body_from_server("", interim, 10, end).expect("a body"),
            b"hi"
        );
        let times = MAX_HEAD_BYTES as usize / interim.len() + 1;
        let error = body_from_server("", interim, times, end).expect_err("too many heads");
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn trailers_have_the_limit_of_a_head() {
        let begin = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n";
        let trailer = "X-Trailer: 0123456789\r\n";
        assert_eq!(
            body_from_server(begin, trailer, 10, "\r\n").expect("a body"),
            b"hi"
        );
        let times = MAX_HEAD_BYTES as usize / trailer.len() + 1;
        let error = body_from_server(begin, trailer, times, "\r\n").expect_err("too many trailers");
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
