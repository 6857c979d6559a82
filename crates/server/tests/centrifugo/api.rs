//! Tests the server API on the admin port.

use serde_json::{Value, json};

use crate::client::{Client, ON, data_of};
use crate::rights::{LATER_S, closed, token};
use crate::support::port::{Answer, raw};
use crate::support::{Server, until};

pub const KEY: &str = "a-key-of-the-backend";

fn keyed() -> String {
    format!("{ON}[admin]\napi_key = '{KEY}'\n")
}

/// Calls a method of the API on the admin port, which the kernel chooses.
fn post(server: &Server, method: &str, field: &str, body: &str) -> Answer {
    let headers = format!("Host: {}\r\n{field}", server.admin());
    let path = format!("POST /api/{method}");
    raw(server.admin(), &path, &headers, Some(body))
}

fn reply(server: &Server, method: &str, body: &Value) -> Value {
    let answer = post(
        server,
        method,
        &format!("X-API-Key: {KEY}\r\n"),
        &body.to_string(),
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

pub fn call(server: &Server, method: &str, body: Value) -> Value {
    let mut reply = reply(server, method, &body);
    assert!(reply.get("result").is_some(), "{method} {body}: {reply}");
    reply["result"].take()
}

/// Makes a call that the server must refuse. Returns the error code.
fn error(server: &Server, method: &str, body: Value) -> u64 {
    let reply = reply(server, method, &body);
    reply["error"]["code"]
        .as_u64()
        .unwrap_or_else(|| panic!("{method} {body}: {reply} is no error"))
}

/// A server with access control and the API.
pub fn with_users() -> Server {
    closed(&format!("[admin]\napi_key = '{KEY}'\n"))
}

fn of_user(server: &Server, user: &str) -> Client {
    let claims = json!({"sub": user, "exp": LATER_S, "subscribe": ["#"], "publish": ["#"]});
    Client::with_token(server, &token(&claims))
}

#[test]
fn server_api_needs_its_key_and_names_the_setting_when_disabled() {
    let server = Server::with_admin(&keyed());
    let body = r#"{"channel":"a","data":1}"#;
    for (field, expected) in [
        (format!("X-API-Key: {KEY}\r\n"), 200),
        (format!("Authorization: apikey {KEY}\r\n"), 200),
        (String::new(), 401),
        (format!("X-API-Key: {KEY}s\r\n"), 401),
        (format!("X-API-Key: {}\r\n", &KEY[1..]), 401),
        (format!("X-API-Key: {}\r\n", KEY.replace('y', "x")), 401),
        ("X-API-Key: \r\n".to_string(), 401),
        (format!("Authorization: Bearer {KEY}\r\n"), 401),
    ] {
        assert_eq!(
            post(&server, "publish", &field, body).status,
            expected,
            "{field}"
        );
    }
    assert_eq!(
        call(&server, "history", json!({"channel": "a", "limit": -1}))["offset"],
        2
    );
    let off = Server::with_admin("");
    let answer = post(&off, "publish", "", body);
    assert_eq!(answer.status, 404);
    assert!(
        answer.body.contains("centrifugo.enabled"),
        "{}",
        answer.body
    );
}

#[test]
fn key_in_a_file_opens_the_api() {
    let file = std::env::temp_dir().join(format!("crore-api-key-{}", std::process::id()));
    std::fs::write(&file, format!("{KEY}\n")).expect("a file");
    let settings = format!("{ON}[admin]\napi_key_file = '{}'\n", file.display());
    let server = Server::with_admin(&settings);
    assert_eq!(post(&server, "info", "", "{}").status, 401);
    call(&server, "info", json!({}));
    std::fs::remove_file(&file).expect("its file");
}

#[test]
fn published_messages_reach_clients_and_are_in_the_history() {
    let server = Server::with_admin(&keyed());
    let mut client = Client::connected(&server);
    let begun = client.subscribe("a");
    let body = r#"{"channel": "a", "data": {"b": 1,  "a": 1e2}}"#;
    let field = format!("X-API-Key: {KEY}\r\n");
    let answer = post(&server, "publish", &field, body);
    let first: Value = serde_json::from_str(&answer.body).expect("JSON");
    let push = client.push();
    assert_eq!(push["pub"]["data"], json!({"b": 1, "a": 100.0}));
    assert_eq!(push["pub"]["offset"], first["result"]["offset"]);
    assert_eq!(begun["epoch"], first["result"]["epoch"]);
    let responses = call(
        &server,
        "broadcast",
        json!({"channels": ["a", "", "b"], "b64data": "/w=="}),
    );
    let responses = &responses["responses"];
    assert_eq!(responses[1]["error"]["code"], 107);
    assert!(responses[2]["result"]["offset"].is_u64(), "{responses}");
    assert_eq!(client.data("a"), "/w==");
    let history = call(&server, "history", json!({"channel": "a", "limit": -1}));
    assert_eq!(
        data_of(&history),
        [json!({"b": 1, "a": 100.0}), json!("/w==")]
    );
    assert_eq!(
        history["publications"][1]["tags"],
        json!({"encoding": "base64"})
    );
    assert_eq!(history["offset"], responses[0]["result"]["offset"]);
    let last = call(
        &server,
        "history",
        json!({"channel": "a", "limit": 1, "reverse": true}),
    );
    assert_eq!(data_of(&last), ["/w=="]);
    let since = json!({"channel": "a", "limit": 5, "since": first["result"]});
    assert_eq!(data_of(&call(&server, "history", since)), ["/w=="]);
    let top = call(&server, "history", json!({"channel": "a"}));
    assert_eq!(
        (data_of(&top), &top["offset"]),
        (vec![], &history["offset"])
    );
    for place in [
        json!({"offset": 1, "epoch": "12345678"}),
        json!({"offset": 1_000_000, "epoch": top["epoch"]}),
        json!({"offset": 1, "epoch": "no epoch"}),
    ] {
        let since = json!({"channel": "a", "limit": 5, "since": place});
        assert_eq!(error(&server, "history", since), 112, "{place}");
    }
    let passing = json!({"channel": "a", "data": "passing", "skip_history": true});
    call(&server, "publish", passing);
    assert_eq!(client.data("a"), "passing");
    let kept = client.ask("history", json!({"channel": "a", "limit": -1}));
    let kept = &kept["history"];
    assert_eq!(data_of(kept).len(), 2, "{kept}");
    assert_eq!(
        call(&server, "history_remove", json!({"channel": "a"})),
        json!({})
    );
    assert_eq!(
        call(&server, "history_remove", json!({"channel": "nothing"})),
        json!({})
    );
    let history = call(&server, "history", json!({"channel": "a", "limit": -1}));
    assert!(data_of(&history).is_empty(), "{history}");
    assert!(
        history["offset"].as_u64() >= kept["offset"].as_u64(),
        "{history}"
    );
    let since = json!({"channel": "a", "limit": 5, "since": first["result"]});
    assert_eq!(error(&server, "history", since), 112);
}

#[test]
fn retry_with_an_idempotency_key_is_published_once() {
    let server = Server::with_admin(&keyed());
    let body = |data: u32| json!({"channel": "a", "data": data, "idempotency_key": "k"});
    let first = call(&server, "publish", body(1));
    assert_eq!(call(&server, "publish", body(1)), first);
    assert_eq!(error(&server, "publish", body(2)), 107);
    let history = call(&server, "history", json!({"channel": "a", "limit": -1}));
    assert_eq!(data_of(&history), [1]);
}

#[test]
fn commands_that_are_wrong_or_not_built_get_their_codes() {
    let server = Server::with_admin(&format!("{}[limits]\nmessage_bytes = 1024\n", keyed()));
    let long = "x".repeat(1_100);
    for (method, body, code) in [
        ("publish", json!({"channel": "a"}), 107),
        ("publish", json!({"data": 1}), 107),
        ("publish", json!({"channel": "a/#", "data": 1}), 107),
        ("publish", json!({"channel": "a", "b64data": "?"}), 107),
        ("publish", json!({"channel": "a", "data": long}), 106),
        (
            "publish",
            json!({"channel": "a", "data": 1, "tags": {"a": "b"}}),
            108,
        ),
        (
            "publish",
            json!({"channel": "a", "data": 1, "version": 1}),
            108,
        ),
        ("broadcast", json!({"data": 1}), 107),
        (
            "broadcast",
            json!({"channels": vec!["a"; 2_001], "data": 1}),
            106,
        ),
        (
            "batch",
            json!({"commands": vec![json!({"info": {}}); 2_001]}),
            106,
        ),
        ("unsubscribe", json!({"user": "ann"}), 107),
        ("unsubscribe", json!({"channel": "a"}), 107),
        ("disconnect", json!({}), 107),
        ("disconnect", json!({"user": "ann", "session": "s"}), 108),
        (
            "disconnect",
            json!({"user": "ann", "disconnect": {"code": 1000}}),
            107,
        ),
        (
            "disconnect",
            json!({"user": "ann", "disconnect": {"code": 4000, "reason": long}}),
            107,
        ),
        ("refresh", json!({"user": "ann", "expire_at": -1}), 107),
        ("channels", json!({"pattern": "{a,b}"}), 108),
        ("presence", json!({"channel": "a"}), 108),
        ("rpc", json!({"method": "a"}), 104),
    ] {
        assert_eq!(
            error(&server, method, body.clone()),
            code,
            "{method} {body}"
        );
    }
    let field = format!("X-API-Key: {KEY}\r\n");
    for body in ["", "{", "[]", "{\"channel\": 5, \"data\": 1}"] {
        let status = post(&server, "publish", &field, body).status;
        assert_eq!(status, if body.is_empty() { 200 } else { 400 }, "{body}");
    }
    assert_eq!(post(&server, "nothing", &field, "{}").status, 404);
}

#[test]
fn batch_carries_out_its_commands_in_order() {
    let server = Server::with_admin(&keyed());
    let commands = json!({"commands": [
        {"publish": {"channel": "a", "data": 1}},
        {"publish": {"channel": "", "data": 1}},
        {"nothing": {}},
        {"publish": 5},
        {},
        {"history": {"channel": "a", "limit": -1}},
    ]});
    let replies = reply(&server, "batch", &commands)["replies"].take();
    assert!(replies[0]["publish"]["offset"].is_u64(), "{replies}");
    let codes = [1, 2, 3, 4].map(|at| replies[at]["error"]["code"].as_u64());
    assert_eq!(
        codes,
        [Some(107), Some(104), Some(107), Some(107)],
        "{replies}"
    );
    assert_eq!(data_of(&replies[5]["history"]), [1]);
    // The request format of API libraries for Centrifugo 3 and 4.
    let body = "{\"method\":\"publish\",\"params\":{\"channel\":\"a\",\"data\":2}}\n{\"method\":\"history\",\"params\":{\"channel\":\"a\",\"limit\":-1}}\n{\"method\":\"info\"}";
    let headers = format!(
        "Host: {}\r\nAuthorization: apikey {KEY}\r\n",
        server.admin()
    );
    let answer = raw(server.admin(), "POST /api", &headers, Some(body));
    let lines = answer.body.split('\n').map(serde_json::from_str::<Value>);
    let lines: Vec<_> = lines.map(|line| line.expect("JSON")).collect();
    assert_eq!(data_of(&lines[1]["result"]), [1, 2]);
    assert_eq!(
        lines[2]["result"]["nodes"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn channels_with_subscribers_are_listed() {
    let server = Server::with_admin(&keyed());
    let mut clients = [(); 2].map(|()| Client::connected(&server));
    clients[0].subscribe("a:1");
    clients[1].subscribe("a:1");
    clients[1].subscribe("b");
    call(&server, "publish", json!({"channel": "silent", "data": 1}));
    let channels = |body| call(&server, "channels", body)["channels"].take();
    let both = json!({"a:1": {"num_clients": 2}, "b": {"num_clients": 1}});
    assert_eq!(channels(json!({})), both);
    assert_eq!(
        channels(json!({"pattern": "a:*"})),
        json!({"a:1": {"num_clients": 2}})
    );
    let node = &call(&server, "info", json!({}))["nodes"][0];
    assert_eq!(
        (&node["num_clients"], &node["num_subs"]),
        (&json!(2), &json!(3)),
        "{node}"
    );
    // Both clients belong to the one user without a name.
    assert_eq!(node["num_users"], 1, "{node}");
}

#[test]
fn user_with_several_connections_is_counted_once() {
    let server = with_users();
    let _clients = ["ann", "ann", "bob"].map(|user| of_user(&server, user));
    let node = &call(&server, "info", json!({}))["nodes"][0];
    assert_eq!(node["num_users"], 2, "{node}");
}

#[test]
fn unsubscribed_user_gets_a_push_and_no_further_message() {
    let server = with_users();
    let mut clients = ["ann", "ann", "bob"].map(|user| of_user(&server, user));
    for client in &mut clients {
        client.subscribe("a");
        client.subscribe("b");
    }
    let body = json!({"user": "ann", "channel": "a"});
    assert_eq!(call(&server, "unsubscribe", body), json!({}));
    let [ann, too, bob] = &mut clients;
    for client in [&mut *ann, too] {
        let push = client.push();
        let ended = json!({"code": 2000, "reason": "server unsubscribe"});
        assert_eq!(
            (&push["channel"], &push["unsubscribe"]),
            (&json!("a"), &ended)
        );
    }
    // Messages of two channels may arrive in any order. So the test publishes the second one when the first has arrived.
    let publish = |channel| {
        call(
            &server,
            "publish",
            json!({"channel": channel, "data": channel}),
        )
    };
    publish("a");
    assert_eq!(bob.data("a"), "a");
    publish("b");
    for client in [&mut *ann, too, bob] {
        assert_eq!(client.data("b"), "b");
    }
    // The client may subscribe again.
    ann.subscribe("a");
}

#[test]
fn disconnect_ends_the_clients_of_a_user_or_one_of_them() {
    let server = with_users();
    let connect = |user: &str| {
        let mut client = Client::open(&server);
        let claims = json!({"sub": user, "exp": LATER_S});
        let reply = client.ask("connect", json!({"token": token(&claims)}));
        (client, reply["connect"]["client"].clone())
    };
    let (mut first, first_id) = connect("ann");
    let (mut second, second_id) = connect("ann");
    let (mut third, third_id) = connect("ann");
    let (mut bob, bob_id) = connect("bob");
    // The call names another user's client, so it ends no connection.
    call(
        &server,
        "disconnect",
        json!({"user": "ann", "client": bob_id}),
    );
    call(
        &server,
        "disconnect",
        json!({"user": "ann", "client": "nobody"}),
    );
    let code = json!({"code": 4_200, "reason": "go away"});
    call(
        &server,
        "disconnect",
        json!({"client": first_id, "disconnect": code}),
    );
    assert_eq!(first.closed(), (4_200, "go away".to_string()));
    assert!(second.goes_on());
    call(
        &server,
        "disconnect",
        json!({"user": "ann", "whitelist": [third_id, bob_id]}),
    );
    assert_eq!(second.closed().0, 3503);
    assert!(third.goes_on() && bob.goes_on());
    call(&server, "disconnect", json!({"user": "ann"}));
    assert_eq!(third.closed().0, 3503);
    assert!(bob.goes_on());
    call(
        &server,
        "disconnect",
        json!({"user": "ann", "client": second_id}),
    );
}

#[test]
fn refresh_moves_the_end_of_a_connection() {
    let server = with_users();
    let mut clients = ["ann", "bob"].map(|user| of_user(&server, user));
    call(
        &server,
        "refresh",
        json!({"user": "ann", "expire_at": LATER_S + 1_000}),
    );
    let [ann, bob] = &mut clients;
    let push = ann.push();
    assert_eq!(push["refresh"]["expires"], true, "{push}");
    call(&server, "refresh", json!({"user": "ann"}));
    let push = ann.push();
    assert!(push.get("refresh").is_some(), "{push}");
    assert_eq!(push["refresh"].get("expires"), None);
    call(
        &server,
        "refresh",
        json!({"user": "ann", "expire_at": 1_000}),
    );
    assert_eq!(ann.closed().0, 3005);
    assert!(bob.goes_on());
    call(&server, "refresh", json!({"user": "bob", "expired": true}));
    assert_eq!(bob.closed().0, 3005);
}

#[test]
fn presence_lists_the_clients_of_a_channel_with_their_ids() {
    let rule = "[[rule]]\nmatch = 'room'\npresence = true\n";
    let server = Server::with_admin(&format!("{rule}{}", keyed()));
    let body = json!({"channel": "room"});
    assert_eq!(
        call(&server, "presence", body.clone()),
        json!({"presence": {}})
    );
    let mut client = Client::open(&server);
    let connect = client.ask("connect", json!({}));
    let id = connect["connect"]["client"].as_str().expect("an id");
    client.subscribe("room");
    until("the member", || {
        let counts = call(&server, "presence_stats", body.clone());
        counts == json!({"num_clients": 1, "num_users": 1})
    });
    let present = json!({ id: {"client": id, "user": ""} });
    assert_eq!(
        call(&server, "presence", body),
        json!({ "presence": present })
    );
}
