//! Judges a request by its head: finds its origin, its client and its task, and decides whether the task is allowed. This happens before the
//! body, which is not read if the request is refused.
//!
//! Invariant: judging changes no topic, so a head may be judged twice: before its body arrives, and with it.

use alloc::format;

use crore_wire::http::accept::Accept;
use crore_wire::http::head::{self, Body, Head, Method};
use crore_wire::{form, topic};

use crate::base::notices::Notice;
use crate::base::reason::Reason;
use crate::base::verdict::Identity;
use crate::client::row::TURNED_AWAY;
use crate::mail::{Change, TopicRequest};
use crate::protocol::front::{AllProtocols, Clients, Context};
use crate::protocol::http::credentials::{deny, needed_rights};
use crate::protocol::http::headers::ALLOWED;
use crate::protocol::http::names::topic_names;
use crate::protocol::http::options::{
    HEAD_REQUEST, KEEP_ALIVE, ORIGIN, PREFERS_JSON, STREAMS, UNCHUNKED,
};
use crate::protocol::http::origins::{check_origin, reader_option};
use crate::protocol::http::parameters::check_all_read;
use crate::protocol::http::suggestions::hint_for_batch;
use crate::protocol::http::task::{Answered, Endpoint, Requests as _, Task};
use crate::protocol::http::turned_away::{check_limits, turn_away};

/// The text for a publish without a topic. Many clients send an object or a form that contains the topic, as for other servers.
const NO_TOPIC_TO_PUBLISH: &str = "no topic is named: put it behind the path (/pub/news) or into ?topic=news, with the message alone as the body, whose \
    fields are not read; objects with topic and data, a line each, are a batch: send it with Content-Type: application/x-ndjson \
    (curl -H 'Content-Type: application/x-ndjson' --data-binary @FILE)";

/// Judges a request. If it has a body, a refusal is the last answer of the connection, whether or not the body has arrived. So
/// answers do not depend on how a request was split. `body` is what the head says of the body.
///
/// # Errors
/// The answer is in `reply`.
pub(crate) fn judge(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    body: Body,
    verdict: Option<Identity>,
) -> Result<Task, Answered> {
    let is_draining = clients.ctx.is_draining;
    // The body of a stream's answer is not in chunks, but ends with the stream.
    let is_stream = clients.conns.is_http2_request(slot);
    let row = clients.conns.get_mut(slot);
    let keeps_alive = head.keep_alive() && !is_draining && !is_stream && !row.link.has(TURNED_AWAY);
    row.link.deadline_s = 0;
    row.consumer.options = 0;
    let accept = head.accept();
    for (option, is_set) in [
        (UNCHUNKED, head.minor == 0 || is_stream),
        (KEEP_ALIVE, keeps_alive && !has_body(body)),
        (HEAD_REQUEST, head.method == Method::Head),
        (PREFERS_JSON, accept.json),
        (STREAMS, head.is_websocket_upgrade() || accept.events),
    ] {
        if is_set {
            row.consumer.options |= option;
        }
    }
    let task = judge_request(clients, slot, head, body, verdict)?;
    if keeps_alive {
        clients.conns.get_mut(slot).consumer.options |= KEEP_ALIVE;
    }
    Ok(task)
}

