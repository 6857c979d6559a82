//! Receives the frames of a WebSocket after its upgrade: frames that publish, control frames, and the close. Keeps bytes that must
//! wait.

use alloc::boxed::Box;

use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::receive::{self, Config, Event, Partial, Role, Violation};

use crate::base::reason::{Closed, Reason};
use crate::client::credit::{must_stall, stall_if_needed, stop_reading};
use crate::client::hold::{end_for_room, has_receive_room};
use crate::client::progress::Progress;
use crate::client::protocols::protocol_of;
use crate::client::row::State;

use crate::home::Home;
use crate::io::Io;
use crate::mail::spill_buffer::SpillBuffer;
use crate::protocol::front::{AllProtocols, Clients, Connections, Front};
use crate::protocol::http::options::{DEFLATE, PUBLISHES};
use crate::protocol::http::stream_end::{
    end_stream, end_stream_with_code, end_stream_with_text, has_frames,
};
use crate::protocol::side::Spill;
use crate::store::slab::NONE;

/// The close code of a client whose page is left or reloaded (RFC 6455 section 7.4.1).
const GOING_AWAY: u16 = 1001;

/// The work of receiving after which the turn's budget is checked. The unit is bytes: 64 KiB count as 256 steps.
const WORK_AT_ONCE: usize = 64 << 10;

/// An incomplete frame or message, and the progress of its arrival.
type IncompleteMessage = (Option<Box<Partial>>, Progress);

impl Front {
    /// Processes received bytes of a WebSocket, after any bytes that were held.
    pub(crate) fn receive_frames<I: Io>(
        &mut self,
        slot: u32,
        input: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        let config = Config {
            role: Role::Server,
            message_bytes: frame_bytes_max(&self.clients, slot),
            deflate: self.clients.conns.get(slot).has_option(DEFLATE),
        };
        let Some(((mut partial, mut progress), mut held_input)) =
            take_frames(&mut self.clients.conns, slot, input)
        else {
            return self.clients.end_as_broken(slot);
        };
        let mut offset = 0;
        loop {
            let rest = match &mut held_input {
                Some(held) => &mut held.rest_mut()[offset..],
                None => &mut input[offset..],
            };
            let is_publisher = self.clients.conns.get(slot).has_option(PUBLISHES);
            let state = self.clients.conns.get(slot).consumer.state;
            let wait = if self.clients.meter.work.is_spent() {
                Some(Wait::Turn)
            } else if protocol_of!(AllProtocols, state, awaits_answers(&self.clients, slot)) {
                Some(Wait::Answers)
            } else {
                let lacks_credit =
                    is_publisher && must_stall(&self.clients, &self.subs.lanes, slot);
                lacks_credit.then_some(Wait::Credit)
            };
            let has_more = !rest.is_empty() || partial.as_ref().is_some_and(|it| it.is_inflating());
            if let Some(wait) = wait.filter(|_| has_more) {
                self.clients.send_reply(slot, io);
                let rest = unread_bytes(held_input, input, offset);
                return hold_frames(self, slot, (partial, progress), (rest, wait), io);
            }
            let mut work = WORK_AT_ONCE;
            let step = match receive::next_within(&mut partial, rest, &config, &mut work) {
                Ok(step) => step,
                Err(violation) => {
                    return refuse_frames(&mut self.clients, slot, violation, io);
                }
            };
            offset += step.consumed;
            self.clients.meter.work.steps.add(1);
            self.clients.meter.work.steps.add_bytes(WORK_AT_ONCE - work);
            let event = match step.event {
                Some(event) => event,
                None if work == 0 => continue,
                None => break,
            };
            if matches!(event, Event::Text(_) | Event::Binary(_)) {
                progress = Progress::default();
            }
            if !self.handle_event(slot, event, home, io) {
                return;
            }
        }
        finish_reading_frames(self, slot, (partial, progress), io);
    }

    /// Handles one event. False if the connection takes no more events.
    fn handle_event<I: Io>(
        &mut self,
        slot: u32,
        event: Event<'_>,
        home: &mut Option<Home>,
        io: &mut I,
    ) -> bool {
        let state = self.clients.conns.get(slot).consumer.state;
        let is_binary = matches!(event, Event::Binary(_));
        match event {
            Event::Text(data) | Event::Binary(data) => {
                protocol_of!(
                    AllProtocols,
                    state,
                    handle_frame(self, slot, data, is_binary, home, io)
                )
            }
            Event::Ping(data) => {
                frame::write_frame(&mut self.clients.scratch.reply, Opcode::Pong, data);
                true
            }
            Event::Pong(_) => true,
            Event::Close { code, .. } => {
                self.clients.send_reply(slot, io);
                self.clients.scratch.is_closed_by_client = code != Some(GOING_AWAY);
                let code = code.or(Reason::PeerClosed.row().close).unwrap_or_default();
                end_stream_with_code(&mut self.clients, slot, Closed::Peer, code, "", io);
                false
            }
        }
    }
}

/// What received frames wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The next turn.
    Turn,
    /// Answers to earlier frames.
    Answers,
    /// Credit (`client/credit.rs`).
    Credit,
}

