//! Reads the logs and the retained messages while nobody publishes, and passes them to the checker.
//!
//! A *gap* is the notice that messages are lost.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::checker::{Checker, Fault, Faults};
use super::message::{self, TOPICS};
use super::subscriber::{Observation, Subscriber};
use crate::client::link::{End, Link};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};

/// Timeout for an answer or a retained message.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for unexpected retained messages after all expected ones have arrived.
const QUIET: Duration = Duration::from_millis(100);

/// Reads every log. Each reading continues where the last one ended.
pub struct LogReader {
    readers: Vec<Subscriber>,
}

impl LogReader {
    /// A reader at the beginning of all logs.
    pub fn new() -> LogReader {
        LogReader {
            readers: (0..TOPICS).map(Subscriber::reader).collect(),
        }
    }

    /// Reads the new messages of all logs, and the retained messages. `sent` is the number of messages that each publisher has sent.
    pub fn read(&mut self, address: SocketAddr, sent: &[u32], checker: &mut Checker) {
        for (topic, reader) in (0..).zip(&mut self.readers) {
            let now = count(address, topic).unwrap_or_else(|why| {
                let name = message::name(topic);
                checker
                    .faults
                    .add(Fault::Protocol, || format!("info of {name}: {why}"));
                0
            });
            let known = checker.count(topic);
            checker.check_count(topic, now);
            if now > known {
                reader.run(address, now - known);
            }
            take(reader, checker, |checker, topic, _, seen| {
                if let Observation::Message {
                    number,
                    position: Some(position),
                    ..
                } = seen
                {
                    checker.check_logged(topic, number, position, sent);
                }
            });
        }
        let topics: Vec<u32> = (0..TOPICS)
            .filter(|topic| message::retains(*topic))
            .collect();
        match retained(address, &topics, checker.retaining()) {
            Ok(found) => topics.iter().for_each(|topic| {
                let mut of = found.iter().filter(|(of, _)| of == topic);
                checker.check_retained(*topic, of.next().map(|(_, number)| *number));
            }),
            Err(why) => checker.faults.add(Fault::Retained, || why.to_string()),
        }
    }
}

/// Reads all logs from the beginning.
pub fn read_again(address: SocketAddr, checker: &mut Checker) {
    for topic in 0..TOPICS {
        let known = checker.count(topic);
        let mut reader = Subscriber::reader(topic);
        if known > 0 {
            reader.run(address, known);
        }
        take(&mut reader, checker, |checker, topic, index, seen| {
            if let Observation::Message {
                number,
                position: Some(position),
                ..
            } = seen
            {
                checker.check_unchanged(topic, index, number, position);
            }
        });
    }
}

/// The numbers of all messages of a topic.
pub fn numbers(address: SocketAddr, topic: u32, faults: &mut Faults) -> Vec<u32> {
    let mut reader = Subscriber::reader(topic);
    match count(address, topic) {
        Ok(0) => {}
        Ok(count) => reader.run(address, count),
        Err(why) => reader.violations.push(why.to_string()),
    }
    for why in reader.violations {
        faults.add(Fault::Protocol, || {
            format!("{}: {why}", message::name(topic))
        });
    }
    let numbers = reader.observations.iter().filter_map(|seen| match seen {
        Observation::Message { number, .. } => Some(*number),
        _ => None,
    });
    numbers.collect()
}

/// Passes the observations of a reader to `message`, except gaps and violations, which are faults.
fn take(
    reader: &mut Subscriber,
    checker: &mut Checker,
    message: impl Fn(&mut Checker, u32, usize, Observation),
) {
    let name = reader.name();
    let topic = reader.topics()[0];
    for (index, seen) in reader.observations.drain(..).enumerate() {
        match seen {
            Observation::Gap => checker
                .faults
                .add(Fault::Gap, || format!("the reader, {name}")),
            seen => message(checker, topic, index, seen),
        }
    }
    for why in reader.violations.drain(..) {
        checker
            .faults
            .add(Fault::Protocol, || format!("the reader, {why}"));
    }
}

/// The number of messages that the server reports for a topic.
pub fn count(address: SocketAddr, topic: u32) -> Result<usize, End> {
    let info = info(address, &message::name(topic))?;
    Ok(info["messages"].as_u64().unwrap_or(0) as usize)
}

/// The info of a topic as JSON; null if the topic does not exist.
pub fn info(address: SocketAddr, name: &str) -> Result<Value, End> {
    let request =
        format!("GET /pub/{name} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n");
    match Link::open(address, TIMEOUT)?.ask(request.as_bytes())? {
        (503, _) => Err(End::Disconnected),
        (_, body) => Ok(serde_json::from_slice(&body).unwrap_or_default()),
    }
}

/// Topic and number of the retained messages of these topics. Reads over MQTT until at least `least` messages have arrived and no more
/// arrive.
pub fn retained(address: SocketAddr, topics: &[u32], least: usize) -> Result<Vec<(u32, u32)>, End> {
    let names: Vec<String> = topics.iter().copied().map(message::name).collect();
    let args = MqttArgs {
        qos: 1,
        ..MqttArgs::default()
    };
    let dialect = Dialect::new(&args, false);
    let mut link = Link::open(address, TIMEOUT)?;
    let mut out = Vec::new();
    dialect.connect(&client_id(0, 'r', 0), &names, &mut out);
    link.send(&out)?;
    let mut found = Vec::new();
    loop {
        match dialect.packet(&link.held).map_err(End::violation)? {
            Some((packet, bytes)) => {
                if let Packet::Publish(_, data) = packet {
                    let message = message::read(data);
                    found.push(
                        message.ok_or_else(|| End::violation("a retained message of nobody"))?,
                    );
                }
                link.held.drain(..bytes);
            }
            None => {
                let is_whole = found.len() >= least;
                // If too few have arrived, the caller's comparison reports that.
                if !link.read_within(if is_whole { QUIET } else { TIMEOUT })? {
                    return Ok(found);
                }
            }
        }
    }
}
