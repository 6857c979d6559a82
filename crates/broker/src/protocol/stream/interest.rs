//! Reports to followers which topics have subscribers (interest), as an event stream or a WebSocket: the request, the pages
//! (bounded parts) of the snapshot, and the events after it.
//!
//! The homes (the parts of shards that keep topics) are asked one after the other, and for the next page only when the socket has
//! accepted the page before. A snapshot therefore costs one page of memory, however slow its reader. A home sends live events as soon as
//! it has sent its first page. A follower that does not read them fast enough is disconnected, and gets a new snapshot when it
//! connects again.
//!
//! Events have no positions, since subscriptions are not logged.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::{form, json, sse};

use crate::base::access::Right;
use crate::base::position;
use crate::base::reason::Reason;
use crate::client::row::State;
use crate::client::send::fits;
use crate::io::Io;
use crate::mail::{Ask, InterestChanges, InterestPart, ReplyTo, Span};
use crate::protocol::front::{Clients, Connections, Context, Lanes, Queues};
use crate::protocol::http::body::write_part;
use crate::protocol::http::credentials::deny;
use crate::protocol::http::names::{CUT_FILTER, check_filter};
use crate::protocol::http::options::{AS_EVENTS, FOLLOWS, HEAD_REQUEST};
use crate::protocol::http::state::{FollowProgress, PendingResponse};
use crate::protocol::http::stream_end::end_stream;
use crate::protocol::http::task::Flow;
use crate::protocol::stream::format::stream_head;
use crate::protocol::stream::presence::{ask_for_presence_page, unwatch};
use crate::protocol::stream::stream_pages::begin_stream;
use crate::store::slab::NONE;

/// Sends the changes that a home has reported to a follower.
pub(crate) fn handle_interest_changes<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    changes: &InterestChanges,
    kind: InterestPart,
    io: &mut I,
) {
    let slot = to.slot;
    if !clients.conns.is_waiting_for(to) || !clients.conns.get(slot).has_option(FOLLOWS) {
        return;
    }
    let mut bytes = encode_interest_changes(&clients.conns, slot, changes);
    let homes = clients.ctx.world.homes;
    let side_row = clients.conns.ensure_side_row(slot);
    let follow = side_row
        .protocol_state
        .follow_progress
        .as_mut()
        .expect("a follower has its filter");
    for (has_subscribers, _) in changes.iter() {
        follow.reported_topics = if has_subscribers {
            follow.reported_topics + 1
        } else {
            follow.reported_topics - 1
        };
    }
    if kind != InterestPart::Live {
        follow.is_page_in_flight = false;
    }
    if kind == InterestPart::LastSnapshotPage {
        follow.home += 1;
        follow.is_home_asked = false;
        if follow.home == homes {
            let topics = follow.reported_topics;
            encode_snapshot_end(&clients.conns, slot, topics, &mut bytes);
        }
    }
    if let Some(pending_response) = &mut clients.conns.pending_response_mut(slot) {
        pending_response.body.own.extend_from_slice(&bytes);
        begin_stream(clients, queues, slot, io);
    } else if kind == InterestPart::Live
        && !fits(&clients.conns, slot, bytes.len(), || {
            clients.ctx.default_bounds()
        })
    {
        return end_follower(clients, slot, io);
    } else {
        clients.send_bytes(slot, &bytes, io);
    }
    if clients.conns.get(slot).link.outbox == NONE {
        queues.queue_for_page(clients.conns.id_of(slot));
    }
}

fn end_follower<I: Io>(clients: &mut Clients, slot: u32, io: &mut I) {
    let mut bytes = Vec::new();
    if clients.conns.get(slot).has_option(AS_EVENTS) {
        let mut text = Vec::new();
        sse::write_event(
            &mut text,
            None,
            Some(sse::SLOW_EVENT.as_bytes()),
            Reason::EventsLost.text().as_bytes(),
        );
        write_part(clients.conns.get(slot), &text, &mut bytes);
    }
    clients.send_bytes(slot, &bytes, io);
    end_stream(clients, slot, Reason::EventsLost, io);
}

