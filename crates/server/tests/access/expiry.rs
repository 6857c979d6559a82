//! What lasts ends with the token that it began with, and says so.

use std::time::Duration;

use crore_wire::mqtt::{ReasonCode, Version};
use serde_json::json;

use crate::broker::Broker;
use crate::conn::Conn;
use crate::packets::{self, plain};
use crate::support::Server;
use crate::tokens::{everything, key_settings, now_s, token};
use crate::ws::Ws;

fn settings() -> String {
    format!("[access]\nleeway_s = 0\n{}", key_settings())
}

/// For a few seconds.
fn short() -> String {
    let mut claims = everything();
    claims["exp"] = json!(now_s() + 3);
    token(claims)
}

#[test]
fn streams_and_polls_end_with_their_token_and_the_next_request_is_told_401() {
    let server = Server::with(&settings());
    let token = short();
    let target = format!("/sub/doors/expiry?token={token}");
    let mut events = Conn::open(&server);
    events.ask("GET", &target, &[("Accept", "text/event-stream")], "");
    assert_eq!(events.head().status, 200);
    let mut poll = Conn::open(&server);
    poll.ask("GET", &target, &[], "");
    let mut both = Ws::open(&server, &format!("/pubsub/doors/expiry?token={token}"), &[]);
    let mut interest = Conn::open(&server);
    interest.ask(
        "GET",
        &format!("/interest?match=doors/%23&token={token}"),
        &[],
        "",
    );
    assert_eq!(interest.head().status, 200);

    let answer = poll.response();
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(both.closed(), Some(4401));
    for mut stream in [events, interest] {
        assert!(
            stream.rest().ends_with(b"0\r\n\r\n"),
            "the body ends in order"
        );
    }
    let again = Conn::open(&server).get(&target, &[("Accept", "text/event-stream")]);
    assert_eq!(again.status, 401);
    assert_eq!(again.text().trim(), "the token has expired");
}

#[test]
fn mqtt_clients_are_told_that_their_time_is_over() {
    let broker = Broker::with(&settings());
    for version in [Version::V311, Version::V5] {
        let token = short();
        let mut conn = packets::Conn::open(&broker, version);
        let mut connect = plain(version, "");
        (connect.user_name, connect.password) = (Some(""), Some(token.as_bytes()));
        assert!(!conn.connect(&connect));
        assert_eq!(conn.subscribe("doors/expiry", 0), ReasonCode::SUCCESS);
        let expected = (version == Version::V5).then_some(ReasonCode::MAXIMUM_CONNECT_TIME);
        assert_eq!(conn.end(), expected, "{version:?}");
    }
}

#[test]
fn a_token_without_an_end_lasts() {
    let server = Server::with(&settings());
    let mut claims = everything();
    claims.as_object_mut().expect("claims").remove("exp");
    let mut ws = Ws::open(
        &server,
        &format!("/pubsub/doors/lasting?token={}", token(claims)),
        &[],
    );
    assert!(ws.conn.is_silent_for(Duration::from_secs(3)));
    ws.send(0x81, "still here");
    assert_eq!(ws.texts(1), ["still here"]);
}
