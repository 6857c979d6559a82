//! Ends an MQTT connection. A client of 5.0 gets a DISCONNECT with the reason.

use alloc::vec::Vec;

use crate::base::reason::{Closed, Reason};
use crate::io::{CloseMode, Io};
use crate::protocol::front::Clients;
use crate::protocol::http::stream_end::end_stream_with_code;
use crate::protocol::mqtt::client::{self, packet_bytes_max, version};
use crate::protocol::mqtt::options::FRAMED;
use crate::store::slab::NONE;
use alloc::format;
use crore_wire::mqtt::{Disconnect, Properties, PropertyWriter, ReasonCode, Version, encode};

/// The code with which a WebSocket that carries MQTT is closed when nothing is wrong with its frames (RFC 6455 section 7.4.1).
const CLOSE_NORMAL: u16 = 1000;

/// Sends the client to another server, or asks it to come back.
pub(crate) fn mqtt_move<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let drain = &clients.ctx.world.settings.drain;
    let reason = match drain.server_reference.is_empty() {
        true => Reason::Restart,
        false => Reason::Moved,
    };
    mqtt_end(clients, slot, reason, io);
}

/// Ends the connection, whatever is under way; one that has had no CONNACK is not told why.
pub(crate) fn mqtt_end<I: Io>(clients: &mut Clients, slot: u32, reason: Reason, io: &mut I) {
    if clients.conns.get(slot).consumer.protocol_row == NONE {
        clients.scratch.note_close_reason(reason.row().closed);
        return clients.drop_connection(slot, CloseMode::Now);
    }
    clients.scratch.reply.clear();
    let words = reason.words(&clients.ctx.world.settings);
    mqtt_end_because(clients, slot, reason, &words, io);
}

/// Ends the connection with a DISCONNECT that says why, in these words; 3.1.1 has none. The will is published.
fn mqtt_end_because<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: Reason,
    words: &str,
    io: &mut I,
) {
    clients.scratch.note_close_reason(reason.row().closed);
    let code = clients.refuse_packet(slot, reason);
    mqtt_end_saying(clients, slot, code, words, io);
}

/// Whether a packet with this reason counts as refused, and the log tells of it here. The code that refuses rights, credentials, topics and
/// payloads tells of them itself.
pub(super) fn is_refused_packet(reason: ReasonCode) -> bool {
    let told = [
        ReasonCode::NOT_AUTHORIZED,
        ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ReasonCode::TOPIC_NAME_INVALID,
        ReasonCode::PAYLOAD_FORMAT_INVALID,
    ];
    ended(reason) == Closed::Refused && !told.contains(&reason)
}

/// A packet that is wrong: the connection ends.
pub(super) fn mqtt_end_wrong<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: ReasonCode,
    words: &str,
    io: &mut I,
) {
    if is_refused_packet(reason) {
        clients.meter.refused_packet(words, b"");
    }
    mqtt_end_saying(clients, slot, reason, words, io);
}

/// Ends the connection for a reason of the standard, in these words.
pub(super) fn mqtt_end_saying<I: Io>(
    clients: &mut Clients,
    slot: u32,
    reason: ReasonCode,
    words: &str,
    io: &mut I,
) {
    clients.scratch.note_close_reason(ended(reason));
    clients.note_end_reason(words);
    // [MQTT-3.14.0-1]: not before the CONNACK.
    let connecting =
        client::mqtt(&clients.conns, slot).is_some_and(|mqtt| mqtt.connecting.is_some());
    let row = clients.conns.get(slot);
    if version(&clients.conns, slot) == Version::V5
        && row.consumer.protocol_row != NONE
        && !connecting
    {
        let mut properties = PropertyWriter::new();
        let _ = properties.reason_string(words);
        if reason == ReasonCode::USE_ANOTHER_SERVER {
            let reference = &clients.ctx.world.settings.drain.server_reference;
            let _ = properties.server_reference(reference);
        }
        let most = packet_bytes_max(&clients.conns, slot);
        // Without the words where they make it too large [MQTT-3.14.2-3].
        for properties in [properties.properties(), Properties::NONE] {
            let disconnect = Disconnect { reason, properties };
            let mut packet = Vec::new();
            encode::disconnect(&mut packet, Version::V5, &disconnect);
            if packet.len() <= most {
                clients.write_packet(slot, |out| out.extend_from_slice(&packet));
                break;
            }
        }
    }
    mqtt_shut(clients, slot, io);
}

/// Ends the connection because a subscription of its session has no room.
pub(super) fn end_unplaced<I: Io>(
    clients: &mut Clients,
    slot: u32,
    text: &[u8],
    reason: Reason,
    io: &mut I,
) {
    if reason.row().closed == Closed::Full {
        clients.meter.stats.turned_away += 1;
    }
    // Filters are UTF-8.
    let text = core::str::from_utf8(text).unwrap_or_default();
    let words = reason.words(&clients.ctx.world.settings);
    let words = format!("{words}: the session's subscription to {text}");
    mqtt_end_because(clients, slot, reason, &words, io);
}

/// Sends what is written and closes.
pub(super) fn mqtt_shut<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    clients.send_reply(slot, io);
    if clients.conns.get(slot).has_option(FRAMED) {
        return end_stream_with_code(clients, slot, Closed::Done, CLOSE_NORMAL, "", io);
    }
    clients.close_after_output(slot, io);
}

/// The reason under which an end by a rule of MQTT is counted. A [`Reason`] has its own in its row.
pub(super) fn ended(reason: ReasonCode) -> Closed {
    match reason {
        // As a rule the client has opened another connection.
        ReasonCode::SESSION_TAKEN_OVER => Closed::Peer,
        ReasonCode::KEEP_ALIVE_TIMEOUT => Closed::Timeout,
        ReasonCode::QUOTA_EXCEEDED | ReasonCode::SERVER_BUSY | ReasonCode::SERVER_UNAVAILABLE => {
            Closed::Full
        }
        ReasonCode::ADMINISTRATIVE_ACTION => Closed::Operator,
        // Not in any rule of MQTT: it is used where our rows contradict each other.
        ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR => Closed::Broken,
        _ => Closed::Refused,
    }
}
