//! Parses the data that a client receives: the answer to its request, then units (frames, events or lines) with a message each.
//! Every message is checked.
//!
//! Invariant: an incomplete unit is kept in `Clients::incomplete` and nowhere else.

use std::sync::atomic::Ordering::Relaxed;

use crore_tcp::{Conn, Received};
use crore_wire::websocket::frame::Opcode;
use memchr::memchr;

use super::{Kind, Worker};
use crate::client::{parse, request};
use crate::measure::payload::Header;
use crate::swarm::args::Protocol;
use crate::swarm::client_row::{State, mark};

/// The error says how the server violated its protocol.
type Result<T = ()> = std::result::Result<T, String>;

/// The maximum size of a unit, in bytes. A longer unit is a fault.
const UNIT_BYTES_MAX: usize = 16 << 20;

impl Worker {
    /// Reads the next bytes of a client, at most `most` of them, and handles them. Returns what else there is, if there are none.
    pub(super) fn receive_bytes(
        &mut self,
        index: u32,
        conn: Conn,
        most: usize,
        now_ns: u64,
    ) -> Received {
        let mut bytes = std::mem::take(&mut self.joined);
        bytes.clear();
        let row = &mut self.clients.rows[index as usize];
        let decoded = self.clients.incomplete.take(row, &mut bytes);
        let known = bytes.len();
        // One byte, to learn how the connection is if there is none.
        let count = self.table.readable(conn).clamp(1, most);
        bytes.resize(known + count, 0);
        let received = self.table.read(conn, &mut bytes[known..]);
        if let Received::Bytes(count) = received {
            let life = &mut self.counts.tally.life;
            life.bytes += count as u64;
            life.chunks += 1;
            bytes.truncate(known + count);
            if let Err(why) = self.parse(index, &mut bytes, decoded, now_ns) {
                self.protocol_violation(index, &why, now_ns);
            }
        } else {
            let row = &mut self.clients.rows[index as usize];
            self.clients.incomplete.keep(row, &bytes[..known], decoded);
        }
        self.joined = bytes;
        received
    }

    /// Resets the connection: after a violation the start of the next unit is unknown.
    fn protocol_violation(&mut self, index: u32, why: &str, now_ns: u64) {
        self.counts.violated(why);
        self.reset(index, now_ns);
        if self.clients.rows[index as usize].state == State::Requested {
            return self.connect_failed(index, why, now_ns);
        }
        self.no_longer_open(index);
        self.schedule_reconnect(index, Some(now_ns));
    }

    /// Handles every complete unit and keeps the rest.
    fn parse(&mut self, index: u32, bytes: &mut [u8], decoded: usize, now_ns: u64) -> Result {
        let mut start = 0;
        if self.clients.rows[index as usize].state == State::Requested {
            start = match self.parse_answer(index, bytes, now_ns)? {
                Some(used) => used,
                None => return self.keep_rest(index, bytes, 0),
            };
        }
        let bytes = &mut bytes[start..];
        if self.clients.rows[index as usize].state != State::Open {
            return Ok(());
        }
        match self.plan.protocol {
            Protocol::Ws => self.frames(index, bytes, now_ns),
            Protocol::Sse => self.events(index, bytes, decoded, now_ns),
            Protocol::Tcp => self.lines(index, bytes, now_ns),
        }
    }

    /// Handles the answer to the request once it is complete, and returns its length.
    fn parse_answer(&mut self, index: u32, bytes: &[u8], now_ns: u64) -> Result<Option<usize>> {
        if self.plan.protocol == Protocol::Tcp {
            let end = memchr(b'\n', bytes);
            if end.is_some() {
                self.opened(index, false, now_ns);
            }
            return Ok(end.map(|end| end + 1));
        }
        let Some(head) = parse::head(bytes)? else {
            return Ok(None);
        };
        let is_upgrade = self.plan.protocol == Protocol::Ws;
        if head.status != if is_upgrade { 101 } else { 200 } {
            self.reset(index, now_ns);
            self.connect_failed(
                index,
                &format!("the server answered {}", head.status),
                now_ns,
            );
            return Ok(Some(bytes.len()));
        }
        if is_upgrade && !head.accepted {
            return Err("Sec-WebSocket-Accept does not answer the key".into());
        }
        self.opened(index, head.chunked, now_ns);
        Ok(Some(head.bytes))
    }

