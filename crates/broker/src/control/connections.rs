//! Connections, for the operator: pages of them, and their end.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

use crore_wire::mqtt::ReasonCode;
use crore_wire::topic;

use crate::conn::{ConnId, MULTI, State};
use crate::connection::close_code;
use crate::io::{Close, Io};
use crate::mail::ShardId;
use crate::sessions::SessionId;
use crate::shard::Shard;
use crate::slab::NONE;
use crate::stats::{Reason, Transport};

/// Rows that one order looks at: some hundred microseconds where few are found.
const ROWS_PER_TURN: u32 = 4_096;
/// Connections that one order ends: each may be a write, and topics that are left.
const ENDED_PER_TURN: usize = 256;
/// Topics and filters that are told of each connection in a list.
const NAMES_IN_LIST: usize = 16;

/// Which connections: those for which all that is said holds.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// Only those that speak this.
    pub transport: Option<Transport>,
    /// Only those of this user.
    pub user: Option<Box<str>>,
    /// Only those that subscribe to a topic that it matches, or to a filter that it covers.
    pub filter: Option<Box<[u8]>>,
    /// Only those for which something waits.
    pub slow: bool,
}

/// A page of connections.
#[derive(Debug, Default)]
pub struct Connections {
    /// Those found.
    pub connections: Vec<Connection>,
    /// The row to go on with, unless that were all.
    pub next: Option<u32>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its row.
    pub id: ConnId,
    /// What it speaks.
    pub transport: Transport,
    /// A request is under way.
    pub waits: bool,
    /// Where it comes from: what a trusted proxy said of its last request, or of the connection, else its peer.
    pub address: Option<IpAddr>,
    /// Whose it is, or empty.
    pub user: Box<str>,
    /// Its MQTT session: the home that knows the client id ([`Control::ClientIds`](super::Control::ClientIds)), which
    /// no connection holds, and what to ask for there.
    pub session: Option<(ShardId, SessionId)>,
    /// Topics that it subscribes to.
    pub topics: Vec<Box<[u8]>>,
    /// How many they are; a list may name fewer.
    pub topic_count: u32,
    /// Filters that it subscribes to.
    pub filters: Vec<Box<[u8]>>,
    /// Bytes that its socket has not taken.
    pub outbox_bytes: usize,
    /// It fell behind and is to read on from the log.
    pub behind: bool,
    /// Seconds since something was last sent to it.
    pub silent_s: u32,
}

/// What came of an order to end connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many were ended.
    pub count: u32,
    /// The row to go on with, unless that were all.
    pub next: Option<u32>,
}

impl Shard {
    /// Pages of a table: the open rows from `from` on, as far as one turn looks; calls `each` until it says that it
    /// has enough. Returns where to go on.
    fn page_of(&self, from: u32, mut each: impl FnMut(u32) -> bool) -> Option<u32> {
        let end = self.conns.end();
        let until = end.min(from.saturating_add(ROWS_PER_TURN));
        for slot in from..until {
            self.work.steps.add(1);
            if self.conns.get(slot).is_open() && !each(slot) {
                return Some(slot + 1).filter(|next| *next < end);
            }
        }
        Some(until).filter(|next| *next < end)
    }

    pub(super) fn connections_page<I: Io>(
        &self,
        which: &Which,
        from: u32,
        most: usize,
        io: &I,
    ) -> Connections {
        let mut connections = Vec::new();
        let next = self.page_of(from, |slot| {
            if self.is_one_of(slot, which) {
                connections.push(self.describe(slot, NAMES_IN_LIST, io));
            }
            connections.len() < most
        });
        Connections { connections, next }
    }

    pub(super) fn connection<I: Io>(&self, id: ConnId, io: &I) -> Option<Connection> {
        self.is_current(id)
            .then(|| self.describe(id.slot, usize::MAX, io))
    }

