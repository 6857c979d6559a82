//! Tests presence channels.

use serde_json::{Value, json};

use crate::client::{Client, apps, server};
use crate::support::Server;
use crate::support::state::State;
use crate::support::ws::{FIN, TEXT};

const ROOM: &str = "presence-room";

fn user(id: &str) -> Value {
    json!({"user_id": id, "user_info": {"name": id}})
}

/// A server that reports a leave as soon as a connection is lost.
fn quick_server() -> (Server, State) {
    let state = State::new();
    let settings = format!("[presence]\nleave_s = 0\n{}", apps(&state));
    (Server::with(&settings), state)
}

#[test]
fn subscriber_is_told_who_is_there_and_who_comes_and_leaves() {
    let (server, _state) = quick_server();
    let mut ann = Client::connected(&server);
    let expected = json!({"count": 1, "ids": ["ann"], "hash": {"ann": {"name": "ann"}}});
    assert_eq!(ann.join(ROOM, &user("ann")), expected);
    let mut bob = Client::connected(&server);
    let members = bob.join(ROOM, &json!({"user_id": 10}));
    let expected =
        json!({"count": 2, "ids": ["ann", "10"], "hash": {"ann": {"name": "ann"}, "10": null}});
    assert_eq!(members, expected);
    let added = "pusher_internal:member_added".to_string();
    assert_eq!(ann.channel_event(ROOM), (added, json!({"user_id": "10"})));
    bob.unsubscribe(ROOM);
    let removed = "pusher_internal:member_removed".to_string();
    assert_eq!(
        ann.channel_event(ROOM),
        (removed.clone(), json!({"user_id": "10"}))
    );
    bob.join(ROOM, &user("bob"));
    let (_, data) = ann.channel_event(ROOM);
    assert_eq!(
        data,
        json!({"user_id": "bob", "user_info": {"name": "bob"}})
    );
    // The user also leaves when the connection ends.
    drop(bob);
    assert_eq!(
        ann.channel_event(ROOM),
        (removed, json!({"user_id": "bob"}))
    );
    ann.goes_on();
}

#[test]
fn user_comes_with_the_first_connection_and_leaves_with_the_last() {
    let (server, _state) = quick_server();
    let mut ann = Client::connected(&server);
    ann.join(ROOM, &user("ann"));
    let mut tabs = [Client::connected(&server), Client::connected(&server)];
    for tab in &mut tabs {
        assert_eq!(tab.join(ROOM, &user("bob"))["count"], 2);
    }
    let (event, data) = ann.channel_event(ROOM);
    assert_eq!(event, "pusher_internal:member_added");
    assert_eq!(data["user_id"], "bob");
    let [first, second] = tabs;
    drop(first);
    server.await_subscribers("pusher/chat/presence/presence-room", 2);
    ann.goes_on();
    drop(second);
    let (event, data) = ann.channel_event(ROOM);
    assert_eq!(event, "pusher_internal:member_removed");
    assert_eq!(data["user_id"], "bob");
}

#[test]
fn presence_channel_needs_signed_data_with_a_user() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    for (data, code) in [
        (json!({}), Value::Null),
        (json!({"user_id": ""}), Value::Null),
        (json!({"user_id": "a\n"}), Value::Null),
        (json!({"user_id": "a".repeat(129)}), Value::Null),
        (
            json!({"user_id": "a", "user_info": "a".repeat(1023)}),
            Value::Null,
        ),
        (json!({"user_id": ["a"]}), Value::Null),
    ] {
        client.ask_to_join(ROOM, &data);
        assert_eq!(client.refused(ROOM), code, "{data}");
    }
    // A subscription without data, and one whose data differs from the signed data.
    client.ask_for(ROOM);
    assert_eq!(client.refused(ROOM), 4009);
    let signature = crate::client::sign(&format!("{}:{ROOM}:{}", client.socket_id, user("ann")));
    let auth = format!("chat-key:{signature}");
    let data = json!({"channel": ROOM, "auth": auth, "channel_data": user("bob").to_string()});
    client.send(json!({"event": "pusher:subscribe", "data": data}));
    assert_eq!(client.refused(ROOM), 4009);
    assert_eq!(client.join(ROOM, &user("ann"))["count"], 1);
    client.goes_on();
}

#[test]
fn info_of_a_megabyte_is_refused_and_a_longer_event_ends_its_connection_only() {
    let (server, _state) = server();
    let mut ann = Client::connected(&server);
    ann.join(ROOM, &user("ann"));
    let mut client = Client::connected(&server);
    let info = "i".repeat(1 << 20);
    client.ask_to_join(ROOM, &json!({"user_id": "eve", "user_info": info}));
    assert_eq!(client.refused(ROOM), Value::Null);
    client.goes_on();
    // The head of a frame of 2 MiB.
    let head = [
        &[FIN | TEXT, 0x80 | 127][..],
        &(2u64 << 20).to_be_bytes(),
        &[0; 4],
    ];
    client.ws.conn.send(head.concat());
    assert_eq!(client.ws.frame().close_code(), Some(1009));
    ann.goes_on();
}

#[test]
fn client_event_of_a_presence_channel_names_its_user() {
    let (server, _state) = server();
    let (mut ann, mut bob) = (Client::connected(&server), Client::connected(&server));
    ann.join(ROOM, &user("ann"));
    bob.join(ROOM, &user("bob"));
    assert_eq!(ann.next()["event"], "pusher_internal:member_added");
    bob.send(json!({"event": "client-x", "channel": ROOM, "data": 1}));
    let expected = json!({"event": "client-x", "channel": ROOM, "data": "1", "user_id": "bob"});
    assert_eq!(ann.next(), expected);
    bob.goes_on();
}

#[test]
fn members_of_a_large_channel_come_in_one_event() {
    let (server, _state) = server();
    let mut first = Client::connected(&server);
    first.join(ROOM, &user("user0"));
    let mut members: Vec<Client> = Vec::new();
    for number in 1..300 {
        let mut member = Client::connected(&server);
        member.ask_to_join(ROOM, &user(&format!("user{number}")));
        members.push(member);
    }
    // Waits until the list contains all members: the server counts a subscriber before that.
    for _ in &members {
        assert_eq!(first.channel_event(ROOM).0, "pusher_internal:member_added");
    }
    let mut last = Client::connected(&server);
    let data = last.join(ROOM, &user("last"));
    assert_eq!(data["count"], 301);
    assert_eq!(data["ids"].as_array().unwrap().len(), 301);
    assert_eq!(data["hash"]["user7"]["name"], "user7");
}

#[test]
fn rule_for_a_single_presence_channel_applies_to_it_only() {
    let state = State::new();
    let rules = "[[rule]]\nmatch = 'pusher/chat/presence/presence-small'\npresence_max = 1\n[[rule]]\nmatch = 'pusher/#'\npresence_max = 3\n";
    let server = Server::with(&(apps(&state) + rules));
    let mut members: Vec<Client> = Vec::new();
    for name in ["ann", "bob"] {
        let mut member = Client::connected(&server);
        member.join("presence-small", &user(name));
        member.join(ROOM, &user(name));
        members.push(member);
    }
    let mut last = Client::connected(&server);
    assert_eq!(last.join("presence-small", &user("last"))["count"], 1);
    assert_eq!(last.join(ROOM, &user("last"))["count"], 3);
}
