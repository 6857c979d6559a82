//! A publisher. Over HTTP it sends single requests, pipelined requests, batches, and operations on whole topics. Over a WebSocket it sends
//! a frame for each message, and only the publish credit limits it. On a new connection the publisher sends unanswered messages again: with
//! the same idempotency keys if it uses keys, otherwise as new messages.

mod answers;

use std::collections::{BTreeMap, VecDeque};

use crore_rng::Rng;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::receive::Partial;

use crate::coverage::Coverage;
use crate::plan::{Plan, PublisherAction};
use crate::truth::{KEYS, MessageSpec, Truth, key_name};

/// A request that waits for its answer.
#[derive(Clone, Debug)]
enum Request {
    /// A message, by number.
    One(u32),
    /// The messages of a batch, by number.
    Batch(Vec<u32>),
    /// The topic, and the index of this delete in `Topic::deletes`.
    Delete(usize, usize),
    /// The topic whose info is requested.
    Info(usize),
    Other,
}

/// Number of frames that a WebSocket publisher sends for each message of an action.
const FRAMES_PER_MESSAGE: u8 = 4;

/// The publisher.
#[derive(Default)]
pub struct Publisher {
    /// The topic to which the publisher publishes over a WebSocket; `None` if it publishes over HTTP.
    websocket_topic: Option<usize>,
    /// Whether the messages have idempotency keys.
    idempotent: bool,
    /// Whether the WebSocket upgrade was answered.
    upgraded: bool,
    /// The numbers of the messages sent on this connection, by frame.
    sent_frames: Vec<u32>,
    partial: Option<Box<Partial>>,
    /// The link of the publisher's connection.
    pub link: Option<u32>,
    /// Received bytes that are not parsed yet.
    bytes: Vec<u8>,
    /// Unanswered requests of this connection, the oldest first.
    pending: VecDeque<Request>,
    /// Unanswered requests of earlier connections.
    to_retry: Vec<Request>,
    /// Bytes to send.
    pub out: Vec<u8>,
    /// Whether the publisher closes its connection when `out` is sent.
    pub must_close: bool,
    /// The number of subscribers of each topic in its last info; `None` if the topic did not exist.
    pub subscribers: BTreeMap<usize, Option<u64>>,
}

impl Publisher {
    /// A publisher of this topic over a WebSocket.
    pub fn over_websocket(topic: usize) -> Self {
        Publisher {
            websocket_topic: Some(topic),
            ..Publisher::default()
        }
    }

    /// A publisher that sends idempotency keys.
    pub fn idempotent() -> Self {
        Publisher {
            idempotent: true,
            ..Publisher::default()
        }
    }

    /// Whether the publisher waits for answers.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Number of unanswered requests.
    pub fn pending_requests(&self) -> usize {
        self.pending.len()
    }

    /// Begins a connection.
    pub fn connect(&mut self, link: u32, truth: &Truth) {
        self.link = Some(link);
        (self.must_close, self.upgraded, self.partial) = (false, false, None);
        self.sent_frames.clear();
        if let Some(topic) = self.websocket_topic {
            let name = &truth.topics[topic].name;
            let text = format!(
                "GET /pub?topic={name} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
                 Sec-WebSocket-Protocol: ws+meta.nchan\r\n\r\n"
            );
            self.out.extend_from_slice(text.as_bytes());
        }
    }

    /// Updates the state after the connection has ended. Unanswered messages may be sent again.
    pub fn connection_ended(&mut self) {
        self.link = None;
        self.bytes.clear();
        self.out.clear();
        self.to_retry.extend(self.pending.drain(..));
    }

    /// Sends unanswered messages again. The server may have stored them already.
    pub fn retry(&mut self, truth: &mut Truth, rng: &mut Rng, coverage: &mut Coverage) {
        for request in std::mem::take(&mut self.to_retry) {
            let number_of_retry = |number: u32, truth: &mut Truth| match self.idempotent {
                // If the topic is not durable, a crash also removes the remembered answer to the key. Then the retry counts as a new
                // message.
                true if !truth.may_be_lost_in_crash(number) => number,
                _ => truth.add_message(truth.messages[number as usize].spec),
            };
            match request {
                Request::One(number) => {
                    let number = number_of_retry(number, truth);
                    coverage.retries += 1;
                    self.send_one(number, truth, rng);
                }
                Request::Batch(numbers) => {
                    let numbers = numbers.iter().map(|number| number_of_retry(*number, truth));
                    let numbers = numbers.collect();
                    coverage.retries += 1;
                    self.send_batch(numbers, truth);
                }
                Request::Delete(..) | Request::Info(_) | Request::Other => {}
            }
        }
    }

