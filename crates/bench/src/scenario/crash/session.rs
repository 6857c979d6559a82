//! An MQTT client of `crash` with a durable session, which outlives the client's connections and the server (`state.durable_sessions`). The
//! client records what it receives and how its connections end. In some rounds it stays away, in others it stays connected or reconnects
//! again and again. Sometimes it ends its session.
//!
//! Each connection has its own will, whose message number is the connection's number. If a QoS 2 message comes again while its packet id is
//! not released, the client drops it, as the specification requires (MQTT 5 §4.3.3).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use crore_wire::mqtt::{PacketId, PacketType, PropertyWriter, Qos, Will};

use super::message::{self, GROUPS, Message, TOPICS};
use super::outage::Outage;
use crate::client::link::{Link, LinkError, connect_in_turn, reconnect_until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, SessionMode, Version, client_id};
use crate::measure::payload::Random;

/// Timeout for the next byte.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The shortest wait for more bytes. A socket does not allow a timeout of zero.
const READ_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// A client stays away in one of `AWAY_EVERY` rounds. In one of `STAYS_EVERY` of the other rounds it stays connected.
const AWAY_EVERY: u32 = 4;
const STAYS_EVERY: u32 = 3;
/// A client ends its session in one of this many rounds.
const ENDS_EVERY: u32 = 12;
/// On one of `SILENT_EVERY` connections the client stops acknowledging messages, after fewer than `ACKNOWLEDGED_MAX` messages.
const SILENT_EVERY: u32 = 4;
const ACKNOWLEDGED_MAX: u32 = 60;
/// The maximum duration of a connection of a client that reconnects, and the maximum pause between its connections, in milliseconds.
const CONNECTED_MS_MAX: u32 = 500;
const PAUSE_MS_MAX: u32 = 200;
/// In a cluster a client stays away before one of `AWAY_BEFORE_EVERY` connections, and ends its session before one of
/// `ENDS_BEFORE_EVERY`.
const AWAY_BEFORE_EVERY: u32 = 8;
const ENDS_BEFORE_EVERY: u32 = 40;
/// How long a client of a cluster stays away, and how long its longer connections are, at most, in milliseconds.
const AWAY_MS_MAX: u32 = 8_000;
const STAYS_MS_MAX: u32 = 10_000;
/// In a cluster, a CONNECT with a clean session may stay without CONNACK. It then takes effect within this time or never.
const CLEAN_START_TIMEOUT: Duration = Duration::from_secs(10);
/// In a cluster, the log contains the end of a connection after this time. Before one of `PAUSES_LONG_EVERY` connections the client waits this long.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSES_LONG_EVERY: u32 = 3;
/// The duration of a connection after the last publish in a cluster.
const LAST_CONNECTION: Duration = Duration::from_secs(3);
/// The delays of wills, in seconds. MQTT 3.1.1 has no delay.
const WILL_DELAYS_S: [u32; 3] = [0, 1, 3];
/// The longest delay of a will.
pub const WILL_DELAY_MAX_S: u32 = 3;

/// Something that a client has recorded for the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The CONNACK came.
    Connected {
        /// Session Present.
        session_present: bool,
        /// The correct value of Session Present; `None` if a crash makes both values correct.
        expected_present: Option<bool>,
    },
    /// The client sent its SUBSCRIBE. Where its subscriptions start in the logs is unknown until the SUBACK.
    Subscribing,
    /// The SUBACK came.
    Subscribed,
    /// A message came that the client would pass to its application.
    Message {
        /// The message's topic.
        topic: u32,
        /// The message's number.
        number: u32,
        /// The QoS of the delivery.
        qos: u8,
        /// Whether the client sent an acknowledgement.
        is_acknowledged: bool,
    },
    /// A new QoS 2 message came with the packet id of another message that is not released.
    IdReused {
        /// The message's topic.
        topic: u32,
        /// The message's number.
        number: u32,
    },
    /// The client sent a DISCONNECT, and the server closed the connection. So the server has handled all earlier acknowledgements.
    Disconnected,
    /// The log may lack the client's newest acknowledgements: a fault of the cluster began or ended, or the client will soon connect to another node.
    MaybeUnrecorded,
}

