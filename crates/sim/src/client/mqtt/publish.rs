//! Messages from the client, and their answers. On a new connection the client first sends unanswered messages again, in their order
//! [MQTT-4.4.0-1, -2].

use std::ops::RangeInclusive;

use crore_rng::Rng;
use crore_wire::mqtt::{Ack, PacketId, PropertyWriter, Publish, Qos, Version, encode};

use super::Client;
use super::in_flight::{PendingAck, Sent};
use crate::coverage::Coverage;
use crate::plan::Plan;
use crate::truth::{KEYS, MessageSpec, Truth, Violation, key_name};

/// The maximum number of publishes that a client has in flight.
const SENT_MAX: usize = 12;

impl Client {
    /// Publishes at most `count` messages.
    pub fn publish(&mut self, count: u8, plan: &Plan, truth: &mut Truth, rng: &mut Rng) {
        if !self.is_connected() || self.role.publishes.is_empty() {
            return;
        }
        for _ in 0..count {
            let in_flight_max = self
                .conn
                .send_max
                .min(plan.settings.mqtt.receive_max.into())
                .min(self.role.packet_ids_max.into());
            if self.sent.len() >= in_flight_max.min(SENT_MAX) {
                return;
            }
            let topic = rng.pick(&self.role.publishes);
            let v5 = self.role.version == Version::V5;
            let keyed = v5 && truth.topics[topic].keeps_latest();
            let spec = MessageSpec {
                topic,
                len: rng.range(4, plan.message_bytes),
                key: if keyed {
                    rng.below(KEYS.into()) as u8
                } else {
                    0
                },
                ttl_s: match v5 && rng.chance(plan.ttl_percent) {
                    true => Some(rng.pick(&[0, 1, 3, 20])),
                    false => None,
                },
            };
            let qos = Qos::from_repr(rng.pick(&[0, 1, 1, 2, 2])).expect("below three");
            let retain = self.role.retains && rng.chance(30);
            let number = truth.add_message(spec);
            self.record_mqtt_options(number, qos, retain, truth);
            if qos == Qos::AtMostOnce {
                self.send_publish(0, number, qos, false, truth);
            } else {
                self.send_new(number, qos, truth);
            }
        }
    }

    fn send_new(&mut self, number: u32, qos: Qos, truth: &mut Truth) {
        let id = self.next_id(1..=self.role.packet_ids_max);
        self.sent.push_back(Sent {
            id,
            number,
            qos,
            received: false,
        });
        self.send_publish(id, number, qos, false, truth);
    }

    /// A packet id for a SUBSCRIBE or an UNSUBSCRIBE.
    pub(super) fn next_id_of_request(&mut self) -> u16 {
        let first = match self.role.packet_ids_max {
            u16::MAX => 1,
            // They leave the few ids to the messages.
            most => most + 1,
        };
        self.next_id(first..=u16::MAX)
    }

    /// A packet id in this range that is not in use.
    fn next_id(&mut self, range: RangeInclusive<u16>) -> u16 {
        loop {
            let id = self.last.packet_ids.wrapping_add(1);
            let id = if range.contains(&id) {
                id
            } else {
                *range.start()
            };
            self.last.packet_ids = id;
            let used = self.sent.iter().any(|sent| sent.id == id)
                || self
                    .conn
                    .pending_subscribes
                    .iter()
                    .any(|asked| asked.id == id);
            if !used {
                return id;
            }
        }
    }

    fn send_publish(&mut self, id: u16, number: u32, qos: Qos, dup: bool, truth: &mut Truth) {
        let (spec, payload) = (truth.messages[number as usize].spec, truth.data(number));
        let retain = truth.mqtt_options[&number].retain;
        match qos {
            Qos::AtMostOnce => {}
            Qos::AtLeastOnce => self.conn.pubacks.push_back(id),
            Qos::ExactlyOnce => self.conn.pubrecs.push_back(id),
        }
        truth.note(|| {
            format!(
                "{:?} publishes {number}, {spec:?}, id {id}, {qos:?}, DUP {dup}, RETAIN {retain}",
                self.link
            )
        });
        let mut set = PropertyWriter::new();
        let key = key_name(spec.key);
        if let Some(key) = &key {
            set.user_property("crore-key", key).expect("it is short");
        }
        if let Some(ttl_s) = spec.ttl_s {
            set.message_expiry_interval_s(ttl_s);
        }
        let topic = truth.topics[spec.topic].name.clone();
        let version = self.role.version;
        self.send_packet(|out| {
            encode::publish(
                out,
                version,
                &Publish {
                    dup,
                    qos,
                    retain,
                    topic: &topic,
                    packet_id: PacketId::new(id),
                    properties: set.properties(),
                    payload: &payload,
                },
            );
        });
    }

