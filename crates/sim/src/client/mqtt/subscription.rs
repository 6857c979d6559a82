//! A client's subscription to a topic, and the checks of its messages (MQTT 5.0 sections 3.8.3 and 3.8.4).

use std::collections::{BTreeMap, VecDeque};

use crore_wire::mqtt::{Publish, Qos, RetainHandling, SubscribeOptions};

use super::track::Track;
use crate::truth::{Truth, Violation};

/// The state of a subscription, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionState {
    /// The subscription does not exist, or may not exist.
    NotGranted,
    /// SUBACK granted the subscription.
    Granted,
    /// UNSUBACK was received in this step.
    Unsubscribed { step: u32 },
}

/// A topic to which the client subscribes and from which it unsubscribes, and its current subscription.
pub(super) struct TopicSubscription {
    /// The received messages.
    pub track: Track,
    pub state: SubscriptionState,
    pub options: SubscribeOptions,
    /// For each QoS, whether it was requested in this session.
    pub requested_qoses: [bool; 3],
    /// Subscription identifiers that the subscription had in this session.
    pub identifiers: Vec<u32>,
    /// Whether the subscription was requested without No Local at some time in this session.
    pub gets_own_messages: bool,
    /// Whether the client requested `#` in this session.
    pub wildcard_requested: bool,
    /// Whether the subscription was ended or changed while the client also had one to `#`. Messages that came by one of the two may come
    /// again by the other.
    pub was_split: bool,
    /// The step of each SUBSCRIBE for which the server may still send the retained message.
    retained_requests: VecDeque<u32>,
    /// The step of the SUBSCRIBE for which the server must still send the retained message.
    pub retained_due: Option<u32>,
    /// The numbers of the latest values that were received as retained messages.
    latest_values: Vec<u32>,
}

impl TopicSubscription {
    pub fn new(topic: usize) -> TopicSubscription {
        TopicSubscription {
            track: Track::new(topic),
            state: SubscriptionState::NotGranted,
            options: SubscribeOptions::of(Qos::AtMostOnce),
            requested_qoses: [false; 3],
            identifiers: Vec::new(),
            gets_own_messages: false,
            wildcard_requested: false,
            was_split: false,
            retained_requests: VecDeque::new(),
            retained_due: None,
            latest_values: Vec::new(),
        }
    }

    /// Records a request with these options. Returns whether the subscription exists already with the same QoS and No Local.
    pub fn request(
        &mut self,
        options: SubscribeOptions,
        identifier: Option<u32>,
        step: u32,
    ) -> bool {
        let is_unchanged = self.state == SubscriptionState::Granted
            && (self.options.max_qos, self.options.no_local) == (options.max_qos, options.no_local);
        if !is_unchanged {
            // Until SUBACK the client does not know whether a message comes under the old or the new options.
            self.track.end_stretch();
            self.state = SubscriptionState::NotGranted;
        }
        let is_new = self.requested_qoses == [false; 3];
        self.was_split |= self.wildcard_requested && !is_new && !is_unchanged;
        self.options = options;
        self.requested_qoses[usize::from(options.max_qos.bits())] = true;
        self.gets_own_messages |= !options.no_local;
        self.identifiers.extend(identifier);
        self.retained_due = None;
        match options.retain_handling {
            RetainHandling::DoNotSend => {}
            RetainHandling::Send => {
                self.retained_requests.push_back(step);
                self.retained_due = Some(step);
            }
            RetainHandling::SendIfNew => {
                self.retained_requests.push_back(step);
                self.retained_due = is_new.then_some(step);
            }
        }
        if options.no_local {
            // The retained message may be one that the client published. No Local may hold back such a message.
            self.retained_due = None;
        }
        is_unchanged
    }

    /// Resets the subscription for a new session, which has no earlier subscriptions.
    pub fn session_began(&mut self) {
        self.track.session_began();
        if self.is_split() {
            self.track.restart_order();
        }
        (
            self.requested_qoses,
            self.gets_own_messages,
            self.wildcard_requested,
        ) = ([false; 3], false, false);
        self.was_split = false;
        self.retained_requests.clear();
        self.identifiers.clear();
    }

    /// Whether this subscription and the one to `#` may bring different messages, because this one was ended or changed, or has No Local.
    pub fn is_split(&self) -> bool {
        self.was_split || self.wildcard_requested && self.options.no_local
    }

    /// Whether a message that was received before may come again.
    pub fn may_repeat(&self, number: u32) -> bool {
        self.was_split && self.track.has(number)
    }

    /// Updates the state after the connection was lost. With `session_ended` the session is lost, too.
    pub fn connection_lost(&mut self, session_ended: bool) {
        // The server may not have received the request.
        self.retained_due = None;
        if session_ended {
            self.state = SubscriptionState::NotGranted;
            self.track.end_stretch();
        } else {
            // A QoS 0 subscription stays, but loses the messages that are published while the client is disconnected.
            self.track
                .connection_lost(self.options.max_qos == Qos::AtMostOnce);
        }
    }

    /// The server has crashed in the step `step`, and the session is durable.
    pub fn server_crashed(&mut self, step: u32, unrecorded: &BTreeMap<u32, bool>) {
        self.track.server_crashed(step, unrecorded);
    }

