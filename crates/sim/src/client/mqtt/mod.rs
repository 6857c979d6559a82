//! A client of MQTT 3.1.1 or 5.0, over TCP or within a WebSocket: subscribes, publishes, or both, in a session that lasts
//! or in one that ends with its connection. `packets` reads and writes, `session` is the client's memory from one
//! connection to the next, `receive` and `publish` follow the messages both ways, `subscribe` asks for its
//! subscriptions, each a `subscription`, and `track` finds in the end which messages are missing; `in_flight` is what waits
//! for the other side.
//!
//! Invariant: the client meets the specification's requirements of clients, and forgets nothing of a session that the server
//! may still have. Its checks hold for every server; where it cannot know whether the server received a packet, it demands nothing.

mod in_flight;
mod packets;
mod publish;
mod receive;
mod session;
mod subscribe;
mod subscription;
mod track;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crore_wire::mqtt::{
    ConnAck, Connect, Disconnect, Packet, Properties, PropertyBuf, Qos, ReasonCode, Version, Will,
    encode,
};
use crore_wire::websocket::receive::Partial;

use crate::coverage::Coverage;
use crate::plan::Plan;
use crate::truth::{MessageSpec, MqttOptions, Truth, Violation};
use crore_rng::Rng;
use in_flight::{Asked, PendingAck, Receipt, Sent};
use subscription::Sub;

/// One connection.
#[derive(Default)]
struct Conn {
    /// Received bytes, and the packets in them.
    raw: Vec<u8>,
    packets: Vec<u8>,
    /// Over WebSocket: the upgrade was answered.
    upgraded: bool,
    partial: Option<Box<Partial>>,
    /// It asked for a new session.
    clean: bool,
    asked: u32,
    asked_s: u32,
    /// Its CONNECT was answered; the session was there already.
    present: Option<bool>,
    /// The state of the session is uncertain: an attempt without an answer may have changed it.
    doubtful: bool,
    /// Messages that may be under way to the client, and from it.
    receive_max: usize,
    send_max: usize,
    /// Ids under way to the client, as it counts them.
    open: BTreeSet<u16>,
    /// Acknowledgements that it owes for messages it has read.
    acks: VecDeque<PendingAck>,
    /// A new message came; repeated ones must come before.
    fresh: bool,
    /// The serial of the receipt that was repeated last.
    again: Option<u32>,
    aliases_max: u16,
    aliases: BTreeMap<u16, usize>,
    /// Ids of its publishes that wait for PUBACK, and for PUBREC.
    pubacks: VecDeque<u16>,
    pubrecs: VecDeque<u16>,
    /// SUBSCRIBEs and UNSUBSCRIBEs without an answer.
    asks: Vec<Asked>,
    /// For each PINGREQ without an answer: the receipts that were acknowledged before it.
    pings: VecDeque<Vec<u32>>,
}

/// The properties of a client that never change.
struct Role {
    /// Its number among all clients.
    number: usize,
    id: String,
    version: Version,
    framed: bool,
    /// Seconds that its session outlives a connection; 0: each connection has a new session.
    expiry_s: u32,
    /// It also subscribes to `#`, and to nothing with QoS 0: then each message comes once.
    covers: bool,
    /// The topics that it publishes to.
    publishes: Vec<usize>,
    retains: bool,
}

/// A client's knowledge of its session at the server. A CONNECT without an answer may have found the session or begun another one.
#[derive(Default)]
struct Session {
    /// How often the client sent a CONNECT.
    attempts: u32,
    /// The connections of the CONNECTs that asked for a new session.
    resets: Vec<u32>,
    /// How many of its last CONNECTs had no answer.
    unanswered: u32,
    /// The connections of all CONNECTs without an answer.
    silent: Vec<u32>,
    /// The server may have handled one of them after the last CONNECT that found the session.
    may_come_late: bool,
    /// When it sent the CONNECT of the last connection that had the session, as far as it knows.
    known_s: Option<u32>,
    /// The session may have ended since then.
    may_be_gone: bool,
    /// The server may have another session since then, without the state that the client remembers.
    may_be_other: bool,
    /// The subscription to `#` was granted in this session.
    is_covered: bool,
}

