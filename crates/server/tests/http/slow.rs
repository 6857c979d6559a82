//! Tests subscribers that stop reading and continue. With the rule `skip` they are told a gap (that they missed messages), and continue
//! with the messages that the log still has. A WebSocket with plain frames cannot be told a gap, so it is closed with a reason that has the
//! position. With any rule no message is lost while the log has all of them, and a client with a position that is too old is told a gap.

use crore_wire::sse::{GAP_EVENT, topic_of_gap};
use serde_json::Value;

use crate::support::Server;
use crate::support::http::{Conn, info, publish};
use crate::support::stream::Stream;
use crate::support::ws::{CLOSE, TEXT, Ws, line};

/// The size of a message. All messages together are larger than the socket buffers of both ends and the outbox.
const MESSAGE_BYTES: usize = 100_000;
const MESSAGES: usize = 200;

/// A server whose outboxes have room for two messages, and its logs for `log_messages`. Its deadlines are long, so that a test can read the
/// end of a stream late.
fn server(slow: &str, log_messages: usize) -> Server {
    server_with(slow, log_messages, "")
}

fn server_with(slow: &str, log_messages: usize, limits: &str) -> Server {
    Server::with(&format!(
        "[timeouts]\ndrain_s = 600\n\
         [limits]\n{limits}\noutbox_bytes = 200000\nmessage_bytes = {MESSAGE_BYTES}\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = {log_messages}\nlog_bytes = \"64 MiB\"\nslow = \"{slow}\"\n"
    ))
}

fn payload(number: usize) -> String {
    format!("{number:06}{}", "x".repeat(MESSAGE_BYTES - 6))
}

fn number_of(payload: &[u8]) -> usize {
    assert_eq!(payload.len(), MESSAGE_BYTES, "a message came whole");
    let digits = std::str::from_utf8(&payload[..6]).expect("digits");
    digits.parse().expect("a number")
}

/// Publishes all messages, while the slow subscribers do not read.
fn flood(server: &Server) {
    let mut publisher = Conn::open(server);
    for number in 0..MESSAGES {
        let response = publisher.request("POST", "/pub/news", &[], payload(number));
        assert_eq!(response.status, 201, "message {number}");
    }
}

/// The next message of a WebSocket with JSON envelopes.
fn envelope(ws: &mut Ws) -> Value {
    let frame = ws.message();
    assert_eq!(frame.opcode(), TEXT);
    serde_json::from_slice(&frame.payload).expect("an object")
}

/// Checks the messages of a reader that fell behind: the first ones without a gap between them, then the last two.
fn assert_skipped(numbers: &[usize]) {
    let bytes_before = numbers
        .iter()
        .zip(0..)
        .take_while(|(number, n)| **number == *n)
        .count();
    assert!(
        bytes_before > 0 && bytes_before < MESSAGES - 2,
        "{numbers:?}"
    );
    assert_eq!(
        numbers[bytes_before..],
        [MESSAGES - 2, MESSAGES - 1],
        "after {bytes_before} messages, what the log of two holds"
    );
}

/// Reads a plain WebSocket until it is closed. Returns the number of messages, between which none is missing, and the position to resume
/// from.
fn until_closed(slow: &mut Ws) -> (usize, String) {
    for number in 0.. {
        let frame = slow.frame();
        if frame.opcode() == CLOSE {
            assert_eq!(frame.close_code(), Some(4412));
            let reason = String::from_utf8_lossy(&frame.payload[2..]).into_owned();
            let id = reason.strip_prefix("messages are lost; resume from ");
            return (number, id.expect("a position").to_string());
        }
        assert_eq!(number_of(&frame.payload), number);
    }
    unreachable!("a flood has an end")
}

#[test]
fn plain_websocket_with_a_gap_is_closed_with_the_position_to_resume() {
    for target in [
        "/sub/news",
        "/sub?topic=other&topic=news",
        "/sub?filter=news/%23",
    ] {
        let server = server("skip", 2);
        let mut slow = Ws::open(&server, target, &[]);
        if !target.contains("filter") {
            server.await_subscribers("news", 1);
        } // By filter a stream begins when it is on.
        flood(&server);
        let (messages_before_close, id) = until_closed(&mut slow);
        assert!(
            messages_before_close > 0 && messages_before_close < MESSAGES - 2,
            "{messages_before_close} to {target}"
        );
        let separator = if target.contains('?') { '&' } else { '?' };
        let mut resumed = Ws::open(&server, &format!("{target}{separator}since={id}"), &[]);
        let newest = [resumed.message(), resumed.message()].map(|frame| number_of(&frame.payload));
        assert_eq!(newest, [MESSAGES - 2, MESSAGES - 1], "{target}");
        Conn::open(&server).request("POST", "/pub/news", &[], "live again");
        assert_eq!(resumed.message().text(), "live again", "{target}");
    }
}

