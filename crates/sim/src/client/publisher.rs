//! A publisher over HTTP (single requests, pipelined ones, batches, and what is done to topics as a
//! whole) or over a WebSocket, where nothing but credit holds it back. What was not answered when its connection ended is sent again.

use std::collections::VecDeque;

use crore_broker::position::{self, Since};

use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::receive::{self, Config, Event, Partial, Role};

use super::http::{self, Framing};
use crate::met::Met;
use crate::rng::Rng;
use crate::truth::{Truth, Wrong, shown};

/// A request that waits for its answer.
#[derive(Clone, Debug)]
enum Request {
    One(u32),
    Batch(Vec<u32>),
    /// A topic, and which of its deletes.
    Delete(usize, usize),
    Other,
}

/// What a publisher is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// So many messages, each with a request of its own, without waiting between them.
    Pipeline(u8),
    /// So many messages in one request.
    Batch(u8),
    /// The end of a topic.
    Delete,
    /// Its beginning.
    Create,
    /// How it stands.
    Info,
}

/// Frames that a WebSocket publisher may send for each message that it is told to publish.
const FRAMES_EACH: u8 = 4;

/// The publisher.
#[derive(Default)]
pub struct Publisher {
    /// Over a WebSocket: the topic.
    socket: Option<usize>,
    begun: bool,
    /// What its frames on this connection were, by number.
    frames: Vec<u32>,
    partial: Option<Box<Partial>>,
    /// Its connection's link.
    pub link: Option<u32>,
    bytes: Vec<u8>,
    pending: VecDeque<Request>,
    again: Vec<Request>,
    /// Bytes that it sends.
    pub out: Vec<u8>,
    /// It closes its connection after this.
    pub closes: bool,
}

impl Publisher {
    /// One that publishes to this topic over a WebSocket.
    pub fn over_socket(topic: usize) -> Self {
        Publisher {
            socket: Some(topic),
            ..Publisher::default()
        }
    }

