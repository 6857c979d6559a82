//! What a connection sends, and the deadlines that follow from it.

use core::mem::take;

use crate::account::Account;
use crate::packet::{Head, Options, flag};
use crate::planted::{self, Fault};
use crate::row::{Conn, Row, State, flags};
use crate::scoreboard::{SentSegment, mark};
use crate::sequence::{is_after, is_from, later};
use crate::table::{Device, Table};
use crate::timers::NEVER;
use crate::transfer::{Timer, Transfer};

/// The longest time that a peer may delay an acknowledgement (RFC 8985 §7.2).
const PEER_DELAY_US: u64 = 200_000;
/// Bytes of options that selective acknowledgements take at most.
const SACK_BYTES: u32 = 36;

/// What is sent next.
enum NextSegment {
    /// This segment is sent again.
    Retransmitted(SentSegment),
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
                self.queue_to_send(*id);
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
        while has_room && let Some(next) = self.next_to_send(id) {
            has_room = match next {
                NextSegment::Retransmitted(segment) => {
                    self.retransmit(id, &segment, now_us, device)
                }
                NextSegment::New(bytes, fin) => self.send_new(id, bytes, fin, now_us, device),
            };
        }
        if has_room && self.rows[id as usize].is(flags::ACK_NOW) {
            let sequence = self.rows[id as usize].send_next;
            has_room = self.send_segment(id, flag::ACK, sequence, 0, now_us, device);
        }
        self.set_deadlines(id, now_us);
        self.charge_entry(id);
        self.release_if_idle(id);
        if has_room && self.rows[id as usize].state == State::TimeWait {
            self.enter_time_wait(id);
        }
        has_room
    }

    fn next_to_send(&mut self, id: u32) -> Option<NextSegment> {
        let row = &self.rows[id as usize];
        let transfer = self.transfers.get_mut(row.transfer as usize)?;
        let segment_bytes_max = row.data_bytes();
        let in_flight = transfer.scoreboard.in_flight();
        let room = transfer.congestion.window.saturating_sub(in_flight);
        if let Some(segment) = transfer.scoreboard.next_lost(segment_bytes_max) {
            // The first loss is repaired at once, although the window has just become smaller (RFC 6675 §5, step 4.3).
            let is_first = segment.start == row.unacknowledged && !segment.is(mark::RETRANSMITTED);
            let may_send = in_flight == 0 || is_first || room >= segment.len();
            return may_send.then_some(NextSegment::Retransmitted(segment));
        }
        if !row.state.may_send() || row.is(flags::FIN_SENT) {
            return None;
        }
        let unsent = transfer.send.end().wrapping_sub(row.send_next);
        let mut edge = row.unacknowledged.wrapping_add(row.send_window);
        if planted::is_planted(Fault::WindowTooWide) {
            edge = edge.wrapping_add(1);
        }
        let usable = if is_after(edge, row.send_next) {
            edge.wrapping_sub(row.send_next)
        } else {
            0
        };
        let count = unsent.min(usable).min(segment_bytes_max);
        let fin = row.is(flags::FIN) && count == unsent && usable > count;
        // A segment smaller than it could be is only sent if nothing follows, or if the peer's buffer is small (RFC 9293 §3.8.6.2.1). If the
        // window is only a few bytes, nothing is sent before a timeout: otherwise each byte of data would cost a packet.
        let sent_bytes_min =
            u32::from(self.config.segment_bytes_min).max(transfer.largest_window / 2);
        let is_large_enough = count == unsent || count >= sent_bytes_min;
        // A small segment costs more than its bytes. So if many segments are in flight, small ones wait for an acknowledgement and leave together.
        let full_segments_in_flight =
            row.send_next.wrapping_sub(row.unacknowledged) / segment_bytes_max;
        let segments_max = self.config.small_segments.max(1) + full_segments_in_flight as usize;
        let may_send_small = transfer.scoreboard.len() < segments_max;
        let is_worth_sending = count == segment_bytes_max || is_large_enough && may_send_small;
        let has_room = room >= count || in_flight == 0;
        let has_content = count > 0 || fin;
        (has_content && is_worth_sending && has_room).then_some(NextSegment::New(count, fin))
    }

    pub(crate) fn retransmit<D: Device>(
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
            || self.send_segment(id, flags, segment.start, bytes, now_us, device);
        if !is_sent {
            return false;
        }
        let first = self.rows[id as usize].unacknowledged;
        self.counters.retransmitted += u64::from(!segment.is(mark::UNSENT));
        if let Some(transfer) = self.transfer_of(id) {
            transfer.scoreboard.retransmitted(segment.start, now_us);
            if segment.start == first {
                transfer.timer_us = NEVER;
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
        if !self.send_segment(id, flags, start, bytes, now_us, device) {
            return false;
        }
        let row = &mut self.rows[id as usize];
        row.send_next = end;
        row.set(if fin { flags::FIN_SENT } else { 0 });
        if let Some(transfer) = self.transfer_of(id) {
            transfer.scoreboard.push(SentSegment {
                start,
                end,
                at_us: now_us,
                marks: if fin { mark::FIN } else { 0 },
            });
        }
        true
    }

    /// Sends a segment with these flags, and with `bytes` bytes of data from the sequence number on.
    pub(crate) fn send_segment<D: Device>(
        &mut self,
        id: u32,
        flags: u8,
        sequence: u32,
        bytes: u32,
        now_us: u64,
        device: &mut D,
    ) -> bool {
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
                && let Some(transfer) = self.transfers.get(row.transfer as usize)
                && (transfer.receive.has_gaps() || transfer.repeated.is_some())
            {
                reports_all = bytes + SACK_BYTES <= row.data_bytes();
                if reports_all {
                    if let Some(range) = transfer.repeated {
                        options.add_sack(range);
                    }
                    transfer.receive.report(&mut options);
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
        let transfer_index = row.transfer as usize;
        let is_sent = self.transmit(
            device,
            Some(Conn(id)),
            &head,
            bytes as usize,
            |this, out| {
                if let Some(transfer) = this.transfers.get(transfer_index)
                    && bytes > 0
                {
                    transfer.send.read(sequence, out);
                }
            },
        );
        if is_sent && has_ack && reports_all {
            let row = &mut self.rows[id as usize];
            row.acknowledged = row.receive_next;
            row.clear(flags::ACK_NOW);
            if let Some(transfer) = self.transfer_of(id) {
                transfer.delayed_ack_us = NEVER;
                transfer.repeated = None;
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
            .transfers
            .get(row.transfer as usize)
            .map_or(0, |transfer| transfer.receive.unread());
        let free = (1usize << row.receive_log2).saturating_sub(unread);
        row.receive_next.wrapping_add(free as u32)
    }

    /// Sets the deadlines of a busy connection.
    fn set_deadlines(&mut self, id: u32, now_us: u64) {
        let row = &self.rows[id as usize];
        let transfer_index = row.transfer;
        let Some(transfer) = self.transfers.get_mut(transfer_index as usize) else {
            return;
        };
        let in_flight = !transfer.scoreboard.is_empty();
        let is_probing = transfer.timer == Timer::WindowProbe && transfer.timer_us != NEVER;
        if in_flight && is_probing {
            (transfer.timer_us, transfer.backoff) = (NEVER, 0);
        }
        if in_flight && transfer.timer_us == NEVER {
            let timeout_us = row.rtt.timeout_us(&self.config, transfer.backoff);
            let mut probe_us = 2 * u64::from(row.rtt.smoothed_us);
            if transfer.scoreboard.in_flight() <= row.data_bytes() {
                probe_us += PEER_DELAY_US;
            }
            let may_probe = row.is(flags::SACK)
                && row.state.is_synchronized()
                && row.rtt.smoothed_us > 0
                && transfer.loss_probe.is_none()
                && transfer.congestion.recovery.is_none()
                && transfer.scoreboard.lost() == 0
                && transfer.backoff == 0;
            (transfer.timer, transfer.timer_us) = if may_probe && probe_us < timeout_us {
                (Timer::LossProbe, now_us + probe_us)
            } else {
                (Timer::Timeout, now_us + timeout_us)
            };
        }
        let has_more = row.state.may_send()
            && (is_after(transfer.send.end(), row.send_next) || row.owes_fin());
        if !in_flight && has_more {
            if !is_probing {
                transfer.timer = Timer::WindowProbe;
                transfer.timer_us = now_us + row.rtt.timeout_us(&self.config, transfer.backoff);
            }
        } else if !in_flight {
            (transfer.timer_us, transfer.backoff) = (NEVER, 0);
        }
        set_peer_deadlines(transfer, row, self.config.hold_ms, now_us);
        let due_us = transfer.due_us();
        self.timers
            .set(transfer_index, due_us, &mut transfer.queued_us);
    }
}

/// Sets until when the peer must acknowledge what is held now, and until when it must fill a gap.
fn set_peer_deadlines<H: AsRef<[u8]>>(
    transfer: &mut Transfer<H>,
    row: &Row,
    hold_ms: u32,
    now_us: u64,
) {
    let limit_us = match hold_ms {
        0 => return,
        ms => now_us + u64::from(ms) * 1_000,
    };
    let end = match row.is(flags::FIN_SENT) {
        true => row.send_next,
        false => transfer.send.end().wrapping_add(row.is(flags::FIN).into()),
    };
    if !row.state.is_synchronized() || row.unacknowledged == end {
        transfer.ack_deadline_us = NEVER;
    } else if transfer.ack_deadline_us == NEVER
        || is_from(row.unacknowledged, transfer.ack_deadline_end)
    {
        (transfer.ack_deadline_us, transfer.ack_deadline_end) = (limit_us, end);
    }
    if !transfer.receive.has_gaps() {
        transfer.gap_deadline_us = NEVER;
    } else if transfer.gap_deadline_us == NEVER {
        transfer.gap_deadline_us = limit_us;
    }
}
