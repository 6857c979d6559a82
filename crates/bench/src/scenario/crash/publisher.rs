//! A publisher of `crash`: sends some messages, waits for their answers, and records the answers. Its state outlives its connections.
//!
//! A publisher with keys repeats messages without an answer, with the same keys, before it sends others. A publisher without keys never
//! sends a message twice. So no message may be in the log twice.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crore_wire::mqtt::{PacketId, PacketType};
use serde_json::Value;

use super::message::{self, Message, PublishMethod};
use crate::client::link::{End, Link, reconnect_until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, Version, client_id};
use crate::client::parse;
use crate::client::position::Position;
use crate::measure::payload::Random;

/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of messages in a batch, and of MQTT messages in flight.
const IN_FLIGHT: (u32, u32) = (32, 16);
/// The maximum number of requests that a publisher without keys sends before it reads the answers.
const PIPELINE: u32 = 4;
/// The maximum pause after the answers, in milliseconds. The pauses leave the server about half of the processor time.
const REST_MS: u32 = 30;

/// The counts of publishers.
#[derive(Clone, Copy, Debug, Default, derive_more::AddAssign, serde::Serialize)]
pub struct Counts {
    /// Messages whose publish was confirmed.
    pub answered: u64,
    /// Messages of publishers without keys that were never answered.
    pub unanswered: u64,
    /// Messages that were repeated with their key.
    pub retried: u64,
    /// Retries that the server recognised.
    pub replayed: u64,
    /// Messages that the server refused for the present.
    pub refused: u64,
}

/// A confirmed publish.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The message.
    pub message: Message,
    /// The message's position, if the answer has one.
    pub position: Option<Position>,
}

/// A publisher.
pub struct Publisher {
    index: u32,
    run: u64,
    size: u32,
    random: Random,
    /// The number of messages that the publisher has sent.
    pub sent: u32,
    /// Messages without an answer yet.
    in_flight: VecDeque<Message>,
    /// Answers that are not checked yet.
    pub answers: Vec<Answer>,
    /// The publisher's counts.
    pub counts: Counts,
    /// Answers that violate the protocol.
    pub violations: Vec<String>,
}

impl Publisher {
    /// Publisher `index` of the run with this seed. Most messages have less than `size` bytes.
    pub fn new(index: u32, run: u64, size: u32) -> Publisher {
        Publisher {
            index,
            run,
            size,
            random: Random::new(run ^ u64::from(index + 1) << 32),
            sent: 0,
            in_flight: VecDeque::new(),
            answers: Vec::new(),
            counts: Counts::default(),
            violations: Vec::new(),
        }
    }

    /// Publishes until the server is gone, or until `stop` is set and everything is answered.
    pub fn run(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let wrong = reconnect_until_gone(|| {
            let ended = match message::method(self.index) {
                PublishMethod::Mqtt => self.over_mqtt(address, stop),
                _ => self.over_http(address, stop),
            };
            if !message::is_keyed(self.index) {
                self.counts.unanswered += self.in_flight.len() as u64;
                self.in_flight.clear();
            }
            ended
        });
        let named = wrong.map(|why| format!("publisher {}: {why}", self.index));
        self.violations.extend(named);
    }

    /// Adds at most `max` new messages to the messages in flight.
    fn draw(&mut self, max: u32) {
        for _ in 0..=self.random.below(max) {
            self.sent += 1;
            let number = message::number(self.index, self.sent);
            let message = Message::draw(number, self.size, &mut self.random);
            self.in_flight.push_back(message);
        }
    }

    fn rest(&mut self) {
        let pause = u64::from(self.random.below(REST_MS * 1000));
        std::thread::sleep(Duration::from_micros(pause));
    }

    fn answered(&mut self, position: Option<Position>) {
        if let Some(message) = self.in_flight.pop_front() {
            self.counts.answered += 1;
            self.answers.push(Answer { message, position });
        }
    }

    fn refused(&mut self) {
        self.counts.refused += u64::from(self.in_flight.pop_front().is_some());
    }

    fn over_http(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), End> {
        let mut link = Link::open(address, TIMEOUT)?;
        let (batch, keyed) = (
            message::method(self.index) == PublishMethod::Batch,
            message::is_keyed(self.index),
        );
        self.counts.retried += self.in_flight.len() as u64;
        while !self.in_flight.is_empty() || !stop.load(Relaxed) {
            if self.in_flight.is_empty() {
                // A publisher with keys repeats a refused request. So it has only one request in flight, since a second request would
                // overtake the repeated one.
                let several = if keyed { 1 } else { PIPELINE };
                self.draw(if batch { IN_FLIGHT.0 } else { several });
            }
            let text = if batch { self.batch() } else { self.posts() };
            link.send(text.as_bytes())?;
            while !self.in_flight.is_empty() {
                match parse::response(&link.held).map_err(End::violation)? {
                    Some(response) => {
                        let bytes = response.bytes;
                        self.response(&response, batch)?;
                        link.held.drain(..bytes);
                    }
                    None => link.read()?,
                }
            }
            self.rest();
        }
        Ok(())
    }

