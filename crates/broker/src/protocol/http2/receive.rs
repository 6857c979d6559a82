//! Reads the frames of a link, and gives each stream its input: the head and the body of its request in the form of HTTP/1.1.
//!
//! Invariants: a stream's input goes to the protocol of its row, like the bytes of a socket. The client may send more of a body only when the row reads. Frames
//! wait, as bytes of the link, while the turn's budget is spent, or while too many bytes wait for the link's socket.

use alloc::vec::Vec;

use crore_wire::http2::{ErrorCode, Event, NO_SLOT, Scratch, Violation};

use crate::base::go_away::GoAway;
use crate::base::journal::EventKind;
use crate::base::reason::{Closed, Reason};
use crate::client::admission::admit_stream;
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::links::UNSENT_BYTES_MAX;
use crate::client::progress::Progress;
use crate::client::protocols::protocol_of;
use crate::client::row::{PAUSED, Row, SERVED, State, TURNED_AWAY};
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::front::{AllProtocols, Clients, Connections, Front};
use crate::protocol::http::answer::refuse;
use crate::protocol::http::body::chunk;
use crate::protocol::http::options::PINGS;
use crate::protocol::http2::contract::{end_link, limits_of};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// This many streams in succession are refused with an answer. Further ones get `REFUSED_STREAM`, which takes no row.
const TURNED_AWAY_MAX: u8 = 4;

/// The link ends.
struct LinkEnds;

/// The head and body of one request that were received in this input, so that they are given to HTTP together.
#[derive(Default)]
struct RequestInput {
    slot: Option<u32>,
    bytes: Vec<u8>,
}

/// Processes received bytes of a link, after those that it holds.
pub(super) fn receive_http2<I: Io>(
    front: &mut Front,
    slot: u32,
    input: &[u8],
    home: &mut Option<Home>,
    io: &mut I,
) {
    let held_frames = match front.clients.conns.take_unprocessed_input(slot) {
        Some(Spill::Http2(mut held_frames, progress)) => {
            held_frames.append(input, usize::MAX);
            Some((held_frames, progress))
        }
        _ => None,
    };
    let bytes = held_frames
        .as_ref()
        .map_or(input, |(held_frames, _)| held_frames.rest());
    let mut scratch = core::mem::take(&mut front.clients.conns.links.scratch);
    let consumed = handle_frames(front, slot, bytes, &mut scratch, home, io);
    front.clients.conns.links.scratch = scratch;
    let Ok(consumed) = consumed else { return };
    let (held_frames, progress) = match held_frames {
        Some((mut held_frames, progress)) => {
            held_frames.consume(consumed);
            // The progress of a frame counts for this frame only.
            (
                held_frames,
                if consumed == 0 {
                    progress
                } else {
                    Progress::default()
                },
            )
        }
        None => (SpillBuffer::new(&input[consumed..]), Progress::default()),
    };
    if held_frames.is_empty() {
        return;
    }
    let (clients, queues) = (&mut front.clients, &front.queues);
    if !has_receive_room(
        clients,
        queues,
        &front.census,
        slot,
        held_frames.bytes(),
        io,
    ) {
        return end_for_room(clients, slot, io);
    }
    clients
        .conns
        .set_unprocessed_input(slot, Spill::Http2(held_frames, progress));
}

