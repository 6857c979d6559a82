//! Publishes one message over HTTP, and processes requests about a topic as a whole. `batch` publishes many messages, `fields`
//! reads and checks the fields of a message, `outcomes` tells the publisher the result.

pub(crate) mod batch;
mod fields;
pub(crate) mod outcomes;

use alloc::borrow::Cow;

use crore_wire::form;
use crore_wire::http::head::Head;

use self::fields::{content_type, idempotency_key, retain, ttl_s};
use crate::base::reason::Reason;
use crate::client::asking::{publish_as, send_topic_request};
use crate::client::row::State;
use crate::home::Home;
use crate::mail::fields::check_fields;
use crate::mail::message::{DedupKey, Headers, Publish, is_binary};
use crate::mail::{Change, TopicRequest, WantedAnswer, properties};
use crate::protocol::front::{Clients, Connections, Lanes, Subscriptions};
use crate::protocol::http::publish::outcomes::respond_outcome;
use crate::protocol::http::state::PendingAnswer;
use crate::protocol::http::task::Flow;

/// The change that a DELETE demands: `?purge` keeps the topic. A value is refused, so that `purge=no` is never taken for yes.
fn delete_or_purge(head: &Head<'_>) -> Result<Change, &'static str> {
    match form::pairs(head.query).find(|(key, _)| *key == b"purge") {
        None => Ok(Change::Delete),
        Some((_, b"")) => Ok(Change::Purge),
        Some(_) => Err("purge in the query takes no value; leave it out to delete the topic"),
    }
}

pub(crate) fn publish_one(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    head: &Head<'_>,
    name: &[u8],
    data: &[u8],
    home: &mut Option<Home>,
) -> Flow {
    let event = head.header("x-eventsource-event").unwrap_or_default();
    let key = head.header("crore-key").unwrap_or_default();
    let checked_type = content_type(head)
        .and_then(|content_type| check_fields(content_type, event, key).map(|()| content_type));
    let fields = checked_type
        .map_err(Cow::Borrowed)
        .and_then(|content_type| {
            let attributes = properties::from_headers(head.headers(properties::PROPERTY_HEADER));
            let attributes = attributes.map_err(Cow::Borrowed)?;
            Ok((
                content_type,
                ttl_s(head)?,
                idempotency_key(head).map_err(Cow::Borrowed)?,
                attributes,
                retain(head)?,
            ))
        });
    let (content_type, ttl_s, retry_key, attributes, retain) = match fields {
        Ok(fields) => fields,
        Err(words) => {
            clients.respond_with_text(slot, Reason::BadField, &words);
            return Flow::Next;
        }
    };
    if let Err(reason) = clients.check_publish_rate(slot) {
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    let (hash, home_shard) = clients.ctx.hash_and_home_of(name);
    let binary = is_binary(content_type, data);
    let answer = WantedAnswer::OutcomeAndInfo(clients.conns.reply_to(slot, 0));
    let dedup = dedup_key(clients, slot, retry_key);
    let message = Publish {
        hash,
        name,
        data,
        headers: Headers {
            content_type,
            event,
            key,
            attributes: &attributes,
            ttl_s,
            qos: 1,
            retain,
            binary,
        },
        dedup,
        client: clients.conns.get(slot).consumer.client,
    };
    match publish_as(clients, subs, home, slot, home_shard, &message, answer) {
        Some(outcome) => {
            respond_outcome(clients, slot, &PendingAnswer::Publish, outcome);
            Flow::Next
        }
        None => wait_for_answer(&mut clients.conns, slot, PendingAnswer::Publish),
    }
}

/// The key and publisher by which the home (the part of a shard that keeps the topic) recognizes a retry, if the publish has a key.
pub(crate) fn dedup_key<'k>(
    clients: &Clients,
    slot: u32,
    key: Option<&'k [u8]>,
) -> Option<DedupKey<&'k [u8]>> {
    key.map(|key| DedupKey {
        key,
        publisher: clients.party(slot),
    })
}

pub(crate) fn ask_topic_request(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    head: &Head<'_>,
    verb: TopicRequest,
    name: &[u8],
) -> Flow {
    let verb = match verb {
        TopicRequest::Change(Change::Delete) => delete_or_purge(head).map(TopicRequest::Change),
        other => Ok(other),
    };
    let verb = match verb {
        Ok(verb) => verb,
        Err(words) => {
            clients.respond_with_text(slot, Reason::BadField, words);
            return Flow::Next;
        }
    };
    let to = clients.conns.reply_to(slot, 0);
    send_topic_request(clients, lanes, verb, name, to);
    let pending = match verb {
        TopicRequest::Info if clients.ctx.world.is_replicated() => PendingAnswer::Info(name.into()),
        verb => PendingAnswer::Verb(verb),
    };
    wait_for_answer(&mut clients.conns, slot, pending)
}

pub(crate) fn wait_for_answer(conns: &mut Connections, slot: u32, pending: PendingAnswer) -> Flow {
    conns.get_mut(slot).consumer.state = State::Waiting;
    conns.ensure_side_row(slot).protocol_state.pending_answer = Some(pending);
    Flow::Wait
}