    /// Marks a client as open: from now on every message must arrive.
    fn opened(&mut self, index: u32, is_chunked: bool, now_ns: u64) {
        let published = self.plan.published[(self.clients.first + index) as usize].load(Relaxed);
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Open;
        row.failures = 0;
        row.published = published;
        row.mark(mark::FIRST, true);
        row.mark(mark::CHUNKED, is_chunked);
        let setup_us = ((now_ns / 1_000) as u32).wrapping_sub(row.dialed_us);
        if row.is(mark::SLOW) && !row.is(mark::HAS_TIMER) {
            row.mark(mark::HAS_TIMER, true);
            self.timers.set(Kind::SlowRead, index, 0, now_ns);
        }
        self.connect_queue.in_progress -= 1;
        self.counts.setup.add(u64::from(setup_us) * 1_000);
        self.counts.tally.life.opened += 1;
        self.shared.open.fetch_add(1, Relaxed);
    }

    fn frames(&mut self, index: u32, bytes: &[u8], now_ns: u64) -> Result {
        let mut used = 0;
        while let Some(frame) = parse::frame(&bytes[used..])? {
            used += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => self.message(index, frame.payload, now_ns),
                Opcode::Ping => {
                    let mut pong = Vec::new();
                    request::pong(frame.payload, &mut pong);
                    self.send(index, &pong, now_ns);
                }
                Opcode::Close => {
                    self.reset(index, now_ns);
                    self.server_closed(index, now_ns);
                    return Ok(());
                }
                Opcode::Continuation => return Err("a message in fragments".into()),
                Opcode::Pong => {}
            }
        }
        self.keep_rest(index, &bytes[used..], 0)
    }

    fn events(&mut self, index: u32, bytes: &mut [u8], decoded: usize, now_ns: u64) -> Result {
        let row = &self.clients.rows[index as usize];
        let mut chunk_left = row.chunk_left;
        let left = row.is(mark::CHUNKED).then_some(&mut chunk_left);
        let events = parse::events(bytes, decoded, left, |data| {
            self.message(index, data, now_ns);
        });
        let kept = events?;
        self.clients.rows[index as usize].chunk_left = chunk_left;
        match kept {
            Some((kept, decoded)) => self.keep_rest(index, kept, decoded),
            None => {
                self.reset(index, now_ns);
                self.server_closed(index, now_ns);
                Ok(())
            }
        }
    }

    fn lines(&mut self, index: u32, bytes: &[u8], now_ns: u64) -> Result {
        let mut used = 0;
        while let Some(length) = memchr(b'\n', &bytes[used..]) {
            self.message(index, &bytes[used..used + length], now_ns);
            used += length + 1;
        }
        self.keep_rest(index, &bytes[used..], 0)
    }

    fn keep_rest(&mut self, index: u32, bytes: &[u8], decoded: usize) -> Result {
        if bytes.len() > UNIT_BYTES_MAX {
            return Err(format!("a unit of more than {UNIT_BYTES_MAX} bytes"));
        }
        let row = &mut self.clients.rows[index as usize];
        self.clients.incomplete.keep(row, bytes, decoded);
        Ok(())
    }

    /// Checks a message. Before the first message on a connection, messages may be missing that were published before the connection
    /// opened. From then on the numbers must have no gap.
    fn message(&mut self, index: u32, payload: &[u8], now_ns: u64) {
        let is_slow = self.clients.rows[index as usize].is(mark::SLOW);
        let header = if is_slow {
            // A slow reader itself delays its messages, so their latency does not count.
            self.counts.tally.messages += 1;
            Header::decode(payload)
        } else {
            self.counts.tally.arrived(payload, now_ns)
        };
        if payload.len() != self.plan.size {
            self.counts.wrong_length += 1;
        }
        let Some(header) = header else { return };
        if header.topic != self.clients.first + index {
            self.counts.tally.misdelivered += 1;
            return;
        }
        let (row, tally) = (
            &mut self.clients.rows[index as usize],
            &mut self.counts.tally,
        );
        if header.sequence <= row.last {
            tally.doubled += 1;
            return;
        }
        let seen = if row.is(mark::FIRST) {
            row.published.max(row.last)
        } else {
            row.last
        };
        row.mark(mark::FIRST, false);
        tally.missed_away += u64::from(seen.min(header.sequence - 1) - row.last);
        let gap = u64::from((header.sequence - 1).saturating_sub(seen));
        if is_slow {
            self.counts.slow_missed += gap;
        } else {
            tally.lost += gap;
        }
        row.last = header.sequence;
    }
}
