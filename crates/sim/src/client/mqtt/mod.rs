//! A client of MQTT 3.1.1 or 5.0, over TCP or WebSocket. It subscribes, publishes, or both. Its session ends with the connection or
//! outlives it, depending on the session expiry interval.
//!
//! `packets` reads and writes packets. `session` keeps the state between connections. `receive` and `publish` handle the messages in each
//! direction, and `in_flight` has the types of unacknowledged packets. `subscribe` sends the requests for subscriptions, and `subscription`
//! checks their messages. `track` finds missing messages at the end of a run.
//!
//! Invariant: the client obeys the specification, and forgets nothing of a session that the server may still have. Its checks hold for
//! every correct server. If the client cannot know whether the server received a packet, it checks nothing that depends on that packet.

mod in_flight;
mod packets;
mod publish;
mod receive;
mod session;
mod subscribe;
mod subscription;
mod track;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crore_rng::Rng;
use crore_wire::mqtt::{
    ConnAck, Connect, Disconnect, Packet, Properties, PropertyWriter, Qos, ReasonCode, Version,
    Will, encode,
};
use crore_wire::websocket::receive::Partial;

use crate::coverage::Coverage;
use crate::plan::Plan;
use crate::truth::{MessageSpec, MqttOptions, Truth, Violation};
use in_flight::{PendingAck, PendingSubscribe, Receipt, Sent};
use subscription::TopicSubscription;

/// One connection.
#[derive(Default)]
struct Conn {
    /// Received bytes that are not parsed yet.
    received: Vec<u8>,
    /// The bytes of received packets, without WebSocket frames.
    packet_bytes: Vec<u8>,
    /// Whether the WebSocket upgrade was answered, or the transport is TCP.
    upgraded: bool,
    partial: Option<Box<Partial>>,
    /// Whether the CONNECT asked for a new session.
    clean_start: bool,
    /// The step and the second of the CONNECT.
    connect_step: u32,
    connect_s: u32,
    /// The flag "session present" of CONNACK; `None` before CONNACK.
    session_present: Option<bool>,
    /// Whether the session may be another one than the client remembers, since an unanswered CONNECT may have begun a new session.
    session_uncertain: bool,
    /// The maximum number of messages in flight to the client.
    receive_max: usize,
    /// The maximum number of messages in flight from the client.
    send_max: usize,
    /// Packet ids of messages to the client that the client has not acknowledged completely.
    ids_in_flight: BTreeSet<u16>,
    /// Acknowledgements that the client has not sent yet.
    acks: VecDeque<PendingAck>,
    /// Whether a new message was received. After that the server may not repeat messages of the session.
    received_new: bool,
    /// The serial of the receipt that was repeated last.
    last_repeated: Option<u32>,
    /// The highest topic alias that the server may use.
    aliases_max: u16,
    /// The topic of each alias in use.
    aliases: BTreeMap<u16, usize>,
    /// Packet ids of publishes that wait for PUBACK, and of those that wait for PUBREC, in the order of sending.
    pubacks: VecDeque<u16>,
    pubrecs: VecDeque<u16>,
    /// Unanswered SUBSCRIBEs and UNSUBSCRIBEs.
    pending_subscribes: Vec<PendingSubscribe>,
    /// The number of its will, if it has one, and the will's delay in seconds.
    will: Option<(u32, u32)>,
    /// For each unanswered PINGREQ, the serials of the receipts that the client had acknowledged before.
    pings: VecDeque<Vec<u32>>,
}

/// The properties of a client that never change.
struct Role {
    /// The client's number among all clients.
    number: usize,
    id: String,
    version: Version,
    over_websocket: bool,
    /// The session expiry interval in seconds. With 0 each connection has a new session.
    expiry_s: u32,
    /// Whether the client also subscribes to `#`. Such a client uses no QoS 0, so that the server must deliver each message.
    has_wildcard: bool,
    /// The topics to which the client publishes.
    publishes: Vec<usize>,
    /// Whether some of the client's messages have RETAIN.
    retains: bool,
    /// The highest QoS of its subscriptions.
    subscription_qos_max: u8,
    /// Whether it leaves its subscriptions as they are.
    subscriptions_stay: bool,
    /// The highest packet id of its messages.
    packet_ids_max: u16,
    /// The server is a cluster. With each new connection the session may move to another node, which knows what was recorded.
    in_cluster: bool,
}

