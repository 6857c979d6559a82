//! Writes the messages of a run into the sockets, and handles the bytes that a socket refused.
//!
//! Invariant: a subscriber gets a run with one write where its messages lie side by side.
//!
//! Deliberately not here: several sockets in one system call. An io_uring with 64 and 256 sends at a time was slower than
//! one `send` each, in paired runs on Linux 6.18.

use alloc::vec::Vec;
use core::ops::Range;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::client::front::Front;
use crate::client::outbox::{PARTS_MAX, send_rope};
use crate::client::protocols::Protocols;
use crate::client::row::{FILTERS, State};
use crate::client::run::Encodings;
use crate::io::Io;
use crate::mail::Frames;
use crate::store::rope::Rope;
use crate::store::shared::{Part, SHARED_MIN};
use crate::store::slab::NONE;

/// Messages of the run for one connection.
struct Parcel<E> {
    slot: u32,
    encoding: E,
    messages: Range<usize>,
}

impl<P: Protocols> Front<P> {
    /// Gives a connection all messages of the run.
    pub(crate) fn push<I: Io>(
        &mut self,
        slot: u32,
        encoding: P::Encoding,
        frames: &Frames,
        io: &mut I,
    ) {
        let messages = 0..self.run.records().len();
        let parcel = Parcel {
            slot,
            encoding,
            messages: messages.clone(),
        };
        if self.run.is_joined(encoding, messages) {
            return self.send_joined(&parcel, frames, io);
        }
        let row = self.conns.get_mut(slot);
        if row.outbox != NONE {
            return self.queue(&parcel, frames, parcel.messages.start);
        }
        row.sent_s = self.now.s;
        let sent = self.send_parts(&parcel, frames, io);
        self.keep_rest(&parcel, frames, sent, io);
    }

    /// Gives a connection some messages of the run.
    pub(crate) fn push_picks<I: Io>(
        &mut self,
        slot: u32,
        encoding: P::Encoding,
        picks: &[u32],
        frames: &Frames,
        io: &mut I,
    ) {
        let (first, last) = (picks[0] as usize, picks[picks.len() - 1] as usize);
        let messages = first..last + 1;
        if messages.len() == picks.len() && self.run.is_joined(encoding, messages.clone()) {
            let parcel = Parcel {
                slot,
                encoding,
                messages,
            };
            return self.send_joined(&parcel, frames, io);
        }
        let (mut bytes, mut ends) = (Rope::default(), Vec::new());
        for n in picks {
            self.run.append(encoding, *n as usize, frames, &mut bytes);
            ends.push(bytes.len());
        }
        self.put_picks(slot, (&bytes, &ends), picks, frames, io);
    }

    /// Sends messages that lie side by side.
    fn send_joined<I: Io>(&mut self, parcel: &Parcel<P::Encoding>, frames: &Frames, io: &mut I) {
        let row = self.conns.get_mut(parcel.slot);
        if row.outbox != NONE {
            return self.queue(parcel, frames, parcel.messages.start);
        }
        debug_assert!(row.state != State::Draining, "who was sent its last left");
        row.sent_s = self.now.s;
        let part = self
            .run
            .joined(parcel.encoding, parcel.messages.clone(), frames);
        let len = part.as_ref().len();
        let sent = io.send(row.link, &[part]);
        if sent < len {
            return self.keep_rest(parcel, frames, sent, io);
        }
        self.stats.sent(parcel.messages.len(), len);
    }

    /// Gives a connection these messages of the run, which lie side by side in `bytes` with these ends.
    pub(crate) fn put_picks<I: Io>(
        &mut self,
        slot: u32,
        (bytes, ends): (&Rope, &[usize]),
        picks: &[u32],
        frames: &Frames,
        io: &mut I,
    ) {
        let taken = self.offer(slot, bytes, ends, io);
        for n in taken..ends.len() {
            let record = self.run.records()[picks[n] as usize];
            let mut message = Rope::default();
            message.append(bytes, if n == 0 { 0 } else { ends[n - 1] }, ends[n]);
            let bounds = || self.bounds_in_run(slot, picks[n] as usize, frames);
            if record.latest || !self.fits(slot, message.len(), bounds) {
                let rest = picks[n..].iter().map(|pick| *pick as usize);
                return self.fell_behind_in_run(slot, rest);
            }
            self.put_messages(slot, &message, &[message.len()], io);
            self.stats.sent(1, message.len());
        }
    }

    /// A request or stream by filter cannot take these messages of the run: it reads them from the logs of their partitions.
    fn fell_behind_in_run(&mut self, slot: u32, rest: impl Iterator<Item = usize>) {
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let Some(serial) = group.map(|group| group.serial) else {
            return self.broken(slot);
        };
        let mut behind: Vec<PartitionId> = Vec::new();
        for n in rest {
            let topic = self.run.topics.get(n).zip(self.run.records().get(n));
            let Some((&(partition, _), record)) = topic else {
                return self.broken(slot);
            };
            let offset = record.offset - 1;
            if !behind.contains(&partition) {
                behind.push(partition);
                self.fall_back_in(slot, serial, partition, offset);
            }
        }
    }