/// The progress of a cluster's run, which the sessions follow.
#[derive(Debug, Default)]
pub struct Course {
    /// The number of faults that have begun, plus the number of recoveries. It is odd during a fault.
    pub fault_changes: AtomicU32,
    /// Whether the publishers have ended. The clients then acknowledge everything.
    pub is_last: AtomicBool,
    /// The number of clients that have seen `is_last`.
    pub in_last: AtomicU32,
    /// Whether the clients must end.
    pub must_stop: AtomicBool,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client sent a DISCONNECT, and the server closed the connection.
    Disconnected,
    /// Without a DISCONNECT: the client closed the connection, or the server ended.
    Broken,
    /// The client sent a DISCONNECT, but it is unknown whether the server has read it.
    Unknown,
}

/// A connection with a will.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The delay of the will.
    pub delay_s: u32,
    /// When the CONNACK came.
    pub connected_at: Option<Instant>,
    /// How and when the connection ended.
    pub end: Option<(Ending, Instant)>,
    /// Whether the client ended the session after this connection; `None` if the server may have missed that.
    pub session_ended: Option<bool>,
}

/// What a client does on a connection.
struct ConnectionPlan {
    /// How long the client stays connected; `None` means until the server is gone.
    duration: Option<Duration>,
    /// Whether the client closes the connection without a DISCONNECT.
    ends_without_disconnect: bool,
    /// The number of messages after which the client stops acknowledging.
    acknowledged_max: u32,
}

/// A client with a session.
pub struct Session {
    index: u32,
    version: Version,
    /// The QoS of the client's subscriptions.
    pub qos: u8,
    dialect: Dialect,
    filters: Vec<String>,
    /// The topics that the subscriptions match.
    pub topics: Vec<u32>,
    /// Whether the client's connections have wills.
    pub has_will: bool,
    random: Random,
    /// Whether the SUBACK came.
    pub is_subscribed: bool,
    /// The correct Session Present of the next CONNACK, if it is known.
    expected_present: Option<bool>,
    /// Topic and number of each QoS 2 message that is not released, by packet id.
    unreleased_messages: HashMap<PacketId, (u32, u32)>,
    /// Events that are not checked yet.
    pub events: Vec<SessionEvent>,
    /// All connections so far, except those that only end the session.
    pub connections: Vec<Connection>,
    /// The number of messages that all subscribers received.
    received: Arc<AtomicU64>,
    /// For each early reconnect, the time from the end of the last connection to the reconnect. A cluster's log may have the session's new claim before
    /// that end.
    pub early_connects: Vec<Outage>,
    /// Rounds in which the client was away.
    pub rounds_away: u64,
    /// Violations of the protocol.
    pub violations: Vec<String>,
}

/// The filters of client `index`, and the topics that they match.
fn filters_and_topics(index: u32) -> (Vec<String>, Vec<u32>) {
    let (topic, group) = (index * 7 % TOPICS, index % GROUPS);
    let group_topics: Vec<u32> = (0..TOPICS)
        .filter(|topic| topic % GROUPS == group)
        .collect();
    let topic_in_group = topic / GROUPS * GROUPS + group;
    match index / 2 % 7 {
        0 => (vec![message::topic_name(topic)], vec![topic]),
        1 => {
            let topics: Vec<u32> = (0..3).map(|n| (topic + n * 5) % TOPICS).collect();
            (
                topics.iter().copied().map(message::topic_name).collect(),
                topics,
            )
        }
        2 => (vec![format!("crash/{group}/+")], group_topics),
        // Not `+/{group}/#`, which matches topics of `chaos`.
        3 => (vec![format!("+/{group}/+/#")], group_topics),
        // The subscriptions overlap.
        4 => (
            vec![
                message::topic_name(topic_in_group),
                format!("crash/{group}/#"),
            ],
            group_topics,
        ),
        5 => (vec![format!("crash/+/{topic}")], vec![topic]),
        _ => (vec!["crash/#".into()], (0..TOPICS).collect()),
    }
}

