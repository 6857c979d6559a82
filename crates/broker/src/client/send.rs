//! Sends bytes to a connection. If bytes wait already, or the socket accepts no more, the bytes go to the outbox.

use crate::budget::account::MemoryLevel;
use crate::client::codec::{Message, OfferOutcome};
use crate::client::front::Front;
use crate::client::outbox::{Bounds, Outbox, Packets};
use crate::client::parts::{Clients, Connections, Run, Topics};
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::row::{CLOSING, HELD, State};
use crate::client::subscriptions::topic_of;
use crate::client::types::ProtocolTypes;
use crate::io::Io;
use crate::mail::Frames;
use crate::store::rope::{Queue, Rope};
use crate::store::shared::OutputPart;
use crate::store::slab::NONE;

/// Sends at most `bytes_max` bytes of the outbox, because the socket accepts bytes again.
pub(crate) fn handle_writable<P: Protocols, I: Io>(
    front: &mut Front<P>,
    slot: u32,
    bytes_max: usize,
    io: &mut I,
) {
    let clients = &mut front.clients;
    let row = clients.conns.get(slot);
    if row.link.outbox == NONE || row.link.has(HELD) {
        return;
    }
    let was_read = clients.conns.is_read(slot);
    let (sent, waiting) = clients.conns.send_outbox(slot, bytes_max, io);
    if sent > 0 {
        clients.meter.work.steps.add_bytes(sent);
        let row = clients.conns.get_mut(slot);
        row.link.deadline_s = clients.ctx.now.s + clients.ctx.world.settings.timeouts.body_s;
        row.link.sent_s = clients.ctx.now.s;
    }
    if waiting > 0 {
        if clients.conns.is_read(slot) != was_read {
            clients.conns.update_interest(slot, io);
        }
        return clients.conns.weigh_outbox(slot);
    }
    clients.conns.drop_outbox(slot);
    let state = clients.conns.get(slot).consumer.state;
    let deadline_s = protocol_of!(P, state, silent_until_s(clients, slot));
    let row = clients.conns.get_mut(slot);
    row.link.deadline_s = deadline_s;
    if row.link.has(CLOSING) {
        return clients.close_after_output(slot, io);
    }
    clients.conns.update_interest(slot, io);
    protocol_of!(P, state, outbox_drained(front, slot));
}

/// The maximum number of messages that wait for any connection, if messages are counted. Walks over all connections: only for code that checks
/// bounds.
pub fn most_messages_waiting<P: ProtocolTypes>(conns: &Connections<P>) -> usize {
    let open = |slot: &u32| conns.get(*slot).is_open();
    let slots = (0..conns.end()).filter(open);
    let boxes = slots.filter_map(|slot| conns.outbox(slot));
    boxes.map(Outbox::waiting_messages).max().unwrap_or(0)
}

/// Whether one message of `bytes` bytes may be sent or added to the outbox.
pub(crate) fn fits<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    bytes: usize,
    bounds: impl FnOnce() -> Bounds,
) -> bool {
    let outbox = conns.outbox(slot);
    outbox
        .is_none_or(|outbox| conns.level() < MemoryLevel::Near && outbox.has_room(bytes, bounds()))
}

/// Appends a message that `write` encodes for this connection alone, if the outbox has room for all of `out`. Without an outbox the bounds hold for `out`
/// too, since the socket may take none of it: only its first message is appended whatever its length.
pub(crate) fn append_if_it_fits<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    slot: u32,
    message: &Message<'_>,
    out: &mut Packets,
    write: impl FnOnce(&mut Clients<P>, &mut Rope),
) -> OfferOutcome {
    let (record, frames) = (message.record, message.frames);
    let has_outbox = clients.conns.get(slot).link.outbox != NONE;
    let bytes = out.bytes.len() + frames.frame(record).len();
    let bounds = || {
        clients
            .ctx
            .bounds_for_topic(message.name)
            .reserving(out.ends.len())
    };
    let is_bounded_write =
        !has_outbox && !out.bytes.is_empty() && clients.ctx.world.rules.any_bounds_outboxes();
    if record.latest && has_outbox
        || !fits(&clients.conns, slot, bytes, bounds)
        || is_bounded_write && !Outbox::default().has_room(bytes, bounds())
    {
        return OfferOutcome::Full;
    }
    let before = out.bytes.len();
    write(clients, &mut out.bytes);
    clients.meter.stats.sent(1, out.bytes.len() - before);
    if clients.ctx.world.rules.any_counts_outbox_messages() {
        out.ends.push(out.bytes.len());
    }
    OfferOutcome::Done
}

/// Adds a message to the outbox.
pub(crate) fn queue_message<P: ProtocolTypes>(clients: &mut Clients<P>, slot: u32, bytes: &[u8]) {
    clients.conns.add_to_outbox(slot, |queue| queue.push(bytes));
    count_waiting(clients, slot, bytes.len(), &[bytes.len()]);
}

/// Adds a message that may be large to the outbox.
pub(crate) fn queue_rope<P: ProtocolTypes>(clients: &mut Clients<P>, slot: u32, message: &Rope) {
    clients
        .conns
        .add_to_outbox(slot, |queue| queue.append(message, 0, message.len()));
    count_waiting(clients, slot, message.len(), &[message.len()]);
}

