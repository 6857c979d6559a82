//! The doors of the server: the ways in, each by one request of one protocol. A test tries a door with a credential and learns whether the
//! server lets the client in.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::mqtt::{Connect, Packet, Publish, Qos, ReasonCode, Version, encode};

use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::{Conn, once};
use crate::support::mqtt::{self as packets, message, plain, will};
use crate::support::ws::handshake;

/// The credential that a client sends.
#[derive(Clone, Debug)]
pub enum Credential {
    None,
    Token(String),
    Password(&'static str, &'static str),
}

/// The place of the credential in an HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Header,
    Query,
    Cookie,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    Open,
    /// Refused with this HTTP status or MQTT reason code.
    Closed(u16),
}

/// A door over HTTP: its name, the rights that it needs, and the request.
pub struct HttpDoor {
    pub name: &'static str,
    pub rights: &'static [&'static str],
    method: &'static str,
    target: &'static str,
    headers: &'static [(&'static str, &'static str)],
    upgrade: bool,
    /// The status when the door is open and the topic does not exist yet.
    open: u16,
}

const SSE: &[(&str, &str)] = &[("Accept", "text/event-stream")];
const NDJSON: &[(&str, &str)] = &[("Content-Type", "application/x-ndjson")];

const fn door(
    name: &'static str,
    rights: &'static [&'static str],
    method: &'static str,
    target: &'static str,
    open: u16,
) -> HttpDoor {
    HttpDoor {
        name,
        rights,
        method,
        target,
        headers: &[],
        upgrade: false,
        open,
    }
}

const fn stream(mut door: HttpDoor) -> HttpDoor {
    door.headers = SSE;
    door
}

const fn batch(mut door: HttpDoor) -> HttpDoor {
    door.headers = NDJSON;
    door
}

const fn upgrade(mut door: HttpDoor) -> HttpDoor {
    door.upgrade = true;
    door
}

/// The reason in the answer to a batch if the client may not publish a line's message.
const NOT_GRANTED: &str = "your credentials do not grant `publish` here";

/// The doors over HTTP. Each attempt replaces `TOPIC` by another topic.
pub const HTTP_DOORS: &[HttpDoor] = &[
    door("POST", &["publish"], "POST", "/pub/TOPIC", 202),
    batch(door("batch", &["publish"], "POST", "/pub", 200)),
    door("PUT", &["manage"], "PUT", "/pub/TOPIC", 201),
    door("DELETE", &["manage"], "DELETE", "/pub/TOPIC", 404),
    door("purge", &["manage"], "DELETE", "/pub/TOPIC?purge", 404),
    door("GET info", &["info"], "GET", "/pub/TOPIC", 404),
    door("HEAD info", &["info"], "HEAD", "/pub/TOPIC", 404),
    door("long-poll", &["subscribe"], "GET", "/sub/doors/kept", 200),
    door(
        "HEAD of a long-poll",
        &["subscribe"],
        "HEAD",
        "/sub/doors/kept",
        200,
    ),
    door(
        "long-poll on two",
        &["subscribe"],
        "GET",
        "/sub/doors/kept?topic=doors/kept2",
        200,
    ),
    door(
        "long-poll by filter",
        &["subscribe"],
        "GET",
        "/sub?filter=doors/%2B&since=oldest",
        200,
    ),
    stream(door("SSE", &["subscribe"], "GET", "/sub/TOPIC", 200)),
    stream(door(
        "SSE by filter",
        &["subscribe"],
        "GET",
        "/sub?filter=doors/%23",
        200,
    )),
    stream(door(
        "interest",
        &["interest"],
        "GET",
        "/interest?match=doors/%23",
        200,
    )),
    upgrade(door("WebSocket", &["subscribe"], "GET", "/sub/TOPIC", 101)),
    upgrade(door(
        "WebSocket by filter",
        &["subscribe"],
        "GET",
        "/sub?filter=doors/%23",
        101,
    )),
    upgrade(door(
        "WebSocket that publishes",
        &["publish"],
        "GET",
        "/pub/TOPIC",
        101,
    )),
    upgrade(door(
        "WebSocket that does both",
        &["publish", "subscribe"],
        "GET",
        "/pubsub/TOPIC",
        101,
    )),
    upgrade(door(
        "interest over WebSocket",
        &["interest"],
        "GET",
        "/interest?match=doors/%23",
        101,
    )),
];

impl HttpDoor {
    /// Sends the door's request for a topic that no other attempt uses.
    pub fn attempt(&self, server: &Server, came: &Credential, by: Carrier, topic: &str) -> Met {
        let mut target = self.target.replace("TOPIC", topic);
        let mut headers: Vec<(&str, &str)> = self.headers.to_vec();
        let mut value = String::new();
        match (came, by) {
            (Credential::None, _) => {}
            (Credential::Password(user, password), _) => {
                value = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
                headers.push(("Authorization", &value));
            }
            (Credential::Token(token), Carrier::Header) => {
                value = format!("Bearer {token}");
                headers.push(("Authorization", &value));
            }
            (Credential::Token(token), Carrier::Cookie) => {
                value = format!("a=b; crore_token={token}");
                headers.push(("Cookie", &value));
            }
            (Credential::Token(token), Carrier::Query) => {
                let mark = if target.contains('?') { '&' } else { '?' };
                target += &format!("{mark}token={token}");
            }
        }
        let _ = &value;
        if self.upgrade {
            headers = handshake(&headers);
        }
        let body = match self.headers == NDJSON {
            true => format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n"),
            false if self.method == "POST" => "x".to_string(),
            false => String::new(),
        };
        let mut conn = Conn::open(server);
        conn.ask(self.method, &target, &headers, body);
        let head = conn.head();
        if self.headers == NDJSON && head.status == 200 {
            let length = head.header("content-length").expect("a length");
            let body = conn.exactly(length.parse().expect("a number"));
            let told: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            let why = &told["failed"][0]["reason"];
            return match (told["published"].as_u64(), why.as_str()) {
                (Some(1), None) => Met::Open,
                (Some(0), Some(NOT_GRANTED)) => Met::Closed(403),
                _ => panic!("{told} is no answer to a batch"),
            };
        }
        match self.open == head.status {
            true => Met::Open,
            false => Met::Closed(head.status),
        }
    }
}

