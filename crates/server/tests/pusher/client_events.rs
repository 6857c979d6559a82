//! Tests client events.

use serde_json::{Value, json};

use crate::client::{Client, server, sign};

fn client_event(channel: &str, data: Value) -> Value {
    json!({"event": "client-typing", "channel": channel, "data": data})
}

#[test]
fn client_event_reaches_the_other_subscribers_and_not_its_publisher() {
    let (server, _state) = server();
    let mut clients = [0; 3].map(|_| Client::connected(&server));
    for client in &mut clients {
        client.subscribe("private-a");
    }
    // With a second subscription, the server stores a client's subscriptions as a list. Here the publisher and one receiver have one.
    clients[0].subscribe("other");
    clients[1].subscribe("other");
    for data in [json!({"on": true}), json!("text")] {
        clients[0].send(client_event("private-a", data.clone()));
        let text = match &data {
            Value::String(text) => text.clone(),
            data => data.to_string(),
        };
        let expected = json!({"event": "client-typing", "channel": "private-a", "data": text});
        for client in &mut clients[1..] {
            assert_eq!(client.next(), expected);
        }
    }
    clients[0].goes_on();
}

#[test]
fn client_event_where_it_is_not_allowed_is_refused_and_the_connection_goes_on() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("news");
    client.subscribe("private-encrypted-a");
    for channel in ["news", "private-encrypted-a", "private-not-subscribed"] {
        client.send(client_event(channel, json!(1)));
        assert_eq!(client.error(), 4301, "{channel}");
    }
    client.goes_on();
    // The app `shop` has no client events.
    let mut shop = Client::at(&server, "/app/shop-key?protocol=7");
    let signature = sign(&format!("{}:private-a", shop.socket_id));
    let auth = format!("shop-key:{signature}");
    let data = json!({"channel": "private-a", "auth": auth});
    shop.send(json!({"event": "pusher:subscribe", "data": data}));
    assert_eq!(
        shop.next()["event"],
        "pusher_internal:subscription_succeeded"
    );
    shop.send(client_event("private-a", json!(1)));
    assert_eq!(shop.error(), 4301);
    shop.goes_on();
}
