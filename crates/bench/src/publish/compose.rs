//! Composes what a publisher sends: HTTP batches, single HTTP posts, MQTT packets, or records for the baseline server (`crore-bench floor`).
//!
//! The head of a batch contains the length of the body. So the body is written first, after space that is reserved for the head, and then the
//! head directly before it. Nothing is copied twice. The sequence numbers take 4 bytes of memory for each topic.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::mqtt::{self, Dialect};
use crate::client::request;
use crate::measure::pattern::Pattern;
use crate::measure::payload::{Header, Payloads, Random};
use crate::{floor, sys};
use crore_wire::mqtt::{PacketId, Qos};
use crore_wire::websocket::frame::{Opcode, write_header};

/// The maximum size of a batch's head, in bytes. This space is reserved before its body.
const HEAD_BYTES_MAX: usize = 192;

/// The format of messages.
#[derive(Clone, Copy, Debug)]
pub enum MessageFormat {
    /// Many messages in a `POST /pub` with NDJSON.
    Batch,
    /// A `POST /pub/{topic}` for each message.
    Single,
    /// An MQTT PUBLISH for each message.
    Packet(Dialect),
    /// A record of `crore-bench floor` for each message.
    Record,
}

impl MessageFormat {
    /// Whether the server answers the messages, one by one or in groups.
    pub fn is_answered(self) -> bool {
        match self {
            MessageFormat::Batch | MessageFormat::Single => true,
            MessageFormat::Packet(_) => self.has_ids(),
            MessageFormat::Record => false,
        }
    }

    /// Whether messages have packet ids (MQTT with QoS 1 or 2).
    pub fn has_ids(self) -> bool {
        matches!(self, MessageFormat::Packet(dialect) if dialect.qos != Qos::AtMostOnce)
    }
}

/// Sequence numbers for `topics` topics that have no messages yet.
pub fn sequences(topics: u32) -> Arc<[AtomicU32]> {
    (0..topics).map(|_| AtomicU32::new(0)).collect()
}

/// Chooses the topic of each message, gives it a sequence number, and writes it.
pub struct Composer {
    format: MessageFormat,
    topics: Pattern,
    is_cyclic: bool,
    host: String,
    payloads: Payloads,
    random: Random,
    run: u16,
    sequences: Arc<[AtomicU32]>,
    last_topic: u32,
    is_broadcast: bool,
    text_buffer: String,
}

impl Composer {
    /// A composer for `topics`. With `is_cyclic` the topics get messages in turn, otherwise at random, as in the measurements of 2013. With
    /// `is_broadcast` each record for `crore-bench floor` goes to all subscribers.
    pub fn new(
        format: MessageFormat,
        topics: Pattern,
        is_cyclic: bool,
        host: String,
        size: usize,
        is_broadcast: bool,
    ) -> Composer {
        let sequences = sequences(topics.count());
        let seed = sys::now_ns();
        Composer {
            format,
            sequences,
            topics,
            is_cyclic,
            host,
            payloads: Payloads::new(size, seed),
            random: Random::new(!seed),
            run: crate::measure::payload::mix(seed) as u16,
            last_topic: 0,
            is_broadcast,
            text_buffer: String::new(),
        }
    }

    /// Uses these sequence numbers from now on. The caller keeps the `Arc` to see the number of the last published message of each topic.
    pub fn share_sequences(&mut self, sequences: Arc<[AtomicU32]>) {
        self.sequences = sequences;
    }

    /// Chooses the topic of the next message.
    pub fn choose_topic(&mut self) -> u32 {
        let count = self.topics.count();
        if !self.is_cyclic {
            return self.random.below(count);
        }
        self.last_topic = (self.last_topic + 1) % count;
        self.last_topic
    }

    /// Chooses the topic of the next message of one connection. The topics are divided among `link_count` connections: connection `link_index`
    /// has the topics `link_index`, `link_index + link_count`, and so on.
    pub fn choose_topic_of(&mut self, link_index: u32, link_count: u32) -> u32 {
        let topic_count = (self.topics.count() - link_index).div_ceil(link_count);
        if !self.is_cyclic {
            return link_index + link_count * self.random.below(topic_count);
        }
        let last_topic = (self.last_topic + 1)
            .saturating_sub(link_index)
            .div_ceil(link_count)
            % topic_count;
        self.last_topic = link_index + link_count * last_topic;
        self.last_topic
    }

    /// The bytes that a connection sends before its first message. `topic` is the first of the connection's topics. An MQTT client id is
    /// made from it.
    pub fn first_bytes(&self, topic: u32) -> Vec<u8> {
        match self.format {
            MessageFormat::Batch | MessageFormat::Single => Vec::new(),
            MessageFormat::Record => floor::PUBLISHER_PREAMBLE.to_vec(),
            MessageFormat::Packet(dialect) if dialect.is_framed => {
                request::mqtt_upgrade(&self.host)
            }
            MessageFormat::Packet(dialect) => mqtt_connect(dialect, topic),
        }
    }

    /// Begins a group of messages at the end of `out`. Returns its start, for [`Composer::finish_group`].
    pub fn begin_group(&self, out: &mut Vec<u8>) -> usize {
        let group_start = out.len();
        if matches!(self.format, MessageFormat::Batch) {
            out.resize(group_start + HEAD_BYTES_MAX, b' ');
        }
        group_start
    }

