//! The operations that the server authorizes, each by one request of one protocol: publish, subscribe, read the info and so on. A test
//! attempts an operation with a credential, and learns whether the server accepts it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::mqtt::{Connect, Packet, Publish, Qos, ReasonCode, Version, encode};

use crate::support::Server;
use crate::support::broker::Broker;
use crate::support::http::{Conn, once};
use crate::support::mqtt::{self as packets, message, plain_connect, will};
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

/// How the server answered an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// Refused with this HTTP status or MQTT reason code.
    Refused(u16),
}

/// An operation over HTTP: its name, the rights that it needs, and its request.
pub struct HttpOperation {
    pub name: &'static str,
    pub rights: &'static [&'static str],
    method: &'static str,
    target: &'static str,
    headers: &'static [(&'static str, &'static str)],
    upgrade: bool,
    /// The status of an accepted request, if the topic does not exist yet.
    open: u16,
}

const SSE: &[(&str, &str)] = &[("Accept", "text/event-stream")];
const NDJSON: &[(&str, &str)] = &[("Content-Type", "application/x-ndjson")];

const fn operation(
    name: &'static str,
    rights: &'static [&'static str],
    method: &'static str,
    target: &'static str,
    open: u16,
) -> HttpOperation {
    HttpOperation {
        name,
        rights,
        method,
        target,
        headers: &[],
        upgrade: false,
        open,
    }
}

const fn stream(mut operation: HttpOperation) -> HttpOperation {
    operation.headers = SSE;
    operation
}

const fn batch(mut operation: HttpOperation) -> HttpOperation {
    operation.headers = NDJSON;
    operation
}

const fn upgrade(mut operation: HttpOperation) -> HttpOperation {
    operation.upgrade = true;
    operation
}

/// The reason in the answer to a batch if the client may not publish a line's message.
const NOT_GRANTED: &str = "your credentials do not grant `publish` here";

/// The operations over HTTP. Each attempt replaces `TOPIC` by a topic of its own.
pub const HTTP_OPERATIONS: &[HttpOperation] = &[
    operation("POST", &["publish"], "POST", "/pub/TOPIC", 202),
    batch(operation("batch", &["publish"], "POST", "/pub", 200)),
    operation("PUT", &["manage"], "PUT", "/pub/TOPIC", 201),
    operation("DELETE", &["manage"], "DELETE", "/pub/TOPIC", 404),
    operation("purge", &["manage"], "DELETE", "/pub/TOPIC?purge", 404),
    operation("GET info", &["info"], "GET", "/pub/TOPIC", 404),
    operation("HEAD info", &["info"], "HEAD", "/pub/TOPIC", 404),
    operation("long-poll", &["subscribe"], "GET", "/sub/doors/kept", 200),
    operation(
        "HEAD of a long-poll",
        &["subscribe"],
        "HEAD",
        "/sub/doors/kept",
        200,
    ),
    operation(
        "long-poll on two",
        &["subscribe"],
        "GET",
        "/sub/doors/kept?topic=doors/kept2",
        200,
    ),
    operation(
        "long-poll by filter",
        &["subscribe"],
        "GET",
        "/sub?filter=doors/%2B&since=oldest",
        200,
    ),
    stream(operation("SSE", &["subscribe"], "GET", "/sub/TOPIC", 200)),
    stream(operation(
        "SSE by filter",
        &["subscribe"],
        "GET",
        "/sub?filter=doors/%23",
        200,
    )),
    stream(operation(
        "interest",
        &["interest"],
        "GET",
        "/interest?match=doors/%23",
        200,
    )),
    upgrade(operation(
        "WebSocket",
        &["subscribe"],
        "GET",
        "/sub/TOPIC",
        101,
    )),
    upgrade(operation(
        "WebSocket by filter",
        &["subscribe"],
        "GET",
        "/sub?filter=doors/%23",
        101,
    )),
    upgrade(operation(
        "WebSocket that publishes",
        &["publish"],
        "GET",
        "/pub/TOPIC",
        101,
    )),
    upgrade(operation(
        "WebSocket that does both",
        &["publish", "subscribe"],
        "GET",
        "/pubsub/TOPIC",
        101,
    )),
    upgrade(operation(
        "interest over WebSocket",
        &["interest"],
        "GET",
        "/interest?match=doors/%23",
        101,
    )),
];

