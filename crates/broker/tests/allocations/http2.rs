//! Tests the allocations and the memory of the HTTP/2 codec, and of the server's links and streams.

use crore_wire::http::head;
use crore_wire::http::response::ResponseHead;
use crore_wire::http2::frame::{ACK, END_HEADERS, END_STREAM, Header, Kind, PREFACE};
use crore_wire::http2::{Connection, Event, Limits, Scratch};

use crate::counting::{allocations, grown_bytes};
use crate::test_server::{TestServer, keeping, post};
use crore_broker::ConnId;

/// The fields of `POST https://h/pub/a` with five bytes and a `user-agent` in the Huffman code, and of `GET https://h/sub/a`.
const POST: &[u8] = b"\x83\x87\x01\x01h\x04\x06/pub/a\x0f\x0d\x015\x0f\x2b\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
const GET: &[u8] = b"\x82\x87\x01\x01h\x04\x06/sub/a";

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header::new(kind, flags, stream, payload.len()).bytes();
    [&header[..], payload].concat()
}

/// A connection with the memory that a thread has for all of them.
struct Server {
    connection: Connection,
    limits: Limits,
    scratch: Scratch,
    out: Vec<u8>,
    answer: Vec<u8>,
}

impl Server {
    fn new() -> Server {
        let limits = Limits::default();
        let mut server = Server {
            connection: Connection::new(&limits, &mut Vec::new()),
            limits,
            scratch: Scratch::default(),
            out: Vec::with_capacity(1 << 14),
            answer: Vec::with_capacity(1 << 10),
        };
        server.receive(PREFACE);
        server.receive(&frame(Kind::Settings, 0, 0, &[]));
        server.receive(&frame(Kind::Settings, ACK, 0, &[]));
        server
    }

    /// Receives bytes. Answers a request with a body, and begins an event stream for others.
    fn receive(&mut self, mut bytes: &[u8]) {
        self.out.clear();
        let mut handled = 0;
        loop {
            let (scratch, out) = (&mut self.scratch, &mut self.out);
            let received = self
                .connection
                .receive(bytes, 1, &self.limits, scratch, out);
            let received = received.expect("a good client");
            bytes = &bytes[received.consumed..];
            let Some(event) = received.event else {
                assert!(bytes.is_empty() && handled <= 2);
                return;
            };
            handled += 1;
            match event {
                Event::Request { stream, head, ends } => {
                    let head = head::parse(head, usize::MAX).expect("valid");
                    head.expect("whole").body().expect("one length");
                    if ends {
                        self.answer.clear();
                        ResponseHead::new(&mut self.answer, 200)
                            .header("Content-Type", b"text/event-stream")
                            .end();
                        let (answer, out) = (&self.answer, &mut self.out);
                        self.connection.respond(stream, answer, false, out);
                    }
                }
                Event::Data {
                    stream, data, ends, ..
                } => {
                    assert!(ends);
                    self.answer.clear();
                    ResponseHead::new(&mut self.answer, 202).content(b"ok");
                    let (answer, out) = (&self.answer, &mut self.out);
                    self.connection.release(stream, data.len(), out);
                    let len = self.connection.respond(stream, answer, false, out);
                    let body = &answer[len.expect("an open stream")..];
                    assert_eq!(self.connection.send_data(stream, body, true, out), 2);
                }
                event => panic!("{event:?}"),
            }
        }
    }
}