#[test]
fn kernel_keeps_little_unsent_for_a_client_that_does_not_read() {
    let messages_before_close = |limits: &str| {
        let server = server_with("skip", 2, limits);
        let mut slow = Ws::open(&server, "/sub/news", &[]);
        server.await_subscribers("news", 1);
        flood(&server);
        until_closed(&mut slow).0
    };
    let (small, free) = (
        messages_before_close(""),
        messages_before_close("send_buffer_bytes = 0"),
    );
    // The outbox has room for two messages, and the socket buffers of both ends for some more.
    assert!((2..10).contains(&small), "{small} messages were taken");
    assert!(
        small + 10 < free,
        "{small} messages, {free} without a limit"
    );
}

#[test]
fn meta_subprotocol_reports_the_gap_in_order() {
    let server = server("skip", 2);
    let mut slow = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 1);
    flood(&server);
    let (mut numbers, mut gap_at) = (Vec::new(), None);
    while numbers.last() != Some(&(MESSAGES - 1)) {
        let (lines, data) = slow.meta_message();
        if lines[0].0 == "gap" {
            assert!(data.is_empty() && !line(&lines, "id").is_empty());
            assert_eq!(gap_at.replace(numbers.len()), None, "told once");
        } else {
            numbers.push(number_of(&data));
        }
    }
    assert_skipped(&numbers);
    assert_eq!(gap_at, Some(numbers.len() - 2), "between the two parts");
}

#[test]
fn envelope_reports_the_gap_in_order() {
    for (target, topic) in [
        ("/sub/news?envelope=json", "news"),
        ("/sub?topic=other&topic=news&envelope=json", "news"),
        ("/sub?filter=news/%23&envelope=json", "news/#"),
    ] {
        let server = server("skip", 2);
        let mut slow = Ws::open(&server, target, &[]);
        if topic == "news" {
            server.await_subscribers("news", 1);
        } // By filter a stream begins when it is on.
        // The first object is the position before the first message.
        assert!(envelope(&mut slow)["data"].is_null());
        flood(&server);
        let (mut numbers, mut gap_at) = (Vec::new(), None);
        while numbers.last() != Some(&(MESSAGES - 1)) {
            let object = envelope(&mut slow);
            if object["gap"].is_null() && object["data"].is_null() {
                continue; // The position before the first message.
            }
            if object["gap"].is_null() {
                let data = object["data"].as_str();
                let data = data.unwrap_or_else(|| panic!("{target}: {object} behind {numbers:?}"));
                numbers.push(number_of(data.as_bytes()));
                continue;
            }
            assert!(object["data"].is_null() && !object["id"].as_str().unwrap().is_empty());
            assert_eq!(object["topic"], topic, "{target}");
            assert_eq!(gap_at.replace(numbers.len()), None, "told once to {target}");
        }
        assert_skipped(&numbers);
        assert_eq!(
            gap_at,
            Some(numbers.len() - 2),
            "between the two parts: {target}"
        );
    }
}

#[test]
fn websocket_with_a_too_old_position_gets_a_gap_with_any_rule() {
    let offer = [("Sec-WebSocket-Extensions", "permessage-deflate")];
    for rule in ["skip", "disconnect"] {
        let server = server(rule, 2);
        publish(&server, "news", "0");
        let id = info(&server, "news")["last_message_id"].clone();
        let target_since = |id: &str| format!("/sub/news?since={id}");
        let target_before_gap = target_since(id.as_str().expect("a position"));
        for data in ["1", "2", "3"] {
            publish(&server, "news", data);
        }
        for headers in [&[][..], &offer] {
            let close = Ws::open(&server, &target_before_gap, headers).frame();
            assert_eq!(close.close_code(), Some(4412), "{rule}");
            let reason = String::from_utf8_lossy(&close.payload[2..]).into_owned();
            let id = reason.strip_prefix("messages are lost; resume from ");
            let mut resumed = Ws::open(&server, &target_since(id.expect("a position")), headers);
            assert_eq!(resumed.texts(2), ["2", "3"], "{rule}");
        }
        let mut ws = Ws::open(&server, &format!("{target_before_gap}&envelope=json"), &[]);
        let gap = envelope(&mut ws);
        assert!(gap["gap"].is_string(), "{rule}: {gap}");
        let newest = [envelope(&mut ws), envelope(&mut ws)];
        assert_eq!(
            newest.map(|object| object["data"].clone()),
            ["2", "3"],
            "{rule}"
        );
        let mut resumed = Ws::open(
            &server,
            &target_since(gap["id"].as_str().expect("a position")),
            &[],
        );
        assert_eq!(resumed.texts(2), ["2", "3"], "{rule}");
        let mut ws = Ws::meta(&server, &target_before_gap);
        assert_eq!(ws.meta_message().0[0].0, "gap", "{rule}");
    }
}

