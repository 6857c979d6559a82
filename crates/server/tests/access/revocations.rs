//! Tests tokens and users that are revoked before their tokens expire: new requests are refused, and open connections end.

use std::path::PathBuf;

use crore_wire::mqtt::{ReasonCode, Version};
use serde_json::{Value, json};

use crate::doors::{Credential, connected};
use crate::key_files::{file, publish};
use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::Conn;
use crate::support::mqtt::plain_connect;
use crate::support::port::{ask, get};
use crate::support::ws::{FIN, TEXT, Ws};
use crate::tokens::{everything, key_settings, token};

const ACCEPT_EVENT_STREAM: (&str, &str) = ("Accept", "text/event-stream");

/// A revocation list in a file that no other test uses, and the settings that name it.
fn settings(list: &str) -> (PathBuf, String) {
    let path = file("revoked.json", list.as_bytes());
    let path_text = path.display();
    let settings = format!("[access]\nrevoked = '{path_text}'\n{}", key_settings());
    (path, settings)
}

/// A token of `ann` with these additional claims.
fn token_with(extra_claims: &[(&str, Value)]) -> String {
    let mut claims = everything();
    for (name, value) in extra_claims {
        claims[*name] = value.clone();
    }
    token(claims)
}

fn revoke(server: &Server, body: &Value) -> Value {
    let body = body.to_string();
    let answer = ask(server.admin(), "POST /api/v1/revocations", Some(&body));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn ids(server: &Server) -> Vec<String> {
    let list = get(server.admin(), "revocations");
    let list = list["revocations"].as_array().expect("a list");
    let id = |entry: &Value| entry["id"].as_str().expect("an id").to_string();
    list.iter().map(id).collect()
}

#[test]
fn connections_of_a_revoked_token_end_and_others_of_its_user_stay() {
    let (_, settings) = settings("[]");
    let broker = Broker::Crore(Server::with_admin(&settings));
    let server = broker.server();
    let leaked = token_with(&[("jti", json!("leaked"))]);
    let other = token_with(&[("jti", json!("other"))]);
    let mut events = Conn::open(server);
    let target = |path: &str, token: &str| format!("{path}/doors/revoked?token={token}");
    events.ask("GET", &target("/sub", &leaked), &[ACCEPT_EVENT_STREAM], "");
    assert_eq!(events.head().status, 200);
    let mut poll = Conn::open(server);
    poll.ask("GET", &target("/sub", &leaked), &[], "");
    let mut socket = Ws::open(server, &target("/pubsub", &leaked), &[]);
    let mut other_clients = Ws::open(server, &target("/pubsub", &other), &[]);
    let credential = Credential::Token(leaked.clone());
    let (mut device, _) = connected(
        &broker,
        false,
        &credential,
        plain_connect(Version::V5, "idle"),
    )
    .expect("it is let in");
    revoke(server, &json!({"jti": "leaked"}));
    assert_eq!(publish(server, &leaked), 401);
    assert_eq!(socket.closed(), Some(4401));
    assert_eq!(device.end(), Some(ReasonCode::NOT_AUTHORIZED));
    assert_eq!(poll.response().status, 401);
    assert!(
        events.read_to_end().ends_with(b"0\r\n\r\n"),
        "the body ends in order"
    );
    let after_revocation = Conn::open(server).get(&target("/sub", &leaked), &[ACCEPT_EVENT_STREAM]);
    assert_eq!(
        after_revocation.text().trim(),
        "the token or the user has been revoked"
    );
    other_clients.send(FIN | TEXT, "still here");
    assert_eq!(other_clients.texts(1), ["still here"]);
    assert_eq!(publish(server, &other), 202);
}

#[test]
fn user_loses_tokens_that_were_issued_before_and_may_get_new_ones() {
    let (_, settings) = settings("[]");
    let server = Server::with_admin(&settings);
    let issued = |second: u64| token_with(&[("iat", json!(second))]);
    let (old, new) = (issued(999), issued(1000));
    for token in [&old, &new] {
        assert_eq!(publish(&server, token), 202);
    }
    revoke(&server, &json!({"user": "ann", "issued_before": 1000}));
    assert_eq!(publish(&server, &old), 401);
    assert_eq!(publish(&server, &new), 202);
    let timeless = token_with(&[]);
    assert_eq!(publish(&server, &timeless), 401, "nobody knows when");
    revoke(&server, &json!({"user": "ann"}));
    assert_eq!(publish(&server, &new), 401, "nothing of hers counts");
    assert_eq!(ids(&server), ["user:ann"], "one entry stands for a user");
    let bobs = token_with(&[("sub", json!("bob"))]);
    assert_eq!(publish(&server, &bobs), 202);
}

#[test]
fn list_survives_a_restart_and_an_entry_can_be_removed() {
    let (_, settings) = settings("[]");
    let leaked = token_with(&[("a", json!(1))]);
    let server = Server::with_admin(&settings);
    let entry = revoke(&server, &json!({ "token": leaked }));
    let id = entry["id"].as_str().expect("an id");
    assert!(id.starts_with("sha256:"), "{id}");
    assert!(entry["expires"].is_u64(), "as long as the token lasts");
    drop(server);
    let server = Server::with_admin(&settings);
    assert_eq!(publish(&server, &leaked), 401);
    assert_eq!(publish(&server, &token_with(&[("a", json!(2))])), 202);
    let line = format!("DELETE /api/v1/revocations/{id}");
    assert_eq!(ask(server.admin(), &line, None).status, 200);
    assert_eq!(publish(&server, &leaked), 202);
    assert_eq!(ask(server.admin(), &line, None).status, 404);
}

#[test]
fn file_of_the_operator_counts_after_a_reload_and_a_damaged_one_changes_nothing() {
    let expired_entry = r#"{"id": "user:ann", "expires": 1000}"#;
    let (path, settings) = settings(&format!("[{expired_entry}]"));
    let server = Server::with_admin(&settings);
    let ann = token_with(&[]);
    assert_eq!(publish(&server, &ann), 202, "the entry is over");
    assert_eq!(ids(&server), Vec::<String>::new());
    std::fs::write(&path, r#"[{"id": "user:ann"}]"#).expect("a file");
    crate::reload::reload(&server, &settings);
    assert_eq!(publish(&server, &ann), 401);
    std::fs::write(&path, "[{").expect("a file");
    let answer = ask(server.admin(), "POST /api/v1/reload", Some("{}"));
    assert_eq!(answer.status, 422);
    assert!(answer.body.contains("access.revoked: "), "{}", answer.body);
    assert_eq!(publish(&server, &ann), 401, "nobody is let back in");
    let body = json!({"user": "bob"}).to_string();
    let answer = ask(server.admin(), "POST /api/v1/revocations", Some(&body));
    assert_eq!(answer.status, 500, "{}", answer.body);
}

#[test]
fn bad_revocation_request_gets_the_remedy() {
    let server = Server::with_admin(&format!("[access]\n{}", key_settings()));
    let post = |server: &Server, body: Value| {
        let body = body.to_string();
        let answer = ask(server.admin(), "POST /api/v1/revocations", Some(&body));
        (answer.status, answer.body)
    };
    let (status, body) = post(&server, json!({"user": "ann"}));
    assert_eq!(status, 409);
    assert!(body.contains("access.revoked"), "{body}");
    let (_, settings) = settings("[]");
    let server = Server::with_admin(&settings);
    for body in [
        json!({}),
        json!({"user": "ann", "jti": "x"}),
        json!({"user": ""}),
        json!({"token": "x"}),
        json!({"jti": "x", "issued_before": 5}),
        json!({"users": "ann"}),
    ] {
        let (status, answer) = post(&server, body.clone());
        assert_eq!(status, 400, "{body}: {answer}");
    }
    assert_eq!(ids(&server), Vec::<String>::new());
}
