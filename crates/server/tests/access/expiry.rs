//! Tests that connections and sessions end when the token that they began with expires, and that the client is told why.

use crore_wire::mqtt::{Packet, ReasonCode, Version};
use serde_json::json;

use crate::doors::{Credential, connected};
use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::Conn;
use crate::support::mqtt::plain_connect;
use crate::support::ws::{FIN, TEXT, Ws, handshake};
use crate::tokens::{everything, key_settings, now_s, token};

const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

fn settings() -> String {
    format!("[access]\nleeway_s = 0\n{}", key_settings())
}

/// Calls `open` with a token that expires soon. If the token expires before `open` is done, tries again with a token that lives longer.
/// Returns the token and the result.
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
fn streams_and_polls_end_with_their_token_and_the_next_request_gets_401() {
    let server = Server::with(&settings());
    let (token, (events, interest, mut two_topics, mut poll)) = opened(|token| {
        let open_stream = |target: &str, headers: &[(&str, &str)]| {
            let mut conn = Conn::open(&server);
            conn.ask("GET", &format!("{target}token={token}"), headers, "");
            conn
        };
        let mut streams = [
            open_stream("/sub/doors/expiry?", &[EVENTS]),
            open_stream("/interest?match=doors/%23&", &[]),
            open_stream("/pubsub/doors/expiry?", &handshake(&[])),
        ];
        let heads = streams.each_mut().map(|conn| conn.head());
        let open = heads.each_ref().map(|head| head.status) == [200, 200, 101];
        let [events, interest, two_topics] = streams;
        let [.., head] = heads;
        open.then(|| {
            (
                events,
                interest,
                Ws {
                    conn: two_topics,
                    head,
                },
                open_stream("/sub/doors/expiry?", &[]),
            )
        })
    });
    let answer = poll.response();
    assert_eq!(answer.status, 401, "{answer:?}");
    assert_eq!(two_topics.closed(), Some(4401));
    for mut stream in [events, interest] {
        assert!(
            stream.read_to_end().ends_with(b"0\r\n\r\n"),
            "the body ends in order"
        );
    }
    let target = format!("/sub/doors/expiry?token={token}");
    let after_expiry = Conn::open(&server).get(&target, &[EVENTS]);
    assert_eq!(after_expiry.status, 401);
    assert_eq!(after_expiry.text().trim(), "the token has expired");
}

#[test]
fn mqtt_client_is_told_that_its_token_has_expired() {
    let broker = Broker::with(&settings());
    for version in [Version::V311, Version::V5] {
        let (_, mut conn) = opened(|token| {
            let credential = Credential::Token(token.to_string());
            let (mut conn, _) =
                connected(&broker, false, &credential, plain_connect(version, "")).ok()?;
            conn.send_subscribe("doors/expiry", 0);
            matches!(conn.packet_or_end()?.packet(), Packet::SubAck(_)).then_some(conn)
        });
        let expected = (version == Version::V5).then_some(ReasonCode::MAXIMUM_CONNECT_TIME);
        assert_eq!(conn.end(), expected, "{version:?}");
    }
}

#[test]
fn token_without_an_expiry_stays_valid() {
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
    events.read_to_end();
    ws.send(FIN | TEXT, "still here");
    assert_eq!(ws.texts(1), ["still here"]);
}
