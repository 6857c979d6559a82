//! Messages to the client, new and repeated, and the client's acknowledgements (MQTT 5.0 sections 4.3, 4.4, 4.6 and 4.9).

use crore_wire::mqtt::{Ack, PacketId, Property, Publish, Qos, ReasonCode, Version, encode};

use super::in_flight::{PendingAck, Receipt, Stage};
use super::{Client, NO_PROPERTIES};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation, key_name, printable};

impl Client {
    /// Handles PUBLISH: checks the message, and records it if it is no repeat.
    pub(super) fn handle_publish(
        &mut self,
        publish: &Publish<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let topic = self.resolve_topic(publish, truth)?;
        let number = truth.number_of(publish.payload)?;
        let (link, id) = (self.link, publish.packet_id.map(PacketId::get));
        truth.note(|| {
            let flags = (publish.qos.bits(), publish.dup, publish.retain);
            format!(
                "{link:?} gets {number} of topic {topic}, id {id:?}, QoS, DUP, RETAIN {flags:?}"
            )
        });
        coverage.messages += 1;
        let message = &truth.messages[number as usize];
        if message.topic != topic {
            return Err(format!("message {number} came for topic {topic}"));
        }
        if self.role.version == Version::V5 {
            let mut keys = publish.properties.user_properties();
            let key = keys
                .find(|(name, _)| *name == "crore-key")
                .map(|(_, key)| key);
            if key != key_name(message.spec.key).as_deref() {
                return Err(format!("message {number} came with the key {key:?}"));
            }
            if message.spec.ttl_s.is_some()
                && !publish.properties.has(Property::MessageExpiryInterval)
            {
                return Err(format!("message {number} came without its time to live"));
            }
        }
        let at = self.subs.iter().position(|sub| sub.track.topic == topic);
        if at.is_none() && !self.role.has_wildcard {
            return Err(format!(
                "message {number} of a topic that was never asked for"
            ));
        }
        if let Some(at) = at {
            self.subs[at].check_options(number, publish, self.role.number, truth)?;
        }
        let may_come_again = self.session.survived_crash && self.unrecorded.contains_key(&number);
        let is_new = match id {
            None => {
                self.unrecorded.insert(number, self.link);
                true
            }
            Some(id) => {
                self.unrecorded.insert(number, None);
                self.record_receipt(id, number, publish, coverage)?
            }
        };
        if !is_new {
            coverage.sent_again += 1;
            return Ok(());
        }
        let Some(at) = at else { return Ok(()) };
        if publish.retain && may_come_again {
            coverage.again_after_crash += 1;
            self.subs[at].retained_came_again();
            return Ok(());
        }
        if publish.retain {
            coverage.retained += 1;
            return self.subs[at].receive_retained(number, publish.dup, truth);
        }
        // A message that waited for its record when the connection before ended stays with the session, but was never sent.
        let may_have_waited = truth.allowed.sessions_are_durable
            && self.conn.session_present == Some(true)
            && id.is_some();
        if !publish.dup && !may_have_waited {
            truth.check_not_stale(number, self.conn.connect_step, self.conn.connect_s)?;
        }
        if self.subs[at].may_repeat(number) {
            self.subs[at].track.came_again(number);
            return Ok(());
        }
        let track = &mut self.subs[at].track;
        let is_again = track.record(number, publish.qos.bits(), truth)?;
        coverage.again_after_crash += u64::from(is_again);
        Ok(())
    }

    /// The topic, by name or by alias.
    fn resolve_topic(&mut self, publish: &Publish<'_>, truth: &Truth) -> Result<usize, Violation> {
        let alias = publish.properties.topic_alias();
        if alias.is_some_and(|alias| alias > self.conn.aliases_max) {
            return Err(format!("alias {alias:?} of {}", self.conn.aliases_max));
        }
        if publish.topic.is_empty() {
            let known = alias.and_then(|alias| self.conn.aliases.get(&alias));
            return known
                .copied()
                .ok_or_else(|| format!("alias {alias:?} was never set"));
        }
        let topic = truth
            .topics
            .iter()
            .position(|topic| topic.name == publish.topic);
        let topic =
            topic.ok_or_else(|| format!("topic {}", printable(publish.topic.as_bytes())))?;
        if let Some(alias) = alias {
            self.conn.aliases.insert(alias, topic);
        }
        Ok(topic)
    }