    fn posts(&self) -> String {
        let requests = self.in_flight.iter().map(|message| {
            let (name, data) = (message::name(message.topic), message.data());
            let key = if message::is_keyed(self.index) {
                format!("Idempotency-Key: \"{}\"\r\n", message.key(self.run))
            } else {
                String::new()
            };
            let retain = if message.is_retained() { "Crore-Retain: true\r\n" } else { "" };
            format!(
                "POST /pub/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nAccept: application/json\r\n{key}{retain}Content-Length: {}\r\n\r\n{data}",
                data.len()
            )
        });
        requests.collect()
    }

    fn batch(&self) -> String {
        let mut lines = String::new();
        for message in &self.in_flight {
            let key = message::is_keyed(self.index).then(|| message.key(self.run));
            message.line(key, &mut lines);
        }
        format!(
            "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{lines}",
            lines.len()
        )
    }

    fn response(&mut self, response: &parse::Response<'_>, batch: bool) -> Result<(), End> {
        let status = response.head.status;
        let body = String::from_utf8_lossy(response.body);
        let json: Value = serde_json::from_str(&body).unwrap_or_default();
        match status {
            200 if batch => {
                let failed: Vec<u64> = json["failed"]
                    .as_array()
                    .map(|failed| {
                        failed
                            .iter()
                            .filter_map(|one| one["line"].as_u64())
                            .collect()
                    })
                    .unwrap_or_default();
                self.counts.replayed += json["replayed"].as_u64().unwrap_or(0);
                for line in 1..=self.in_flight.len() as u64 {
                    if failed.contains(&line) {
                        self.refused();
                    } else {
                        self.answered(None);
                    }
                }
            }
            201 | 202 if !batch => {
                let position = json["last_message_id"].as_str().and_then(Position::parse);
                let position =
                    position.ok_or_else(|| End::violation(format!("no position in {body}")))?;
                self.counts.replayed += u64::from(response.head.replayed);
                self.answered(Some(position));
            }
            408 | 429 | 503 => {
                let requests = if batch { self.in_flight.len() } else { 1 };
                (0..requests).for_each(|_| self.refused());
            }
            _ => return Err(End::violation(format!("answered {status} {body}"))),
        }
        Ok(())
    }

    fn over_mqtt(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), End> {
        let mqtt_version = match message::is_mqtt_5(self.index) {
            true => Version::V5,
            false => Version::V311,
        };
        let args = MqttArgs {
            mqtt_version,
            qos: message::qos(self.index),
            ..MqttArgs::default()
        };
        let dialect = Dialect::new(&args, false);
        let mut link = Link::open(address, TIMEOUT)?;
        let mut out = Vec::new();
        dialect.connect(&client_id(0, 'p', self.index), &[], &mut out);
        link.send(&out)?;
        while !stop.load(Relaxed) {
            self.draw(IN_FLIGHT.1);
            out.clear();
            for (message, id) in self.in_flight.iter().zip(1..) {
                let (name, data) = (message::name(message.topic), message.data());
                let (id, retain) = (PacketId::new(id), message.is_retained());
                dialect.publish_head(&name, id, retain, data.len(), &mut out);
                out.extend_from_slice(data.as_bytes());
            }
            link.send(&out)?;
            out.clear();
            let mut unreleased = 0;
            // Messages of one QoS are acknowledged in order (MQTT 5 §4.6). A message of QoS 2 is in the log when its PUBREC comes.
            let mut expected = 1;
            while !self.in_flight.is_empty() {
                let Some((kind, id, failed)) = acknowledged(&mut link, dialect)? else {
                    continue;
                };
                if id.get() != expected {
                    return Err(End::violation(format!("acknowledged {id}, not {expected}")));
                }
                expected += 1;
                match failed {
                    true => self.refused(),
                    false => self.answered(None),
                }
                if kind == PacketType::PubRec && !failed {
                    dialect.acknowledge(PacketType::PubRel, id, &mut out);
                    unreleased += 1;
                }
            }
            link.send(&out)?;
            while unreleased > 0 {
                let ack = acknowledged(&mut link, dialect)?;
                unreleased -= u32::from(ack.is_some());
            }
            self.rest();
        }
        Ok(())
    }
}

/// Waits for a packet, and returns it if it is an acknowledgement: its kind, its packet id, and whether it reports a failure.
fn acknowledged(
    link: &mut Link,
    dialect: Dialect,
) -> Result<Option<(PacketType, PacketId, bool)>, End> {
    link.packet(dialect, |packet| match packet {
        Packet::Ack(kind, id, failed) => Some((kind, id, failed)),
        _ => None,
    })
}