impl Session {
    /// Client `index` of the run with this seed. `received` counts the messages of all subscribers.
    pub fn new(index: u32, seed: u64, received: &Arc<AtomicU64>) -> Session {
        let version = match index % 2 {
            0 => Version::V5,
            _ => Version::V311,
        };
        let qos = [1, 2, 2, 1, 0][index as usize / 2 % 5];
        let (filters, topics) = filters_and_topics(index);
        Session {
            index,
            version,
            qos,
            dialect: dialect(version, qos, SessionMode::Persistent),
            filters,
            topics,
            has_will: !index.is_multiple_of(3),
            random: Random::new(seed ^ 0x5e55 ^ u64::from(index) << 32),
            is_subscribed: false,
            expected_present: Some(false),
            unreleased_messages: HashMap::new(),
            events: Vec::new(),
            connections: Vec::new(),
            received: received.clone(),
            early_connects: Vec::new(),
            rounds_away: 0,
            violations: Vec::new(),
        }
    }

    /// The client's name in the descriptions of faults.
    pub fn name(&self) -> String {
        format!(
            "session {} ({:?}, QoS {}, {})",
            self.index,
            self.version,
            self.qos,
            self.filters.join(" ")
        )
    }

    /// Whether the client has several subscriptions.
    pub fn has_several_filters(&self) -> bool {
        self.filters.len() > 1
    }

    /// The topic of the client's wills.
    pub fn will_topic(&self) -> u32 {
        message::will_topic(self.index)
    }

    /// Subscribes and disconnects, while nobody publishes.
    pub fn subscribe_and_disconnect(&mut self, address: SocketAddr) {
        let plan = ConnectionPlan {
            duration: Some(Duration::ZERO),
            ends_without_disconnect: false,
            acknowledged_max: u32::MAX,
        };
        let violation = reconnect_until_gone(|| self.run_connection(address, &plan));
        self.record_violation(violation);
    }

    /// Runs the client until the server is killed. In the last round the client stays connected and acknowledges everything.
    pub fn run(&mut self, address: SocketAddr, is_last: bool) {
        let mut is_chosen = |period| !is_last && self.random.below(period) == 0;
        let (stays_away, reconnects) = (is_chosen(AWAY_EVERY), !is_last && !is_chosen(STAYS_EVERY));
        let mut ends_session = is_chosen(ENDS_EVERY);
        ends_session &= self.is_subscribed;
        if stays_away && self.is_subscribed {
            self.rounds_away += 1;
            return;
        }
        let violation = reconnect_until_gone(|| {
            if std::mem::take(&mut ends_session) {
                self.end_session(address)?;
            }
            loop {
                let plan = self.draw_plan(reconnects, is_last);
                self.run_connection(address, &plan)?;
                self.pause(PAUSE_MS_MAX);
            }
        });
        self.record_violation(violation);
    }

