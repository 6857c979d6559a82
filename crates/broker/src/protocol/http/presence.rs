//! Answers `GET` on a presence path with JSON: who subscribes to a topic, or only how many. The request subscribes to nothing. Watchers are in
//! `protocol/stream/presence.rs`.
//!
//! In a cluster an answer has the members at all nodes. If another node has not told of its members for some seconds, the answer says how old it is.
//!
//! Invariant: an answer is one page (a bounded part) of the members, so its work and bytes are bounded. The client requests the next page with the id of the
//! last member.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use crore_wire::http::etag;
use crore_wire::http::head::Head;
use crore_wire::json;

use crate::base::position;
use crate::base::reason::Reason;
use crate::client::row::State;
use crate::io::Io;
use crate::mail::presence::{Member, PresenceAsk, PresenceChange, PresenceCounts, PresencePage};
use crate::mail::{Ask, ReplyTo, Span};
use crate::protocol::front::{Clients, Context, Lanes, Queues};
use crate::protocol::http::answer::{CACHE_CONTROL, answer_waiting};
use crate::protocol::http::history::matches_tag;
use crate::protocol::http::options::HEAD_REQUEST;
use crate::protocol::http::parameters::parameter;
use crate::protocol::http::state::{PendingAnswer, PresenceRequest};
use crate::protocol::http::task::Flow;

/// In a cluster an answer that is older than this says so.
const FRESH_S: u32 = 5;

/// Processes `GET` on a presence path of a client that does not ask for a stream.
pub(crate) fn request_presence<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    head: &Head<'_>,
    name: &[u8],
    io: &mut I,
) -> Flow {
    let counts_only = match parameter(head.query, b"stats").as_deref() {
        None | Some(b"0") => false,
        Some(b"1") => true,
        Some(_) => {
            clients.respond_with_text(slot, Reason::BadMember, "stats= takes 0 or 1");
            return Flow::Next;
        }
    };
    let after = match parameter(head.query, b"after").map(|value| position::parse_decimal(&value)) {
        None => 0,
        Some(Some(after)) => after,
        Some(None) => {
            clients.respond_reason(slot, Reason::BadMember);
            return Flow::Next;
        }
    };
    // Sends answers to earlier requests.
    clients.send_reply(slot, io);
    let tags: Vec<&[u8]> = head.headers("if-none-match").collect();
    let request = PresenceRequest {
        name: name.into(),
        tags: tags.join(&b',').into(),
        after,
        counts_only,
    };
    clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .pending_answer = Some(PendingAnswer::Presence(Box::new(request)));
    clients.conns.get_mut(slot).consumer.state = State::Waiting;
    // No member has an id above the maximum, so the answer has only the counts.
    let after = if counts_only { u64::MAX } else { after };
    let to = clients.conns.reply_to(slot, 0);
    let (_, home) = clients.ctx.hash_and_home_of(name);
    lanes.ask(home, |bytes| {
        Ask::Presence(PresenceAsk::Read(to, after), Span::append(bytes, name))
    });
    Flow::Wait
}

