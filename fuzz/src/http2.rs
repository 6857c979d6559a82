//! Fuzz target for a connection of HTTP/2: frames, HPACK, and the states of streams.

use crore_wire::http::head;
use crore_wire::http2::frame::{Header, Kind, PAYLOAD_MAX, PREFACE};
use crore_wire::http2::{Connection, ErrorCode, Event, Limits, Scratch, Violation, bytes_kept};

use crate::Input;

/// Frames, beginnings of frames, and fields. Words are text, so they have no byte over 0x7f.
pub const WORDS: &[&str] = &[
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\0\0\0\u{4}\0\0\0\0\0",
    "\0\0\0\u{4}\u{1}\0\0\0\0",
    "\0\0\u{6}\u{4}\0\0\0\0\0\0\u{4}\0\0\0\u{10}",
    "\0\0\u{8}\u{6}\0\0\0\0\0abcdefgh",
    "\0\0\u{4}\u{8}\0\0\0\0\0\0\0\0\u{1}",
    "\0\0\u{4}\u{8}\0\0\0\0\u{1}\u{7f}\0\0\0",
    "\0\0\u{4}\u{3}\0\0\0\0\u{1}\0\0\0\u{8}",
    "\0\0\u{5}\u{2}\0\0\0\0\u{3}\0\0\0\u{1}\u{9}",
    "\0\0\u{1}\0\0\0\0\0\u{1}x",
    "\0\0\u{3}\0\u{9}\0\0\0\u{1}\u{1}x\0",
    "\0\0\u{1}\u{1}\u{4}\0\0\0\u{3}",
    "\0\0\u{1}\u{9}\u{4}\0\0\0\u{3}",
    "\0\0\0\u{9}\0\0\0\0\u{1}",
    "\0\0\u{8}\u{7}\0\0\0\0\0\0\0\0\0\0\0\0\0",
    "\0\u{1}a\u{1}b",
    "@\u{1}a\u{1}b",
    "\u{f}\u{d}\u{1}5",
    "\0\u{6}cookie\u{3}a=b",
    "\0\u{9}:protocol\u{9}websocket",
    "\u{3f}\u{61}",
    " ",
];

/// An event that outlives the receive buffer. The data of bodies is joined elsewhere.
#[derive(Debug, PartialEq)]
enum Got {
    Request(u32, Vec<u8>, bool),
    TooLarge(u32),
    Ends(u32),
    Reset(u32, u32),
    Refused(u32, Violation),
    Writable(u32),
    GoAway(u32),
    Violation(Violation),
}

/// The result of a run: the events, all data of bodies, and what was written.
#[derive(Debug, Default, PartialEq)]
struct Run {
    got: Vec<Got>,
    data: Vec<(u32, u8)>,
    out: Vec<u8>,
}

/// What the server does with requests.
#[derive(Clone, Copy, PartialEq)]
enum Server {
    Silent,
    /// Takes bodies, and answers at the end of each request with so many bytes.
    Answers(usize),
}

/// Receives frames as a server. Checked: events and answers do not depend on the cuts (the places where the input is split into pieces).
/// What is kept stays within its limit, heads of requests are heads of HTTP/1.1 on their own, and a server that answers writes whole frames,
/// no more data than the windows allow, and nothing behind the end of a stream.
pub fn http2(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let mut limits = Limits::default();
    if input.options & 1 != 0 {
        limits = Limits {
            streams: 2,
            header_list_bytes: 200,
            header_block_bytes: 300,
            continuations: 2,
            resets: 3,
            settings: 4,
            pings: 3,
            empty_frames: 4,
            small_frames: 4,
            window_updates: 5,
            ..limits
        };
    }
    let mut pieces: Vec<&[u8]> = Vec::new();
    if input.options & 2 != 0 {
        // A valid beginning, so that mutations reach what follows.
        pieces.extend([&PREFACE[..], b"\0\0\0\x04\0\0\0\0\0"]);
    }
    let begin = pieces.len();
    pieces.push(input.bytes);
    let whole = run(&pieces, &limits, Server::Silent);
    pieces.truncate(begin);
    pieces.extend(input.pieces());
    assert_eq!(
        run(&pieces, &limits, Server::Silent),
        whole,
        "the cuts show"
    );
    let answer_bytes = 70_000 * usize::from(input.options >> 2 & 1) + 5;
    let answered = run(&pieces, &limits, Server::Answers(answer_bytes));
    check_written(&answered.out, &pieces.concat());
}

