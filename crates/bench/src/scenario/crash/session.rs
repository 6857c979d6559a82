//! An MQTT client of `crash` whose session outlives its connections and the server (`mqtt.durable_sessions`). It records what it receives and
//! how its connections end. In some rounds it is away, in others it stays connected, or it comes and goes. Sometimes it ends its session.
//!
//! A connection has its own will, with the connection's number. A client that receives a QoS 2 message again under a packet id that is not
//! released drops it, as every client does (MQTT 5 §4.3.3).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crore_wire::mqtt::{PacketId, PacketType, PropertyBuf, Qos, Will};

use super::message::{self, GROUPS, Message, TOPICS};
use crate::client::link::{End, Link, reconnect_until_gone};
use crate::client::mqtt::{Dialect, MqttArgs, Packet, Session as Kept, Version, client_id};
use crate::measure::payload::Random;

/// Timeout for the next byte.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The shortest wait for more bytes. A timeout of zero is not allowed.
const LOOK: Duration = Duration::from_millis(1);
/// A client is away in one of this many rounds, and stays connected in one of this many of the others.
const AWAY_EVERY: u32 = 4;
const STAYS_EVERY: u32 = 3;
/// A client ends its session in one of this many rounds.
const ENDS_EVERY: u32 = 12;
/// On one of this many connections the client stops to acknowledge, after at most this many messages.
const SILENT_EVERY: u32 = 4;
const SILENT_AFTER: u32 = 60;
/// The maximum duration of a connection of a client that comes and goes, and of the time between its connections, in milliseconds.
const CONNECTED_MS: u32 = 500;
const PAUSE_MS: u32 = 200;
/// Delays of wills, in seconds. MQTT 3.1.1 has none.
const DELAYS_S: [u32; 3] = [0, 1, 3];
/// The longest of them.
pub const DELAY_MAX_S: u32 = 3;

/// Something that a client has recorded for the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The CONNACK came.
    Connected {
        /// Session Present.
        present: bool,
        /// What Session Present must be; `None` if a crash left that open.
        expected: Option<bool>,
    },
    /// The client sent its SUBSCRIBE. Until the SUBACK comes the positions of the subscriptions are unknown.
    Subscribing,
    /// The SUBACK came.
    Subscribed,
    /// A message, which a client passes on to its application.
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
    /// A new QoS 2 message came under the packet id of another one that is not released.
    IdReused {
        /// The message's topic.
        topic: u32,
        /// The message's number.
        number: u32,
    },
    /// The client disconnected, and the server closed the connection: it has handled the acknowledgements that came before.
    Left,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a DISCONNECT, after which the server closed the connection.
    Left,
    /// Without, by the client or by the end of the server.
    Broken,
    /// A DISCONNECT was sent, and nobody knows whether the server has read it.
    Unknown,
}

/// A connection with a will.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The delay of the will.
    pub delay_s: u32,
    /// When the CONNACK came.
    pub connected: Option<Instant>,
    /// How and when the connection ended.
    pub ended: Option<(Ending, Instant)>,
    /// Whether the session was ended after this connection; `None` if that is unknown.
    pub session_ended: Option<bool>,
}

/// What a client does on a connection.
struct Plan {
    /// How long it stays; `None` means until the server is gone.
    stays: Option<Duration>,
    /// Whether it ends the connection without a DISCONNECT.
    cuts: bool,
    /// The number of messages after which it acknowledges no more.
    silent_after: u32,
}

/// A client with a session.
pub struct Session {
    index: u32,
    version: Version,
    /// The QoS of its subscriptions.
    pub qos: u8,
    dialect: Dialect,
    filters: Vec<String>,
    /// The topics that the subscriptions match.
    pub topics: Vec<u32>,
    /// Whether its connections have wills.
    pub has_will: bool,
    random: Random,
    /// Whether the SUBACK came.
    pub is_subscribed: bool,
    /// What the next CONNACK must say, if that is known.
    expected: Option<bool>,
    /// QoS 2 messages that are not released, by packet id.
    unreleased: HashMap<PacketId, (u32, u32)>,
    /// Events that are not checked yet.
    pub events: Vec<SessionEvent>,
    /// The connections with wills.
    pub connections: Vec<Connection>,
    /// The number of messages that all subscribers received.
    received: Arc<AtomicU64>,
    /// Rounds in which the client was away.
    pub rounds_away: u64,
    /// Violations of the protocol.
    pub violations: Vec<String>,
}