    /// Executes an action, with random topics and sizes.
    pub fn act(&mut self, action: PublisherAction, plan: &Plan, truth: &mut Truth, rng: &mut Rng) {
        let spec = |topic: usize, truth: &Truth, rng: &mut Rng| MessageSpec {
            topic,
            len: rng.range(4, plan.message_bytes),
            key: match truth.topics[topic].keeps_latest() {
                true => rng.below(usize::from(KEYS)) as u8,
                false => rng.pick(&[0, 0, 0, 1]),
            },
            ttl_s: match rng.chance(plan.ttl_percent) {
                true => Some(rng.pick(&[0, 1, 3, 20])),
                false => None,
            },
        };
        if let Some(topic) = self.websocket_topic {
            let count = match action {
                PublisherAction::Pipeline(count) | PublisherAction::Batch(count) => {
                    count * FRAMES_PER_MESSAGE
                }
                _ => 1,
            };
            for _ in 0..count {
                self.publish_one(spec(topic, truth, rng), truth, rng);
            }
            return;
        }
        let topic = rng.below(truth.topics.len());
        let name = truth.topics[topic].name.clone();
        match action {
            PublisherAction::Pipeline(count) => {
                for _ in 0..count {
                    let topic = if rng.chance(70) {
                        topic
                    } else {
                        rng.below(truth.topics.len())
                    };
                    self.publish_one(spec(topic, truth, rng), truth, rng);
                }
            }
            PublisherAction::Batch(count) => {
                let line = |_| {
                    let spec = spec(rng.below(truth.topics.len()), truth, rng);
                    truth.add_message(spec)
                };
                let numbers = (0..count).map(line).collect();
                self.send_batch(numbers, truth);
            }
            PublisherAction::Delete => {
                self.send(&format!("DELETE /pub?topic={name}"), "", b"");
                let (step, deletes) = (truth.step, &mut truth.topics[topic].deletes);
                deletes.push((step, None));
                self.pending
                    .push_back(Request::Delete(topic, deletes.len() - 1));
            }
            PublisherAction::Create => {
                self.send(&format!("PUT /pub?topic={name}"), "", b"");
                self.pending.push_back(Request::Other);
            }
            PublisherAction::Info => {
                self.request_info(topic, truth);
            }
        }
    }

    /// Requests the info of a topic.
    pub fn request_info(&mut self, topic: usize, truth: &Truth) {
        let name = &truth.topics[topic].name;
        self.send(&format!("GET /pub?topic={name}"), "", b"");
        self.subscribers.remove(&topic);
        self.pending.push_back(Request::Info(topic));
    }

    /// Publishes one message.
    pub fn publish_one(&mut self, mut spec: MessageSpec, truth: &mut Truth, rng: &mut Rng) {
        if let Some(topic) = self.websocket_topic {
            // A frame carries only the data.
            spec = MessageSpec {
                topic,
                key: 0,
                ttl_s: None,
                ..spec
            };
        }
        let number = truth.add_message(spec);
        self.send_one(number, truth, rng);
    }

    fn send_one(&mut self, number: u32, truth: &mut Truth, rng: &mut Rng) {
        let (spec, data) = (truth.messages[number as usize].spec, truth.data(number));
        self.pending.push_back(Request::One(number));
        truth.note(|| format!("{:?} publishes {number}, {spec:?}", self.link));
        if self.websocket_topic.is_some() {
            self.sent_frames.push(number);
            let opcode = rng.pick(&[Opcode::Text, Opcode::Binary]);
            frame::write_masked(&mut self.out, opcode, &data, [9, 8, 7, 6]);
            return;
        }
        let name = &truth.topics[spec.topic].name;
        // The number of the message selects the content type, so that a retry has the same one.
        let mut fields = String::from(
            [
                "",
                "Content-Type: text/plain\r\n",
                "Content-Type: application/octet-stream\r\n",
            ][number as usize % 3],
        );
        if let Some(key) = key_name(spec.key) {
            fields.push_str(&format!("Crore-Key: {key}\r\n"));
        }
        if let Some(ttl_s) = spec.ttl_s {
            fields.push_str(&format!("Crore-TTL: {ttl_s}\r\n"));
        }
        if self.idempotent {
            fields.push_str(&format!("Idempotency-Key: \"{number}\"\r\n"));
        }
        self.send(&format!("POST /pub?topic={name}"), &fields, &data);
    }

    fn send_batch(&mut self, numbers: Vec<u32>, truth: &mut Truth) {
        let mut body = String::new();
        for number in &numbers {
            let (spec, data) = (truth.messages[*number as usize].spec, truth.data(*number));
            let (name, data) = (
                &truth.topics[spec.topic].name,
                String::from_utf8_lossy(&data),
            );
            body.push_str(&format!("{{\"topic\":\"{name}\",\"data\":\"{data}\""));
            if let Some(key) = key_name(spec.key) {
                body.push_str(&format!(",\"key\":\"{key}\""));
            }
            if let Some(ttl_s) = spec.ttl_s {
                body.push_str(&format!(",\"ttl_s\":{ttl_s}"));
            }
            if self.idempotent {
                body.push_str(&format!(",\"idempotency_key\":\"{number}\""));
            }
            body.push_str("}\n");
        }
        self.send(
            "POST /pub",
            "Content-Type: application/x-ndjson\r\n",
            body.as_bytes(),
        );
        truth.note(|| format!("{:?} publishes a batch {numbers:?}", self.link));
        self.pending.push_back(Request::Batch(numbers));
    }

    fn send(&mut self, line: &str, fields: &str, body: &[u8]) {
        let len = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n{fields}Content-Length: {len}\r\n\r\n"
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body);
    }
}