/// A door over MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttDoor {
    Publish0,
    Publish1,
    Publish2,
    Will,
    Subscribe,
    Wildcard,
    Shared,
}

pub const MQTT_DOORS: [MqttDoor; 7] = [
    MqttDoor::Publish0,
    MqttDoor::Publish1,
    MqttDoor::Publish2,
    MqttDoor::Will,
    MqttDoor::Subscribe,
    MqttDoor::Wildcard,
    MqttDoor::Shared,
];

impl MqttDoor {
    pub fn rights(self) -> &'static [&'static str] {
        match self {
            MqttDoor::Subscribe | MqttDoor::Wildcard | MqttDoor::Shared => &["subscribe"],
            _ => &["publish"],
        }
    }

    /// The refusal of a client that lacks the right. MQTT 3.1.1 cannot refuse a publish, so the connection ends.
    pub fn refused(self, version: Version) -> Met {
        let code = match version {
            Version::V5 => 0x87,
            Version::V311 if self == MqttDoor::Will => 0x87,
            Version::V311 if self.is_publish() => 0,
            Version::V311 => 0x80,
        };
        Met::Closed(code)
    }

    pub fn is_publish(self) -> bool {
        self.rights() == ["publish"]
    }

    /// Tries the door. Over WebSocket (`framed`) the upgrade request carries no credential; only the CONNECT does.
    pub fn attempt(
        self,
        broker: &Broker,
        version: Version,
        framed: bool,
        came: &Credential,
        topic: &str,
    ) -> Met {
        let mut connect = plain(version, "");
        if self == MqttDoor::Will {
            connect.will = Some(will(topic));
        }
        let mut conn = match connected(broker, framed, came, connect) {
            Ok((conn, _)) => conn,
            Err(refused) => return refused,
        };
        match self {
            MqttDoor::Will => Met::Open,
            MqttDoor::Publish0 | MqttDoor::Publish1 | MqttDoor::Publish2 => {
                let qos = self as u8;
                publish(&mut conn, &message(topic, qos, u16::from(qos), b"x"))
            }
            MqttDoor::Subscribe => subscribe(&mut conn, topic),
            MqttDoor::Wildcard => subscribe(&mut conn, "doors/#"),
            MqttDoor::Shared => subscribe(&mut conn, "$share/g/doors/+"),
        }
    }
}

/// The session in a CONNACK: whether one was present, and its expiry in seconds if the server decides the expiry.
pub type Session = (bool, Option<u32>);

/// Sends this CONNECT with a credential.
///
/// # Errors
/// How the server refused the client.
pub fn connected<'a>(
    broker: &Broker,
    framed: bool,
    came: &'a Credential,
    mut connect: Connect<'a>,
) -> Result<(packets::Conn, Session), Met> {
    let mut conn = match framed {
        false => packets::Conn::open(broker, connect.version),
        true => packets::Conn::websocket(broker, connect.version, "/", "mqtt").0,
    };
    match came {
        Credential::None => {}
        Credential::Token(token) => {
            (connect.user_name, connect.password) = (Some("whoever"), Some(token.as_bytes()));
        }
        Credential::Password(user, password) => {
            (connect.user_name, connect.password) = (Some(*user), Some(password.as_bytes()));
        }
    }
    conn.write(|out| encode::connect(out, &connect));
    match conn.packet().packet() {
        Packet::ConnAck(connack) if connack.reason == ReasonCode::SUCCESS => {
            let expiry_s = connack.properties.session_expiry_interval_s();
            Ok((conn, (connack.session_present, expiry_s)))
        }
        Packet::ConnAck(connack) => {
            assert!(conn.packet_or_end().is_none(), "a refused client is closed");
            Err(Met::Closed(u16::from(connack.reason.value())))
        }
        other => panic!("a CONNACK is due, {other:?} came"),
    }
}

fn publish(conn: &mut packets::Conn, message: &Publish<'_>) -> Met {
    conn.publish(message);
    if message.qos == Qos::AtMostOnce {
        conn.ping();
    }
    let Some(got) = conn.packet_or_end() else {
        return Met::Closed(0);
    };
    match got.packet() {
        Packet::PubAck(ack) | Packet::PubRec(ack) if ack.reason.is_error() => {
            Met::Closed(u16::from(ack.reason.value()))
        }
        Packet::Disconnect(disconnect) => Met::Closed(u16::from(disconnect.reason.value())),
        Packet::PubAck(_) | Packet::PubRec(_) | Packet::PingResp => Met::Open,
        other => panic!("{other:?} is no answer to a publish"),
    }
}

fn subscribe(conn: &mut packets::Conn, filter: &str) -> Met {
    let reason = conn.subscribe(filter, 1);
    match reason.is_error() {
        true => Met::Closed(u16::from(reason.value())),
        false => Met::Open,
    }
}

/// Whether the topic exists, by the topic's info for a client that may read it.
pub fn exists(server: &Server, token: &str, topic: &str) -> bool {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    match once(server, "GET", &format!("/pub/{topic}"), &headers, "").status {
        200 => true,
        404 => false,
        other => panic!("{other}"),
    }
}
