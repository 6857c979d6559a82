//! Subscribes over HTTP: reads the request, and asks the homes (the parts of shards that keep topics). This is the same for all
//! transports. A response begins when the homes of all topics have answered, with the messages from their logs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64;

use crore_wire::form;
use crore_wire::http::etag;
use crore_wire::http::head::Head;

use crate::base::journal::EventKind;
use crate::base::position::{self, Since};
use crate::base::reason::Reason;
use crate::client::row::{FILTERS, SUBSCRIPTION_LIST, State};
use crate::client::subscribing::{
    self, FirstPage, SubscribeRequest, SubscribeTarget, SubscriptionKind,
};
use crate::client::subscriptions::unsubscribe_from_all;
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, SubscriptionState, Subscriptions};
use crate::protocol::http::filter_response::PendingFilterResponse;
use crate::protocol::http::options::{
    AS_EVENTS, CONDITIONAL, DEFLATE, ENVELOPE, HEAD_REQUEST, PUBLISHES, UPGRADE,
};
use crate::protocol::http::parameters::{parameter, query_position, value_words};
use crate::protocol::http::state::{PendingResponse, PublishTarget};
use crate::protocol::http::task::Flow;
use crate::protocol::stream::format::stream_head;

/// Processes `GET` on a subscribe path: a long-poll, an event stream or a WebSocket.
pub(crate) fn request_subscription<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    head: &Head<'_>,
    names: Vec<Vec<u8>>,
    (publishes, upgrade): (bool, bool),
    io: &mut I,
) -> Flow {
    let is_by_filter = clients.conns.get(slot).has_option(FILTERS);
    let since = match starting_points(clients, slot, head, &names, is_by_filter, publishes) {
        Ok(since) => since,
        Err(reason) => {
            let words = value_words(reason, head.query);
            clients.respond_with_text(slot, reason, &words);
            return Flow::Next;
        }
    };
    let earlier_bytes = clients.scratch.reply.len();
    let wants_events = !upgrade && head.accept().events;
    set_options(&mut clients.conns, slot, head, publishes);
    let is_stream = wants_events || upgrade;
    if is_stream && let Err(reason) = stream_head(clients, slot, head, upgrade, &names[0]) {
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    if is_stream && clients.conns.get(slot).has_option(HEAD_REQUEST) {
        return Flow::Next;
    }
    let mut pending_response = PendingResponse {
        unanswered_attaches: names.len() as u32,
        no_cache: ["cache-control", "pragma"]
            .iter()
            .any(|name| head.has_token(name, "no-cache")),
        ..PendingResponse::default()
    };
    if is_stream {
        // The bytes before the head are answers to pipelined requests.
        pending_response.head = clients.scratch.take_reply();
    } else {
        clients.send_reply(slot, io);
    }
    if names.len() > 1 || is_stream || is_by_filter {
        *clients.conns.pending_response_mut(slot) = Some(Box::new(pending_response));
    }
    if publishes {
        let (hash, _) = clients.ctx.hash_and_home_of(&names[0]);
        clients
            .conns
            .ensure_side_row(slot)
            .protocol_state
            .publish_to = Some(PublishTarget {
            hash,
            name: names[0].as_slice().into(),
            frame_count: 0,
        });
    }
    clients.conns.get_mut(slot).consumer.state = State::Waiting;
    let mode = (is_by_filter, !is_stream);
    if let Err(reason) = subscribe_all(clients, subs, slot, &names, &since, mode) {
        return answer_refused_filters(clients, subs, slot, earlier_bytes, reason);
    }
    for name in &names {
        clients.record_event(slot, EventKind::Subscribed, name);
    }
    Flow::Wait
}

/// Answers that the filters were refused. The first `before` bytes of `reply` belong to earlier requests.
fn answer_refused_filters(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    earlier_bytes: usize,
    reason: Reason,
) -> Flow {
    let wants_events = clients.conns.get(slot).has_option(AS_EVENTS);
    unsubscribe_from_all(clients, subs, slot);
    if let Some(pending_response) = clients.conns.pending_response_mut(slot).take() {
        clients.scratch.reply = pending_response.head;
        clients.scratch.reply.truncate(earlier_bytes);
    }
    let row = clients.conns.get_mut(slot);
    row.consumer.state = State::Http;
    row.consumer.options &= !(UPGRADE | AS_EVENTS);
    if wants_events {
        clients.shed_events(slot, reason);
    } else {
        clients.respond_reason(slot, reason);
    }
    Flow::Next
}

/// The positions at which the subscriptions of the request begin.
///
/// # Errors
/// The position does not fit the topics.
fn starting_points(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    names: &[Vec<u8>],
    is_by_filter: bool,
    publishes: bool,
) -> Result<Vec<Since>, Reason> {
    let (topics_hash, count) = match is_by_filter {
        true => (0, usize::from(clients.ctx.world.partitions)),
        false => (set_hash(names), names.len()),
    };
    let since = read_since(clients, slot, head, topics_hash, count)?;
    let is_stream = head.is_websocket_upgrade() || head.accept().events;
    // A long-poll returns with a position, which says nothing about the newest messages of each topic.
    let newest_max = if is_stream { NEWEST_MAX } else { 0 };
    let asks_too_many = |since: &Since| matches!(since, Since::Newest(n) if *n > newest_max);
    if is_by_filter && since.iter().any(asks_too_many) {
        return Err(Reason::NewestByFilter);
    }
    if publishes && names.len() != 1 {
        return Err(Reason::SeveralToPublish);
    }
    Ok(since)
}

/// Records the format of the messages, and whether the connection publishes.
fn set_options(conns: &mut Connections, slot: u32, head: &Head<'_>, publishes: bool) {
    let envelope = parameter(head.query, b"envelope").is_some_and(|value| *value == *b"json");
    let row = conns.get_mut(slot);
    row.consumer.options |= ENVELOPE * u32::from(envelope);
    row.consumer.options |= PUBLISHES * u32::from(publishes);
}

/// Subscribes the request to all its topics, or to its filters as one group. The response begins when the homes have answered.
fn subscribe_all(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    names: &[Vec<u8>],
    since: &[Since],
    (is_by_filter, is_poll): (bool, bool),
) -> Result<(), Reason> {
    let first_page = FirstPage {
        is_poll,
        compress: clients.conns.get(slot).has_option(DEFLATE),
        ..FirstPage::ALL
    };
    let (kind, new_state) = (SubscriptionKind::New, SubscriptionState::default);
    if is_by_filter {
        *clients.conns.filter_response_mut(slot) =
            Some(Box::new(PendingFilterResponse::new(since.len())));
        let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        let wanted = SubscribeRequest {
            target: SubscribeTarget::Filters(&names),
            since,
            first_page,
            kind,
        };
        return subscribing::subscribe(clients, subs, slot, &wanted, new_state()).map(|_| ());
    }
    if names.len() > 1 {
        clients.conns.ensure_side_row(slot).name_set_hash = set_hash(names);
        // Set only now, because code that sees `SUBSCRIPTION_LIST` expects the list.
        clients.conns.get_mut(slot).consumer.options |= SUBSCRIPTION_LIST;
    }
    for (name, since) in names.iter().zip(since) {
        let wanted = SubscribeRequest {
            target: SubscribeTarget::Topic(name),
            since: core::slice::from_ref(since),
            first_page: FirstPage {
                with_retained: *since == Since::Default,
                ..first_page
            },
            kind,
        };
        subscribing::subscribe(clients, subs, slot, &wanted, new_state())?;
    }
    Ok(())
}

/// Where to begin: by the headers, else by the query. A client that reconnects by itself, such as an `EventSource` or a cache,
/// repeats the query of its first request, so its headers are newer. A last event id in the query, which polyfills add to the URL,
/// is newer than `since`.
fn read_since(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    topics_hash: u32,
    count: usize,
) -> Result<Vec<Since>, Reason> {
    let (is_by_filter, partitions) = (
        clients.conns.get(slot).has_option(FILTERS),
        clients.ctx.world.partitions,
    );
    let parse = |text: &[u8]| {
        position::parse_returned(etag::opaque_tag(text), |text| match is_by_filter {
            true => position::parse_partitions(text, partitions),
            false => position::parse(text, topics_hash, count),
        })
    };
    let is_upgrade = head.is_websocket_upgrade();
    let wants_events = !is_upgrade && head.accept().events;
    // A browser that got 400 here would never try again, so it is told of a gap instead.
    let unreadable = || match wants_events || is_upgrade {
        true => alloc::vec![Since::Unknown; count],
        false => alloc::vec![Since::Unreadable; count],
    };
    let newest_position = |name| {
        let tags = head
            .headers(name)
            .flat_map(etag::entity_tags)
            .take(TAGS_MAX);
        let each = tags.map(|tag| parse(tag).unwrap_or_else(|_| unreadable()));
        let epoch = clients.ctx.world.epoch;
        let later = |(one, other)| position::later_start(one, other, epoch);
        each.reduce(|all, tag| all.into_iter().zip(tag).map(later).collect())
    };
    let (event_id, tag) = (
        newest_position("last-event-id"),
        newest_position("if-none-match"),
    );
    let time = head
        .header("if-modified-since")
        .and_then(crore_wire::http::date::parse_date);
    if tag.is_some() || time.is_some() {
        clients.conns.get_mut(slot).consumer.options |= CONDITIONAL;
    }
    if let Some(since) = event_id.or(tag) {
        return Ok(since);
    }
    if let Some(time) = time {
        let counted_s = clients.ctx.wall.counted_second_of(time, clients.ctx.now);
        return Ok(alloc::vec![Since::After(counted_s); count]);
    }
    let Some((is_event_id, value)) = query_position(head.query) else {
        return Ok(alloc::vec![Since::Default; count]);
    };
    let mut text = Vec::new();
    let decoded = form::decode(value, &mut text);
    let since = decoded.map_err(|_| Reason::BadPositionEscape);
    let since = since.and_then(|()| parse(&text).map_err(|_| Reason::BadPosition));
    // In the URL of an `EventSource`, the id was written by a program too.
    match is_event_id && wants_events {
        true => Ok(since.unwrap_or_else(|_| unreadable())),
        false => since,
    }
}

/// The maximum number of newest messages per topic with which a subscription by filter may begin. For each message, up to this many
/// later ones are examined, to see whether it is among the newest.
const NEWEST_MAX: u32 = 100;

/// The maximum number of tags of a request that are read. Caches send the tags of all answers that they store.
const TAGS_MAX: usize = 16;

/// The hash of a list of topics, which its positions contain. Other topics, or another order, have another hash.
fn set_hash(names: &[Vec<u8>]) -> u32 {
    xxh3_64(&names.join(&b'\n')) as u32
}
