//! Reads the logs and the retained messages while nobody publishes, and passes them to the checker.
//!
//! A *gap* is the notice that messages are lost.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::checker::{Checker, Fault, Faults};
use super::message::{self, TOPICS};
use super::subscriber::{Observation, Subscriber};
use crate::client::link::{Link, LinkError};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, client_id};

/// Timeout for an answer or a retained message.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for unexpected retained messages after all expected ones have arrived.
const SILENCE: Duration = Duration::from_millis(100);

/// A reader for each log. Each reading continues where the last one ended.
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

    /// Reads and checks the new messages of all logs, and the retained messages. `sent_counts` has the number of messages that each publisher
    /// has sent.
    pub fn read(&mut self, address: SocketAddr, sent_counts: &[u32], checker: &mut Checker) {
        for (topic, reader) in (0..).zip(&mut self.readers) {
            let reported = message_count(address, topic).unwrap_or_else(|error| {
                let name = message::topic_name(topic);
                checker
                    .faults
                    .add(Fault::Protocol, || format!("info of {name}: {error}"));
                0
            });
            let stored = checker.message_count(topic);
            checker.check_count(topic, reported);
            if reported > stored {
                reader.run(address, reported - stored);
            }
            take_observations(reader, checker, |checker, topic, _, observation| {
                if let Observation::Message {
                    number,
                    position: Some(position),
                    ..
                } = observation
                {
                    checker.check_and_append(topic, number, position, sent_counts);
                }
            });
        }
        let topics: Vec<u32> = (0..TOPICS)
            .filter(|topic| message::may_retain(*topic))
            .collect();
        match read_retained(address, &topics, checker.retained_topic_count()) {
            Ok(retained_messages) => topics.iter().for_each(|topic| {
                let message = retained_messages.iter().find(|message| message.0 == *topic);
                checker.check_retained(*topic, message.map(|(_, number)| *number));
            }),
            Err(error) => checker.faults.add(Fault::Retained, || error.to_string()),
        }
    }
}

/// Reads all logs from the beginning, and checks that they still have the messages that `checker` knows.
pub fn check_unchanged(address: SocketAddr, checker: &mut Checker) {
    for topic in 0..TOPICS {
        let stored = checker.message_count(topic);
        let mut reader = Subscriber::reader(topic);
        if stored > 0 {
            reader.run(address, stored);
        }
        take_observations(
            &mut reader,
            checker,
            |checker, topic, index, observation| {
                if let Observation::Message {
                    number,
                    position: Some(position),
                    ..
                } = observation
                {
                    checker.check_unchanged(topic, index, number, position);
                }
            },
        );
    }
}

/// The numbers of all messages of a topic.
pub fn read_numbers(address: SocketAddr, topic: u32, faults: &mut Faults) -> Vec<u32> {
    let mut reader = Subscriber::reader(topic);
    match message_count(address, topic) {
        Ok(0) => {}
        Ok(count) => reader.run(address, count),
        Err(error) => reader.violations.push(error.to_string()),
    }
    for violation in reader.violations {
        faults.add(Fault::Protocol, || {
            format!("{}: {violation}", message::topic_name(topic))
        });
    }
    let numbers = reader
        .observations
        .iter()
        .filter_map(|observation| match observation {
            Observation::Message { number, .. } => Some(*number),
            _ => None,
        });
    numbers.collect()
}

/// Passes the messages of a reader to `handle_message`, and counts gaps and violations as faults.
fn take_observations(
    reader: &mut Subscriber,
    checker: &mut Checker,
    handle_message: impl Fn(&mut Checker, u32, usize, Observation),
) {
    let name = reader.name();
    let topic = reader.topics()[0];
    for (index, observation) in reader.observations.drain(..).enumerate() {
        match observation {
            Observation::Gap => checker
                .faults
                .add(Fault::Gap, || format!("the reader, {name}")),
            observation => handle_message(checker, topic, index, observation),
        }
    }
    for violation in reader.violations.drain(..) {
        checker
            .faults
            .add(Fault::Protocol, || format!("the reader, {violation}"));
    }
}

/// The number of messages that the server reports for a topic.
pub fn message_count(address: SocketAddr, topic: u32) -> Result<usize, LinkError> {
    let topic_info = topic_info(address, &message::topic_name(topic))?;
    Ok(topic_info["messages"].as_u64().unwrap_or(0) as usize)
}

/// The info of a topic as JSON; null if the topic does not exist.
pub fn topic_info(address: SocketAddr, name: &str) -> Result<Value, LinkError> {
    let request =
        format!("GET /pub/{name} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n");
    match Link::open(address, TIMEOUT)?.request(request.as_bytes())? {
        (503, _) => Err(LinkError::Disconnected),
        (_, body) => Ok(serde_json::from_slice(&body).unwrap_or_default()),
    }
}

/// Topic and number of the retained messages of these topics. Reads over MQTT until `expected_count` messages have arrived, and then until
/// no more arrive.
pub fn read_retained(
    address: SocketAddr,
    topics: &[u32],
    expected_count: usize,
) -> Result<Vec<(u32, u32)>, LinkError> {
    let names: Vec<String> = topics.iter().copied().map(message::topic_name).collect();
    let args = MqttArgs {
        qos: 1,
        ..MqttArgs::default()
    };
    let dialect = Dialect::new(&args, false);
    let mut link = Link::open(address, TIMEOUT)?;
    let mut out = Vec::new();
    dialect.write_connect(&client_id(0, 'r', 0), &names, &mut out);
    link.send(&out)?;
    let mut retained_messages = Vec::new();
    loop {
        match dialect
            .parse_packet(&link.buffer)
            .map_err(LinkError::violation)?
        {
            Some((packet, bytes)) => {
                if let Packet::Publish(_, data) = packet {
                    let message = message::parse(data);
                    retained_messages.push(message.ok_or_else(|| {
                        LinkError::violation("a retained message that nobody published")
                    })?);
                }
                link.buffer.drain(..bytes);
            }
            None => {
                let are_all_received = retained_messages.len() >= expected_count;
                // If too few have arrived, the caller's comparison reports that.
                if !link.read_within(if are_all_received { SILENCE } else { TIMEOUT })? {
                    return Ok(retained_messages);
                }
            }
        }
    }
}