#[test]
fn event_stream_reports_the_gap_in_order() {
    let server = server("skip", 2);
    let mut slow = Stream::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    flood(&server);
    let (mut numbers, mut gap_at) = (Vec::new(), None);
    while numbers.last() != Some(&(MESSAGES - 1)) {
        let event = slow.event().expect("the stream goes on");
        if event.kind == GAP_EVENT {
            assert_eq!(topic_of_gap(event.data.as_bytes()), b"news");
            assert_eq!(gap_at.replace(numbers.len()), None, "told once");
        } else {
            numbers.push(number_of(event.data.as_bytes()));
        }
    }
    assert_skipped(&numbers);
    assert_eq!(gap_at, Some(numbers.len() - 2), "between the two parts");
}

#[test]
fn late_reader_misses_nothing_that_the_log_holds() {
    for rule in ["skip", "disconnect"] {
        let server = server(rule, MESSAGES);
        let mut slow = Ws::open(&server, "/sub/news", &[]);
        let mut events = Stream::open(&server, "/sub/news", &[]);
        server.await_subscribers("news", 2);
        flood(&server);
        for number in 0..MESSAGES {
            assert_eq!(number_of(&slow.message().payload), number, "{rule}");
            let event = events.event().expect("the stream goes on");
            assert_eq!(
                (event.kind.as_str(), number_of(event.data.as_bytes())),
                ("message", number),
                "{rule}"
            );
        }
    }
}

#[test]
fn reader_with_a_constant_lag_takes_constant_memory() {
    // The outbox is never empty and never full, since one message is published for each that is read.
    const OUTBOX_BYTES: u64 = 16 << 20;
    let server = Server::with(&format!(
        "[limits]\noutbox_bytes = {OUTBOX_BYTES}\nmessage_bytes = {MESSAGE_BYTES}\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = 2\n"
    ));
    let mut slow = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    let mut publisher = Conn::open(&server);
    let mut publish = |number: usize| {
        let response = publisher.request("POST", "/pub/news", &[], payload(number));
        assert_eq!(response.status, 201, "message {number}");
    };
    let lag = 120; // more than two kernels' buffers hold, and less than an outbox
    (0..lag).for_each(&mut publish);
    let bytes_before = server.resident_bytes();
    for number in lag..1_500 {
        publish(number);
        assert_eq!(number_of(&slow.message().payload), number - lag);
    }
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    assert!(grown < 2 * OUTBOX_BYTES, "grown by {grown} bytes");
}

/// A position by filter has an offset for each partition, so it may be long. If it does not fit into a Close frame it is left out, and
/// never cut.
#[test]
fn close_reason_of_a_gap_has_the_complete_position_or_none() {
    for (partitions, fits_in_close_frame) in
        [(1, true), (16, true), (64, true), (90, false), (256, false)]
    {
        let server = Server::with(&format!("partitions = {partitions}\n"));
        for n in 0..20 {
            publish(&server, &format!("a/{n}"), "kept");
        }
        // This position is from a server without partitions, so it is told a gap (that it missed messages).
        let mut ws = Ws::open(&server, "/sub?filter=a/%2B&since=266696c01-DQcAAAA", &[]);
        let close = ws.frame();
        assert_eq!(close.close_code(), Some(4412), "{partitions}");
        let reason = String::from_utf8_lossy(&close.payload[2..]).into_owned();
        let id = reason.split_once("resume from ").map(|(_, id)| id);
        assert_eq!(id.is_some(), fits_in_close_frame, "{partitions}: {reason}");
        if let Some(id) = id {
            let resumed = format!("/sub?filter=a/%2B&since={id}");
            assert_eq!(Ws::open(&server, &resumed, &[]).texts(20).len(), 20);
        } else {
            assert!(reason.ends_with("tells it"), "{reason}");
        }
    }
}
