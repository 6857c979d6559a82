//! Reports gaps (lost messages) to subscribers: within the stream if its transport has a way, else by closing the stream.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crore_wire::websocket::frame;
use crore_wire::websocket::gap::RESUME;

use crate::base::reason::Reason;
use crate::base::settings::SlowConsumerPolicy;
use crate::client::subscriptions::rule_of;
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Deliveries, Matching, Subscriptions};
use crate::protocol::http::state::Gap;
use crate::protocol::http::stream_end::end_stream_with_text;
use crate::protocol::stream::format::write_gap;

/// The start of the close reason, before [`RESUME`] and the position, if there is room.
const LOST: &str = "messages are lost; ";
/// The close reason if a position of very many topics or partitions is too long.
const NO_POSITION: &str =
    "messages are lost, and the position is too long for this frame; ?envelope=json tells it";

pub(crate) fn end_for_gap<I: Io>(
    clients: &mut Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    from: u64,
    io: &mut I,
) {
    let mut id = Vec::with_capacity(48);
    clients.write_position(matching, deliveries, slot, from, &mut id);
    let id = core::str::from_utf8(&id).expect("positions are ASCII");
    let texts = [format!("{LOST}{RESUME}{id}"), format!("{RESUME}{id}")];
    let mut texts = texts.iter().map(String::as_str);
    let reason = texts.find(|reason| reason.len() <= frame::REASON_MAX);
    let reason = reason.unwrap_or(NO_POSITION);
    end_stream_with_text(clients, slot, Reason::Gap, reason, io);
}

/// Reports a gap within the stream. False if the transport or the rule does not allow it.
pub(crate) fn tell_gap(
    clients: &Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
    topic: u32,
    (from, again): (u64, bool),
    out: &mut Vec<u8>,
) -> bool {
    let slow = rule_of(&subs.topics, &clients.ctx, topic).slow;
    let mut id = Vec::with_capacity(32);
    clients.write_position(&subs.matching, deliveries, slot, from, &mut id);
    let name = subs.topics.name(topic);
    let gap = Gap {
        name,
        id: &id,
        slow,
        is_stream_begun: again,
    };
    tell_gap_at(&clients.conns, slot, gap, out)
}

/// Reports a gap as `tell_gap` does, for a topic or filter by name.
pub(crate) fn tell_gap_at(conns: &Connections, slot: u32, gap: Gap<'_>, out: &mut Vec<u8>) -> bool {
    let must_end = gap.is_stream_begun && gap.slow == SlowConsumerPolicy::Disconnect;
    !must_end && write_gap(conns, slot, &gap, out)
}
