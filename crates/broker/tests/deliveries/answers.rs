//! Tests the complete answers to subscribe requests on every transport. Header lines that all answers have are left out.

mod polls;
mod refusals;
mod rests;
mod streams;

use crore_broker::TurnLimits;
use crore_broker::settings::{Concurrency, Limits, Rule, Settings, SlowConsumerPolicy};
use crore_wire::sse::write_gap;

use crate::test_server::TestServer;

const GET: &str = "Host: localhost\r\n";
const EVENTS: &str = "Host: localhost\r\nAccept: text/event-stream\r\n";
const UPGRADE: &str = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const META: &str = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: ws+meta.nchan\r\n";

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\n";
const STREAM: &str = "HTTP/1.1 200 OK\nContent-Type: text/event-stream\n\
    Cache-Control: no-cache, no-transform\nX-Accel-Buffering: no\nTransfer-Encoding: chunked\n\n\
    e\n:\nretry: 2000\n\n";
const STREAM_OF_1_0: &str = "HTTP/1.1 200 OK\nConnection: close\nContent-Type: text/event-stream\n\
    Cache-Control: no-cache, no-transform\nX-Accel-Buffering: no\n\n:\nretry: 2000\n";
const CACHING: &str =
    "Cache-Control: private, no-cache\nVary: If-None-Match, If-Modified-Since, Accept, Origin\n";
const TIME: &str = "Last-Modified: Fri, 15 Jan 2027 08:00:00 GMT\n";

/// The event of a gap (the notice that the client has missed messages).
fn gap_event(id: &str, topic: &str) -> String {
    let mut event = Vec::new();
    write_gap(&mut event, id.as_bytes(), topic.as_bytes());
    String::from_utf8(event).expect("text")
}

/// A server where `one` and `two` were published to some topics, of which some keep only the last message.
fn server() -> TestServer {
    server_with(|_| {})
}

fn server_with(limits: impl FnOnce(&mut Limits)) -> TestServer {
    let rule = |filter: &str| Rule {
        filter: filter.into(),
        poll_timeout_s: 5,
        ..Rule::default()
    };
    let rules = vec![
        Rule {
            publisher_creates: true,
            ..rule("created/#")
        },
        Rule {
            concurrency: Concurrency::First,
            ..rule("first/#")
        },
        Rule {
            concurrency: Concurrency::Last,
            ..rule("last/#")
        },
        Rule {
            poll_timeout_status: 408,
            ..rule("old/#")
        },
        Rule {
            poll_timeout_s: 0,
            ..rule("patient/#")
        },
        Rule {
            log_messages: 1,
            ..rule("short/#")
        },
        Rule {
            log_messages: 1,
            slow: SlowConsumerPolicy::Skip,
            ..rule("skips/#")
        },
        Rule {
            log_messages: 0,
            ..rule("none/#")
        },
        rule("#"),
    ];
    let mut settings = Settings {
        rules,
        ..Settings::default()
    };
    limits(&mut settings.limits);
    let mut server = TestServer::with(settings, TurnLimits::default(), 1);
    for topic in ["full", "short/1", "skips/1"] {
        server.publish([(topic, "one".into()), (topic, "two".into())]);
    }
    server.settle();
    server
}

/// The bytes received since the last call as lines, without the lines that all answers have.
fn take(server: &mut TestServer, link: usize) -> String {
    let text = server.take_received(link).replace("\r\n", "\n");
    let common = [
        "Date:",
        "X-Content-Type-Options:",
        "Content-Security-Policy:",
        "Cache-Control: no-store",
    ];
    let lines = text.split_inclusive('\n');
    let lines = lines.filter(|line| !common.iter().any(|name| line.starts_with(name)));
    lines.collect()
}

fn asks(server: &mut TestServer, target: &str, fields: &str) -> usize {
    asks_with(server, &format!("GET {target} HTTP/1.1"), fields)
}

fn asks_with(server: &mut TestServer, line: &str, fields: &str) -> usize {
    let link = server.connect_and_send(format!("{line}\r\n{fields}\r\n"));
    server.settle();
    link
}

/// The answer to one request, from a new server.
fn answer(target: &str, fields: &str) -> String {
    let mut server = server();
    let link = asks(&mut server, target, fields);
    take(&mut server, link)
}

fn refusal(status: &str, reason: &str) -> String {
    format!(
        "HTTP/1.1 {status}\nContent-Type: text/plain; charset=utf-8\nContent-Length: {}\n\n{reason}\n",
        reason.len() + 1
    )
}

fn message(fields: &str, data: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\n{fields}Content-Length: {}\n\n{data}",
        data.len()
    )
}

/// A text frame in the meta subprotocol, with its lines.
fn meta(lines: &str) -> String {
    let length = char::from_u32(lines.len() as u32).expect("a short one");
    String::from_utf8_lossy(b"\x81").into_owned() + &format!("{length}{lines}")
}

fn close(code: u16, reason: &str) -> String {
    let mut bytes = vec![0x88, reason.len() as u8 + 2];
    bytes.extend_from_slice(&code.to_be_bytes());
    String::from_utf8_lossy(&bytes).into_owned() + reason
}