/// The session at the server, as far as the client knows. A CONNECT without an answer may have resumed the session or begun a new one.
#[derive(Default)]
struct Session {
    /// The number of CONNECTs sent.
    attempts: u32,
    /// Links of the CONNECTs that asked for a new session.
    clean_start_links: Vec<u32>,
    /// The number of CONNECTs without an answer since the last answered one.
    unanswered_connects: u32,
    /// Links of the CONNECTs without an answer that the server may still handle.
    unanswered_links: Vec<u32>,
    /// Whether the server may have handled an unanswered CONNECT after the last answered one.
    connect_may_arrive_late: bool,
    /// The second in which the client sent the last CONNECT that the server accepted.
    last_connect_s: Option<u32>,
    /// Whether the session may have ended since that CONNECT.
    may_have_ended: bool,
    /// Whether the server may have begun a new session since that CONNECT. The client's state would not exist in that session.
    may_be_replaced: bool,
    /// Whether the server granted the subscription to `#` in this session.
    wildcard_granted: bool,
    /// The server has crashed during the session.
    survived_crash: bool,
}

/// The last number of each kind that the client has used.
#[derive(Default)]
struct LastNumbers {
    packet_ids: u16,
    /// Subscription identifiers.
    identifiers: u32,
    receipts: u32,
}

/// The client.
pub struct Client {
    role: Role,
    subs: Vec<TopicSubscription>,
    /// The link of the client's connection.
    pub link: Option<u32>,
    /// Links that the client has abandoned and the server may not have closed yet.
    pub abandoned_links: Vec<u32>,
    conn: Conn,
    session: Session,
    receipts: Vec<Receipt>,
    /// The received messages of which the log may not know that the client has them. For each, the link on which the client has acknowledged it; `None`
    /// if it has not. A QoS 0 message needs no acknowledgement.
    unrecorded: BTreeMap<u32, Option<u32>>,
    /// The wills without a delay that the server must publish after a crash, since their connections ended with it.
    pub wills_due: Vec<u32>,
    sent: VecDeque<Sent>,
    last: LastNumbers,
    /// Bytes to send.
    pub out: Vec<u8>,
    /// Whether the client closes its connection when `out` is sent.
    pub must_close: bool,
    /// Whether the server has refused the connection or a subscription.
    pub was_refused: bool,
}

/// Choices for the session expiry interval.
const EXPIRIES_S: [u32; 6] = [0, 5, 60, 3600, 3600, 3600];

impl Client {
    /// A random client.
    pub fn new(number: usize, plan: &Plan, rng: &mut Rng) -> Client {
        let mut topics: Vec<usize> = (0..plan.topics.len()).collect();
        rng.shuffle(&mut topics);
        let all_topics = topics.clone();
        topics.truncate(rng.range(1, 4));
        let (subscribes, publishes) =
            rng.pick(&[(true, false), (true, false), (true, true), (false, true)]);
        let version = rng.pick(&[Version::V311, Version::V5, Version::V5]);
        let expiry_max_s = plan.settings.mqtt.session_expiry_max_s;
        let expiry_s = match (rng.pick(&EXPIRIES_S), version) {
            // In 3.1.1 there is no expiry interval, and a session lasts as long as the server allows.
            (1.., Version::V311) => expiry_max_s,
            (expiry_s, _) => expiry_s.min(expiry_max_s),
        };
        let over_websocket = rng.chance(30);
        let subs = match subscribes {
            true => topics.into_iter().map(TopicSubscription::new).collect(),
            false => Vec::new(),
        };
        let publishes = match publishes {
            true => all_topics[..rng.range(1, all_topics.len())].to_vec(),
            false => Vec::new(),
        };
        Client {
            role: Role {
                number,
                id: format!("client{number}"),
                version,
                over_websocket,
                expiry_s,
                has_wildcard: false,
                publishes,
                retains: plan.retains && rng.chance(50),
                subscription_qos_max: plan.subscription_qos_max,
                subscriptions_stay: plan.subscriptions_stay,
                packet_ids_max: plan.packet_ids_max,
                in_cluster: plan.nodes > 1,
            },
            subs,
            link: None,
            abandoned_links: Vec::new(),
            conn: Conn::default(),
            session: Session::default(),
            receipts: Vec::new(),
            unrecorded: BTreeMap::new(),
            wills_due: Vec::new(),
            sent: VecDeque::new(),
            last: LastNumbers::default(),
            out: Vec::new(),
            must_close: false,
            was_refused: false,
        }
    }

    /// Adds a subscription to `#`, which overlaps all others. Only a 5.0 client with subscriptions gets it.
    pub fn with_wildcard(mut self) -> Client {
        // A 3.1.1 client does not get the subscription, because it would receive retained messages for both subscriptions.
        self.role.has_wildcard = !self.subs.is_empty() && self.role.version == Version::V5;
        for sub in &mut self.subs {
            sub.track.overlaps = self.role.has_wildcard;
        }
        self
    }

    /// Whether the server has answered the client's CONNECT.
    pub fn is_connected(&self) -> bool {
        self.link.is_some() && self.conn.session_present.is_some()
    }