/// Processes `GET` on an interest path: begins a WebSocket if requested, else an event stream, whatever the client accepts.
pub(crate) fn request_interest(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    head: &Head<'_>,
    upgrade: bool,
) -> Flow {
    let filter = match read_filter(&clients.ctx, head) {
        Ok(filter) => filter,
        Err(words) => {
            clients.respond_with_text(slot, Reason::BadName, &words);
            return Flow::Next;
        }
    };
    if let Err(denied) = clients.check_right(slot, Right::Interest, &filter) {
        deny(clients, slot, denied, head.path);
        return Flow::Next;
    }
    let client = clients.conns.get(slot).consumer.client;
    if !clients.conns.get(slot).has_option(HEAD_REQUEST)
        && !clients.ctx.world.admission.enter_follower(client)
    {
        if !upgrade && head.accept().events {
            clients.shed_events(slot, Reason::FollowersFull);
        } else {
            clients.respond_reason(slot, Reason::FollowersFull);
        }
        return Flow::Next;
    }
    clients.conns.get_mut(slot).consumer.options |= FOLLOWS;
    if let Err(reason) = stream_head(clients, slot, head, upgrade, b"") {
        clients.ctx.world.admission.leave_follower(client);
        clients.conns.get_mut(slot).consumer.options &= !FOLLOWS;
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    if clients.conns.get(slot).has_option(HEAD_REQUEST) {
        clients.conns.get_mut(slot).consumer.options &= !FOLLOWS;
        return Flow::Next;
    }
    let pending_response = PendingResponse {
        head: clients.scratch.take_reply(),
        ..PendingResponse::default()
    };
    let side_row = clients.conns.ensure_side_row(slot);
    side_row.protocol_state.pending_response = Some(Box::new(pending_response));
    side_row.protocol_state.follow_progress = Some(Box::new(FollowProgress {
        filter,
        client,
        ..FollowProgress::default()
    }));
    clients.conns.get_mut(slot).consumer.state = State::Waiting;
    ask_page(clients, lanes, slot);
    Flow::Wait
}

/// The filter of topics in the query.
fn read_filter(ctx: &Context, head: &Head<'_>) -> Result<Vec<u8>, Cow<'static, str>> {
    let mut filter = Vec::new();
    for (key, value) in form::pairs(head.query) {
        if key == b"match" && !value.is_empty() {
            if !filter.is_empty() {
                return Err("match= may stand there once".into());
            }
            if value.ends_with(b"/") {
                return Err(CUT_FILTER.into());
            }
            form::decode(value, &mut filter).map_err(|_| "a bad percent escape in the filter")?;
        }
    }
    if filter.is_empty() {
        filter.push(b'#');
    }
    check_filter(&filter, ctx.world.settings.limits.topic_bytes)?;
    Ok(filter)
}

/// Asks the follower's current home for the next page.
fn ask_page(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    let to = clients.conns.reply_to(slot, 0);
    let (homes, party) = (clients.ctx.world.homes, clients.party(slot));
    let follow = clients
        .conns
        .side_row_mut(slot)
        .protocol_state
        .follow_progress
        .as_mut();
    let follow = follow.expect("a follower has its filter");
    if follow.is_page_in_flight || follow.home == homes {
        return;
    }
    follow.is_page_in_flight = true;
    let home = follow.home;
    let was_asked = core::mem::replace(&mut follow.is_home_asked, true);
    lanes.ask(home, |bytes| match was_asked {
        true => Ask::NextInterestPage(to, party),
        false => Ask::Follow {
            to,
            party,
            filter: Span::append(bytes, &follow.filter),
        },
    });
}

/// Asks for the next pages of all followers and watchers that can take one.
pub(crate) fn ask_pages(clients: &mut Clients, lanes: &mut Lanes, queues: &mut Queues) {
    for conn in queues.take_waiting_for_page() {
        if clients.conns.is_current(conn) {
            let row = clients.conns.get(conn.slot);
            if row.has_option(FOLLOWS) && row.link.outbox == NONE {
                match is_watcher(clients, conn.slot) {
                    true => ask_for_presence_page(clients, lanes, conn.slot),
                    false => ask_page(clients, lanes, conn.slot),
                }
            }
        }
    }
}

fn encode_interest_changes(conns: &Connections, slot: u32, changes: &InterestChanges) -> Vec<u8> {
    let (mut out, mut text) = (Vec::new(), Vec::new());
    let wants_events = conns.get(slot).has_option(AS_EVENTS);
    let mut data = Vec::new();
    for (has_subscribers, name) in changes.iter() {
        let event = if has_subscribers { "first" } else { "last" };
        data.clear();
        data.push(b'{');
        if !wants_events {
            data.extend_from_slice(b"\"event\":\"");
            data.extend_from_slice(event.as_bytes());
            data.extend_from_slice(b"\",");
        }
        data.extend_from_slice(b"\"topic\":");
        json::write_string(&mut data, name);
        data.push(b'}');
        if wants_events {
            sse::write_event(&mut text, None, Some(event.as_bytes()), &data);
        } else {
            frame::write_frame(&mut out, Opcode::Text, &data);
        }
    }
    if !text.is_empty() {
        write_part(conns.get(slot), &text, &mut out);
    }
    out
}

/// Reports that the snapshot is complete, and the number of reported topics that have subscribers.
fn encode_snapshot_end(conns: &Connections, slot: u32, topics: u64, out: &mut Vec<u8>) {
    let wants_events = conns.get(slot).has_option(AS_EVENTS);
    let mut data = Vec::with_capacity(48);
    data.extend_from_slice(if wants_events {
        b"{\"topics\":"
    } else {
        b"{\"event\":\"whole\",\"topics\":"
    });
    position::write_decimal(&mut data, topics);
    data.push(b'}');
    if wants_events {
        let mut text = Vec::with_capacity(64);
        sse::write_event(&mut text, None, Some(b"whole"), &data);
        write_part(conns.get(slot), &text, out);
    } else {
        frame::write_frame(out, Opcode::Text, &data);
    }
}

/// Checks whether the credentials and the rules still allow this follower or watcher. Ok if the connection is no follower.
pub(crate) fn may_follow(clients: &Clients, slot: u32) -> Result<(), Reason> {
    let side_row = clients.conns.find_side_row(slot);
    let follow = side_row.and_then(|side_row| side_row.protocol_state.follow_progress.as_ref());
    follow.map_or(Ok(()), |follow| {
        let right = match follow.watches_members {
            true => Right::Presence,
            false => Right::Interest,
        };
        clients.check_right(slot, right, &follow.filter)?;
        let rules = &clients.ctx.world.rules;
        match !follow.watches_members || rules.get(rules.number_for(&follow.filter)).presence {
            true => Ok(()),
            false => Err(Reason::PresenceOff),
        }
    })
}

/// Whether a follower watches the members of a topic.
fn is_watcher(clients: &Clients, slot: u32) -> bool {
    let side_row = clients.conns.find_side_row(slot);
    let follow = side_row.and_then(|side_row| side_row.protocol_state.follow_progress.as_ref());
    follow.is_some_and(|follow| follow.watches_members)
}

/// Ends a follower at the homes that know it, or a watcher.
pub(crate) fn unfollow(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    let Some(follow) = clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .follow_progress
        .take()
    else {
        return;
    };
    if follow.watches_members {
        return unwatch(clients, lanes, slot, &follow);
    }
    clients.ctx.world.admission.leave_follower(follow.client);
    let to = clients.conns.reply_to(slot, 0);
    let asked_homes = follow.home + u16::from(follow.is_home_asked);
    for home in 0..asked_homes {
        lanes.ask(home, |_| Ask::Unfollow(to));
    }
}
