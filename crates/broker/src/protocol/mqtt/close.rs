//! Ends an MQTT connection. A client of 5.0 gets a DISCONNECT with the reason.

use alloc::vec::Vec;

use crate::base::reason::{Closed, Reason};
use crate::io::{CloseMode, Io};
use crate::protocol::front::Clients;
use crate::protocol::http::stream_end::end_stream_with_code;
use crate::protocol::mqtt::client::{self, client_packet_bytes_max, version_of};
use crate::protocol::mqtt::options::IN_FRAMES;
use crate::store::slab::NONE;
use alloc::format;
use crore_wire::mqtt::{Disconnect, Properties, PropertyWriter, ReasonCode, Version, encode};

/// The code with which a WebSocket that carries MQTT is closed when nothing is wrong with its frames (RFC 6455 section 7.4.1).
const CLOSE_NORMAL: u16 = 1000;

/// Ends the connection because the node drains: names another server to the client, or asks it to connect again.
pub(crate) fn mqtt_redirect<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let drain = &clients.ctx.world.settings.drain;
    let reason = match drain.server_reference.is_empty() {
        true => Reason::Restart,
        false => Reason::Moved,
    };
    mqtt_end(clients, slot, reason, io);
}

/// Ends the connection, and drops replies that are not sent yet. The client is told why, unless it has not sent its CONNECT.
pub(crate) fn mqtt_end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    if clients.conns.get(slot).consumer.protocol_row == NONE {
        clients.scratch.set_close_reason(reason.row().closed);
        return clients.drop_connection(slot, CloseMode::Now);
    }
    clients.scratch.reply.clear();
    let text = reason.text_with_limit(&clients.ctx.world.settings);
    mqtt_end_with_text(clients, slot, reason, &text, io);
}

/// Ends the connection for a reason, with this text. The will is published.
fn mqtt_end_with_text<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: Reason,
    text: &str,
    io: &mut I,
) {
    clients.scratch.set_close_reason(reason.row().closed);
    let code = clients.refuse_packet(slot, reason);
    mqtt_end_with_code(clients, slot, code, text, io);
}

/// Whether a packet that is refused with this reason is counted and logged here. The code that refuses credentials, rights, topics and payloads counts and
/// logs these itself.
pub(super) fn counts_as_refused_packet(reason: ReasonCode) -> bool {
    let logged_elsewhere = [
        ReasonCode::NOT_AUTHORIZED,
        ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ReasonCode::TOPIC_NAME_INVALID,
        ReasonCode::PAYLOAD_FORMAT_INVALID,
    ];
    closed_of(reason) == Closed::Refused && !logged_elsewhere.contains(&reason)
}

/// Ends the connection because a packet is invalid.
pub(super) fn mqtt_end_wrong_packet<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: ReasonCode,
    text: &str,
    io: &mut I,
) {
    if counts_as_refused_packet(reason) {
        clients.meter.count_refused_packet(text, b"");
    }
    mqtt_end_with_code(clients, slot, reason, text, io);
}

/// Ends the connection with a reason code of the standard. A client of 5.0 gets a DISCONNECT with the code and this text.
pub(super) fn mqtt_end_with_code<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: ReasonCode,
    text: &str,
    io: &mut I,
) {
    clients.scratch.set_close_reason(closed_of(reason));
    clients.record_end_reason(text);
    // [MQTT-3.14.0-1]: not before the CONNACK.
    let is_connecting =
        client::mqtt_state(&clients.conns, slot).is_some_and(|mqtt| mqtt.pending_connack.is_some());
    let row = clients.conns.get(slot);
    if version_of(&clients.conns, slot) == Version::V5
        && row.consumer.protocol_row != NONE
        && !is_connecting
    {
        let mut properties = PropertyWriter::new();
        let _ = properties.reason_string(text);
        if reason == ReasonCode::USE_ANOTHER_SERVER {
            let reference = &clients.ctx.world.settings.drain.server_reference;
            let _ = properties.server_reference(reference);
        }
        let packet_bytes_max = client_packet_bytes_max(&clients.conns, slot);
        // If the text makes the packet too large, it is left out [MQTT-3.14.2-3].
        for properties in [properties.properties(), Properties::NONE] {
            let disconnect = Disconnect { reason, properties };
            let mut packet = Vec::new();
            encode::disconnect(&mut packet, Version::V5, &disconnect);
            if packet.len() <= packet_bytes_max {
                clients.write_packet(slot, |out| out.extend_from_slice(&packet));
                break;
            }
        }
    }
    send_and_close(clients, slot, io);
}

/// Ends the connection because it has no room for the subscription `name` of its session.
pub(super) fn end_for_unplaced<I: Io>(
    clients: &mut Clients,
    slot: u32,
    name: &[u8],
    reason: Reason,
    io: &mut I,
) {
    if reason.row().closed == Closed::Full {
        clients.meter.stats.turned_away += 1;
    }
    // Filters are UTF-8.
    let name = core::str::from_utf8(name).unwrap_or_default();
    let text = reason.text_with_limit(&clients.ctx.world.settings);
    let text = format!("{text}: the session's subscription to {name}");
    mqtt_end_with_text(clients, slot, reason, &text, io);
}

/// Sends the replies that are written, and closes the connection.
pub(super) fn send_and_close<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    clients.send_reply(slot, io);
    if clients.conns.get(slot).has_option(IN_FRAMES) {
        return end_stream_with_code(clients, slot, Closed::Done, CLOSE_NORMAL, "", io);
    }
    clients.close_after_output(slot, io);
}

/// The cause under which an end with this reason code is counted. An end with a [`Reason`] has its cause in the reason's row.
pub(super) fn closed_of(reason: ReasonCode) -> Closed {
    match reason {
        // Usually the client has opened another connection.
        ReasonCode::SESSION_TAKEN_OVER => Closed::Peer,
        ReasonCode::KEEP_ALIVE_TIMEOUT => Closed::Timeout,
        ReasonCode::QUOTA_EXCEEDED | ReasonCode::SERVER_BUSY | ReasonCode::SERVER_UNAVAILABLE => {
            Closed::Full
        }
        ReasonCode::ADMINISTRATIVE_ACTION => Closed::Operator,
        // The server uses this code only for its own bugs.
        ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR => Closed::Broken,
        _ => Closed::Refused,
    }
}
