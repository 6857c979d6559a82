//! Tests that a subscriber receives the properties of an MQTT 5.0 message unaltered, in every kind of delivery: live, from the log, as a
//! retained message, in an absent session, sent again, as a will, in a group, and after a planned restart.

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message, plain_connect, will};
use crate::support::state::State;
use crore_wire::mqtt::PacketType::PubAck;
use crore_wire::mqtt::{Properties, PropertyWriter, Version};

/// The longest expiry that a packet can have. It ends at a time that does not fit into 32 bits of seconds.
const NEVER_S: u32 = u32::MAX;
/// By how many seconds a delivered expiry may be shorter than the published one: a test takes less time than this.
const SLACK_S: u32 = 600;

/// The properties of a message, except its expiry, in a form that can be compared.
#[derive(Debug, PartialEq)]
struct ComparedProperties {
    format: Option<u8>,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation: Option<Vec<u8>>,
    user: Vec<(String, String)>,
}

fn compared(set: &Properties<'_>) -> ComparedProperties {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    ComparedProperties {
        format: set.payload_format_indicator(),
        content_type: set.content_type().map(str::to_owned),
        response_topic: set.response_topic().map(str::to_owned),
        correlation: set.correlation_data().map(<[u8]>::to_vec),
        user: set.user_properties().map(owned).collect(),
    }
}

/// Sets of properties, each with some special case, and an expiry.
fn property_sets() -> Vec<(PropertyWriter, Option<u32>)> {
    let users: [&[(&str, &str)]; 6] = [
        &[],
        &[
            ("b", "2"),
            ("a", "1"),
            ("b", "2"),
            ("", ""),
            ("\u{e9}", "\u{feff}"),
        ],
        &[
            ("crore-key", "k"),
            ("first", "1"),
            ("crore-event", "e"),
            ("second", "2"),
        ],
        &[
            ("z", "1"),
            ("crore-key", "k"),
            ("crore-key", "k2"),
            ("a", ""),
            ("crore-key", ""),
        ],
        &[
            ("crore-event", ""),
            ("crore-eventful", "x"),
            ("crore-key", ""),
        ],
        &[
            ("a", "1"),
            ("crore-event", "e"),
            ("a", "1"),
            ("crore-event", "e"),
        ],
    ];
    let expiries = [
        None,
        Some(3_600),
        Some(NEVER_S),
        Some(NEVER_S - 1),
        Some(0x7fff_ffff),
    ];
    let texts = [None, Some(""), Some("text/x")];
    let mut property_sets = Vec::new();
    for (n, user) in users.iter().enumerate() {
        let mut set = PropertyWriter::new();
        if let Some(text) = texts[n % 3] {
            set.content_type(text).expect("it fits");
        }
        for (name, value) in &user[..user.len() / 2] {
            set.user_property(name, value).expect("it fits");
        }
        if let Some(text) = texts[n / 2 % 3] {
            let response_topic = if text.is_empty() { "answers" } else { text };
            set.response_topic(response_topic).expect("it fits");
            set.correlation_data(text.as_bytes()).expect("it fits");
        }
        // The order among user properties must be kept, even with other properties between them.
        for (name, value) in &user[user.len() / 2..] {
            set.user_property(name, value).expect("it fits");
        }
        if n % 2 == 0 {
            set.payload_is_utf8(n % 4 == 0);
        }
        let expiry_s = expiries[n % expiries.len()];
        if let Some(expiry_s) = expiry_s {
            set.message_expiry_interval_s(expiry_s);
        }
        property_sets.push((set, expiry_s));
    }
    property_sets
}

/// Receives the messages of all sets, in their order, and compares their properties.
fn assert_all_received(conn: &mut Conn, delivery: &str, acknowledges: bool) {
    for (n, (set, expiry_s)) in property_sets().iter().enumerate() {
        assert_received(conn, delivery, n, (set, *expiry_s), acknowledges);
    }
}

fn assert_received(
    conn: &mut Conn,
    delivery: &str,
    n: usize,
    (set, expiry_s): (&PropertyWriter, Option<u32>),
    acknowledges: bool,
) {
    let received = conn.packet();
    let publish = received.publish();
    assert_eq!(publish.payload, n.to_string().as_bytes(), "{delivery}");
    assert_eq!(
        compared(&publish.properties),
        compared(&set.properties()),
        "{delivery} {n}"
    );
    match (publish.properties.message_expiry_interval_s(), expiry_s) {
        (Some(expiry_received), Some(sent)) => {
            assert!(
                expiry_received <= sent && expiry_received >= sent - SLACK_S,
                "{delivery} {n}: {expiry_received}"
            );
        }
        (expiry_received, sent) => assert_eq!(expiry_received, sent, "{delivery} {n}"),
    }
    if let Some(id) = publish.packet_id.filter(|_| acknowledges) {
        conn.acknowledge(PubAck, id.get());
    }
}

