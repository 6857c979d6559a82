//! One subscriber of `chaos`, with a [`SequenceCheck`] for each of its topics. An answer that violates the protocol is an error with a
//! reason, and makes the run fail.
//!
//! A *gap* is the notice that messages are lost.

use crore_wire::websocket::gap::CLOSE_GAP;

use super::centrifugo::Subscriptions;
use super::sequence_check::{Counts, SequenceCheck};
use super::shared_state::{ClientPlan, Protocol, SharedState, read_payload};
use crate::client::position::Position;
use crate::client::subscription::{Gap, NextAction, ServerEvent, Subscription};
use crate::measure::add_counters::add_counters;
use crate::measure::payload::Random;

/// A client describes at most this many faults in words.
const DESCRIPTIONS_MAX: usize = 20;
/// The WebSocket close code that the server sends before it restarts.
const CLOSE_RESTART: u16 = 1012;
/// The close code for a client that sends a frame too slowly.
const CLOSE_SLOW: u16 = 1001;

/// The counts of a client's messages, connections and answers.
#[derive(Clone, Debug, Default)]
pub struct ClientTotals {
    /// The counts of the sequence checks.
    pub counts: Counts,
    /// Connections that were answered.
    pub answered_connections: u64,
    /// Answered connections that resumed at a position.
    pub resumed: u64,
    /// Connections that the server ended with a proper close.
    pub ended: u64,
    /// Connections that the server closed with the code for lost messages.
    pub closed_for_gap: u64,
    /// Connections and polls that the server refused for now.
    pub turned_away: u64,
    /// Subscriptions that clients of Centrifugo's protocol began and ended while they were connected.
    pub subscription_changes: u64,
    /// Long-polls that ended without a message.
    pub empty_polls: u64,
    /// Messages that differ from the published ones.
    pub corrupt: u64,
    /// Messages of a topic to which the client is not subscribed.
    pub misdelivered: u64,
    /// Messages whose position differs from the position in the publisher's answer, or from the position that another subscriber received.
    pub moved: u64,
    /// Descriptions of each client's first faults: messages that were lost, doubled, out of order or moved.
    pub descriptions: Vec<String>,
}

impl ClientTotals {
    /// Adds the counts of another client.
    pub fn merge(&mut self, other: &ClientTotals) {
        self.counts += other.counts;
        add_counters!(
            self, other;
            answered_connections, resumed, ended, closed_for_gap, turned_away,
            subscription_changes, empty_polls, corrupt,
            misdelivered, moved
        );
        self.descriptions.extend_from_slice(&other.descriptions);
    }

    fn describe_new_faults(
        &mut self,
        counts_before: &Counts,
        plan: &ClientPlan,
        topic: &str,
        description: &str,
    ) {
        // Messages, and losses that the server has told, are no faults.
        let counts_without_fault = Counts {
            messages: self.counts.messages,
            told_losses: self.counts.told_losses,
            ..*counts_before
        };
        if self.counts != counts_without_fault {
            self.describe(plan, topic, description);
        }
    }

    fn describe(&mut self, plan: &ClientPlan, topic: &str, description: &str) {
        if self.descriptions.len() < DESCRIPTIONS_MAX {
            let ClientPlan {
                number,
                protocol,
                topics,
                ..
            } = plan;
            self.descriptions.push(format!(
                "client {number}, {protocol:?} on {} topics, {topic}: {description}",
                topics.len()
            ));
        }
    }
}

/// A subscriber.
pub struct Client {
    topics: Topics,
    /// The protocol state of the connection.
    pub connection: Connection,
    /// Whether the server has answered the present connection.
    pub is_answered: bool,
}

/// The protocol state of a subscriber's connection.
pub enum Connection {
    /// A subscription over HTTP, whose topics stay.
    Http(Subscription),
    /// Subscriptions that change, over Centrifugo's protocol.
    Centrifugo(Subscriptions),
}