/// The last numbers that a client has given.
#[derive(Default)]
struct Given {
    packet_ids: u16,
    /// To subscriptions.
    identifiers: u32,
    receipts: u32,
}

/// The client.
pub struct Client {
    role: Role,
    subs: Vec<Sub>,
    /// Its connection's link.
    pub link: Option<u32>,
    /// Connections that it has given up and has not seen closed.
    pub old: Vec<u32>,
    conn: Conn,
    session: Session,
    receipts: Vec<Receipt>,
    sent: VecDeque<Sent>,
    given: Given,
    /// Bytes that it sends.
    pub out: Vec<u8>,
    /// It closes its connection after sending these.
    pub closes: bool,
    /// The server turned it away for want of room.
    pub turned_away: bool,
}

/// Seconds that sessions outlive their connections; 0 is none.
const EXPIRIES_S: [u32; 6] = [0, 5, 60, 3600, 3600, 3600];

impl Client {
    /// A random client.
    pub fn new(number: usize, plan: &Plan, rng: &mut Rng) -> Client {
        let mut topics: Vec<usize> = (0..plan.topics.len()).collect();
        rng.shuffle(&mut topics);
        let all = topics.clone();
        topics.truncate(rng.range(1, 4));
        let (subscribes, publishes) =
            rng.pick(&[(true, false), (true, false), (true, true), (false, true)]);
        let version = rng.pick(&[Version::V311, Version::V5, Version::V5]);
        let most_s = plan.settings.mqtt.session_expiry_max_s;
        let expiry_s = match (rng.pick(&EXPIRIES_S), version) {
            // In 3.1.1 a session has no expiry of its own and lasts as long as the server allows.
            (1.., Version::V311) => most_s,
            (expiry_s, _) => expiry_s.min(most_s),
        };
        let framed = rng.chance(30);
        let subs = match subscribes {
            true => topics.into_iter().map(Sub::new).collect(),
            false => Vec::new(),
        };
        let publishes = match publishes {
            true => all[..rng.range(1, all.len())].to_vec(),
            false => Vec::new(),
        };
        Client {
            role: Role {
                number,
                id: format!("client{number}"),
                version,
                framed,
                expiry_s,
                covers: false,
                publishes,
                retains: plan.retains && rng.chance(50),
            },
            subs,
            link: None,
            old: Vec::new(),
            conn: Conn::default(),
            session: Session::default(),
            receipts: Vec::new(),
            sent: VecDeque::new(),
            given: Given::default(),
            out: Vec::new(),
            closes: false,
            turned_away: false,
        }
    }

    /// The same client, with a subscription that overlaps all others.
    pub fn covering(mut self) -> Client {
        // In 3.1.1 retained messages would come for both subscriptions.
        self.role.covers = !self.subs.is_empty() && self.role.version == Version::V5;
        self
    }

    /// Whether the server has answered its CONNECT.
    pub fn is_connected(&self) -> bool {
        self.link.is_some() && self.conn.present.is_some()
    }

    /// Begins a connection; a connection that it already has is abandoned.
    pub fn connect(&mut self, link: u32, plan: &Plan, truth: &mut Truth, rng: &mut Rng) {
        if let Some(old) = self.link {
            self.ended();
            self.old.push(old);
        }
        self.link = Some(link);
        self.session.silent.push(link);
        // A client asks for a new session only when none of its old connections is left. In 3.1.1 such a session would end
        // with its connection.
        let anew = self.old.is_empty() && rng.chance(4) && self.role.version == Version::V5;
        self.conn = Conn {
            clean: self.role.expiry_s == 0 || anew,
            asked: truth.step,
            asked_s: truth.now_s,
            receive_max: match self.role.version {
                Version::V311 => usize::from(u16::MAX),
                Version::V5 => rng.pick(&[1, 1, 2, 3, 5, 100]),
            },
            doubtful: self.session.may_be_other,
            upgraded: !self.role.framed,
            ..Conn::default()
        };
        self.out.clear();
        self.closes = false;
        if self.role.framed {
            self.out.extend_from_slice(
                b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                  Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
                  Sec-WebSocket-Protocol: mqtt\r\n\r\n",
            );
        }
        self.write_connect(plan, truth, rng);
        if self.conn.clean && self.role.expiry_s > 0 {
            (self.session.may_be_gone, self.session.may_be_other) = (true, true);
            self.session.resets.push(link);
        }
    }

