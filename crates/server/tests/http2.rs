//! Tests HTTP/2 over raw sockets: requests, streams that wait, and attacks. The frames are written from RFC 9113, RFC 7541 and RFC 8441.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use support::http::{once, publish};
use support::port::{await_metric, connections};
use support::ws::{TEXT, masked};
use support::{PATIENCE, Server, eventually, is_timeout};

const ON: &str = "[http]\nh2_cleartext = true\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flags.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const WITH_PRIORITY: u8 = 0x20;

/// Error codes (RFC 9113 section 7).
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;
const HTTP_1_1_REQUIRED: u32 = 13;

/// The parameter SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let mut bytes = len[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A literal field without indexing and without Huffman (RFC 7541 section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    assert!(name.len() < 127 && value.len() < 127);
    let mut bytes = vec![0, name.len() as u8];
    bytes.extend(name.bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.bytes());
    bytes
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let encoded = fields.iter().map(|(name, value)| field(name, value));
    encoded.collect::<Vec<_>>().concat()
}

/// A client's connection, after the preface and the settings.
struct Http2 {
    socket: TcpStream,
    host: String,
    received: Vec<u8>,
    next: u32,
    /// Received frames that no method has returned yet.
    kept: Vec<Frame>,
}

impl Http2 {
    fn open(server: &Server) -> Http2 {
        Http2::with(server, &[])
    }

