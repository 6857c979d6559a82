//! Fuzz target that sends the input on one connection, once as a whole and once in pieces, and compares the answers.

use crate::Input;
use crate::shards::Shards;

pub const WORDS: &[&str] = &[
    "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 47\r\n\r\n{\"topic\":\"a\",\"data\":\"x\"}\n{\"topic\":\"b\",\"data\":1}",
    "GET /sub/a?since=oldest HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /sub/a?since=oldest HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    "GET /sub?topic=a&topic=b&since=-2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /pub/a HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n",
    "DELETE /pub/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x\r\n\r\n",
    "HEAD /sub/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /interest?match=%23 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /sub/a HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "Idempotency-Key: k\r\n",
    "Crore-Key: one\r\n",
    "Crore-TTL: 2\r\n",
    "If-None-Match: \"17-1\"\r\n",
    "Last-Event-ID: 17-1\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "Content-Length: 0\r\n",
    "\r\n",
    "/latest/x",
    "/skip/y",
    "/none/z",
];

/// An answer that the server may send twice or not at all, depending on when the body arrives.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// All answers to a connection that sends these pieces. The client sends each piece when the server is idle.
fn answers<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut shards = Shards::new();
    let link = shards.connect(0, usize::MAX);
    shards.settle();
    for piece in pieces {
        shards.write(link, piece);
        shards.settle();
    }
    let answers = shards.read(link).to_vec();
    shards.end();
    answers
}

fn without_continue(answers: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = answers;
    while let Some(at) = rest
        .windows(CONTINUE.len())
        .position(|part| part == CONTINUE)
    {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + CONTINUE.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// The answers, cut after the status line of the last refusal. The header fields of that refusal are left out, since they depend on how
/// much of the malformed head had arrived.
fn to_refusal(answers: &[u8]) -> &[u8] {
    let is_begin = |part: &[u8]| part == b"HTTP/1.1 4" || part == b"HTTP/1.1 5";
    let Some(at) = answers.windows(10).rposition(is_begin) else {
        return answers;
    };
    let line = answers[at..].iter().position(|byte| *byte == b'\r');
    &answers[..line.map_or(answers.len(), |line| at + line)]
}

/// Sends requests on one connection. Checked: nothing panics, limits hold, and everything is released. As long as the connection speaks
/// HTTP, the answers do not depend on how the input was split into pieces.
pub fn requests(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let whole = answers(std::iter::once(input.bytes));
    let pieces = answers(input.pieces());
    // After an upgrade the answers are not compared: they depend on which frames arrive in the same turn of the shard's event loop.
    let switched = b"HTTP/1.1 101 ";
    if whole.windows(switched.len()).any(|part| part == switched) {
        return;
    }
    let (whole, pieces) = (without_continue(&whole), without_continue(&pieces));
    assert!(
        to_refusal(&whole) == to_refusal(&pieces),
        "whole:\n{}\nin pieces:\n{}",
        whole.escape_ascii(),
        pieces.escape_ascii()
    );
}
