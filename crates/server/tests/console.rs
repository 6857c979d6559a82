//! Tests the parts of the console without a browser: its files, and the tail of live messages. The tests with a browser are in
//! `clients/console.rs`.

#[path = "support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use support::{Server, connect};

/// Sends a request, whose headers each end with a line break. Returns the stream of the answer.
fn send_request(to: SocketAddr, line: &str, headers: &str) -> BufReader<TcpStream> {
    let mut stream = connect(to);
    let request = format!("{line} HTTP/1.0\r\nHost: {to}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    BufReader::new(stream)
}

/// The complete answer to a request.
fn response_text(to: SocketAddr, line: &str, headers: &str) -> String {
    let mut text = String::new();
    send_request(to, line, headers)
        .read_to_string(&mut text)
        .expect("an answer");
    text
}

/// Reads lines until one contains `part`.
fn await_line(stream: &mut BufReader<TcpStream>, part: &str) -> String {
    loop {
        let mut line = String::new();
        let read = stream.read_line(&mut line).expect("a line");
        assert!(read > 0, "the stream ended without {part:?}");
        if line.contains(part) {
            return line;
        }
    }
}

fn publish(server: &Server, topic: &str, data: &str, headers: &str) -> String {
    let headers = format!("{headers}Content-Length: {}\r\n\r\n{data}", data.len());
    response_text(server.address(), &format!("POST /pub/{topic}"), &headers)
}

#[test]
fn the_page_may_load_its_own_files_and_nothing_else_and_is_asked_for_again() {
    let server = Server::with_admin("");
    for (path, content_type) in [
        ("/", "text/html"),
        ("/console.js", "text/javascript"),
        ("/console.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let text = response_text(server.admin(), &format!("GET {path}"), "");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.0 200"), "{path}: {head}");
        assert!(head.contains(content_type), "{path}: {head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(
            head.contains("default-src 'none'; script-src 'self'"),
            "{head}"
        );
        assert!(!head.contains("set-cookie"), "{head}");
        assert!(!body.is_empty());
        let tag = head
            .lines()
            .find_map(|line| line.strip_prefix("etag: "))
            .expect("a tag");
        let unchanged = response_text(
            server.admin(),
            &format!("GET {path}"),
            &format!("If-None-Match: {tag}\r\n"),
        );
        assert!(unchanged.starts_with("HTTP/1.0 304"), "{unchanged}");
    }
}

#[test]
fn tail_streams_published_messages_and_resumes_after_a_position() {
    let server = Server::with_admin("");
    let mut tail = send_request(server.admin(), "GET /api/v1/tail?topic=a%2Fb%20c", "");
    await_line(&mut tail, "id: ");
    publish(&server, "a/b%20c", "one", "");
    let data = await_line(&mut tail, "data: ");
    let id = await_line(&mut tail, "id: ");
    assert!(data.contains(r#""topic":"a/b c""#), "{data}");
    assert!(data.contains(r#""data":"one""#), "{data}");
    drop(tail);
    publish(&server, "a/b%20c", "two", "");
    let position = id.replace("id: ", "Last-Event-ID: ").replace('\n', "\r\n");
    let mut tail = send_request(
        server.admin(),
        "GET /api/v1/tail?topic=a%2Fb%20c",
        &position,
    );
    assert!(await_line(&mut tail, "data: ").contains(r#""data":"two""#));

    let mut tail = send_request(server.admin(), "GET /api/v1/tail?filter=x%2F%23", "");
    await_line(&mut tail, "id: ");
    publish(&server, "x/y", "by filter", "");
    assert!(await_line(&mut tail, "data: ").contains(r#""topic":"x/y""#));
}

#[test]
fn tail_without_exactly_one_valid_topic_or_filter_is_refused() {
    let server = Server::with_admin("");
    for (query, words) in [
        ("", "topic= or filter="),
        ("?topic=a&filter=a", "topic= or filter="),
        ("?topic=a&unknown=1", "unknown"),
        ("?topic=a%2B", "only filters may have"),
        ("?topic=a&since=nonsense!", "since"),
    ] {
        let text = response_text(server.admin(), &format!("GET /api/v1/tail{query}"), "");
        assert!(text.starts_with("HTTP/1.0 400"), "{query}: {text}");
        assert!(text.contains(words), "{query}: {text}");
    }
}

#[test]
fn tail_of_the_operator_works_where_nobody_may_subscribe() {
    let server = Server::with_admin("[access]\nanonymous = { publish = [\"#\"] }\n");
    let refused = response_text(
        server.address(),
        "GET /sub/news",
        "Accept: text/event-stream\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let mut tail = send_request(server.admin(), "GET /api/v1/tail?topic=news", "");
    await_line(&mut tail, "id: ");
    let text = publish(&server, "news", "for the operator", "");
    assert!(text.starts_with("HTTP/1.1 201"), "{text}");
    assert!(await_line(&mut tail, "data: ").contains("for the operator"));
}

#[test]
fn console_files_need_no_token_and_its_requests_do() {
    let server = Server::with_admin("[admin]\ntoken = \"0123456789abcdef\"\n");
    let page = response_text(server.admin(), "GET /", "");
    assert!(page.starts_with("HTTP/1.0 200"), "{page}");
    for (headers, status) in [
        ("", "401"),
        ("Cookie: token=0123456789abcdef\r\n", "401"),
        ("Authorization: Bearer 0123456789abcdee\r\n", "401"),
    ] {
        let text = response_text(server.admin(), "GET /api/v1/tail?topic=a", headers);
        assert!(text.contains(status), "{headers}: {text}");
    }
    let with_token = "Authorization: Bearer 0123456789abcdef\r\n";
    let mut tail = send_request(server.admin(), "GET /api/v1/tail?topic=a", with_token);
    assert!(await_line(&mut tail, "HTTP/1.").contains(" 200 "));
}