    fn with(server: &Server, settings: &[(u16, u32)]) -> Http2 {
        let socket = TcpStream::connect(server.address()).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        let mut client = Http2 {
            socket,
            host: server.address().to_string(),
            received: Vec::new(),
            next: 1,
            kept: Vec::new(),
        };
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend(id.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        client.send(&[PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat());
        client.send(&frame(SETTINGS, ACK, 0, &[]));
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        // If the server has already closed, the next read notices that.
        let _ = self.socket.write_all(bytes);
    }

    /// Reads the next frame. `None` at the end of the connection.
    fn read(&mut self) -> Option<Frame> {
        loop {
            if let [a, b, c, kind, flags, d, e, f, g, rest @ ..] = &self.received[..] {
                let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                if rest.len() >= len {
                    let frame = Frame {
                        kind: *kind,
                        flags: *flags,
                        stream: u32::from_be_bytes([*d, *e, *f, *g]),
                        payload: rest[..len].to_vec(),
                    };
                    self.received.drain(..9 + len);
                    return Some(frame);
                }
            }
            let mut buffer = [0; 1 << 14];
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => self.received.extend(&buffer[..len]),
                Err(error) if is_timeout(&error) => panic!("no frame within {PATIENCE:?}"),
                Err(_) => return None,
            }
        }
    }

    /// The next frame of a stream. Its windows are opened for what it brought.
    fn of(&mut self, stream: u32) -> Frame {
        if let Some(at) = self.kept.iter().position(|it| it.stream == stream) {
            return self.kept.remove(at);
        }
        loop {
            let frame = self.read().expect("the connection stays");
            if frame.stream == stream && stream != 0 {
                return frame;
            }
            assert_ne!(frame.kind, GOAWAY, "{frame:?}");
            if frame.stream != 0 {
                self.kept.push(frame);
            }
        }
    }

    /// Begins a stream without a body. Returns its number.
    fn get(&mut self, path: &str, extra_fields: &[(&str, &str)]) -> u32 {
        self.begin("GET", path, extra_fields, END_STREAM)
    }

    fn begin(&mut self, method: &str, path: &str, extra_fields: &[(&str, &str)], flags: u8) -> u32 {
        let stream = self.next;
        self.next += 2;
        let host = self.host.clone();
        let mut fields = vec![
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", &host),
        ];
        fields.extend(extra_fields);
        let headers = frame(HEADERS, END_HEADERS | flags, stream, &block(&fields));
        self.send(&headers);
        stream
    }

    fn post(&mut self, path: &str, body: &[u8]) -> u32 {
        let stream = self.begin("POST", path, &[], 0);
        self.send(&frame(DATA, END_STREAM, stream, body));
        stream
    }

    /// The status and the body of a whole answer.
    fn answer(&mut self, stream: u32) -> (u16, String) {
        let head = self.of(stream);
        assert_eq!(
            (head.kind, head.flags & END_HEADERS),
            (HEADERS, END_HEADERS)
        );
        let (mut body, mut ends) = (Vec::new(), head.flags & END_STREAM != 0);
        while !ends {
            let data = self.of(stream);
            assert_eq!(data.kind, DATA, "{data:?}");
            body.extend(&data.payload);
            ends = data.flags & END_STREAM != 0;
        }
        let text = String::from_utf8(body).expect("a text");
        (status(&head.payload), text)
    }

    /// Reads a stream until its data contains `text`. Returns the data.
    fn data_with(&mut self, stream: u32, text: &str) -> String {
        let mut all = String::new();
        while !all.contains(text) {
            let data = self.of(stream);
            if data.kind == DATA {
                all += std::str::from_utf8(&data.payload).expect("a text");
            }
        }
        all
    }

    /// Opens an event stream, and waits for its head and its first comment.
    fn events(&mut self, topic: &str) -> u32 {
        let path = format!("/sub/{topic}");
        let stream = self.get(&path, &[("accept", "text/event-stream")]);
        assert_eq!(status(&self.of(stream).payload), 200);
        self.data_with(stream, "retry:");
        stream
    }

    /// Checks that no frame of the stream is pending: the answer to a ping is received first.
    fn assert_silent(&mut self, stream: u32) {
        self.send(&frame(PING, 0, 0, b"12345678"));
        loop {
            let frame = self.read().expect("the connection stays");
            assert_ne!(frame.stream, stream, "{frame:?}");
            match frame.kind {
                PING => return,
                _ => self.kept.push(frame),
            }
        }
    }

    /// Reads until GOAWAY. Returns its code, and the text for humans.
    fn gone(&mut self) -> (u32, String) {
        loop {
            let frame = self.read().expect("GOAWAY before the end");
            if frame.kind == GOAWAY {
                let code = u32::from_be_bytes(frame.payload[4..8].try_into().expect("a code"));
                return (code, String::from_utf8_lossy(&frame.payload[8..]).into());
            }
        }
    }

    /// The error code with which a stream was reset.
    fn reset(&mut self, stream: u32) -> u32 {
        let frame = self.of(stream);
        assert_eq!(frame.kind, RST_STREAM, "{frame:?}");
        u32::from_be_bytes(frame.payload[..].try_into().expect("a code"))
    }
}

/// The status at the start of a field block. It is a field of the static table, or a value for one (RFC 7541 appendix A).
fn status(block: &[u8]) -> u16 {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [first @ 0x88..=0x8e, ..] => INDEXED[usize::from(first - 0x88)],
        [8 | 0x48, 3, a, b, c, ..] => {
            let digits = [*a, *b, *c];
            let digits = std::str::from_utf8(&digits).expect("digits");
            digits.parse().expect("a status")
        }
        other => panic!("no status in {other:x?}"),
    }
}

#[test]
fn http2_is_refused_where_it_is_not_allowed() {
    let server = Server::start();
    assert_eq!(Http2::open(&server).gone().0, HTTP_1_1_REQUIRED);
}

#[test]
fn publish_history_and_refusals_are_those_of_http_1() {
    let server = Server::with(&format!("{ON}[[rule]]\nmatch = \"#\"\nlog_messages = 10\n"));
    let mut client = Http2::open(&server);
    for text in ["one", "two"] {
        let stream = client.post("/pub/news", text.as_bytes());
        assert_eq!(client.answer(stream).0, 202);
    }
    // A body whose length is not known, in several frames, of which one is empty.
    let stream = client.begin("POST", "/pub/news", &[], 0);
    for (part, flags) in [("th", 0), ("", 0), ("ree", 0), ("", END_STREAM)] {
        client.send(&frame(DATA, flags, stream, part.as_bytes()));
    }
    assert_eq!(client.answer(stream).0, 202);
    let stream = client.get("/history/news?since=oldest", &[]);
    let (status, history) = client.answer(stream);
    assert_eq!(status, 200, "{history}");
    for text in ["one", "two", "three"] {
        assert!(history.contains(text), "{text} in {history}");
    }
    let stream = client.get("/nowhere", &[]);
    let http1 = once(&server, "GET", "/nowhere", &[], "");
    assert_eq!(client.answer(stream), (404, http1.text().into()));
}

