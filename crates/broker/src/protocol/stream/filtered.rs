//! Subscriptions by filter over HTTP: event streams, WebSockets and long-polls. All filters of a request are one group. Its
//! position has one offset for each partition.
//!
//! Invariants: a response begins when every home (a part of a shard that keeps topics) has answered, with the messages from the
//! logs. An answer to a long-poll has one message. Messages of other partitions stay unseen for the next poll.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::settings::Rule;
use crate::client::delivery::{Addressee, FilterMessage};
use crate::client::joining::{
    self, GroupPageRequest, filter_subscriptions_mut, request_group_page,
};
use crate::client::push::{Parcel, push_picks, send_contiguous_picks};
use crate::client::row::State;
use crate::io::Io;
use crate::mail::{AttachOutcome, FilterPage, Frames, Record};
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::{
    Clients, Connections, Deliveries, Feed, Front, Matching, Queues, Subscriptions,
};
use crate::protocol::http::filter_response::{CollectLimit, PendingFilterResponse};
use crate::protocol::http::state::Gap;
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::run::encode_run;
use crate::protocol::stream::format::tell_position;
use crate::protocol::stream::gap::{end_for_gap, tell_gap_at};
use crate::protocol::stream::refused_attach::handle_refused_attach;
use crate::protocol::stream::stream_pages::{begin_stream_with, is_stream};
use crate::store::rope::Rope;
use crate::store::slab::NONE;

/// The offsets that a connection reaches with these messages of a run (live messages that are delivered together), by partition.
pub(crate) fn offsets_reached(messages: &[FilterMessage]) -> Vec<(PartitionId, u64)> {
    let mut reached: Vec<(PartitionId, u64)> = Vec::new();
    for message in messages.iter().rev() {
        if reached
            .iter()
            .all(|(partition, _)| *partition != message.partition)
        {
            reached.push((message.partition, message.record.offset));
        }
    }
    reached
}

/// Handles a home's page (bounded run of past messages) for a request or stream by filter. Returns the pending response when all homes
/// have answered.
pub(crate) fn handle_match_page<I: Io>(
    front: &mut Front,
    (slot, serial): (u32, u32),
    (page, frames): (&FilterPage, &Frames),
    io: &mut I,
) -> Option<Box<PendingFilterResponse>> {
    let (clients, _, _, queues) = front.parts();
    if page.attached != AttachOutcome::Yes {
        let row = clients.conns.get(slot);
        if matches!(row.consumer.state, State::Sse | State::WebSocket) {
            end_stream(clients, slot, page.attached.refusal(), io);
        } else {
            handle_refused_attach(front, slot, page.attached, io);
        }
        return None;
    }
    let (group, page) = ((slot, serial), (page, frames));
    if clients.conns.filter_response_mut(slot).is_some() {
        return collect_first_page(clients, queues, group, page);
    }
    send_further_page(front, group, page, io);
    None
}

fn collect_first_page(
    clients: &mut Clients,
    queues: &mut Queues,
    (slot, serial): (u32, u32),
    (page, frames): (&FilterPage, &Frames),
) -> Option<Box<PendingFilterResponse>> {
    let limit = match is_stream(&clients.conns, slot) {
        true => CollectLimit::Bytes(clients.ctx.default_bounds().bytes),
        false => CollectLimit::OneMessage,
    };
    let filter_response = clients.conns.filter_response_mut(slot).as_deref_mut();
    let records = page.records(frames);
    let taken = filter_response.and_then(|filter_response| {
        let taken = filter_response.take_page(page, records, frames, limit)?;
        Some((taken, filter_response.is_complete()))
    });
    let Some((taken, is_complete)) = taken else {
        clients.end_as_broken(slot);
        return None;
    };
    clients.record_page(slot, serial, page, taken.end, taken.is_live);
    if taken.is_searching {
        // Asked for later, because this is called within a delivery.
        queues.resume_later(clients, clients.conns.id_of(slot));
    } else if is_complete {
        return clients.conns.filter_response_mut(slot).take();
    }
    None
}

