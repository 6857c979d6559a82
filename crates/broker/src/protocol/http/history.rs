//! Answers `GET` on a history path: the messages that a topic's log keeps, as a JSON array. The request subscribes to nothing,
//! creates no topic, and is not counted as a subscriber.
//!
//! Invariant: an answer is one page (a bounded run) of the log, so its work and bytes have the bounds of any page. The client
//! requests the next page with the position of the last message.

use alloc::vec::Vec;

use crore_wire::form;
use crore_wire::http::etag;
use crore_wire::http::head::Head;

use crate::base::position::{self, Since};
use crate::base::reason::Reason;
use crate::client::row::State;
use crate::client::subscribing::{
    FirstPage, SubscribeRequest, SubscribeTarget, SubscriptionKind, subscribe,
};
use crate::client::subscriptions::unsubscribe_from_all;
use crate::io::Io;
use crate::mail::{Frames, Page};
use crate::protocol::encode::Message;
use crate::protocol::front::{
    Clients, Context, EncodingCache, Front, SubscriptionState, Subscriptions, Topics,
};
use crate::protocol::http::answer::{CACHE_CONTROL, answer_waiting};
use crate::protocol::http::options::{HEAD_REQUEST, HISTORY};
use crate::protocol::http::parameters::{parameter, query_position, value_words};
use crate::protocol::http::state::PendingAnswer;
use crate::protocol::http::task::Flow;
use crate::store::rope::Rope;

/// Sends the home's page as the answer. (The home is the part of a shard that keeps the topic.)
pub(crate) fn answer_history<I: Io>(
    front: &mut Front,
    (slot, topic): (u32, u32),
    (page, frames): (&Page, &Frames),
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    let tags = match clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .pending_answer
        .take()
    {
        Some(PendingAnswer::History(tags)) => tags,
        _ => Default::default(),
    };
    let tag = tag_of(&clients.ctx, page, frames);
    let is_known = etag::entity_tags(&tags).any(|known| matches_tag(known, &tag));
    let mut body = Rope::default();
    if !is_known {
        history_body(
            &subs.topics,
            &mut clients.encodings,
            &clients.ctx,
            topic,
            page,
            frames,
            &mut body,
        );
    }
    let has_body = !is_known && !clients.conns.get(slot).has_option(HEAD_REQUEST);
    history_head(clients, slot, page, &tag, (!is_known).then_some(body.len()));
    unsubscribe_from_all(clients, subs, slot);
    if has_body {
        clients.meter.stats.sent(page.count as usize, body.len());
        body.prepend(&clients.scratch.take_reply());
        clients.send_rope(slot, &body, io);
    }
    answer_waiting(clients, queues, slot, io);
}

/// Processes `GET` on a history path.
pub(crate) fn request_history<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    head: &Head<'_>,
    name: &[u8],
    io: &mut I,
) -> Flow {
    let (since, count_max) = match read_range(head.query) {
        Ok(range) => range,
        Err(reason) => {
            clients.respond_with_text(slot, reason, &value_words(reason, head.query));
            return Flow::Next;
        }
    };
    // Sends answers to earlier requests.
    clients.send_reply(slot, io);
    let tags: Vec<&[u8]> = head.headers("if-none-match").collect();
    clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .pending_answer = Some(PendingAnswer::History(tags.join(&b',').into()));
    let row = clients.conns.get_mut(slot);
    row.consumer.options |= HISTORY;
    row.consumer.state = State::Waiting;
    let wanted = SubscribeRequest {
        target: SubscribeTarget::Topic(name),
        since: &[since],
        first_page: FirstPage {
            messages_max: count_max,
            ..FirstPage::ALL
        },
        kind: SubscriptionKind::Once,
    };
    if subscribe(clients, subs, slot, &wanted, SubscriptionState::default()).is_err() {
        // Cannot happen: only filters are refused.
        clients.end_as_broken(slot);
    }
    Flow::Wait
}