#[test]
fn a_hundred_event_streams_share_a_connection() {
    let server = Server::with_admin(ON);
    let mut client = Http2::open(&server);
    let streams: Vec<u32> = (0..100)
        .map(|n| client.events(&format!("topic{n}")))
        .collect();
    for n in (0..100).rev() {
        publish(&server, &format!("topic{n}"), format!("message {n}."));
    }
    for (n, stream) in streams.into_iter().enumerate() {
        let text = client.data_with(stream, &format!("message {n}."));
        assert_eq!(text.matches("data:").count(), 1, "{text}");
    }
    let [links, streams] = ["http2", "sse"].map(|it| connections(server.admin(), it));
    assert_eq!([links.len(), streams.len()], [1, 100]);
    assert!(streams.iter().all(|it| it["http2"] == links[0]["id"]));
    let count = |name: &str, count| await_metric(server.admin(), name, count);
    count("crore_http2_streams", 100.0);
    count("crore_http2_opened_streams_total", 100.0);
    drop(client);
    count("crore_http2_streams", 0.0);
}

#[test]
fn a_long_poll_waits_for_its_message() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    let stream = client.get("/sub/news", &[]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "here");
    assert_eq!(client.answer(stream), (200, "here".into()));
}

#[test]
fn a_stream_that_its_client_resets_ends_its_subscription() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    let kept = client.events("news");
    let ended = client.events("news");
    server.await_subscribers("news", 2);
    client.send(&frame(RST_STREAM, 0, ended, &8_u32.to_be_bytes()));
    server.await_subscribers("news", 1);
    publish(&server, "news", "still here");
    client.data_with(kept, "still here");
    drop(client);
    server.await_subscribers("news", 0);
}

#[test]
fn stream_without_a_window_falls_back_to_the_log_and_delays_no_other() {
    let server = Server::with(&format!(
        "{ON}[limits]\noutbox_bytes = 20000\n[[rule]]\nmatch = \"#\"\nlog_messages = 1000\n"
    ));
    let mut client = Http2::with(&server, &[(INITIAL_WINDOW, 500)]);
    let (slow, quick) = (client.events("news"), client.events("news"));
    server.await_subscribers("news", 2);
    // Only the window of one stream is opened, and that of the connection.
    let extra_fields = 1_u32 << 30;
    client.send(&frame(WINDOW_UPDATE, 0, 0, &extra_fields.to_be_bytes()));
    client.send(&frame(WINDOW_UPDATE, 0, quick, &extra_fields.to_be_bytes()));
    let mut quick_text = String::new();
    for n in 0..100 {
        publish(&server, "news", format!("{n}:{}", "x".repeat(1_000)));
        quick_text += &client.data_with(quick, &format!("data: {n}:"));
    }
    assert_eq!(quick_text.matches("data: ").count(), 100);
    client.send(&frame(WINDOW_UPDATE, 0, slow, &extra_fields.to_be_bytes()));
    let slow_text = client.data_with(slow, "data: 99:");
    let numbers: Vec<usize> = slow_text
        .split("data: ")
        .filter_map(|it| it.split_once(':')?.0.parse().ok())
        .collect();
    // What came before the test read this stream is in `slow_text` too, since nothing else has read its frames.
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}

#[test]
fn websocket_runs_over_a_stream() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    let fields = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    let stream = client.begin("CONNECT", "/pubsub/news", &fields, 0);
    assert_eq!(status(&client.of(stream).payload), 200);
    server.await_subscribers("news", 1);
    let hello = masked(0x80 | TEXT, b"hello");
    // The frame may be cut anywhere.
    for part in hello.chunks(3) {
        client.send(&frame(DATA, 0, stream, part));
    }
    let echo = client.of(stream);
    assert_eq!((echo.kind, &echo.payload[2..]), (DATA, &b"hello"[..]));
    // The handshake to close goes over DATA, and then both directions end.
    client.send(&frame(DATA, 0, stream, &masked(0x88, &[])));
    let close = client.of(stream);
    assert_eq!(close.payload[0], 0x88);
    server.await_subscribers("news", 0);
}

