//! Checks the packets that an MQTT publisher receives: CONNACK, then an acknowledgement of each message, in order (§4.6). With QoS 0 there
//! are no acknowledgements. Instead the publisher sends pings: the answer to a ping shows that the server has read everything before the
//! ping.
//!
//! Invariant: a packet id is free, or in one of the queues `unacknowledged` and `unreleased`.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail, ensure};
use crore_wire::mqtt::{PacketId, PacketType};
use crore_wire::websocket::frame::Opcode;

use super::compose::mqtt_connect;
use crate::client::mqtt::{Dialect, Packet};
use crate::client::parse;

/// The next group of messages is sent when 1/`GROUPS_PER_WINDOW` of the window is free. A write after each acknowledgement would make the
/// tool the bottleneck.
const GROUPS_PER_WINDOW: u64 = 4;

/// The counts of all answers.
#[derive(Debug, Default)]
pub struct Answers {
    /// Messages that were accepted.
    pub accepted: u64,
    /// Messages that were refused.
    pub refused: u64,
    /// The first refusal, in words.
    pub first_refusal: Option<String>,
}

/// The acknowledgement state of one connection.
pub struct MqttAcks {
    dialect: Dialect,
    has_ids: bool,
    topic: u32,
    is_upgraded: bool,
    is_connected: bool,
    /// The packet id of the last message.
    last_id: u16,
    /// Packet ids that wait for PUBACK or PUBREC.
    unacknowledged: VecDeque<PacketId>,
    /// Packet ids that wait for PUBCOMP.
    unreleased: VecDeque<PacketId>,
    /// For each ping without an answer, the number of messages between the previous ping and this one.
    pings: VecDeque<u64>,
    /// The number of messages since the last ping.
    messages_since_ping: u64,
    /// The server's Receive Maximum.
    receive_max: usize,
    /// Length of the decoded packets at the start of the received bytes. Raw WebSocket frames follow.
    decoded: usize,
}

impl MqttAcks {
    /// The state of a new connection whose first topic is `topic`.
    pub fn new(dialect: Dialect, has_ids: bool, topic: u32) -> MqttAcks {
        MqttAcks {
            dialect,
            has_ids,
            topic,
            is_upgraded: !dialect.is_framed,
            is_connected: false,
            last_id: 0,
            unacknowledged: VecDeque::new(),
            unreleased: VecDeque::new(),
            pings: VecDeque::new(),
            messages_since_ping: 0,
            receive_max: usize::MAX,
            decoded: 0,
        }
    }

    /// Whether enough messages may be sent that a write is worthwhile.
    pub fn has_room(&self, in_flight_max: usize) -> bool {
        let group = in_flight_max.min(self.receive_max) as u64 / GROUPS_PER_WINDOW;
        self.window(in_flight_max) >= group.max(1)
    }

    /// How many more messages may be sent, if at most `in_flight_max` may be unacknowledged.
    pub fn window(&self, in_flight_max: usize) -> u64 {
        if !self.is_connected {
            return 0;
        }
        if !self.has_ids {
            return u64::MAX;
        }
        let in_flight = self.unacknowledged.len() + self.unreleased.len();
        in_flight_max
            .min(self.receive_max)
            .saturating_sub(in_flight) as u64
    }

    /// The packet id of the next message, if messages have them.
    pub fn packet_id(&mut self) -> Option<PacketId> {
        if !self.has_ids {
            self.messages_since_ping += 1;
            return None;
        }
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        let id = PacketId::new(self.last_id)?;
        self.unacknowledged.push_back(id);
        Some(id)
    }

    /// With QoS 0, appends a ping. The answer means that the server has read all messages before the ping.
    pub fn write_ping(&mut self, out: &mut Vec<u8>) {
        if self.messages_since_ping > 0 {
            self.dialect.write_ping(out);
            self.pings
                .push_back(std::mem::take(&mut self.messages_since_ping));
        }
    }

    /// The number of messages without an answer.
    pub fn unanswered(&self) -> u64 {
        let acknowledgements = self.unacknowledged.len() + self.unreleased.len();
        self.pings.iter().sum::<u64>() + self.messages_since_ping + acknowledgements as u64
    }