    /// Runs the client at the nodes of a cluster, as `course` demands.
    pub fn run_in_cluster(&mut self, nodes: &[SocketAddr], course: &Course) {
        let (mut known_changes, mut is_in_last) = (0, false);
        let violation = connect_in_turn(nodes, &course.must_stop, |_| {
            let is_last = course.is_last.load(Relaxed);
            if is_last && !std::mem::replace(&mut is_in_last, true) {
                course.in_last.fetch_add(1, Relaxed);
            }
            let changes = course.fault_changes.load(Relaxed);
            let had_fault = std::mem::replace(&mut known_changes, changes) != changes
                || !changes.is_multiple_of(2);
            if self.records_early_connect() || had_fault {
                self.events.push(SessionEvent::MaybeUnrecorded);
            }
            let node = nodes[self.random.below(nodes.len() as u32) as usize];
            let mut is_chosen =
                |period| !is_last && self.is_subscribed && self.random.below(period) == 0;
            let (stays_away, ends_session) =
                (is_chosen(AWAY_BEFORE_EVERY), is_chosen(ENDS_BEFORE_EVERY));
            if stays_away {
                self.rounds_away += 1;
                self.pause(AWAY_MS_MAX);
                return Ok(());
            }
            if ends_session {
                let end = self.end_session(node);
                if end.is_err() {
                    std::thread::sleep(CLEAN_START_TIMEOUT);
                }
                return end;
            }
            let mut plan = self.draw_plan(true, is_last);
            if is_last {
                plan.duration = Some(LAST_CONNECTION);
            } else if self.random.below(STAYS_EVERY) == 0 {
                let connected_ms = self.random.below(STAYS_MS_MAX);
                plan.duration = Some(Duration::from_millis(connected_ms.into()));
            }
            self.run_connection(node, &plan)?;
            self.pause(PAUSE_MS_MAX);
            if self.random.below(PAUSES_LONG_EVERY) == 0 {
                std::thread::sleep(RECORD_TIMEOUT);
            }
            Ok(())
        });
        self.record_violation(violation);
    }

    /// Whether the client reconnects so early that the log may have the new claim before the end of the last connection. Records this time as an outage.
    fn records_early_connect(&mut self) -> bool {
        let last_end = self
            .connections
            .last()
            .and_then(|connection| connection.end);
        let Some((_, begin)) = last_end.filter(|(_, end)| end.elapsed() < RECORD_TIMEOUT) else {
            return false;
        };
        self.early_connects.push(Outage {
            begin,
            end: Instant::now(),
        });
        true
    }

    /// Waits for a random time of less than `ms_max`.
    fn pause(&mut self, ms_max: u32) {
        let pause = self.random.below(ms_max);
        std::thread::sleep(Duration::from_millis(pause.into()));
    }

    /// Records that the server was killed soon after `at`. It is unknown which bytes the server has read since `at`.
    pub fn record_crash(&mut self, at: Instant) {
        for connection in self.connections.iter_mut().rev() {
            let Some((ending, _)) = connection.end.as_mut().filter(|(_, end)| *end >= at) else {
                return;
            };
            if *ending == Ending::Disconnected {
                *ending = Ending::Unknown;
            }
        }
    }

    fn record_violation(&mut self, violation: Option<String>) {
        let named = violation.map(|reason| format!("{}: {reason}", self.name()));
        self.violations.extend(named);
    }

    fn draw_plan(&mut self, reconnects: bool, is_last: bool) -> ConnectionPlan {
        let random = &mut self.random;
        let connected = Duration::from_millis(random.below(CONNECTED_MS_MAX).into());
        let acknowledged_max = random.below(ACKNOWLEDGED_MAX);
        let is_silent = !is_last && random.below(SILENT_EVERY) == 0;
        ConnectionPlan {
            duration: reconnects.then_some(connected),
            ends_without_disconnect: random.below(2) == 0,
            acknowledged_max: if is_silent {
                acknowledged_max
            } else {
                u32::MAX
            },
        }
    }

    fn run_connection(
        &mut self,
        address: SocketAddr,
        plan: &ConnectionPlan,
    ) -> Result<(), LinkError> {
        let mut link = Link::open(address, TIMEOUT)?;
        let delay = match self.version {
            Version::V5 => self.random.below(WILL_DELAYS_S.len() as u32),
            Version::V311 => 0,
        };
        self.connections.push(Connection {
            delay_s: WILL_DELAYS_S[delay as usize],
            connected_at: None,
            end: None,
            session_ended: Some(false),
        });
        let result = self.receive_until_end(&mut link, plan);
        let is_disconnected = matches!(result, Ok(true));
        let now = Instant::now();
        if let Some(connection) = self.connections.last_mut() {
            let ending = if is_disconnected {
                Ending::Disconnected
            } else {
                Ending::Broken
            };
            connection.end.get_or_insert((ending, now));
        }
        if is_disconnected {
            self.events.push(SessionEvent::Disconnected);
        }
        result.map(|_| ())
    }