/// Begins a stream, after the homes have answered for all partitions.
pub(crate) fn begin_filter_stream<I: Io>(
    front: &mut Front,
    slot: u32,
    mut filter_response: Box<PendingFilterResponse>,
    io: &mut I,
) {
    let (clients, subs, feed, queues) = front.parts();
    set_positions(clients, slot, &filter_response, false);
    let mut bytes = Rope::default();
    if filter_response.has_gap()
        && !tell_gap_for_filters(
            clients,
            &subs.matching,
            &feed.deliveries,
            slot,
            false,
            &mut bytes.own,
        )
    {
        begin_stream_with(clients, queues, slot, &bytes, io);
        return end_for_gap(clients, &subs.matching, &feed.deliveries, slot, 0, io);
    }
    let gap_bytes = bytes.len();
    let (held_messages, frames) = filter_response.held();
    for held_messages in held_messages {
        record_seen_in_partition(
            clients,
            slot,
            held_messages.partition,
            held_messages.record.offset,
        );
        let name = frames.name(held_messages.name);
        encode_matched(
            clients,
            &subs.matching,
            feed,
            slot,
            &[],
            (name, &held_messages.record, frames),
            &mut bytes,
        );
    }
    clients
        .meter
        .stats
        .sent(held_messages.len(), bytes.len() - gap_bytes);
    filter_response.mark_held_sent();
    set_positions(clients, slot, &filter_response, true);
    if filter_response.may_tell_position() {
        tell_position(clients, &subs.matching, &feed.deliveries, slot, 0);
    }
    begin_stream_with(clients, queues, slot, &bytes, io);
    if clients.conns.get(slot).link.outbox == NONE {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// Handles a page for a stream that has begun.
fn send_further_page<I: Io>(
    front: &mut Front,
    (slot, serial): (u32, u32),
    (page, frames): (&FilterPage, &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, queues) = front.parts();
    let records = page.records(frames);
    let first = records.clone().next();
    if page.gap {
        let from = first.map_or(page.head, |(_, record)| record.offset - 1);
        record_seen_in_partition(clients, slot, page.partition, from);
        let mut bytes = Vec::new();
        if !tell_gap_for_filters(
            clients,
            &subs.matching,
            &feed.deliveries,
            slot,
            true,
            &mut bytes,
        ) {
            return end_for_gap(clients, &subs.matching, &feed.deliveries, slot, 0, io);
        }
        clients.send_bytes(slot, &bytes, io);
    }
    let (mut bytes, mut ends) = (Rope::default(), Vec::new());
    for (name, record) in records.clone() {
        record_seen_in_partition(clients, slot, page.partition, record.offset);
        encode_matched(
            clients,
            &subs.matching,
            feed,
            slot,
            &[],
            (frames.name(name), record, frames),
            &mut bytes,
        );
        ends.push(bytes.len());
    }
    let (mut head, mut live) = (page.head, page.at_head);
    if records.clone().any(|(_, record)| record.latest) {
        let sent_count = clients.offer(slot, &bytes, &ends, io);
        if let Some((_, first_unsent)) = records.clone().nth(sent_count) {
            (head, live) = (first_unsent.offset - 1, false);
        }
    } else if !bytes.is_empty() {
        clients.meter.stats.sent(page.count as usize, bytes.len());
        clients.send_rope(slot, &bytes, io);
    }
    clients.record_page(slot, serial, page, head, live);
    if clients.conns.get(slot).link.outbox == NONE {
        queues.resume_later(clients, clients.conns.id_of(slot));
    }
}

/// The live messages of a run that a stream or poll gets now: those for filters that are live in the message's partition, each message once. A response that
/// has not begun holds them.
pub(crate) fn pick_live_matches(
    clients: &mut Clients,
    slot: u32,
    (addressees, messages, frames): (&[Addressee], &[FilterMessage], &Frames),
) -> Vec<u32> {
    let Some(subscriptions) = joining::filter_subscriptions(&clients.conns, slot) else {
        return Vec::new();
    };
    let is_live = |addressee: &&Addressee| {
        let message = messages.get(addressee.message as usize);
        message.is_some_and(|it| subscriptions.is_live(addressee.filter_index, it.partition))
    };
    let mut picks: Vec<u32> = addressees
        .iter()
        .filter(is_live)
        .map(|addressee| addressee.message)
        .collect();
    picks.dedup();
    if !picks.is_empty() && clients.conns.filter_response_mut(slot).is_some() {
        hold_matches(clients, slot, &picks, messages, frames);
        picks.clear();
    }
    picks
}

/// Sends live messages of a run to a stream that has begun.
pub(crate) fn send_matches<I: Io>(
    front: &mut Front,
    slot: u32,
    (picks, messages, frames): (&[u32], &[FilterMessage], &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, _) = front.parts();
    let row = clients.conns.get(slot);
    let encoding = Encoding::of_request(row);
    let group =
        joining::filter_subscriptions(&clients.conns, slot).and_then(|all| all.groups().first());
    let Some(group) = group else {
        return clients.end_as_broken(slot);
    };
    let parcel = Parcel::for_picks(slot, encoding, picks, frames);
    // During a run of another home, some connections have seen its messages and others have not, so their positions differ.
    let have_same_position = !feed.deliveries.has_partial_run(clients.ctx.world.homes);
    if have_same_position && group.positions().is_empty() {
        encode_run(&subs.matching, feed, clients, encoding, messages, frames);
        return push_picks(clients, subs, &feed.run, &parcel, picks, io);
    }
    let (mut bytes, mut ends) = (Rope::default(), Vec::new());
    for n in picks {
        let message = &messages[*n as usize];
        let (messages_so_far, name) = (&messages[..=*n as usize], frames.name(message.name));
        encode_matched(
            clients,
            &subs.matching,
            feed,
            slot,
            &offsets_reached(messages_so_far),
            (name, &message.record, frames),
            &mut bytes,
        );
        ends.push(bytes.len());
    }
    send_contiguous_picks(
        clients,
        subs,
        &feed.run,
        &parcel,
        (&bytes, &ends, picks),
        io,
    );
}

/// Asks for next pages. Before the response begins: of each partition for which no home has answered. Later: of one partition in
/// which the stream is behind.
pub(crate) fn catch_up_filters(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    let group =
        joining::filter_subscriptions(&clients.conns, slot).and_then(|all| all.groups().first());
    let Some((serial, partitions)) = group.map(|it| (it.serial, it.positions().len())) else {
        return;
    };
    let request = GroupPageRequest {
        slot,
        serial,
        is_poll: !is_stream(&clients.conns, slot),
    };
    if clients.conns.filter_response_mut(slot).is_none() {
        let subscriptions = filter_subscriptions_mut(&mut clients.conns, slot);
        if let Some(partition) = subscriptions.and_then(|all| all.next_behind(serial)) {
            request_group_page(clients, subs, request, partition);
        }
        return;
    }
    for partition in (0..).take(partitions) {
        let filter_response = clients.conns.filter_response_mut(slot).as_deref();
        if filter_response.is_some_and(|filter_response| !filter_response.has_answered(partition)) {
            request_group_page(clients, subs, request, partition);
        }
    }
}

/// Encodes one message for one connection, with the connection's position. `reached`: the offsets that the message's run has reached.
fn encode_matched(
    clients: &mut Clients,
    matching: &Matching,
    feed: &Feed,
    slot: u32,
    reached: &[(PartitionId, u64)],
    (topic, record, frames): (&[u8], &Record, &Frames),
    out: &mut Rope,
) {
    let mut id = Vec::with_capacity(48);
    clients.write_filter_position(matching, &feed.deliveries, slot, reached, &mut id);
    Message {
        topic,
        id: &id,
        frames,
        record,
        now_s: clients.ctx.now.unix_s,
    }
    .encode(
        Encoding::of_request(clients.conns.get(slot)),
        &mut clients.encodings,
        out,
    );
}

/// Holds live messages for a response that has not begun.
fn hold_matches(
    clients: &mut Clients,
    slot: u32,
    picks: &[u32],
    messages: &[FilterMessage],
    frames: &Frames,
) {
    let is_poll = !is_stream(&clients.conns, slot);
    for n in picks {
        let message = &messages[*n as usize];
        let bounds = clients.ctx.bounds_for_topic(frames.name(message.name));
        let filter_response = clients.conns.filter_response_mut(slot).as_deref_mut();
        let partition = message.partition;
        let message = (frames.name(message.name), &message.record, frames);
        let is_taken =
            filter_response.and_then(|it| it.hold_live(partition, message, bounds, is_poll));
        if is_taken.is_none() {
            return clients.end_as_broken(slot);
        }
    }
}

pub(crate) fn record_seen_in_partition(
    clients: &mut Clients,
    slot: u32,
    partition: PartitionId,
    offset: u64,
) {
    let Some(subscriptions) = filter_subscriptions_mut(&mut clients.conns, slot) else {
        return clients.end_as_broken(slot);
    };
    let serial = subscriptions.groups().first().map(|group| group.serial);
    if let Some(at) = serial.and_then(|serial| subscriptions.position_mut(serial, partition)) {
        at.offset = offset;
    }
}

/// Sets the positions by partition: to where the first pages begin, or (`at_end`) up to where the subscriber has all messages.
pub(crate) fn set_positions(
    clients: &mut Clients,
    slot: u32,
    filter_response: &PendingFilterResponse,
    at_end: bool,
) {
    let positions = filter_response.positions(clients.ctx.world.epoch, at_end);
    let Some(subscriptions) = filter_subscriptions_mut(&mut clients.conns, slot) else {
        return clients.end_as_broken(slot);
    };
    if let Some(serial) = subscriptions.groups().first().map(|group| group.serial) {
        subscriptions.set_positions(serial, positions);
    }
}

/// The rule for a response by filter: that of a topic whose name is the first filter.
pub(crate) fn filter_rule<'a>(clients: &'a Clients, matching: &Matching, slot: u32) -> &'a Rule {
    let rules = &clients.ctx.world.rules;
    rules.get(rules.number_for(&filters_of(&clients.conns, matching, slot)))
}

/// The first filter of a connection.
fn filters_of(conns: &Connections, matching: &Matching, slot: u32) -> Vec<u8> {
    let part = joining::filter_subscriptions(conns, slot).and_then(|all| all.part(0));
    part.map_or(Vec::new(), |part| matching.name(part.row))
}

fn tell_gap_for_filters(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    again: bool,
    out: &mut Vec<u8>,
) -> bool {
    let name = filters_of(&clients.conns, matching, slot);
    let mut id = Vec::with_capacity(48);
    clients.write_filter_position(matching, deliveries, slot, &[], &mut id);
    let slow = filter_rule(clients, matching, slot).slow;
    tell_gap_at(
        &clients.conns,
        slot,
        Gap {
            name: &name,
            id: &id,
            slow,
            is_stream_begun: again,
        },
        out,
    )
}