/// A request whose fields the test chooses in full.
fn request(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields))
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/history/a"),
    (":authority", "localhost"),
];

#[test]
fn attacks_on_a_connection_end_it_with_their_code_and_are_counted() {
    let server = Server::with_admin(ON);
    let rapid_reset = (0..2_000_u32).flat_map(|n| {
        let stream = 2 * n + 1;
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        [request(stream, &GET), reset].concat()
    });
    let open = |stream| frame(HEADERS, END_HEADERS, stream, &block(&GET));
    // An entry of the dynamic table with a long value, and bytes that each stand for it.
    let mut bomb = [&block(&GET)[..], b"\x40\x01a\x7f\xa1\x1e", &[b'x'; 4_000]].concat();
    bomb.resize(16_000, 0xbe);
    let byte_for_each = [1, 3].map(|stream| frame(DATA, 0, stream, b"x")).concat();
    let attacks: Vec<(&str, Vec<u8>, u32, &str)> = vec![
        (
            "rapid reset",
            rapid_reset.collect(),
            ENHANCE_YOUR_CALM,
            "resets",
        ),
        (
            "continuations without end",
            [
                frame(HEADERS, 0, 1, &block(&GET)),
                frame(CONTINUATION, 0, 1, &field("a", "b")).repeat(1_000),
            ]
            .concat(),
            ENHANCE_YOUR_CALM,
            "fields",
        ),
        (
            "settings flood",
            frame(SETTINGS, 0, 0, &[]).repeat(5_000),
            ENHANCE_YOUR_CALM,
            "settings",
        ),
        (
            "ping flood",
            frame(PING, 0, 0, b"12345678").repeat(5_000),
            ENHANCE_YOUR_CALM,
            "pings",
        ),
        (
            "empty frames",
            [open(1), frame(DATA, 0, 1, b"").repeat(5_000)].concat(),
            ENHANCE_YOUR_CALM,
            "empty_frames",
        ),
        (
            "an index bomb",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb),
            ENHANCE_YOUR_CALM,
            "fields",
        ),
        (
            "bytes for one body after another",
            [open(1), open(3), byte_for_each.repeat(2_000)].concat(),
            ENHANCE_YOUR_CALM,
            "small_frames",
        ),
        (
            "priorities without end",
            frame(PRIORITY, 0, 3, &[0, 0, 0, 1, 9]).repeat(5_000),
            ENHANCE_YOUR_CALM,
            "empty_frames",
        ),
        (
            "window overflow",
            frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
            FLOW_CONTROL_ERROR,
            "windows",
        ),
        (
            "initial window past the limit",
            frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
            FLOW_CONTROL_ERROR,
            "windows",
        ),
        (
            "a stream that depends on itself",
            frame(PRIORITY, 0, 3, &[0, 0, 0, 3, 9]),
            PROTOCOL_ERROR,
            "protocol",
        ),
        (
            "an index that the table does not have",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0xff, 0x03]),
            COMPRESSION_ERROR,
            "fields",
        ),
        (
            "a frame that is too long",
            frame(DATA, 0, 1, &[0; 20_000]),
            FRAME_SIZE_ERROR,
            "protocol",
        ),
        (
            "a stream of the server",
            request(2, &GET),
            PROTOCOL_ERROR,
            "protocol",
        ),
        (
            "data of a stream that is not open",
            frame(DATA, 0, 1, b"x"),
            PROTOCOL_ERROR,
            "protocol",
        ),
    ];
    let mut counted = BTreeMap::new();
    for (name, bytes, code, reason) in attacks {
        let mut client = Http2::open(&server);
        client.send(&bytes);
        assert_eq!(client.gone().0, code, "{name}");
        *counted.entry(reason).or_insert(0.0) += 1.0;
        // Others are served.
        publish(&server, "other", name);
    }
    for (reason, count) in counted {
        let metric = format!("crore_http2_goaways_total{{reason=\"{reason}\"}}");
        await_metric(server.admin(), &metric, count);
    }
}

