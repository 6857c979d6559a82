//! Tests `delta: "fossil"`: the deltas that subscribers receive in place of whole messages. Other tests check with centrifuge-js that libraries restore the
//! messages.

use serde_json::{Value, json};

use crate::client::{Client, ON, data_of, server};
use crate::support::http::publish;
use crate::support::port::metric;
use crate::support::{Server, until};

fn subscribe(client: &mut Client, channel: &str) -> Value {
    let body = json!({"channel": channel, "delta": "fossil"});
    client.ask("subscribe", body)["subscribe"].take()
}

/// A long text that differs little from one `n` to the next.
fn text(n: u32) -> String {
    json!({"what stays": "the same words in each message, so that a delta is short", "n": n})
        .to_string()
}

/// The next publication: its text, and whether it is a delta.
fn next(client: &mut Client) -> (String, bool) {
    let push = client.push();
    let data = push["pub"]["data"].as_str().expect("a text").to_string();
    (data, push["pub"]["delta"] == true)
}

#[test]
fn subscriber_gets_the_first_message_complete_and_then_deltas() {
    let server = server();
    let mut client = Client::connected(&server);
    let result = subscribe(&mut client, "a");
    assert_eq!(result["delta"], true, "{result}");
    publish(&server, "a", text(1));
    assert_eq!(next(&mut client), (text(1), false));
    publish(&server, "a", text(2));
    let (delta, is_delta) = next(&mut client);
    assert!(
        is_delta && delta.len() < 40 && delta.ends_with(';'),
        "{delta}"
    );
    // A client that lacks the previous message gets the whole one. A client that did not request deltas gets JSON.
    let mut late = Client::connected(&server);
    subscribe(&mut late, "a");
    let mut plain = Client::connected(&server);
    assert_eq!(plain.subscribe("a").get("delta"), None);
    publish(&server, "a", text(3));
    assert_eq!(next(&mut late), (text(3), false));
    assert!(next(&mut client).1);
    assert_eq!(plain.data("a")["n"], 3);
    publish(&server, "a", text(4));
    let (one, other) = (next(&mut client), next(&mut late));
    assert!(one.1 && one == other, "{one:?} {other:?}");
}

#[test]
fn recovered_messages_are_complete_and_deltas_follow() {
    let server = server();
    let mut client = Client::connected(&server);
    let begin = subscribe(&mut client, "a");
    publish(&server, "a", text(1));
    let seen = client.push()["pub"]["offset"].take();
    drop(client);
    let mut other = Client::connected(&server);
    subscribe(&mut other, "a");
    for n in [2, 3] {
        publish(&server, "a", text(n));
        next(&mut other);
    }
    let mut client = Client::connected(&server);
    let body = json!({
        "channel": "a", "delta": "fossil", "recover": true, "epoch": begin["epoch"], "offset": seen
    });
    let result = client.ask("subscribe", body)["subscribe"].take();
    assert_eq!(data_of(&result), [json!(text(2)), json!(text(3))]);
    // This message may arrive whole, because the connection's shard may lack the previous message.
    publish(&server, "a", text(4));
    next(&mut client);
    publish(&server, "a", text(5));
    assert!(next(&mut client).1);
}

#[test]
fn data_that_is_not_json_is_the_text_of_a_value() {
    let server = server();
    let mut client = Client::connected(&server);
    subscribe(&mut client, "a");
    publish(&server, "a", "no JSON");
    assert_eq!(next(&mut client), ("\"no JSON\"".to_string(), false));
    publish(&server, "a", [0xff, 0xfe]);
    let push = client.push();
    assert_eq!(push["pub"]["data"], "\"//4=\"");
    assert_eq!(push["pub"]["tags"]["encoding"], "base64");
}

#[test]
fn deltas_can_be_turned_off_and_have_a_limit() {
    let server = Server::with(&format!("{ON}delta_bytes = 0\n"));
    let mut client = Client::connected(&server);
    assert_eq!(subscribe(&mut client, "a").get("delta"), None);
    publish(&server, "a", "1");
    assert_eq!(client.data("a"), json!(1));
    let server = Server::with(&format!("{ON}delta_bytes = 100\n"));
    let mut client = Client::connected(&server);
    subscribe(&mut client, "a");
    for n in 1..=3 {
        publish(&server, "a", text(n));
        assert_eq!(next(&mut client), (text(n), false));
    }
}

#[test]
fn messages_kept_for_deltas_are_in_the_memory_account() {
    let server = Server::with_admin(&format!("{ON}delta_bytes = \"64 KiB\"\n"));
    let charged = || {
        let name = "crore_table_memory_bytes{table=\"deltas\"}";
        metric(server.admin(), name).expect("a metric")
    };
    assert_eq!(charged(), 0.0);
    let mut client = Client::connected(&server);
    for channel in ["a", "b"] {
        subscribe(&mut client, channel);
        publish(&server, channel, text(1));
        assert_eq!(next(&mut client), (text(1), false));
    }
    let texts = (2 * text(1).len()) as f64;
    until("the charge", || charged() >= texts);
    assert!(charged() < 10.0 * texts, "{}", charged());
}
