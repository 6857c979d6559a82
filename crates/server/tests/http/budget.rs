//! Tests the limit of bytes that all logs share. Memory stays below it. The topics with the most bytes lose messages first, and a client
//! that resumes where messages were dropped is told a gap.

use crore_wire::sse::GAP_EVENT;

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::stream::Stream;

const MESSAGE_BYTES: usize = 50_000;

#[test]
fn one_publisher_cannot_displace_the_messages_of_others() {
    let server = Server::with(
        "[limits]\nlog_bytes = 2097152\n[[rule]]\nmatch = \"#\"\nlog_messages = 1000\nlog_bytes = 100000000\n",
    );
    publish(&server, "quiet", "kept");
    let quiet = once(&server, "GET", "/sub/quiet", &[], "").position();
    publish(&server, "quiet", "kept too");
    publish(&server, "greedy", "the first");
    let greedy = once(&server, "GET", "/sub/greedy", &[], "").position();
    let bytes_before = server.resident_bytes();
    let mut conn = Conn::open(&server);
    for _ in 0..600 {
        assert_eq!(
            conn.request("POST", "/pub/greedy", &[], "x".repeat(MESSAGE_BYTES))
                .status,
            202
        );
    }
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    assert!(
        grown < 12 << 20,
        "30 MB went through a budget of 2 MiB: it grew by {grown} bytes"
    );
    let resumed = once(
        &server,
        "GET",
        &format!("/sub/quiet?last_event_id={quiet}"),
        &[],
        "",
    );
    assert_eq!((resumed.status, resumed.text()), (200, "kept too"));
    let mut stream = Stream::open(&server, "/sub/greedy", &[("Last-Event-ID", &greedy)]);
    assert_eq!(stream.event().expect("a gap").kind, GAP_EVENT);
    assert_eq!(
        stream.data(1)[0].len(),
        MESSAGE_BYTES,
        "and then what is left"
    );
}

#[test]
fn many_topics_together_stay_within_the_budget() {
    let server = Server::with("[limits]\nlog_bytes = 2097152\n");
    let bytes_before = server.resident_bytes();
    let mut conn = Conn::open(&server);
    for number in 0..2000 {
        let target = format!("/pub/t/{number}");
        assert_eq!(
            conn.request("POST", &target, &[], "x".repeat(10_000))
                .status,
            202
        );
    }
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    assert!(
        grown < 12 << 20,
        "20 MB over 2,000 topics: it grew by {grown} bytes"
    );
    assert_eq!(
        once(&server, "GET", "/sub/t/1999", &[], "").body.len(),
        10_000,
        "the newest is there"
    );
}
