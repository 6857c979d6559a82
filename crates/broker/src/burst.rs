//! Messages on their way into the sockets: writes that go out together, and what becomes of bytes
//! that a socket refused.
//!
//! Invariants: a burst names a connection once, so that the fate of its write is known before the next;
//! it goes out before anything else is done than giving live messages to further connections; its bytes
//! lie in the frames of one delivery, or in the encodings, which are kept until it is out.

use alloc::vec::Vec;
use core::ops::Range;

use crate::conn::{Behind, FILTERS, LIVE, Link};
use crate::encode::{Encoded, Encoding};
use crate::io::{Io, Write};
use crate::mail::{Frames, Record, ShardId};
use crate::planted::{self, Fault};
use crate::shard::Shard;
use crate::slab::NONE;

/// Writes of one burst: a system call is a small part of so many.
const WRITES_MAX: usize = 64;
/// Parts of one write that do not lie side by side.
const PARTS_MAX: usize = 16;

/// Writes that go out together.
#[derive(Default)]
pub struct Burst {
    writes: Vec<Due>,
    /// Of all topics of the burst.
    records: Vec<Record>,
    /// Where the records of the topic at hand begin.
    topic: u32,
    encoded: [Encoded; Encoding::COUNT],
    short: Vec<(usize, usize)>,
    /// Who told the messages at hand, for subscribers by filter.
    pub home: ShardId,
}

struct Due {
    slot: u32,
    link: Link,
    encoding: Encoding,
    /// The messages among the records.
    records: Range<u32>,
    /// The first of them among the encoded, where it is not a plain frame.
    encoded: u32,
}

impl Burst {
    /// Goes on to a topic with these messages.
    pub fn next_topic(&mut self, records: impl Iterator<Item = Record>) {
        if self.writes.is_empty() {
            self.records.clear();
            self.encoded.iter_mut().for_each(Encoded::clear);
        }
        self.topic = self.records.len() as u32;
        self.records.extend(records);
        self.encoded.iter_mut().for_each(Encoded::next_topic);
    }

    /// The messages of the topic at hand.
    pub fn records(&self) -> &[Record] {
        &self.records[self.topic as usize..]
    }

    /// The topic's messages in one encoding.
    pub fn encoded(&mut self, encoding: Encoding) -> &mut Encoded {
        &mut self.encoded[encoding as usize]
    }

    /// Message `n` of a write.
    fn message<'a>(&'a self, due: &Due, frames: &'a Frames, n: usize) -> &'a [u8] {
        match due.encoding {
            Encoding::Frame => frames.frame(&self.records[due.records.start as usize + n]),
            encoding => {
                let at = due.encoded + n as u32;
                self.encoded[encoding as usize].span(at..at + 1)
            }
        }
    }

    fn bytes<'a>(&'a self, due: &Due, frames: &'a Frames) -> &'a [u8] {
        match due.encoding {
            Encoding::Frame => {
                let (first, last) = (due.records.start as usize, due.records.end as usize - 1);
                frames.joined(&self.records[first], &self.records[last])
            }
            encoding => {
                let end = due.encoded + (due.records.end - due.records.start);
                self.encoded[encoding as usize].span(due.encoded..end)
            }
        }
    }
}

impl Shard {
    /// Gives a connection all messages of the topic at hand, with the burst if it can.
    pub(crate) fn push<I: Io>(
        &mut self,
        slot: u32,
        encoding: Encoding,
        frames: &Frames,
        io: &mut I,
    ) {
        let burst = &self.burst;
        let due = Due {
            slot,
            link: self.conns.get(slot).link,
            encoding,
            records: burst.topic..burst.records.len() as u32,
            encoded: burst.encoded[encoding as usize].first(),
        };
        let row = self.conns.get_mut(slot);
        if row.outbox != NONE {
            self.queue(&due, frames, 0);
            return;
        }
        row.sent_s = self.now.s;
        self.stats.delivered += u64::from(due.records.end - due.records.start);
        let touching = || {
            burst
                .records()
                .windows(2)
                .all(|pair| pair[0].touches(&pair[1]))
        };
        if encoding == Encoding::Frame && !touching() {
            let sent = self.send_parts(&due, frames, io);
            self.keep_rest(&due, frames, sent, io);
            return;
        }
        self.burst.writes.push(due);
        if self.burst.writes.len() == WRITES_MAX {
            self.send_burst(frames, io);
        }
    }