    /// Connects, and receives until the connection ends. Returns whether it ended with a DISCONNECT.
    fn receive_until_end(
        &mut self,
        link: &mut Link,
        plan: &ConnectionPlan,
    ) -> Result<bool, LinkError> {
        let (dialect, start) = (self.dialect, Instant::now());
        let mut out = Vec::new();
        self.write_connect(&mut out);
        let expected_present = self.expected_present;
        if expected_present == Some(false) {
            // If no CONNACK comes, it is unknown whether the server has created the session.
            self.expected_present = None;
        }
        link.send(&out)?;
        out.clear();
        self.handle_connack(link, expected_present)?;
        let mut message_count = 0;
        loop {
            let mut handled_bytes = 0;
            while let Some((packet, bytes)) = dialect.parse_packet(&link.buffer[handled_bytes..])? {
                handled_bytes += bytes;
                let is_silent = message_count >= plan.acknowledged_max;
                message_count += u32::from(matches!(packet, Packet::Publish(..)));
                self.handle_packet(packet, is_silent, &mut out)?;
            }
            link.buffer.drain(..handled_bytes);
            link.send(&out)?;
            out.clear();
            let remaining = match plan.duration {
                Some(duration) => duration.saturating_sub(start.elapsed()),
                None => TIMEOUT,
            };
            if remaining.is_zero() && self.is_subscribed {
                break;
            }
            // The kill ends a client that stays connected. Silence is no fault: other clients may still read what they missed.
            link.read_within(remaining.max(READ_TIMEOUT_MIN))?;
        }
        if plan.ends_without_disconnect {
            return Ok(false);
        }
        self.disconnect(link, dialect)
    }

    /// Sends a DISCONNECT, and waits until the server closes.
    fn disconnect(&mut self, link: &mut Link, dialect: Dialect) -> Result<bool, LinkError> {
        let mut out = Vec::new();
        dialect.write_disconnect(&mut out);
        if let Err(end) = link.send(&out) {
            if let Some(connection) = self.connections.last_mut() {
                connection.end = Some((Ending::Unknown, Instant::now()));
            }
            return Err(end);
        }
        loop {
            link.buffer.clear();
            match link.read_within(TIMEOUT) {
                Ok(true) => {}
                Ok(false) => return Err(LinkError::violation("the server does not close")),
                Err(LinkError::Disconnected) => return Ok(true),
                Err(end) => return Err(end),
            }
        }
    }

    fn write_connect(&mut self, out: &mut Vec<u8>) {
        let delay_s = self
            .connections
            .last()
            .map_or(0, |connection| connection.delay_s);
        let mut properties = PropertyWriter::new();
        if delay_s > 0 {
            properties.will_delay_interval_s(delay_s);
        }
        let (topic, number) = (self.will_topic(), self.connections.len() as u32);
        let (name, text) = (
            message::topic_name(topic),
            Message::small(topic, number).payload(),
        );
        let will = Will {
            qos: Qos::AtLeastOnce,
            retain: false,
            properties: properties.properties(),
            topic: &name,
            payload: text.as_bytes(),
        };
        let will = self.has_will.then_some(will);
        let client = client_id(0, 'd', self.index);
        let filters = if self.is_subscribed {
            &[]
        } else {
            self.filters.as_slice()
        };
        self.dialect
            .write_connect_with_will(&client, will, filters, out);
    }

    /// Waits for the CONNACK, and records it.
    fn handle_connack(
        &mut self,
        link: &mut Link,
        expected_present: Option<bool>,
    ) -> Result<(), LinkError> {
        let session_present = wait_for_connack(link, self.dialect)?;
        self.events.push(SessionEvent::Connected {
            session_present,
            expected_present,
        });
        if let Some(connection) = self.connections.last_mut() {
            connection.connected_at = Some(Instant::now());
        }
        if !session_present {
            self.unreleased_messages.clear();
            self.expected_present = None;
        }
        match (session_present, self.is_subscribed) {
            (true, true) => {}
            // The session is lost. The check reports that, and the client subscribes again.
            (false, true) => {
                self.is_subscribed = false;
                return Err(LinkError::Disconnected);
            }
            (_, false) => self.events.push(SessionEvent::Subscribing),
        }
        Ok(())
    }