    /// Sends messages that do not lie side by side, or that are large; returns the bytes taken.
    fn send_parts<I: Io>(
        &self,
        parcel: &Parcel<P::Encoding>,
        frames: &Frames,
        io: &mut I,
    ) -> usize {
        let link = self.conns.get(parcel.slot).link;
        if !parcel.encoding.is_frame() {
            let mut rope = Rope::default();
            for n in parcel.messages.clone() {
                self.run.append(parcel.encoding, n, frames, &mut rope);
            }
            return send_rope(link, &rope, io);
        }
        let records = self.run.records();
        let mut parts = [Part::Bytes(&[]); PARTS_MAX];
        let (mut used, mut first, mut sent, mut total) = (0, 0, 0, 0);
        for n in 0..records.len() {
            if n + 1 < records.len() && records[n].touches(&records[n + 1]) {
                continue;
            }
            parts[used] = frames.joined(&records[first], &records[n]);
            total += parts[used].as_ref().len();
            (used, first) = (used + 1, n + 1);
            if used == PARTS_MAX || first == records.len() {
                sent += io.send(link, &parts[..used]);
                used = 0;
                if sent < total {
                    break;
                }
            }
        }
        sent
    }

    /// Keeps the bytes that the socket refused: the rest of the message that was cut, and the messages behind it as
    /// far as the outbox allows.
    fn keep_rest<I: Io>(
        &mut self,
        parcel: &Parcel<P::Encoding>,
        frames: &Frames,
        sent: usize,
        io: &mut I,
    ) {
        let (mut n, mut before) = (parcel.messages.start, 0);
        while n < parcel.messages.end {
            let len = self.run.len(parcel.encoding, n, frames);
            if before + len > sent {
                break;
            }
            before += len;
            n += 1;
        }
        self.stats.sent(n - parcel.messages.start, before);
        if n == parcel.messages.end {
            return;
        }
        let mut cut = Rope::default();
        if sent > before {
            self.run.append(parcel.encoding, n, frames, &mut cut);
            self.stats.sent(1, cut.len());
            n += 1;
        }
        let from = match planted::is(Fault::HalfFrame) {
            true => cut.len(),
            false => sent - before,
        };
        let to = cut.len();
        self.refused_rest(parcel.slot, |queue| queue.append(&cut, from, to), io);
        self.queue(parcel, frames, n);
    }

    /// Sends messages, which lie side by side in `bytes` with these ends, as far as the socket takes them; none while other bytes
    /// wait. Returns how many it took: a message that was cut counts, and its rest is kept. For the others the caller decides
    /// whether they wait or the subscription falls back.
    pub(crate) fn offer<I: Io>(
        &mut self,
        slot: u32,
        bytes: &Rope,
        ends: &[usize],
        io: &mut I,
    ) -> usize {
        let row = self.conns.get_mut(slot);
        if row.outbox != NONE {
            return 0;
        }
        debug_assert!(row.state != State::Draining, "who was sent its last left");
        row.sent_s = self.now.s;
        let sent = send_rope(row.link, bytes, io);
        if sent == bytes.len() {
            self.stats.sent(ends.len(), sent);
            return ends.len();
        }
        let whole = ends.iter().take_while(|end| **end <= sent).count();
        let before = if whole == 0 { 0 } else { ends[whole - 1] };
        let cut = if sent > before { ends[whole] } else { sent };
        self.refused_rest(slot, |queue| queue.append(bytes, sent, cut), io);
        let taken = whole + usize::from(sent > before);
        self.stats.sent(taken, cut);
        taken
    }

    /// Adds whole messages, from number `from` of the run on, to the outbox; past its bounds the subscription falls back to its
    /// position and reads on from the log when the socket drains. Where only the newest message of each key is kept it falls back
    /// at once, so that no message is sent that was superseded while it waited.
    fn queue(&mut self, parcel: &Parcel<P::Encoding>, frames: &Frames, from: usize) {
        debug_assert!(self.conns.get(parcel.slot).state != State::Draining);
        for n in from..parcel.messages.end {
            let len = self.run.len(parcel.encoding, n, frames);
            let record = &self.run.records()[n];
            let bounds = || self.bounds_in_run(parcel.slot, n, frames);
            let waits = !record.latest || planted::is(Fault::Superseded);
            if !waits || !self.fits(parcel.slot, len, bounds) {
                let offset = record.previous;
                if self.conns.get(parcel.slot).wants(FILTERS) {
                    return self.fell_behind_in_run(parcel.slot, n..parcel.messages.end);
                }
                return self.fall_back(parcel.slot, 0, offset);
            }
            match self.run.is_joined(parcel.encoding, n..n + 1) && len < SHARED_MIN {
                true => {
                    let run = core::mem::take(&mut self.run);
                    let message = run.joined(parcel.encoding, n..n + 1, frames);
                    self.queue_message(parcel.slot, message.as_ref());
                    self.run = run;
                }
                false => {
                    let mut message = Rope::default();
                    self.run.append(parcel.encoding, n, frames, &mut message);
                    self.queue_rope(parcel.slot, &message);
                }
            }
            self.stats.sent(1, len);
        }
    }
}