/// Holds received frames.
fn hold_frames<I: Io>(
    front: &mut Front,
    slot: u32,
    (partial, progress): IncompleteMessage,
    (data, wait): (SpillBuffer, Wait),
    io: &mut I,
) {
    let (clients, queues, census) = (&mut front.clients, &mut front.queues, &front.census);
    let partial_bytes = partial.as_ref().map_or(0, |held| held.buffered_bytes());
    if !has_receive_room(
        clients,
        queues,
        census,
        slot,
        partial_bytes + data.bytes(),
        io,
    ) {
        return end_for_room(clients, slot, io);
    }
    let row = clients.conns.get_mut(slot);
    if row.link.outbox == NONE {
        // The client waits for the server, so the connection has no deadline.
        row.link.deadline_s = 0;
    }
    clients
        .conns
        .set_unprocessed_input(slot, Spill::Frames(partial, data, progress));
    match wait {
        Wait::Turn => queues.pause_until_next_turn(clients, slot, io),
        Wait::Answers => stop_reading(&mut clients.conns, slot, io),
        Wait::Credit => queues.stall(&mut clients.conns, &mut clients.meter.stats, slot, io),
    }
}

/// Sends the answers after all received bytes were read, and keeps an incomplete frame or message.
fn finish_reading_frames<I: Io>(
    front: &mut Front,
    slot: u32,
    incomplete: IncompleteMessage,
    io: &mut I,
) {
    front.clients.send_reply(slot, io);
    if has_frames(&front.clients, slot) {
        hold_partial(front, slot, incomplete, io);
    }
    let (clients, subs, _, queues) = front.parts();
    if has_frames(clients, slot) && clients.conns.get(slot).has_option(PUBLISHES) {
        stall_if_needed(clients, &subs.lanes, queues, slot, io);
    }
}

fn hold_partial<I: Io>(
    front: &mut Front,
    slot: u32,
    (partial, progress): IncompleteMessage,
    io: &mut I,
) {
    let (clients, queues, census) = (&mut front.clients, &front.queues, &front.census);
    let state = clients.conns.get(slot).consumer.state;
    let idle_s = protocol_of!(AllProtocols, state, silent_until_s(clients, slot));
    let row = clients.conns.get_mut(slot);
    let Some(partial) = partial else {
        if row.link.outbox == NONE {
            row.link.deadline_s = idle_s;
        }
        return;
    };
    if row.link.outbox == NONE && row.consumer.state == State::WebSocket {
        // An incomplete frame has no idle deadline, because the check of slow senders (`progress.rs`) limits its time. The keep
        // alive of an MQTT client still applies.
        row.link.deadline_s = 0;
    }
    if !has_receive_room(clients, queues, census, slot, partial.buffered_bytes(), io) {
        return end_for_room(clients, slot, io);
    }
    clients
        .conns
        .set_unprocessed_input(slot, Spill::WebSocket(partial, progress));
}

/// Takes the incomplete frame or message, and the held bytes. If bytes were held, `input` is appended to them.
fn take_frames(
    conns: &mut Connections,
    slot: u32,
    input: &[u8],
) -> Option<(IncompleteMessage, Option<SpillBuffer>)> {
    let (incomplete, mut held_input) = match conns.take_unprocessed_input(slot) {
        None => return Some(Default::default()),
        Some(Spill::WebSocket(held_input, progress)) => {
            return Some(((Some(held_input), progress), None));
        }
        Some(Spill::Frames(held_input, data, progress)) => ((held_input, progress), data),
        // The client sent these bytes before the server had answered the handshake.
        Some(Spill::Http(held_input)) => (
            IncompleteMessage::default(),
            SpillBuffer::new(&held_input.data),
        ),
        // Cannot occur here: MQTT packets within frames are held in `Extra::mqtt`, and a link of HTTP/2 is no WebSocket.
        Some(Spill::Mqtt(..) | Spill::Http2(..)) => return None,
    };
    held_input.append(input, usize::MAX);
    Some((incomplete, Some(held_input)))
}

/// The bytes that were not read yet, from the held bytes or else from `input`.
fn unread_bytes(held_input: Option<SpillBuffer>, input: &[u8], offset: usize) -> SpillBuffer {
    let Some(mut held_input) = held_input else {
        return SpillBuffer::new(&input[offset..]);
    };
    held_input.consume(offset);
    held_input
}

/// Ends a connection whose frames violate the protocol or a limit.
fn refuse_frames<I: Io>(clients: &mut Clients, slot: u32, violation: Violation, io: &mut I) {
    clients.send_reply(slot, io);
    let reason = match violation {
        Violation::TooBig => return end_stream(clients, slot, Reason::MessageTooLong, io),
        Violation::BadUtf8 | Violation::BadDeflate => Reason::BadFrameData,
        _ => Reason::BadFrame,
    };
    end_stream_with_text(clients, slot, reason, violation.reason(), io);
}

/// The size limit of a message that a client may send, in bytes.
fn frame_bytes_max(clients: &Clients, slot: u32) -> usize {
    let state = clients.conns.get(slot).consumer.state;
    let beside_bytes = protocol_of!(AllProtocols, state, frame_overhead_bytes(clients));
    clients.ctx.world.settings.limits.message_bytes + beside_bytes
}