    /// Records a QoS 1 or 2 message. Returns false for a repeat of a received message.
    fn record_receipt(
        &mut self,
        id: u16,
        number: u32,
        publish: &Publish<'_>,
        coverage: &mut Coverage,
    ) -> Result<bool, Violation> {
        let exactly_once = publish.qos == Qos::ExactlyOnce;
        let (link, session_uncertain) = (self.link, self.conn.session_uncertain);
        if self.conn.ids_in_flight.contains(&id) {
            return Err(format!("packet id {id} is used twice at a time"));
        }
        self.conn.ids_in_flight.insert(id);
        if self.conn.ids_in_flight.len() > self.conn.receive_max {
            let (in_flight, receive_max) = (self.conn.ids_in_flight.len(), self.conn.receive_max);
            return Err(format!(
                "{in_flight} messages under way to a client that takes {receive_max}"
            ));
        }
        if publish.dup && self.conn.session_present != Some(true) {
            return Err(format!("message {number} is sent again in a new session"));
        }
        let found = self.receipts.iter().position(|receipt| receipt.id == id);
        if let Some(at) = found {
            let receipt = self.receipts[at];
            // A message that is retained or also matches another subscription may be delivered twice. The second delivery is no repeat, but
            // may have the same packet id if that id is free again.
            let later_repeat_came = self
                .conn
                .last_repeated
                .is_some_and(|last| last > receipt.serial);
            let may_be_new_delivery = (receipt.retained || self.role.has_wildcard)
                && receipt.is_acknowledged()
                && later_repeat_came;
            let is_same_message = (receipt.number, receipt.exactly_once, receipt.retained)
                == (number, exactly_once, publish.retain)
                && !may_be_new_delivery;
            if is_same_message
                && publish.dup
                && receipt.link != link
                && receipt.state != Stage::PubcompSent
            {
                self.record_repeat(at)?;
                let receipt = &mut self.receipts[at];
                if receipt.state == Stage::PubrelReceived
                    && !session_uncertain
                    && !receipt.of_ended_session
                {
                    return Err(format!("message {number} is sent again after PUBREL"));
                }
                (receipt.state, receipt.of_ended_session) = (Stage::Received, false);
                self.queue_ack(id, exactly_once);
                return Ok(false);
            }
            if receipt.must_be_repeated() && !session_uncertain {
                return Err(format!(
                    "packet id {id} of {} is given to {number}",
                    receipt.number
                ));
            }
            self.receipts.remove(at);
        }
        if !publish.dup && !self.conn.received_new {
            self.conn.received_new = true;
            self.check_all_repeated()?;
        }
        if publish.dup {
            coverage.lost_first_sends += 1;
            if self.conn.received_new {
                return Err(format!("message {number} is sent again behind newer ones"));
            }
        }
        self.last.receipts += 1;
        let has_no_order = publish.dup && self.session.survived_crash && !exactly_once;
        if publish.dup && !has_no_order {
            // The client did not receive the first delivery of this message. Repeats keep the order of first deliveries. So this receipt
            // gets the highest serial, and a later repeat of an earlier receipt is a violation.
            self.conn.last_repeated = Some(self.last.receipts);
        }
        self.receipts.push(Receipt {
            serial: self.last.receipts,
            id,
            number,
            exactly_once,
            retained: publish.retain,
            state: Stage::Received,
            link,
            of_ended_session: false,
            has_no_order,
        });
        self.queue_ack(id, exactly_once);
        Ok(true)
    }

    fn queue_ack(&mut self, id: u16, exactly_once: bool) {
        self.conn.acks.push_back(match exactly_once {
            true => PendingAck::Pubrec(id),
            false => PendingAck::Puback(id),
        });
    }