fn run(pieces: &[&[u8]], limits: &Limits, server: Server) -> Run {
    let mut run = Run::default();
    let mut connection = Connection::new(limits, &mut run.out);
    let mut scratch = Scratch::default();
    let mut kept: Vec<u8> = Vec::new();
    for piece in pieces {
        kept.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let left = &kept[at..];
            let received = connection.receive(left, 1, limits, &mut scratch, &mut run.out);
            let received = match received {
                Ok(received) => received,
                Err(violation) => {
                    assert!(!violation.is_of_stream() && !violation.name().is_empty());
                    run.got.push(Got::Violation(violation));
                    return run;
                }
            };
            at += received.consumed;
            let Some(event) = received.event else { break };
            handle(&mut run, &mut connection, event, server);
            assert!(connection.streams() <= limits.streams as usize);
        }
        kept.drain(..at);
        assert!(
            kept.len() <= bytes_kept(limits),
            "{} bytes kept",
            kept.len()
        );
        assert!(connection.heap_bytes() < 32 * 1024);
    }
    run
}

fn handle(run: &mut Run, connection: &mut Connection, event: Event<'_>, server: Server) {
    let (stream, ends) = match event {
        Event::Request { stream, head, ends } => {
            run.got.push(Got::Request(stream, head.to_vec(), ends));
            check_head(head);
            (stream, ends)
        }
        Event::TooLarge { stream } => {
            run.got.push(Got::TooLarge(stream));
            (stream, true)
        }
        Event::Data {
            stream, data, ends, ..
        } => {
            run.data.extend(data.iter().map(|byte| (stream, *byte)));
            if ends {
                run.got.push(Got::Ends(stream));
            }
            if server != Server::Silent {
                connection.release(stream, data.len(), &mut run.out);
            }
            (stream, ends)
        }
        Event::Writable { stream, .. } => {
            run.got.push(Got::Writable(stream));
            assert!(stream == 0 || connection.slots().any(|(id, _)| id == stream));
            return;
        }
        other => {
            run.got.push(match other {
                Event::Reset { stream, code, .. } => Got::Reset(stream, code),
                Event::Refused {
                    stream, violation, ..
                } => {
                    assert!(violation.is_of_stream());
                    Got::Refused(stream, violation)
                }
                Event::GoAway { code } => Got::GoAway(code),
                _ => unreachable!("handled above"),
            });
            return;
        }
    };
    if let Server::Answers(bytes) = server
        && ends
    {
        answer(connection, stream, bytes, &mut run.out);
    }
}

/// Answers a request. A part that the windows do not take is given up.
fn answer(connection: &mut Connection, stream: u32, bytes: usize, out: &mut Vec<u8>) {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: b\r\n\r\n";
    let Some(len) = connection.respond(stream, head, false, out) else {
        return;
    };
    assert_eq!(len, head.len());
    let body = vec![b'x'; bytes];
    let taken = connection.send_data(stream, &body, true, out);
    assert!(taken <= bytes);
    if taken < bytes {
        assert_eq!(connection.capacity(stream), 0, "a window is left");
        connection.reset(stream, ErrorCode::Internal, out);
    }
}

/// The text of a head must be one head, whatever the parser of heads says of its content.
fn check_head(text: &[u8]) {
    let end = text.windows(4).position(|four| four == b"\r\n\r\n");
    assert_eq!(end, Some(text.len() - 4), "{}", text.escape_ascii());
    match head::parse(text, usize::MAX) {
        Ok(Some(head)) => {
            assert_eq!(head.len, text.len());
            assert!(head.keep_alive() && head.minor == 1);
            head.body().ok();
        }
        Ok(None) => panic!("a part of a head: {}", text.escape_ascii()),
        Err(error) => assert!(matches!(error.status(), 400 | 431), "{error}"),
    }
}

/// Checks that a server wrote whole frames, and no more data than the client's window of the connection allows.
fn check_written(mut out: &[u8], sent: &[u8]) {
    let mut data_bytes = 0;
    let mut ended: Vec<u32> = Vec::new();
    while !out.is_empty() {
        let header = Header::read(out).expect("a whole header");
        assert!(header.payload_bytes() <= PAYLOAD_MAX);
        out = out
            .get(9 + header.payload_bytes()..)
            .expect("a whole frame");
        let is_answer = [Kind::Data, Kind::Headers]
            .map(|kind| kind as u8)
            .contains(&header.kind);
        assert!(
            !is_answer || !ended.contains(&header.stream),
            "behind the end"
        );
        if is_answer && header.has(1) || header.kind == Kind::ResetStream as u8 {
            ended.push(header.stream);
        }
        if header.kind == Kind::Data as u8 {
            data_bytes += u64::from(header.len);
        }
    }
    assert!(data_bytes <= window(sent), "more data than the window");
}

/// The window of the connection that these bytes of a client give at most.
fn window(sent: &[u8]) -> u64 {
    let mut window = 65_535;
    let mut rest = sent.get(PREFACE.len()..).unwrap_or_default();
    while let Some(header) = Header::read(rest) {
        let payload = &rest[9..];
        if header.kind == Kind::WindowUpdate as u8
            && header.stream == 0
            && let Some(increment) = payload.first_chunk()
        {
            window += u64::from(u32::from_be_bytes(*increment) & 0x7fff_ffff);
        }
        rest = payload.get(header.payload_bytes()..).unwrap_or_default();
    }
    window
}
