//! A publisher: sends some messages, waits for their answers, and notes each. Its state outlives its connections.
//!
//! One with keys sends messages without an answer again, with the same keys and before anything else. One without keys
//! never sends a message twice. So each message of the server's log was sent once, or has a key.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crore_wire::mqtt::PacketId;
use serde_json::Value;

use super::message::{self, Message, Way};
use crate::client::link::{End, Link, until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, Version, client_id};
use crate::client::parse;
use crate::client::place::Place;
use crate::measure::payload::Random;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Messages of a batch, and MQTT messages without an acknowledgement.
const FLIGHT: (u32, u32) = (32, 16);
/// Requests that a publisher without keys sends before it reads the answers.
const PIPELINE: u32 = 4;
/// Longest rest after the answers, in milliseconds: so slow that the tool leaves the server half of the machine.
const REST_MS: u32 = 30;

/// The counts of publishers.
#[derive(Clone, Copy, Debug, Default, derive_more::AddAssign, serde::Serialize)]
pub struct Counts {
    /// Messages of which the server said that they are published.
    pub answered: u64,
    /// Messages whose answer never came, sent by publishers without keys.
    pub unanswered: u64,
    /// Messages that were sent again with their key.
    pub retried: u64,
    /// Retries that the server recognised.
    pub replayed: u64,
    /// Messages that the server refused for now.
    pub refused: u64,
}

/// A publish that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The message.
    pub message: Message,
    /// Its position, where the answer has one.
    pub place: Option<Place>,
}

/// A publisher.
pub struct Publisher {
    index: u32,
    run: u64,
    size: u32,
    random: Random,
    /// How many messages it has begun to publish.
    pub begun: u32,
    /// Messages that were sent and have no answer yet.
    flight: VecDeque<Message>,
    /// Answers that nobody has judged yet.
    pub answers: Vec<Answer>,
    /// Its counts.
    pub counts: Counts,
    /// Faults of the protocol.
    pub wrong: Vec<String>,
}

impl Publisher {
    /// Publisher `index` of the run with this seed, with messages of about `size` bytes.
    pub fn new(index: u32, run: u64, size: u32) -> Publisher {
        Publisher {
            index,
            run,
            size,
            random: Random::new(run ^ u64::from(index + 1) << 32),
            begun: 0,
            flight: VecDeque::new(),
            answers: Vec::new(),
            counts: Counts::default(),
            wrong: Vec::new(),
        }
    }

    /// Publishes until the server is gone, or until it is told to stop and has all answers.
    pub fn play(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let wrong = until_gone(|| {
            let ended = match message::way(self.index) {
                Way::Mqtt => self.over_mqtt(address, stop),
                _ => self.over_http(address, stop),
            };
            if !message::is_keyed(self.index) {
                self.counts.unanswered += self.flight.len() as u64;
                self.flight.clear();
            }
            ended
        });
        let named = wrong.map(|why| format!("publisher {}: {why}", self.index));
        self.wrong.extend(named);
    }

    /// Fills the flight with as many new messages at most.
    fn draw(&mut self, most: u32) {
        for _ in 0..=self.random.below(most) {
            self.begun += 1;
            let number = message::number(self.index, self.begun);
            let message = Message::draw(number, self.size, &mut self.random);
            self.flight.push_back(message);
        }
    }

    fn rest(&mut self) {
        let pause = u64::from(self.random.below(REST_MS * 1000));
        std::thread::sleep(Duration::from_micros(pause));
    }

    fn answered(&mut self, place: Option<Place>) {
        if let Some(message) = self.flight.pop_front() {
            self.counts.answered += 1;
            self.answers.push(Answer { message, place });
        }
    }

    fn refused(&mut self) {
        self.counts.refused += u64::from(self.flight.pop_front().is_some());
    }

    fn over_http(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), End> {
        let mut link = Link::open(address, PATIENCE)?;
        let (batch, keyed) = (
            message::way(self.index) == Way::Batch,
            message::is_keyed(self.index),
        );
        self.counts.retried += self.flight.len() as u64;
        while !self.flight.is_empty() || !stop.load(Relaxed) {
            if self.flight.is_empty() {
                // A request behind one that is refused would overtake it.
                let several = if keyed { 1 } else { PIPELINE };
                self.draw(if batch { FLIGHT.0 } else { several });
            }
            let text = if batch { self.batch() } else { self.posts() };
            link.send(text.as_bytes())?;
            while !self.flight.is_empty() {
                match parse::response(&link.held).map_err(End::wrong)? {
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
        let each = self.flight.iter().map(|message| {
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
        each.collect()
    }

    fn batch(&self) -> String {
        let mut lines = String::new();
        for message in &self.flight {
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
                for line in 1..=self.flight.len() as u64 {
                    if failed.contains(&line) {
                        self.refused();
                    } else {
                        self.answered(None);
                    }
                }
            }
            201 | 202 if !batch => {
                let place = json["last_message_id"].as_str().and_then(Place::read);
                let place = place.ok_or_else(|| End::wrong(format!("no position in {body}")))?;
                self.counts.replayed += u64::from(response.head.replayed);
                self.answered(Some(place));
            }
            408 | 429 | 503 => {
                let all = if batch { self.flight.len() } else { 1 };
                (0..all).for_each(|_| self.refused());
            }
            _ => return Err(End::wrong(format!("answered {status} {body}"))),
        }
        Ok(())
    }

    fn over_mqtt(&mut self, address: SocketAddr, stop: &AtomicBool) -> Result<(), End> {
        let mqtt_version = if (self.index / 4).is_multiple_of(2) {
            Version::V5
        } else {
            Version::V311
        };
        let args = MqttArgs {
            mqtt_version,
            qos: 1,
            ..MqttArgs::default()
        };
        let dialect = Dialect::new(&args, false);
        let mut link = Link::open(address, PATIENCE)?;
        let mut out = Vec::new();
        dialect.greet(&client_id(0, 'p', self.index), &[], &mut out);
        link.send(&out)?;
        while !stop.load(Relaxed) {
            self.draw(FLIGHT.1);
            out.clear();
            for (message, id) in self.flight.iter().zip(1..) {
                let (name, data) = (message::name(message.topic), message.data());
                let (id, retain) = (PacketId::new(id), message.is_retained());
                dialect.publish_head(&name, id, retain, data.len(), &mut out);
                out.extend_from_slice(data.as_bytes());
            }
            link.send(&out)?;
            // Acknowledgements of QoS 1 come in the order of the messages (MQTT 5 §4.6).
            let mut expected = 1;
            while !self.flight.is_empty() {
                let acknowledged = link.packet(dialect, |packet| match packet {
                    Packet::Ack(_, id, failed) => Some((id, failed)),
                    _ => None,
                })?;
                let Some((id, failed)) = acknowledged else {
                    continue;
                };
                if id.get() != expected {
                    return Err(End::wrong(format!("acknowledged {id}, not {expected}")));
                }
                expected += 1;
                match failed {
                    true => self.refused(),
                    false => self.answered(None),
                }
            }
            self.rest();
        }
        Ok(())
    }
}