#[test]
fn http2_request_and_its_answer_allocate_nothing() {
    let mut server = Server::new();
    let requests: Vec<Vec<u8>> = (0..1_000)
        .map(|n| {
            let head = frame(Kind::Headers, END_HEADERS, 2 * n + 1, POST);
            [head, frame(Kind::Data, END_STREAM, 2 * n + 1, b"hello")].concat()
        })
        .collect();
    let (warm_up, rest) = requests.split_at(10);
    for request in warm_up {
        server.receive(request);
    }
    let count = allocations(|| {
        for request in rest {
            server.receive(request);
            // Two windows of the client grow with what it has read.
            server.receive(b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x02");
        }
    });
    assert_eq!(count, 0);
    assert_eq!(server.connection.streams(), 0);
}

#[test]
fn an_idle_connection_and_an_idle_stream_need_few_bytes() {
    let connection = size_of::<Connection>();
    assert!(connection <= 160, "{connection} bytes");
    let mut server = Server::new();
    server.receive(&frame(Kind::Headers, END_HEADERS | END_STREAM, 1, GET));
    let streams = 20;
    let requests: Vec<Vec<u8>> = (1..=streams)
        .map(|n| frame(Kind::Headers, END_HEADERS | END_STREAM, 2 * n + 1, GET))
        .collect();
    let bytes = grown_bytes(|| {
        for request in &requests {
            server.receive(request);
        }
    });
    assert_eq!(server.connection.streams(), 21);
    assert!(
        bytes <= 32 * i64::from(streams),
        "{bytes} bytes for {streams} streams"
    );
}

/// The first frames of a client, whose bytes are all ASCII.
fn hello() -> String {
    let settings = [
        frame(Kind::Settings, 0, 0, &[]),
        frame(Kind::Settings, ACK, 0, &[]),
    ];
    let bytes = [&PREFACE[..], &settings.concat()].concat();
    String::from_utf8(bytes).expect("ASCII")
}

/// A request for an event stream.
fn events(stream: u32, topic: &str) -> Vec<u8> {
    let path = format!("/sub/{topic}");
    let mut block = b"\x82\x86\x01\x09localhost\x04".to_vec();
    block.push(path.len() as u8);
    block.extend(path.bytes());
    block.extend(b"\x0f\x04\x11text/event-stream");
    frame(Kind::Headers, END_HEADERS | END_STREAM, stream, &block)
}

/// A topic's row at the carrier (the shard with the subscriber) and at the home (the part of a shard that keeps topics), with the name of
/// 11 bytes and a hash bucket at both.
const TOPIC_BYTES: f64 = 24.0 + 40.0 + 2.0 * (16.0 + 4.0);

#[test]
fn idle_links_and_streams_of_a_shard_need_few_bytes() {
    const LINKS: usize = 200;
    const STREAMS: usize = 100;
    let mut server = TestServer::new(1, keeping(0));
    let open = |server: &mut TestServer, link: ConnId, n: usize| {
        for stream in 0..STREAMS {
            let request = events(2 * stream as u32 + 1, &format!("t/{n:04}/{stream:04}"));
            server.receive(0, link, &request);
            server.settle();
        }
    };
    for n in 0..20 {
        let link = server.open(0, &hello());
        open(&mut server, link, 1_000 + n);
    }
    let mut links = Vec::with_capacity(LINKS);
    let of_links = grown_bytes(|| {
        for _ in 0..LINKS {
            links.push(server.open(0, &hello()));
        }
    });
    let each = of_links as f64 / LINKS as f64;
    assert!(each <= 600.0, "{each} bytes for a link");
    let of_streams = grown_bytes(|| {
        for (n, link) in links.iter().enumerate() {
            open(&mut server, *link, n);
        }
    });
    let each = of_streams as f64 / (LINKS * STREAMS) as f64 - TOPIC_BYTES;
    assert!(each <= 100.0, "{each} bytes for a stream, beside its topic");
}

#[test]
fn streams_of_a_link_get_their_messages_in_one_write() {
    let mut server = TestServer::new(1, keeping(0));
    let link = server.open(0, &hello());
    for stream in 0..10 {
        server.receive(0, link, &events(2 * stream + 1, "news"));
    }
    let publisher = server.open(0, "");
    server.settle();
    let before = server.writes();
    server.receive(0, publisher, &post("news"));
    server.settle();
    // One write is the publisher's answer.
    assert_eq!(server.writes() - before, 2);
}
