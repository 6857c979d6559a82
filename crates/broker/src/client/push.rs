//! Writes a run to sockets, and queues the bytes that a socket does not accept. A *run* is a group of live messages that are delivered
//! together.
//!
//! Invariant: a subscriber gets a run in one write if the messages are adjacent in memory.
//!
//! Each socket gets its own system call. An io_uring with 64 and 256 sends at a time was slower than one `send` each, in paired
//! runs on Linux 6.18.

use alloc::vec::Vec;
use core::ops::Range;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::client::front::Front;
use crate::client::joining::filter_subscriptions;
use crate::client::outbox::PARTS_MAX;
use crate::client::parts::{Clients, Connections, Matching, Run, Subscriptions};
use crate::client::protocols::Protocols;
use crate::client::row::{FILTERS, State};
use crate::client::run::Encodings;
use crate::client::send::{fits, queue_message, queue_rope};
use crate::client::types::{ProtocolTypes, SubscriptionRef};
use crate::io::Io;
use crate::mail::Frames;
use crate::store::rope::Rope;
use crate::store::shared::{OutputPart, SHARED_MIN};
use crate::store::slab::NONE;

/// Messages of the current run for one connection.
pub(crate) struct Parcel<'a, E> {
    slot: u32,
    /// The index of the subscription, if the connection has several.
    sub_index: u32,
    encoding: E,
    messages: Range<usize>,
    frames: &'a Frames,
}

impl<'a, E> Parcel<'a, E> {
    /// All messages of the run.
    fn for_whole_run(
        (slot, sub_index): (u32, u32),
        encoding: E,
        run: &Run,
        frames: &'a Frames,
    ) -> Self {
        Parcel {
            slot,
            sub_index,
            encoding,
            messages: 0..run.records().len(),
            frames,
        }
    }

    /// The messages from the first pick to the last one.
    pub(crate) fn for_picks(slot: u32, encoding: E, picks: &[u32], frames: &'a Frames) -> Self {
        let (first, last) = (picks[0] as usize, picks[picks.len() - 1] as usize);
        Parcel {
            slot,
            sub_index: 0,
            encoding,
            messages: first..last + 1,
            frames,
        }
    }
}

impl<P: Protocols> Front<P> {
    /// Sends the current run to a connection as all its subscribers with this encoding get it.
    #[inline(always)] // most deliveries; a call would be a tenth of one
    pub(crate) fn push_encoded<I: Io>(
        &mut self,
        SubscriptionRef {
            slot,
            topic,
            sub_index,
        }: SubscriptionRef,
        encoding: P::Encoding,
        frames: &Frames,
        io: &mut I,
    ) {
        if !encoding.is_frame() {
            P::encode_once(self, encoding, topic, frames);
        }
        let run = &self.feed.run;
        let parcel = Parcel::for_whole_run((slot, sub_index), encoding, run, frames);
        push(&mut self.clients, &self.subs, run, &parcel, io);
    }
}

/// Sends all messages of a parcel to its connection.
#[inline(always)] // as its caller
fn push<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    io: &mut I,
) {
    if run.is_contiguous(parcel.encoding, parcel.messages.clone()) {
        return send_contiguous(clients, subs, run, parcel, io);
    }
    let row = clients.conns.get_mut(parcel.slot);
    if row.link.outbox != NONE {
        return queue_messages(clients, subs, run, parcel, parcel.messages.start);
    }
    row.link.sent_s = clients.ctx.now.s;
    let sent = send_parts(&mut clients.conns, run, parcel, io);
    queue_rest_of_parcel(clients, subs, run, parcel, sent, io);
}

/// Sends the messages `picks` of a parcel to its connection.
pub(crate) fn push_picks<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    picks: &[u32],
    io: &mut I,
) {
    let is_all = parcel.messages.len() == picks.len();
    if is_all && run.is_contiguous(parcel.encoding, parcel.messages.clone()) {
        return send_contiguous(clients, subs, run, parcel, io);
    }
    let (mut bytes, mut ends) = (Rope::default(), Vec::new());
    for n in picks {
        run.append(parcel.encoding, *n as usize, parcel.frames, &mut bytes);
        ends.push(bytes.len());
    }
    send_contiguous_picks(clients, subs, run, parcel, (&bytes, &ends, picks), io);
}