    /// Records that the server repeated a message or its PUBREL. Checks that repeats come before new messages, in the order of the first
    /// deliveries.
    fn record_repeat(&mut self, at: usize) -> Result<(), Violation> {
        let link = self.link;
        let receipt = &mut self.receipts[at];
        receipt.link = link;
        let (serial, number) = (receipt.serial, receipt.number);
        let has_order = !receipt.has_no_order;
        let is_behind = self.conn.last_repeated.is_some_and(|last| last > serial);
        if self.conn.received_new || is_behind && has_order {
            return Err(format!("message {number} is sent again behind newer ones"));
        }
        if has_order {
            self.conn.last_repeated = Some(serial);
        }
        Ok(())
    }

    /// Checks that the server has repeated all messages in flight, which it must do before the first new message.
    fn check_all_repeated(&self) -> Result<(), Violation> {
        if self.conn.session_uncertain {
            return Ok(());
        }
        let missing = |receipt: &&Receipt| receipt.must_be_repeated() && receipt.link != self.link;
        match self.receipts.iter().find(missing) {
            Some(receipt) => Err(format!("not sent again before newer ones: {receipt:?}")),
            None => Ok(()),
        }
    }

    /// Handles PUBREL: checks that the client has sent PUBREC for the message, and queues PUBCOMP.
    pub(super) fn handle_pubrel(&mut self, id: u16, truth: &mut Truth) -> Result<(), Violation> {
        let (link, session_uncertain) = (self.link, self.conn.session_uncertain);
        truth.note(|| format!("{link:?} PUBREL {id}"));
        let matches = |receipt: &Receipt| receipt.id == id && receipt.exactly_once;
        let Some(at) = self.receipts.iter().position(matches) else {
            self.conn.acks.push_back(PendingAck::Pubcomp(id));
            // After a crash the server may not know the PUBCOMP, although the client has used the packet id again since.
            return match session_uncertain || self.session.survived_crash {
                true => Ok(()),
                false => Err(format!("PUBREL for {id}, which is not under way")),
            };
        };
        if self.receipts[at].link != link {
            self.record_repeat(at)?;
        }
        let receipt = &mut self.receipts[at];
        if receipt.state == Stage::Received && !session_uncertain && !receipt.of_ended_session {
            return Err(format!(
                "PUBREL before PUBREC of message {}",
                receipt.number
            ));
        }
        (receipt.state, receipt.of_ended_session) = (Stage::PubrelReceived, false);
        self.conn.acks.push_back(PendingAck::Pubcomp(id));
        Ok(())
    }

    /// Sends at most `acks_max` of the due acknowledgements, in order.
    pub fn acknowledge(&mut self, acks_max: usize, truth: &mut Truth) {
        for _ in 0..acks_max {
            let Some(ack) = self.conn.acks.pop_front() else {
                return;
            };
            truth.note(|| format!("{:?} says {ack:?}", self.link));
            let (id, state) = match ack {
                PendingAck::Puback(id) => (id, Some(Stage::PubackSent)),
                PendingAck::Pubrec(id) => (id, Some(Stage::PubrecSent)),
                PendingAck::Pubcomp(id) => (id, Some(Stage::PubcompSent)),
                PendingAck::Pubrel(id) => (id, None),
            };
            if let Some(state) = state {
                let mut all = self.receipts.iter_mut();
                if let Some(receipt) = all.find(|receipt| receipt.id == id) {
                    receipt.state = state;
                    if receipt.is_acknowledged() {
                        self.unrecorded.insert(receipt.number, self.link);
                    }
                }
                if state != Stage::PubrecSent {
                    self.conn.ids_in_flight.remove(&id);
                }
            }
            self.write_ack(ack, id);
        }
    }

    fn write_ack(&mut self, pending: PendingAck, id: u16) {
        let version = self.role.version;
        let ack = Ack {
            packet_id: PacketId::new(id).expect("ids are not 0"),
            reason: ReasonCode::SUCCESS,
            properties: NO_PROPERTIES,
        };
        let encode = match pending {
            PendingAck::Puback(_) => encode::puback,
            PendingAck::Pubrec(_) => encode::pubrec,
            PendingAck::Pubrel(_) => encode::pubrel,
            PendingAck::Pubcomp(_) => encode::pubcomp,
        };
        self.send_packet(|out| encode(out, version, &ack));
    }

    /// The number of acknowledgements that the client has not sent yet.
    pub fn pending_acks(&self) -> usize {
        self.conn.acks.len()
    }
}