fn judge_request(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    body: Body,
    verdict: Option<Identity>,
) -> Result<Task, Answered> {
    let upgrade = head.is_websocket_upgrade();
    let routed = route(&clients.ctx, head.path);
    let routed =
        routed.filter(|(endpoint, rest)| *endpoint != Endpoint::Interest || rest.is_empty());
    let endpoint = routed.map(|(endpoint, _)| endpoint);
    if let Err((reason, words)) = check_origin(clients, slot, head, endpoint, upgrade) {
        // A page of a listed origin may read this refusal too.
        note_reader(clients, slot, head);
        clients.respond_with_text(slot, reason, &words);
        return Err(Answered);
    }
    let admission = check_limits(clients, slot, head);
    admission.map_err(|reached| turn_away(clients, slot, head, reached))?;
    judge_methods(clients, slot, head, endpoint)?;
    let identified = clients.set_identity(slot, verdict);
    identified.or_else(|refusal| refuse_request(clients, slot, refusal))?;
    if !upgrade && head.method == Method::Get && head.header("sec-websocket-key").is_some() {
        return refuse_request(clients, slot, Reason::UpgradeLost);
    }
    if (upgrade || routed.is_none())
        && let Some(task) = AllProtocols::task_for_other_protocol(&clients.ctx, head, upgrade)
    {
        return task.or_else(|reason| refuse_request(clients, slot, reason));
    }
    let Some((endpoint, rest)) = routed else {
        if upgrade {
            clients.meter.notices.note(Notice::Upgrade, head.path);
            return refuse_request(clients, slot, Reason::NoSocketPath);
        }
        return refuse_request(clients, slot, reason_for_path(head.path));
    };
    judge_method(clients, slot, head, body, endpoint, upgrade)?;
    if let Err((reason, words)) = check_all_read(&clients.meter.work, &clients.ctx, head, endpoint)
    {
        clients.respond_with_text(slot, reason, &words);
        return Err(Answered);
    }
    judge_names(clients, slot, head, endpoint, rest, upgrade)
}

/// Answers OPTIONS and unknown methods, whose answers do not depend on rights.
fn judge_methods(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    endpoint: Option<Endpoint>,
) -> Result<(), Answered> {
    // OPTIONS for the whole server (RFC 9110 section 9.3.7). Load balancers send it to the root as a health check.
    let is_whole_server = matches!(head.path, b"*" | b"/");
    match (head.method, endpoint) {
        (Method::Options, Some(endpoint)) => preflight(clients, slot, allowed_methods(endpoint)),
        (Method::Options, None) if is_whole_server => {
            preflight(clients, slot, allowed_methods(Endpoint::Publish))
        }
        (Method::Options, None)
            if let Some(methods) =
                AllProtocols::methods_of_other_protocol(&clients.ctx, head.path) =>
        {
            preflight(clients, slot, methods);
        }
        (Method::Other, endpoint) => method_not_allowed(clients, slot, head, endpoint),
        _ => return Ok(()),
    }
    Err(Answered)
}

/// Checks whether this method is allowed on this path.
fn judge_method(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    body: Body,
    endpoint: Endpoint,
    upgrade: bool,
) -> Result<(), Answered> {
    let is_get = matches!(head.method, Method::Get | Method::Head);
    let is_allowed = match endpoint {
        Endpoint::Publish => true,
        Endpoint::Subscribe | Endpoint::Interest | Endpoint::History | Endpoint::Presence => is_get,
        Endpoint::PubSub => head.method == Method::Get,
    };
    if !is_allowed {
        method_not_allowed(clients, slot, head, Some(endpoint));
        return Err(Answered);
    }
    if endpoint == Endpoint::History && upgrade {
        return refuse_request(clients, slot, Reason::HistoryUpgrade);
    }
    if endpoint == Endpoint::PubSub && !upgrade {
        return refuse_request(clients, slot, Reason::NoUpgrade);
    }
    // A body in chunks may be empty. When it is complete, it is judged by its length.
    if head.method == Method::Put && matches!(body, Body::Length(1..)) {
        // `curl -T` sends a body with PUT, which would be lost.
        return refuse_request(clients, slot, Reason::PutWithBody);
    }
    if head.method == Method::Post && head.is_coded() {
        // A message has no such field, so subscribers would get bytes that they cannot read.
        return refuse_request(clients, slot, Reason::Encoded);
    }
    Ok(())
}

