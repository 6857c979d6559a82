//! What a connection sends, and the deadlines that follow from it.

use core::mem::take;

use crate::account::Account;
use crate::busy::{Busy, Wait};
use crate::packet::{Head, Options, flag};
use crate::planted::{self, Fault};
use crate::row::{Conn, Row, State, flags};
use crate::scoreboard::{SentSegment, mark};
use crate::sequence::{is_after, is_from, later};
use crate::table::{Device, Table};
use crate::timers::NEVER;

/// The longest time that a peer may delay an acknowledgement (RFC 8985 §7.2).
const PEER_DELAY_US: u64 = 200_000;
/// Bytes of options that selective acknowledgements take at most.
const SACK_BYTES: u32 = 36;

/// What is sent next.
enum Next {
    /// This segment is sent again.
    Again(SentSegment),
    /// This number of new bytes, from the next sequence number on, and a FIN if true.
    New(u32, bool),
}

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Sends what connections have to send.
    pub(crate) fn flush<D: Device>(&mut self, now_us: u64, device: &mut D) {
        let mut dirty = take(&mut self.dirty);
        for (index, id) in dirty.iter().enumerate() {
            let row = &mut self.rows[*id as usize];
            row.clear(flags::DIRTY);
            if row.state != State::Closed && !self.send_all(*id, now_us, device) {
                // The device has no room. The rest is for the next turn, and is not visited before.
                self.touch(*id);
                self.dirty.extend_from_slice(&dirty[index + 1..]);
                return;
            }
        }
        dirty.clear();
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
    }

    /// Sends all that a connection may send now. `false` if the device had no room.
    fn send_all<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) -> bool {
        let mut has_room = true;
        while has_room && let Some(next) = self.next(id) {
            has_room = match next {
                Next::Again(segment) => self.send_again(id, &segment, now_us, device),
                Next::New(bytes, fin) => self.send_new(id, bytes, fin, now_us, device),
            };
        }
        if has_room && self.rows[id as usize].is(flags::ACK_NOW) {
            let sequence = self.rows[id as usize].send_next;
            has_room = self.send_segment(id, flag::ACK, (sequence, 0), now_us, device);
        }
        self.arm(id, now_us);
        self.charge_entry(id);
        self.tidy(id);
        if has_room && self.rows[id as usize].state == State::TimeWait {
            self.rest(id);
        }
        has_room
    }

    fn next(&mut self, id: u32) -> Option<Next> {
        let row = &self.rows[id as usize];
        let busy = self.busy.get_mut(row.busy as usize)?;
        let bytes = row.data_bytes();
        let in_flight = busy.board.in_flight();
        let room = busy.congestion.window.saturating_sub(in_flight);
        if let Some(segment) = busy.board.next_lost(bytes) {
            // The first loss is repaired at once, although the window has just become smaller (RFC 6675 §5, step 4.3).
            let is_first = segment.start == row.unacknowledged && !segment.is(mark::AGAIN);
            let may_send = in_flight == 0 || is_first || room >= segment.len();
            return may_send.then_some(Next::Again(segment));
        }
        if !row.state.may_send() || row.is(flags::FIN_SENT) {
            return None;
        }
        let unsent = busy.send.end().wrapping_sub(row.send_next);
        let mut edge = row.unacknowledged.wrapping_add(row.send_window);
        if planted::is_planted(Fault::WindowTooWide) {
            edge = edge.wrapping_add(1);
        }
        let usable = if is_after(edge, row.send_next) {
            edge.wrapping_sub(row.send_next)
        } else {
            0
        };
        let count = unsent.min(usable).min(bytes);
        let fin = row.is(flags::FIN) && count == unsent && usable > count;
        // A segment smaller than it could be is only sent if nothing follows, or if the peer's buffer is small (RFC 9293 §3.8.6.2.1). If the
        // window is only a few bytes, nothing is sent before a timeout: otherwise each byte of data would cost a packet.
        let least = u32::from(self.config.segment_bytes_min).max(busy.largest_window / 2);
        let is_worth = count == unsent || count >= least;
        // A small segment costs more than its bytes. So if many segments are in flight, small ones wait for an acknowledgement and leave together.
        let full = row.send_next.wrapping_sub(row.unacknowledged) / bytes;
        let limit = self.config.small_segments.max(1) + full as usize;
        let is_small_possible = busy.board.len() < limit;
        let is_worth = count == bytes || is_worth && is_small_possible;
        let has_room = room >= count || in_flight == 0;
        let is_something = count > 0 || fin;
        (is_something && is_worth && has_room).then_some(Next::New(count, fin))
    }

    pub(crate) fn send_again<D: Device>(
        &mut self,
        id: u32,
        segment: &SentSegment,
        now_us: u64,
        device: &mut D,
    ) -> bool {
        let fin = segment.is(mark::FIN);
        let syn = segment.is(mark::SYN);
        let bytes = segment.len() - u32::from(fin) - u32::from(syn);
        let answers = self.rows[id as usize].state == State::SynReceived;
        let flags = match (syn, answers) {
            (true, false) => flag::SYN,
            (true, true) => flag::SYN | flag::ACK,
            _ if fin => flag::ACK | flag::FIN,
            _ => flag::ACK | flag::PSH,
        };
        let is_sent = planted::is_planted(Fault::NoRetransmission) && !syn
            || self.send_segment(id, flags, (segment.start, bytes), now_us, device);
        if !is_sent {
            return false;
        }
        let first = self.rows[id as usize].unacknowledged;
        self.counters.retransmitted += u64::from(!segment.is(mark::UNSENT));
        if let Some(busy) = self.busy_of(id) {
            busy.board.retransmitted(segment.start, now_us);
            if segment.start == first {
                busy.wait_us = NEVER;
            }
        }
        true
    }

    pub(crate) fn send_new<D: Device>(
        &mut self,
        id: u32,
        bytes: u32,
        fin: bool,
        now_us: u64,
        device: &mut D,
    ) -> bool {
        let start = self.rows[id as usize].send_next;
        let end = start.wrapping_add(bytes + u32::from(fin));
        let flags = match (fin, bytes) {
            (true, _) => flag::ACK | flag::FIN,
            _ => flag::ACK | flag::PSH,
        };
        if !self.send_segment(id, flags, (start, bytes), now_us, device) {
            return false;
        }
        let row = &mut self.rows[id as usize];
        row.send_next = end;
        row.set(if fin { flags::FIN_SENT } else { 0 });
        if let Some(busy) = self.busy_of(id) {
            busy.board.push(SentSegment {
                start,
                end,
                at_us: now_us,
                marks: if fin { mark::FIN } else { 0 },
            });
        }
        true
    }

    /// Sends a segment with these flags. `part` is its sequence number and its number of bytes.
    pub(crate) fn send_segment<D: Device>(
        &mut self,
        id: u32,
        flags: u8,
        part: (u32, u32),
        now_us: u64,
        device: &mut D,
    ) -> bool {
        let (sequence, bytes) = part;
        let has_ack = flags & flag::ACK != 0;
        let is_syn = flags & flag::SYN != 0;
        let mut reports_all = true;
        let options = if is_syn {
            self.syn_options(id, now_us)
        } else {
            let row = &self.rows[id as usize];
            let clock = self.clock(now_us);
            let mut options = Options {
                timestamps: row.is(flags::TIMESTAMPS).then_some((clock, row.peer_clock)),
                ..Options::default()
            };
            if row.is(flags::SACK)
                && let Some(busy) = self.busy.get(row.busy as usize)
                && (busy.receive.has_gaps() || busy.repeated.is_some())
            {
                reports_all = bytes + SACK_BYTES <= row.data_bytes();
                if reports_all {
                    if let Some(range) = busy.repeated {
                        options.add_sack(range);
                    }
                    busy.receive.report(&mut options);
                }
            }
            options
        };
        let window = self.offer_window(id, is_syn);
        let (from, to) = self.ends(id);
        let row = &self.rows[id as usize];
        let head = Head {
            from,
            to,
            sequence,
            acknowledged: if has_ack { row.receive_next } else { 0 },
            flags,
            window,
            options,
        };
        let place = row.busy as usize;
        let is_sent = self.transmit(
            device,
            Some(Conn(id)),
            &head,
            bytes as usize,
            |this, out| {
                if let Some(busy) = this.busy.get(place)
                    && bytes > 0
                {
                    busy.send.read(sequence, out);
                }
            },
        );
        if is_sent && has_ack && reports_all {
            let row = &mut self.rows[id as usize];
            row.acknowledged = row.receive_next;
            row.clear(flags::ACK_NOW);
            if let Some(busy) = self.busy_of(id) {
                busy.ack_us = NEVER;
                busy.repeated = None;
            }
        }
        is_sent
    }

    /// The window to offer. Its end never goes back, and it moves in steps that are worth a segment (RFC 9293 §3.8.6.2.2).
    fn offer_window(&mut self, id: u32, is_syn: bool) -> u16 {
        let edge = self.possible_edge(id);
        let row = &mut self.rows[id as usize];
        let buffer = 1u32 << row.receive_log2;
        let gained = edge.wrapping_sub(row.receive_edge);
        if is_after(edge, row.receive_edge) && gained >= (buffer / 2).min(row.segment_bytes.into())
        {
            row.receive_edge = edge;
        }
        let window = row.receive_window();
        if is_syn {
            let window = buffer.min(u16::MAX.into());
            // Before the peer's SYN there is nothing that the window could begin with.
            row.receive_edge = later(row.receive_next.wrapping_add(window), row.receive_edge);
            return window as u16;
        }
        let shift = row.own_shift();
        // Rounded up: a window that is rounded down would seem to shrink.
        let units = (window.div_ceil(1 << shift)).min(u16::MAX.into());
        row.receive_edge = later(
            row.receive_next.wrapping_add(units << shift),
            row.receive_edge,
        );
        units as u16
    }

    /// The end of the window that the free part of the buffer allows.
    pub(crate) fn possible_edge(&self, id: u32) -> u32 {
        let row = &self.rows[id as usize];
        let unread = self
            .busy
            .get(row.busy as usize)
            .map_or(0, |busy| busy.receive.unread());
        let free = (1usize << row.receive_log2).saturating_sub(unread);
        row.receive_next.wrapping_add(free as u32)
    }

    /// Sets the deadlines of a busy connection.
    fn arm(&mut self, id: u32, now_us: u64) {
        let row = &self.rows[id as usize];
        let place = row.busy;
        let Some(busy) = self.busy.get_mut(place as usize) else {
            return;
        };
        let in_flight = !busy.board.is_empty();
        let is_probing = busy.wait == Wait::WindowProbe && busy.wait_us != NEVER;
        if in_flight && is_probing {
            (busy.wait_us, busy.backoff) = (NEVER, 0);
        }
        if in_flight && busy.wait_us == NEVER {
            let timeout_us = row.rtt.timeout_us(&self.config, busy.backoff);
            let mut probe_us = 2 * u64::from(row.rtt.smoothed_us);
            if busy.board.in_flight() <= row.data_bytes() {
                probe_us += PEER_DELAY_US;
            }
            let may_probe = row.is(flags::SACK)
                && row.state.is_synchronized()
                && row.rtt.smoothed_us > 0
                && busy.loss_probe.is_none()
                && busy.congestion.recovery.is_none()
                && busy.board.lost() == 0
                && busy.backoff == 0;
            (busy.wait, busy.wait_us) = if may_probe && probe_us < timeout_us {
                (Wait::LossProbe, now_us + probe_us)
            } else {
                (Wait::Timeout, now_us + timeout_us)
            };
        }
        let has_more =
            row.state.may_send() && (is_after(busy.send.end(), row.send_next) || row.owes_fin());
        if !in_flight && has_more {
            if !is_probing {
                busy.wait = Wait::WindowProbe;
                busy.wait_us = now_us + row.rtt.timeout_us(&self.config, busy.backoff);
            }
        } else if !in_flight {
            (busy.wait_us, busy.backoff) = (NEVER, 0);
        }
        limit_hold(busy, row, self.config.hold_ms, now_us);
        let due_us = busy.due_us();
        self.timers.set(place, due_us, &mut busy.entry_us);
    }
}

/// Sets until when the peer must acknowledge what is held now, and until when it must fill a gap.
fn limit_hold<H: AsRef<[u8]>>(busy: &mut Busy<H>, row: &Row, hold_ms: u32, now_us: u64) {
    let limit_us = match hold_ms {
        0 => return,
        ms => now_us + u64::from(ms) * 1_000,
    };
    let end = match row.is(flags::FIN_SENT) {
        true => row.send_next,
        false => busy.send.end().wrapping_add(row.is(flags::FIN).into()),
    };
    if !row.state.is_synchronized() || row.unacknowledged == end {
        busy.hold_us = NEVER;
    } else if busy.hold_us == NEVER || is_from(row.unacknowledged, busy.hold_end) {
        (busy.hold_us, busy.hold_end) = (limit_us, end);
    }
    if !busy.receive.has_gaps() {
        busy.gap_us = NEVER;
    } else if busy.gap_us == NEVER {
        busy.gap_us = limit_us;
    }
}