    /// Whether it waits for answers.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// A new connection.
    pub fn connect(&mut self, link: u32, truth: &Truth) {
        self.link = Some(link);
        (self.closes, self.begun, self.partial) = (false, false, None);
        self.frames.clear();
        if let Some(topic) = self.socket {
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

    /// The connection is no more: what was not answered may be sent again.
    pub fn ended(&mut self) {
        self.link = None;
        self.bytes.clear();
        self.out.clear();
        self.again.extend(self.pending.drain(..));
    }

    /// Sends what had no answer once more, as new messages: the server may have taken the old ones.
    pub fn retry(&mut self, truth: &mut Truth, rng: &mut Rng, met: &mut Met) {
        for request in std::mem::take(&mut self.again) {
            let like = |number: &u32| {
                let message = &truth.messages[*number as usize];
                (message.topic, message.len)
            };
            match request {
                Request::One(number) => {
                    let (topic, len) = like(&number);
                    met.retries += 1;
                    self.one(topic, len, truth, rng);
                }
                Request::Batch(numbers) => {
                    let lines: Vec<_> = numbers.iter().map(like).collect();
                    met.retries += 1;
                    self.batch(&lines, truth);
                }
                Request::Delete(..) | Request::Other => {}
            }
        }
    }

    /// Does it, on a topic and with sizes by chance.
    pub fn act(&mut self, deed: Deed, bytes_max: usize, truth: &mut Truth, rng: &mut Rng) {
        if let Some(topic) = self.socket {
            let count = match deed {
                Deed::Pipeline(count) | Deed::Batch(count) => count * FRAMES_EACH,
                _ => 1,
            };
            for _ in 0..count {
                self.one(topic, rng.range(4, bytes_max), truth, rng);
            }
            return;
        }
        let topic = rng.below(truth.topics.len());
        let name = truth.topics[topic].name.clone();
        match deed {
            Deed::Pipeline(count) => {
                for _ in 0..count {
                    let topic = if rng.chance(70) {
                        topic
                    } else {
                        rng.below(truth.topics.len())
                    };
                    self.one(topic, rng.range(4, bytes_max), truth, rng);
                }
            }
            Deed::Batch(count) => {
                let line = |_| (rng.below(truth.topics.len()), rng.range(4, bytes_max));
                let lines: Vec<_> = (0..count).map(line).collect();
                self.batch(&lines, truth);
            }
            Deed::Delete => {
                self.send(&format!("DELETE /pub?topic={name}"), "", b"");
                let (step, deletes) = (truth.step, &mut truth.topics[topic].deletes);
                deletes.push((step, None));
                self.pending
                    .push_back(Request::Delete(topic, deletes.len() - 1));
            }
            Deed::Create => {
                self.send(&format!("PUT /pub?topic={name}"), "", b"");
                self.pending.push_back(Request::Other);
            }
            Deed::Info => {
                self.send(&format!("GET /pub?topic={name}"), "", b"");
                self.pending.push_back(Request::Other);
            }
        }
    }

    /// Publishes one message to this topic.
    pub fn one(&mut self, topic: usize, len: usize, truth: &mut Truth, rng: &mut Rng) {
        let topic = self.socket.unwrap_or(topic);
        let (number, data) = truth.write(topic, len);
        self.pending.push_back(Request::One(number));
        truth.note(|| format!("{:?} publishes {number} to {topic}", self.link));
        if self.socket.is_some() {
            self.frames.push(number);
            let opcode = rng.pick(&[Opcode::Text, Opcode::Binary]);
            frame::write_masked(&mut self.out, opcode, &data, [9, 8, 7, 6]);
            return;
        }
        let name = &truth.topics[topic].name;
        let kind = rng.pick(&[
            "",
            "Content-Type: text/plain\r\n",
            "Content-Type: application/octet-stream\r\n",
        ]);
        self.send(&format!("POST /pub?topic={name}"), kind, &data);
    }

    fn batch(&mut self, lines: &[(usize, usize)], truth: &mut Truth) {
        let (mut body, mut numbers) = (Vec::new(), Vec::new());
        for (topic, len) in lines {
            let (number, data) = truth.write(*topic, *len);
            let name = &truth.topics[*topic].name;
            body.extend_from_slice(format!("{{\"topic\":\"{name}\",\"data\":\"").as_bytes());
            body.extend_from_slice(&data);
            body.extend_from_slice(b"\"}\n");
            numbers.push(number);
        }
        self.send("POST /pub", "Content-Type: application/x-ndjson\r\n", &body);
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

    /// Reads the answers that came.
    pub fn read(&mut self, bytes: &[u8], truth: &mut Truth, met: &mut Met) -> Result<(), Wrong> {
        self.bytes.extend_from_slice(bytes);
        if self.begun {
            return self.read_frames(truth, met);
        }
        loop {
            let mut rest = self.bytes.clone();
            let Some(head) = http::take_head(&mut rest)? else {
                return Ok(());
            };
            let Framing::Length(len) = http::framing(&head)? else {
                return Err("an answer to a publisher has a length".into());
            };
            if rest.len() < len {
                return Ok(());
            }
            let body: Vec<u8> = rest.drain(..len).collect();
            self.bytes = rest;
            if self.socket.is_some() && head.status == 101 {
                self.begun = true;
                return self.read_frames(truth, met);
            }
            self.closes |= head.field("connection") == Some("close") || self.socket.is_some();
            if head.status == 408 || self.socket.is_some() {
                // Half a request, or none: it is sent again.
                return Ok(());
            }
            let request = self.pending.pop_front();
            let request =
                request.ok_or_else(|| format!("an answer to nothing: {}", head.status))?;
            self.answered(&request, head.status, &body, truth, met)?;
        }
    }

    /// Acknowledgements, in the order of the frames.
    fn read_frames(&mut self, truth: &mut Truth, met: &mut Met) -> Result<(), Wrong> {
        let config = Config {
            role: Role::Client,
            message_bytes: 1 << 16,
            deflate: false,
        };
        let mut partial = self.partial.take();
        let mut input = std::mem::take(&mut self.bytes);
        let mut at = 0;
        loop {
            let step = receive::next(&mut partial, &mut input[at..], &config)
                .map_err(|violation| format!("frames: {}", violation.reason()))?;
            at += step.consumed;
            match step.event {
                None => break,
                Some(Event::Ping(data)) => {
                    frame::write_masked(&mut self.out, Opcode::Pong, data, [1, 2, 3, 4]);
                }
                Some(Event::Text(text)) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    self.acknowledged(&text, truth, met)?;
                }
                Some(Event::Close { .. }) => self.closes = true,
                Some(other) => return Err(format!("a publisher got {other:?}")),
            }
        }
        self.partial = partial;
        Ok(())
    }

    fn acknowledged(&mut self, text: &str, truth: &mut Truth, met: &mut Met) -> Result<(), Wrong> {
        // A refusal overtakes what is under way to another shard: they are told apart by number.
        let frame = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("ack: "));
        let frame = frame.and_then(|digits| digits.parse::<usize>().ok());
        let number = frame.and_then(|frame| self.frames.get(frame).copied());
        let is = |request: &Request| matches!(request, Request::One(n) if Some(*n) == number);
        let place = self.pending.iter().position(is);
        let (Some(number), Some(place)) = (number, place) else {
            return Err(format!("an acknowledgement of nothing: {text:?}"));
        };
        self.pending.remove(place);
        let id = text.lines().find_map(|line| line.strip_prefix("id: "));
        truth.note(|| format!("{:?} is told of {number}: {text:?}", self.link));
        if let Some(id) = id {
            truth.learn(number, offset_of(id)?)?;
            truth.acknowledge(number);
            met.acknowledged += 1;
        } else if truth.budgets_are_wide {
            return Err(format!("message {number} was refused: {text:?}"));
        } else {
            truth.messages[number as usize].refused = true;
            met.refused += 1;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        request: &Request,
        status: u16,
        body: &[u8],
        truth: &mut Truth,
        met: &mut Met,
    ) -> Result<(), Wrong> {
        truth.note(|| {
            format!(
                "{:?} is answered {status} to {request:?} {}",
                self.link,
                shown(body)
            )
        });
        match (request, status) {
            (Request::One(number), 201 | 202) => {
                truth.learn(*number, offset_in(body)?)?;
                truth.acknowledge(*number);
                met.acknowledged += 1;
            }
            (Request::One(number), 429 | 503) if !truth.budgets_are_wide => {
                truth.messages[*number as usize].refused = true;
                met.refused += 1;
            }
            (Request::Batch(numbers), 200) => {
                let whole = format!("{{\"published\": {}, \"failed\": []}}\n", numbers.len());
                if body == whole.as_bytes() {
                    numbers.iter().for_each(|number| truth.acknowledge(*number));
                    met.acknowledged += numbers.len() as u64;
                } else if truth.budgets_are_wide {
                    return Err(format!("a batch failed: {}", shown(body)));
                } else {
                    met.refused += 1;
                }
            }
            (Request::Delete(topic, n), 200 | 404) => {
                truth.topics[*topic].deletes[*n].1 = Some(truth.step);
            }
            (Request::Other, 200 | 201 | 404) => {}
            // Refused with its connection, before its request was read.
            (Request::Batch(_) | Request::Delete(..), 429 | 503) if !truth.budgets_are_wide => {
                met.refused += 1;
            }
            (Request::Other, 429 | 503) if !truth.budgets_are_wide => met.refused += 1,
            _ => return Err(format!("{request:?} was answered {status}")),
        }
        Ok(())
    }
}

/// The offset in the answer to a publish.
fn offset_in(body: &[u8]) -> Result<u64, Wrong> {
    let text = String::from_utf8_lossy(body);
    let id = text
        .split_once("\"last_message_id\": \"")
        .and_then(|(_, rest)| rest.split_once('"'));
    let (id, _) = id.ok_or_else(|| format!("no position in {}", shown(body)))?;
    offset_of(id)
}

fn offset_of(id: &str) -> Result<u64, Wrong> {
    let since = position::parse(id.as_bytes(), 0, 1).ok();
    match since.as_deref() {
        Some([Since::At(position)]) => Ok(position.offset),
        _ => Err(format!("no position: {id}")),
    }
}
