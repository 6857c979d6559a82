//! The publishers of `chaos`. One thread runs all of them. Each publisher has an HTTP connection to one of several addresses, and one
//! request at a time.
//!
//! Each topic belongs to one publisher. The publisher publishes a message only after the previous one is acknowledged. If the connection is cut or no
//! answer arrives, the publisher repeats the request with the same `Idempotency-Key` until it gets an answer. A batch has a key for each line. So the run
//! knows which messages were published.

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
const RECONNECT_PAUSE_MAX_NS: u64 = 300_000_000;
/// The maximum time to wait for events.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// The maximum number of orders in the queue of one publisher. Further orders are dropped.
const QUEUED_ORDERS_MAX: usize = 50;
/// Messages of a batch.
const BATCH_MESSAGES: u32 = 8;
/// A publisher reconnects after this many answers, so that every address gets publishers from time to time.
const ANSWERS_MAX: u32 = 20;
/// The percentage of orders for topics with large messages.
const LARGE_PERCENT: u32 = 15;
/// The percentage of batches among the other orders.
const BATCH_PERCENT: u32 = 5;
/// The maximum number of described violations.
const VIOLATIONS_MAX: usize = 10;

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// When the request was first sent.
    pub start_ns: u64,
    /// When the answer arrived.
    pub answered_ns: u64,
    /// Whether the request was sent more than once.
    pub was_retried: bool,
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
    connect_count: usize,
    /// The number of answers over this connection.
    answers: u32,
    orders: VecDeque<PublishOrder>,
    /// The request in flight, or the next one. Empty if there is none.
    request: Vec<u8>,
    topic: u32,
    first_number: u32,
    message_count: u32,
    start_ns: u64,
    was_retried: bool,
    sent_bytes: usize,
    answer: Vec<u8>,
    /// With a connection: the deadline for the answer. Without one: the time of the next connect.
    deadline_ns: u64,
}