impl Connection {
    /// Bytes to send.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        match self {
            Connection::Http(subscription) => &mut subscription.outgoing,
            Connection::Centrifugo(subscriptions) => &mut subscriptions.outgoing,
        }
    }

    fn handle_bytes(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(ServerEvent<'_>) -> Result<(), String>,
    ) -> Result<NextAction, String> {
        match self {
            Connection::Http(subscription) => subscription.handle_bytes(bytes, on_event),
            Connection::Centrifugo(subscriptions) => subscriptions.handle_bytes(bytes, on_event),
        }
    }
}

/// The topics of a subscriber, with a check for each.
struct Topics {
    plan: ClientPlan,
    checks: Vec<SequenceCheck>,
}

impl Client {
    /// A client that has never been connected.
    pub fn new(plan: ClientPlan, shared: &SharedState) -> Client {
        let check = |topic: &u32| {
            let mut check = SequenceCheck::default();
            // If a client begins with the oldest message, and the log keeps everything, the client must receive every message.
            if !plan.starts_live
                && shared.topics[*topic as usize].retention.kept_count() == u32::MAX
            {
                check.expect_all_from(1);
            }
            check
        };
        let names = plan.topics.iter();
        let names = names.map(|topic| shared.topics[*topic as usize].name.as_str());
        let first_since = if plan.starts_live { "live" } else { "oldest" };
        let connection = match plan.protocol {
            Protocol::Http(transport) => {
                let parameters = names.map(|name| ("topic", name));
                Connection::Http(Subscription::new(transport, parameters, first_since))
            }
            Protocol::Centrifugo(format) => {
                Connection::Centrifugo(Subscriptions::new(format, names))
            }
        };
        Client {
            connection,
            topics: Topics {
                checks: plan.topics.iter().map(check).collect(),
                plan,
            },
            is_answered: false,
        }
    }

    /// Prepares the request of a new connection.
    pub fn start_connection(&mut self) {
        self.is_answered = false;
        match &mut self.connection {
            Connection::Http(subscription) => subscription.start_connection(),
            Connection::Centrifugo(subscriptions) => subscriptions.start_connection(),
        }
    }

    /// Whether the last message of every topic has arrived, or is in an announced gap.
    pub fn is_complete(&self, shared: &SharedState) -> bool {
        let Topics { plan, checks } = &self.topics;
        let mut topics = plan.topics.iter().zip(checks);
        topics.all(|(topic, check)| check.last_accounted() >= shared.begun_count(*topic))
    }

    /// Handles received bytes.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        shared: &SharedState,
        totals: &mut ClientTotals,
    ) -> Result<NextAction, String> {
        let (topics, is_answered) = (&mut self.topics, &mut self.is_answered);
        self.connection.handle_bytes(bytes, &mut |event| {
            match event {
                ServerEvent::Answer { resumes } => {
                    let is_first = !std::mem::replace(is_answered, true);
                    totals.answered_connections += u64::from(is_first);
                    totals.resumed += u64::from(is_first && resumes);
                }
                ServerEvent::Message {
                    position,
                    topic,
                    data,
                } => topics.check_message(position, topic, data, shared, totals),
                ServerEvent::Gap(Gap::Any) => topics.record_gap(None, shared, totals),
                ServerEvent::Gap(Gap::Topic(name)) => {
                    let topic_index = topics.index_of(name, shared)?;
                    topics.record_gap(Some(topic_index), shared, totals);
                }
                ServerEvent::Position(name) => {
                    let in_topic = name.map(|name| topics.index_of(Some(name.as_bytes()), shared));
                    topics.expect_all_from_now(in_topic.transpose()?, shared);
                }
                ServerEvent::Empty => totals.empty_polls += 1,
                ServerEvent::Unavailable => totals.turned_away += 1,
                ServerEvent::End(code) => {
                    totals.ended += 1;
                    match code {
                        Some(CLOSE_GAP) => totals.closed_for_gap += 1,
                        None | Some(CLOSE_SLOW | CLOSE_RESTART) => {}
                        Some(code) => return Err(format!("closed {code}")),
                    }
                }
            }
            Ok(())
        })
    }

    /// Ends or begins a subscription of a client whose subscriptions change, or begins all that it has not, if they must stay from now on.
    pub fn change_subscriptions(
        &mut self,
        must_have_all: bool,
        random: &mut Random,
        totals: &mut ClientTotals,
    ) {
        if let Connection::Centrifugo(subscriptions) = &mut self.connection {
            totals.subscription_changes += subscriptions.change(must_have_all, random);
        }
    }

    /// Counts the missing messages at the end of the run.
    pub fn check_missing(&mut self, shared: &SharedState, totals: &mut ClientTotals) {
        let Topics { plan, checks } = &mut self.topics;
        for (topic, check) in plan.topics.iter().zip(checks) {
            let (counts_before, newest) = (totals.counts, shared.begun_count(*topic));
            let losses = check.check_missing(newest, &mut totals.counts);
            let name = &shared.topics[*topic as usize].name;
            totals.describe_new_faults(
                &counts_before,
                plan,
                name,
                &format!("{losses:?} of {newest} never came"),
            );
        }
    }
}