    /// Sends unanswered messages again. The server stores a repeat at QoS 1 as another message. In a new session it also stores a repeat at
    /// QoS 2 as another message. So such a repeat gets a number of its own.
    pub(super) fn resend_unanswered(&mut self, truth: &mut Truth, coverage: &mut Coverage) {
        let present = self.conn.session_present == Some(true);
        for sent in std::mem::take(&mut self.sent) {
            coverage.retries += 1;
            match (present, sent.qos) {
                (true, _) if sent.received => {
                    self.sent.push_back(sent);
                    self.conn.acks.push_back(PendingAck::Pubrel(sent.id));
                }
                (true, Qos::ExactlyOnce) if self.conn.session_uncertain => {
                    // If this is a new session, the server would store a repeat as a new message. So the client does not repeat the
                    // message. It sends PUBREL, which ends the exchange.
                    self.sent.push_back(Sent {
                        received: true,
                        ..sent
                    });
                    self.conn.acks.push_back(PendingAck::Pubrel(sent.id));
                }
                (true, Qos::ExactlyOnce) => {
                    self.sent.push_back(sent);
                    self.send_publish(sent.id, sent.number, sent.qos, true, truth);
                }
                (true, _) => {
                    let number = self.copy_message(sent.number, truth);
                    self.sent.push_back(Sent { number, ..sent });
                    self.send_publish(sent.id, number, sent.qos, true, truth);
                }
                (false, _) if sent.received => {}
                (false, _) => {
                    let number = self.copy_message(sent.number, truth);
                    self.send_new(number, sent.qos, truth);
                }
            }
        }
    }

    fn copy_message(&self, number: u32, truth: &mut Truth) -> u32 {
        let mqtt_options = truth.mqtt_options[&number];
        let copy = truth.add_message(truth.messages[number as usize].spec);
        truth.mqtt_options.insert(copy, mqtt_options);
        copy
    }

    /// Whether all publishes of the client are answered.
    pub fn is_answered(&self) -> bool {
        self.sent.is_empty()
    }

    /// Records the answer to a message. Returns its index in `sent`, or `usize::MAX` if it was refused.
    fn record_answer(
        &mut self,
        ack: &Ack<'_>,
        expected: Option<u16>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<usize, Violation> {
        let id = ack.packet_id.get();
        truth.note(|| format!("{:?} is answered {:?} to id {id}", self.link, ack.reason));
        if expected != Some(id) {
            return Err(format!("an answer to id {id} instead of {expected:?}"));
        }
        let matches = |sent: &Sent| sent.id == id && !sent.received;
        let at = self.sent.iter().position(matches);
        let at = at.ok_or_else(|| format!("an answer to id {id}, which is not under way"))?;
        let number = self.sent[at].number;
        if !ack.reason.is_error() {
            if truth.messages[number as usize].acked_step.is_none() {
                truth.acknowledge(number);
            }
            coverage.acknowledged += 1;
        } else if !truth.may_refuse() {
            return Err(format!("message {number} was refused: {:?}", ack.reason));
        } else {
            truth.refuse(number);
            coverage.refused += 1;
            self.sent.remove(at);
            return Ok(usize::MAX);
        }
        Ok(at)
    }

    /// Handles PUBACK, the answer to a QoS 1 message.
    pub(super) fn handle_puback(
        &mut self,
        ack: &Ack<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let expected = self.conn.pubacks.pop_front();
        let at = self.record_answer(ack, expected, truth, coverage)?;
        self.sent.remove(at);
        Ok(())
    }

    /// Handles PUBREC, the first answer to a QoS 2 message.
    pub(super) fn handle_pubrec(
        &mut self,
        ack: &Ack<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let expected = self.conn.pubrecs.pop_front();
        let at = self.record_answer(ack, expected, truth, coverage)?;
        if let Some(sent) = self.sent.get_mut(at) {
            sent.received = true;
            self.conn.acks.push_back(PendingAck::Pubrel(sent.id));
        }
        Ok(())
    }

    /// Handles PUBCOMP, the last answer to a QoS 2 message.
    pub(super) fn handle_pubcomp(
        &mut self,
        ack: &Ack<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        coverage.released += 1;
        let id = ack.packet_id.get();
        truth.note(|| format!("{:?} PUBCOMP {id}", self.link));
        let matches = |sent: &Sent| sent.id == id && sent.received;
        let at = self.sent.iter().position(matches);
        let at = at.ok_or_else(|| format!("PUBCOMP for id {id}, which is not under way"))?;
        self.sent.remove(at);
        Ok(())
    }
}
