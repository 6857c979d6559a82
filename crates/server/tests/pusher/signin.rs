//! Tests user authentication.

use serde_json::{Value, json};

use crate::client::{Client, publish_to, server, sign};

fn sign_in(client: &mut Client, user_data: &Value) {
    let user_data = user_data.to_string();
    let signature = sign(&format!("{}::user::{user_data}", client.socket_id));
    let data = json!({"auth": format!("chat-key:{signature}"), "user_data": user_data});
    client.send(json!({"event": "pusher:signin", "data": data}));
}

#[test]
fn signed_in_client_gets_the_events_of_its_user_and_no_other_client_does() {
    let (server, _state) = server();
    let mut ann = Client::connected(&server);
    let user_data = json!({"id": "ann", "name": "Ann"});
    sign_in(&mut ann, &user_data);
    let event = ann.next();
    assert_eq!(event["event"], "pusher:signin_success", "{event}");
    let data: Value = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
    assert_eq!(data, json!({"user_data": user_data.to_string()}));
    ann.subscribe("#server-to-user-ann");
    let mut bob = Client::connected(&server);
    for client in [&mut ann, &mut bob] {
        client.ask_for("#server-to-user-bob");
        assert_eq!(client.refused("#server-to-user-bob"), 4009);
    }
    bob.ask_for("#server-to-user-ann");
    assert_eq!(bob.refused("#server-to-user-ann"), 4009);
    publish_to(&server, "pusher/chat/user/ann", "hello", "1");
    let expected = json!({"event": "hello", "channel": "#server-to-user-ann", "data": "1"});
    assert_eq!(ann.next(), expected);
}

#[test]
fn sign_in_needs_a_signature_and_an_id() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    let user_data = r#"{"id":"ann"}"#;
    // A signature in the format for channels is invalid for a user.
    let signature = sign(&format!("{}:{user_data}", client.socket_id));
    for auth in ["", "chat-key:", &format!("chat-key:{signature}")] {
        let data = json!({"auth": auth, "user_data": user_data});
        client.send(json!({"event": "pusher:signin", "data": data}));
        assert_eq!(client.error(), 4009);
    }
    for user_data in [
        json!({}),
        json!({"id": ""}),
        json!({"id": "a/b"}),
        json!({"id": "#"}),
    ] {
        sign_in(&mut client, &user_data);
        assert!(client.error().is_null(), "{user_data}");
    }
    sign_in(&mut client, &json!({"id": "ann"}));
    assert_eq!(client.next()["event"], "pusher:signin_success");
    sign_in(&mut client, &json!({"id": "bob"}));
    assert!(client.error().is_null());
}
