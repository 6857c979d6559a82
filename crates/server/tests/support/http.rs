//! An HTTP/1.1 client connection for tests. It sends any bytes, valid or not, and a response that violates the RFC makes the test fail.

use super::{Server, is_timeout, read_again};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of a response, or of the end of a connection. It is shorter than `timeouts.head_s`, after which the server would close the
/// connection for another reason.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// Timeout of one read: half of `PATIENCE`, because each read is tried twice.
const READ_TIMEOUT: Option<Duration> = Some(Duration::from_secs(PATIENCE.as_secs() / 2));

pub struct Conn {
    stream: TcpStream,
    buffer: Vec<u8>,
    host: String,
}

/// A received response. The names of its header fields are in lower case.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header field. The values of several fields with one name are joined with commas.
    pub fn header(&self, name: &str) -> Option<String> {
        let same = self
            .headers
            .iter()
            .filter(|(field, _)| *field == name.to_ascii_lowercase());
        let values: Vec<&str> = same.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// Whether the header field is a list that contains `item`, in any letter case.
    pub fn lists(&self, name: &str, item: &str) -> bool {
        self.header(name).is_some_and(|value| {
            value
                .split(',')
                .any(|listed| listed.trim().eq_ignore_ascii_case(item))
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The position of the last message in this response (epoch and offset): the ETag without its quotes.
    pub fn position(&self) -> String {
        let tag = self
            .header("etag")
            .unwrap_or_else(|| panic!("an ETag in {self:?}"));
        let bare = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        bare.unwrap_or_else(|| panic!("{tag} is not a quoted strong tag"))
            .to_string()
    }
}

impl Conn {
    pub fn open(server: &Server) -> Conn {
        let stream = TcpStream::connect(server.address()).expect("a connection");
        Conn::from_stream(stream, server)
    }

    /// An HTTP connection over a socket that is already connected.
    pub fn from_stream(stream: TcpStream, server: &Server) -> Conn {
        stream.set_read_timeout(READ_TIMEOUT).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Conn {
            stream,
            buffer: Vec::new(),
            host: server.address().to_string(),
        }
    }

    /// The socket below.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes. An error of the socket is ignored here: the next read reports a closed connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends the bytes one by one, each in its own TCP segment.
    pub fn dribble(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.send([*byte]);
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// The bytes of a request. `Host` is added if `headers` lacks it; `Content-Length` is added for POST, PUT and any body.
    pub fn request_bytes(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Vec<u8> {
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            text += &format!("Host: {}\r\n", self.host);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || ["POST", "PUT"].contains(&method) {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        text += "\r\n";
        [text.as_bytes(), body].concat()
    }

    /// Sends a request, and does not wait for the response.
    pub fn ask(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) {
        let text = self.request_bytes(method, target, headers, body.as_ref());
        self.send(text);
    }

    /// Sends a request, and reads the response.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Response {
        self.ask(method, target, headers, body);
        self.response_to(method)
    }

    pub fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Response {
        self.request("GET", target, headers, "")
    }

    /// The next response, to a request other than HEAD.
    pub fn response(&mut self) -> Response {
        self.response_to("GET")
    }

    /// The next response with its body. It depends on the request's method whether there is a body.
    pub fn response_to(&mut self, method: &str) -> Response {
        let mut response = self.head();
        let bodiless =
            method == "HEAD" || response.status < 200 || [204, 304].contains(&response.status);
        if !bodiless {
            response.body = if response.lists("transfer-encoding", "chunked") {
                self.chunks()
            } else if let Some(length) = response.header("content-length") {
                self.exactly(length.parse().expect("a length"))
            } else {
                self.read_to_end()
            };
        }
        response
    }

    /// The head of the next response. The body remains to be read.
    pub fn head(&mut self) -> Response {
        let mut lines = Vec::new();
        loop {
            let line = String::from_utf8(self.line()).expect("a head in UTF-8");
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let status: Vec<&str> = lines[0].splitn(3, ' ').collect();
        assert!(
            status.len() >= 2 && status[0].starts_with("HTTP/1."),
            "{:?} is no status line",
            lines[0]
        );
        let fields = lines[1..].iter().map(|line| {
            let (name, value) = line
                .split_once(':')
                .unwrap_or_else(|| panic!("{line:?} is no field"));
            (name.to_ascii_lowercase(), value.trim().to_string())
        });
        Response {
            status: status[1].parse().expect("a status code"),
            headers: fields.collect(),
            body: Vec::new(),
        }
    }

    /// The next line, without its CRLF.
    pub fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buffer[..at].to_vec();
                self.buffer.drain(..at + 2);
                return line;
            }
            assert!(
                self.fill() > 0,
                "the peer closed amid a line: {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        }
    }

    /// The next `count` bytes.
    pub fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(
                self.fill() > 0,
                "the peer closed after {} of {count} bytes",
                self.buffer.len()
            );
        }
        self.buffer.drain(..count).collect()
    }

    /// The next chunk of a chunked body. It is empty at the end of the body.
    pub fn chunk(&mut self) -> Vec<u8> {
        let size = String::from_utf8(self.line()).expect("a chunk size");
        let size = usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16)
            .expect("a chunk size");
        let data = self.exactly(size);
        assert_eq!(self.line(), b"", "a chunk ends with CRLF");
        data
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let chunk = self.chunk();
            if chunk.is_empty() {
                return body;
            }
            body.extend(chunk);
        }
    }

    /// All bytes until the peer closes.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.fill() > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// Takes the received bytes that no other method has returned. Reads nothing.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Reads once from the socket. Returns the number of bytes, or 0 if the peer has closed or reset the connection.
    pub fn fill(&mut self) -> usize {
        let mut bytes = [0; 16 << 10];
        match read_again(&self.stream, &mut bytes) {
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                count
            }
            Err(error)
                if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()) =>
            {
                0
            }
            Err(error) => panic!(
                "nothing was received: {error}; the bytes before are {:?}",
                String::from_utf8_lossy(&self.buffer)
            ),
        }
    }

    /// Waits for the peer. Returns whether it closes or resets the connection and sends nothing before.
    pub fn ends(&mut self) -> bool {
        self.buffer.is_empty() && self.fill() == 0
    }

    /// Whether nothing is received for the time `wait`, and the connection stays open.
    pub fn is_silent_for(&mut self, wait: Duration) -> bool {
        if !self.buffer.is_empty() {
            return false;
        }
        self.stream.set_read_timeout(Some(wait)).expect("a timeout");
        let mut byte = [0; 1];
        let silent = match self.stream.read(&mut byte) {
            Ok(count) => {
                self.buffer.extend_from_slice(&byte[..count]);
                false
            }
            Err(error) => is_timeout(&error),
        };
        self.stream
            .set_read_timeout(READ_TIMEOUT)
            .expect("a timeout");
        silent
    }
}

/// Sends one request over a new connection.
pub fn once(
    server: &Server,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    Conn::open(server).request(method, target, headers, body)
}

/// Publishes a message of plain text. Panics if the server does not accept it.
pub fn publish(server: &Server, topic: &str, body: impl AsRef<[u8]>) -> Response {
    let response = Conn::open(server).request(
        "POST",
        &format!("/pub/{topic}"),
        &[("Content-Type", "text/plain")],
        body,
    );
    assert!(
        [201, 202].contains(&response.status),
        "publishing to {topic}: {response:?}"
    );
    response
}

/// The topic's info (`GET /pub/TOPIC`) as JSON.
pub fn info(server: &Server, topic: &str) -> serde_json::Value {
    once(
        server,
        "GET",
        &format!("/pub/{topic}"),
        &[("Accept", "application/json")],
        "",
    )
    .json()
}
