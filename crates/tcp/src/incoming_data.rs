//! The data and the FIN of a segment that is acceptable (RFC 9293 §3.10.7.4, seventh and eighth step).
//!
//! Invariants: the next expected number only grows, by what is in order. Each byte is appended once. Nothing from behind the offered window is kept,
//! and each byte that is kept is charged to the account.

use crate::account::Account;
use crate::packet::{Segment, flag};
use crate::planted::{self, Fault};
use crate::row::{Conn, Failure, State, flags};
use crate::sequence::is_after;
use crate::table::{Device, Table};
use crate::timers::NEVER;

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Handles the data and the FIN of a segment.
    pub(crate) fn handle_data<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) {
        let head = &segment.head;
        let (data, has_fin) = (segment.data, head.has(flag::FIN));
        if data.is_empty() && !has_fin {
            return;
        }
        // The SYN of a simultaneous open, which was handled, has the number before the data.
        let start = head.sequence.wrapping_add(head.has(flag::SYN).into());
        let end = start.wrapping_add(data.len() as u32);
        let row = &self.rows[id as usize];
        if !row.state.may_receive() {
            // Bytes behind the peer's FIN do not exist, and those before it came again.
            return self.acknowledge(id);
        }
        if row.is(flags::ORPHAN) && is_after(end, row.receive_next) {
            // Nobody will read these bytes, so the peer must know that they are lost (RFC 9293 §3.6.1).
            self.refuse(segment, device);
            return self.end(id, Some(Failure::Reset));
        }
        let Some((start, data)) = self.without_known(id, start, data, has_fin) else {
            self.counters.repeated += 1;
            return self.acknowledge(id);
        };
        let kept = self.within_window(id, start, data);
        if start == self.rows[id as usize].receive_next {
            self.take_in_order(id, kept, now_us);
        } else {
            self.take_out_of_order(id, start, kept, now_us);
        }
        // A FIN behind bytes that were dropped comes again with them.
        if has_fin && kept.len() == data.len() {
            self.note_fin(id, end, now_us);
        }
        self.take_fin(id);
    }

    /// Takes away the bytes at the beginning that have arrived before. `None` if nothing else is there.
    fn without_known<'a>(
        &mut self,
        id: u32,
        start: u32,
        data: &'a [u8],
        has_fin: bool,
    ) -> Option<(u32, &'a [u8])> {
        let next = self.rows[id as usize].receive_next;
        if !is_after(next, start) {
            return Some((start, data));
        }
        if planted::is_planted(Fault::OldBytesAccepted) {
            return Some((next, data));
        }
        let known = next.wrapping_sub(start) as usize;
        if known >= data.len() + usize::from(has_fin) {
            return None;
        }
        self.note_repeat(id, (start, next));
        Some((next, data.get(known..).unwrap_or_default()))
    }

    /// Takes away the bytes behind the window, and tells the peer.
    fn within_window<'a>(&mut self, id: u32, start: u32, data: &'a [u8]) -> &'a [u8] {
        let edge = self.rows[id as usize].receive_edge;
        let room = match is_after(edge, start) {
            true => edge.wrapping_sub(start) as usize,
            false => 0,
        };
        if data.len() <= room {
            return data;
        }
        self.counters.bytes_dropped += (data.len() - room) as u64;
        self.acknowledge(id);
        &data[..room]
    }

    /// Takes bytes that are next.
    fn take_in_order(&mut self, id: u32, data: &[u8], now_us: u64) {
        if data.is_empty() {
            return;
        }
        if !self.charge_or_make_room(id, data.len()) {
            self.counters.bytes_dropped += data.len() as u64;
            return self.acknowledge(id);
        }
        let place = self.ensure_transfer(id, now_us) as usize;
        let row = &mut self.rows[id as usize];
        let transfer = &mut self.transfers[place];
        let held = transfer.receive.held() + data.len();
        let filled_gap = transfer.receive.has_gaps();
        let count = transfer.receive.append(row.receive_next, data);
        // The wait for what is missing begins again.
        transfer.gap_deadline_us = NEVER;
        // Bytes that a range had already are not held twice.
        let twice = held - transfer.receive.held();
        row.receive_next = row.receive_next.wrapping_add(count);
        let waiting = row.receive_next.wrapping_sub(row.acknowledged);
        let is_due = filled_gap
            || self.config.ack_delay_us == 0
            || waiting >= 2 * row.data_bytes()
            || transfer.receive.unread() * 2 >= 1 << row.receive_log2;
        if !is_due && transfer.delayed_ack_us == NEVER {
            transfer.delayed_ack_us = now_us + u64::from(self.config.ack_delay_us);
        }
        if twice > 0 {
            self.account.release(Conn(id), twice);
        }
        if is_due {
            self.acknowledge(id);
        } else {
            self.queue_to_send(id);
        }
        self.queue_event(id);
    }

    /// Charges bytes that are next. If there is no room for them, bytes out of order give way: the peer must keep what it has sent until all before
    /// it is acknowledged (RFC 2018 §8), and the stream does not go on without those that are next.
    fn charge_or_make_room(&mut self, id: u32, bytes: usize) -> bool {
        if self.account.charge(Conn(id), bytes) {
            return true;
        }
        let dropped = self
            .transfer_of(id)
            .map_or(0, |transfer| transfer.receive.drop_ranges());
        if dropped == 0 {
            return false;
        }
        self.counters.bytes_dropped += dropped as u64;
        self.account.release(Conn(id), dropped);
        self.account.charge(Conn(id), bytes)
    }

    /// Keeps bytes that are not next, and tells the peer what is missing.
    fn take_out_of_order(&mut self, id: u32, start: u32, data: &[u8], now_us: u64) {
        self.counters.out_of_order += 1;
        self.acknowledge(id);
        if data.is_empty() {
            return;
        }
        let place = self.ensure_transfer(id, now_us) as usize;
        let end = start.wrapping_add(data.len() as u32);
        let (new_start, new_end) = self.transfers[place].receive.new_part(start, end);
        if !is_after(new_end, new_start) {
            self.counters.repeated += 1;
            return self.note_repeat(id, (start, end));
        }
        let from = new_start.wrapping_sub(start) as usize;
        let part = &data[from..from + new_end.wrapping_sub(new_start) as usize];
        let ranges = self.config.ranges;
        let is_kept = self.account.charge(Conn(id), part.len());
        if is_kept && !self.transfers[place].receive.keep(new_start, part, ranges) {
            self.account.release(Conn(id), part.len());
            self.counters.bytes_dropped += part.len() as u64;
        } else if !is_kept {
            self.counters.bytes_dropped += part.len() as u64;
        }
    }

    /// Remembers bytes that came twice, to tell the peer (RFC 2883).
    pub(crate) fn note_repeat(&mut self, id: u32, range: (u32, u32)) {
        if let Some(transfer) = self.transfer_of(id) {
            transfer.repeated = Some(range);
        }
    }

    fn note_fin(&mut self, id: u32, at: u32, now_us: u64) {
        let place = self.ensure_transfer(id, now_us) as usize;
        self.transfers[place].receive.fin = Some(at);
    }

    /// Takes the peer's FIN if all bytes before it have arrived.
    fn take_fin(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        let Some(transfer) = self.transfers.get_mut(row.transfer as usize) else {
            return;
        };
        let is_next = transfer.receive.fin == Some(row.receive_next)
            || transfer.receive.fin.is_some() && planted::is_planted(Fault::EarlyEnd);
        if transfer
            .receive
            .fin
            .is_some_and(|fin| is_after(row.receive_next, fin))
        {
            // Bytes behind it have arrived, so it was not the peer's.
            transfer.receive.fin = None;
        }
        if !is_next {
            return;
        }
        transfer.receive.fin = None;
        let dropped = transfer.receive.drop_ranges();
        row.receive_next = row.receive_next.wrapping_add(1);
        row.set(flags::PEER_FIN);
        let state = match row.state {
            State::Established => State::CloseWait,
            State::FinWait1 => State::Closing,
            State::FinWait2 => State::TimeWait,
            state => state,
        };
        self.change_state(id, state);
        if dropped > 0 {
            self.account.release(Conn(id), dropped);
        }
        self.acknowledge(id);
        self.queue_event(id);
    }
}
