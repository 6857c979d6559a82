//! Tests the extension with which a client that reconnects gets the messages that it missed.

use serde_json::{Value, json};

use crate::client::{Client, apps, publish};
use crate::support::Server;
use crate::support::http::once;
use crate::support::state::State;

fn server(rules: &str) -> (Server, State) {
    let state = State::new();
    let apps = apps(&state).replace(
        "client_events = true",
        "client_events = true\nresume = true",
    );
    (Server::with(&(apps + rules)), state)
}

fn subscribe(client: &mut Client, channel: &str, since: &str) {
    let data = json!({"channel": channel, "since": since});
    client.send(json!({"event": "pusher:subscribe", "data": data}));
    let (event, _) = client.channel_event(channel);
    assert_eq!(event, "pusher_internal:subscription_succeeded");
}

/// The position in the next event.
fn position(client: &mut Client, channel: &str) -> String {
    let (event, data) = client.channel_event(channel);
    assert_eq!(event, "pusher:position", "{data}");
    data["position"].as_str().expect("a position").into()
}

/// The position after the next message, which must have this name.
fn position_after(client: &mut Client, channel: &str, name: &str) -> String {
    let (event, _) = client.channel_event(channel);
    assert_eq!(event, name);
    position(client, channel)
}

#[test]
fn client_that_names_its_position_gets_what_it_missed() {
    let (server, _state) = server("");
    let mut client = Client::connected(&server);
    subscribe(&mut client, "news", "live");
    let begun = position(&mut client, "news");
    publish(&server, "news", "one", "1");
    let after_one = position_after(&mut client, "news", "one");
    drop(client);
    server.await_subscribers("pusher/chat/news", 0);
    publish(&server, "news", "two", "2");
    publish(&server, "news", "three", "3");
    for (since, missed) in [
        (begun, &["one", "two", "three"][..]),
        (after_one, &["two", "three"]),
    ] {
        let mut client = Client::connected(&server);
        subscribe(&mut client, "news", &since);
        let mut last = String::new();
        for name in missed {
            last = position_after(&mut client, "news", name);
        }
        client.goes_on();
        // A client that has missed nothing gets its own position back.
        let mut next = Client::connected(&server);
        subscribe(&mut next, "news", &last);
        assert_eq!(position(&mut next, "news"), last);
        next.goes_on();
    }
}

#[test]
fn client_that_was_away_for_too_long_is_told_of_the_gap() {
    for kept in [0, 1] {
        let (server, _state) = server(&format!("[[rule]]\nmatch = '#'\nlog_messages = {kept}\n"));
        let mut client = Client::connected(&server);
        subscribe(&mut client, "news", "live");
        let begun = position(&mut client, "news");
        for name in ["one", "two"] {
            publish(&server, "news", name, "1");
            position_after(&mut client, "news", name);
        }
        let mut client = Client::connected(&server);
        subscribe(&mut client, "news", &begun);
        let gap = client.channel_event("news");
        assert_eq!(gap, ("pusher:gap".into(), json!({})));
        // The new position must not come before the gap. Otherwise a client that is cut off between them would never learn of the gap.
        position(&mut client, "news");
        if kept > 0 {
            position_after(&mut client, "news", "two");
        }
        client.goes_on();
    }
}

#[test]
fn client_whose_channel_was_deleted_meanwhile_is_told_of_the_gap_and_goes_on() {
    let (server, _state) = server("");
    let mut client = Client::connected(&server);
    subscribe(&mut client, "news", "live");
    let begun = position(&mut client, "news");
    publish(&server, "news", "one", "1");
    position_after(&mut client, "news", "one");
    drop(client);
    server.await_subscribers("pusher/chat/news", 0);
    publish(&server, "news", "two", "2");
    let deleted = once(&server, "DELETE", "/pub/pusher/chat/news", &[], "");
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let gap = ("pusher:gap".to_string(), json!({}));
    // The first round has a deleted channel, the second one a channel with a new message.
    for later in [&[][..], &["three"]] {
        for name in later {
            publish(&server, "news", name, "3");
        }
        let mut client = Client::connected(&server);
        subscribe(&mut client, "news", &begun);
        assert_eq!(client.channel_event("news"), gap, "{later:?}");
        let mut last = position(&mut client, "news");
        for name in later {
            last = position_after(&mut client, "news", name);
        }
        client.goes_on();
        // After the gap the client has missed nothing more.
        let mut next = Client::connected(&server);
        subscribe(&mut next, "news", &last);
        assert_eq!(position(&mut next, "news"), last);
        next.goes_on();
        // A client that does not resume gets no gap.
        let mut plain = Client::connected(&server);
        plain.subscribe("news");
        plain.goes_on();
    }
}

#[test]
fn client_event_has_a_position_for_its_publisher_too() {
    let (server, _state) = server("");
    let mut client = Client::connected(&server);
    client.subscribe("private-a");
    subscribe(&mut client, "news", "");
    position(&mut client, "news");
    client.send(json!({"event": "client-x", "channel": "private-a", "data": 1}));
    position(&mut client, "private-a");
    client.goes_on();
}

#[test]
fn position_is_refused_without_the_setting_and_without_its_form() {
    let (server, _state) = server("");
    let ask = |client: &mut Client, since: Value| {
        let data = json!({"channel": "news", "since": since});
        client.send(json!({"event": "pusher:subscribe", "data": data}));
    };
    let mut client = Client::connected(&server);
    for since in ["yesterday".into(), format!("30-{}", "A".repeat(100_000))] {
        ask(&mut client, json!(since));
        assert_eq!(client.refused("news"), Value::Null);
    }
    ask(&mut client, json!(7));
    assert_eq!(client.error(), Value::Null);
    let mut shop = Client::at(&server, "/app/shop-key?protocol=7");
    ask(&mut shop, json!("live"));
    assert_eq!(shop.refused("news"), Value::Null);
    // A client that does not use the extension gets no positions.
    client.subscribe("news");
    publish(&server, "news", "one", "1");
    assert_eq!(client.next()["event"], "one");
    client.goes_on();
}
