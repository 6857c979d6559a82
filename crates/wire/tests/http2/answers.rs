//! Answers: the same heads as in HTTP/1.1, and the ends of streams.

use crore_wire::http::response::ResponseHead;
use crore_wire::http2::frame::{END_HEADERS, END_STREAM, Kind};
use crore_wire::http2::hpack::decode::Decoder;

use crate::peer::{OwnedEvent, Peer, frame, request, u32_at};

fn fields(block: &[u8]) -> Vec<(String, String)> {
    let mut list = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut decoder = Decoder::default();
    let decoded = decoder.decode(block, &mut Vec::new(), usize::MAX, |name, value| {
        list.push((text(name), text(value)));
    });
    decoded.unwrap();
    list
}

fn answer(write: impl FnOnce(ResponseHead<'_>), status: u16) -> Vec<u8> {
    let mut answer = Vec::new();
    write(ResponseHead::new(&mut answer, status));
    answer
}

#[test]
fn an_answer_of_http_1_is_written_as_frames() {
    let mut peer = Peer::new();
    peer.get(1);
    let answer = answer(
        |head| {
            head.header("X-A", b"one: two")
                .lines(b"Connection: close\r\nKeep-Alive: x\r\nTransfer-Encoding: chunked\r\n")
                .header("Empty", b"")
                .content(b"body");
        },
        404,
    );
    let len = peer
        .connection
        .respond(1, &answer, false, &mut peer.out)
        .unwrap();
    assert_eq!(&answer[len..], b"body");
    assert_eq!(
        peer.connection
            .send_data(1, &answer[len..], true, &mut peer.out),
        4
    );
    let take_written = peer.take_written_frames();
    assert_eq!(
        (take_written[0].0.kind, take_written[0].0.flags),
        (Kind::Headers as u8, END_HEADERS)
    );
    let expected = [
        (":status", "404"),
        ("x-a", "one: two"),
        ("empty", ""),
        ("content-length", "4"),
    ];
    let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
    assert_eq!(fields(&take_written[0].1), expected);
    assert_eq!(
        (take_written[1].0.flags, &take_written[1].1[..]),
        (END_STREAM, &b"body"[..])
    );
    assert_eq!(peer.connection.streams(), 0);
}

#[test]
fn informational_heads_come_before_the_answer() {
    let mut peer = Peer::new();
    peer.post(1);
    for status in [100, 202] {
        let answer = answer(|head| head.end(), status);
        peer.connection
            .respond(1, &answer, false, &mut peer.out)
            .unwrap();
    }
    let statuses: Vec<String> = peer
        .take_written_frames()
        .iter()
        .map(|(_, block)| fields(block)[0].1.clone())
        .collect();
    assert_eq!(statuses, ["100", "202"]);
}

#[test]
fn a_long_head_continues() {
    let mut peer = Peer::new();
    peer.get(1);
    let long = vec![b'x'; 40_000];
    let answer = answer(|head| head.header("Long", &long).end(), 200);
    peer.connection
        .respond(1, &answer, true, &mut peer.out)
        .unwrap();
    let take_written = peer.take_written_frames();
    let kinds_and_flags: Vec<(u8, u8)> = take_written
        .iter()
        .map(|(header, _)| (header.kind, header.flags))
        .collect();
    assert_eq!(kinds_and_flags, [(1, END_STREAM), (9, 0), (9, END_HEADERS)]);
    let block: Vec<u8> = take_written
        .into_iter()
        .flat_map(|(_, payload)| payload)
        .collect();
    assert_eq!(fields(&block)[1].1.len(), 40_000);
}

#[test]
fn an_answer_before_the_end_of_its_request_ends_the_stream() {
    let mut peer = Peer::new();
    peer.post(1);
    let answer = answer(|head| head.end(), 413);
    peer.connection
        .respond(1, &answer, true, &mut peer.out)
        .unwrap();
    let take_written = peer.take_written_frames();
    assert_eq!(take_written.len(), 2);
    assert_eq!(
        (take_written[1].0.kind, u32_at(&take_written[1].1, 0)),
        (Kind::ResetStream as u8, 0)
    );
    assert_eq!(peer.connection.streams(), 0);
    assert_eq!(
        peer.connection.respond(1, &answer, true, &mut peer.out),
        None
    );
}

const TUNNEL: [(&str, &str); 5] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "h"),
    (":path", "/"),
];