    fn write_connect(&mut self, plan: &Plan, truth: &mut Truth, rng: &mut Rng) {
        let mut set = PropertyBuf::new();
        if self.role.version == Version::V5 {
            if self.role.expiry_s > 0 {
                set.session_expiry_interval_s(self.role.expiry_s);
            }
            set.receive_maximum(self.conn.receive_max as u16);
            self.conn.aliases_max = rng.pick(&[0, 1, 2]);
            set.topic_alias_maximum(self.conn.aliases_max);
        }
        let most = usize::from(plan.settings.mqtt.inflight_max);
        self.conn.receive_max = self.conn.receive_max.min(most);
        let keep_alive_s = rng.pick(&[0, 0, 0, 60]);
        let (mut of_will, mut payload, mut topic) = (PropertyBuf::new(), Vec::new(), String::new());
        let qos = Qos::from_repr(rng.below(3) as u8).expect("below three");
        let wills = rng.chance(20);
        if wills {
            let at = rng.below(truth.topics.len());
            let number = truth.write(MessageSpec {
                topic: at,
                len: 4,
                key: 0,
                ttl_s: None,
            });
            let mqtt_options = MqttOptions {
                qos: qos.bits(),
                retain: false,
                // The server publishes it, not the client.
                by: None,
            };
            truth.mqtt_options.insert(number, mqtt_options);
            payload = truth.data(number);
            topic.clone_from(&truth.topics[at].name);
            if self.role.version == Version::V5 {
                of_will.will_delay_interval_s(rng.pick(&[0, 0, 3, 100]));
            }
        }
        let will = wills.then(|| Will {
            qos,
            retain: false,
            properties: of_will.properties(),
            topic: &topic,
            payload: &payload,
        });
        let (id, version, clean_start) = (self.role.id.clone(), self.role.version, self.conn.clean);
        let receive_max = self.conn.receive_max;
        truth.note(|| {
            format!(
                "{:?} {id} connects, clean: {clean_start}, receive maximum {receive_max}",
                self.link
            )
        });
        self.session.attempts += 1;
        self.session.unanswered += 1;
        self.write(|out| {
            encode::connect(
                out,
                &Connect {
                    version,
                    bridge: false,
                    clean_start,
                    keep_alive_s,
                    properties: set.properties(),
                    client_id: &id,
                    will,
                    user_name: None,
                    password: None,
                },
            );
        });
    }

    /// Records the MQTT options of a message of this client.
    fn record_mqtt_options(&self, number: u32, qos: Qos, retain: bool, truth: &mut Truth) {
        let mqtt_options = MqttOptions {
            qos: qos.bits(),
            retain,
            by: Some(self.role.number),
        };
        truth.mqtt_options.insert(number, mqtt_options);
    }

    fn connected(
        &mut self,
        connack: &ConnAck<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let present = connack.session_present;
        truth.note(|| {
            format!(
                "{:?} {} is told {:?}, present: {present}",
                self.link, self.role.id, connack.reason
            )
        });
        if self.conn.present.is_some() {
            return Err("a second CONNACK".into());
        }
        self.session.silent.retain(|link| Some(*link) != self.link);
        if connack.reason.is_error() {
            return self.refused(connack.reason, truth, coverage);
        }
        self.turned_away = false;
        self.conn.send_max = usize::from(connack.properties.receive_maximum());
        self.opened(present, truth, coverage)?;
        self.conn.present = Some(present);
        self.send_again(truth, coverage);
        Ok(())
    }

