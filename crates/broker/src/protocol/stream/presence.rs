//! Reports to watchers who subscribes to a topic, as an event stream or a WebSocket: the request, the pages (bounded parts) of the snapshot, and the
//! changes after it.
//!
//! The home (the part of a shard that keeps the topic) sends a page only when the watcher is ready for it, which it is when the socket has accepted the page
//! before. So a watcher costs one page of memory, however slow it reads, and gets the changes of the meantime together.
//!
//! The last event of each page that leaves nothing out has a position. A watcher that comes back with it gets the changes since then, or a new snapshot.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::http::head::Head;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::{form, sse};

use crate::base::reason::Reason;
use crate::client::row::State;
use crate::io::Io;
use crate::mail::presence::{PresenceAsk, PresenceChange, PresencePage, PresencePosition};
use crate::mail::{Ask, ReplyTo, Span};
use crate::protocol::front::{Clients, Lanes, Queues};
use crate::protocol::http::body::write_part;
use crate::protocol::http::options::{AS_EVENTS, FOLLOWS, HEAD_REQUEST};
use crate::protocol::http::parameters::{query_position, value_words};
use crate::protocol::http::presence::{
    answer_presence, request_presence, write_counts, write_id, write_member,
};
use crate::protocol::http::state::{FollowProgress, PendingResponse};
use crate::protocol::http::task::Flow;
use crate::protocol::stream::format::stream_head;
use crate::protocol::stream::stream_pages::begin_stream;
use crate::store::slab::NONE;

/// Processes `GET` on a presence path: begins a stream if the client asks for one, else answers with JSON.
pub(crate) fn request_presence_stream<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    head: &Head<'_>,
    (name, upgrade): (&[u8], bool),
    io: &mut I,
) -> Flow {
    if !upgrade && !head.accept().events {
        return request_presence(clients, lanes, slot, head, name, io);
    }
    let Ok(position) = read_position(head) else {
        let words = value_words(Reason::BadPosition, head.query);
        clients.respond_with_text(slot, Reason::BadPosition, &words);
        return Flow::Next;
    };
    let client = clients.conns.get(slot).consumer.client;
    let is_head = clients.conns.get(slot).has_option(HEAD_REQUEST);
    if !is_head && !clients.ctx.world.admission.enter_watcher(client) {
        match upgrade {
            true => clients.respond_reason(slot, Reason::WatchersFull),
            false => clients.shed_events(slot, Reason::WatchersFull),
        }
        return Flow::Next;
    }
    clients.conns.get_mut(slot).consumer.options |= FOLLOWS;
    let head_written = stream_head(clients, slot, head, upgrade, name);
    if is_head || head_written.is_err() {
        clients.conns.get_mut(slot).consumer.options &= !FOLLOWS;
    }
    if let Err(reason) = head_written {
        if !is_head {
            clients.ctx.world.admission.leave_watcher(client);
        }
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    if is_head {
        return Flow::Next;
    }
    let pending_response = PendingResponse {
        head: clients.scratch.take_reply(),
        ..PendingResponse::default()
    };
    let (_, home) = clients.ctx.hash_and_home_of(name);
    let side_row = clients.conns.ensure_side_row(slot);
    side_row.protocol_state.pending_response = Some(Box::new(pending_response));
    side_row.protocol_state.follow_progress = Some(Box::new(FollowProgress {
        filter: name.into(),
        watches_members: true,
        home,
        is_page_in_flight: true,
        client,
        ..FollowProgress::default()
    }));
    clients.conns.get_mut(slot).consumer.state = State::Waiting;
    let to = clients.conns.reply_to(slot, 0);
    lanes.ask(home, |bytes| {
        Ask::Presence(PresenceAsk::Watch(to, position), Span::append(bytes, name))
    });
    Flow::Wait
}

/// The position after which a watcher continues: that of its last event, or that in the query.
fn read_position(head: &Head<'_>) -> Result<Option<PresencePosition>, ()> {
    let event_id = head.headers("last-event-id").last();
    let mut decoded = Vec::new();
    let text = match (
        event_id.filter(|id| !id.is_empty()),
        query_position(head.query),
    ) {
        (Some(id), _) => id,
        (None, Some((_, value))) => {
            form::decode(value, &mut decoded).map_err(|_| ())?;
            &decoded
        }
        (None, None) => return Ok(None),
    };
    PresencePosition::parse(text).map(Some).ok_or(())
}

/// Handles a home's page: sends it to a watcher, or answers a request with it.
pub(crate) fn handle_presence_page<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    page: &PresencePage,
    io: &mut I,
) {
    let slot = to.slot;
    if !clients.conns.get(slot).has_option(FOLLOWS) {
        return answer_presence(clients, queues, to, page, io);
    }
    let bytes = encode_page(clients, slot, page);
    let state = &mut clients.conns.ensure_side_row(slot).protocol_state;
    let follow = state
        .follow_progress
        .as_mut()
        .expect("a watcher has its topic");
    follow.is_page_in_flight = false;
    if let Some(pending_response) = &mut state.pending_response {
        pending_response.body.own.extend_from_slice(&bytes);
        begin_stream(clients, queues, slot, io);
    } else {
        clients.send_bytes(slot, &bytes, io);
    }
    if clients.conns.get(slot).link.outbox == NONE {
        queues.queue_for_page(clients.conns.id_of(slot));
    }
}