/// The connection of a trusted proxy carries the requests of many clients. No client can end the connection, or block the requests of the
/// others.
#[test]
fn resets_and_paused_uploads_of_some_clients_of_a_proxy_harm_no_other() {
    let proxy = format!("{ON}trusted_proxies = [\"127.0.0.0/8\"]\n");
    let server = Server::with_admin(&proxy);
    let mut client = Http2::open(&server);
    for _ in 0..1_000 {
        let stream = client.get("/sub/a", &[("accept", "text/event-stream")]);
        client.send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    // Eight uploads that stand still use up eight windows of a stream: more than the window of a client's connection.
    for _ in 0..8 {
        let fields = [("content-length", "80000")];
        let stream = client.begin("POST", "/pub/paused", &fields, 0);
        for _ in 0..4 {
            client.send(&frame(DATA, 0, stream, &[b'x'; 16_000]));
        }
    }
    // 202: nobody subscribes to this topic.
    let stream = client.post("/pub/b", b"x");
    assert_eq!(client.answer(stream).0, 202);
}

#[test]
fn requests_that_break_a_rule_end_their_stream_only() {
    let server = Server::with(ON);
    let without = |name: &str| {
        let kept = GET.into_iter().filter(|(other, _)| *other != name);
        kept.collect::<Vec<_>>()
    };
    let with = |name, value| [&GET[..], &[(name, value)]].concat();
    let bad: Vec<(&str, Vec<(&str, &str)>)> = vec![
        ("two hosts", with("host", "elsewhere")),
        ("a field of the connection", with("connection", "close")),
        ("a transfer coding", with("transfer-encoding", "chunked")),
        ("a connection that is kept", with("keep-alive", "timeout=5")),
        ("an old field", with("proxy-connection", "keep-alive")),
        ("an upgrade", with("upgrade", "websocket")),
        ("other codings of trailers", with("te", "gzip")),
        ("a name in upper case", with("X-A", "b")),
        ("a line in a value", with("x-a", "b\r\nx-c: d")),
        ("a body that does not come", with("content-length", "5")),
        ("no path", without(":path")),
        ("no method", without(":method")),
        ("an unknown pseudo-header", with(":other", "x")),
    ];
    let mut client = Http2::open(&server);
    for (name, fields) in bad {
        let stream = client.next;
        client.next += 2;
        client.send(&request(stream, &fields));
        assert_eq!(client.reset(stream), PROTOCOL_ERROR, "{name}");
    }
    let stream = client.begin("POST", "/pub/a", &[("content-length", "2")], 0);
    client.send(&frame(DATA, END_STREAM, stream, b"three"));
    assert_eq!(client.reset(stream), PROTOCOL_ERROR, "a longer body");
    let stream = client.begin("POST", "/pub/a", &[("content-length", "9")], 0);
    client.send(&frame(DATA, END_STREAM, stream, b"short"));
    assert_eq!(client.reset(stream), PROTOCOL_ERROR, "a shorter body");
    let stream = client.begin("POST", "/pub/a", &[], 0);
    let most = 0x7fff_ffff_u32.to_be_bytes();
    client.send(&frame(WINDOW_UPDATE, 0, stream, &most));
    assert_eq!(client.reset(stream), FLOW_CONTROL_ERROR, "a window");
    let stream = client.post("/pub/a", b"well");
    assert_eq!(client.answer(stream).0, 202);
}

#[test]
fn bytes_of_a_body_or_of_a_refused_tunnel_never_become_a_request() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    // It would end a body in chunks, and begin a request of HTTP/1.1.
    let hidden = format!(
        "0\r\n\r\nPOST /pub/hidden HTTP/1.1\r\nhost: {}\r\ncontent-length: 1\r\n\r\nx",
        client.host
    );
    let length = hidden.len().to_string();
    for extra_fields in [&[][..], &[("content-length", length.as_str())]] {
        let stream = client.begin("POST", "/pub/a", extra_fields, 0);
        client.send(&frame(DATA, END_STREAM, stream, hidden.as_bytes()));
        assert_eq!(client.answer(stream).0, 202);
    }
    let fields = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    for request in [&hidden[..], &hidden["0\r\n\r\n".len()..]] {
        let stream = client.begin("CONNECT", "/nowhere", &fields, 0);
        client.send(&frame(DATA, END_STREAM, stream, request.as_bytes()));
        assert_eq!(client.answer(stream).0, 404);
    }
    let mut history = |topic: &str| {
        let stream = client.get(&format!("/history/{topic}?since=oldest"), &[]);
        let (status, text) = client.answer(stream);
        assert_eq!(status, 200, "{text}");
        let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        let data = list.iter().map(|it| it["data"].as_str().expect("a text"));
        data.map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(history("a"), [hidden.as_str(); 2]);
    assert!(history("hidden").is_empty());
}

#[test]
fn a_stream_opened_after_goaway_is_not_served() {
    let server = Server::with(&format!("{ON}[limits]\nconnections_per_address_max = 2\n"));
    let mut first = Http2::open(&server);
    first.events("a");
    // This connection is turned away with the answer to its first request.
    let mut second = Http2::open(&server);
    let post = |stream| {
        let fields = [
            &[(":method", "POST"), (":path", "/pub/b")][..],
            &GET[1..2],
            &GET[3..],
        ];
        let head = frame(HEADERS, END_HEADERS, stream, &block(&fields.concat()));
        [head, frame(DATA, END_STREAM, stream, b"late")].concat()
    };
    second.send(&[request(1, &GET), post(3)].concat());
    let mut frames = Vec::new();
    while let Some(frame) = second.read() {
        frames.push(frame);
    }
    let last = frames.iter().find(|it| it.kind == GOAWAY);
    assert_eq!(last.map(|it| &it.payload[..4]), Some(&[0, 0, 0, 1][..]));
    let answer = frames.iter().find(|it| it.stream == 1).expect("an answer");
    assert_eq!(status(&answer.payload), 429);
    assert!(frames.iter().all(|it| it.stream != 3), "{frames:?}");
    let history = first.get("/history/b?since=oldest", &[]);
    // Its own address has no room either, so the answer is a refusal until its first stream has ended.
    assert_eq!(first.answer(history).0, 429);
    drop(first);
    let history = eventually("room for a connection", || {
        let answer = once(&server, "GET", "/history/b?since=oldest", &[], "");
        (answer.status != 429).then_some(answer)
    });
    assert_eq!((history.status, history.text()), (200, "[]\n"));
}

#[test]
fn a_window_of_one_byte_brings_the_whole_answer() {
    let server = Server::with(ON);
    let mut client = Http2::with(&server, &[(INITIAL_WINDOW, 1)]);
    let stream = client.get("/nowhere", &[]);
    assert_eq!(status(&client.of(stream).payload), 404);
    let mut body: Vec<u8> = Vec::new();
    loop {
        let data = client.of(stream);
        assert!(data.kind == DATA && data.payload.len() <= 1, "{data:?}");
        body.extend(&data.payload);
        if data.flags & END_STREAM != 0 {
            break;
        }
        if body.len() < 10 {
            client.assert_silent(stream);
        }
        client.send(&frame(WINDOW_UPDATE, 0, stream, &1_u32.to_be_bytes()));
    }
    let http1 = once(&server, "GET", "/nowhere", &[], "");
    assert_eq!(body, http1.text().as_bytes());
}

#[test]
fn body_in_frames_of_one_byte_is_published() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    let waiting = client.get("/sub/news", &[]);
    server.await_subscribers("news", 1);
    let stream = client.begin("POST", "/pub/news", &[("content-length", "2000")], 0);
    let byte = |n: usize| vec![b'a' + (n % 26) as u8];
    let frames = (0..1_999).flat_map(|n| frame(DATA, 0, stream, &byte(n)));
    let last = frame(DATA, END_STREAM, stream, &byte(1_999));
    client.send(&frames.chain(last).collect::<Vec<u8>>());
    assert_eq!(client.answer(stream).0, 201);
    let whole = (0..2_000).flat_map(byte).collect();
    let whole = String::from_utf8(whole).expect("letters");
    assert_eq!(client.answer(waiting), (200, whole));
}