impl HttpOperation {
    /// Attempts the operation with a topic that no other attempt uses.
    pub fn attempt(
        &self,
        server: &Server,
        credential: &Credential,
        carrier: Carrier,
        topic: &str,
    ) -> Outcome {
        let mut target = self.target.replace("TOPIC", topic);
        let mut headers: Vec<(&str, &str)> = self.headers.to_vec();
        let mut value = String::new();
        match (credential, carrier) {
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
            let result: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            let reason = &result["failed"][0]["reason"];
            return match (result["published"].as_u64(), reason.as_str()) {
                (Some(1), None) => Outcome::Accepted,
                (Some(0), Some(NOT_GRANTED)) => Outcome::Refused(403),
                _ => panic!("{result} is no answer to a batch"),
            };
        }
        match self.open == head.status {
            true => Outcome::Accepted,
            false => Outcome::Refused(head.status),
        }
    }
}

/// An operation over MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttOperation {
    Publish0,
    Publish1,
    Publish2,
    Will,
    Subscribe,
    Wildcard,
    Shared,
}

pub const MQTT_OPERATIONS: [MqttOperation; 7] = [
    MqttOperation::Publish0,
    MqttOperation::Publish1,
    MqttOperation::Publish2,
    MqttOperation::Will,
    MqttOperation::Subscribe,
    MqttOperation::Wildcard,
    MqttOperation::Shared,
];

impl MqttOperation {
    pub fn rights(self) -> &'static [&'static str] {
        match self {
            MqttOperation::Subscribe | MqttOperation::Wildcard | MqttOperation::Shared => {
                &["subscribe"]
            }
            _ => &["publish"],
        }
    }

    /// The outcome for a client that lacks the right. MQTT 3.1.1 cannot refuse a publish, so the connection ends (code 0).
    pub fn refused(self, version: Version) -> Outcome {
        let code = match version {
            Version::V5 => 0x87,
            Version::V311 if self == MqttOperation::Will => 0x87,
            Version::V311 if self.is_publish() => 0,
            Version::V311 => 0x80,
        };
        Outcome::Refused(code)
    }

    pub fn is_publish(self) -> bool {
        self.rights() == ["publish"]
    }

    /// Attempts the operation. Over WebSocket (`framed`) only the CONNECT has the credential, and not the upgrade request.
    pub fn attempt(
        self,
        broker: &Broker,
        version: Version,
        framed: bool,
        credential: &Credential,
        topic: &str,
    ) -> Outcome {
        let mut connect = plain_connect(version, "");
        if self == MqttOperation::Will {
            connect.will = Some(will(topic));
        }
        let mut conn = match connected(broker, framed, credential, connect) {
            Ok((conn, _)) => conn,
            Err(refused) => return refused,
        };
        match self {
            MqttOperation::Will => Outcome::Accepted,
            MqttOperation::Publish0 | MqttOperation::Publish1 | MqttOperation::Publish2 => {
                let qos = self as u8;
                publish(&mut conn, &message(topic, qos, u16::from(qos), b"x"))
            }
            MqttOperation::Subscribe => subscribe(&mut conn, topic),
            MqttOperation::Wildcard => subscribe(&mut conn, "doors/#"),
            MqttOperation::Shared => subscribe(&mut conn, "$share/g/doors/+"),
        }
    }
}

/// The session in a CONNACK: whether one was present, and its expiry in seconds if the server decides the expiry.
pub type Session = (bool, Option<u32>);

/// Connects with a credential.
///
/// # Errors
/// The refusal of the server.
pub fn connected<'a>(
    broker: &Broker,
    framed: bool,
    credential: &'a Credential,
    mut connect: Connect<'a>,
) -> Result<(packets::Conn, Session), Outcome> {
    let mut conn = match framed {
        false => packets::Conn::open(broker, connect.version),
        true => packets::Conn::websocket(broker, connect.version, "/", "mqtt").0,
    };
    match credential {
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
            Err(Outcome::Refused(u16::from(connack.reason.value())))
        }
        other => panic!("a CONNACK is due, {other:?} came"),
    }
}

fn publish(conn: &mut packets::Conn, message: &Publish<'_>) -> Outcome {
    conn.publish(message);
    if message.qos == Qos::AtMostOnce {
        conn.ping();
    }
    let Some(received) = conn.packet_or_end() else {
        return Outcome::Refused(0);
    };
    match received.packet() {
        Packet::PubAck(ack) | Packet::PubRec(ack) if ack.reason.is_error() => {
            Outcome::Refused(u16::from(ack.reason.value()))
        }
        Packet::Disconnect(disconnect) => Outcome::Refused(u16::from(disconnect.reason.value())),
        Packet::PubAck(_) | Packet::PubRec(_) | Packet::PingResp => Outcome::Accepted,
        other => panic!("{other:?} is no answer to a publish"),
    }
}

fn subscribe(conn: &mut packets::Conn, filter: &str) -> Outcome {
    let reason = conn.subscribe(filter, 1);
    match reason.is_error() {
        true => Outcome::Refused(u16::from(reason.value())),
        false => Outcome::Accepted,
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
