//! Tests `rule.publisher`: messages name the user who published them, over every protocol, and no client can forge that name.

use crore_wire::mqtt::{PacketType, PropertyWriter, ReasonCode, Version};
use serde_json::Value;

use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::{Response, once};
use crate::support::mqtt::{self as packets, message, plain_connect, will};
use crate::support::stream::Stream;
use crate::support::ws::{Ws, line};
use crate::users::{basic, entry};

/// A server with a user `ann`, where everybody may read and write below `doors`. Messages name their publishers, except those of
/// `doors/plain`.
fn start() -> Broker {
    let rules = "[[rule]]\nmatch = 'doors/plain'\n[[rule]]\nmatch = 'doors/#'\npublisher = true\n";
    let everybody =
        "[access.anonymous]\npublish = ['doors/#']\nsubscribe = ['doors/#']\ninfo = ['doors/#']\n";
    let ann = entry("ann", "right");
    Broker::Crore(Server::with(&format!("{rules}[access]\n{everybody}{ann}")))
}

fn post(server: &Server, target: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let answer = once(server, "POST", target, headers, body);
    assert!(answer.status < 300, "{}", answer.text());
    answer
}

/// The kept messages of a topic, as JSON envelopes (objects with the message and its attributes).
fn envelopes(server: &Server, topic: &str, count: usize) -> Vec<Value> {
    let target = format!("/sub/{topic}?since=oldest&envelope=json");
    let texts = Stream::open(server, &target, &[]).data(count);
    let object = |text: &String| serde_json::from_str(text).expect("JSON");
    texts.iter().map(object).collect()
}

/// Opens an MQTT 5 client as `ann`, or as an anonymous client.
fn open(
    broker: &Broker,
    client_id: &str,
    user: Option<&str>,
    topic_of_will: &str,
) -> packets::Conn {
    let mut client = packets::Conn::open(broker, Version::V5);
    let mut connect = plain_connect(Version::V5, client_id);
    if user.is_some() {
        (connect.user_name, connect.password) = (user, Some(&b"right"[..]));
    }
    if !topic_of_will.is_empty() {
        connect.will = Some(will(topic_of_will));
    }
    client.connect(&connect);
    client
}

#[test]
fn messages_of_every_protocol_name_their_publisher() {
    let broker = start();
    let server = broker.server();
    let ann = basic("ann", "right");
    let authorization = [("Authorization", &*ann)];
    post(server, "/pub/doors/http", &authorization, "x");
    let ndjson = [
        ("Authorization", &*ann),
        ("Content-Type", "application/x-ndjson"),
    ];
    let batch = "{\"topic\":\"doors/batch\",\"data\":\"x\"}\n";
    post(server, "/pub", &ndjson, batch);
    let mut frames = Ws::open(server, "/pub/doors/frame", &authorization);
    frames.send(0x81, "x");
    let mut mqtt = open(&broker, "sensor-7", Some("ann"), "doors/will");
    mqtt.deliver(&message("doors/mqtt", 1, 1, b"x"));
    // The client leaves without a DISCONNECT, so its will is published.
    drop(mqtt);
    for topic in ["http", "batch", "frame", "mqtt", "will"] {
        let topic = format!("doors/{topic}");
        let [message] = &envelopes(server, &topic, 1)[..] else {
            panic!("one message is due");
        };
        assert_eq!(message["publisher"], "ann", "{message}");
        assert_eq!(message["properties"], Value::Null, "{message}");
    }
}

#[test]
fn subscribers_of_every_protocol_are_told_the_publisher() {
    let broker = start();
    let server = broker.server();
    let mut client = open(&broker, "reader", None, "");
    client.subscribe("doors/a", 0);
    let mut meta = Ws::meta(server, "/sub/doors/a?since=live");
    server.await_subscribers("doors/a", 2);
    let ann = [
        ("Authorization", &*basic("ann", "right")),
        ("Crore-Property", "seat=3"),
    ];
    post(server, "/pub/doors/a", &ann, "x");
    let poll = once(server, "GET", "/sub/doors/a?since=oldest", &[], "");
    assert_eq!(poll.header("crore-publisher").as_deref(), Some("ann"));
    assert_eq!(poll.header("crore-property").as_deref(), Some("seat=3"));
    let (lines, data) = meta.meta_message();
    assert_eq!((line(&lines, "publisher"), &data[..]), ("ann", &b"x"[..]));
    let received = client.packet();
    let properties = received.publish().properties;
    let publisher_properties: Vec<_> = properties.user_properties().collect();
    assert_eq!(
        publisher_properties,
        [("crore-publisher", "ann"), ("seat", "3")]
    );
    let history = once(server, "GET", "/history/doors/a?since=oldest", &[], "");
    assert!(
        history.text().contains("\"publisher\":\"ann\""),
        "{}",
        history.text()
    );
}

#[test]
fn no_client_can_write_the_name_of_another() {
    let broker = start();
    let server = broker.server();
    let ann = basic("ann", "right");
    let forged = ("Crore-Property", "crore-publisher=bob");
    post(
        server,
        "/pub/doors/a",
        &[("Authorization", &*ann), forged],
        "x",
    );
    // A message of an anonymous client, and a message where the rule names no publisher.
    post(server, "/pub/doors/a", &[forged], "x");
    post(
        server,
        "/pub/doors/plain",
        &[("Authorization", &*ann), forged],
        "x",
    );
    let mut properties = PropertyWriter::new();
    properties
        .user_property("crore-publisher", "bob")
        .expect("it fits");
    properties.user_property("seat", "3").expect("it fits");
    let mut mqtt = open(&broker, "sensor-7", None, "");
    let mut of_mqtt = message("doors/a", 1, 1, b"x");
    of_mqtt.properties = properties.properties();
    mqtt.deliver(&of_mqtt);
    let messages = envelopes(server, "doors/a", 3);
    let names: Vec<&Value> = messages
        .iter()
        .map(|message| &message["publisher"])
        .collect();
    assert_eq!(names, [&Value::from("ann"), &Value::Null, &Value::Null]);
    assert_eq!(
        messages[2]["properties"],
        serde_json::json!([["seat", "3"]])
    );
    assert_eq!(
        envelopes(server, "doors/plain", 1)[0]["publisher"],
        Value::Null
    );
}

#[test]
fn publishers_name_fits_beside_the_most_properties_of_a_message() {
    let broker = start();
    let server = broker.server();
    let mut client = open(&broker, "sensor-7", Some("ann"), "");
    for (count, reason) in [
        (127, ReasonCode::NO_MATCHING_SUBSCRIBERS),
        (128, ReasonCode::PAYLOAD_FORMAT_INVALID),
    ] {
        let mut properties = PropertyWriter::new();
        for _ in 0..count {
            properties.user_property("a", "b").expect("it fits");
        }
        let mut with_properties = message("doors/many", 1, 1, b"x");
        with_properties.properties = properties.properties();
        client.publish(&with_properties);
        assert_eq!(
            client.packet().ack(PacketType::PubAck),
            (1, reason),
            "{count}"
        );
    }
    let [message] = &envelopes(server, "doors/many", 1)[..] else {
        panic!("one message is due");
    };
    assert_eq!(message["publisher"], "ann");
    assert_eq!(message["properties"].as_array().map(Vec::len), Some(127));
}