impl Topics {
    /// The client has a position in this topic, or in all, now. So every message whose publish begins from now on must arrive. Topics that already had a message expect the
    /// next one anyway.
    fn expect_all_from_now(&mut self, in_topic: Option<usize>, shared: &SharedState) {
        for (index, check) in self.checks.iter_mut().enumerate() {
            let topic = &self.plan.topics[index];
            if in_topic.is_none_or(|it| it == index) && check.last_number() == 0 {
                check.expect_all_from(shared.begun_count(*topic) + 1);
            }
        }
    }

    /// The index of the topic that the server names.
    fn index_of(&self, name: Option<&[u8]>, shared: &SharedState) -> Result<usize, String> {
        let Some(name) = name else {
            let is_only_topic = self.plan.topics.len() == 1;
            return is_only_topic
                .then_some(0)
                .ok_or("a gap without a topic".into());
        };
        let mut topics = self.plan.topics.iter();
        let index = topics.position(|topic| shared.topics[*topic as usize].name.as_bytes() == name);
        index.ok_or_else(|| {
            let name = name.escape_ascii();
            format!("a gap or a position of `{name}`, which was not asked for")
        })
    }

    /// Records a gap in one topic, or, without `in_topic`, in any of the topics.
    fn record_gap(
        &mut self,
        in_topic: Option<usize>,
        shared: &SharedState,
        totals: &mut ClientTotals,
    ) {
        totals.counts.told_gaps += 1;
        let is_certain = in_topic.is_some() || self.checks.len() == 1;
        for (index, check) in self.checks.iter_mut().enumerate() {
            if in_topic.is_none_or(|in_topic| in_topic == index) {
                check.record_gap(shared.begun_count(self.plan.topics[index]), is_certain);
            }
        }
    }

    /// Checks a message with its position and the topic that the server names.
    fn check_message(
        &mut self,
        position: &str,
        name: Option<&str>,
        data: &[u8],
        shared: &SharedState,
        totals: &mut ClientTotals,
    ) {
        let Some((topic, number)) = read_payload(data) else {
            totals.corrupt += 1;
            return;
        };
        let topic_index = self.plan.topics.iter().position(|mine| *mine == topic);
        let known_topic = shared.topics.get(topic as usize);
        let is_named = |name: &str| known_topic.is_some_and(|topic| topic.name == name);
        let (Some(topic_index), true) = (topic_index, name.is_none_or(is_named)) else {
            totals.misdelivered += 1;
            return;
        };
        let kept_count = shared.topics[topic as usize].retention.kept_count();
        let (counts_before, begun_count) = (totals.counts, shared.begun_count(topic));
        let last_number = self.checks[topic_index].last_number();
        self.checks[topic_index].check_message(number, kept_count, begun_count, &mut totals.counts);
        let name = &shared.topics[topic as usize].name;
        let description = format!("{number} came after {last_number} when {begun_count} had begun");
        totals.describe_new_faults(&counts_before, &self.plan, name, &description);
        let position_check =
            Position::parse(position).map_or(Ok(()), |at| shared.check_position(topic, number, at));
        if let Err(earlier_position) = position_check {
            totals.moved += 1;
            let description = format!("{number} came at {position}, stood at {earlier_position:?}");
            totals.describe(&self.plan, name, &description);
        }
    }
}

#[cfg(test)]
mod tests;
