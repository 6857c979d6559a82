//! Tests pusher-js, the client library of Pusher, and pusher, its server library for Node.

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::Server;
use crate::support::state::State;

const SECRET: &str = "7ad3773142a6692b25b8";

/// A server with the app `chat`, on which a lost connection leaves at once.
fn server() -> (Server, State) {
    let state = State::new();
    std::fs::create_dir_all(&state.directory).unwrap();
    let file = state.directory.join("pusher-secret");
    std::fs::write(&file, SECRET).unwrap();
    let file = file.display();
    let settings = format!(
        "[presence]\nleave_s = 0\n[[pusher_app]]\nid = 'chat'\nkey = 'chat-key'\nsecret_file = '{file}'\nclient_events = true\n"
    );
    (Server::with_admin(&settings), state)
}

/// A client of this user, which is connected.
fn client(server: &Server, secret: &str, user: &str) -> Client {
    let (data, admin) = (server.address().to_string(), server.admin().to_string());
    let args = [&data, &admin, "chat", "chat-key", secret, user];
    let client = Client::node("pusher_client.mjs", &args);
    client.next("connected");
    client
}

fn subscribe(client: &mut Client, channel: &str) -> Value {
    client.tell(&json!({"subscribe": channel}));
    let event = client.next("subscribed");
    assert_eq!(event["channel"], channel, "{event}");
    event
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_gets_what_the_server_library_triggers_in_every_kind_of_channel() {
    let (server, _state) = server();
    let mut client = client(&server, SECRET, "ann");
    for channel in ["news", "private-a", "private-encrypted-a", "presence-a"] {
        subscribe(&mut client, channel);
        client.tell(&json!({"trigger": [channel], "event": "x", "data": {"n": [1, "é"]}}));
        let event = client.next("event");
        assert_eq!(event["channel"], channel);
        assert_eq!(event["data"], json!({"n": [1, "é"]}), "{channel}");
    }
    client.tell(&json!({"batch": [
        {"channel": "news", "name": "one", "data": "1"},
        {"channel": "private-a", "name": "two", "data": "2"},
    ]}));
    assert_eq!(client.next("event")["event"], "one");
    assert_eq!(client.next("event")["event"], "two");
    // The connection that the publisher names does not get the event.
    client.tell(&json!({"trigger": ["news"], "event": "y", "data": 1, "exclude": true}));
    while client.next("triggered")["event"] != "y" {}
    client.tell(&json!({"trigger": ["news"], "event": "z", "data": 2}));
    assert_eq!(client.next("event")["event"], "z");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_knows_who_is_in_a_presence_channel_and_sends_client_events() {
    let (server, _state) = server();
    let room = "presence-room";
    let mut ann = client(&server, SECRET, "ann");
    assert_eq!(subscribe(&mut ann, room)["members"], json!(["ann"]));
    let mut bob = client(&server, SECRET, "bob");
    let begun = subscribe(&mut bob, room);
    assert_eq!(begun["members"], json!(["ann", "bob"]));
    let added = ann.next("added");
    assert_eq!(
        (&added["id"], &added["info"]),
        (&json!("bob"), &json!({"name": "bob"}))
    );
    bob.tell(&json!({"client": "client-typing", "channel": room, "data": {"on": true}}));
    let event = ann.next("event");
    assert_eq!(event["data"], json!({"on": true}));
    ann.tell(&json!({"get": "/channels/presence-room/users"}));
    let users = json!({"users": [{"id": "ann"}, {"id": "bob"}]});
    assert_eq!(ann.next("got")["body"], users);
    let params = json!({"filter_by_prefix": "presence-", "info": "user_count"});
    ann.tell(&json!({"get": "/channels", "params": params}));
    let channels = json!({"channels": {"presence-room": {"user_count": 2}}});
    assert_eq!(ann.next("got")["body"], channels);
    bob.tell(&json!({"unsubscribe": room}));
    assert_eq!(ann.next("removed")["id"], "bob");
    let params = json!({"info": "user_count,subscription_count"});
    ann.tell(&json!({"get": "/channels/presence-room", "params": params}));
    let info = json!({"occupied": true, "user_count": 1, "subscription_count": 1});
    assert_eq!(ann.next("got")["body"], info);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_signs_in_and_the_server_library_ends_the_users_connections() {
    let (server, _state) = server();
    let mut ann = client(&server, SECRET, "ann");
    let mut bob = client(&server, SECRET, "bob");
    for client in [&mut ann, &mut bob] {
        client.tell(&json!({"signin": true}));
        client.next("signed_in");
    }
    server.await_subscribers("pusher/chat/user/ann", 1);
    bob.tell(&json!({"send": "hello", "to": "ann", "data": 1}));
    assert_eq!(ann.next("user_event")["event"], "hello");
    bob.tell(&json!({"terminate": "ann"}));
    assert_eq!(bob.next("terminated")["status"], 200);
    assert_eq!(ann.next("refused")["code"], 4009);
    bob.tell(&json!({"subscribe": "news"}));
    bob.next("subscribed");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_gets_the_last_event_of_a_cache_channel() {
    let (server, _state) = server();
    let mut client = client(&server, SECRET, "ann");
    subscribe(&mut client, "cache-a");
    assert_eq!(client.next("cache_miss")["channel"], "cache-a");
    client.tell(&json!({"trigger": ["cache-a"], "event": "state", "data": {"n": 1}}));
    assert_eq!(client.next("event")["event"], "state");
    client.tell(&json!({"unsubscribe": "cache-a"}));
    server.await_subscribers("pusher/chat/cache-a", 0);
    subscribe(&mut client, "cache-a");
    assert_eq!(client.next("event")["data"], json!({"n": 1}));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn signature_with_another_secret_opens_neither_a_channel_nor_the_api() {
    let (server, _state) = server();
    let mut client = client(&server, "another secret of the same app", "ann");
    client.tell(&json!({"subscribe": "private-a"}));
    let refused = client.next("not_subscribed");
    assert_eq!(
        (&refused["status"], &refused["type"]),
        (&json!(401), &json!("AuthError"))
    );
    client.tell(&json!({"trigger": ["news"], "event": "x", "data": 1}));
    assert_eq!(client.next("refused_by_api")["status"], 401);
}
