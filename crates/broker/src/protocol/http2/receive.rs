//! Reads the frames of a link, and gives each stream its input: the head and the body of its request in the form of HTTP/1.1.
//!
//! Invariants: a stream's input is given to the protocol of its row, as the bytes of a socket are. The client may send more of a body
//! only when its row reads. Frames wait, as bytes of the link, while the turn's budget is spent or the link's socket is full.

use alloc::vec::Vec;

use crore_wire::http2::{ErrorCode, Event, NO_SLOT, Scratch, Violation};

use crate::base::go_away::GoAway;
use crate::base::journal::EventKind;
use crate::base::reason::{Closed, Reason};
use crate::client::admission::enter_stream;
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::progress::Progress;
use crate::client::protocols::protocol_of;
use crate::client::row::{PAUSED, Row, SERVED, State, TURNED_AWAY};
use crate::home::Home;
use crate::io::{CloseMode, Io};
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::front::{AllProtocols, Clients, Front};
use crate::protocol::http::answer::refuse;
use crate::protocol::http::body::chunk;
use crate::protocol::http::options::PINGS;
use crate::protocol::http2::contract::{end_link, limits_of};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// The streams in succession that are refused with an answer. Further ones get `REFUSED_STREAM`, so that they take no row.
const TURNED_AWAY_MAX: u8 = 4;

/// The link ends.
struct Ends;

/// What came of a request in this input, head or body, so that its parts are given to HTTP at once.
#[derive(Default)]
struct Begun {
    slot: Option<u32>,
    bytes: Vec<u8>,
}

/// Processes received bytes of a link, after those that it holds.
pub(super) fn link_received<I: Io>(
    front: &mut Front,
    slot: u32,
    input: &[u8],
    home: &mut Option<Home>,
    io: &mut I,
) {
    let held = match front.clients.conns.take_unprocessed_input(slot) {
        Some(Spill::Http2(mut held, progress)) => {
            held.append(input, usize::MAX);
            Some((held, progress))
        }
        _ => None,
    };
    let bytes = held.as_ref().map_or(input, |(held, _)| held.rest());
    let mut scratch = core::mem::take(&mut front.clients.conns.links.scratch);
    let used = frames(front, slot, bytes, &mut scratch, home, io);
    front.clients.conns.links.scratch = scratch;
    let Ok(used) = used else { return };
    let (held, progress) = match held {
        Some((mut held, progress)) => {
            held.consume(used);
            // The progress of a frame counts for this frame only.
            (
                held,
                if used == 0 {
                    progress
                } else {
                    Progress::default()
                },
            )
        }
        None => (SpillBuffer::new(&input[used..]), Progress::default()),
    };
    if held.is_empty() {
        return;
    }
    let (clients, queues) = (&mut front.clients, &front.queues);
    if !has_receive_room(clients, queues, &front.census, slot, held.bytes(), io) {
        return end_for_room(clients, slot, io);
    }
    clients
        .conns
        .set_unprocessed_input(slot, Spill::Http2(held, progress));
}

/// Handles all whole frames. Returns the number of their bytes.
fn frames<I: Io>(
    front: &mut Front,
    slot: u32,
    bytes: &[u8],
    scratch: &mut Scratch,
    home: &mut Option<Home>,
    io: &mut I,
) -> Result<usize, Ends> {
    let clients = &front.clients;
    let limits = limits_of(&clients.ctx, clients.conns.get(slot).consumer.client);
    let now_s = clients.ctx.now.s;
    let (mut at, mut begun) = (0, Begun::default());
    begun.bytes = core::mem::take(&mut front.clients.conns.links.request);
    loop {
        let clients = &mut front.clients;
        if clients.conns.get(slot).consumer.state != State::Http2 {
            return Err(Ends);
        }
        if begun.slot.is_none() && at < bytes.len() && clients.meter.work.is_spent() {
            front.queues.pause(clients, slot, io);
            break;
        }
        let Some(link) = clients.conns.links.get_mut(slot) else {
            clients.end_as_broken(slot);
            return Err(Ends);
        };
        if begun.slot.is_none() && link.is_full {
            break;
        }
        let (codec, out) = (&mut link.codec, &mut link.out);
        let received = codec.receive(&bytes[at..], now_s, &limits, scratch, out);
        let received = received.map_err(|violation| {
            violated(clients, slot, violation, io);
            Ends
        })?;
        at += received.consumed;
        clients.meter.work.steps.add(1);
        clients.meter.work.steps.add_bytes(received.consumed);
        let Some(event) = received.event else {
            break;
        };
        if !matches!(&event, Event::Data { slot, .. } if begun.slot == Some(*slot)) {
            begun.deliver(front, slot, home, io);
        }
        handle(front, slot, event, &mut begun, home, io);
    }
    begun.deliver(front, slot, home, io);
    front.clients.conns.links.request = begun.bytes;
    Ok(at)
}