    /// Handles the complete packets of `received`, and appends the required answers to `out`.
    pub fn handle_bytes(
        &mut self,
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
        answers: &mut Answers,
    ) -> Result<()> {
        if !self.is_upgraded {
            let Some(head) = parse::head(received)? else {
                return Ok(());
            };
            ensure!(head.status == 101, "the server answered {}", head.status);
            let bytes = head.bytes;
            received.drain(..bytes);
            self.is_upgraded = true;
            out.extend(mqtt_connect(self.dialect, self.topic));
        }
        let end = if self.dialect.is_framed {
            let mut is_closed = false;
            // Of the WebSocket control frames only Close matters to a publisher.
            let control = |opcode, _: &[u8]| is_closed |= opcode == Opcode::Close;
            let (end, raw_start) = parse::unframe(received, self.decoded, control)?;
            ensure!(!is_closed, "the server closed the publisher's WebSocket");
            received.drain(end..raw_start);
            end
        } else {
            received.len()
        };
        let mut handled_bytes = 0;
        while let Some((packet, bytes)) =
            self.dialect.parse_packet(&received[handled_bytes..end])?
        {
            handled_bytes += bytes;
            self.handle_packet(packet, out, answers)?;
        }
        received.drain(..handled_bytes);
        self.decoded = end - handled_bytes;
        Ok(())
    }

    fn handle_packet(
        &mut self,
        packet: Packet<'_>,
        out: &mut Vec<u8>,
        answers: &mut Answers,
    ) -> Result<()> {
        match packet {
            Packet::Connack { receive_max, .. } => {
                self.is_connected = true;
                self.receive_max = receive_max.into();
            }
            Packet::Pingresp => {
                let messages = self.pings.pop_front();
                answers.accepted += messages.context("an answer to no ping")?;
            }
            Packet::Ack(kind @ (PacketType::PubAck | PacketType::PubRec), id, is_failed) => {
                let expected_id = self.unacknowledged.pop_front();
                ensure!(
                    expected_id == Some(id),
                    "{kind:?} of {id}, and that of {expected_id:?} was due"
                );
                if is_failed {
                    answers.refused += 1;
                    answers
                        .first_refusal
                        .get_or_insert_with(|| format!("{kind:?} with a failure"));
                } else if kind == PacketType::PubRec {
                    self.dialect
                        .write_acknowledgement(PacketType::PubRel, id, out);
                    self.unreleased.push_back(id);
                } else {
                    answers.accepted += 1;
                }
            }
            Packet::Ack(PacketType::PubComp, id, _) => {
                let expected_id = self.unreleased.pop_front();
                ensure!(
                    expected_id == Some(id),
                    "PUBCOMP of {id}, and that of {expected_id:?} was due"
                );
                answers.accepted += 1;
            }
            other => bail!("the server answered {other:?}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::mqtt::MqttArgs;

    fn acks(qos: u8, is_framed: bool) -> MqttAcks {
        let args = MqttArgs {
            qos,
            ..MqttArgs::default()
        };
        let mut acks = MqttAcks::new(Dialect::new(&args, is_framed), qos > 0, 0);
        acks.is_upgraded = true;
        acks.is_connected = true;
        acks
    }

    #[test]
    fn message_is_accepted_after_its_last_acknowledgement() {
        let (mut qos_1, mut qos_2) = (acks(1, false), acks(2, false));
        let (mut out, mut answers) = (Vec::new(), Answers::default());
        for acks in [&mut qos_1, &mut qos_2] {
            assert_eq!(acks.packet_id().map(PacketId::get), Some(1));
            assert_eq!((acks.window(3), acks.unanswered()), (2, 1));
        }
        qos_1
            .handle_bytes(&mut b"\x40\x02\0\x01".to_vec(), &mut out, &mut answers)
            .unwrap();
        assert_eq!((answers.accepted, out.len()), (1, 0));
        qos_2
            .handle_bytes(&mut b"\x50\x02\0\x01".to_vec(), &mut out, &mut answers)
            .unwrap();
        assert_eq!((answers.accepted, qos_2.unanswered()), (1, 1));
        assert_eq!(out, b"\x62\x02\0\x01");
        qos_2
            .handle_bytes(&mut b"\x70\x02\0\x01".to_vec(), &mut out, &mut answers)
            .unwrap();
        assert_eq!((answers.accepted, qos_2.unanswered()), (2, 0));
    }

    #[test]
    fn acknowledgements_come_in_order() {
        let mut acks = acks(1, false);
        acks.packet_id();
        acks.packet_id();
        let mut second = b"\x40\x02\0\x02".to_vec();
        assert!(
            acks.handle_bytes(&mut second, &mut Vec::new(), &mut Answers::default())
                .is_err()
        );
    }

    #[test]
    fn packet_may_be_split_over_several_frames() {
        let mut acks = acks(1, true);
        acks.packet_id();
        let frames = b"\x02\x01\x40\x89\x01x\x80\x03\x02\0\x01\x82\x02\xd0";
        let (mut received, mut answers) = (Vec::new(), Answers::default());
        for byte in frames {
            received.push(*byte);
            acks.handle_bytes(&mut received, &mut Vec::new(), &mut answers)
                .unwrap();
        }
        assert_eq!(answers.accepted, 1);
        assert_eq!(received, b"\x82\x02\xd0");
    }
}