/// Decides what the request is, by the topics and filters in it, and checks the client's rights.
fn judge_names(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    endpoint: Endpoint,
    rest: &[u8],
    upgrade: bool,
) -> Result<Task, Answered> {
    if endpoint == Endpoint::Interest {
        return Ok(Task::Follow { upgrade });
    }
    let is_post = endpoint == Endpoint::Publish && head.method == Method::Post;
    if is_post && is_batch(head) && rest.is_empty() && !names_topic(head) {
        if let Some(words) = head.names().find_map(hint_for_batch) {
            clients.respond_with_text(slot, Reason::Unread, &words);
            return Err(Answered);
        }
        let permission = clients.check_may_publish_anywhere(slot);
        permission.map_err(|denied| deny(clients, slot, denied, head.path))?;
        return Ok(Task::Batch);
    }
    let is_by_filter = endpoint == Endpoint::Subscribe && names_filter(head);
    let mut names = match topic_names(&clients.meter.work, &clients.ctx, head, rest, is_by_filter) {
        Ok(names) => names,
        Err((reason, words)) => {
            let words = match reason {
                Reason::NoName if is_post => NO_TOPIC_TO_PUBLISH,
                _ => &words,
            };
            clients.respond_with_text(slot, reason, words);
            return Err(Answered);
        }
    };
    let is_get = matches!(head.method, Method::Get | Method::Head);
    let verb = match head.method {
        _ if is_get && upgrade => None,
        Method::Put => Some(TopicRequest::Change(Change::Create)),
        Method::Delete => Some(TopicRequest::Change(Change::Delete)),
        _ => Some(TopicRequest::Info),
    };
    let permission = clients.check_rights(slot, needed_rights(endpoint, verb, head.method), &names);
    permission.map_err(|denied| deny(clients, slot, denied, head.path))?;
    let is_write = match endpoint {
        Endpoint::Publish => is_post || verb != Some(TopicRequest::Info),
        endpoint => endpoint == Endpoint::PubSub,
    };
    if is_write && names.iter().any(|name| topic::is_reserved(name)) {
        return refuse_request(clients, slot, Reason::Reserved);
    }
    if matches!(endpoint, Endpoint::Subscribe | Endpoint::PubSub) {
        let publishes = endpoint == Endpoint::PubSub;
        return Ok(Task::Subscribe {
            names,
            is_by_filter,
            publishes,
            upgrade,
        });
    }
    let name = match names.pop() {
        Some(name) if names.is_empty() => name,
        _ => return refuse_request(clients, slot, Reason::SeveralNames),
    };
    if endpoint == Endpoint::Presence {
        let rules = &clients.ctx.world.rules;
        return match rules.get(rules.number_for(&name)).presence {
            true => Ok(Task::Presence { name, upgrade }),
            false => refuse_request(clients, slot, Reason::PresenceOff),
        };
    }
    match verb {
        None => Ok(Task::PublishFrames(name)),
        Some(_) if endpoint == Endpoint::History => Ok(Task::History(name)),
        Some(_) if is_post => Ok(Task::Publish(name)),
        Some(verb) => Ok(Task::Verb(verb, name)),
    }
}

fn refuse_request<T>(clients: &mut Clients, slot: u32, reason: Reason) -> Result<T, Answered> {
    clients.respond_reason(slot, reason);
    Err(Answered)
}

fn route<'p>(ctx: &Context, path: &'p [u8]) -> Option<(Endpoint, &'p [u8])> {
    let http = &ctx.world.settings.http;
    for (endpoint, prefixes) in [
        (Endpoint::Publish, &http.publish_paths),
        (Endpoint::Subscribe, &http.subscribe_paths),
        (Endpoint::PubSub, &http.pubsub_paths),
        (Endpoint::Interest, &http.interest_paths),
        (Endpoint::History, &http.history_paths),
        (Endpoint::Presence, &http.presence_paths),
    ] {
        for prefix in prefixes {
            match path.strip_prefix(prefix.as_bytes()) {
                Some(b"") => return Some((endpoint, b"")),
                Some(rest) if rest[0] == b'/' => return Some((endpoint, &rest[1..])),
                _ => {}
            }
        }
    }
    None
}

/// Answers OPTIONS: the allowed methods, and for browsers that a script of a listed origin may send any header.
fn preflight(clients: &mut Clients, slot: u32, allowed: &str) {
    let head = clients
        .response_head(slot, 204)
        .header("Allow", allowed.as_bytes());
    head.header("Access-Control-Allow-Methods", allowed.as_bytes())
        .header("Access-Control-Allow-Headers", ALLOWED.as_bytes())
        .header("Access-Control-Max-Age", b"600")
        .end();
}

