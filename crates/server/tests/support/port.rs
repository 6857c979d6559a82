//! An HTTP client for the admin port of a server: requests, event streams and metrics. `to` is the address of the port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::{connect, until};

/// An HTTP response.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Sends a request. `line` is its method and target, and `headers` are complete lines.
fn send(to: SocketAddr, line: &str, headers: &str, body: Option<&str>) -> BufReader<TcpStream> {
    let mut stream = connect(to);
    let length = body.map_or(String::new(), |body| {
        format!("Content-Length: {}\r\n", body.len())
    });
    let body = body.unwrap_or_default();
    let request = format!("{line} HTTP/1.1\r\n{headers}{length}\r\n{body}");
    stream.write_all(request.as_bytes()).expect("a request");
    BufReader::new(stream)
}

/// Sends a request with only these headers (complete lines), and reads the response.
pub fn raw(to: SocketAddr, line: &str, headers: &str, body: Option<&str>) -> Answer {
    let headers = format!("{headers}Connection: close\r\n");
    let mut text = Vec::new();
    send(to, line, &headers, body)
        .read_to_end(&mut text)
        .expect("an answer");
    let text = String::from_utf8(text).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    Answer {
        status: status.parse().expect("a number"),
        head: head.to_string(),
        body: body.to_string(),
    }
}

/// Sends a request with the headers of a correct client, and reads the response. `line` is the method and the target; a body is JSON.
pub fn ask(to: SocketAddr, line: &str, body: Option<&str>) -> Answer {
    let kind = body.map_or("", |_| "Content-Type: application/json\r\n");
    raw(to, line, &format!("Host: {to}\r\n{kind}"), body)
}

/// The JSON at this path of the API. Panics if the status is not 200.
pub fn get(to: SocketAddr, path: &str) -> Value {
    let answer = ask(to, &format!("GET /api/v1/{path}"), None);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

/// All rows of the API's list of connections that have this transport. Reads all pages.
pub fn connections(to: SocketAddr, transport: &str) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("connections?transport={transport}&limit=1000{cursor}");
        let page = get(to, &path);
        rows.extend_from_slice(page["connections"].as_array().expect("a list"));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

/// Opens an event stream and reads its head.
pub fn stream(to: SocketAddr, path: &str) -> BufReader<TcpStream> {
    stream_with(to, path, &format!("Host: {to}\r\n"))
}

/// Opens an event stream with these headers, and reads its head.
pub fn stream_with(to: SocketAddr, path: &str, headers: &str) -> BufReader<TcpStream> {
    let headers = format!("{headers}Accept: text/event-stream\r\n");
    let mut stream = send(to, &format!("GET {path}"), &headers, None);
    let first = line(&mut stream);
    assert!(first.contains(" 200 "), "{path}: {first}");
    while !line(&mut stream).is_empty() {}
    stream
}

/// The next line of a stream, without its line end.
pub fn line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let read = stream.read_line(&mut line).expect("a line");
    assert!(read > 0, "the stream has ended");
    line.trim_end().to_string()
}

/// The value of a metric. `name` includes the labels, in the form that `/metrics` has. `None` if there is no such metric.
pub fn metric(to: SocketAddr, name: &str) -> Option<f64> {
    let answer = ask(to, "GET /metrics", None);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.parse().ok()
    })
}

/// Waits until a metric has this value. `name` is that of `metric`.
pub fn await_metric(to: SocketAddr, name: &str, value: f64) {
    until(&format!("{name} {value}"), || {
        metric(to, name) == Some(value)
    });
}