    /// Begins a connection, and abandons the current one.
    pub fn connect(&mut self, link: u32, plan: &Plan, truth: &mut Truth, rng: &mut Rng) {
        if let Some(old) = self.link {
            self.connection_ended();
            self.abandoned_links.push(old);
        }
        if self.role.in_cluster && self.session.attempts > 0 {
            self.session_moved(truth.step);
        }
        self.link = Some(link);
        self.session.unanswered_links.push(link);
        // The client asks for a new session only while it has no old connections. In 3.1.1 the client never asks, since such a session
        // would end with its connection.
        let asks_new_session =
            self.abandoned_links.is_empty() && rng.chance(4) && self.role.version == Version::V5;
        self.conn = Conn {
            clean_start: self.role.expiry_s == 0 || asks_new_session,
            connect_step: truth.step,
            connect_s: truth.now_s,
            receive_max: match self.role.version {
                Version::V311 => usize::from(u16::MAX),
                Version::V5 => rng.pick(&[1, 1, 2, 3, 5, 100]),
            },
            session_uncertain: self.session.may_be_replaced,
            upgraded: !self.role.over_websocket,
            ..Conn::default()
        };
        self.out.clear();
        self.must_close = false;
        if self.role.over_websocket {
            self.out.extend_from_slice(
                b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                  Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
                  Sec-WebSocket-Protocol: mqtt\r\n\r\n",
            );
        }
        self.write_connect(plan, truth, rng);
        if self.conn.clean_start && self.role.expiry_s > 0 {
            (self.session.may_have_ended, self.session.may_be_replaced) = (true, true);
            self.session.clean_start_links.push(link);
        }
    }