/// Refuses the method on this path, or on any path.
fn method_not_allowed(
    clients: &mut Clients,
    slot: u32,
    head: &Head<'_>,
    endpoint: Option<Endpoint>,
) {
    let allowed = allowed_methods(endpoint.unwrap_or(Endpoint::Publish));
    let method = head.method_name.escape_ascii();
    let words = match endpoint {
        Some(_) if head.method == Method::Post => {
            format!(
                "{method} does nothing on this path; it takes {allowed}, and POST publishes at /pub/{{topic}}"
            )
        }
        Some(_) => format!("{method} does nothing on this path; it takes {allowed}"),
        None => format!(
            "{method} does nothing anywhere; POST publishes at /pub/{{topic}}, and GET reads at /sub/{{topic}}"
        ),
    };
    clients.respond_method(slot, &words, allowed);
}

/// The methods allowed on a path.
fn allowed_methods(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Publish => "GET, HEAD, POST, PUT, DELETE, OPTIONS",
        Endpoint::Subscribe | Endpoint::Interest | Endpoint::History | Endpoint::Presence => {
            "GET, HEAD, OPTIONS"
        }
        Endpoint::PubSub => "GET, OPTIONS",
    }
}

/// Whether the request has a body.
fn has_body(body: Body) -> bool {
    matches!(body, Body::Chunked | Body::Length(1..))
}

/// The reason for an unknown path. A client that asks for a path of the admin port is told of that port.
fn reason_for_path(path: &[u8]) -> Reason {
    let admin_paths = [&b"/api/"[..], b"/metrics", b"/health", b"/ready"];
    match admin_paths.iter().any(|prefix| path.starts_with(prefix)) {
        true => Reason::AdminPath,
        false => Reason::NoPath,
    }
}

/// Whether the body is a batch: by its media type, which parameters may follow.
pub(crate) fn is_batch(head: &Head<'_>) -> bool {
    const NDJSON: &[u8] = b"application/x-ndjson";
    head.header("content-type")
        .and_then(|value| value.split_at_checked(NDJSON.len()))
        .is_some_and(|(name, rest)| {
            name.eq_ignore_ascii_case(NDJSON)
                && matches!(rest.trim_ascii_start().first(), None | Some(b';'))
        })
}

/// Records what a refusal before the judgement needs: the form that the client prefers, and the page that may read it.
pub(crate) fn note_reader(clients: &mut Clients, slot: u32, head: &Head<'_>) {
    let mut origins = head.headers("origin");
    let origin = origins.next().filter(|_| origins.next().is_none());
    let is_head = head.method == Method::Head;
    set_reader_options(clients, slot, head.accept(), origin, is_head);
}

/// Records what `note_reader` records, for a head that is invalid or incomplete.
pub(crate) fn note_reader_of_part(clients: &mut Clients, slot: u32, bytes: &[u8]) {
    let bytes = &bytes[head::blank_lines(bytes)..];
    let accept = head::accept_in(bytes);
    let origin = head::field_in(bytes, "origin");
    set_reader_options(clients, slot, accept, origin, bytes.starts_with(b"HEAD "));
}

fn set_reader_options(
    clients: &mut Clients,
    slot: u32,
    accept: Accept,
    from: Option<&[u8]>,
    is_head: bool,
) {
    let reader = reader_option(&clients.ctx, from);
    let row = clients.conns.get_mut(slot);
    row.consumer.options &= !(HEAD_REQUEST | PREFERS_JSON | ORIGIN);
    row.consumer.options |= HEAD_REQUEST * u32::from(is_head);
    row.consumer.options |= PREFERS_JSON * u32::from(accept.json);
    row.consumer.options |= reader;
}

fn names_topic(head: &Head<'_>) -> bool {
    form::pairs(head.query).any(|(key, _)| matches!(key, b"topic" | b"channel"))
}

fn names_filter(head: &Head<'_>) -> bool {
    form::pairs(head.query).any(|(key, _)| key == b"filter")
}
