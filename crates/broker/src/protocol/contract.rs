//! Dispatches each call about a connection to the connection's protocol. Each function here and in `contract/` is one `match` over
//! the connection's [`State`], whose arms call functions of the protocols. Outside of `mqtt`, only these files name
//! [`State::Mqtt`].
//!
//! * `contract/clients.rs`: calls of the clients' side, which knows no protocol, only the trait in `client/protocols.rs`.
//! * `contract/homes.rs`: mail from homes (the parts of shards that keep topics), that is pages (bounded runs of past messages),
//!   live messages (sent when they are published) and outcomes.
//! * `contract/requests.rs`: the requests that are of other protocols than HTTP.
//! * This file: all other calls of the shard and of protocols, for example for received bytes and for the data of WebSocket frames,
//!   which may be MQTT.

mod clients;
mod homes;
mod requests;

use crate::base::ids::{ConnId, ShardId};
use crate::base::reason::Reason;
use crate::budget::stats::Transport;
use crate::client::row::{EOF, PAUSED, Row, State};
use crate::home::Home;
use crate::io::{Close, Io};
use crate::mail::orders::MqttState;
use crate::mail::session::SessionId;
use crate::protocol::front::{Clients, Connections, Deliveries, Front, Queues, Subscriptions};
use crate::protocol::http::close::{move_idle, tell_when_to_come_back};
use crate::protocol::http::options::{HISTORY, KEEP, PINGS};
use crate::protocol::http::pipelined::hold_pipelined;
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::longpoll::poll::end_poll;
use crate::protocol::mqtt::client::{PACKET_BESIDE_BYTES, mqtt_session, owes_answers};
use crate::protocol::mqtt::close::{mqtt_end, mqtt_move};
use crate::protocol::mqtt::details::mqtt_details;
use crate::protocol::mqtt::options::FRAMED;
use crate::protocol::mqtt::publish::mqtt_second;
use crate::protocol::sse::comment_if_quiet;
use crate::protocol::websocket::heartbeat::ping_if_quiet;
use crate::protocol::websocket::publish::frame_published;
use crate::store::slab::NONE;

impl Front {
    /// Processes bytes that were received from the peer, which is therefore alive.
    pub(crate) fn received<I: Io>(
        &mut self,
        conn: ConnId,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        self.clients.conns.get_mut(conn.slot).consumer.options &= !PINGS;
        self.handle_bytes(conn.slot, bytes, home, io);
    }

    /// Lets the connection's protocol read bytes.
    #[inline]
    pub(crate) fn handle_bytes<I: Io>(
        &mut self,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let row = self.clients.conns.get(slot);
        match row.consumer.state {
            State::Proxy | State::Http => self.http_received(slot, bytes, home, io),
            State::Waiting | State::Poll => hold_pipelined(
                &mut self.clients,
                &self.queues,
                &self.census,
                slot,
                bytes,
                io,
            ),
            State::WebSocket => self.frames_received(slot, bytes, home, io),
            State::Mqtt if row.wants(FRAMED) => self.frames_received(slot, bytes, home, io),
            State::Mqtt => self.mqtt_received(slot, bytes, home, io),
            State::Draining => self.clients.throw_away(slot, bytes.len()),
            // An event stream needs nothing from its client.
            State::Sse => {}
        }
    }

    /// Processes the data of a WebSocket frame. False if the connection takes no more frames.
    pub(crate) fn handle_frame<I: Io>(
        &mut self,
        slot: u32,
        data: &[u8],
        binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        match self.clients.conns.get(slot).listed() {
            Some(Listed::Mqtt) => self.mqtt_frame(slot, data, binary, home, io),
            None => frame_published(
                &mut self.clients,
                &mut self.subs,
                slot,
                data,
                binary,
                home,
                io,
            ),
        }
    }
}

/// Disconnects an MQTT client because the node is cut off from the log of its cluster, so that the client can connect to another
/// node. Subscribers over HTTP stay, and catch up later. Returns whether the connection ends.
///
/// A client whose publishes are unanswered stays until their outcome is known, or can no longer change (`Outcome::Unknown`). If it
/// left earlier, it could publish a newer message at another node, and the older message could still enter the log after it.
pub(crate) fn cut_off<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) -> bool {
    let ends = clients.conns.get(slot).consumer.state == State::Mqtt
        && !owes_answers(&clients.conns, slot);
    if ends {
        mqtt_end(clients, slot, Reason::CutOff, io);
    }
    ends
}

