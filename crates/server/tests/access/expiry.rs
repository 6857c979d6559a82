//! Tests that connections and sessions end when the token that they began with expires, and that the client is told why.

use crore_wire::mqtt::{Packet, ReasonCode, Version};
use serde_json::json;

use crate::doors::{Credential, connected};
use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::Conn;
use crate::support::mqtt::plain;
use crate::support::ws::{FIN, TEXT, Ws, handshake};
use crate::tokens::{everything, key_settings, now_s, token};

const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

fn settings() -> String {
    format!("[access]\nleeway_s = 0\n{}", key_settings())
}

/// Opens something with a token that expires soon. If opening took too long, tries again with a longer life of the token.
fn opened<T>(open: impl Fn(&str) -> Option<T>) -> (String, T) {
    let mut lives_s = (1..8).map(|power| 1 << power);
    let found = lives_s.find_map(|life_s: u64| {
        let mut claims = everything();
        claims["exp"] = json!(now_s() + life_s);
        let token = token(claims);
        open(&token).map(|opened| (token, opened))
    });
    found.expect("it opens")
}

#[test]
fn streams_and_polls_end_with_their_token_and_the_next_request_is_told_401() {
    let server = Server::with(&settings());
    let (token, (events, interest, mut both, mut poll)) = opened(|token| {
        let ask = |target: &str, headers: &[(&str, &str)]| {
            let mut conn = Conn::open(&server);
            conn.ask("GET", &format!("{target}token={token}"), headers, "");
            conn
        };
        let mut all = [
            ask("/sub/doors/expiry?", &[EVENTS]),
            ask("/interest?match=doors/%23&", &[]),
            ask("/pubsub/doors/expiry?", &handshake(&[])),
        ];
        let heads = all.each_mut().map(|conn| conn.head());
        let open = heads.each_ref().map(|head| head.status) == [200, 200, 101];
        let [events, interest, both] = all;
        let [.., head] = heads;
        open.then(|| {
            (
                events,
                interest,
                Ws { conn: both, head },
                ask("/sub/doors/expiry?", &[]),
            )
        })
    });
    let answer = poll.response();
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(both.closed(), Some(4401));
    for mut stream in [events, interest] {
        assert!(
            stream.rest().ends_with(b"0\r\n\r\n"),
            "the body ends in order"
        );
    }
    let target = format!("/sub/doors/expiry?token={token}");
    let again = Conn::open(&server).get(&target, &[EVENTS]);
    assert_eq!(again.status, 401);
    assert_eq!(again.text().trim(), "the token has expired");
}

#[test]
fn mqtt_clients_are_told_that_their_time_is_over() {
    let broker = Broker::with(&settings());
    for version in [Version::V311, Version::V5] {
        let (_, mut conn) = opened(|token| {
            let came = Credential::Token(token.to_string());
            let (mut conn, _) = connected(&broker, false, &came, plain(version, "")).ok()?;
            conn.ask_for("doors/expiry", 0);
            matches!(conn.packet_or_end()?.packet(), Packet::SubAck(_)).then_some(conn)
        });
        let expected = (version == Version::V5).then_some(ReasonCode::MAXIMUM_CONNECT_TIME);
        assert_eq!(conn.end(), expected, "{version:?}");
    }
}

#[test]
fn a_token_without_an_end_lasts() {
    let server = Server::with(&settings());
    let mut claims = everything();
    claims.as_object_mut().expect("claims").remove("exp");
    let target = format!("/pubsub/doors/lasting?token={}", token(claims));
    let mut ws = Ws::open(&server, &target, &[]);
    let (_, mut events) = opened(|token| {
        let mut events = Conn::open(&server);
        let target = format!("/sub/doors/expiry?token={token}");
        events.ask("GET", &target, &[EVENTS], "");
        (events.head().status == 200).then_some(events)
    });
    events.rest();
    ws.send(FIN | TEXT, "still here");
    assert_eq!(ws.texts(1), ["still here"]);
}
