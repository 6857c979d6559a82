//! Delivers live messages (sent when they are published) to a stream on several topics. Each message is encoded for the stream. All
//! messages of a run (those that are delivered together) are sent in one write.

use alloc::vec::Vec;

use crate::client::outbox::Bounds;
use crate::client::send::fits;
use crate::io::Io;
use crate::mail::Frames;
use crate::protocol::front::{Clients, Front, Run};
use crate::protocol::http::state::HeldItem;
use crate::protocol::stream::encode::encode_for;
use crate::store::rope::Rope;

/// Delivers the messages of the current run, which have one of the stream's topics.
pub(crate) fn deliver_live_of_topic<I: Io>(
    front: &mut Front,
    slot: u32,
    (topic, sub_index): (u32, u32),
    frames: &Frames,
    io: &mut I,
) {
    let (clients, subs, feed, _) = front.parts();
    if clients
        .conns
        .side_row(slot)
        .protocol_state
        .pending_response
        .is_some()
    {
        let bounds = clients.ctx.bounds_for_topic(subs.topics.name(topic));
        hold_for_several_topics(clients, &feed.run, slot, sub_index, bounds, frames);
        return;
    }
    let count = feed.run.records().len();
    let (mut bytes, mut ends) = (Rope::default(), Vec::with_capacity(count));
    for n in 0..count {
        let record = feed.run.records()[n];
        clients.conns.side_row_mut(slot).list[sub_index as usize].offset = record.offset;
        let message = (&record, frames);
        encode_for(clients, subs, feed, slot, topic, message, &mut bytes);
        ends.push(bytes.len());
    }
    let steps = &clients.meter.work.steps;
    steps.add(count);
    steps.add_bytes(bytes.len());
    let sent_count = clients.offer(slot, &bytes, &ends, io);
    for n in sent_count..count {
        let record = &feed.run.records()[n];
        let mut message = Rope::default();
        message.append(&bytes, if n == 0 { 0 } else { ends[n - 1] }, ends[n]);
        let bounds = || clients.ctx.bounds_for_topic(subs.topics.name(topic));
        if record.latest || !fits(&clients.conns, slot, message.len(), bounds) {
            return clients.fall_back(slot, sub_index, record.previous);
        }
        clients.send_messages(slot, &message, &[message.len()], io);
        clients.meter.stats.sent(1, message.len());
    }
}

/// Holds messages for a stream on several topics that has not begun, until all homes (the parts of shards that keep topics) have
/// answered. It holds as many as an outbox may, and none that a newer message may replace.
fn hold_for_several_topics(
    clients: &mut Clients,
    run: &Run,
    slot: u32,
    sub_index: u32,
    bounds: Bounds,
    frames: &Frames,
) {
    let side_row = clients.conns.ensure_side_row(slot);
    let pending_response = side_row
        .protocol_state
        .pending_response
        .as_mut()
        .expect("it is not begun");
    for record in run.records() {
        let (held_count, bytes) = (pending_response.held.len(), pending_response.frames.len());
        if !bounds.allow_held_message(held_count, bytes, record, frames.frame(record).len()) {
            return clients.fall_back_unsent(slot, sub_index, record.previous);
        }
        let record = pending_response.frames.copy(record, frames);
        pending_response
            .held
            .push(HeldItem::Message(sub_index, record));
    }
}
