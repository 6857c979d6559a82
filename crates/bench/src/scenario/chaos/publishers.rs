//! The publishers of `chaos`. One thread runs all of them. Each publisher has an HTTP connection to one of several addresses, and one
//! request at a time.
//!
//! Each topic belongs to one publisher, which publishes a message only after the one before is acknowledged. If the connection is cut or no
//! answer arrives, the publisher repeats the request with the same `Idempotency-Key` until the request is answered. A batch has a key for
//! each line. So it is known which messages were published.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::shared_state::{SharedState, write_payload};
use crate::client::parse::{self, Response};
use crate::client::position::Position;
use crate::measure::payload::Random;
use crate::sys::{self, DialOptions, Epoll, Interest};

/// The number of publishers.
const PUBLISHERS: usize = 50;
/// Timeout for an answer.
const TIMEOUT_NS: u64 = 8_000_000_000;
/// The maximum pause before a new connection.
const AWAY_NS: u64 = 300_000_000;
/// The maximum time to wait for events.
const TURN: Duration = Duration::from_millis(5);
/// The maximum number of orders that wait at one publisher. Further orders are dropped.
const QUEUE_MAX: usize = 50;
/// Messages of a batch.
const BATCH: u32 = 8;
/// A publisher reconnects after this many answers, so that every address gets publishers from time to time.
const ANSWERS_MAX: u32 = 20;
/// Two percentages: the share of batches among the orders for ordinary topics, and the share of orders for topics with large messages among
/// all orders.
const SHARES: (u32, u32) = (5, 15);
/// The maximum number of violations that are described in words.
const REASONS_MAX: usize = 10;

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// When the request was first sent.
    pub begun_ns: u64,
    /// When the answer arrived.
    pub answered_ns: u64,
    /// Whether the request was sent more than once.
    pub retried: bool,
}

/// The results of the publishers.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct PublishersResult {
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    requests: u64,
    retries: u64,
    replayed: u64,
    /// All answers, in the order of arrival.
    #[serde(skip)]
    pub answers: Vec<Answer>,
    /// Descriptions of the first answers that violate the protocol.
    #[serde(skip)]
    pub violations: Vec<String>,
}

/// An order to publish messages of one topic in one request.
#[derive(Clone, Copy)]
struct PublishOrder {
    topic: u32,
    count: u32,
}

#[derive(Default)]
struct Publisher {
    fd: Option<RawFd>,
    /// The number of the publisher's connects so far. Each connect uses the next address.
    dials: usize,
    /// The number of answers over this connection.
    answers: u32,
    orders: VecDeque<PublishOrder>,
    /// The request in flight, or the next one. Empty if there is none.
    request: Vec<u8>,
    topic: u32,
    first: u32,
    messages: u32,
    begun_ns: u64,
    retried: bool,
    sent: usize,
    answer: Vec<u8>,
    /// The deadline for the answer, or the time of the next connect.
    clock_ns: u64,
}

/// The thread's state.
pub struct Publishers<'a> {
    shared: &'a SharedState,
    addresses: &'a [SocketAddr],
    publishers: Vec<Publisher>,
    epoll: Epoll,
    random: Random,
    result: PublishersResult,
    closed: bool,
}

