//! Tests that an MQTT session belongs to its user: no other user can take it over.

use crore_wire::mqtt::{Packet, PropertyWriter, ReasonCode, Version, encode};
use serde_json::json;

use crate::support::broker::Broker;
use crate::support::http::once;
use crate::support::mqtt::{Conn, message, plain_connect};
use crate::support::ws::handshake;
use crate::tokens::{key_settings, now_s, token};

fn token_of(user: &str, subscribe: &[&str]) -> String {
    let claims = json!({"sub": user, "exp": now_s() + 600, "subscribe": subscribe, "publish": "#"});
    token(claims)
}

fn connect(broker: &Broker, token: &str) -> (Conn, bool) {
    let mut conn = Conn::open(broker, Version::V5);
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(600);
    let mut connect = plain_connect(Version::V5, "the-same-id");
    connect.clean_start = false;
    connect.properties = properties.properties();
    connect.password = Some(token.as_bytes());
    let present = conn.connect(&connect);
    (conn, present)
}

#[test]
fn nobody_takes_over_the_session_of_another_user() {
    let broker = Broker::with(&format!("[access]\n{}", key_settings()));
    let ann = token_of("ann", &["a/#"]);
    let (mut anns, present) = connect(&broker, &ann);
    assert!(!present);
    assert_eq!(anns.subscribe("a/1", 1), ReasonCode::GRANTED_QOS_1);
    anns.disconnect();
    let (mut bobs, present) = connect(&broker, &token_of("bob", &["#"]));
    assert!(!present, "bob has no session of this id");
    bobs.deliver(&message("a/1", 1, 1, b"kept for ann"));
    // If the first message also matched a subscription of bob, bob would receive it before this acknowledgement.
    bobs.deliver(&message("b/1", 1, 2, b"x"));
    let (mut anns, present) = connect(&broker, &ann);
    assert!(present, "ann's is there");
    assert_eq!(anns.packet().publish().payload, b"kept for ann");
    assert!(bobs.is_served(), "and bob was not disconnected by it");
}

#[test]
fn resumed_session_keeps_only_subscriptions_that_its_user_may_have() {
    let broker = Broker::with(&format!("[access]\n{}", key_settings()));
    let (mut conn, _) = connect(&broker, &token_of("ann", &["a/#", "b/#"]));
    for filter in ["a/1", "b/1", "a/+/x", "b/+/x", "$share/g/b/2"] {
        assert_eq!(
            conn.subscribe(filter, 1),
            ReasonCode::GRANTED_QOS_1,
            "{filter}"
        );
    }
    conn.disconnect();
    let (mut conn, present) = connect(&broker, &token_of("ann", &["a/#"]));
    assert!(present);
    let mut publisher = Conn::open(&broker, Version::V5);
    let publishes = token_of("pub", &[]);
    let mut with_token = plain_connect(Version::V5, "");
    with_token.password = Some(publishes.as_bytes());
    publisher.connect(&with_token);
    for (n, topic) in ["b/1", "b/2/x", "b/2", "a/1", "a/2/x"]
        .into_iter()
        .enumerate()
    {
        publisher.deliver(&message(topic, 1, n as u16 + 1, topic.as_bytes()));
    }
    for _ in 0..2 {
        let received = conn.packet();
        assert!(
            received.publish().topic.starts_with("a/"),
            "{:?}",
            received.publish()
        );
    }
    conn.expect_only_from(&mut publisher, "a/1");
}

#[test]
fn token_of_an_upgrade_is_used_by_a_connect_without_credentials() {
    let broker = Broker::with(&format!("[access]\n{}", key_settings()));
    let ann = token_of("ann", &["a/#"]);
    let path = format!("/mqtt?token={ann}");
    for (password, expected) in [
        (None, Some(ReasonCode::GRANTED_QOS_1)),
        (
            Some(token_of("bob", &["b/#"])),
            Some(ReasonCode::NOT_AUTHORIZED),
        ),
        (Some("eyJ0.e30.x".to_string()), None),
    ] {
        let (mut conn, head) = Conn::websocket(&broker, Version::V5, &path, "mqtt");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let mut connect = plain_connect(Version::V5, "");
        connect.password = password.as_deref().map(str::as_bytes);
        conn.write(|out| encode::connect(out, &connect));
        let connack = conn.packet();
        let Packet::ConnAck(connack) = connack.packet() else {
            panic!("a CONNACK is due");
        };
        let Some(expected) = expected else {
            assert_eq!(connack.reason, ReasonCode::NOT_AUTHORIZED);
            continue;
        };
        assert_eq!(connack.reason, ReasonCode::SUCCESS);
        assert_eq!(conn.subscribe("a/1", 1), expected);
    }
    let upgrade = handshake(&[("Sec-WebSocket-Protocol", "mqtt")]);
    let target = "/mqtt?token=eyJ0.e30.x";
    let refused = once(broker.server(), "GET", target, &upgrade, "");
    assert_eq!(refused.status, 401);
}
