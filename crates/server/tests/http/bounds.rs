//! Tests the outbox of a subscriber that stops reading. Its limit depends on the rule of the topic. Above the limit the subscriber falls
//! behind: it reads from the log when it reads again, and loses no message.

use std::net::TcpStream;

use serde_json::Value;

use crate::support::Server;
use crate::support::http::Conn;
use crate::support::stream::Stream;
use crate::support::ws::Ws;

/// The size of a message. All messages together are larger than the socket buffers of both ends and any of these outboxes.
const MESSAGE_BYTES: usize = 50_000;
const MESSAGES: usize = 200;
/// Bytes that the kernel may accept later: its limit of unsent bytes, and one write above it.
const ACCEPTED_LATER_BYTES: u64 = (32 + 64) << 10;
/// The maximum size of a message with its frame or its event.
const FRAME_BYTES: u64 = MESSAGE_BYTES as u64 + 100;

fn settings() -> String {
    let rule = |name: &str, bounds: &str| {
        format!(
            "[[rule]]\nmatch = \"{name}/#\"\nlog_messages = {MESSAGES}\nlog_bytes = \"64 MiB\"\n{bounds}\n"
        )
    };
    let common = "[limits]\nsend_buffer_bytes = \"32 KiB\"\noutbox_bytes = 1000000\n[timeouts]\nbody_s = 600\n";
    [
        common,
        &rule("few", "outbox_messages = 3"),
        &rule("little", "outbox_bytes = 300000"),
        &rule("much", "outbox_bytes = 2000000"),
        &rule("all", ""),
    ]
    .concat()
}

fn payload(number: usize) -> String {
    format!("{number:06}{}", "x".repeat(MESSAGE_BYTES - 6))
}

/// The bytes in the outbox of the only subscriber of `topic`, and whether it has fallen behind.
fn outbox_of_subscriber(server: &Server, topic: &str) -> (u64, bool) {
    let admin = TcpStream::connect(server.admin()).expect("the admin port");
    let mut admin = Conn::from_stream(admin, server);
    let target = format!("/api/v1/connections?filter={topic}");
    let host = server.admin().to_string();
    admin.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let page = admin.response().json();
    let connections = page["connections"].as_array().expect("a list");
    let [connection] = &connections[..] else {
        panic!("{page} is not of one connection");
    };
    let fell_back = connection["behind"] == Value::Bool(true);
    (
        connection["outbox_bytes"].as_u64().expect("a number"),
        fell_back,
    )
}

#[test]
fn outbox_of_a_client_that_does_not_read_is_bounded_by_the_rule_of_the_topic() {
    let server = Server::with_admin(&settings());
    let mut bounds = Vec::new();
    for (rule, bytes_min, bytes_max) in [
        // The rest of a partly sent message and two complete ones wait.
        ("few", 2 * FRAME_BYTES - 200, 3 * FRAME_BYTES),
        ("little", 300_000 - FRAME_BYTES, 300_000),
        ("much", 2_000_000 - FRAME_BYTES, 2_000_000),
        ("all", 1_000_000 - FRAME_BYTES, 1_000_000),
    ] {
        bounds.push((format!("{rule}/socket"), bytes_min, bytes_max));
        bounds.push((format!("{rule}/events"), bytes_min, bytes_max));
    }
    let mut sockets = Vec::new();
    let mut streams = Vec::new();
    for (topic, ..) in &bounds {
        match topic.ends_with("socket") {
            true => sockets.push((topic, Ws::open(&server, &format!("/sub/{topic}"), &[]))),
            false => streams.push((topic, Stream::open(&server, &format!("/sub/{topic}"), &[]))),
        }
        server.await_subscribers(topic, 1);
    }
    let mut publisher = Conn::open(&server);
    for (topic, ..) in &bounds {
        for number in 0..MESSAGES {
            let response =
                publisher.request("POST", &format!("/pub/{topic}"), &[], payload(number));
            assert_eq!(response.status, 201, "message {number} of {topic}");
        }
    }
    for (topic, bytes_min, bytes_max) in &bounds {
        let (bytes, fell_back) = outbox_of_subscriber(&server, topic);
        assert!(fell_back, "{topic} waits with {bytes} bytes");
        assert!(
            (bytes_min.saturating_sub(ACCEPTED_LATER_BYTES)..=*bytes_max).contains(&bytes),
            "{bytes} bytes of {topic}"
        );
    }
    for (topic, socket) in &mut sockets {
        for number in 0..MESSAGES {
            assert!(
                socket.message().text() == payload(number),
                "{number} of {topic}"
            );
        }
    }
    for (topic, stream) in &mut streams {
        for number in 0..MESSAGES {
            let event = stream.event().expect("the stream goes on");
            assert_eq!(event.kind, "message", "{number} of {topic}");
            assert!(event.data == payload(number), "{number} of {topic}");
        }
    }
}