impl<'a> Publishers<'a> {
    /// The thread of the publishers, which connect to these addresses. Must be called on the thread that will run them.
    pub fn new(shared: &'a SharedState, addresses: &'a [SocketAddr]) -> Result<Publishers<'a>> {
        sys::unshare_descriptor_table()?;
        Ok(Publishers {
            shared,
            addresses,
            publishers: (0..PUBLISHERS).map(|_| Publisher::default()).collect(),
            epoll: Epoll::new(PUBLISHERS)?,
            random: Random::new(shared.seed ^ 0xfeed),
            result: PublishersResult::default(),
            closed: false,
        })
    }

    /// Makes `rate` requests a second while publishing is enabled, and publishes the last messages at the end.
    pub fn run(mut self, rate: f64) -> Result<PublishersResult> {
        let (mut began_ns, mut ordered) = (sys::now_ns(), 0);
        while !self.shared.stop.load(Relaxed) {
            let now = sys::now_ns();
            if self.shared.publishing.load(Relaxed) {
                let due = ((now - began_ns) as f64 / 1e9 * rate) as u64;
                (ordered..due).for_each(|_| self.order());
                ordered = due;
            } else {
                (began_ns, ordered) = (now, 0);
            }
            if self.shared.closing.load(Relaxed) && !self.closed {
                self.closed = true;
                for topic in 0..self.shared.topics.len() as u32 {
                    self.owner(topic)
                        .orders
                        .push_back(PublishOrder { topic, count: 1 });
                }
            }
            (0..PUBLISHERS).for_each(|index| self.advance(index, now));
            let count = self.epoll.wait(TURN)?;
            for index in 0..count {
                let ready = self.epoll.ready(index);
                let publisher = ready.key as usize;
                if ready.readable {
                    self.readable(publisher);
                }
                if ready.writable {
                    self.flush(publisher);
                }
            }
            let idle = self.publishers.iter().filter(|one| one.is_idle()).count();
            let idle = if self.shared.closing.load(Relaxed) && !self.closed {
                0
            } else {
                idle
            };
            self.shared.idle_publishers.store(idle as u32, Relaxed);
        }
        for index in 0..PUBLISHERS {
            self.hang_up(index);
        }
        Ok(self.result)
    }

    /// Whether no publisher has a request in flight or queued.
    pub fn all_idle(shared: &SharedState) -> bool {
        shared.idle_publishers.load(Relaxed) as usize == PUBLISHERS
    }

    fn owner(&mut self, topic: u32) -> &mut Publisher {
        &mut self.publishers[topic as usize % PUBLISHERS]
    }

    fn order(&mut self) {
        let ordinary = self.shared.ordinary();
        let large = self.shared.topics.len() as u32 - ordinary;
        let drawn = self.random.below(100);
        let order = if drawn < SHARES.1 {
            PublishOrder {
                topic: ordinary + self.random.below(large),
                count: 1,
            }
        } else {
            // Every second order is for one of a few topics, so that some topics are busy.
            let among = if drawn.is_multiple_of(2) {
                ordinary
            } else {
                ordinary.div_ceil(20)
            };
            let count = if self.random.below(100) < SHARES.0 {
                BATCH
            } else {
                1
            };
            PublishOrder {
                topic: self.random.below(among),
                count,
            }
        };
        let owner = self.owner(order.topic);
        if owner.orders.len() < QUEUE_MAX {
            owner.orders.push_back(order);
        }
    }

    /// Does what is due at a publisher: composes the next request, connects, or stops waiting for an answer.
    fn advance(&mut self, index: usize, now: u64) {
        let publisher = &mut self.publishers[index];
        if publisher.request.is_empty() {
            let Some(order) = publisher.orders.pop_front() else {
                return;
            };
            self.compose(index, order);
        }
        let publisher = &self.publishers[index];
        match publisher.fd {
            Some(_) if now >= publisher.clock_ns => self.retry(index),
            None if now >= publisher.clock_ns => self.dial(index),
            _ => {}
        }
    }

    fn compose(&mut self, index: usize, order: PublishOrder) {
        let PublishOrder { topic, count } = order;
        let name = &self.shared.topics[topic as usize].name;
        let first = self.shared.begun[topic as usize].fetch_add(count, Relaxed) + 1;
        let key = |number: u32| format!("{:x}-{topic}-{number}", self.shared.seed);
        let mut body = String::new();
        let fields = if count == 1 {
            let size = self.shared.size(topic, &mut self.random);
            write_payload(topic, first, size, &mut body);
            format!(
                "/{name} HTTP/1.1\r\nContent-Type: text/plain\r\nAccept: application/json\r\nIdempotency-Key: \"{}\"",
                key(first)
            )
        } else {
            for number in first..first + count {
                let size = self.shared.size(topic, &mut self.random);
                let key = key(number);
                body +=
                    &format!("{{\"topic\":\"{name}\",\"idempotency_key\":\"{key}\",\"data\":\"");
                write_payload(topic, number, size, &mut body);
                body += "\"}\n";
            }
            " HTTP/1.1\r\nContent-Type: application/x-ndjson".to_string()
        };
        let length = body.len();
        let text = format!(
            "POST /pub{fields}\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let publisher = &mut self.publishers[index];
        publisher.request = text.into_bytes();
        (publisher.topic, publisher.first, publisher.messages) = (topic, first, count);
        (publisher.begun_ns, publisher.retried) = (sys::now_ns(), false);
        self.begin(index);
    }

    /// Sends the request from its first byte, if there is a connection.
    fn begin(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        publisher.sent = 0;
        publisher.answer.clear();
        if publisher.fd.is_some() {
            self.result.requests += 1;
            publisher.clock_ns = sys::now_ns() + TIMEOUT_NS;
            self.flush(index);
        }
    }

    fn dial(&mut self, index: usize) {
        let turn = index + self.publishers[index].dials;
        self.publishers[index].dials += 1;
        let dial = DialOptions {
            remote: self.addresses[turn % self.addresses.len()],
            local: Some(([127, 0, 2, 1], 0).into()),
            receive_buffer: None,
        };
        let Ok((fd, _)) = sys::dial(&dial) else {
            self.publishers[index].clock_ns = sys::now_ns() + AWAY_NS;
            return;
        };
        self.publishers[index].fd = Some(fd);
        self.publishers[index].answers = 0;
        match self
            .epoll
            .add(fd, Interest::IN | Interest::OUT, index as u64)
        {
            Ok(()) => self.begin(index),
            Err(_) => self.retry(index),
        }
    }

    fn flush(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        let Some(fd) = publisher.fd else { return };
        while publisher.sent < publisher.request.len() {
            match sys::send(fd, &publisher.request[publisher.sent..]) {
                Ok(0) => break,
                Ok(count) => publisher.sent += count,
                // The connect is still in progress. Epoll reports when it is done.
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => break,
                Err(_) => return self.retry(index),
            }
        }
        let interest = sys::reading(publisher.sent < publisher.request.len());
        if self.epoll.modify(fd, interest, index as u64).is_err() {
            self.retry(index);
        }
    }

    fn hang_up(&mut self, index: usize) {
        if let Some(fd) = self.publishers[index].fd.take() {
            sys::reset(fd);
        }
    }

    /// Closes the connection. The request is repeated over another connection, whether or not the server has read it.
    fn retry(&mut self, index: usize) {
        self.hang_up(index);
        let publisher = &mut self.publishers[index];
        let again = !publisher.request.is_empty();
        publisher.retried |= again;
        self.result.retries += u64::from(again);
        publisher.answer.clear();
        publisher.clock_ns = sys::now_ns() + self.random.draw() % AWAY_NS;
    }

    fn readable(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        let Some(fd) = publisher.fd else { return };
        let mut bytes = [0; 4096];
        match sys::receive(fd, &mut bytes) {
            Ok(None) => return,
            Ok(Some(0)) | Err(_) => return self.retry(index),
            Ok(Some(count)) => publisher.answer.extend_from_slice(&bytes[..count]),
        }
        let Response { head, body, .. } = match parse::response(&publisher.answer) {
            Ok(Some(response)) => response,
            Ok(None) => return,
            Err(error) => return self.violation(index, error.to_string()),
        };
        let (status, close, replays) = (head.status, head.close, head.replayed);
        let lines: Value = serde_json::from_slice(body).unwrap_or_default();
        let refused = lines["failed"]
            .as_array()
            .is_some_and(|failed| !failed.is_empty());
        match status {
            200..=202 if !refused => {
                self.result.replayed +=
                    u64::from(replays) + lines["replayed"].as_u64().unwrap_or(0);
                self.result.acknowledged += u64::from(publisher.messages);
                self.result.answers.push(Answer {
                    begun_ns: publisher.begun_ns,
                    answered_ns: sys::now_ns(),
                    retried: publisher.retried,
                });
                let position = lines["last_message_id"].as_str().and_then(Position::parse);
                publisher.request.clear();
                publisher.answer.clear();
                if let Some(position) = position {
                    self.check_position(index, position);
                }
                let publisher = &mut self.publishers[index];
                publisher.answers += 1;
                if close || publisher.answers >= ANSWERS_MAX {
                    publisher.clock_ns = 0;
                    self.hang_up(index);
                }
            }
            408 | 429 | 503 => self.retry(index),
            _ => {
                let text = String::from_utf8_lossy(body).into_owned();
                self.violation(index, format!("publish: {status} {text}"));
            }
        }
    }

    /// Checks the position of a message in the answer to its publish.
    fn check_position(&mut self, index: usize, position: Position) {
        let Publisher { topic, first, .. } = self.publishers[index];
        if let Err(other) = self.shared.check_position(topic, first, position) {
            let name = &self.shared.topics[topic as usize].name;
            let what = format!("{name}, {first}: answered {position:?}, stood at {other:?}");
            self.violation(index, what);
        }
    }

    /// Records an answer that violates the protocol. The messages of the request count as published, so they count as lost if no subscriber
    /// receives them.
    fn violation(&mut self, index: usize, reason: String) {
        if self.result.violations.len() < REASONS_MAX {
            self.result.violations.push(reason);
        }
        self.publishers[index].request.clear();
        self.retry(index);
    }
}

impl Publisher {
    fn is_idle(&self) -> bool {
        self.request.is_empty() && self.orders.is_empty()
    }
}