/// Sends the home's page as the answer. (The home is the part of a shard that keeps the topic.)
pub(crate) fn answer_presence<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    let slot = to.slot;
    let side_row = clients.conns.ensure_side_row(slot);
    let Some(PendingAnswer::Presence(request)) = side_row.protocol_state.pending_answer.take()
    else {
        return clients.end_as_broken(slot);
    };
    let mut tag = Vec::with_capacity(48);
    // This stands first in the tag, because a proxy may add a suffix.
    tag.extend_from_slice(if request.counts_only { b"stats." } else { b"" });
    if let Some(age_s) = age_s(&clients.ctx) {
        tag.extend_from_slice(b"old-");
        position::write_decimal(&mut tag, age_s.into());
        tag.push(b'.');
    }
    page.position.write(&mut tag);
    tag.push(b'-');
    position::write_decimal(&mut tag, request.after);
    let is_known = etag::entity_tags(&request.tags).any(|known| matches_tag(known, &tag));
    let mut body = Vec::new();
    if !is_known {
        write_answer(&clients.ctx, &request, page, &mut body);
    }
    let has_body = !is_known && !clients.conns.get(slot).has_option(HEAD_REQUEST);
    let mut head = clients.head_without_cache_rule(slot, if is_known { 304 } else { 200 });
    if !is_known {
        head = head.header("Content-Type", b"application/json");
    }
    head = head
        .header_parts("ETag", &[b"\"", &tag, b"\""])
        .header(CACHE_CONTROL, b"private, no-cache")
        .header("Vary", b"Origin, Accept");
    if page.more && !request.counts_only {
        head = head.header("Crore-More", b"true");
    }
    match is_known {
        true => head.end(),
        false => head.number("Content-Length", body.len() as u64).end(),
    }
    if has_body {
        clients.scratch.reply.extend_from_slice(&body);
    }
    answer_waiting(clients, queues, slot, io);
}

fn write_answer(ctx: &Context, request: &PresenceRequest, page: &PresencePage, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"topic\":");
    json::write_string(out, &request.name);
    out.push(b',');
    write_counts(ctx, out, &page.counts);
    if !request.counts_only {
        out.extend_from_slice(b",\"members\":");
        let mut separator = b'[';
        for change in page.changes.iter() {
            if let PresenceChange::Join(member) = change {
                out.push(core::mem::replace(&mut separator, b','));
                out.push(b'{');
                write_member(ctx, &member, out);
                out.push(b'}');
            }
        }
        if page.changes.is_empty() {
            out.push(b'[');
        }
        out.push(b']');
    }
    out.extend_from_slice(b"}\n");
}

/// The age of what this node knows of the members at other nodes, if it is too old to pass for the present.
fn age_s(ctx: &Context) -> Option<u32> {
    let age_s = ctx.world.admission.presence_age_s(ctx.now.unix_s);
    (ctx.world.is_replicated() && age_s > FRESH_S).then_some(age_s)
}

/// Appends counts and their age, as members of a JSON object.
pub(crate) fn write_counts(ctx: &Context, out: &mut Vec<u8>, counts: &PresenceCounts) {
    for (name, count) in [
        (&b"\"clients\":"[..], counts.clients),
        (b",\"users\":", counts.users),
        (b",\"listed\":", counts.listed),
    ] {
        out.extend_from_slice(name);
        position::write_decimal(out, count.into());
    }
    if let Some(age_s) = age_s(ctx) {
        out.extend_from_slice(b",\"stale\":true,\"age\":");
        position::write_decimal(out, age_s.into());
    }
}

/// Appends a member, as members of a JSON object.
pub(crate) fn write_member(ctx: &Context, member: &Member<'_>, out: &mut Vec<u8>) {
    write_id(member, out);
    let conn = member.at.conn;
    out.extend_from_slice(b",\"client\":\"");
    position::write_decimal(out, member.at.shard.into());
    out.push(b'-');
    position::write_decimal(out, conn.slot.into());
    out.push(b'-');
    position::write_decimal(out, conn.generation.into());
    out.push(b'"');
    if ctx.world.is_replicated() {
        let process = match member.at.node {
            0 => ctx.world.writer.unwrap_or_default(),
            _ => member.process,
        };
        out.extend_from_slice(b",\"node\":\"");
        out.extend_from_slice(format!("{process:016x}").as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b",\"since\":");
    position::write_decimal(out, ctx.date_of(member.since_s));
    if !member.info.is_empty() {
        out.extend_from_slice(b",\"info\":");
        out.extend_from_slice(member.info);
    }
}

/// Appends what identifies a member that has left: its id, and its user if it has one.
pub(crate) fn write_id(member: &Member<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"id\":\"");
    position::write_decimal(out, member.id);
    out.push(b'"');
    if !member.user.is_empty() {
        out.extend_from_slice(b",\"user\":");
        json::write_string(out, member.user);
    }
}