/// Appends the messages of a page as a JSON array.
fn history_body(
    topics: &Topics,
    encodings: &mut EncodingCache,
    ctx: &Context,
    topic: u32,
    page: &Page,
    frames: &Frames,
    body: &mut Rope,
) {
    let records = &frames.pages[page.first as usize..(page.first + page.count) as usize];
    let mut id = Vec::with_capacity(32);
    let mut separator = b'[';
    for record in records {
        body.own.push(core::mem::replace(&mut separator, b','));
        id.clear();
        position::write(&mut id, ctx.position_at(record.offset));
        Message {
            topic: topics.name(topic),
            id: &id,
            frames,
            record,
            now_s: ctx.now.unix_s,
        }
        .envelope(encodings, body);
    }
    body.own.extend_from_slice(match records {
        [] => b"[]\n",
        _ => b"]\n",
    });
}

/// Writes the head of the answer into `reply`. `bytes`: the length of the body, or `None` if the client already has this answer.
fn history_head(clients: &mut Clients, slot: u32, page: &Page, tag: &[u8], bytes: Option<usize>) {
    let status = bytes.map_or(304, |_| 200);
    let mut head = clients.head_without_cache_rule(slot, status);
    if bytes.is_some() {
        head = head.header("Content-Type", b"application/json");
    }
    head = head
        .header_parts("ETag", &[b"\"", tag, b"\""])
        .header(CACHE_CONTROL, b"private, no-cache")
        .header("Vary", b"Origin");
    if page.gap {
        head = head.header("Crore-Gap", b"messages before the first one are lost");
    }
    if !page.at_head {
        head = head.header("Crore-More", b"true");
    }
    match bytes {
        Some(bytes) => head.number("Content-Length", bytes as u64).end(),
        None => head.end(),
    }
}

/// The start of a history, and the maximum number of messages. Without a position, a limit selects the newest messages, as `tail`
/// does with a file.
fn read_range(query: &[u8]) -> Result<(Since, u32), Reason> {
    let since = match query_position(query) {
        Some((_, value)) => {
            let mut text = Vec::new();
            let decoded = form::decode(value, &mut text);
            decoded.map_err(|_| Reason::BadPositionEscape)?;
            let parse = |text: &[u8]| position::parse(text, 0, 1);
            let since = position::parse_returned(etag::opaque_tag(&text), parse);
            since.map_err(|_| Reason::BadPosition)?[0]
        }
        None => Since::Default,
    };
    let count_max = match parameter(query, b"limit") {
        Some(value) => Some(parse_count(&value).ok_or(Reason::BadLimit)?),
        None => None,
    };
    let since = match (since, count_max) {
        (Since::Default, Some(count_max)) => Since::Newest(count_max),
        (Since::Default, None) => Since::Oldest,
        (since, _) => since,
    };
    Ok((since, count_max.unwrap_or(u32::MAX)))
}

/// Parses a number of messages: only digits, and not 0. A number that is too large becomes the largest one.
fn parse_count(text: &[u8]) -> Option<u32> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |number: u32, digit: &u8| {
        number
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    };
    Some(text.iter().fold(0, add)).filter(|number| *number > 0)
}

/// The tag that distinguishes an answer from all others to the same request: its end, whether more follow, its start, and the
/// number of its messages. Between start and end, messages are only ever removed.
fn tag_of(ctx: &Context, page: &Page, frames: &Frames) -> Vec<u8> {
    let mut tag = Vec::with_capacity(48);
    let first = frames.pages.get(page.first as usize);
    let first = first.filter(|_| page.count > 0);
    position::write(&mut tag, ctx.position_at(page.head));
    tag.extend_from_slice(if page.at_head { b"." } else { b".+" });
    position::write_decimal(&mut tag, first.map_or(0, |record| record.offset));
    tag.push(b'.');
    position::write_decimal(&mut tag, page.count.into());
    if page.gap {
        tag.extend_from_slice(b".lost");
    }
    tag
}

/// Whether a tag that a client sent is this one. A proxy may have added a suffix.
pub(crate) fn matches_tag(known: &[u8], tag: &[u8]) -> bool {
    let rest = known.strip_prefix(tag);
    known == b"*"
        || rest.is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'-' | b';' | b'"'))
}