/// Sends messages that are adjacent in memory.
fn send_contiguous<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    io: &mut I,
) {
    let row = clients.conns.get_mut(parcel.slot);
    if row.link.outbox != NONE {
        return queue_messages(clients, subs, run, parcel, parcel.messages.start);
    }
    debug_assert!(
        row.consumer.state != State::Draining,
        "it was sent its last bytes"
    );
    row.link.sent_s = clients.ctx.now.s;
    let socket = row.link.socket;
    let output = run.joined(parcel.encoding, parcel.messages.clone(), parcel.frames);
    let len = output.as_ref().len();
    let sent = clients.conns.write(socket, &[output], io);
    if sent < len {
        return queue_rest_of_parcel(clients, subs, run, parcel, sent, io);
    }
    clients.meter.stats.sent(parcel.messages.len(), len);
}

/// Sends the messages `picks` of the run, which are adjacent in `bytes` with these ends.
pub(crate) fn send_contiguous_picks<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    (bytes, ends, picks): (&Rope, &[usize], &[u32]),
    io: &mut I,
) {
    let slot = parcel.slot;
    let taken = clients.offer(slot, bytes, ends, io);
    for n in taken..ends.len() {
        let record = run.records()[picks[n] as usize];
        let mut message = Rope::default();
        message.append(bytes, if n == 0 { 0 } else { ends[n - 1] }, ends[n]);
        let bounds = || {
            clients.bounds_in_run(
                &subs.topics,
                run,
                (slot, 0),
                picks[n] as usize,
                parcel.frames,
            )
        };
        if record.latest || !fits(&clients.conns, slot, message.len(), bounds) {
            let rest = picks[n..].iter().map(|pick| *pick as usize);
            return fall_back_in_run(clients, &subs.matching, run, slot, rest);
        }
        clients.send_messages(slot, &message, &[message.len()], io);
        clients.meter.stats.sent(1, message.len());
    }
}

/// Queues what the socket did not accept: the rest of a partly sent message, and the later messages if the outbox has room.
fn queue_rest_of_parcel<P: ProtocolTypes, I: Io>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    sent: usize,
    io: &mut I,
) {
    let (mut n, mut before) = (parcel.messages.start, 0);
    while n < parcel.messages.end {
        let len = run.len(parcel.encoding, n, parcel.frames);
        if before + len > sent {
            break;
        }
        before += len;
        n += 1;
    }
    clients.meter.stats.sent(n - parcel.messages.start, before);
    if n == parcel.messages.end {
        return;
    }
    let mut cut_message = Rope::default();
    if sent > before {
        run.append(parcel.encoding, n, parcel.frames, &mut cut_message);
        clients.meter.stats.sent(1, cut_message.len());
        n += 1;
    }
    let from = match planted::is(Fault::HalfFrame) {
        true => cut_message.len(),
        false => sent - before,
    };
    let to = cut_message.len();
    clients.queue_unsent_rest(
        parcel.slot,
        |queue| queue.append(&cut_message, from, to),
        io,
    );
    queue_messages(clients, subs, run, parcel, n);
}

/// Makes a request or stream by filter fall back: it will read the messages `rest` of the run from the logs of their partitions.
fn fall_back_in_run<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    matching: &Matching,
    run: &Run,
    slot: u32,
    rest: impl Iterator<Item = usize>,
) {
    let group = filter_subscriptions(&clients.conns, slot).and_then(|all| all.groups().first());
    let Some(serial) = group.map(|group| group.serial) else {
        return clients.end_as_broken(slot);
    };
    let mut behind: Vec<PartitionId> = Vec::new();
    for n in rest {
        let topic = run.topics.get(n).zip(run.records().get(n));
        let Some((&(partition, _), record)) = topic else {
            return clients.end_as_broken(slot);
        };
        let offset = record.offset - 1;
        if !behind.contains(&partition) {
            behind.push(partition);
            clients.fall_back_in_partition(matching, slot, serial, (partition, offset));
        }
    }
}

