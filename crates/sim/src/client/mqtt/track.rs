//! A track: the messages of one topic that a client received, in stretches. A stretch begins with a SUBACK and continues over all
//! connections of the session. Within a stretch, the client must receive each message that the log still had.

use crate::truth::{Message, Truth, Violation};

/// A received message, with the step and the second of its receipt.
#[derive(Clone, Copy, Debug)]
struct Received {
    number: u32,
    step: u32,
    second: u32,
}

/// A subscription, from its SUBACK on.
#[derive(Debug)]
struct Stretch {
    qos: u8,
    no_local: bool,
    /// The step of the SUBACK.
    granted_step: u32,
    received: Vec<Received>,
    /// Whether the connection was lost during the stretch.
    was_interrupted: bool,
    /// Whether the stretch has ended: then no later message is required.
    ended: bool,
    /// Whether the newest message must have been received.
    must_reach_head: bool,
}

/// The messages of a topic that a client received.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// The topic.
    pub topic: usize,
    /// The numbers of all received messages, in the order of receipt, each with its QoS.
    messages: Vec<(u32, u8)>,
    /// The number of messages at the beginning of `messages` whose order is not checked.
    unordered: usize,
    stretches: Vec<Stretch>,
}

impl Track {
    pub fn new(topic: usize) -> Track {
        Track {
            topic,
            ..Track::default()
        }
    }

    /// Excludes the messages received so far from the check of the order, since they came by two subscriptions that have no common order.
    pub fn restart_order(&mut self) {
        self.unordered = self.messages.len();
    }

    /// Begins a stretch, because a subscription was granted.
    pub fn begin_stretch(&mut self, qos: u8, no_local: bool, step: u32) {
        self.end_stretch();
        self.stretches.push(Stretch {
            qos,
            no_local,
            granted_step: step,
            received: Vec::new(),
            was_interrupted: false,
            ended: false,
            must_reach_head: false,
        });
    }