    /// Appends the next message of `topic`, with a packet id if the format has them.
    pub fn append_message(&mut self, topic: u32, id: Option<PacketId>, out: &mut Vec<u8>) {
        // Only this thread writes the sequence numbers.
        let last_sequence = &self.sequences[topic as usize];
        let sequence = last_sequence.load(Ordering::Relaxed).wrapping_add(1);
        last_sequence.store(sequence, Ordering::Relaxed);
        let header = Header {
            run: self.run,
            sent_ns: sys::now_ns(),
            topic,
            sequence,
        };
        match self.format {
            MessageFormat::Batch => {
                self.text_buffer.clear();
                self.topics.write(topic, &mut self.text_buffer);
                request::line(&self.text_buffer, header, &mut self.payloads, out);
            }
            MessageFormat::Single => {
                self.text_buffer.clear();
                self.text_buffer.push_str("POST ");
                let name = self.topics.name(topic);
                request::target("/pub", &name, &mut self.text_buffer);
                write!(
                    self.text_buffer,
                    " HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n",
                    self.host,
                    self.payloads.size()
                )
                .expect("a String takes all");
                out.extend_from_slice(self.text_buffer.as_bytes());
                self.payloads.write(header, out);
            }
            MessageFormat::Packet(dialect) => {
                self.text_buffer.clear();
                self.topics.write(topic, &mut self.text_buffer);
                dialect.write_framed(out, |out| {
                    dialect.write_publish_head(
                        &self.text_buffer,
                        id,
                        false,
                        self.payloads.size(),
                        out,
                    );
                    self.payloads.write(header, out);
                });
            }
            MessageFormat::Record => {
                let subscriber_number = if self.is_broadcast {
                    floor::ALL_SUBSCRIBERS
                } else {
                    self.topics.number(topic)
                };
                out.extend_from_slice(&subscriber_number.to_le_bytes());
                let length_position = out.len();
                out.extend_from_slice(&[0; 4]);
                let size = self.payloads.size();
                write_header(out, Opcode::Text, true, false, size, None);
                self.payloads.write(header, out);
                let length = (out.len() - length_position - 4) as u32;
                out[length_position..length_position + 4].copy_from_slice(&length.to_le_bytes());
            }
        }
    }

    /// Ends the group that starts at `group_start`: writes the head of a batch directly before its body. Returns the start of the bytes to
    /// send.
    pub fn finish_group(&self, group_start: usize, out: &mut [u8]) -> usize {
        if !matches!(self.format, MessageFormat::Batch) {
            return group_start;
        }
        let body = group_start + HEAD_BYTES_MAX;
        let head = request::batch_head(&self.host, out.len() - body);
        let start = body - head.len();
        out[start..body].copy_from_slice(head.as_bytes());
        start
    }
}

/// The CONNECT of the connection whose first topic is `topic`.
pub fn mqtt_connect(dialect: Dialect, topic: u32) -> Vec<u8> {
    let mut packet = Vec::new();
    dialect.write_connect(
        &mqtt::client_id(std::process::id(), 'p', topic),
        &[],
        &mut packet,
    );
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composer(format: MessageFormat, topics: &str) -> Composer {
        let topics = Pattern::parse(topics).unwrap();
        Composer::new(format, topics, true, "127.0.0.1:80".into(), 40, false)
    }

    #[test]
    fn connection_publishes_to_its_own_topics_in_turn() {
        let mut composer = composer(MessageFormat::Single, "t/{1..10}");
        let mut choose = |link_index, count| -> Vec<u32> {
            (0..count)
                .map(|_| composer.choose_topic_of(link_index, 3))
                .collect()
        };
        assert_eq!(choose(0, 5), [3, 6, 9, 0, 3]);
        assert_eq!(choose(1, 4), [4, 7, 1, 4]);
        assert_eq!(choose(2, 4), [5, 8, 2, 5]);
        composer.is_cyclic = false;
        let mut random: Vec<u32> = (0..200).map(|_| composer.choose_topic_of(0, 3)).collect();
        random.sort_unstable();
        random.dedup();
        assert_eq!(random, [0, 3, 6, 9]);
    }

    #[test]
    fn a_batch_is_one_request_of_valid_lines() {
        let mut composer = composer(MessageFormat::Batch, "a\"{1..3}");
        let mut out = b"earlier".to_vec();
        let group_start = composer.begin_group(&mut out);
        for topic in [0, 1, 1] {
            composer.append_message(topic, None, &mut out);
        }
        let start = composer.finish_group(group_start, &mut out);
        let text = std::str::from_utf8(&out[start..]).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /pub HTTP/1.1\r\nHost: 127.0.0.1:80\r\n"));
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        let lines: Vec<serde_json::Value> = body
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[2]["topic"], "a\"2");
        let header = Header::decode(lines[2]["data"].as_str().unwrap().as_bytes()).unwrap();
        assert_eq!((header.topic, header.sequence), (1, 2));
    }

    #[test]
    fn record_contains_a_frame_that_the_subscriber_parses() {
        let mut composer = composer(MessageFormat::Record, "/p/s{5..9}/-");
        let mut out = Vec::new();
        composer.append_message(1, None, &mut out);
        assert_eq!(out[..4], 6u32.to_le_bytes());
        assert_eq!(out[4..8], (out.len() as u32 - 8).to_le_bytes());
        let frame = crate::client::parse::frame(&out[8..]).unwrap().unwrap();
        assert_eq!(frame.payload.len(), 40);
        assert_eq!(frame.bytes, out.len() - 8);
    }

    #[test]
    fn packet_is_a_publish_that_a_subscriber_parses() {
        let dialect = Dialect::new(&mqtt::MqttArgs::default(), false);
        let mut composer = composer(MessageFormat::Packet(dialect), "/p/s{5..9}/-");
        let mut out = Vec::new();
        composer.append_message(1, None, &mut out);
        let (packet, bytes) = dialect.parse_packet(&out).unwrap().unwrap();
        assert!(matches!(packet, mqtt::Packet::Publish(None, payload) if payload.len() == 40));
        assert_eq!(bytes, out.len());
        assert_eq!(out[2..11], *b"\0\x07/p/s6/-");
    }
}