/// Sends messages that are not adjacent, or that are large. Returns the number of bytes that the socket accepted.
fn send_parts<P: ProtocolTypes, I: Io>(
    conns: &mut Connections<P>,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    io: &mut I,
) -> usize {
    if !parcel.encoding.is_frame() {
        let mut rope = Rope::default();
        for n in parcel.messages.clone() {
            run.append(parcel.encoding, n, parcel.frames, &mut rope);
        }
        return conns.write_rope(parcel.slot, &rope, io);
    }
    let socket = conns.get(parcel.slot).link.socket;
    let (records, end) = (run.records(), parcel.messages.end);
    let mut parts = [OutputPart::Bytes(&[]); PARTS_MAX];
    let (mut used, mut first, mut sent, mut total) = (0, parcel.messages.start, 0, 0);
    for n in parcel.messages.clone() {
        if n + 1 < end && records[n].is_followed_by(&records[n + 1]) {
            continue;
        }
        parts[used] = parcel.frames.joined(&records[first], &records[n]);
        total += parts[used].as_ref().len();
        (used, first) = (used + 1, n + 1);
        if used == PARTS_MAX || first == end {
            sent += conns.write(socket, &parts[..used], io);
            used = 0;
            if sent < total {
                break;
            }
        }
    }
    sent
}

/// Adds complete messages, from number `from` of the run on, to the outbox. Beyond the outbox's bounds the subscription falls back:
/// it will read from the log when the outbox is empty. If the rule keeps only the newest message of each key, the subscription
/// falls back at once, so that no message is sent that was replaced while it waited.
fn queue_messages<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    run: &Run,
    parcel: &Parcel<'_, P::Encoding>,
    from: usize,
) {
    debug_assert!(clients.conns.get(parcel.slot).consumer.state != State::Draining);
    for n in from..parcel.messages.end {
        let len = run.len(parcel.encoding, n, parcel.frames);
        let record = &run.records()[n];
        let subscription = (parcel.slot, parcel.sub_index);
        let bounds = || clients.bounds_in_run(&subs.topics, run, subscription, n, parcel.frames);
        let waits = !record.latest || planted::is(Fault::Superseded);
        if !waits || !fits(&clients.conns, parcel.slot, len, bounds) {
            let offset = record.previous;
            if clients.conns.get(parcel.slot).has_option(FILTERS) {
                return fall_back_in_run(
                    clients,
                    &subs.matching,
                    run,
                    parcel.slot,
                    n..parcel.messages.end,
                );
            }
            return clients.fall_back(parcel.slot, parcel.sub_index, offset);
        }
        match run.is_contiguous(parcel.encoding, n..n + 1) && len < SHARED_MIN {
            true => {
                let message = run.joined(parcel.encoding, n..n + 1, parcel.frames);
                queue_message(clients, parcel.slot, message.as_ref());
            }
            false => {
                let mut message = Rope::default();
                run.append(parcel.encoding, n, parcel.frames, &mut message);
                queue_rope(clients, parcel.slot, &message);
            }
        }
        clients.meter.stats.sent(1, len);
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// Sends messages, which are adjacent in `bytes` with these ends. Sends nothing if other bytes wait. Returns the number of
    /// accepted messages. A partly sent message counts, and its rest is kept. For the other messages, the caller adds them to the
    /// outbox or lets the subscription fall back.
    pub(crate) fn offer<I: Io>(
        &mut self,
        slot: u32,
        bytes: &Rope,
        ends: &[usize],
        io: &mut I,
    ) -> usize {
        let row = self.conns.get_mut(slot);
        if row.link.outbox != NONE {
            return 0;
        }
        debug_assert!(
            row.consumer.state != State::Draining,
            "it was sent its last bytes"
        );
        row.link.sent_s = self.ctx.now.s;
        let sent = self.conns.write_rope(slot, bytes, io);
        if sent == bytes.len() {
            self.meter.stats.sent(ends.len(), sent);
            return ends.len();
        }
        let whole = ends.iter().take_while(|end| **end <= sent).count();
        let before = if whole == 0 { 0 } else { ends[whole - 1] };
        let taken_bytes = if sent > before { ends[whole] } else { sent };
        self.queue_unsent_rest(slot, |queue| queue.append(bytes, sent, taken_bytes), io);
        let taken = whole + usize::from(sent > before);
        self.meter.stats.sent(taken, taken_bytes);
        taken
    }
}