    /// Gives a connection some messages of the topic at hand.
    pub(crate) fn push_picks<I: Io>(
        &mut self,
        slot: u32,
        encoding: Encoding,
        picks: &[u32],
        frames: &Frames,
        io: &mut I,
    ) {
        let burst = &self.burst;
        let (first, last) = (picks[0], picks[picks.len() - 1]);
        let due = Due {
            slot,
            link: self.conns.get(slot).link,
            encoding,
            records: burst.topic + first..burst.topic + last + 1,
            encoded: burst.encoded[encoding as usize].first() + first,
        };
        let all = due.records.len() == picks.len();
        let records = &burst.records()[first as usize..=last as usize];
        let touching =
            encoding != Encoding::Frame || records.windows(2).all(|pair| pair[0].touches(&pair[1]));
        let row = self.conns.get_mut(slot);
        if all && row.outbox != NONE {
            self.queue(&due, frames, 0);
        } else if all && touching {
            row.sent_s = self.now.s;
            self.stats.delivered += picks.len() as u64;
            self.burst.writes.push(due);
            if self.burst.writes.len() == WRITES_MAX {
                self.send_burst(frames, io);
            }
        } else {
            let (mut bytes, mut ends) = (Vec::new(), Vec::new());
            for n in picks {
                let message = self.burst.message(&due, frames, (n - first) as usize);
                bytes.extend_from_slice(message);
                ends.push(bytes.len());
            }
            self.put_picks(slot, &bytes, &ends, picks, io);
        }
    }