/// All publishers, which run on one thread.
pub struct Publishers<'a> {
    shared: &'a SharedState,
    addresses: &'a [SocketAddr],
    publishers: Vec<Publisher>,
    epoll: Epoll,
    random: Random,
    result: PublishersResult,
    has_ordered_last: bool,
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
            has_ordered_last: false,
        })
    }

    /// Makes `rate` requests a second while publishing is enabled, and publishes the last messages at the end.
    pub fn run(mut self, rate: f64) -> Result<PublishersResult> {
        let (mut start_ns, mut ordered_count) = (sys::now_ns(), 0);
        while !self.shared.must_stop.load(Relaxed) {
            let now = sys::now_ns();
            if self.shared.may_publish.load(Relaxed) {
                let due = ((now - start_ns) as f64 / 1e9 * rate) as u64;
                (ordered_count..due).for_each(|_| self.order_publish());
                ordered_count = due;
            } else {
                (start_ns, ordered_count) = (now, 0);
            }
            if self.shared.must_publish_last.load(Relaxed) && !self.has_ordered_last {
                self.has_ordered_last = true;
                for topic in 0..self.shared.topics.len() as u32 {
                    self.publisher_of(topic)
                        .orders
                        .push_back(PublishOrder { topic, count: 1 });
                }
            }
            (0..PUBLISHERS).for_each(|index| self.advance(index, now));
            let count = self.epoll.wait(WAIT_MAX)?;
            for index in 0..count {
                let ready = self.epoll.ready(index);
                let publisher = ready.key as usize;
                if ready.readable {
                    self.read(publisher);
                }
                if ready.writable {
                    self.flush(publisher);
                }
            }
            let idle_count = self
                .publishers
                .iter()
                .filter(|publisher| publisher.is_idle())
                .count();
            let idle_count =
                if self.shared.must_publish_last.load(Relaxed) && !self.has_ordered_last {
                    0
                } else {
                    idle_count
                };
            self.shared
                .idle_publishers
                .store(idle_count as u32, Relaxed);
        }
        for index in 0..PUBLISHERS {
            self.reset_connection(index);
        }
        Ok(self.result)
    }

    /// Whether no publisher has a request in flight or queued.
    pub fn are_all_idle(shared: &SharedState) -> bool {
        shared.idle_publishers.load(Relaxed) as usize == PUBLISHERS
    }

    fn publisher_of(&mut self, topic: u32) -> &mut Publisher {
        &mut self.publishers[topic as usize % PUBLISHERS]
    }

    fn order_publish(&mut self) {
        let ordinary = self.shared.ordinary_topic_count();
        let large = self.shared.topics.len() as u32 - ordinary;
        let percentage = self.random.below(100);
        let order = if percentage < LARGE_PERCENT {
            PublishOrder {
                topic: ordinary + self.random.below(large),
                count: 1,
            }
        } else {
            // Every second order is for one of a few topics, so that some topics are busy.
            let topic_count = if percentage.is_multiple_of(2) {
                ordinary
            } else {
                ordinary.div_ceil(20)
            };
            let count = if self.random.below(100) < BATCH_PERCENT {
                BATCH_MESSAGES
            } else {
                1
            };
            PublishOrder {
                topic: self.random.below(topic_count),
                count,
            }
        };
        let publisher = self.publisher_of(order.topic);
        if publisher.orders.len() < QUEUED_ORDERS_MAX {
            publisher.orders.push_back(order);
        }
    }

    /// Continues a publisher: composes its next request, connects, or repeats a request whose answer has not come in time.
    fn advance(&mut self, index: usize, now: u64) {
        let publisher = &mut self.publishers[index];
        if publisher.request.is_empty() {
            let Some(order) = publisher.orders.pop_front() else {
                return;
            };
            self.compose_request(index, order);
        }
        let publisher = &self.publishers[index];
        match publisher.fd {
            Some(_) if now >= publisher.deadline_ns => self.retry(index),
            None if now >= publisher.deadline_ns => self.start_connect(index),
            _ => {}
        }
    }

    fn compose_request(&mut self, index: usize, order: PublishOrder) {
        let PublishOrder { topic, count } = order;
        let name = &self.shared.topics[topic as usize].name;
        let first = self.shared.begun_counts[topic as usize].fetch_add(count, Relaxed) + 1;
        let key = |number: u32| format!("{:x}-{topic}-{number}", self.shared.seed);
        let mut body = String::new();
        let fields = if count == 1 {
            let size = self.shared.random_size(topic, &mut self.random);
            write_payload(topic, first, size, &mut body);
            format!(
                "/{name} HTTP/1.1\r\nContent-Type: text/plain\r\nAccept: application/json\r\nIdempotency-Key: \"{}\"",
                key(first)
            )
        } else {
            for number in first..first + count {
                let size = self.shared.random_size(topic, &mut self.random);
                let key = key(number);
                body +=
                    &format!("{{\"topic\":\"{name}\",\"idempotency_key\":\"{key}\",\"data\":\"");
                write_payload(topic, number, size, &mut body);
                body += "\"}\n";
            }
            " HTTP/1.1\r\nContent-Type: application/x-ndjson".to_string()
        };
        let length = body.len();
        let request = format!(
            "POST /pub{fields}\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let publisher = &mut self.publishers[index];
        publisher.request = request.into_bytes();
        (
            publisher.topic,
            publisher.first_number,
            publisher.message_count,
        ) = (topic, first, count);
        (publisher.start_ns, publisher.was_retried) = (sys::now_ns(), false);
        self.send_request(index);
    }

    /// Sends the request from its first byte, if there is a connection.
    fn send_request(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        publisher.sent_bytes = 0;
        publisher.answer.clear();
        if publisher.fd.is_some() {
            self.result.requests += 1;
            publisher.deadline_ns = sys::now_ns() + TIMEOUT_NS;
            self.flush(index);
        }
    }

    fn start_connect(&mut self, index: usize) {
        let turn = index + self.publishers[index].connect_count;
        self.publishers[index].connect_count += 1;
        let options = DialOptions {
            remote: self.addresses[turn % self.addresses.len()],
            local: Some(([127, 0, 2, 1], 0).into()),
            receive_buffer: None,
        };
        let Ok((fd, _)) = sys::dial(&options) else {
            self.publishers[index].deadline_ns = sys::now_ns() + RECONNECT_PAUSE_MAX_NS;
            return;
        };
        self.publishers[index].fd = Some(fd);
        self.publishers[index].answers = 0;
        match self
            .epoll
            .add(fd, Interest::IN | Interest::OUT, index as u64)
        {
            Ok(()) => self.send_request(index),
            Err(_) => self.retry(index),
        }
    }

    fn flush(&mut self, index: usize) {
        let publisher = &mut self.publishers[index];
        let Some(fd) = publisher.fd else { return };
        while publisher.sent_bytes < publisher.request.len() {
            match sys::send(fd, &publisher.request[publisher.sent_bytes..]) {
                Ok(0) => break,
                Ok(count) => publisher.sent_bytes += count,
                // The connect is still in progress. Epoll reports when it is done.
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => break,
                Err(_) => return self.retry(index),
            }
        }
        let interest = sys::reading(publisher.sent_bytes < publisher.request.len());
        if self.epoll.modify(fd, interest, index as u64).is_err() {
            self.retry(index);
        }
    }

    fn reset_connection(&mut self, index: usize) {
        if let Some(fd) = self.publishers[index].fd.take() {
            sys::reset(fd);
        }
    }

    /// Closes the connection. The request is repeated over another connection, whether or not the server has read it.
    fn retry(&mut self, index: usize) {
        self.reset_connection(index);
        let publisher = &mut self.publishers[index];
        let has_request = !publisher.request.is_empty();
        publisher.was_retried |= has_request;
        self.result.retries += u64::from(has_request);
        publisher.answer.clear();
        publisher.deadline_ns = sys::now_ns() + self.random.draw() % RECONNECT_PAUSE_MAX_NS;
    }

    fn read(&mut self, index: usize) {
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
            Err(error) => return self.record_violation(index, error.to_string()),
        };
        let (status, close, is_replayed) = (head.status, head.close, head.replayed);
        let lines: Value = serde_json::from_slice(body).unwrap_or_default();
        let refused = lines["failed"]
            .as_array()
            .is_some_and(|failed| !failed.is_empty());
        match status {
            200..=202 if !refused => {
                self.result.replayed +=
                    u64::from(is_replayed) + lines["replayed"].as_u64().unwrap_or(0);
                self.result.acknowledged += u64::from(publisher.message_count);
                self.result.answers.push(Answer {
                    start_ns: publisher.start_ns,
                    answered_ns: sys::now_ns(),
                    was_retried: publisher.was_retried,
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
                    publisher.deadline_ns = 0;
                    self.reset_connection(index);
                }
            }
            408 | 429 | 503 => self.retry(index),
            _ => {
                let body = String::from_utf8_lossy(body).into_owned();
                self.record_violation(index, format!("publish: {status} {body}"));
            }
        }
    }

    /// Checks the position of a message in the answer to its publish.
    fn check_position(&mut self, index: usize, position: Position) {
        let Publisher {
            topic,
            first_number,
            ..
        } = self.publishers[index];
        if let Err(first_position) = self.shared.check_position(topic, first_number, position) {
            let name = &self.shared.topics[topic as usize].name;
            let violation = format!(
                "{name}, {first_number}: answered {position:?}, stood at {first_position:?}"
            );
            self.record_violation(index, violation);
        }
    }

    /// Records an answer that violates the protocol. The messages of the request count as published, so they count as lost for subscribers that
    /// do not receive them.
    fn record_violation(&mut self, index: usize, reason: String) {
        if self.result.violations.len() < VIOLATIONS_MAX {
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
