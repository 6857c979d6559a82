//! Answers a long-poll for topics: with the first message of any of its topics, or with the report that there was none.

use alloc::vec::Vec;

use crate::base::position::{self, Since};
use crate::base::reason::{Closed, Reason};
use crate::client::row::{COUNTED, EOF, FILTERS, LIVE, SUBSCRIPTION_LIST, State};
use crate::client::side::BehindSubscription;
use crate::client::subscriptions::{
    flags_of, page_request, record_seen, rule_of, subscription_count, topic_of,
    unsubscribe_from_all,
};
use crate::client::types::SubscriptionRef;
use crate::io::{CloseMode, Io};
use crate::mail::{Attach, Frames, Page, Record, properties};
use crate::protocol::encode::Message;
use crate::protocol::front::{Clients, Connections, Deliveries, Front, Matching};
use crate::protocol::http::answer::{CACHE_CONTROL, VARY, answer_waiting, refuse_waiting_request};
use crate::protocol::http::options::{
    AS_EVENTS, CONDITIONAL, ENVELOPE, HAS_GAP, HEAD_REQUEST, KEEP_ALIVE, UPGRADE,
};
use crate::protocol::http::pipelined::begin_poll_wait;
use crate::protocol::http::retry;
use crate::protocol::http::state::HeldItem;
use crate::protocol::stream::filtered::filter_rule;
use crate::store::rope::Rope;

/// Handles a page (a bounded run of past messages) for a long-poll: answers the poll, or lets it wait for the first live message.
pub(crate) fn poll_page<I: Io>(
    front: &mut Front,
    SubscriptionRef {
        slot,
        topic,
        sub_index,
    }: SubscriptionRef,
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
    if page.gap {
        clients.conns.get_mut(slot).consumer.options |= HAS_GAP;
    }
    record_seen(&mut clients.conns, slot, sub_index, page.head, page.epoch);
    if clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        // The answer contains the positions of all topics, so it waits for all of them.
        let pending_response = clients.conns.pending_response_mut(slot).as_mut();
        let pending_response = pending_response.expect("a set waits for all its topics");
        pending_response.unanswered_attaches -= 1;
        if let [record] = records {
            let behind = BehindSubscription::new(sub_index, record.previous, page.epoch);
            hold_first_message(&mut clients.conns, slot, behind, record, frames);
        }
        let pending_response = clients.conns.pending_response_mut(slot).as_mut();
        let pending_response = pending_response.expect("it was just seen");
        if pending_response.unanswered_attaches > 0 {
            return;
        }
        if !pending_response.held.is_empty() {
            answer_first_of_set(front, slot, io);
            return;
        }
        let is_topic_deleted = pending_response.is_topic_deleted;
        *clients.conns.pending_response_mut(slot) = None;
        if is_topic_deleted {
            return refuse_waiting_request(front, slot, Reason::Deleted, io);
        }
    } else if let [record] = records {
        return answer_poll(front, (slot, topic), (record, frames), io);
    }
    let row = clients.conns.get(slot);
    if row.has_option(HEAD_REQUEST) || row.consumer.state == State::Poll {
        return answer_without_message(front, slot, Some(page), io);
    }
    if clients.conns.get(slot).link.has(EOF) {
        // The client has closed before the home (the part of a shard that keeps the topic) answered.
        return clients.drop_connection(slot, CloseMode::Now);
    }
    let wait_s = rule_of(&subs.topics, &clients.ctx, topic).poll_timeout_s;
    begin_poll_wait(clients, queues, slot, io);
    let row = clients.conns.get_mut(slot);
    row.link.deadline_s = if wait_s == 0 {
        0
    } else {
        clients.ctx.now.s + wait_s
    };
    for sub_index in 0..subscription_count(&clients.conns, slot) {
        *flags_of(&mut clients.conns, slot, sub_index) |= LIVE;
    }
}

/// Answers with the message that was held.
fn answer_first_of_set<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
    let clients = &mut front.clients;
    let pending_response = clients.conns.pending_response_mut(slot).take();
    let pending_response = pending_response.expect("it holds the message");
    let [HeldItem::Message(sub_index, record)] = &pending_response.held[..] else {
        unreachable!("a long-poll holds one message")
    };
    let topic = topic_of(&clients.conns, slot, *sub_index);
    answer_poll(front, (slot, topic), (record, &pending_response.frames), io);
}