/// Tells the home that a watcher can take the next page.
pub(crate) fn ask_for_presence_page(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    let to = clients.conns.reply_to(slot, 0);
    let follow = clients
        .conns
        .side_row_mut(slot)
        .protocol_state
        .follow_progress
        .as_mut();
    let Some(follow) = follow.filter(|follow| !follow.is_page_in_flight) else {
        return;
    };
    follow.is_page_in_flight = true;
    lanes.ask(follow.home, |bytes| {
        Ask::Presence(PresenceAsk::Ready(to), Span::append(bytes, &follow.filter))
    });
}

/// Ends a watcher at the home of its topic.
pub(crate) fn unwatch(clients: &Clients, lanes: &mut Lanes, slot: u32, follow: &FollowProgress) {
    clients.ctx.world.admission.leave_watcher(follow.client);
    let to = clients.conns.reply_to(slot, 0);
    lanes.ask(follow.home, |bytes| {
        Ask::Presence(
            PresenceAsk::Unwatch(to),
            Span::append(bytes, &follow.filter),
        )
    });
}

/// The events of a page.
fn encode_page(clients: &Clients, slot: u32, page: &PresencePage) -> Vec<u8> {
    let mut events: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut counts = Vec::new();
    write_counts(&clients.ctx, &mut counts, &page.counts);
    if page.resets {
        events.push(("reset", counts.clone()));
    }
    for change in page.changes.iter() {
        let mut data = Vec::new();
        let event = match change {
            PresenceChange::Join(member) => {
                write_member(&clients.ctx, &member, &mut data);
                "join"
            }
            PresenceChange::Leave(member) => {
                write_id(&member, &mut data);
                "leave"
            }
        };
        events.push((event, data));
    }
    let is_live = !page.resets && !page.more;
    if page.completes {
        events.push(("whole", counts));
    } else if is_live && (page.changes.is_empty() || page.counts.listed < page.counts.clients) {
        events.push(("count", counts));
    }
    let mut id = Vec::new();
    if !page.more {
        page.position.write(&mut id);
    }
    let row = clients.conns.get(slot);
    let (mut out, mut text) = (Vec::new(), Vec::new());
    let last_index = events.len().saturating_sub(1);
    for (at, (event, data)) in events.iter().enumerate() {
        let id = Some(&id[..]).filter(|id| at == last_index && !id.is_empty());
        if row.has_option(AS_EVENTS) {
            let data = [b"{", &data[..], b"}"].concat();
            sse::write_event(&mut text, id, Some(event.as_bytes()), &data);
            continue;
        }
        let mut frame = [b"{\"event\":\"", event.as_bytes(), b"\",", data].concat();
        if let Some(id) = id {
            frame.extend_from_slice(&[b",\"position\":\"", id, b"\""].concat());
        }
        frame.push(b'}');
        frame::write_frame(&mut out, Opcode::Text, &frame);
    }
    if !text.is_empty() {
        write_part(row, &text, &mut out);
    }
    out
}
