//! Tests subscriptions: messages, signatures, and cache channels.

use serde_json::{Value, json};

use crate::client::{Client, publish, server, sign};
use crate::support::http::Conn;

#[test]
fn subscribers_of_a_channel_get_its_events() {
    let (server, _state) = server();
    let mut clients = [Client::connected(&server), Client::connected(&server)];
    for client in &mut clients {
        client.subscribe("news");
    }
    // With a second subscription, the server stores the client's subscriptions as a list.
    clients[1].subscribe("other");
    publish(&server, "news", "headline", r#"{"a":1}"#);
    let expected = json!({"event": "headline", "channel": "news", "data": "{\"a\":1}"});
    for client in &mut clients {
        assert_eq!(client.next(), expected);
    }
    publish(&server, "other", "x", "é \" \\");
    let expected = json!({"event": "x", "channel": "other", "data": "é \" \\"});
    assert_eq!(clients[1].next(), expected);
    clients[0].goes_on();
}

#[test]
fn message_without_an_event_name_and_bytes_that_are_no_text_are_sent_too() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("news");
    let mut conn = Conn::open(&server);
    conn.request("POST", "/pub/pusher/chat/news", &[], [0xff, 0xfe]);
    let expected = json!({"event": "message", "channel": "news", "data": "//4="});
    assert_eq!(client.next(), expected);
}

#[test]
fn nothing_comes_after_an_unsubscribe_and_the_channel_can_be_subscribed_again() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("news");
    client.unsubscribe("news");
    client.unsubscribe("news");
    server.await_subscribers("pusher/chat/news", 0);
    publish(&server, "news", "lost", "1");
    client.subscribe("news");
    publish(&server, "news", "kept", "2");
    assert_eq!(client.next()["event"], "kept");
}

#[test]
fn apps_do_not_see_each_others_channels() {
    let (server, _state) = server();
    let mut chat = Client::connected(&server);
    let mut shop = Client::at(&server, "/app/shop-key?protocol=7");
    chat.subscribe("news");
    shop.subscribe("news");
    publish(&server, "news", "of-chat", "1");
    assert_eq!(chat.next()["event"], "of-chat");
    shop.goes_on();
}

#[test]
fn second_subscription_to_a_channel_is_an_error_and_the_first_goes_on() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("news");
    client.ask_for("news");
    assert!(client.error().is_null());
    publish(&server, "news", "still", "1");
    assert_eq!(client.next()["event"], "still");
}

#[test]
fn private_channel_needs_a_signature_for_this_connection_and_this_channel() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    let other = Client::connected(&server);
    let id = client.socket_id.clone();
    let valid = sign(&format!("{id}:private-a"));
    for auth in [
        String::new(),
        valid.clone(),
        format!("shop-key:{valid}"),
        format!(
            "chat-key:{}",
            sign(&format!("{}:private-a", other.socket_id))
        ),
        format!("chat-key:{}", sign(&format!("{id}:private-b"))),
        format!("chat-key:{}", &valid[..63]),
        "chat-key:".to_string(),
    ] {
        let data = json!({"channel": "private-a", "auth": auth});
        client.send(json!({"event": "pusher:subscribe", "data": data}));
        assert_eq!(client.refused("private-a"), 4009, "{auth}");
    }
    for channel in ["private-a", "private-encrypted-a"] {
        client.subscribe(channel);
        publish(&server, channel, "x", "1");
        assert_eq!(client.next()["channel"], channel);
    }
}

#[test]
fn channels_with_other_characters_are_refused() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    for channel in ["", "a b", "a/b", "#", "a\n", "\u{0}", "../a", "é"] {
        client.ask_for(channel);
        assert_eq!(client.error(), Value::Null, "{channel:?}");
        client.unsubscribe(channel);
        assert!(client.error().is_null());
    }
    let long = "a".repeat(165);
    client.ask_for(&long);
    assert!(client.error().is_null());
    client.goes_on();
}

#[test]
fn subscriber_of_a_cache_channel_gets_the_retained_event_or_is_told_that_there_is_none() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("cache-a");
    let miss = client.next();
    assert_eq!(miss["event"], "pusher:cache_miss", "{miss}");
    assert_eq!(miss["channel"], "cache-a", "{miss}");
    let mut conn = Conn::open(&server);
    let headers = [("X-EventSource-Event", "state"), ("Crore-Retain", "true")];
    let answer = conn.request("POST", "/pub/pusher/chat/cache-a", &headers, "{\"n\":1}");
    assert!(answer.status < 300, "{answer:?}");
    assert_eq!(client.next()["event"], "state");
    let mut late = Client::connected(&server);
    late.subscribe("cache-a");
    let expected = json!({"event": "state", "channel": "cache-a", "data": "{\"n\":1}"});
    assert_eq!(late.next(), expected);
    late.goes_on();
}

#[test]
fn refusal_of_an_invalid_name_does_not_repeat_it() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    for name in [
        "a b",
        &"a".repeat(2_000),
        &format!("#server-to-user-{}", "a".repeat(2_000)),
    ] {
        client.ask_for(name);
        let event = client.next();
        assert_eq!(event["event"], "pusher:error", "{event}");
        assert!(event.to_string().len() < 400, "{event}");
    }
    client.goes_on();
}