#[test]
fn both_directions_of_a_tunnel_end_on_their_own() {
    let mut peer = Peer::new();
    peer.feed(&request(1, false, &TUNNEL));
    let head = b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: y\r\nSec-WebSocket-Protocol: z\r\n\r\n";
    peer.connection
        .respond(1, head, false, &mut peer.out)
        .unwrap();
    let expected = [(":status", "200"), ("sec-websocket-protocol", "z")];
    assert_eq!(
        fields(&peer.take_written_frames()[0].1),
        expected.map(|(a, b)| (a.to_string(), b.to_string()))
    );
    peer.connection.send_data(1, b"close", true, &mut peer.out);
    assert_eq!(peer.take_written_frames().len(), 1);
    // The answer has ended, the request goes on.
    assert_eq!(
        peer.connection.send_data(1, b"more", true, &mut peer.out),
        0
    );
    assert_eq!(peer.connection.respond(1, head, true, &mut peer.out), None);
    assert!(peer.out.is_empty());
    let events = peer.send(Kind::Data, END_STREAM, 1, b"close");
    assert_eq!(
        events,
        [OwnedEvent::Data {
            stream: 1,
            data: b"close".to_vec(),
            ends_stream: true
        }]
    );
    assert_eq!(peer.connection.streams(), 0);
}

#[test]
fn a_refused_tunnel_ends_at_once() {
    let mut peer = Peer::new();
    peer.feed(&request(1, false, &TUNNEL));
    peer.connection
        .respond(1, b"HTTP/1.1 403 x\r\n\r\n", true, &mut peer.out)
        .unwrap();
    assert_eq!(peer.connection.streams(), 0);
    assert_eq!(peer.send(Kind::Data, 0, 1, b"on its way"), []);
    assert_eq!(peer.feed(&frame(Kind::Ping, 0, 0, &[0; 8])), []);
}

#[test]
fn incomplete_answer_ends_after_its_written_part() {
    let mut peer = Peer::new();
    let head = answer(|head| head.end(), 200);
    for (stream, body) in [(1, &b""[..]), (3, b"body")] {
        peer.get(stream);
        assert_eq!(peer.connection.awaits_head(stream), Some(true));
        let respond =
            |peer: &mut Peer| peer.connection.respond(stream, &head, false, &mut peer.out);
        respond(&mut peer).unwrap();
        assert_eq!(peer.connection.awaits_head(stream), Some(false));
        peer.connection
            .send_data(stream, body, false, &mut peer.out);
        // The last frame is marked, so no other is needed.
        let last = peer.out.len()
            - if body.is_empty() {
                peer.out.len()
            } else {
                9 + body.len()
            };
        peer.connection.end(stream, Some(last), &mut peer.out);
        let take_written = peer.take_written_frames();
        assert_eq!(take_written.len(), 1 + usize::from(!body.is_empty()));
        assert_ne!(take_written[take_written.len() - 1].0.flags & END_STREAM, 0);
        assert_eq!(peer.connection.awaits_head(stream), None);
    }
    peer.get(5);
    peer.connection.respond(5, &head, false, &mut peer.out);
    peer.take_written_frames();
    peer.connection.end(5, None, &mut peer.out);
    let take_written = peer.take_written_frames();
    assert_eq!(
        (
            take_written[0].0.kind,
            take_written[0].0.flags,
            take_written.len()
        ),
        (Kind::Data as u8, END_STREAM, 1)
    );
    assert_eq!(peer.connection.streams(), 0);
}

#[test]
fn an_answer_that_has_not_begun_is_cancelled() {
    let mut peer = Peer::new();
    peer.get(1);
    peer.connection.end(1, None, &mut peer.out);
    let take_written = peer.take_written_frames();
    assert_eq!(
        (take_written[0].0.kind, u32_at(&take_written[0].1, 0)),
        (Kind::ResetStream as u8, 8)
    );
    assert_eq!(peer.connection.streams(), 0);
}

#[test]
fn tunnel_ended_by_the_server_leaves_no_stream() {
    let mut peer = Peer::new();
    peer.feed(&request(1, false, &TUNNEL));
    let head = b"HTTP/1.1 101 x\r\n\r\n";
    peer.connection.respond(1, head, false, &mut peer.out);
    assert!(peer.connection.is_tunnel(1) && !peer.connection.is_chunked(1));
    peer.take_written_frames();
    peer.connection.end(1, None, &mut peer.out);
    let kinds: Vec<u8> = peer
        .take_written_frames()
        .iter()
        .map(|(header, _)| header.kind)
        .collect();
    assert_eq!(kinds, [Kind::Data as u8, Kind::ResetStream as u8]);
    assert_eq!(peer.connection.streams(), 0);
    assert_eq!(peer.send(Kind::Data, END_STREAM, 1, b"on its way"), []);
}
