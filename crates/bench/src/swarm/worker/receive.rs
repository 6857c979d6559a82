//! Parses the data that a client receives: the answer to its request, then units (frames, events or lines) with a message each.
//! Every message is checked.
//!
//! Invariant: an incomplete unit is kept in `Clients::incomplete` and nowhere else.

use std::sync::atomic::Ordering::Relaxed;

use crore_tcp::{Conn, Received};
use crore_wire::websocket::frame::Opcode;
use memchr::memchr;

use super::{TimerKind, Worker};
use crate::client::{parse, request};
use crate::measure::payload::Header;
use crate::swarm::args::Protocol;
use crate::swarm::client_row::{State, flag};

/// The error says how the server violated its protocol.
type Result<T = ()> = std::result::Result<T, String>;

/// The maximum size of a unit, in bytes. A longer unit is a fault.
const UNIT_BYTES_MAX: usize = 16 << 20;

impl Worker {
    /// Reads at most `bytes_max` bytes of a client, and handles them. Returns what the read returned.
    pub(super) fn receive_bytes(
        &mut self,
        index: u32,
        conn: Conn,
        bytes_max: usize,
        now_ns: u64,
    ) -> Received {
        let mut bytes = std::mem::take(&mut self.received_bytes);
        bytes.clear();
        let row = &mut self.clients.rows[index as usize];
        let decoded = self.clients.incomplete_units.take(row, &mut bytes);
        let kept_bytes = bytes.len();
        // At least one byte, since a read that finds none reports the end or the failure of the connection.
        let count = self.table.readable(conn).clamp(1, bytes_max);
        bytes.resize(kept_bytes + count, 0);
        let received = self.table.read(conn, &mut bytes[kept_bytes..]);
        if let Received::Bytes(count) = received {
            let connections = &mut self.counts.tally.connections;
            connections.bytes += count as u64;
            connections.chunks += 1;
            bytes.truncate(kept_bytes + count);
            if let Err(reason) = self.handle_bytes(index, &mut bytes, decoded, now_ns) {
                self.handle_violation(index, &reason, now_ns);
            }
        } else {
            let row = &mut self.clients.rows[index as usize];
            self.clients
                .incomplete_units
                .keep(row, &bytes[..kept_bytes], decoded);
        }
        self.received_bytes = bytes;
        received
    }

    /// Counts a violation of the protocol, and resets the connection, since the start of the next unit is unknown.
    fn handle_violation(&mut self, index: u32, reason: &str, now_ns: u64) {
        self.counts.record_violation(reason);
        self.reset(index, now_ns);
        if self.clients.rows[index as usize].state == State::Requested {
            return self.record_failed_connect(index, reason, now_ns);
        }
        self.mark_closed(index);
        self.schedule_reconnect(index, Some(now_ns));
    }

    /// Handles every complete unit and keeps the rest.
    fn handle_bytes(
        &mut self,
        index: u32,
        bytes: &mut [u8],
        decoded: usize,
        now_ns: u64,
    ) -> Result {
        let mut start = 0;
        if self.clients.rows[index as usize].state == State::Requested {
            start = match self.handle_answer(index, bytes, now_ns)? {
                Some(handled_bytes) => handled_bytes,
                None => return self.keep_rest(index, bytes, 0),
            };
        }
        let bytes = &mut bytes[start..];
        if self.clients.rows[index as usize].state != State::Open {
            return Ok(());
        }
        match self.plan.protocol {
            Protocol::Ws => self.handle_frames(index, bytes, now_ns),
            Protocol::Sse => self.handle_events(index, bytes, decoded, now_ns),
            Protocol::Tcp => self.handle_lines(index, bytes, now_ns),
        }
    }

    /// Handles the answer to the request once it is complete, and returns its length.
    fn handle_answer(&mut self, index: u32, bytes: &[u8], now_ns: u64) -> Result<Option<usize>> {
        if self.plan.protocol == Protocol::Tcp {
            let end = memchr(b'\n', bytes);
            if end.is_some() {
                self.mark_open(index, false, now_ns);
            }
            return Ok(end.map(|end| end + 1));
        }
        let Some(head) = parse::head(bytes)? else {
            return Ok(None);
        };
        let is_upgrade = self.plan.protocol == Protocol::Ws;
        if head.status != if is_upgrade { 101 } else { 200 } {
            self.reset(index, now_ns);
            self.record_failed_connect(
                index,
                &format!("the server answered {}", head.status),
                now_ns,
            );
            return Ok(Some(bytes.len()));
        }
        if is_upgrade && !head.accepted {
            return Err("Sec-WebSocket-Accept does not answer the key".into());
        }
        self.mark_open(index, head.chunked, now_ns);
        Ok(Some(head.bytes))
    }

