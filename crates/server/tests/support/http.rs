//! An HTTP client connection for tests. It sends bytes as given, and repairs nothing in the answers.

use super::{Server, is_timeout, read_again};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of an answer or an end. It is shorter than `timeouts.head_s`, after which the server would end the connection anyway.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// Timeout of one read. Each read is tried twice.
const HALF: Option<Duration> = Some(Duration::from_secs(PATIENCE.as_secs() / 2));

pub struct Conn {
    stream: TcpStream,
    buffer: Vec<u8>,
    host: String,
}

/// A response as received, with names of fields in lower case.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a field. Several fields of one name are joined with commas.
    pub fn header(&self, name: &str) -> Option<String> {
        let same = self
            .headers
            .iter()
            .filter(|(other, _)| *other == name.to_ascii_lowercase());
        let values: Vec<&str> = same.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// Whether the field is a list that contains `item`, in any letter case.
    pub fn lists(&self, name: &str, item: &str) -> bool {
        self.header(name).is_some_and(|value| {
            value
                .split(',')
                .any(|other| other.trim().eq_ignore_ascii_case(item))
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The position of a response: its ETag without the quotes.
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
        Conn::over(stream, server)
    }

    /// A connection over a socket that the test has prepared.
    pub fn over(stream: TcpStream, server: &Server) -> Conn {
        stream.set_read_timeout(HALF).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Conn {
            stream,
            buffer: Vec::new(),
            host: server.address().to_string(),
        }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes. If the peer has already closed, the next read notices that.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends one byte after the other, each in its own packet.
    pub fn dribble(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.send([*byte]);
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// The bytes of a request with the server's `Host`. `Content-Length` is added if there is a body.
    pub fn text_of(
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

    /// Sends a request without waiting for the answer.
    pub fn ask(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) {
        let text = self.text_of(method, target, headers, body.as_ref());
        self.send(text);
    }

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
                self.rest()
            };
        }
        response
    }

    /// The head of the next response. The caller reads the body.
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

    /// The bytes up to the next CRLF, which is removed.
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

    /// One chunk of a chunked body; empty at its end.
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
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() > 0 {}
        std::mem::take(&mut self.buffer)
    }

    /// The bytes that were received and not taken yet.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// Reads once. Returns 0 if the peer has closed or reset.
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
                "nothing came: {error}; until then {:?}",
                String::from_utf8_lossy(&self.buffer)
            ),
        }
    }

    /// Whether the peer closes (or resets) without sending anything more.
    pub fn ends(&mut self) -> bool {
        self.buffer.is_empty() && self.fill() == 0
    }

    /// Whether nothing arrives for this time, and the connection stays open.
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
        self.stream.set_read_timeout(HALF).expect("a timeout");
        silent
    }
}

/// The result of `try_it`. `None` if an assertion in it fails (which is printed). For tables, so that every wrong row is reported.
pub fn attempt<T>(try_it: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(try_it)).ok()
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

/// Publishes, and expects that the message is accepted.
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

/// The topic's info as JSON.
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