fn handle<I: Io>(
    front: &mut Front,
    link: u32,
    event: Event<'_>,
    begun: &mut Begun,
    home: &mut Option<Home>,
    io: &mut I,
) {
    let known = |slot: u32| Some(slot).filter(|slot| *slot != NO_SLOT);
    match event {
        Event::Request { stream, head, ends } => {
            let Some(slot) = open(front, link, stream, io) else {
                return;
            };
            begun.bytes.clear();
            begun.bytes.extend_from_slice(head);
            begun.slot = Some(slot);
            if ends {
                begun.deliver(front, link, home, io);
            }
        }
        Event::TooLarge { stream } => {
            if let Some(slot) = open(front, link, stream, io) {
                refuse(&mut front.clients, slot, Reason::HeadTooLarge, io);
            }
        }
        Event::Data {
            stream,
            slot,
            data,
            ends,
        } => {
            let Some(slot) = known(slot) else { return };
            let codec = front.clients.conns.links.get(link).map(|it| &it.codec);
            let is_chunked = codec.is_some_and(|codec| codec.is_chunked(stream));
            if begun.slot.is_none() {
                begun.bytes.clear();
                begun.slot = Some(slot);
            }
            match is_chunked {
                false => begun.bytes.extend_from_slice(data),
                // A chunk without data would be the last one.
                true if data.is_empty() => {}
                true => chunk(&mut begun.bytes, data),
            }
            if is_chunked && ends {
                begun.bytes.extend_from_slice(b"0\r\n\r\n");
            }
            if !ends {
                return;
            }
            begun.deliver(front, link, home, io);
            let is_tunnel =
                (front.clients.conns.links.get(link)).is_some_and(|it| it.codec.is_tunnel(stream));
            if is_tunnel {
                let clients = &mut front.clients;
                let state = clients.conns.get(slot).consumer.state;
                protocol_of!(AllProtocols, state, peer_ended(clients, slot, io));
            }
        }
        Event::Reset { slot, .. } | Event::Refused { slot, .. } => {
            if let Some(slot) = known(slot) {
                front.clients.drop_connection(slot, CloseMode::Now);
            }
        }
        Event::Writable { .. } => front.clients.conns.links.wake(link),
        Event::Pong(_) | Event::GoAway { .. } => {}
    }
}

impl Begun {
    /// Gives the row of the stream what came of its request, if anything did.
    fn deliver<I: Io>(
        &mut self,
        front: &mut Front,
        link: u32,
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let Some(slot) = self.slot.take() else { return };
        let consumer = &mut front.clients.conns.get_mut(slot).consumer;
        // The client is alive.
        consumer.options &= !PINGS;
        let (state, bytes) = (consumer.state, &mut self.bytes[..]);
        protocol_of!(AllProtocols, state, received(front, slot, bytes, home, io));
        let conns = &mut front.clients.conns;
        let row = conns.get(slot);
        if !row.link.has(PAUSED) && row.link.outbox == NONE {
            let stream = row.link.socket;
            debug_assert_eq!(conns.links.link_of(stream), Some(link));
            conns.links.interest(stream, true, false);
        }
    }
}

/// Makes a row for a new stream. `None` if there is no room for one: the client may send the request again, on another connection.
fn open<I: Io>(front: &mut Front, link: u32, stream: u32, io: &I) -> Option<u32> {
    let (clients, gate) = (&mut front.clients, &mut front.gate);
    let socket = clients.conns.links.add(link, stream);
    let (now, head_s) = (clients.ctx.now, clients.ctx.world.settings.timeouts.head_s);
    let mut row = Row::new(socket, State::Http, now, now.s + head_s);
    // Its first bytes are those of a request.
    row.link.flags |= SERVED;
    clients.meter.stats.accepted += 1;
    clients.meter.stats.streams += 1;
    let mut enters = enter_stream(clients, gate, &mut row, link);
    let is_refused = row.link.has(TURNED_AWAY);
    let is_last = clients.conns.get(link).link.has(TURNED_AWAY);
    if let Some(shared) = clients.conns.links.get_mut(link) {
        let refused = if is_refused { shared.turned_away } else { 0 };
        shared.turned_away = refused.saturating_add(u8::from(is_refused));
        if enters && refused >= TURNED_AWAY_MAX {
            gate.stop_counting(&clients.ctx, &row);
            enters = false;
        }
        if is_last {
            // The answer to this request is the only one.
            let (codec, out) = (&mut shared.codec, &mut shared.out);
            codec.go_away(ErrorCode::NoError, "no room for a connection", out);
            clients.meter.stats.goaways[GoAway::Full as usize] += 1;
        }
    }
    if !enters {
        clients.meter.stats.closed[Closed::Full as usize] += 1;
        if let Some(shared) = clients.conns.links.get_mut(link) {
            let (codec, out) = (&mut shared.codec, &mut shared.out);
            codec.reset(stream, ErrorCode::RefusedStream, out);
        }
        clients.conns.links.close(socket, CloseMode::Now);
        return None;
    }
    let slot = clients.conns.insert(row);
    let relayed = clients.conns.relayed(link);
    if relayed.is_some() {
        clients.conns.set_relayed(slot, relayed);
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
    // A system call for each request, so only for a log of clients.
    if clients.meter.journal.is_some()
        && let Some(peer) = clients.conns.address_of(slot, io)
    {
        clients.note_connected(slot, peer);
    }
    Some(slot)
}

/// Counts what a client did wrong, and ends the link. The last frame to send is GOAWAY with the code.
fn violated<I: Io>(clients: &mut Clients, slot: u32, violation: Violation, io: &mut I) {
    clients.refused(slot, Reason::Http2Violation);
    clients.meter.stats.goaways[GoAway::from(violation) as usize] += 1;
    clients.note(slot, EventKind::Refused, violation.name().as_bytes());
    clients.note_end_reason(violation.name());
    end_link(clients, slot, Closed::Refused, io);
}
