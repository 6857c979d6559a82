//! A publisher of `crash`: sends some messages, waits for their answers, and records the answers. Its state outlives its connections.
//!
//! A publisher with idempotency keys first repeats the messages that got no answer, with the same keys, and then sends others. A publisher
//! without keys never sends a message twice. So no message may be in the log twice.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crore_wire::mqtt::{PacketId, PacketType};
use serde_json::Value;

use super::message::{self, Message, PublishMethod};
use crate::client::link::{Link, LinkError, connect_in_turn, reconnect_until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, Version, client_id};
use crate::client::parse;
use crate::client::position::Position;
use crate::measure::payload::Random;

/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of messages in a batch.
const BATCH_MESSAGES_MAX: u32 = 32;
/// The maximum number of MQTT messages in flight.
const MQTT_IN_FLIGHT_MAX: u32 = 16;
/// The maximum number of requests that a publisher without keys sends before it reads the answers.
const PIPELINED_MAX: u32 = 4;
/// The maximum pause after the answers, in milliseconds. The pauses leave the server about half of the processor time.
const PAUSE_MS_MAX: u32 = 30;
/// In a cluster a publish without an answer takes effect within this time or never.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a publisher that waits polls whether it must stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How many messages each of these publishers has sent.
pub fn sent_counts(publishers: &[Publisher]) -> Vec<u32> {
    publishers.iter().map(|publisher| publisher.sent).collect()
}

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
    /// Messages that the server refused for now (408, 429 or 503).
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
    /// The maximum pause after the answers, in milliseconds.
    pub pause_ms_max: u32,
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
            pause_ms_max: PAUSE_MS_MAX,
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
        let violation = reconnect_until_gone(|| self.run_connection(address, stop));
        self.record_violation(violation);
    }

    /// Publishes at the nodes of a cluster in turn, until `stop` is set and everything is answered. A publisher without keys waits until the
    /// messages without an answer can no longer take effect, since a later message may overtake them at the other node.
    pub fn run_in_cluster(&mut self, nodes: &[SocketAddr], stop: &AtomicBool) {
        let violation = connect_in_turn(nodes, stop, |node| {
            let end = self.run_connection(node, stop);
            if end.is_err() && !message::is_keyed(self.index) {
                let start = Instant::now();
                while start.elapsed() < OUTCOME_TIMEOUT && !stop.load(Relaxed) {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            end
        });
        self.record_violation(violation);
    }

    fn run_connection(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), LinkError> {
        let result = match message::publish_method(self.index) {
            PublishMethod::Mqtt => self.run_mqtt(address, stop),
            _ => self.run_http(address, stop),
        };
        if !message::is_keyed(self.index) {
            self.counts.unanswered += self.in_flight.len() as u64;
            self.in_flight.clear();
        }
        result
    }

    fn record_violation(&mut self, violation: Option<String>) {
        let described = violation.map(|reason| format!("publisher {}: {reason}", self.index));
        self.violations.extend(described);
    }

    /// Adds from 1 to `max` new messages to the messages in flight.
    fn draw_messages(&mut self, max: u32) {
        for _ in 0..=self.random.below(max) {
            self.sent += 1;
            let number = message::number(self.index, self.sent);
            let message = Message::random(number, self.size, &mut self.random);
            self.in_flight.push_back(message);
        }
    }

    fn pause(&mut self) {
        let pause = u64::from(self.random.below(self.pause_ms_max * 1000));
        std::thread::sleep(Duration::from_micros(pause));
    }

    fn record_answer(&mut self, position: Option<Position>) {
        if let Some(message) = self.in_flight.pop_front() {
            self.counts.answered += 1;
            self.answers.push(Answer { message, position });
        }
    }

    fn record_refusal(&mut self) {
        self.counts.refused += u64::from(self.in_flight.pop_front().is_some());
    }

    fn run_http(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), LinkError> {
        let mut link = Link::open(address, TIMEOUT)?;
        let (is_batch, is_keyed) = (
            message::publish_method(self.index) == PublishMethod::Batch,
            message::is_keyed(self.index),
        );
        self.counts.retried += self.in_flight.len() as u64;
        while !self.in_flight.is_empty() || !stop.load(Relaxed) {
            if self.in_flight.is_empty() {
                // A publisher with keys has only one request in flight: if it must repeat a request, a second one would overtake it.
                let pipelined_max = if is_keyed { 1 } else { PIPELINED_MAX };
                self.draw_messages(if is_batch {
                    BATCH_MESSAGES_MAX
                } else {
                    pipelined_max
                });
            }
            let requests = if is_batch {
                self.batch_request()
            } else {
                self.single_requests()
            };
            link.send(requests.as_bytes())?;
            while !self.in_flight.is_empty() {
                match parse::response(&link.buffer).map_err(LinkError::violation)? {
                    Some(response) => {
                        let bytes = response.bytes;
                        self.handle_response(&response, is_batch)?;
                        link.buffer.drain(..bytes);
                    }
                    None => link.read()?,
                }
            }
            self.pause();
        }
        Ok(())
    }

    fn single_requests(&self) -> String {
        let requests = self.in_flight.iter().map(|message| {
            let (name, payload) = (message::topic_name(message.topic), message.payload());
            let key = if message::is_keyed(self.index) {
                format!("Idempotency-Key: \"{}\"\r\n", message.idempotency_key(self.run))
            } else {
                String::new()
            };
            let retain = if message.is_retained() { "Crore-Retain: true\r\n" } else { "" };
            format!(
                "POST /pub/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nAccept: application/json\r\n{key}{retain}Content-Length: {}\r\n\r\n{payload}",
                payload.len()
            )
        });
        requests.collect()
    }

    fn batch_request(&self) -> String {
        let mut lines = String::new();
        for message in &self.in_flight {
            let key = message::is_keyed(self.index).then(|| message.idempotency_key(self.run));
            message.write_batch_line(key, &mut lines);
        }
        format!(
            "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{lines}",
            lines.len()
        )
    }

    fn handle_response(
        &mut self,
        response: &parse::Response<'_>,
        is_batch: bool,
    ) -> Result<(), LinkError> {
        let status = response.head.status;
        let body = String::from_utf8_lossy(response.body);
        let json: Value = serde_json::from_str(&body).unwrap_or_default();
        match status {
            200 if is_batch => {
                let failed_lines: Vec<u64> = json["failed"]
                    .as_array()
                    .map(|failed_lines| {
                        failed_lines
                            .iter()
                            .filter_map(|entry| entry["line"].as_u64())
                            .collect()
                    })
                    .unwrap_or_default();
                self.counts.replayed += json["replayed"].as_u64().unwrap_or(0);
                for line in 1..=self.in_flight.len() as u64 {
                    if failed_lines.contains(&line) {
                        self.record_refusal();
                    } else {
                        self.record_answer(None);
                    }
                }
            }
            201 | 202 if !is_batch => {
                let position = json["last_message_id"].as_str().and_then(Position::parse);
                let position = position
                    .ok_or_else(|| LinkError::violation(format!("no position in {body}")))?;
                self.counts.replayed += u64::from(response.head.replayed);
                self.record_answer(Some(position));
            }
            408 | 429 | 503 => {
                let requests = if is_batch { self.in_flight.len() } else { 1 };
                (0..requests).for_each(|_| self.record_refusal());
            }
            _ => return Err(LinkError::violation(format!("answered {status} {body}"))),
        }
        Ok(())
    }

    fn run_mqtt(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), LinkError> {
        let mqtt_version = match message::is_mqtt_5(self.index) {
            true => Version::V5,
            false => Version::V311,
        };
        let args = MqttArgs {
            mqtt_version,
            qos: message::qos_of(self.index),
            ..MqttArgs::default()
        };
        let dialect = Dialect::new(&args, false);
        let mut link = Link::open(address, TIMEOUT)?;
        let mut out = Vec::new();
        dialect.write_connect(&client_id(0, 'p', self.index), &[], &mut out);
        link.send(&out)?;
        while !stop.load(Relaxed) {
            self.draw_messages(MQTT_IN_FLIGHT_MAX);
            out.clear();
            for (message, id) in self.in_flight.iter().zip(1..) {
                let (name, payload) = (message::topic_name(message.topic), message.payload());
                let (id, retain) = (PacketId::new(id), message.is_retained());
                dialect.write_publish_head(&name, id, retain, payload.len(), &mut out);
                out.extend_from_slice(payload.as_bytes());
            }
            link.send(&out)?;
            out.clear();
            let mut unreleased_count = 0;
            // Messages of one QoS are acknowledged in order (MQTT 5 §4.6). A message of QoS 2 is in the log when its PUBREC comes.
            let mut expected_id = 1;
            while !self.in_flight.is_empty() {
                let Some((kind, id, is_failed)) = wait_for_acknowledgement(&mut link, dialect)?
                else {
                    continue;
                };
                if id.get() != expected_id {
                    return Err(LinkError::violation(format!(
                        "acknowledged {id}, not {expected_id}"
                    )));
                }
                expected_id += 1;
                match is_failed {
                    true => self.record_refusal(),
                    false => self.record_answer(None),
                }
                if kind == PacketType::PubRec && !is_failed {
                    dialect.write_acknowledgement(PacketType::PubRel, id, &mut out);
                    unreleased_count += 1;
                }
            }
            link.send(&out)?;
            while unreleased_count > 0 {
                let ack = wait_for_acknowledgement(&mut link, dialect)?;
                unreleased_count -= u32::from(ack.is_some());
            }
            self.pause();
        }
        Ok(())
    }
}

/// Waits for a packet, and returns it if it is an acknowledgement: its kind, its packet id, and whether it reports a failure.
fn wait_for_acknowledgement(
    link: &mut Link,
    dialect: Dialect,
) -> Result<Option<(PacketType, PacketId, bool)>, LinkError> {
    link.read_packet(dialect, |packet| match packet {
        Packet::Ack(kind, id, is_failed) => Some((kind, id, is_failed)),
        _ => None,
    })
}
