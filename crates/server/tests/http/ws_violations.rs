//! Tests violations of RFC 6455 by a client, and the close code for each.

use crate::support::Server;
use crate::support::attempt;
use crate::support::http::publish;
use crate::support::ws::{BINARY, CLOSE, CONTINUATION, FIN, PING, RSV1, TEXT, Ws, head, masked};

/// The name of each violation, its bytes, and the code with which the server must close.
fn violations() -> Vec<(&'static str, Vec<u8>, u16)> {
    let close = |payload: &[u8]| masked(FIN | CLOSE, payload);
    let code = |code: u16| close(&code.to_be_bytes());
    let unmasked = [head(FIN | TEXT, 2, false), b"hi".to_vec()].concat();
    vec![
        ("an unmasked frame", unmasked, 1002),
        ("an unmasked ping", head(FIN | PING, 0, false), 1002),
        (
            "RSV1 without an extension",
            masked(FIN | RSV1 | TEXT, b"hi"),
            1002,
        ),
        ("RSV2", masked(FIN | 0x20 | TEXT, b"hi"), 1002),
        ("RSV3", masked(FIN | 0x10 | TEXT, b"hi"), 1002),
        ("opcode 3", masked(FIN | 3, b"hi"), 1002),
        ("opcode 11", masked(FIN | 11, b"hi"), 1002),
        ("a fragmented ping", masked(PING, b"hi"), 1002),
        (
            "a ping of 126 bytes",
            masked(FIN | PING, &[b'x'; 126]),
            1002,
        ),
        (
            "a continuation of nothing",
            masked(FIN | CONTINUATION, b"hi"),
            1002,
        ),
        (
            "a message amid fragments",
            [masked(TEXT, b"a"), masked(FIN | TEXT, b"b")].concat(),
            1002,
        ),
        (
            "a length with its highest bit set",
            head(FIN | BINARY, 1 << 63, true),
            1002,
        ),
        ("a close frame of one byte", close(&[3]), 1002),
        ("close code 999", code(999), 1002),
        ("close code 1004", code(1004), 1002),
        ("close code 1005", code(1005), 1002),
        ("close code 1006", code(1006), 1002),
        ("close code 1015", code(1015), 1002),
        ("close code 2999", code(2999), 1002),
        ("close code 5000", code(5000), 1002),
        (
            "a close reason that is no UTF-8",
            close(b"\x03\xe8\xff"),
            1007,
        ),
        (
            "a text that is no UTF-8",
            masked(FIN | TEXT, b"a\xffb"),
            1007,
        ),
        ("an overlong form", masked(FIN | TEXT, b"\xc0\xaf"), 1007),
        ("a surrogate", masked(FIN | TEXT, b"\xed\xa0\x80"), 1007),
        (
            "a character above U+10FFFF",
            masked(FIN | TEXT, b"\xf4\x90\x80\x80"),
            1007,
        ),
        (
            "a text that ends amid a character",
            masked(FIN | TEXT, b"caf\xc3"),
            1007,
        ),
        (
            "no UTF-8 in a fragment, the end of which never comes",
            masked(TEXT, b"a\xff"),
            1007,
        ),
        (
            "a bad byte in a frame, the rest of which never comes",
            masked(FIN | TEXT, &[0xff; 100])[..20].to_vec(),
            1007,
        ),
        (
            "a frame over the limit, by its head alone",
            head(FIN | BINARY, (1 << 20) + 1, true),
            1009,
        ),
        (
            "a frame far over the limit",
            head(FIN | BINARY, 1 << 62, true),
            1009,
        ),
    ]
}

#[test]
fn each_violation_closes_with_its_code_and_harms_no_other_client() {
    let server = Server::start();
    let mut neighbour = Ws::open(&server, "/pubsub/news", &[]);
    server.await_subscribers("news", 1);
    let mut failures = Vec::new();
    for (name, bytes, code) in violations() {
        let mut ws = Ws::open(&server, "/pub/other", &[]);
        ws.conn.send(bytes);
        let outcome = attempt(|| (ws.frame(), ws.conn.ends()));
        let is_right = outcome.as_ref().is_some_and(|(frame, ends)| {
            frame.opcode() == CLOSE && frame.close_code() == Some(code) && *ends
        });
        if !is_right {
            failures.push(format!("{name}: {outcome:?} and not {code} and the end"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    neighbour.send(FIN | TEXT, "undisturbed");
    assert_eq!(neighbour.message().text(), "undisturbed");
}

#[test]
fn violations_of_a_subscriber_close_with_the_same_codes() {
    let server = Server::start();
    for (name, bytes, code) in violations()
        .into_iter()
        .filter(|(_, _, code)| *code == 1002)
    {
        let mut ws = Ws::open(&server, "/sub/news", &[]);
        ws.conn.send(bytes);
        assert_eq!(ws.closed(), Some(code), "{name}");
    }
}

#[test]
fn fragments_together_stay_below_the_limit() {
    let server = Server::with("[limits]\nmessage_bytes = 1000\n");
    let mut ws = Ws::open(&server, "/pubsub/news", &[]);
    server.await_subscribers("news", 1);
    ws.send(TEXT, [b'x'; 600]);
    ws.send(FIN | CONTINUATION, [b'y'; 400]);
    assert_eq!(ws.message().payload.len(), 1000);
    ws.send(TEXT, [b'x'; 600]);
    ws.send(FIN | CONTINUATION, [b'y'; 401]);
    assert_eq!(ws.closed(), Some(1009));
}

#[test]
fn frames_after_a_violation_are_not_published() {
    let server = Server::start();
    let mut ws = Ws::open(&server, "/pub/news", &[]);
    let bytes = [
        masked(FIN | TEXT, b"good"),
        masked(FIN | 3, b""),
        masked(FIN | TEXT, b"late"),
    ]
    .concat();
    ws.conn.send(bytes);
    assert_eq!(ws.closed(), Some(1002));
    // A plain frame has no acknowledgement, so the message may still be on its way to the topic.
    let mut oldest = Ws::open(&server, "/sub/news?since=oldest", &[]);
    assert_eq!(oldest.message().text(), "good");
    publish(&server, "news", "next");
    assert_eq!(oldest.message().text(), "next");
}