/// Counts messages of a write of `len` bytes that was just made, if messages are counted. `ends` are their ends in the write.
pub(crate) fn count_waiting<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    slot: u32,
    len: usize,
    ends: &[usize],
) {
    if clients.ctx.world.rules.any_counts_outbox_messages() {
        clients.conns.count_waiting_messages(slot, len, ends);
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// Sends bytes that belong to no topic: responses and control frames. A draining connection gets nothing.
    pub(crate) fn send_bytes<I: Io>(&mut self, slot: u32, bytes: &[u8], io: &mut I) {
        let row = self.conns.get_mut(slot);
        if row.consumer.state == State::Draining {
            return;
        }
        row.link.sent_s = self.ctx.now.s;
        if row.link.outbox != NONE {
            return self.conns.add_to_outbox(slot, |queue| queue.push(bytes));
        }
        let socket = row.link.socket;
        let sent = self.conns.write(socket, &[OutputPart::Bytes(bytes)], io);
        if sent < bytes.len() {
            self.queue_rest(slot, |queue| queue.push(&bytes[sent..]), io);
        }
    }

    /// Sends the response buffer.
    pub(crate) fn send_reply<I: Io>(&mut self, slot: u32, io: &mut I) {
        if self.scratch.reply.is_empty() {
            return;
        }
        let reply = self.scratch.take_reply();
        self.send_bytes(slot, &reply, io);
        self.scratch.recycle_reply(reply);
    }

    /// Holds the response buffer, and all bytes sent after it, until [`Clients::release_held_output`].
    pub(crate) fn hold_reply<I: Io>(&mut self, slot: u32, io: &mut I) {
        self.conns.get_mut(slot).link.flags |= HELD;
        let reply = self.scratch.take_reply();
        match self.conns.get(slot).link.outbox {
            NONE => self.queue_rest(slot, |queue| queue.push(&reply), io),
            _ => {
                self.conns.add_to_outbox(slot, |queue| queue.push(&reply));
                self.conns.update_interest(slot, io);
            }
        }
        self.scratch.recycle_reply(reply);
    }

    /// Lets the socket send what was held.
    pub(crate) fn release_held_output<I: Io>(&mut self, slot: u32, io: &mut I) {
        let row = self.conns.get_mut(slot);
        if row.link.has(HELD) {
            row.link.flags &= !HELD;
            self.conns.update_interest(slot, io);
        }
    }

    /// Sends bytes, some of which may be shared with other connections.
    pub(crate) fn send_rope<I: Io>(&mut self, slot: u32, rope: &Rope, io: &mut I) {
        if !rope.is_shared() {
            return self.send_bytes(slot, &rope.own, io);
        }
        let row = self.conns.get_mut(slot);
        if row.consumer.state == State::Draining {
            return;
        }
        row.link.sent_s = self.ctx.now.s;
        if row.link.outbox != NONE {
            return self
                .conns
                .add_to_outbox(slot, |queue| queue.append(rope, 0, rope.len()));
        }
        let sent = self.conns.write_rope(slot, rope, io);
        if sent < rope.len() {
            self.queue_rest(slot, |queue| queue.append(rope, sent, rope.len()), io);
        }
    }

    /// Creates an outbox for the bytes that the socket did not accept. `write` adds them.
    fn queue_rest<I: Io>(&mut self, slot: u32, write: impl FnOnce(&mut Queue), io: &mut I) {
        let deadline_s = self.ctx.now.s + self.ctx.world.settings.timeouts.body_s;
        self.conns.get_mut(slot).link.deadline_s = deadline_s;
        self.conns.create_outbox(slot, write);
        self.conns.update_interest(slot, io);
    }

    /// Sends complete messages with these ends, or adds them to the outbox.
    pub(crate) fn send_messages<I: Io>(
        &mut self,
        slot: u32,
        bytes: &Rope,
        ends: &[usize],
        io: &mut I,
    ) {
        self.send_rope(slot, bytes, io);
        count_waiting(self, slot, bytes.len(), ends);
    }

    /// Creates an outbox for the rest of a message that the socket accepted in part. `rest` adds it, and may add nothing.
    pub(crate) fn queue_unsent_rest<I: Io>(
        &mut self,
        slot: u32,
        rest: impl FnOnce(&mut Queue),
        io: &mut I,
    ) {
        self.queue_rest(slot, rest, io);
        let len = self.conns.outbox(slot).map_or(0, Outbox::waiting_bytes);
        if len > 0 {
            count_waiting(self, slot, len, &[len]);
        }
    }

    /// The bounds of the outbox for one message of the current run.
    pub(crate) fn bounds_in_run(
        &self,
        topics: &Topics,
        run: &Run,
        (slot, sub_index): (u32, u32),
        message: usize,
        frames: &Frames,
    ) -> Bounds {
        if !self.ctx.world.rules.any_bounds_outboxes() {
            return self.ctx.default_bounds();
        }
        match run.topics.get(message) {
            Some((_, name)) => self.ctx.bounds_for_topic(frames.name(*name)),
            None => self
                .ctx
                .bounds_for_topic(topics.name(topic_of(&self.conns, slot, sub_index))),
        }
    }
}
