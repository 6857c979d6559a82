//! Implements [`Protocol`] for MQTT.

use crate::base::ids::ConnId;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::budget::stats::Transport;
use crate::client::progress::Allowance;
use crate::client::protocols::Protocol;
use crate::client::row::{Row, State};
use crate::client::types::{PartialInput, UnprocessedInput as _};
use crate::home::Home;
use crate::io::Io;
use crate::mail::{Outcome, ReplyTo};
use crate::protocol::front::{AllProtocols, Clients, Connections, Front, Queues};
use crate::protocol::mqtt::access::{end_if_right_lost, mqtt_handle_verdict};
use crate::protocol::mqtt::client::{PACKET_OVERHEAD_BYTES, owes_answers};
use crate::protocol::mqtt::close::{mqtt_end, mqtt_redirect};
use crate::protocol::mqtt::closing_sessions::handle_mqtt_fence;
use crate::protocol::mqtt::codec::MqttCodec;
use crate::protocol::mqtt::options::IN_FRAMES;
use crate::protocol::mqtt::packets::{count_packet_second, partial_packet};
use crate::protocol::mqtt::publish::{handle_mqtt_outcome, mqtt_each_second};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// MQTT, over TCP or in the frames of a WebSocket.
pub(crate) struct Mqtt;

impl Protocol<AllProtocols> for Mqtt {
    type SubscriptionHandler = MqttCodec;

    fn transport(row: &Row) -> Transport {
        match row.has_option(IN_FRAMES) {
            true => Transport::MqttWebSocket,
            false => Transport::Mqtt,
        }
    }

    fn has_frames(row: &Row) -> bool {
        row.has_option(IN_FRAMES)
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        match front.clients.conns.get(slot).has_option(IN_FRAMES) {
            true => front.receive_frames(slot, bytes, home, io),
            false => front.receive_mqtt(slot, bytes, home, io),
        }
    }

    fn handle_frame<I: Io>(
        front: &mut Front,
        slot: u32,
        data: &[u8],
        is_binary: bool,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        front.handle_mqtt_frame(slot, data, is_binary, home, io)
    }

    fn frame_overhead_bytes(_clients: &Clients) -> usize {
        PACKET_OVERHEAD_BYTES
    }

    fn resume<I: Io>(front: &mut Front, conn: ConnId, home: &mut Option<Home>, io: &mut I) {
        front.mqtt_resume(conn.slot, home, io);
    }

    fn each_second<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        let clients = &mut front.clients;
        if clients.conns.get(slot).side_row() != NONE {
            mqtt_each_second(clients, slot, io);
        }
    }

    fn silent_until_s(clients: &Clients, slot: u32) -> u32 {
        clients.keep_alive_end_s(slot)
    }

    /// The client has sent no CONNECT, or no further packet, in time.
    fn deadline_passed<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
        mqtt_end(&mut front.clients, slot, Reason::Silent, io);
    }

    /// Always: a packet may extend over several frames, and may wait for pages.
    fn has_waiting_input(_conns: &Connections, _slot: u32) -> bool {
        true
    }

    fn partial_input(conns: &Connections, slot: u32) -> PartialInput {
        partial_packet(conns, slot)
    }

    fn has_begun_input(conns: &Connections, slot: u32) -> bool {
        let row = conns.get(slot);
        row.side_row() != NONE || row.link.unprocessed_input != NONE
    }

    fn count_input_second(clients: &mut Clients, slot: u32, allowance: Allowance) -> bool {
        if clients.mqtt_must_wait(slot) {
            return false;
        }
        let conns = &mut clients.conns;
        // The bytes of a frame that continues a packet of an earlier frame.
        let frame_bytes = match conns.unprocessed_input(slot) {
            Some(Spill::WebSocket(partial, _)) => partial.received_bytes(),
            _ => 0,
        };
        let spill = conns.unprocessed_input_mut(slot);
        spill.is_some_and(|spill| spill.count_second(allowance))
            || count_packet_second(conns, slot, frame_bytes, allowance)
    }

    fn handle_verdict(clients: &mut Clients, queues: &mut Queues, conn: ConnId, verdict: Identity) {
        mqtt_handle_verdict(clients, queues, conn, verdict);
    }

    fn settings_changed<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        end_if_right_lost(&mut front.clients, &front.subs, slot, io)
    }

    fn end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
        mqtt_end(clients, slot, reason, io);
    }

    /// The client stays if MQTT has no code for the reason, for example when a topic is deleted: the subscription outlives the topic, and the client might not
    /// subscribe again.
    fn stays_after(reason: Reason) -> bool {
        reason.row().mqtt.is_none()
    }

    fn move_off<I: Io>(front: &mut Front, slot: u32, io: &mut I) -> bool {
        mqtt_redirect(&mut front.clients, slot, io);
        true
    }

    fn handle_outcome<I: Io>(front: &mut Front, to: ReplyTo, outcome: Outcome, io: &mut I) {
        handle_mqtt_outcome(front, to, outcome, io);
    }

    fn fence_passed<I: Io>(front: &mut Front, to: ReplyTo, io: &mut I) {
        handle_mqtt_fence(front, to, io);
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