    /// The same, side by side with these ends.
    pub(crate) fn put_picks<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        ends: &[usize],
        picks: &[u32],
        io: &mut I,
    ) {
        let taken = self.offer(slot, bytes, ends, io);
        self.stats.delivered += taken as u64;
        let limits = &self.world.settings.limits;
        for n in taken..ends.len() {
            let record = &self.burst.records()[picks[n] as usize];
            let message = &bytes[if n == 0 { 0 } else { ends[n - 1] }..ends[n]];
            let outbox = self.outboxes.get_mut(self.conns.get(slot).outbox);
            let fits = !record.latest
                && outbox.waiting_bytes() + message.len() <= limits.outbox_bytes
                && self.outbox_bytes + message.len() <= limits.outbox_bytes_per_shard;
            if !fits {
                let (home, offset) = (self.burst.home, record.offset - 1);
                return self.fell_behind_of_http(slot, home, offset);
            }
            outbox.bytes.extend_from_slice(message);
            self.outbox_bytes += message.len();
            self.stats.delivered += 1;
        }
    }

    fn fell_behind_of_http(&mut self, slot: u32, home: ShardId, offset: u64) {
        let serial = self.filtered(slot).map(|all| all.groups()[0].serial);
        self.fell_behind(slot, serial.expect("it has filters"), home, offset);
    }

    /// Sends what waits in the burst.
    pub(crate) fn send_burst<I: Io>(&mut self, frames: &Frames, io: &mut I) {
        let burst = &mut self.burst;
        if burst.writes.is_empty() {
            return;
        }
        let mut short = core::mem::take(&mut burst.short);
        let none = Write {
            link: burst.writes[0].link,
            bytes: &[],
        };
        let mut writes = [none; WRITES_MAX];
        for (write, due) in writes.iter_mut().zip(&burst.writes) {
            *write = Write {
                link: due.link,
                bytes: burst.bytes(due, frames),
            };
        }
        let count = burst.writes.len();
        io.send_all(&writes[..count], |n, sent| short.push((n, sent)));
        let mut writes = core::mem::take(&mut burst.writes);
        for (n, sent) in short.drain(..) {
            self.keep_rest(&writes[n], frames, sent, io);
        }
        writes.clear();
        self.burst.writes = writes;
        self.burst.short = short;
    }

    /// Sends messages between which others lie; returns the bytes taken.
    fn send_parts<I: Io>(&self, due: &Due, frames: &Frames, io: &mut I) -> usize {
        let records = self.burst.records();
        let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        let (mut used, mut first, mut sent, mut total) = (0, 0, 0, 0);
        for n in 0..records.len() {
            if n + 1 < records.len() && records[n].touches(&records[n + 1]) {
                continue;
            }
            parts[used] = frames.joined(&records[first], &records[n]);
            total += parts[used].len();
            (used, first) = (used + 1, n + 1);
            if used == PARTS_MAX || first == records.len() {
                sent += io.send(due.link, &parts[..used]);
                used = 0;
                if sent < total {
                    break;
                }
            }
        }
        sent
    }

    /// Keeps what the socket refused: the rest of the message that was cut, and those behind it as
    /// far as the outbox allows.
    fn keep_rest<I: Io>(&mut self, due: &Due, frames: &Frames, sent: usize, io: &mut I) {
        let (mut n, mut before) = (0, 0);
        while n < due.records.len() {
            let len = self.burst.message(due, frames, n).len();
            if before + len > sent {
                break;
            }
            before += len;
            n += 1;
        }
        if n == due.records.len() {
            return;
        }
        if sent > before && planted::is(Fault::HalfFrame) {
            self.refused(due.slot, Vec::new(), io);
            n += 1;
        } else if sent > before {
            let rest = self.burst.message(due, frames, n)[sent - before..].to_vec();
            self.refused(due.slot, rest, io);
            n += 1;
        } else {
            self.refused(due.slot, Vec::new(), io);
        }
        // They were counted when they were given to the burst.
        self.stats.delivered -= (due.records.len() - n) as u64;
        self.queue(due, frames, n);
    }

    /// Sends messages that must not wait for the socket, side by side with these ends; says how many it took.
    /// The rest of one that was cut is kept, nothing else: the caller falls back to the position before it.
    pub(crate) fn offer<I: Io>(
        &mut self,
        slot: u32,
        bytes: &[u8],
        ends: &[usize],
        io: &mut I,
    ) -> usize {
        let row = self.conns.get_mut(slot);
        if row.outbox != NONE {
            return 0;
        }
        row.sent_s = self.now.s;
        let sent = io.send(row.link, &[bytes]);
        if sent == bytes.len() {
            return ends.len();
        }
        let whole = ends.iter().take_while(|end| **end <= sent).count();
        let before = if whole == 0 { 0 } else { ends[whole - 1] };
        let cut = if sent > before { ends[whole] } else { sent };
        self.refused(slot, bytes[sent..cut].to_vec(), io);
        whole + usize::from(sent > before)
    }

    /// Puts whole messages, from `from` on, behind what waits; past the limits the subscription falls back
    /// to its position and reads on from the log when the socket drains. Where only the newest message of each
    /// key is kept that is at once, so that none is sent that was superseded while it waited.
    fn queue(&mut self, due: &Due, frames: &Frames, from: usize) {
        let limits = &self.world.settings.limits;
        let outbox = self.outboxes.get_mut(self.conns.get(due.slot).outbox);
        for n in from..due.records.len() {
            let bytes = self.burst.message(due, frames, n);
            let record = &self.burst.records[due.records.start as usize + n];
            let fits = (!record.latest || planted::is(Fault::Superseded))
                && outbox.waiting_bytes() + bytes.len() <= limits.outbox_bytes
                && self.outbox_bytes + bytes.len() <= limits.outbox_bytes_per_shard;
            if !fits {
                let offset = record.previous;
                if self.conns.get(due.slot).wants(FILTERS) {
                    let (home, offset) = (self.burst.home, record.offset - 1);
                    return self.fell_behind_of_http(due.slot, home, offset);
                }
                self.conns.get_mut(due.slot).flags &= !LIVE;
                self.stats.fallbacks += 1;
                let behind = Behind {
                    part: 0,
                    offset,
                    epoch: self.world.epoch,
                };
                self.extra(due.slot).behind.push(behind);
                return;
            }
            outbox.bytes.extend_from_slice(bytes);
            self.outbox_bytes += bytes.len();
            self.stats.delivered += 1;
        }
    }
}
