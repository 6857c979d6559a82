//! A track: the messages of one topic that a client received, in stretches. A stretch begins with a SUBACK and continues over all
//! connections of the session. Within a stretch, the client must receive each message that the log still had.

use std::collections::{BTreeMap, BTreeSet};

use crate::truth::{Message, Truth, Violation};

/// A received message, with its QoS, and the step and the second of its receipt.
#[derive(Clone, Copy, Debug)]
struct Received {
    number: u32,
    qos: u8,
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
    must_reach_newest: bool,
    /// The step of the last crash that the subscription has survived.
    crash_step: Option<u32>,
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
    /// Other subscriptions of the client match the topic too.
    pub overlaps: bool,
    /// The messages from before the last crash that may come again after it, and whether more than once.
    may_come_again: BTreeMap<u32, bool>,
    /// The messages that the server must send again, since the client has not acknowledged them.
    must_come_again: BTreeSet<u32>,
    /// For each crash that the subscription has survived, the messages that came after it, in the order of receipt, each with its QoS.
    after_crashes: Vec<Vec<(u32, u8)>>,
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
        self.after_crashes.clear();
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
            must_reach_newest: false,
            crash_step: None,
        });
    }

    /// Ends the last stretch. No later message is required.
    pub fn end_stretch(&mut self) {
        self.must_come_again.clear();
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

    /// A new session began, in which no message of the one before comes again.
    pub fn session_began(&mut self) {
        self.may_come_again.clear();
    }

    /// The server has crashed in the step `step`, and the session is durable. `unrecorded` has the messages of which the log may not know that the
    /// client has them, and whether the client has acknowledged each.
    pub fn server_crashed(&mut self, step: u32, unrecorded: &BTreeMap<u32, bool>) {
        self.may_come_again.clear();
        self.must_come_again.clear();
        // The subscription may begin anew with messages from before its SUBACK.
        self.unordered = self.messages.len();
        self.after_crashes.push(Vec::new());
        let is_subscribed = self.stretches.last().is_some_and(|stretch| !stretch.ended);
        for (number, qos) in &self.messages {
            // A QoS 0 message comes again behind a QoS 1 message that the client has not acknowledged.
            if *qos == 0 || *qos == 1 && (self.overlaps || unrecorded.contains_key(number)) {
                self.may_come_again.insert(*number, self.overlaps);
            }
            if is_subscribed && *qos == 1 && unrecorded.get(number) == Some(&false) {
                self.must_come_again.insert(*number);
            }
        }
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.crash_step = Some(step);
        }
    }

    /// A message was received again by another subscription.
    pub fn came_again(&mut self, number: u32) {
        self.must_come_again.remove(&number);
    }

    /// Whether a message was received.
    pub fn has(&self, number: u32) -> bool {
        self.messages.iter().any(|(other, _)| *other == number)
    }

    /// Records a message that was not sent again within its session. Returns whether it came again after a crash.
    pub fn record(&mut self, number: u32, qos: u8, truth: &Truth) -> Result<bool, Violation> {
        let is_again = self.has(number);
        if is_again {
            match self.may_come_again.get(&number) {
                Some(true) => {}
                Some(false) => _ = self.may_come_again.remove(&number),
                None if truth.may_be_published_again(number) => {}
                None => return Err(format!("message {number} came twice")),
            }
            self.must_come_again.remove(&number);
        } else {
            self.messages.push((number, qos));
        }
        if let Some(after_crash) = self.after_crashes.last_mut() {
            after_crash.push((number, qos));
        }
        if let Some(stretch) = self.stretches.last_mut()
            && !stretch.ended
        {
            stretch.received.push(Received {
                number,
                qos,
                step: truth.step,
                second: truth.now_s,
            });
        }
        Ok(is_again)
    }

    /// Requires that the last stretch reaches the newest message, unless the stretch has ended. The caller makes sure that nothing is in
    /// flight.
    pub fn require_newest(&mut self) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.must_reach_newest = !stretch.ended;
        }
    }

    /// Checks the order of the messages of each QoS [MQTT-4.6.0-6].
    pub fn check_order_of_each_qos(&self, truth: &Truth) -> Result<(), Violation> {
        for qos in 0..3 {
            let of_qos = |(_, of): &&(u32, u8)| *of == qos;
            let first = self.messages[self.unordered..].iter();
            check_order(first.filter(of_qos), truth)?;
            for after_crash in &self.after_crashes {
                check_order(after_crash.iter().filter(of_qos), truth)?;
            }
        }
        Ok(())
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
                || self.has(number) && !self.must_come_again.contains(&number)
                || self.may_be_lost_in_crash(stretch, number, truth)
                || stretch.no_local && mqtt_options.by == Some(own_number)
                || stretch.was_interrupted && stretch.qos.min(mqtt_options.qos) == 0
            {
                continue;
            }
            // A message that came before the crash must come again before the later ones do so.
            let from = stretch.crash_step.filter(|_| self.has(number));
            let mut later = stretch.received.iter();
            // In a recorded session a message of QoS 2 waits for its record, and one of QoS 0 does not wait behind it.
            let qos_min = match truth.allowed.sessions_are_durable {
                true => stretch.qos.min(mqtt_options.qos).min(1),
                false => 0,
            };
            let later = later.find(|received| {
                received.qos >= qos_min
                    && from.is_none_or(|crash_step| received.step > crash_step)
                    && message.is_before(&truth.messages[received.number as usize])
            });
            let (step, second) = match later {
                Some(received) => (received.step, received.second),
                None if stretch.must_reach_newest => (truth.step, truth.now_s),
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
                stretch.must_reach_newest
            ));
        }
        Ok(())
    }

    /// Whether a crash may have removed a message, or what was recorded of it.
    fn may_be_lost_in_crash(&self, stretch: &Stretch, number: u32, truth: &Truth) -> bool {
        let message = &truth.messages[number as usize];
        let crashed = |crash_step| message.sent_step <= crash_step;
        stretch.crash_step.is_some_and(crashed) && truth.is_non_durable(number)
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
            let copies = truth.copies_max(other as u32);
            count += copies as u32;
            bytes += copies * truth.bytes_of(other as u32);
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

/// Checks the order of these messages, which came in this order.
fn check_order<'a>(
    messages: impl Iterator<Item = &'a (u32, u8)>,
    truth: &Truth,
) -> Result<(), Violation> {
    let mut newest: Option<(u64, u32)> = None;
    let mut latest: Option<(u32, u32)> = None;
    for (number, _) in messages {
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
