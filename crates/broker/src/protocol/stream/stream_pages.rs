//! Streams of messages, as events or frames: begins them when all homes (the parts of shards that keep topics) have answered, and
//! sends their pages (bounded runs of past messages).

use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::base::reason::Reason;
use crate::client::row::{FILTERS, LIVE, PAUSED, SUBSCRIPTION_LIST, State};
use crate::client::side::BehindSubscription;
use crate::client::subscriptions::{flags_of, record_seen, topic_of};
use crate::client::types::SubscriptionRef;
use crate::io::Io;
use crate::mail::{Frames, Page};
use crate::protocol::front::{Clients, Connections, Front, Queues};
use crate::protocol::http::options::{AS_EVENTS, FOLLOWS, PUBLISHES, UPGRADE};
use crate::protocol::http::state::HeldItem;
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::stream::encode::encode_for;
use crate::protocol::stream::format::tell_position;
use crate::protocol::stream::gap::{end_for_gap, tell_gap};
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// Sends a page to a stream. The first page begins the stream.
pub(crate) fn stream_page<I: Io>(
    front: &mut Front,
    SubscriptionRef {
        slot,
        topic,
        sub_index,
    }: SubscriptionRef,
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, queues) = front.parts();
    let row = clients.conns.get(slot);
    if row.has_option(SUBSCRIPTION_LIST)
        && !matches!(row.consumer.state, State::Sse | State::WebSocket)
    {
        let (subscription, page) = ((slot, sub_index), (page, frames));
        return hold_first_page(front, subscription, page, io);
    }
    let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
    let is_begun = matches!(row.consumer.state, State::Sse | State::WebSocket);
    let mut bytes = Rope::default();
    if page.gap {
        let gap_end = records.first().map_or(page.head, |record| record.previous);
        record_seen(&mut clients.conns, slot, sub_index, gap_end, page.epoch);
        let (deliveries, out) = (&feed.deliveries, &mut bytes.own);
        let gap_report = (gap_end, page.is_next_page);
        if !tell_gap(clients, subs, deliveries, slot, topic, gap_report, out) {
            begin_stream(clients, queues, slot, io);
            end_for_gap(clients, &subs.matching, &feed.deliveries, slot, gap_end, io);
            return;
        }
        if is_begun {
            clients.send_bytes(slot, &bytes.own, io);
            bytes.clear();
        }
    }
    let mut ends = Vec::with_capacity(records.len());
    for record in records {
        record_seen(
            &mut clients.conns,
            slot,
            sub_index,
            record.offset,
            page.epoch,
        );
        let message = (record, frames);
        encode_for(clients, subs, feed, slot, topic, message, &mut bytes);
        ends.push(bytes.len());
    }
    let (mut head, mut at_head) = (page.head, page.at_head);
    if is_begun && records.iter().any(|record| record.latest) {
        let sent_count = clients.offer(slot, &bytes, &ends, io);
        if let Some(first_unsent) = records.get(sent_count) {
            (head, at_head) = (first_unsent.previous, false);
        }
    } else {
        clients.meter.stats.sent(records.len(), bytes.len());
        if is_begun {
            clients.send_rope(slot, &bytes, io);
        }
    }
    record_seen(&mut clients.conns, slot, sub_index, head, page.epoch);
    if at_head {
        *flags_of(&mut clients.conns, slot, sub_index) |= LIVE;
    } else {
        let behind = BehindSubscription::new(sub_index, head, page.epoch);
        clients.conns.ensure_side_row(slot).behind.push(behind);
    }
    if !is_begun {
        let is_empty = records.is_empty();
        let pending_response = clients.conns.pending_response_mut(slot).as_mut();
        let pending_response = pending_response.expect("the stream is not begun");
        pending_response.body.append(&bytes, 0, bytes.len());
        if is_empty {
            tell_position(clients, &subs.matching, &feed.deliveries, slot, page.head);
        }
        begin_stream(clients, queues, slot, io);
    }
    let row = clients.conns.get(slot);
    if row.link.outbox == NONE && row.side_row() != NONE && !planted::is(Fault::LostWake) {
        // The next page is requested after the frames of this one are released.
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Holds the first page of one of several topics. A message's position names all topics, so nothing is encoded until all homes have
/// answered.
fn hold_first_page<I: Io>(
    front: &mut Front,
    (slot, sub_index): (u32, u32),
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let clients = &mut front.clients;
    let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
    let gap_end = records.first().map_or(page.head, |record| record.previous);
    if !page.gap {
        record_seen(&mut clients.conns, slot, sub_index, gap_end, page.epoch);
    }
    if page.at_head {
        *flags_of(&mut clients.conns, slot, sub_index) |= LIVE;
    }
    let side_row = clients.conns.ensure_side_row(slot);
    if !page.at_head {
        side_row
            .behind
            .push(BehindSubscription::new(sub_index, page.head, page.epoch));
    }
    let pending_response = side_row
        .protocol_state
        .pending_response
        .as_mut()
        .expect("the stream is not begun");
    if page.gap {
        pending_response
            .held
            .push(HeldItem::Gap(sub_index, gap_end));
    }
    for record in records {
        let record = pending_response.frames.copy(record, frames);
        pending_response
            .held
            .push(HeldItem::Message(sub_index, record));
    }
    pending_response.unanswered_attaches -= 1;
    if pending_response.unanswered_attaches == 0 {
        begin_stream_of_several_topics(front, slot, io);
    }
}

/// Begins a stream after the homes of all its topics have answered.
fn begin_stream_of_several_topics<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
    let (clients, subs, feed, queues) = front.parts();
    let epoch = clients.ctx.world.epoch;
    let pending_response = clients.conns.pending_response_mut(slot).as_mut();
    let pending_response = pending_response.expect("the stream is not begun");
    let is_topic_deleted = pending_response.is_topic_deleted;
    let held = core::mem::take(&mut pending_response.held);
    let frames = core::mem::take(&mut pending_response.frames);
    let mut bytes = Rope::default();
    let mut behind: Vec<u32> = Vec::new();
    for item in &held {
        match *item {
            HeldItem::Message(sub_index, _) if behind.contains(&sub_index) => {}
            HeldItem::Message(sub_index, ref record)
                if !bytes.is_empty() && {
                    let bytes_with_message = bytes.len() + frames.frame(record).len();
                    bytes_with_message > clients.ctx.world.settings.limits.outbox_bytes
                } =>
            {
                // The rest is in the log. It is read after the socket has accepted the messages up to here.
                behind.push(sub_index);
                clients.continue_from_log(slot, sub_index, record.previous);
            }
            HeldItem::Message(sub_index, ref record) => {
                record_seen(&mut clients.conns, slot, sub_index, record.offset, epoch);
                let (topic, start) = (topic_of(&clients.conns, slot, sub_index), bytes.len());
                let message = (record, &frames);
                encode_for(clients, subs, feed, slot, topic, message, &mut bytes);
                clients.meter.stats.sent(1, bytes.len() - start);
            }
            HeldItem::Gap(sub_index, from) => {
                record_seen(&mut clients.conns, slot, sub_index, from, epoch);
                let topic = topic_of(&clients.conns, slot, sub_index);
                if !tell_gap(
                    clients,
                    subs,
                    &feed.deliveries,
                    slot,
                    topic,
                    (from, false),
                    &mut bytes.own,
                ) {
                    begin_stream_with(clients, queues, slot, &bytes, io);
                    end_for_gap(clients, &subs.matching, &feed.deliveries, slot, from, io);
                    return;
                }
            }
        }
    }
    if held.is_empty() {
        tell_position(clients, &subs.matching, &feed.deliveries, slot, 0);
    }
    begin_stream_with(clients, queues, slot, &bytes, io);
    if is_topic_deleted {
        end_stream(clients, slot, Reason::Deleted, io);
        return;
    }
    if clients.conns.get(slot).link.outbox == NONE {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Whether the response is a stream, and not a single message.
pub(crate) fn is_stream(conns: &Connections, slot: u32) -> bool {
    conns.get(slot).consumer.options & (UPGRADE | AS_EVENTS) != 0
}

pub(crate) fn begin_stream_with<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    body: &Rope,
    io: &mut I,
) {
    if let Some(pending_response) = &mut clients.conns.pending_response_mut(slot) {
        pending_response.body.append(body, 0, body.len());
    }
    begin_stream(clients, queues, slot, io);
}

/// Begins the stream: sends the response head, and the messages collected so far.
pub(crate) fn begin_stream<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    let Some(pending_response) = clients.conns.pending_response_mut(slot).take() else {
        return;
    };
    let row = clients.conns.get_mut(slot);
    row.consumer.state = if row.has_option(UPGRADE) {
        State::WebSocket
    } else {
        State::Sse
    };
    row.link.deadline_s = 0;
    let needs_no_side_row =
        row.consumer.options & (SUBSCRIPTION_LIST | PUBLISHES | FOLLOWS | FILTERS) == 0;
    let mut body = pending_response.body;
    body.prepend(&pending_response.head);
    clients.send_rope(slot, &body, io);
    drop_spill_of_stream(clients, queues, slot, io);
    if needs_no_side_row
        && clients.conns.get(slot).side_row() != NONE
        && clients.conns.ensure_side_row(slot).behind.is_empty()
    {
        clients.conns.drop_side_row(slot);
    }
}

/// Keeps bytes received after an upgrade, which are frames. Drops bytes received after the request for an event stream.
pub(crate) fn drop_spill_of_stream<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    let row = clients.conns.get_mut(slot);
    if row.link.flags & PAUSED != 0 {
        row.link.flags &= !PAUSED;
        clients.conns.update_interest(slot, io);
    }
    let conn = clients.conns.id_of(slot);
    let row = clients.conns.get(slot);
    if row.link.unprocessed_input == NONE {
        return;
    }
    if row.consumer.state == State::WebSocket {
        // Processed later, because this is called within a delivery, and a frame may publish.
        queues.resume_later(clients, conn);
        return;
    }
    clients.conns.take_unprocessed_input(slot);
}