    fn write_connect(&mut self, plan: &Plan, truth: &mut Truth, rng: &mut Rng) {
        let mut set = PropertyWriter::new();
        if self.role.version == Version::V5 {
            if self.role.expiry_s > 0 {
                set.session_expiry_interval_s(self.role.expiry_s);
            }
            set.receive_maximum(self.conn.receive_max as u16);
            self.conn.aliases_max = rng.pick(&[0, 1, 2]);
            set.topic_alias_maximum(self.conn.aliases_max);
        }
        let inflight_max = usize::from(plan.settings.mqtt.inflight_max);
        self.conn.receive_max = self.conn.receive_max.min(inflight_max);
        let keep_alive_s = rng.pick(&[0, 0, 0, 60]);
        let (mut will_set, mut payload, mut topic) =
            (PropertyWriter::new(), Vec::new(), String::new());
        let qos = Qos::from_repr(rng.below(3) as u8).expect("below three");
        let has_will = rng.chance(20);
        if has_will {
            let at = rng.below(truth.topics.len());
            let number = truth.add_message(MessageSpec {
                topic: at,
                len: 4,
                key: 0,
                ttl_s: None,
            });
            let mqtt_options = MqttOptions {
                qos: qos.bits(),
                retain: false,
                // A will is published by the server, not by the client.
                by: None,
            };
            truth.mqtt_options.insert(number, mqtt_options);
            payload = truth.data(number);
            topic.clone_from(&truth.topics[at].name);
            let mut delay_s = 0;
            if self.role.version == Version::V5 {
                delay_s = rng.pick(&[0, 0, 3, 100]);
                will_set.will_delay_interval_s(delay_s);
            }
            self.conn.will = Some((number, delay_s));
        }
        let will = has_will.then(|| Will {
            qos,
            retain: false,
            properties: will_set.properties(),
            topic: &topic,
            payload: &payload,
        });
        let (id, version, clean_start) = (
            self.role.id.clone(),
            self.role.version,
            self.conn.clean_start,
        );
        let receive_max = self.conn.receive_max;
        truth.note(|| {
            format!(
                "{:?} {id} connects, clean: {clean_start}, receive maximum {receive_max}",
                self.link
            )
        });
        self.session.attempts += 1;
        self.session.unanswered_connects += 1;
        self.send_packet(|out| {
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

    fn handle_connack(
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
        if self.conn.session_present.is_some() {
            return Err("a second CONNACK".into());
        }
        self.session
            .unanswered_links
            .retain(|link| Some(*link) != self.link);
        if connack.reason.is_error() {
            return self.refused(connack.reason, truth, coverage);
        }
        self.was_refused = false;
        self.conn.send_max = usize::from(connack.properties.receive_maximum());
        self.session_opened(present, truth, coverage)?;
        self.conn.session_present = Some(present);
        self.resend_unanswered(truth, coverage);
        Ok(())
    }

    /// Handles a refused connection: the server has no room, or an old connection of this client still holds the session.
    fn refused(
        &mut self,
        reason: ReasonCode,
        truth: &Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.must_close = true;
        self.was_refused = true;
        let may_be_held_by_old_link = !self.abandoned_links.is_empty();
        match reason {
            ReasonCode::SERVER_BUSY | ReasonCode::SERVER_UNAVAILABLE if may_be_held_by_old_link => {
            }
            // The node is cut off from the log.
            ReasonCode::SERVER_UNAVAILABLE if self.role.in_cluster => coverage.refused += 1,
            _ if truth.may_refuse() => coverage.refused += 1,
            reason => return Err(format!("{} was refused: {reason:?}", self.role.id)),
        }
        Ok(())
    }

    /// Sends DISCONNECT. In some cases the packet asks the server to publish the will or to end the session.
    pub fn disconnect(&mut self, truth: &mut Truth, rng: &mut Rng) {
        if !self.is_connected() {
            return;
        }
        let mut set = PropertyWriter::new();
        let mut reason = ReasonCode::NORMAL_DISCONNECTION;
        if self.role.version == Version::V5 && rng.chance(30) {
            reason = ReasonCode::DISCONNECT_WITH_WILL;
        }
        if self.role.version == Version::V5 && self.role.expiry_s > 0 && rng.chance(20) {
            set.session_expiry_interval_s(0);
            self.session.may_have_ended = true;
        }
        let (link, id, ends) = (self.link, &self.role.id, self.session.may_have_ended);
        truth.note(|| format!("{link:?} {id} leaves: {reason:?}, its session may end: {ends}"));
        let version = self.role.version;
        self.send_packet(|out| {
            let properties = set.properties();
            encode::disconnect(out, version, &Disconnect { reason, properties });
        });
    }

    /// Updates the state after the connection has ended.
    pub fn connection_ended(&mut self) {
        self.link = None;
        self.out.clear();
        self.connection_lost();
        self.conn = Conn::default();
    }

    fn handle_packet(
        &mut self,
        packet: &Packet<'_>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        if self.conn.session_present.is_none() && !matches!(packet, Packet::ConnAck(_)) {
            return Err(format!("{:?} before CONNACK", packet.kind()));
        }
        match packet {
            Packet::ConnAck(connack) => self.handle_connack(connack, truth, coverage),
            Packet::Publish(publish) => self.handle_publish(publish, truth, coverage),
            Packet::PubRel(ack) => self.handle_pubrel(ack.packet_id.get(), truth),
            Packet::PubAck(ack) => self.handle_puback(ack, truth, coverage),
            Packet::PubRec(ack) => self.handle_pubrec(ack, truth, coverage),
            Packet::PubComp(ack) => self.handle_pubcomp(ack, truth, coverage),
            Packet::SubAck(ack) => {
                let reasons = ack.reasons.iter().collect();
                self.handle_suback(ack.packet_id.get(), reasons, truth, coverage)
            }
            Packet::UnsubAck(ack) => self.handle_unsuback(ack.packet_id.get(), truth),
            Packet::PingResp => self.handle_pingresp(),
            Packet::Disconnect(disconnect) => {
                self.handle_disconnect(disconnect.reason, truth, coverage)
            }
            other => Err(format!("a client got {:?}", other.kind())),
        }
    }

    fn handle_disconnect(
        &mut self,
        reason: ReasonCode,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} {} is sent away: {reason:?}", self.link, self.role.id));
        self.must_close = true;
        match reason {
            ReasonCode::SESSION_TAKEN_OVER if !self.abandoned_links.is_empty() => {
                coverage.takeovers += 1;
                Ok(())
            }
            ReasonCode::KEEP_ALIVE_TIMEOUT => Ok(()),
            // The node is cut off from the log, or was declared dead.
            ReasonCode::SERVER_UNAVAILABLE | ReasonCode::SESSION_TAKEN_OVER
                if self.role.in_cluster =>
            {
                Ok(())
            }
            // The server cannot answer a publish, because the slow log has not yet reported whether the publish is stored.
            ReasonCode::SERVER_BUSY if truth.allowed.engine_is_late => Ok(()),
            _ if !truth.allowed.budgets_are_wide => Ok(()),
            reason => Err(format!("{} was sent away: {reason:?}", self.role.id)),
        }
    }

    /// Compares all received messages with the published ones.
    pub fn check(&self, truth: &Truth) -> Result<(), Violation> {
        for sub in &self.subs {
            let session_messages = truth.allowed.session_messages;
            let order = match sub.is_split() {
                // The messages of the topic's subscription and of the one to `#` may interleave, so their order is not checked.
                true => Ok(()),
                false => sub.track.check_order_of_each_qos(truth),
            };
            order
                .and_then(|()| sub.track.check(truth, session_messages, self.role.number))
                .map_err(|wrong| format!("{}, topic {}: {wrong}", self.role.id, sub.track.topic))?;
        }
        Ok(())
    }
}

/// No properties.
const NO_PROPERTIES: Properties<'static> = Properties::NONE;
