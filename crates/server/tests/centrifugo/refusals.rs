//! Tests bad input: the server answers it with the documented code, and other clients are not affected.

use serde_json::json;

use crate::client::{Client, ON, PATH, server};
use crate::support::Server;
use crate::support::ws::{BINARY, FIN, Ws};

#[test]
fn frame_without_a_valid_command_ends_only_its_connection() {
    let server = server();
    let mut other = Client::connected(&server);
    for frame in [
        "",
        "{",
        "{\"id\":2,\"ping\":{}",
        "[]",
        "null",
        "{\"id\":2,\"ping\":{}}\n\n{\"id\":3,\"ping\":{}}",
        "{\"id\":-1,\"ping\":{}}",
        "{\"id\":2,\"dance\":{}}",
        "{\"id\":2,\"ping\":{},\"rpc\":{}}",
        "{\"ping\":{}}",
        "{\"id\":2,\"subscribe\":{\"channel\":5}}",
        "{\"id\":2,\"subscribe\":{}}",
        "{\"id\":2,\"publish\":{\"data\":1}}",
        "{\"id\":2,\"connect\":{}}",
    ] {
        let mut client = Client::connected(&server);
        client.frame(frame);
        assert_eq!(client.closed().0, 3501, "{frame}");
    }
    assert!(other.goes_on());
}

#[test]
fn truncated_protobuf_frame_ends_its_connection() {
    let server = server();
    for frame in [&b"\x04\x08\x01\x22"[..], b"\xff", b"\x7f", b""] {
        let target = format!("{PATH}?cf_protocol=protobuf");
        let mut ws = Ws::open(&server, &target, &[]);
        ws.send(FIN | BINARY, frame);
        assert_eq!(ws.closed(), Some(3501), "{frame:?}");
    }
}

#[test]
fn connect_lists_no_more_channels_than_a_connection_can_subscribe_to() {
    // By default `limits.subscription_bytes` has room for 4,096 subscriptions.
    let server = server();
    for (count, is_served) in [(4_000, true), (5_000, false)] {
        let subs: Vec<String> = (0..count).map(|n| format!("\"c{n}\":{{}}")).collect();
        let mut client = Client::open(&server);
        client.frame(&format!(
            "{{\"id\":1,\"connect\":{{\"subs\":{{{}}}}}}}",
            subs.join(",")
        ));
        match is_served {
            true => assert!(client.reply(1).get("connect").is_some()),
            false => assert_eq!(client.closed().0, 3501),
        }
    }
}

#[test]
fn command_before_connect_is_refused() {
    let server = server();
    for request in ["subscribe", "publish", "ping", "history", "rpc", "refresh"] {
        let mut client = Client::open(&server);
        client.send(request, json!({"channel": "a", "data": 1}));
        assert_eq!(client.closed().0, 3501, "{request}");
    }
    // A pong without a ping.
    let mut client = Client::open(&server);
    client.frame("{}");
    assert_eq!(client.closed().0, 3501);
}

#[test]
fn a_second_subscription_to_a_channel_is_refused() {
    let server = server();
    let mut client = Client::connected(&server);
    client.subscribe("a");
    assert_eq!(client.error("subscribe", json!({"channel": "a"})), 105);
    // This holds even before the first subscribe is answered. Command ids may repeat.
    client.frame("{\"id\":50,\"subscribe\":{\"channel\":\"b\"}}\n{\"id\":50,\"subscribe\":{\"channel\":\"b\"}}");
    let replies = [client.reply(50), client.reply(50)];
    let granted = replies
        .iter()
        .filter(|reply| reply.get("subscribe").is_some());
    let refused = replies.iter().filter(|reply| reply["error"]["code"] == 105);
    assert_eq!((granted.count(), refused.count()), (1, 1), "{replies:?}");
    client.publish("b", json!(1));
    assert_eq!(client.data("b"), json!(1));
}

#[test]
fn a_bad_channel_is_a_bad_request() {
    let server = server();
    let mut client = Client::connected(&server);
    let long = "c".repeat(100_000);
    for channel in [long.as_str(), "a\u{0}b", "a/+", "#"] {
        assert_eq!(client.error("subscribe", json!({"channel": channel})), 107);
        assert_eq!(client.error("history", json!({"channel": channel})), 107);
        let publish = json!({"channel": channel, "data": 1});
        assert_eq!(client.error("publish", publish), 107);
    }
    assert_eq!(client.error("publish", json!({"channel": "a"})), 107);
    assert!(client.goes_on());
}

#[test]
fn ten_thousand_commands_in_a_frame_are_refused() {
    let server = server();
    let mut client = Client::connected(&server);
    let lines: Vec<String> = (2..10_002)
        .map(|id| format!("{{\"id\":{id},\"ping\":{{}}}}"))
        .collect();
    client.frame(&lines.join("\n"));
    assert_eq!(client.closed().0, 3501);
    // Commands up to the limit are executed.
    let mut client = Client::connected(&server);
    client.frame(&lines[..2_000].join("\n"));
    for id in 2..2_002 {
        assert!(client.reply(id).get("ping").is_some());
    }
}

#[test]
fn exceeded_limits_have_their_error_codes() {
    let limits = "[limits]\ntopics_per_connection = 2\nmessage_bytes = 1000\n";
    let server = Server::with(&format!("{ON}frame_beside_bytes = 2000\n{limits}"));
    let mut client = Client::connected(&server);
    client.subscribe("a");
    client.subscribe("b");
    assert_eq!(client.error("subscribe", json!({"channel": "c"})), 106);
    client.ask("unsubscribe", json!({"channel": "a"}));
    client.subscribe("c");
    let publish = json!({"channel": "c", "data": "x".repeat(1_500)});
    assert_eq!(client.error("publish", publish), 106);
    assert!(client.goes_on());
    let publish = json!({"channel": "c", "data": "x".repeat(4_000)});
    client.send("publish", publish);
    assert_eq!(client.closed().0, 1009);
}