/// Answers a long-poll with a message.
pub(crate) fn answer_poll<I: Io>(
    front: &mut Front,
    (slot, topic): (u32, u32),
    (record, frames): (&Record, &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, _) = front.parts();
    let mut id = core::mem::take(&mut clients.scratch.position);
    id.clear();
    clients.write_position(
        &subs.matching,
        &feed.deliveries,
        slot,
        record.offset,
        &mut id,
    );
    // For a single topic in plain form the answer does not name the topic, so no name is allocated.
    let is_named =
        clients.conns.get(slot).consumer.options & (SUBSCRIPTION_LIST | FILTERS | ENVELOPE) != 0;
    let name = if is_named {
        subs.topics.name(topic).to_vec()
    } else {
        Vec::new()
    };
    let message = Message {
        topic: &name,
        id: &id,
        frames,
        record,
        now_s: clients.ctx.now.unix_s,
    };
    answer_poll_with(front, slot, &message, io);
    front.clients.scratch.position = id;
}

/// Answers a long-poll with a message that has its topic and position.
pub(crate) fn answer_poll_with<I: Io>(
    front: &mut Front,
    slot: u32,
    message: &Message<'_>,
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    let (record, frames) = (message.record, message.frames);
    clients.meter.stats.sent(1, frames.data(record).len());
    let options = clients.conns.get(slot).consumer.options;
    let mut content_type = frames.content_type(record);
    let mut body = Rope::default();
    if options & ENVELOPE != 0 {
        message.envelope(&mut clients.encodings, &mut body);
        content_type = b"application/json";
    } else if content_type.is_empty() {
        content_type = if record.binary {
            b"application/octet-stream"
        } else {
            b"text/plain; charset=utf-8"
        };
    }
    // Small data is copied directly into the answer.
    let data = match body.is_empty() && frames.large(record).is_none() {
        true => frames.data(record),
        false => b"",
    };
    if options & ENVELOPE == 0 && data.is_empty() {
        message.data(&mut body);
    }
    message_head(
        clients,
        slot,
        options,
        message,
        content_type,
        data.len() + body.len(),
    );
    if options & HEAD_REQUEST == 0 {
        clients.scratch.reply.extend_from_slice(data);
    } else {
        body.clear();
    }
    unsubscribe_from_all(clients, subs, slot);
    if !body.is_empty() {
        body.prepend(&clients.scratch.take_reply());
        clients.send_rope(slot, &body, io);
    }
    answer_waiting(clients, queues, slot, io);
}

/// Ends a long-poll that has timed out. The answer contains the poll's position, which for a single topic only the home knows, so
/// the home is asked. If a message arrives before the home's answer, it answers the poll.
pub(crate) fn end_poll<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
    let (clients, subs, _, _) = front.parts();
    let row = clients.conns.get_mut(slot);
    row.link.deadline_s = 0;
    if row.consumer.options & (SUBSCRIPTION_LIST | FILTERS) != 0 {
        return answer_without_message(front, slot, None, io);
    }
    let topic = row.consumer.topic;
    let to = clients.conns.reply_to(slot, 0);
    let ask = Attach {
        poll: true,
        messages_max: 1,
        is_next_page: true,
        ..page_request(clients, &subs.topics, topic, to, Since::Live)
    };
    subs.attach(&clients.ctx, ask);
}

/// Answers a long-poll that got no message.
pub(crate) fn answer_without_message<I: Io>(
    front: &mut Front,
    slot: u32,
    page: Option<&Page>,
    io: &mut I,
) {
    let (clients, subs, feed, queues) = front.parts();
    let row = clients.conns.get(slot);
    let options = row.consumer.options;
    let rule = if options & FILTERS != 0 {
        filter_rule(clients, &subs.matching, slot)
    } else {
        rule_of(
            &subs.topics,
            &clients.ctx,
            topic_of(&clients.conns, slot, 0),
        )
    };
    let status = match rule.poll_timeout_status {
        408 => 408,
        _ if options & (CONDITIONAL | HAS_GAP) == CONDITIONAL => 304,
        _ => 204,
    };
    let tag = [
        b"\"",
        &position_of_poll(clients, &subs.matching, &feed.deliveries, slot, page)[..],
        b"\"",
    ]
    .concat();
    // RFC 9110 section 15.4.5: a 304 that has a tag needs no date.
    let newest = page
        .filter(|_| options & SUBSCRIPTION_LIST == 0 && status != 304)
        .and_then(|page| Some(clients.ctx.date_of(page.newest_s?)));
    if clients.ctx.is_draining && options & KEEP_ALIVE == 0 {
        clients.scratch.set_close_reason(Closed::Operator);
    }
    timeout_head(clients, slot, status, &tag, newest);
    unsubscribe_from_all(clients, subs, slot);
    answer_waiting(clients, queues, slot, io);
}