/// Handles all complete frames. Returns the number of their bytes.
fn handle_frames<I: Io>(
    front: &mut Front,
    slot: u32,
    bytes: &[u8],
    scratch: &mut Scratch,
    home: &mut Option<Home>,
    io: &mut I,
) -> Result<usize, LinkEnds> {
    let clients = &front.clients;
    let limits = limits_of(&clients.ctx, clients.conns.get(slot).consumer.client);
    let now_s = clients.ctx.now.s;
    let (mut consumed, mut request) = (0, RequestInput::default());
    request.bytes = core::mem::take(&mut front.clients.conns.links.request);
    loop {
        let clients = &mut front.clients;
        if clients.conns.get(slot).consumer.state != State::Http2 {
            return Err(LinkEnds);
        }
        let is_spent = consumed < bytes.len() && clients.meter.work.is_spent();
        if is_spent || is_blocked(&clients.conns, slot) {
            if request.slot.is_some() {
                request.deliver(front, slot, home, io);
                continue;
            }
            if is_spent {
                front.queues.pause_until_next_turn(clients, slot, io);
            }
            break;
        }
        let Some(link) = clients.conns.links.get_mut(slot) else {
            clients.end_as_broken(slot);
            return Err(LinkEnds);
        };
        let (codec, out) = (&mut link.codec, &mut link.out);
        let received = codec.receive(&bytes[consumed..], now_s, &limits, scratch, out);
        let received = received.map_err(|violation| {
            end_for_violation(clients, slot, violation, io);
            LinkEnds
        })?;
        consumed += received.consumed;
        clients.meter.work.steps.add(1);
        clients.meter.work.steps.add_bytes(received.consumed);
        let Some(event) = received.event else {
            break;
        };
        if !matches!(&event, Event::Data { slot, .. } if request.slot == Some(*slot)) {
            request.deliver(front, slot, home, io);
        }
        handle_event(front, slot, event, &mut request, home, io);
    }
    request.deliver(front, slot, home, io);
    front.clients.conns.links.request = request.bytes;
    Ok(consumed)
}

/// Whether too many bytes wait for the link's socket to read further frames.
fn is_blocked(conns: &Connections, slot: u32) -> bool {
    (conns.links.get(slot)).is_some_and(|link| {
        link.is_full && link.out.len() + conns.waiting_bytes(slot) >= UNSENT_BYTES_MAX
    })
}

fn handle_event<I: Io>(
    front: &mut Front,
    link: u32,
    event: Event<'_>,
    request: &mut RequestInput,
    home: &mut Option<Home>,
    io: &mut I,
) {
    let attached = |slot: u32| Some(slot).filter(|slot| *slot != NO_SLOT);
    match event {
        Event::Request { stream, head, ends } => {
            let Some(slot) = open_stream(front, link, stream, io) else {
                return;
            };
            request.bytes.clear();
            request.bytes.extend_from_slice(head);
            request.slot = Some(slot);
            if ends {
                request.deliver(front, link, home, io);
            }
        }
        Event::TooLarge { stream } => {
            if let Some(slot) = open_stream(front, link, stream, io) {
                refuse(&mut front.clients, slot, Reason::HeadTooLarge, io);
            }
        }
        Event::Data {
            stream,
            slot,
            data,
            ends,
        } => {
            let Some(slot) = attached(slot) else { return };
            let codec = front.clients.conns.links.get(link).map(|it| &it.codec);
            let is_chunked = codec.is_some_and(|codec| codec.is_chunked(stream));
            if request.slot.is_none() {
                request.bytes.clear();
                request.slot = Some(slot);
            }
            match is_chunked {
                false => request.bytes.extend_from_slice(data),
                // A chunk without data would be the last one.
                true if data.is_empty() => {}
                true => chunk(&mut request.bytes, data),
            }
            if is_chunked && ends {
                request.bytes.extend_from_slice(b"0\r\n\r\n");
            }
            if !ends {
                return;
            }
            request.deliver(front, link, home, io);
            let is_tunnel =
                (front.clients.conns.links.get(link)).is_some_and(|it| it.codec.is_tunnel(stream));
            if is_tunnel {
                let clients = &mut front.clients;
                let state = clients.conns.get(slot).consumer.state;
                protocol_of!(AllProtocols, state, peer_ended(clients, slot, io));
            }
        }
        Event::Reset { slot, .. } | Event::Refused { slot, .. } => {
            if let Some(slot) = attached(slot) {
                front.clients.drop_connection(slot, CloseMode::Now);
            }
        }
        Event::Writable { .. } => front.clients.conns.links.wake_streams(link),
        Event::GoAway { .. } => {}
    }
}