    /// Ends the last stretch. No later message is required.
    pub fn end_stretch(&mut self) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.ended = true;
        }
    }

    /// Records that the connection was lost. With `ends_stretch`, no later message is required.
    pub fn connection_lost(&mut self, ends_stretch: bool) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.was_interrupted = true;
            stretch.ended |= ends_stretch;
        }
    }

    /// Whether a message was received.
    pub fn has(&self, number: u32) -> bool {
        self.messages.iter().any(|(other, _)| *other == number)
    }

    /// Records a message that is not a repeat.
    pub fn record(&mut self, number: u32, qos: u8, truth: &Truth) -> Result<(), Violation> {
        if self.has(number) {
            return Err(format!("message {number} came twice"));
        }
        self.messages.push((number, qos));
        if let Some(stretch) = self.stretches.last_mut()
            && !stretch.ended
        {
            stretch.received.push(Received {
                number,
                step: truth.step,
                second: truth.now_s,
            });
        }
        Ok(())
    }

    /// Requires that the last stretch reaches the newest message, unless the stretch has ended. The caller makes sure that nothing is in
    /// flight.
    pub fn require_head(&mut self) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.must_reach_head = !stretch.ended;
        }
    }

    /// Checks the order of the messages of each QoS [MQTT-4.6.0-6].
    pub fn check_order_of_each_qos(&self, truth: &Truth) -> Result<(), Violation> {
        (0..3).try_for_each(|qos| self.check_order(qos, truth))
    }

    /// Compares all received messages with the published ones.
    pub fn check(
        &self,
        truth: &Truth,
        session_messages: u32,
        own_number: usize,
    ) -> Result<(), Violation> {
        for stretch in &self.stretches {
            self.check_stretch(stretch, truth, session_messages, own_number)?;
        }
        Ok(())
    }

    fn check_order(&self, of: u8, truth: &Truth) -> Result<(), Violation> {
        let mut newest: Option<(u64, u32)> = None;
        let mut latest: Option<(u32, u32)> = None;
        for (number, _) in self.messages[self.unordered..]
            .iter()
            .filter(|(_, qos)| *qos == of)
        {
            let message = &truth.messages[*number as usize];
            if let (Some(offset), Some((last, other))) = (message.offset, newest)
                && offset < last
            {
                return Err(format!(
                    "message {other} at {last} came before {number} at {offset}"
                ));
            }
            if let (Some(acked), Some((sent, other))) = (message.acked_step, latest)
                && acked < sent
            {
                return Err(format!(
                    "message {other} came before {number}, which was acknowledged before it was sent"
                ));
            }
            newest = message.offset.map(|offset| (offset, *number)).or(newest);
            if latest.is_none_or(|(sent, _)| message.sent_step > sent) {
                latest = Some((message.sent_step, *number));
            }
        }
        Ok(())
    }

    fn check_stretch(
        &self,
        stretch: &Stretch,
        truth: &Truth,
        session_messages: u32,
        own_number: usize,
    ) -> Result<(), Violation> {
        for (number, message) in truth.messages.iter().enumerate() {
            let number = number as u32;
            let published = message.acked_step.is_some() || message.offset.is_some();
            let mqtt_options = truth.mqtt_options(number);
            if message.topic != self.topic
                || message.sent_step <= stretch.granted_step
                || message.refused
                || !published
                || self.has(number)
                || stretch.no_local && mqtt_options.by == Some(own_number)
                || stretch.was_interrupted && stretch.qos.min(mqtt_options.qos) == 0
            {
                continue;
            }
            let mut later = stretch.received.iter();
            let later =
                later.find(|received| message.is_before(&truth.messages[received.number as usize]));
            let (step, second) = match later {
                Some(received) => (received.step, received.second),
                None if stretch.must_reach_head => (truth.step, truth.now_s),
                None => continue,
            };
            let kept_messages = if stretch.qos > 0 { session_messages } else { 0 };
            if truth.may_have_expired(number, second)
                || truth.may_be_superseded(number, step)
                || self.may_be_trimmed(number, message, kept_messages, step, second, truth)
                || self.may_be_deleted(stretch, message, step, truth)
            {
                continue;
            }
            return Err(format!(
                "message {number} never came (QoS {}, granted at {}, {} messages, to the head: {}, behind it {later:?})",
                stretch.qos,
                stretch.granted_step,
                stretch.received.len(),
                stretch.must_reach_head
            ));
        }
        Ok(())
    }

    /// Whether the limits of its topic's rule may have removed the message from the log by `step`.
    fn may_be_trimmed(
        &self,
        number: u32,
        message: &Message,
        kept_messages: u32,
        step: u32,
        second: u32,
        truth: &Truth,
    ) -> bool {
        let rule = &truth.topics[self.topic].rule;
        let others = truth.messages.iter().enumerate().filter(|(n, other)| {
            other.topic == self.topic
                && *n as u32 != number
                && other.sent_step <= step
                && !other.refused
                && !other.is_before(message)
        });
        let (mut count, mut bytes) = (0, truth.bytes_of(number));
        for (other, _) in others {
            count += 1;
            bytes += truth.bytes_of(other as u32);
        }
        !truth.allowed.budgets_are_wide
            || second - message.sent_s >= rule.log_age_s
            || count >= rule.messages_max().max(kept_messages)
            || bytes > rule.log_bytes
    }

    /// Whether a delete may have removed the message by `step`. It certainly has not if the client has received an earlier message that was
    /// sent after the delete.
    fn may_be_deleted(
        &self,
        stretch: &Stretch,
        message: &Message,
        step: u32,
        truth: &Truth,
    ) -> bool {
        let mut deletes = truth.topics[self.topic].deletes.iter();
        deletes.any(|(sent, done)| {
            let overlaps = *sent <= step && done.is_none_or(|done| done >= stretch.granted_step);
            let came_after_delete = |received: &Received| {
                let other = &truth.messages[received.number as usize];
                done.is_some_and(|done| other.sent_step > done) && other.is_before(message)
            };
            overlaps && !stretch.received.iter().any(came_after_delete)
        })
    }
}