    fn describe<I: Io>(&self, slot: u32, names: usize, io: &I) -> Connection {
        let row = self.conns.get(slot);
        let (topics, filters) = (self.all_topics_of(slot), self.all_filters_of(slot));
        let topic_count = topics.len() as u32;
        let named = |names: usize, list: Vec<&[u8]>| -> Vec<Box<[u8]>> {
            list.into_iter().take(names).map(Box::from).collect()
        };
        let outbox = (row.outbox != NONE).then(|| self.outboxes.get(row.outbox));
        let behind = row.extra != NONE && !self.extras.get(row.extra).behind.is_empty();
        let id = self.id_of(slot);
        let mqtt = (row.state == State::Mqtt && row.mqtt != NONE).then(|| self.mqtts.get(row.mqtt));
        Connection {
            id,
            transport: row.transport(),
            waits: row.state == State::Waiting,
            address: (self.relayed.get(&slot).copied()).or_else(|| io.peer(row.link)),
            user: self.user_of(id).into(),
            session: mqtt
                .filter(|mqtt| mqtt.is_open())
                .map(|mqtt| (mqtt.home, mqtt.session)),
            topics: named(names, topics),
            topic_count,
            filters: filters.into_iter().take(names).collect(),
            outbox_bytes: outbox.map_or(0, |outbox| outbox.waiting_bytes()),
            behind: behind || self.filtered(slot).is_some_and(|all| all.is_behind()),
            silent_s: self.now.s.saturating_sub(row.sent_s),
        }
    }

    /// The client ids of the sessions whose home the shard is, as long as the same connections hold them.
    pub(super) fn client_ids(&self, sessions: &[SessionId]) -> Vec<Option<Box<[u8]>>> {
        let name = |id: &SessionId| self.sessions.name_of(*id);
        sessions
            .iter()
            .map(|id| name(id).map(|name| Box::from(Self::client_id_in(name))))
            .collect()
    }

    pub(crate) fn all_topics_of(&self, slot: u32) -> Vec<&[u8]> {
        let row = self.conns.get(slot);
        if row.wants(MULTI) && row.extra != NONE {
            let subs = self.extras.get(row.extra).list.iter();
            let topics = subs.filter(|sub| sub.topic != NONE);
            return topics.map(|sub| self.topics.name(sub.topic)).collect();
        }
        let topic = (row.topic != NONE).then(|| self.topics.name(row.topic));
        topic.into_iter().collect()
    }

    pub(crate) fn all_filters_of(&self, slot: u32) -> Vec<Box<[u8]>> {
        let filtered = self.filtered(slot).into_iter();
        let parts = filtered.flat_map(|all| all.parts());
        parts
            .map(|(_, part)| self.matching.name(part.row).into_boxed_slice())
            .collect()
    }

    fn is_one_of(&self, slot: u32, which: &Which) -> bool {
        let row = self.conns.get(slot);
        which.transport.is_none_or(|kind| row.transport() == kind)
            && (!which.slow || row.outbox != NONE)
            && (which.user.as_deref()).is_none_or(|user| self.user_of(self.id_of(slot)) == user)
            && (which.filter.as_deref()).is_none_or(|filter| {
                let is = |name: &&[u8]| filter == b"#" || topic::matches(filter, name);
                self.all_topics_of(slot).iter().any(is)
                    || self
                        .all_filters_of(slot)
                        .iter()
                        .any(|own| topic::covers(filter, own))
            })
    }

    pub(super) fn end_connections<I: Io>(&mut self, which: &Which, from: u32, io: &mut I) -> Ended {
        let mut due = Vec::new();
        let next = self.page_of(from, |slot| {
            if self.is_one_of(slot, which) {
                due.push(self.id_of(slot));
            }
            due.len() < ENDED_PER_TURN
        });
        let ended = due.into_iter().filter(|id| self.end_connection(*id, io));
        Ended {
            count: ended.count() as u32,
            next,
        }
    }

    /// Ends a connection in its protocol's words; false when it is gone, or going.
    pub(super) fn end_connection<I: Io>(&mut self, id: ConnId, io: &mut I) -> bool {
        if !self.is_current(id) {
            return false;
        }
        let slot = id.slot;
        self.because(Reason::Operator);
        match self.conns.get(slot).state {
            State::Draining => {
                self.why = None;
                return false;
            }
            State::Sse | State::WebSocket => {
                self.end_stream(slot, close_code::OPERATOR, "the operator ended it", io);
            }
            State::Mqtt => self.mqtt_end(slot, ReasonCode::ADMINISTRATIVE_ACTION, io),
            State::Proxy | State::Http | State::Waiting | State::Poll => {
                self.drop_conn(slot, Close::Now, io);
            }
        }
        true
    }
}
