//! Answers long-polls (requests that wait for one message) by filter.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::client::delivery::FilterMessage;
use crate::client::row::EOF;
use crate::io::{CloseMode, Io};
use crate::mail::{FilterPage, Frames, Record};
use crate::protocol::encode::Message;
use crate::protocol::front::Front;
use crate::protocol::http::filter_response::PendingFilterResponse;
use crate::protocol::http::options::{ENVELOPE, HAS_GAP, HEAD_REQUEST};
use crate::protocol::http::pipelined::begin_poll_wait;
use crate::protocol::longpoll::poll::{answer_poll_with, answer_without_message};
use crate::protocol::stream::filtered::{
    begin_filter_stream, filter_rule, handle_match_page, offsets_reached, record_seen_in_partition,
    set_positions,
};
use crate::protocol::stream::stream_pages::is_stream;

/// Answers a waiting poll with the first picked message of a run (live messages that are delivered together).
pub(crate) fn answer_poll_with_match<I: Io>(
    front: &mut Front,
    slot: u32,
    (picks, messages, frames): (&[u32], &[FilterMessage], &Frames),
    io: &mut I,
) {
    let messages_so_far = &messages[..=picks[0] as usize];
    let first = messages[picks[0] as usize];
    let name = frames.name(first.name);
    answer_poll_by_filter(
        front,
        (slot, &offsets_reached(messages_so_far)),
        (name, &first.record, frames),
        io,
    );
}

/// Handles a home's page for a request by filter. After the homes have answered for all partitions, the response begins.
pub(crate) fn handle_request_match_page<I: Io>(
    front: &mut Front,
    group: (u32, u32),
    page: (&FilterPage, &Frames),
    io: &mut I,
) {
    let Some(filter_response) = handle_match_page(front, group, page, io) else {
        return;
    };
    let clients = &mut front.clients;
    match is_stream(&clients.conns, group.0) {
        true => begin_filter_stream(front, group.0, filter_response, io),
        false => begin_filter_poll(front, group.0, filter_response, io),
    }
}

fn begin_filter_poll<I: Io>(
    front: &mut Front,
    slot: u32,
    filter_response: Box<PendingFilterResponse>,
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    if filter_response.has_gap() {
        clients.conns.get_mut(slot).consumer.options |= HAS_GAP;
    }
    set_positions(clients, slot, &filter_response, true);
    let (held, frames) = filter_response.held();
    if let Some(held) = held.first() {
        let name = frames.name(held.name);
        let reached = [(held.partition, held.record.offset)];
        record_seen_in_partition(clients, slot, held.partition, held.record.offset);
        return answer_poll_by_filter(front, (slot, &reached), (name, &held.record, frames), io);
    }
    if clients.conns.get(slot).has_option(HEAD_REQUEST) {
        return answer_without_message(front, slot, None, io);
    }
    if clients.conns.get(slot).link.has(EOF) {
        return clients.drop_connection(slot, CloseMode::Now);
    }
    let wait_s = filter_rule(clients, &subs.matching, slot).poll_timeout_s;
    begin_poll_wait(clients, queues, slot, io);
    let row = clients.conns.get_mut(slot);
    row.link.deadline_s = if wait_s == 0 {
        0
    } else {
        clients.ctx.now.s + wait_s
    };
}

fn answer_poll_by_filter<I: Io>(
    front: &mut Front,
    (slot, reached): (u32, &[(PartitionId, u64)]),
    (topic, record, frames): (&[u8], &Record, &Frames),
    io: &mut I,
) {
    let (clients, subs, feed, _) = front.parts();
    let mut id = Vec::with_capacity(48);
    clients.write_filter_position(&subs.matching, &feed.deliveries, slot, reached, &mut id);
    debug_assert!(clients.conns.get(slot).consumer.options & ENVELOPE == 0 || !topic.is_empty());
    let message = Message {
        topic,
        id: &id,
        frames,
        record,
        now_s: clients.ctx.now.unix_s,
    };
    answer_poll_with(front, slot, &message, io);
}
