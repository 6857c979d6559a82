//! Tests the server API on the admin port: signatures, events, and the list of channels.

use std::io::{Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::client::{Client, apps, sign};
use crate::support::port::{self, Answer, raw};
use crate::support::state::State;
use crate::support::{Server, connect};

fn server() -> (Server, State) {
    let state = State::new();
    (Server::with_admin(&apps(&state)), state)
}

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

/// The only body that these tests send with its MD5 digest.
const BODY: &str = r#"{"name":"x","channel":"news","data":"{\"n\":1}"}"#;

fn md5(body: &str) -> String {
    use md5::Digest as _;
    let digest = md5::Md5::digest(body);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The parameters of a request that is signed as Pusher's libraries do.
fn parameters(method: &str, path: &str, body: &str, more: &[(&str, &str)], at_s: u64) -> String {
    let (at, md5) = (at_s.to_string(), md5(body));
    let mut pairs = vec![
        ("auth_key", "chat-key"),
        ("auth_timestamp", &*at),
        ("auth_version", "1.0"),
    ];
    if !body.is_empty() {
        pairs.push(("body_md5", &md5));
    }
    pairs.extend(more);
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let pairs = pairs.join("&");
    let signature = sign(&format!("{method}\n{path}\n{pairs}"));
    format!("{pairs}&auth_signature={signature}")
}

fn ask(server: &Server, method: &str, target: &str, body: &str) -> Answer {
    let headers = format!(
        "Host: {}\r\nContent-Type: application/json\r\n",
        server.admin()
    );
    let body = Some(body).filter(|body| !body.is_empty());
    raw(
        server.admin(),
        &format!("{method} {target}"),
        &headers,
        body,
    )
}

fn call(server: &Server, method: &str, path: &str, body: &str, more: &[(&str, &str)]) -> Answer {
    let parameters = parameters(method, path, body, more, now_s());
    ask(server, method, &format!("{path}?{parameters}"), body)
}

fn result(server: &Server, method: &str, path: &str, body: &str, more: &[(&str, &str)]) -> Value {
    let answer = call(server, method, path, body, more);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

#[test]
fn event_needs_a_valid_signature_of_the_present() {
    let (server, _state) = server();
    let path = "/apps/chat/events";
    let at = |at_s| parameters("POST", path, BODY, &[], at_s);
    let valid = at(now_s());
    let other_body = BODY.replace('1', "2");
    for (parameters, body, expected) in [
        (valid.clone(), BODY, 200),
        // The server accepts a copy of the request within the window.
        (valid.clone(), BODY, 200),
        (valid.clone(), &*other_body, 401),
        (
            valid.replace("auth_signature=", "auth_signature=0"),
            BODY,
            401,
        ),
        (valid.replace("chat-key", "shop-key"), BODY, 401),
        (
            valid.replace("auth_version=1.0", "auth_version=2.0"),
            BODY,
            401,
        ),
        (format!("{valid}&auth_key=chat-key"), BODY, 401),
        (at(now_s() - 700), BODY, 401),
        (at(now_s() + 700), BODY, 401),
        (String::new(), BODY, 401),
        (
            parameters("POST", "/apps/shop/events", BODY, &[], now_s()),
            BODY,
            401,
        ),
        (parameters("GET", path, BODY, &[], now_s()), BODY, 401),
    ] {
        let answer = ask(&server, "POST", &format!("{path}?{parameters}"), body);
        assert_eq!(answer.status, expected, "{parameters}: {}", answer.body);
    }
    let answer = ask(&server, "POST", &format!("/apps/none/events?{valid}"), BODY);
    assert_eq!(answer.status, 404);
}

#[test]
fn request_without_a_valid_signature_is_refused_before_its_body_is_read() {
    let (server, _state) = server();
    for path in [
        "/apps/chat/events",
        "/apps/chat/batch_events",
        "/apps/chat/users/ann/terminate_connections",
    ] {
        // The body never arrives, so the server must answer without waiting for it.
        let mut stream = connect(server.admin());
        let host = server.admin();
        let valid = parameters("POST", path, BODY, &[], now_s());
        let wrong = valid.replace("auth_signature=", "auth_signature=0");
        let head =
            format!("POST {path}?{wrong} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401", "{path}");
    }
}

#[test]
fn triggered_event_reaches_the_channels_and_not_the_excluded_connection() {
    let (server, _state) = server();
    let (mut one, mut two) = (Client::connected(&server), Client::connected(&server));
    for client in [&mut one, &mut two] {
        client.subscribe("news");
    }
    let path = "/apps/chat/events";
    let body =
        json!({"name": "x", "channels": ["news"], "data": "{\"n\":1}", "socket_id": one.socket_id});
    assert_eq!(
        result(&server, "POST", path, &body.to_string(), &[]),
        json!({})
    );
    let expected = json!({"event": "x", "channel": "news", "data": "{\"n\":1}"});
    assert_eq!(two.next(), expected);
    one.goes_on();
    let batch = json!({"batch": [
        {"name": "a", "channel": "news", "data": "1"},
        {"name": "b", "channel": "news", "data": "2", "info": "subscription_count"},
    ]});
    let answer = result(
        &server,
        "POST",
        "/apps/chat/batch_events",
        &batch.to_string(),
        &[],
    );
    assert_eq!(answer, json!({"batch": [{}, {"subscription_count": 2}]}));
    for client in [&mut one, &mut two] {
        assert_eq!(client.next()["event"], "a");
        assert_eq!(client.next()["event"], "b");
    }
}

#[test]
fn bad_event_is_400_and_publishes_nothing() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("news");
    for body in [
        json!({"name": "x", "data": "1"}),
        json!({"name": "", "channel": "news", "data": "1"}),
        json!({"name": "x\n", "channel": "news", "data": "1"}),
        json!({"name": "x", "channels": ["news", "a b"], "data": "1"}),
        json!({"name": "x", "channels": ["../a"], "data": "1"}),
        json!({"name": "x", "channels": vec!["news"; 101], "data": "1"}),
        json!({"name": "x", "channel": "news", "data": "1", "socket_id": "x"}),
        json!([]),
    ] {
        let answer = call(&server, "POST", "/apps/chat/events", &body.to_string(), &[]);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }
    for wrong in [
        json!({"name": "", "channel": "news", "data": "1"}),
        json!({"name": "x\n", "channel": "news", "data": "1"}),
        json!({"name": "x", "channel": "a b", "data": "1"}),
        json!({"name": "x", "channel": "news", "data": "1", "socket_id": "x"}),
        json!({"name": "x", "channel": "news", "channels": ["other"], "data": "1"}),
        json!({"name": "x", "data": "1"}),
    ] {
        let body = json!({"batch": [{"name": "x", "channel": "news", "data": "1"}, wrong]});
        let path = "/apps/chat/batch_events";
        let answer = call(&server, "POST", path, &body.to_string(), &[]);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }
    client.goes_on();
}

#[test]
fn channels_and_users_are_those_of_the_app() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    let mut shop = Client::at(&server, "/app/shop-key?protocol=7");
    shop.subscribe("of-shop");
    client.subscribe("news");
    client.join("presence-room", &json!({"user_id": "ann"}));
    let channels = result(&server, "GET", "/apps/chat/channels", "", &[]);
    assert_eq!(
        channels,
        json!({"channels": {"news": {}, "presence-room": {}}})
    );
    // The list does not contain topics that are not channels.
    let others = ["x/y", "x/y/z", "presence/news", "a%20b", "user/ann"];
    let streams = others.map(|topic| {
        let path = format!("/sub/pusher/chat/{topic}");
        port::stream(server.address(), &path)
    });
    assert_eq!(
        result(&server, "GET", "/apps/chat/channels", "", &[]),
        channels
    );
    drop(streams);
    let more = [("filter_by_prefix", "presence-"), ("info", "user_count")];
    let channels = result(&server, "GET", "/apps/chat/channels", "", &more);
    assert_eq!(
        channels,
        json!({"channels": {"presence-room": {"user_count": 1}}})
    );
    let more = [("info", "user_count")];
    assert_eq!(
        call(&server, "GET", "/apps/chat/channels", "", &more).status,
        400
    );
    let path = "/apps/chat/channels/presence-room";
    let info = result(&server, "GET", path, "", &more);
    assert_eq!(info, json!({"occupied": true, "user_count": 1}));
    let users = result(&server, "GET", &format!("{path}/users"), "", &[]);
    assert_eq!(users, json!({"users": [{"id": "ann"}]}));
    let none = result(&server, "GET", "/apps/chat/channels/none", "", &[]);
    assert_eq!(none, json!({"occupied": false}));
    let path = "/apps/chat/channels/news/users";
    assert_eq!(call(&server, "GET", path, "", &[]).status, 400);
}