#[test]
fn stream_dependencies_are_ignored() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    // Streams that depend on each other in a circle, alone on one that does not exist, and on one that is not open yet.
    for (stream, parent) in [(1, 3), (3, 1), (5, 0x8000_0000 | 9_999), (101, 7)] {
        let payload = [&u32::to_be_bytes(parent)[..], &[255]].concat();
        client.send(&frame(PRIORITY, 0, stream, &payload));
    }
    for parent in [3, 0x8000_0000 | 77, 0x7fff_ffff] {
        let stream = client.next;
        client.next += 2;
        let payload = [&u32::to_be_bytes(parent)[..], &[0], &block(&GET)].concat();
        let flags = END_HEADERS | END_STREAM | WITH_PRIORITY;
        client.send(&frame(HEADERS, flags, stream, &payload));
        assert_eq!(client.answer(stream).0, 200);
    }
}

#[test]
fn streams_past_the_limit_are_refused() {
    let server = Server::with("[http]\nh2_cleartext = true\nh2_streams_max = 3\n");
    let mut client = Http2::open(&server);
    let first = client.events("a");
    client.events("b");
    client.events("c");
    let fourth = client.get("/sub/d", &[("accept", "text/event-stream")]);
    assert_eq!(client.reset(fourth), REFUSED_STREAM);
    publish(&server, "a", "served");
    client.data_with(first, "served");
    client.send(&frame(RST_STREAM, 0, first, &8_u32.to_be_bytes()));
    client.events("d");
}