fn publish_all(conn: &mut Conn, topic: &str) {
    for (n, (set, _)) in (0..).zip(property_sets()) {
        let payload = u16::to_string(&n);
        let mut publish = message(topic, 1, n + 1, payload.as_bytes());
        publish.properties = set.properties();
        conn.deliver(&publish);
    }
}

/// A connection to a session of the tests, and whether the session was present.
fn session(broker: &Broker, name: &str, receive_max: u16) -> (Conn, bool) {
    Conn::with_properties(broker, name, false, |set| {
        set.session_expiry_interval_s(600)
            .receive_maximum(receive_max);
    })
}

#[test]
fn properties_come_out_as_they_went_in() {
    let broker = Broker::start();
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    // Delivered live: to a plain subscription, to one of several subscriptions, and to a group.
    let mut plain = Conn::connected(&broker, Version::V5, "plain");
    plain.subscribe("t/1", 0);
    let mut several = Conn::connected(&broker, Version::V5, "several");
    several.subscribe("t/+", 1);
    several.subscribe("u", 1);
    let mut group = Conn::connected(&broker, Version::V5, "group");
    group.subscribe("$share/g/t/#", 1);
    // Delivered from the log, since this client receives one at a time; and to an absent session.
    let (mut behind, _) = session(&broker, "behind", 1);
    behind.subscribe("t/1", 1);
    let (mut away, _) = session(&broker, "away", 100);
    away.subscribe("t/#", 1);
    away.leave();
    publish_all(&mut publisher, "t/1");
    assert_all_received(&mut plain, "plain", false);
    assert_all_received(&mut several, "several", true);
    assert_all_received(&mut group, "a group", true);
    assert_all_received(&mut behind, "from the log", true);
    let (mut away, present) = session(&broker, "away", 100);
    assert!(present);
    assert_all_received(&mut away, "away", false);
    away.leave();
    let (mut away, _) = session(&broker, "away", 100);
    assert_all_received(&mut away, "sent again", true);
}

#[test]
fn a_retained_message_and_a_will_keep_their_properties() {
    let broker = Broker::start();
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("w", 1);
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for (n, (set, expiry_s)) in property_sets().into_iter().enumerate() {
        let payload = n.to_string();
        let mut publish = message("r", 1, 1, payload.as_bytes());
        (publish.properties, publish.retain) = (set.properties(), true);
        publisher.deliver(&publish);
        let mut late = Conn::connected(&broker, Version::V5, "late");
        late.subscribe("r", 1);
        assert_received(&mut late, "retained", n, (&set, expiry_s), true);
        late.leave();
        let mut connect = plain_connect(Version::V5, "it");
        let mut will_message = will("w");
        (will_message.payload, will_message.properties) = (payload.as_bytes(), set.properties());
        connect.will = Some(will_message);
        let mut conn = Conn::open(&broker, Version::V5);
        conn.connect(&connect);
        conn.cut();
        assert_received(&mut subscriber, "a will", n, (&set, expiry_s), true);
    }
}

#[test]
fn a_restart_keeps_all_properties() {
    let state = State::new();
    let Some(broker) = Broker::crore(&state.settings()) else {
        return;
    };
    for name in ["sent", "missed"] {
        let (mut conn, _) = session(&broker, name, 100);
        conn.subscribe("t/#", 1);
        if name == "missed" {
            conn.leave();
            continue;
        }
        let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
        publish_all(&mut publisher, "t/1");
        assert_all_received(&mut conn, "before", false);
        conn.leave();
    }
    // The second client is absent and has received nothing. The first one has received all messages and acknowledged none.
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    publish_all(&mut publisher, "t/2");
    broker.stop();
    let broker = Broker::crore(&state.settings()).expect("a server of ours");
    let (mut sent, present) = session(&broker, "sent", 100);
    assert!(present);
    assert_all_received(&mut sent, "sent again behind a restart", true);
    assert_all_received(&mut sent, "missed behind a restart", true);
    let (mut missed, _) = session(&broker, "missed", 1);
    assert_all_received(&mut missed, "missed behind a restart", true);
}

#[test]
fn a_time_to_live_from_http_may_be_the_longest() {
    let broker = Broker::start();
    if !broker.is_crore() {
        return;
    }
    let mut subscriber = Conn::connected(&broker, Version::V5, "subscriber");
    subscriber.subscribe("t", 1);
    let ttl_s = NEVER_S.to_string();
    let ttl = format!("Crore-TTL: {ttl_s}");
    let (head, _) = crate::doors::http(&broker, "POST /pub/t", &[&ttl], b"0");
    assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    let received = subscriber.packet();
    let expiry = received.publish().properties.message_expiry_interval_s();
    assert!(expiry.is_some_and(|s| s > NEVER_S - SLACK_S), "{expiry:?}");
}