    /// Marks a client as open. Every message that is published from now on must arrive.
    fn mark_open(&mut self, index: u32, is_chunked: bool, now_ns: u64) {
        let published = self.plan.published[(self.clients.first + index) as usize].load(Relaxed);
        let row = &mut self.clients.rows[index as usize];
        row.state = State::Open;
        row.failures = 0;
        row.published_at_open = published;
        row.set_flag(flag::AWAITS_FIRST, true);
        row.set_flag(flag::CHUNKED, is_chunked);
        let setup_us = ((now_ns / 1_000) as u32).wrapping_sub(row.dialed_us);
        if row.has(flag::SLOW) && !row.has(flag::HAS_TIMER) {
            row.set_flag(flag::HAS_TIMER, true);
            self.timers.set(TimerKind::SlowRead, index, 0, now_ns);
        }
        self.connect_queue.in_progress -= 1;
        self.counts.setup_times.add(u64::from(setup_us) * 1_000);
        self.counts.tally.connections.opened += 1;
        self.shared.open_clients.fetch_add(1, Relaxed);
    }

    fn handle_frames(&mut self, index: u32, bytes: &[u8], now_ns: u64) -> Result {
        let mut handled_bytes = 0;
        while let Some(frame) = parse::frame(&bytes[handled_bytes..])? {
            handled_bytes += frame.bytes;
            match frame.opcode {
                Opcode::Text | Opcode::Binary => self.check_message(index, frame.payload, now_ns),
                Opcode::Ping => {
                    let mut pong = Vec::new();
                    request::pong(frame.payload, &mut pong);
                    self.send(index, &pong, now_ns);
                }
                Opcode::Close => {
                    self.reset(index, now_ns);
                    self.record_server_close(index, now_ns);
                    return Ok(());
                }
                Opcode::Continuation => return Err("a message in fragments".into()),
                Opcode::Pong => {}
            }
        }
        self.keep_rest(index, &bytes[handled_bytes..], 0)
    }

    fn handle_events(
        &mut self,
        index: u32,
        bytes: &mut [u8],
        decoded: usize,
        now_ns: u64,
    ) -> Result {
        let row = &self.clients.rows[index as usize];
        let mut chunk_left = row.chunk_left;
        let chunk_state = row.has(flag::CHUNKED).then_some(&mut chunk_left);
        let events = parse::events(bytes, decoded, chunk_state, |data| {
            self.check_message(index, data, now_ns);
        });
        let rest = events?;
        self.clients.rows[index as usize].chunk_left = chunk_left;
        match rest {
            Some((rest, decoded)) => self.keep_rest(index, rest, decoded),
            None => {
                self.reset(index, now_ns);
                self.record_server_close(index, now_ns);
                Ok(())
            }
        }
    }

    fn handle_lines(&mut self, index: u32, bytes: &[u8], now_ns: u64) -> Result {
        let mut handled_bytes = 0;
        while let Some(length) = memchr(b'\n', &bytes[handled_bytes..]) {
            self.check_message(index, &bytes[handled_bytes..handled_bytes + length], now_ns);
            handled_bytes += length + 1;
        }
        self.keep_rest(index, &bytes[handled_bytes..], 0)
    }

    fn keep_rest(&mut self, index: u32, bytes: &[u8], decoded: usize) -> Result {
        if bytes.len() > UNIT_BYTES_MAX {
            return Err(format!("a unit of more than {UNIT_BYTES_MAX} bytes"));
        }
        let row = &mut self.clients.rows[index as usize];
        self.clients.incomplete_units.keep(row, bytes, decoded);
        Ok(())
    }

    /// Checks a message. Before the first message of a connection, those may be missing that were published before the connection opened.
    /// From then on the numbers must have no gap.
    fn check_message(&mut self, index: u32, payload: &[u8], now_ns: u64) {
        let is_slow = self.clients.rows[index as usize].has(flag::SLOW);
        let header = if is_slow {
            // A slow reader delays its messages itself, so their latency does not count.
            self.counts.tally.messages += 1;
            Header::decode(payload)
        } else {
            self.counts.tally.record_message(payload, now_ns)
        };
        if payload.len() != self.plan.message_bytes {
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
        if header.sequence <= row.last_received {
            tally.doubled += 1;
            return;
        }
        let last_excused = if row.has(flag::AWAITS_FIRST) {
            row.published_at_open.max(row.last_received)
        } else {
            row.last_received
        };
        row.set_flag(flag::AWAITS_FIRST, false);
        tally.missed_away += u64::from(last_excused.min(header.sequence - 1) - row.last_received);
        let gap = u64::from((header.sequence - 1).saturating_sub(last_excused));
        if is_slow {
            self.counts.slow_missed += gap;
        } else {
            tally.lost += gap;
        }
        row.last_received = header.sequence;
    }
}