#[test]
fn half_closed_connection_ends_with_its_event_streams() {
    let server = Server::with(ON);
    let mut client = Http2::open(&server);
    client.events("news");
    client.socket.shutdown(Shutdown::Write).expect("open");
    server.await_subscribers("news", 0);
    // A connection that stays is noticed here.
    while client.read().is_some() {}
}

#[test]
fn half_closed_client_gets_answers_that_were_still_due() {
    let server = Server::with(&format!(
        "{ON}[[access.key]]\nalg = \"HS256\"\nsecret = \"0123456789abcdef0123456789abcdef\"\n"
    ));
    let mut client = Http2::open(&server);
    // Each token is verified by itself, so the server reads the end of the requests first.
    let requests = (0..100).flat_map(|n| {
        let token = format!("Bearer eyJhbGciOiJIUzI1NiJ9.e30.{n:043}");
        let fields = [&GET[..], &[("authorization", token.as_str())]].concat();
        request(2 * n + 1, &fields)
    });
    client.send(&requests.collect::<Vec<u8>>());
    client.socket.shutdown(Shutdown::Write).expect("open");
    for n in 0..100 {
        assert_eq!(client.answer(2 * n + 1).0, 401);
    }
}

#[test]
fn streams_past_the_limit_of_an_address_are_refused_and_take_few_places() {
    let server = Server::with(&format!("{ON}[limits]\nconnections_per_address_max = 3\n"));
    let mut client = Http2::open(&server);
    client.events("a");
    client.events("b");
    // The first of them are told why. The answers of the others would take room.
    let refused: Vec<u32> = (0..6).map(|_| client.get("/sub/c", &[])).collect();
    let (reported, others) = refused.split_at(4);
    for stream in reported {
        assert_eq!(client.answer(*stream).0, 429);
    }
    for stream in others {
        assert_eq!(client.reset(*stream), REFUSED_STREAM);
    }
}

#[test]
fn connection_past_the_memory_limit_of_a_head_is_answered_431() {
    let server = Server::with(&format!("{ON}[limits]\nhead_bytes = 1024\n"));
    let mut client = Http2::open(&server);
    let long = "x".repeat(120);
    let names: Vec<String> = (0..10).map(|n| format!("x-{n}")).collect();
    let fields: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], &long[..])).collect();
    let stream = client.get("/history/a", &fields);
    assert_eq!(client.answer(stream).0, 431);
}

#[test]
fn drain_sends_goaway_and_ends_open_streams() {
    let server = Server::with(&format!("{ON}[drain]\ndeadline_s = 10\n"));
    let mut client = Http2::open(&server);
    let stream = client.events("news");
    server.signal("TERM");
    let (mut reported, mut ended) = (0, None);
    while let Some(frame) = client.read() {
        reported += usize::from(frame.kind == GOAWAY);
        if frame.stream == stream && frame.kind == DATA && frame.flags & END_STREAM != 0 {
            ended = Some(reported);
        }
    }
    // The client is told before its stream ends, and again with the end of the connection.
    assert_eq!((ended, reported), (Some(1), 2));
}