impl RequestInput {
    /// Gives the received bytes of a request, if there are any, to the stream's row.
    fn deliver<I: Io>(
        &mut self,
        front: &mut Front,
        link: u32,
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let Some(slot) = self.slot.take() else { return };
        let consumer = &mut front.clients.conns.get_mut(slot).consumer;
        // The client has sent something, so no heartbeat is unanswered.
        consumer.options &= !PINGS;
        let (state, bytes) = (consumer.state, &mut self.bytes[..]);
        protocol_of!(AllProtocols, state, received(front, slot, bytes, home, io));
        let conns = &mut front.clients.conns;
        let row = conns.get(slot);
        if !row.link.has(PAUSED) && row.link.outbox == NONE {
            let stream = row.link.socket;
            debug_assert_eq!(conns.links.link_of(stream), Some(link));
            conns.links.set_interest(stream, true, false);
        }
    }
}

/// Makes a row for a new stream. `None` if there is no room for one: the client may send the request again, on another connection.
fn open_stream<I: Io>(front: &mut Front, link: u32, stream: u32, io: &I) -> Option<u32> {
    let (clients, gate) = (&mut front.clients, &mut front.gate);
    let socket = clients.conns.links.add(link, stream);
    let (now, head_s) = (clients.ctx.now, clients.ctx.world.settings.timeouts.head_s);
    let mut row = Row::new(socket, State::Http, now, now.s + head_s);
    // Otherwise its first bytes would be examined for other protocols.
    row.link.flags |= SERVED;
    clients.meter.stats.accepted += 1;
    clients.meter.stats.streams += 1;
    let mut is_admitted = admit_stream(clients, gate, &mut row, link);
    let is_refused = row.link.has(TURNED_AWAY);
    let is_last = clients.conns.get(link).link.has(TURNED_AWAY);
    if let Some(shared) = clients.conns.links.get_mut(link) {
        let refused = if is_refused { shared.turned_away } else { 0 };
        shared.turned_away = refused.saturating_add(u8::from(is_refused));
        if is_admitted && refused >= TURNED_AWAY_MAX {
            gate.stop_counting(&clients.ctx, &row);
            is_admitted = false;
        }
        if is_last {
            // The answer to this request is the only one.
            let (codec, out) = (&mut shared.codec, &mut shared.out);
            codec.go_away(ErrorCode::NoError, "no room for a connection", out);
            clients.meter.stats.goaways[GoAway::Full as usize] += 1;
        }
    }
    if !is_admitted {
        clients.meter.stats.closed[Closed::Full as usize] += 1;
        if let Some(shared) = clients.conns.links.get_mut(link) {
            let (codec, out) = (&mut shared.codec, &mut shared.out);
            codec.reset(stream, ErrorCode::RefusedStream, out);
        }
        clients.conns.links.close(socket, CloseMode::Now);
        return None;
    }
    let slot = clients.conns.insert(row);
    let relayed = clients.conns.relayed_address(link);
    if relayed.is_some() {
        clients.conns.set_relayed_address(slot, relayed);
    }
    if let Some(shared) = clients.conns.links.get_mut(link) {
        shared.codec.attach(stream, slot);
    }
    let row = clients.conns.get_mut(link);
    row.link.flags |= SERVED;
    // A link that is turned away keeps its deadline.
    if row.link.outbox == NONE && !row.link.has(TURNED_AWAY) {
        row.link.deadline_s = 0;
    }
    // Reading the address costs a system call for each request, so it is read only for the log of clients.
    if clients.meter.journal.is_some()
        && let Some(peer) = clients.conns.address_of(slot, io)
    {
        clients.record_accepted(slot, peer);
    }
    Some(slot)
}

/// Counts a violation of the protocol, and ends the link. The codec has written GOAWAY with the code as the last frame.
fn end_for_violation<I: Io>(clients: &mut Clients, slot: u32, violation: Violation, io: &mut I) {
    clients.refused(slot, Reason::Http2Violation);
    clients.meter.stats.goaways[GoAway::from(violation) as usize] += 1;
    clients.record_event(slot, EventKind::Refused, violation.name().as_bytes());
    clients.record_end_reason(violation.name());
    end_link(clients, slot, Closed::Refused, io);
}