    /// The server refused the connection: it has no room, or another connection of this client came before.
    fn refused(
        &mut self,
        reason: ReasonCode,
        truth: &Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.closes = true;
        self.turned_away = true;
        let fights = !self.old.is_empty();
        match reason {
            ReasonCode::SERVER_BUSY | ReasonCode::SERVER_UNAVAILABLE if fights => {}
            _ if truth.may_refuse() => coverage.refused += 1,
            reason => return Err(format!("{} was refused: {reason:?}", self.role.id)),
        }
        Ok(())
    }

    /// Sends DISCONNECT and closes; `with_will` leaves the will to be published.
    pub fn leave(&mut self, truth: &mut Truth, rng: &mut Rng) {
        if !self.is_connected() {
            return;
        }
        let mut set = PropertyBuf::new();
        let mut reason = ReasonCode::NORMAL_DISCONNECTION;
        if self.role.version == Version::V5 && rng.chance(30) {
            reason = ReasonCode::DISCONNECT_WITH_WILL;
        }
        if self.role.version == Version::V5 && self.role.expiry_s > 0 && rng.chance(20) {
            set.session_expiry_interval_s(0);
            self.session.may_be_gone = true;
        }
        let (link, id, ends) = (self.link, &self.role.id, self.session.may_be_gone);
        truth.note(|| format!("{link:?} {id} leaves: {reason:?}, its session may end: {ends}"));
        let version = self.role.version;
        self.write(|out| {
            let properties = set.properties();
            encode::disconnect(out, version, &Disconnect { reason, properties });
        });
    }

    /// The connection ended.
    pub fn ended(&mut self) {
        self.link = None;
        self.out.clear();
        self.lost();
        self.conn = Conn::default();
    }

    fn packet(
        &mut self,
        packet: &Packet<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        if self.conn.present.is_none() && !matches!(packet, Packet::ConnAck(_)) {
            return Err(format!("{:?} before CONNACK", packet.kind()));
        }
        match packet {
            Packet::ConnAck(connack) => self.connected(connack, truth, coverage),
            Packet::Publish(publish) => self.message(publish, truth, coverage),
            Packet::PubRel(ack) => self.released(ack.packet_id.get(), truth),
            Packet::PubAck(ack) => self.acknowledged(ack, truth, coverage),
            Packet::PubRec(ack) => self.was_received(ack, truth, coverage),
            Packet::PubComp(ack) => self.completed(ack, truth),
            Packet::SubAck(ack) => {
                let reasons = ack.reasons.iter().collect();
                self.granted(ack.packet_id.get(), reasons, truth, coverage)
            }
            Packet::UnsubAck(ack) => self.ungranted(ack.packet_id.get(), truth),
            Packet::PingResp => self.pinged(),
            Packet::Disconnect(disconnect) => {
                self.told_to_leave(disconnect.reason, truth, coverage)
            }
            other => Err(format!("a client got {:?}", other.kind())),
        }
    }

    fn told_to_leave(
        &mut self,
        reason: ReasonCode,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} {} is sent away: {reason:?}", self.link, self.role.id));
        self.closes = true;
        match reason {
            ReasonCode::SESSION_TAKEN_OVER if !self.old.is_empty() => {
                coverage.takeovers += 1;
                Ok(())
            }
            ReasonCode::KEEP_ALIVE_TIMEOUT => Ok(()),
            // A publish whose outcome is not known.
            ReasonCode::SERVER_BUSY if truth.allowed.engine_is_late => Ok(()),
            _ if !truth.allowed.budgets_are_wide => Ok(()),
            reason => Err(format!("{} was sent away: {reason:?}", self.role.id)),
        }
    }

    /// Compares all received messages with the published ones.
    pub fn check(&self, truth: &Truth) -> Result<(), Violation> {
        for sub in &self.subs {
            let most = truth.allowed.session_messages;
            let order = match sub.is_split() {
                // Each of the two subscriptions brings its messages in their order.
                true => Ok(()),
                false => sub.track.check_orders(truth),
            };
            order
                .and_then(|()| sub.track.check(truth, most, self.role.number))
                .map_err(|wrong| format!("{}, topic {}: {wrong}", self.role.id, sub.track.topic))?;
        }
        Ok(())
    }
}

/// No properties.
const NOTHING: Properties<'static> = Properties::NONE;