    /// Checks a message against the options that the client requested.
    pub fn check_options(
        &self,
        number: u32,
        publish: &Publish<'_>,
        own_number: usize,
        truth: &Truth,
    ) -> Result<(), Violation> {
        let mqtt_options = truth.mqtt_options(number);
        let qos = publish.qos.bits();
        let is_granted = (0..3).any(|requested| {
            self.requested_qoses[usize::from(requested)] && requested.min(mqtt_options.qos) == qos
        });
        if !is_granted {
            return Err(format!(
                "message {number} of QoS {} came with QoS {qos}",
                mqtt_options.qos
            ));
        }
        let mut identifiers = publish.properties.subscription_identifiers();
        if identifiers.any(|identifier| !self.identifiers.contains(&identifier)) {
            return Err(format!("message {number} came with a strange identifier"));
        }
        // A QoS 2 message, and a QoS 1 message behind it, may have waited for the log while the subscription ended [MQTT-3.10.4-3].
        let may_have_waited = |step| {
            let sent_step = truth.messages[number as usize].sent_step;
            qos > 0 && truth.allowed.sessions_are_durable && sent_step <= step
        };
        let may_be_old = publish.dup || publish.retain || self.wildcard_requested;
        if let SubscriptionState::Unsubscribed { step } = self.state
            && !may_be_old
            && !may_have_waited(step)
        {
            return Err(format!("message {number} came after UNSUBACK"));
        }
        if mqtt_options.by == Some(own_number) && !self.gets_own_messages && !publish.retain {
            return Err(format!("message {number} came back in spite of No Local"));
        }
        Ok(())
    }

    /// A retained message came that had come before a crash. It may also be the answer to a later request, or that answer may still come.
    pub fn retained_came_again(&mut self) {
        self.retained_due = None;
    }

    /// A retained message was received.
    pub fn receive_retained(
        &mut self,
        number: u32,
        dup: bool,
        truth: &Truth,
    ) -> Result<(), Violation> {
        let topic = &truth.topics[self.track.topic];
        if topic.keeps_latest() {
            self.latest_values.push(number);
            return Ok(());
        }
        self.retained_due = None;
        let asked = self.retained_requests.pop_front();
        let asked =
            asked.ok_or_else(|| format!("message {number} came as retained without need"))?;
        let message = &truth.messages[number as usize];
        if !truth.mqtt_options(number).retain {
            return Err(format!("message {number} was never retained"));
        }
        if dup {
            // A repeated message need not be the newest: it was the newest when the server first sent it, over an earlier connection.
            return Ok(());
        }
        let newer = truth.retained(self.track.topic).find(|(_, other)| {
            other.acked_step.is_some_and(|acked| acked < asked) && message.is_before(other)
        });
        if let Some((newer, _)) = newer {
            return Err(format!("message {number} came as retained after {newer}"));
        }
        let deleted = |(sent, done): &(u32, Option<u32>)| {
            message.acked_step.is_some_and(|acked| acked < *sent)
                && done.is_some_and(|done| done < asked)
        };
        match topic.deletes.iter().any(deleted) {
            true => Err(format!("message {number} was deleted and came as retained")),
            false => Ok(()),
        }
    }

    /// Checks that the client received each latest value that existed in the step `asked`, in which the client requested the values.
    fn check_latest_values(&self, asked: u32, truth: &Truth) -> Result<(), Violation> {
        let mut due = truth.newest_of_each_key(self.track.topic).into_iter();
        let is_missing = |number: &u32| {
            let acked = truth.messages[*number as usize].acked_step;
            acked.is_some_and(|acked| acked < asked)
                && !self.latest_values.contains(number)
                && !self.track.has(*number)
        };
        match due.find(is_missing) {
            Some(number) => Err(format!(
                "message {number}, the newest of its key, was not shown to who asked at {asked}"
            )),
            None => Ok(()),
        }
    }

    /// Checks that the due retained message was received, and requires the newest message of the topic. The caller makes sure that nothing
    /// is in flight.
    pub fn check_all_received(&mut self, truth: &Truth) -> Result<(), Violation> {
        self.track.require_newest();
        let topic = &truth.topics[self.track.topic];
        let Some(asked) = self.retained_due.take() else {
            return Ok(());
        };
        if topic.keeps_latest() {
            return self.check_latest_values(asked, truth);
        }
        if !truth.allowed.budgets_are_wide || !topic.deletes.is_empty() {
            return Ok(());
        }
        let mut retained = truth.retained(self.track.topic);
        let due = retained.find(|(number, message)| {
            message.acked_step.is_some_and(|acked| acked < asked)
                && !truth.may_be_lost_in_crash(*number)
        });
        // If the newest message has expired, no message is retained.
        let may_have_expired = truth
            .retained(self.track.topic)
            .any(|(_, message)| message.ttl_s.is_some());
        match due {
            Some((number, _)) if !may_have_expired => Err(format!(
                "message {number} is retained and was not shown to who asked at {asked}"
            )),
            _ => Ok(()),
        }
    }
}