/// Writes the head of the answer to a long-poll that timed out, which has no body.
fn timeout_head(
    clients: &mut Clients,
    slot: u32,
    status: u16,
    tag: &[u8],
    newest_unix_s: Option<u64>,
) {
    let options = clients.conns.get(slot).consumer.options;
    let (spread, connections) = (clients.ctx.retry_spread(slot), clients.conns.len());
    let drains = clients.ctx.is_draining;
    let mut head = clients
        .head_without_cache_rule(slot, status)
        .header("ETag", tag);
    if let Some(newest) = newest_unix_s {
        head = head.date("Last-Modified", newest);
    }
    head = head
        .header(CACHE_CONTROL, b"private, no-cache")
        .header("Vary", VARY);
    if drains {
        let after_s = retry::reconnect_after_ms(spread, connections).div_ceil(1_000);
        head = head.number("Retry-After", u64::from(after_s));
    }
    if options & HAS_GAP != 0 {
        head = head.header("Crore-Gap", b"messages before this position are lost");
    }
    if status == 408 {
        head = head.number("Content-Length", 0);
    }
    head.end();
}

/// Holds the first message of any topic of the set. Later messages stay unseen for the next poll.
pub(crate) fn hold_first_message(
    conns: &mut Connections,
    slot: u32,
    unseen: BehindSubscription,
    record: &Record,
    frames: &Frames,
) {
    let pending_response = conns.pending_response_mut(slot).as_mut();
    let Some(pending_response) = pending_response.filter(|a| a.held.is_empty()) else {
        record_seen(conns, slot, unseen.sub_index, unseen.offset, unseen.epoch);
        return;
    };
    let record = pending_response.frames.copy(record, frames);
    pending_response
        .held
        .push(HeldItem::Message(unseen.sub_index, record));
}

/// Writes the head of an answer with a message of `bytes` bytes into `reply`. The options tell whether earlier messages are lost,
/// and whether the topic must be named.
fn message_head(
    clients: &mut Clients,
    slot: u32,
    options: u32,
    message: &Message<'_>,
    content_type: &[u8],
    bytes: usize,
) {
    let (frames, record) = (message.frames, message.record);
    let date = clients.ctx.date_of(record.time_s);
    let mut head = clients
        .head_without_cache_rule(slot, 200)
        .header("Content-Type", content_type)
        .header_parts("ETag", &[b"\"", message.id, b"\""])
        .date("Last-Modified", date)
        .header(CACHE_CONTROL, b"private, no-cache")
        .header("Vary", VARY);
    if options & (SUBSCRIPTION_LIST | FILTERS) != 0 {
        head = head.header("Crore-Topic", message.topic);
    }
    if !frames.event(record).is_empty() {
        head = head.header("Crore-Event", frames.event(record));
    }
    if !frames.key(record).is_empty() {
        head = head.header("Crore-Key", frames.key(record));
    }
    let publisher = properties::publisher(frames, record);
    if !publisher.is_empty() {
        head = head.header(properties::PUBLISHER_HEADER, publisher);
    }
    let (lines, left_out) = properties::to_headers(frames, record);
    for property in &lines {
        head = head.header(properties::PROPERTY_HEADER, property);
    }
    if left_out > 0 {
        head = head.number(properties::LEFT_OUT_HEADER, left_out as u64);
    }
    if let Some(left_s) = properties::remaining_ttl_s(record, message.now_s) {
        head = head.number("Crore-TTL", u64::from(left_s));
    }
    if options & HAS_GAP != 0 {
        head = head.header("Crore-Gap", b"messages before this one are lost");
    }
    head.number("Content-Length", bytes as u64).end();
}

/// The position after all messages that the long-poll could have received. `page` is the state of its only topic.
fn position_of_poll(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    page: Option<&Page>,
) -> Vec<u8> {
    let mut id = Vec::with_capacity(48);
    match page {
        Some(page) if !clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) => {
            position::write(&mut id, clients.ctx.position_at(page.head));
        }
        _ => clients.write_position(matching, deliveries, slot, 0, &mut id),
    }
    id
}

/// Takes a live message for a long-poll on several topics before all homes have answered. It becomes the poll's answer, or stays
/// unseen for the next poll.
pub(crate) fn take_early_message(
    clients: &mut Clients,
    slot: u32,
    sub_index: u32,
    record: &Record,
    frames: &Frames,
) {
    let row = clients.conns.get(slot);
    if row.consumer.state != State::Waiting || row.consumer.options & (UPGRADE | AS_EVENTS) != 0 {
        return;
    }
    let side_row = clients.conns.side_row_mut(slot);
    let has_answer = side_row
        .protocol_state
        .pending_response
        .as_ref()
        .is_none_or(|a| !a.held.is_empty());
    if side_row.list[sub_index as usize].flags & COUNTED == 0 || has_answer {
        return;
    }
    side_row.list[sub_index as usize].offset = record.offset;
    let unseen = BehindSubscription::new(sub_index, record.previous, clients.ctx.world.epoch);
    hold_first_message(&mut clients.conns, slot, unseen, record, frames);
}