/// Filters and the topics that they match.
fn interest(index: u32) -> (Vec<String>, Vec<u32>) {
    let (topic, group) = (index * 7 % TOPICS, index % GROUPS);
    let of_group: Vec<u32> = (0..TOPICS).filter(|it| it % GROUPS == group).collect();
    let in_group = topic / GROUPS * GROUPS + group;
    match index / 2 % 7 {
        0 => (vec![message::name(topic)], vec![topic]),
        1 => {
            let topics: Vec<u32> = (0..3).map(|n| (topic + n * 5) % TOPICS).collect();
            (topics.iter().copied().map(message::name).collect(), topics)
        }
        2 => (vec![format!("crash/{group}/+")], of_group),
        3 => (vec![format!("+/{group}/#")], of_group),
        // The subscriptions overlap.
        4 => (
            vec![message::name(in_group), format!("crash/{group}/#")],
            of_group,
        ),
        5 => (vec![format!("crash/+/{topic}")], vec![topic]),
        _ => (vec!["crash/#".into()], (0..TOPICS).collect()),
    }
}

impl Session {
    /// Client `index` of the run with this seed. Its messages are counted in `received`, too.
    pub fn new(index: u32, seed: u64, received: &Arc<AtomicU64>) -> Session {
        let version = match index % 2 {
            0 => Version::V5,
            _ => Version::V311,
        };
        let qos = [1, 2, 2, 1, 0][index as usize / 2 % 5];
        let (filters, topics) = interest(index);
        Session {
            index,
            version,
            qos,
            dialect: dialect(version, qos, Kept::Persistent),
            filters,
            topics,
            has_will: !index.is_multiple_of(3),
            random: Random::new(seed ^ 0x5e55 ^ u64::from(index) << 32),
            is_subscribed: false,
            expected: Some(false),
            unreleased: HashMap::new(),
            events: Vec::new(),
            connections: Vec::new(),
            received: received.clone(),
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

    /// The topic of the client's wills.
    pub fn will_topic(&self) -> u32 {
        message::will_topic(self.index)
    }

    /// Subscribes and disconnects, while nobody publishes.
    pub fn begin(&mut self, address: SocketAddr) {
        let plan = Plan {
            stays: Some(Duration::ZERO),
            cuts: false,
            silent_after: u32::MAX,
        };
        let wrong = reconnect_until_gone(|| self.connection(address, &plan));
        self.note(wrong);
    }

    /// Connects and disconnects again and again, until the server is killed. In the last round the client stays connected and acknowledges
    /// everything.
    pub fn run(&mut self, address: SocketAddr, is_last: bool) {
        let mut is_one_in = |every| !is_last && self.random.below(every) == 0;
        let (is_away, comes_and_goes) =
            (is_one_in(AWAY_EVERY), !is_last && !is_one_in(STAYS_EVERY));
        let mut ends = is_one_in(ENDS_EVERY);
        ends &= self.is_subscribed;
        if is_away && self.is_subscribed {
            self.rounds_away += 1;
            return;
        }
        let wrong = reconnect_until_gone(|| {
            if std::mem::take(&mut ends) {
                self.end_session(address)?;
            }
            loop {
                let plan = self.plan(comes_and_goes, is_last);
                self.connection(address, &plan)?;
                let pause = self.random.below(PAUSE_MS);
                std::thread::sleep(Duration::from_millis(pause.into()));
            }
        });
        self.note(wrong);
    }

    /// Records that the server was killed soon after `at`: nobody knows what it has read since then.
    pub fn crashed(&mut self, at: Instant) {
        for connection in self.connections.iter_mut().rev() {
            let Some((ending, _)) = connection.ended.as_mut().filter(|(_, end)| *end >= at) else {
                return;
            };
            if *ending == Ending::Left {
                *ending = Ending::Unknown;
            }
        }
    }

    fn note(&mut self, wrong: Option<String>) {
        let named = wrong.map(|why| format!("{}: {why}", self.name()));
        self.violations.extend(named);
    }

    fn plan(&mut self, comes_and_goes: bool, is_last: bool) -> Plan {
        let random = &mut self.random;
        let connected = Duration::from_millis(random.below(CONNECTED_MS).into());
        let silent_after = random.below(SILENT_AFTER);
        let is_silent = !is_last && random.below(SILENT_EVERY) == 0;
        Plan {
            stays: comes_and_goes.then_some(connected),
            cuts: random.below(2) == 0,
            silent_after: if is_silent { silent_after } else { u32::MAX },
        }
    }

    fn connection(&mut self, address: SocketAddr, plan: &Plan) -> Result<(), End> {
        let mut link = Link::open(address, TIMEOUT)?;
        let delay = match self.version {
            Version::V5 => self.random.below(DELAYS_S.len() as u32),
            Version::V311 => 0,
        };
        self.connections.push(Connection {
            delay_s: DELAYS_S[delay as usize],
            connected: None,
            ended: None,
            session_ended: Some(false),
        });
        let result = self.converse(&mut link, plan);
        let is_left = matches!(result, Ok(true));
        let now = Instant::now();
        if let Some(it) = self.connections.last_mut() {
            let ending = if is_left {
                Ending::Left
            } else {
                Ending::Broken
            };
            it.ended.get_or_insert((ending, now));
        }
        if is_left {
            self.events.push(SessionEvent::Left);
        }
        result.map(|_| ())
    }

    /// Returns whether the client has left with a DISCONNECT.
    fn converse(&mut self, link: &mut Link, plan: &Plan) -> Result<bool, End> {
        let (dialect, begin) = (self.dialect, Instant::now());
        let mut out = Vec::new();
        self.write_connect(&mut out);
        let expected = self.expected;
        if expected == Some(false) {
            // If no CONNACK comes, the session may have begun.
            self.expected = None;
        }
        link.send(&out)?;
        out.clear();
        self.connacked(link, expected)?;
        let mut taken = 0;
        loop {
            let mut used = 0;
            while let Some((packet, bytes)) =
                dialect.packet(&link.held[used..]).map_err(End::violation)?
            {
                used += bytes;
                let is_silent = taken >= plan.silent_after;
                taken += u32::from(matches!(packet, Packet::Publish(..)));
                self.take(packet, is_silent, &mut out)?;
            }
            link.held.drain(..used);
            link.send(&out)?;
            out.clear();
            let left = match plan.stays {
                Some(stays) => stays.saturating_sub(begin.elapsed()),
                None => TIMEOUT,
            };
            if left.is_zero() && self.is_subscribed {
                break;
            }
            if !link.read_within(left.max(LOOK))? && plan.stays.is_none() {
                return Err(End::violation("nothing came for too long"));
            }
        }
        if plan.cuts {
            return Ok(false);
        }
        self.leave(link, dialect)
    }

    /// Sends a DISCONNECT, and waits until the server closes.
    fn leave(&mut self, link: &mut Link, dialect: Dialect) -> Result<bool, End> {
        let mut out = Vec::new();
        dialect.disconnect(&mut out);
        if let Err(end) = link.send(&out) {
            if let Some(it) = self.connections.last_mut() {
                it.ended = Some((Ending::Unknown, Instant::now()));
            }
            return Err(end);
        }
        loop {
            link.held.clear();
            match link.read_within(TIMEOUT) {
                Ok(true) => {}
                Ok(false) => return Err(End::violation("the server does not close")),
                Err(End::Disconnected) => return Ok(true),
                Err(end) => return Err(end),
            }
        }
    }

    fn write_connect(&mut self, out: &mut Vec<u8>) {
        let delay_s = self.connections.last().map_or(0, |it| it.delay_s);
        let mut properties = PropertyBuf::new();
        if delay_s > 0 {
            properties.will_delay_interval_s(delay_s);
        }
        let (topic, number) = (self.will_topic(), self.connections.len() as u32);
        let (name, text) = (message::name(topic), Message::small(topic, number).data());
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
        self.dialect.connect_with_will(&client, will, filters, out);
    }

    /// Waits for the CONNACK.
    fn connacked(&mut self, link: &mut Link, expected: Option<bool>) -> Result<(), End> {
        let present = connack(link, self.dialect)?;
        self.events
            .push(SessionEvent::Connected { present, expected });
        if let Some(it) = self.connections.last_mut() {
            it.connected = Some(Instant::now());
        }
        if !present {
            self.unreleased.clear();
            self.expected = None;
        }
        match (present, self.is_subscribed) {
            (true, true) => {}
            // The check reports it. The client subscribes again.
            (false, true) => {
                self.is_subscribed = false;
                return Err(End::Disconnected);
            }
            (_, false) => self.events.push(SessionEvent::Subscribing),
        }
        Ok(())
    }

    fn take(&mut self, packet: Packet<'_>, is_silent: bool, out: &mut Vec<u8>) -> Result<(), End> {
        match packet {
            Packet::Publish(answer, data) => {
                let read = message::read(data).filter(|(topic, _)| self.topics.contains(topic));
                let (topic, number) =
                    read.ok_or_else(|| End::violation("a message that nobody published to it"))?;
                self.received.fetch_add(1, Relaxed);
                let is_acknowledged = !is_silent;
                if let Some((kind, id)) = answer.filter(|_| is_acknowledged) {
                    self.dialect.acknowledge(kind, id, out);
                }
                let qos = match answer {
                    None => 0,
                    Some((PacketType::PubAck, _)) => 1,
                    Some((_, id)) => {
                        if let Some(other) = self.unreleased.get(&id) {
                            if *other != (topic, number) {
                                let reused = SessionEvent::IdReused { topic, number };
                                self.events.push(reused);
                            }
                            return Ok(());
                        }
                        self.unreleased.insert(id, (topic, number));
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
                self.unreleased.remove(&id);
                if !is_silent {
                    self.dialect.acknowledge(PacketType::PubComp, id, out);
                }
            }
            Packet::Suback { refused: 0, .. } => {
                (self.is_subscribed, self.expected) = (true, Some(true));
                self.events.push(SessionEvent::Subscribed);
            }
            other => return Err(End::violation(format!("the server sent {other:?}"))),
        }
        Ok(())
    }

    /// Connects with a clean session, and disconnects.
    fn end_session(&mut self, address: SocketAddr) -> Result<(), End> {
        let mut link = Link::open(address, TIMEOUT)?;
        let dialect = dialect(self.version, self.qos, Kept::Clean);
        (self.is_subscribed, self.expected) = (false, None);
        // With Clean Start the client discards its own part of the session, too (MQTT 5 §3.1.2.4).
        self.unreleased.clear();
        if let Some(it) = self.connections.last_mut() {
            it.session_ended = None;
        }
        let mut out = Vec::new();
        dialect.connect(&client_id(0, 'd', self.index), &[], &mut out);
        link.send(&out)?;
        let (present, expected) = (connack(&mut link, dialect)?, Some(false));
        self.events
            .push(SessionEvent::Connected { present, expected });
        self.expected = expected;
        if let Some(it) = self.connections.last_mut() {
            it.session_ended = Some(true);
        }
        out.clear();
        dialect.disconnect(&mut out);
        link.send(&out)
    }
}

fn dialect(mqtt_version: Version, qos: u8, session: Kept) -> Dialect {
    let args = MqttArgs {
        mqtt_version,
        qos,
        session,
    };
    Dialect::new(&args, false)
}

/// Waits for the CONNACK, and returns Session Present.
fn connack(link: &mut Link, dialect: Dialect) -> Result<bool, End> {
    let present = link.packet(dialect, |packet| match packet {
        Packet::Connack { present, .. } => Some(present),
        _ => None,
    })?;
    present.ok_or_else(|| End::violation("the server began with another packet than CONNACK"))
}