    fn handle_packet(
        &mut self,
        packet: Packet<'_>,
        is_silent: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        match packet {
            Packet::Publish(answer, data) => {
                let topic_and_number =
                    message::parse(data).filter(|(topic, _)| self.topics.contains(topic));
                let (topic, number) = topic_and_number
                    .ok_or_else(|| LinkError::violation("a message that nobody published to it"))?;
                self.received.fetch_add(1, Relaxed);
                let is_acknowledged = !is_silent;
                if let Some((kind, id)) = answer.filter(|_| is_acknowledged) {
                    self.dialect.write_acknowledgement(kind, id, out);
                }
                let qos = match answer {
                    None => 0,
                    Some((PacketType::PubAck, _)) => 1,
                    Some((_, id)) => {
                        if let Some(other) = self.unreleased_messages.get(&id) {
                            if *other != (topic, number) {
                                let reused = SessionEvent::IdReused { topic, number };
                                self.events.push(reused);
                            }
                            return Ok(());
                        }
                        self.unreleased_messages.insert(id, (topic, number));
                        2
                    }
                };
                self.events.push(SessionEvent::Message {
                    topic,
                    number,
                    qos,
                    is_acknowledged,
                });
            }
            Packet::Ack(PacketType::PubRel, id, _) => {
                self.unreleased_messages.remove(&id);
                if !is_silent {
                    self.dialect
                        .write_acknowledgement(PacketType::PubComp, id, out);
                }
            }
            Packet::Suback { refused: 0, .. } => {
                (self.is_subscribed, self.expected_present) = (true, Some(true));
                self.events.push(SessionEvent::Subscribed);
            }
            other => return Err(LinkError::violation(format!("the server sent {other:?}"))),
        }
        Ok(())
    }

    /// Ends the session: connects with a clean session, and disconnects.
    fn end_session(&mut self, address: SocketAddr) -> Result<(), LinkError> {
        let mut link = Link::open(address, TIMEOUT)?;
        let dialect = dialect(self.version, self.qos, SessionMode::Clean);
        (self.is_subscribed, self.expected_present) = (false, None);
        // With Clean Start the client discards its own part of the session, too (MQTT 5 §3.1.2.4).
        self.unreleased_messages.clear();
        if let Some(connection) = self.connections.last_mut() {
            connection.session_ended = None;
        }
        let mut out = Vec::new();
        dialect.write_connect(&client_id(0, 'd', self.index), &[], &mut out);
        link.send(&out)?;
        let (session_present, expected_present) =
            (wait_for_connack(&mut link, dialect)?, Some(false));
        self.events.push(SessionEvent::Connected {
            session_present,
            expected_present,
        });
        self.expected_present = expected_present;
        if let Some(connection) = self.connections.last_mut() {
            connection.session_ended = Some(true);
        }
        out.clear();
        dialect.write_disconnect(&mut out);
        link.send(&out)
    }
}

fn dialect(mqtt_version: Version, qos: u8, session: SessionMode) -> Dialect {
    let args = MqttArgs {
        mqtt_version,
        qos,
        session,
    };
    Dialect::new(&args, false)
}

/// Waits for the CONNACK, and returns Session Present.
fn wait_for_connack(link: &mut Link, dialect: Dialect) -> Result<bool, LinkError> {
    let session_present = link.read_packet(dialect, |packet| match packet {
        Packet::Connack {
            session_present, ..
        } => Some(session_present),
        _ => None,
    })?;
    session_present
        .ok_or_else(|| LinkError::violation("the server began with another packet than CONNACK"))
}
