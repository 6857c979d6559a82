//! Tests `centrifugo.colon_for_slash`, with which a `:` in a channel stands for `/` in a topic. Clients and backends see channels, and everything else sees
//! topics.

use serde_json::{Value, json};

use crate::api::{KEY, call};
use crate::backend::Backend;
use crate::client::{Client, ON, data_of};
use crate::rights::{LATER_S, SECRET, token};
use crate::support::Server;
use crate::support::http::{once, publish};

const SETTINGS: &str = "[centrifugo]\nenabled = true\ncolon_for_slash = true\n";

fn server(more: &str) -> Server {
    Server::with_admin(&format!("{SETTINGS}{more}[admin]\napi_key = '{KEY}'\n"))
}

/// The messages of a topic, read over HTTP.
fn history(server: &Server, topic: &str) -> String {
    let response = once(server, "GET", &format!("/history/{topic}"), &[], "");
    response.text().to_string()
}

#[test]
fn channel_with_colons_is_a_topic_with_levels() {
    let server = server("[[rule]]\nmatch = 'chat/#'\npresence = true\n");
    let mut client = Client::connected(&server);
    let body = json!({"channel": "chat:7", "join_leave": true});
    assert!(client.ask("subscribe", body).get("subscribe").is_some());
    assert_eq!(client.push()["channel"], "chat:7", "its own join");
    client.subscribe("x/y:z");
    // Each publish reaches the other kind of client, under the name that this kind uses.
    publish(&server, "chat/7", "\"by http\"");
    assert_eq!(client.data("chat:7"), "by http");
    client.publish("x/y:z", json!("by a client"));
    assert_eq!(client.data("x/y:z"), "by a client");
    assert!(history(&server, "x:y/z").contains("by a client"));
    let kept = client.ask("history", json!({"channel": "chat:7", "limit": 10}));
    assert_eq!(data_of(&kept["history"]), [json!("by http")]);
    let stats = client.ask("presence_stats", json!({"channel": "chat:7"}));
    assert_eq!(stats["presence_stats"]["num_clients"], 1, "{stats}");
    // The server computes a delta for the topic, and pushes it with the name of the channel.
    let body = json!({"channel": "d:1", "delta": "fossil"});
    assert!(client.ask("subscribe", body).get("subscribe").is_some());
    client.publish("d:1", json!("whole"));
    assert_eq!(client.push()["channel"], "d:1");
    client.ask("unsubscribe", json!({"channel": "chat:7"}));
    client.subscribe("chat:7");
}

#[test]
fn tokens_name_channels_and_rights_name_topics() {
    let access = format!("[access]\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n");
    let server = server(&access);
    let claims = json!({"sub": "ann", "exp": LATER_S, "channels": ["news:1"], "subs": {"news:2": {}},
        "subscribe": ["chat/#"]});
    let mut client = Client::open(&server);
    let reply = client.ask("connect", json!({"token": token(&claims)}));
    let subs = reply["connect"]["subs"].as_object().expect("subscriptions");
    assert_eq!(subs.keys().collect::<Vec<_>>(), ["news:1", "news:2"]);
    let posted = call(&server, "publish", json!({"channel": "news:1", "data": 1}));
    assert!(posted["offset"].is_u64());
    assert_eq!(client.data("news:1"), 1);
    client.subscribe("chat:7");
    assert_eq!(client.error("subscribe", json!({"channel": "room:7"})), 103);
    let of_room = token(&json!({"sub": "ann", "exp": LATER_S, "channel": "room:7"}));
    let body = json!({"channel": "room:7", "token": of_room});
    assert!(client.ask("subscribe", body).get("subscribe").is_some());
    let body = json!({"channel": "room:8", "token": of_room});
    assert_eq!(client.error("subscribe", body), 103);
}

#[test]
fn server_api_names_channels() {
    let server = server("");
    let mut client = Client::connected(&server);
    client.subscribe("a:b");
    call(
        &server,
        "broadcast",
        json!({"channels": ["a:b"], "data": 1}),
    );
    assert_eq!(client.data("a:b"), 1);
    assert!(history(&server, "a/b").contains('1'));
    let listed = call(&server, "channels", json!({"pattern": "a:*"}));
    let listed = listed["channels"].as_object().expect("channels");
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["a:b"]);
    let kept = call(&server, "history", json!({"channel": "a:b", "limit": 5}));
    assert_eq!(data_of(&kept), [json!(1)]);
    call(&server, "history_remove", json!({"channel": "a:b"}));
    let kept = call(&server, "history", json!({"channel": "a:b", "limit": 5}));
    assert_eq!(data_of(&kept), Vec::<Value>::new());
}

#[test]
fn subscriptions_by_the_server_api_have_the_names_of_channels() {
    let access = format!("[access]\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n");
    let server = server(&access);
    let mut client = Client::with_token(&server, &token(&json!({"sub": "ann", "exp": LATER_S})));
    let of_ann = json!({"user": "ann", "channel": "n:1"});
    call(&server, "subscribe", of_ann.clone());
    let push = client.push();
    assert!(push["channel"] == "n:1" && push["subscribe"].is_object());
    call(&server, "unsubscribe", of_ann);
    let push = client.push();
    assert!(push["channel"] == "n:1" && push["unsubscribe"].is_object());
}

#[test]
fn backend_is_asked_about_channels_and_names_them() {
    let backend = Backend::start();
    let events = "'connect', 'subscribe', 'publish'";
    let settings = backend.settings_for(events, "").replace(ON, SETTINGS);
    let server = Server::with(&settings);
    let mut client = Client::open(&server);
    let granted = json!({"answer": {"result": {"user": "ann", "subs": {"s:1": {}}}}});
    let reply = client.ask("connect", json!({"data": granted}));
    assert!(reply["connect"]["subs"]["s:1"].is_object(), "{reply}");
    assert_eq!(backend.request()["call"], "connect");
    let granted = json!({"answer": {"result": {}}});
    let body = json!({"channel": "a:b", "data": granted});
    assert!(
        client
            .ask("subscribe", body.clone())
            .get("subscribe")
            .is_some()
    );
    assert_eq!(backend.request()["channel"], "a:b");
    client.ask("publish", body);
    assert_eq!(backend.request()["channel"], "a:b");
    assert!(history(&server, "a/b").contains("answer"));
}