/// Moves a client off a server that is about to stop: asks it to reconnect, here or elsewhere, and ends the connection. False if
/// the connection stays.
pub(crate) fn move_off<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    deliveries: &Deliveries,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) -> bool {
    let row = clients.conns.get_mut(slot);
    match row.consumer.state {
        State::Proxy => clients.drop_conn(slot, Close::Now),
        State::Http => return move_idle(clients, slot, io),
        State::Waiting => {
            // The connection ends with its answer, which comes soon.
            row.consumer.options &= !KEEP;
            return false;
        }
        State::Poll => {
            row.consumer.options &= !KEEP;
            end_poll(clients, subs, deliveries, queues, slot, io);
        }
        State::Sse => {
            tell_when_to_come_back(clients, slot, io);
            end_stream(clients, slot, Reason::Restart, io);
        }
        State::WebSocket => end_stream(clients, slot, Reason::Restart, io),
        State::Mqtt => mqtt_move(clients, slot, io),
        State::Draining => return false,
    }
    true
}

/// Ends a connection whose peer has closed its side, unless an answer is due.
pub(crate) fn ended<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let row = clients.conns.get_mut(slot);
    let answer_due = match row.consumer.state {
        State::Waiting => true,
        State::Http | State::Draining => row.link.outbox != NONE,
        State::Proxy | State::Poll | State::Sse | State::WebSocket | State::Mqtt => false,
    };
    if answer_due {
        row.link.flags |= EOF | PAUSED;
        return clients.conns.update_interest(slot, io);
    }
    clients.drop_conn(slot, Close::Now);
}

/// Called each second for a connection whose input is not too slow and whose deadline has not passed.
#[inline]
pub(crate) fn second<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let row = clients.conns.get(slot);
    match row.consumer.state {
        State::Sse if row.link.outbox == NONE => comment_if_quiet(clients, slot, io),
        State::WebSocket if row.link.outbox == NONE => ping_if_quiet(clients, slot, io),
        State::Mqtt if row.extra() != NONE => mqtt_second(clients, slot, io),
        State::Sse | State::WebSocket | State::Mqtt => {}
        State::Proxy | State::Http | State::Waiting | State::Poll | State::Draining => {}
    }
}

/// Whether the connection may have partly received input.
#[inline]
pub(crate) fn has_begun_input(conns: &Connections, slot: u32) -> bool {
    let row = conns.get(slot);
    match row.consumer.state {
        State::Mqtt => row.extra() != NONE || row.link.spill != NONE,
        // Its partly received input was discarded.
        State::Draining => false,
        State::Proxy
        | State::Http
        | State::Waiting
        | State::Poll
        | State::Sse
        | State::WebSocket => row.link.spill != NONE,
    }
}

/// The bytes of a frame that are not counted in the size limit of a message.
pub(crate) fn frame_beside_bytes(conns: &Connections, slot: u32) -> usize {
    match conns.get(slot).listed() {
        Some(Listed::Mqtt) => PACKET_BESIDE_BYTES,
        None => 0,
    }
}

/// The details that only the connection's protocol knows, for the operator.
pub(crate) fn details_of(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    names: usize,
) -> Option<MqttState> {
    match clients.conns.get(slot).listed() {
        Some(Listed::Mqtt) => mqtt_details(clients, subs, slot, names),
        None => None,
    }
}

/// The session that the connection holds, and the shard that keeps it.
pub(crate) fn session_of(clients: &Clients, slot: u32) -> Option<(ShardId, SessionId)> {
    match clients.conns.get(slot).listed() {
        Some(Listed::Mqtt) => mqtt_session(clients, slot),
        None => None,
    }
}

/// The protocols with a [`Codec`](crate::client::codec::Codec).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    Mqtt,
}

impl Row {
    /// The transport that the connection is counted for.
    #[inline]
    pub fn transport(&self) -> Transport {
        match self.consumer.state {
            State::Proxy | State::Http | State::Waiting => Transport::Http,
            State::Poll => Transport::LongPoll,
            State::Sse => Transport::Sse,
            State::WebSocket => Transport::WebSocket,
            State::Mqtt if self.wants(FRAMED) => Transport::MqttWebSocket,
            State::Mqtt => Transport::Mqtt,
            State::Draining => Transport::Closing,
        }
    }

    /// The protocol of the connection, if its subscriptions may change while it is open.
    #[inline]
    pub(crate) fn listed(&self) -> Option<Listed> {
        match self.consumer.state {
            State::Mqtt => Some(Listed::Mqtt),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::WebSocket
            | State::Draining => None,
        }
    }

    /// Whether the connection's subscriptions are in a list if it has several, and may change while it is open.
    #[inline]
    pub fn has_list(&self) -> bool {
        self.listed().is_some()
    }

    /// Whether the connection's bytes are WebSocket frames.
    pub fn has_frames(&self) -> bool {
        match self.consumer.state {
            State::WebSocket => true,
            State::Mqtt => self.wants(FRAMED),
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::Draining => false,
        }
    }

    /// Whether the connection waits for the history (kept messages) of a topic.
    pub fn waits_for_history(&self) -> bool {
        self.consumer.state == State::Waiting && self.wants(HISTORY)
    }
}
