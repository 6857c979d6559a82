//! What time brings: deadlines of busy connections, the end of TIME-WAIT, and a slow sweep over all rows.

use crate::account::Account;
use crate::packet::flag;
use crate::row::{Conn, Failure, NONE, State, flags};
use crate::sequence::{earlier, is_after};
use crate::table::{Device, Table};
use crate::timers::NEVER;
use crate::transfer::{LossProbe, Timer};

/// The largest number of rows that a turn sweeps.
const SWEEP_ROWS: u64 = 4_096;
/// The largest number of busy connections that a turn visits while memory is short.
const PRESSED_PLACES: usize = 256;
/// How long a connection that the caller has closed may make no progress while memory is short.
const SHORT_ORPHAN_US: u64 = 1_000_000;
/// Entries among the timers beyond four for each place of the side table, at which those that are replaced are removed.
const TIMERS: usize = 64;

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Does what is due, and sends what there is to send. The caller calls this at the end of each of its turns, and when
    /// [`Table::next_us`] is due.
    pub fn poll<D: Device>(&mut self, now_us: u64, device: &mut D) {
        self.now_us = now_us;
        while let Some((due_us, place)) = self.timers.due(now_us) {
            self.expire(due_us, place, now_us, device);
        }
        if self.timers.len() > 4 * self.transfers.len() + TIMERS {
            let transfers = &self.transfers;
            self.timers
                .retain(|due_us, place| transfers[place as usize].queued_us == due_us);
        }
        while let Some(waiting) = self.time_waits.front().copied()
            && waiting.due_us <= now_us
        {
            self.time_waits.pop_front();
            self.forget_if_same(&waiting);
        }
        if self.account.is_short() {
            self.free_memory(now_us, device);
        }
        self.sweep_rows(now_us, device);
        self.flush(now_us, device);
        self.trim();
    }

    /// When [`Table::poll`] has something to do at the latest, apart from the slow sweep, which any turn continues.
    pub fn next_us(&self) -> Option<u64> {
        let waits = self.time_waits.front().map(|waiting| waiting.due_us);
        let next = self.timers.next_us();
        match (next, waits) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Visits some busy connections while memory is short: drops bytes out of order, and gives up those that have held bytes
    /// for too long, or that the caller has closed and that make no progress.
    fn free_memory<D: Device>(&mut self, now_us: u64, device: &mut D) {
        let (hold_ms, short_ms) = (self.config.hold_ms, self.config.short_hold_ms);
        let early_us = u64::from(hold_ms.saturating_sub(short_ms)) * 1_000;
        for _ in 0..PRESSED_PLACES.min(self.transfers.len()) {
            self.next_pressed = match self.next_pressed + 1 {
                next if next < self.transfers.len() => next,
                _ => 0,
            };
            let transfer = &mut self.transfers[self.next_pressed];
            let id = transfer.row;
            if id == NONE {
                continue;
            }
            if transfer.receive.has_gaps() {
                let dropped = transfer.receive.drop_ranges();
                (transfer.receive.fin, transfer.gap_deadline_us) = (None, NEVER);
                self.counters.bytes_dropped += dropped as u64;
                self.account.release(Conn(id), dropped);
                self.queue_to_send(id);
            }
            let transfer = &self.transfers[self.next_pressed];
            let row = &self.rows[id as usize];
            let is_held = is_after(transfer.ack_deadline_end, row.unacknowledged);
            let is_late =
                transfer.ack_deadline_us != NEVER && transfer.ack_deadline_us <= now_us + early_us;
            // Nobody counts a connection that the caller has closed any more, so it gives way much earlier.
            let is_stuck = now_us.saturating_sub(transfer.progress_us) > SHORT_ORPHAN_US;
            if row.is(flags::ORPHAN) && is_stuck || is_held && is_late {
                self.give_up(id, now_us, device);
            }
        }
    }

    fn expire<D: Device>(&mut self, due_us: u64, place: u32, now_us: u64, device: &mut D) {
        let transfer = &mut self.transfers[place as usize];
        if transfer.queued_us != due_us {
            // An earlier entry has replaced it.
            return;
        }
        transfer.queued_us = NEVER;
        let id = transfer.row;
        if id == NONE {
            return;
        }
        let next_us = transfer.due_us();
        if next_us > now_us {
            return self.timers.set(place, next_us, &mut transfer.queued_us);
        }
        let is_held = is_after(
            transfer.ack_deadline_end,
            self.rows[id as usize].unacknowledged,
        );
        if transfer.ack_deadline_us <= now_us && is_held {
            return self.give_up(id, now_us, device);
        }
        if transfer.gap_deadline_us <= now_us {
            // The peer must keep what it has sent until all before it is acknowledged (RFC 2018 §8), so that it can send this again.
            let dropped = transfer.receive.drop_ranges();
            (transfer.receive.fin, transfer.gap_deadline_us) = (None, NEVER);
            self.counters.bytes_dropped += dropped as u64;
            if dropped > 0 {
                self.account.release(Conn(id), dropped);
            }
        }
        let transfer = &mut self.transfers[place as usize];
        if transfer.delayed_ack_us <= now_us {
            transfer.delayed_ack_us = NEVER;
            self.rows[id as usize].set(flags::ACK_NOW);
        }
        if transfer
            .rack
            .timeout_us
            .is_some_and(|due_us| due_us <= now_us)
        {
            let row = &self.rows[id as usize];
            let flight = transfer.scoreboard.in_flight();
            let is_recovering = transfer.congestion.recovery.is_some();
            if transfer
                .rack
                .detect(&mut transfer.scoreboard, &row.rtt, is_recovering, now_us)
            {
                transfer
                    .congestion
                    .lost(flight, row.send_next, row.data_bytes());
            }
        }
        self.queue_to_send(id);
        if self.transfers[place as usize].timer_us <= now_us {
            self.transfers[place as usize].timer_us = NEVER;
            match self.transfers[place as usize].timer {
                Timer::Timeout => self.timed_out(id, now_us, device),
                Timer::LossProbe => self.probe_loss(id, now_us, device),
                Timer::WindowProbe => self.probe_window(id, now_us, device),
            }
        }
    }

    /// Nothing was acknowledged in time.
    fn timed_out<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let row = &self.rows[id as usize];
        let retries = if row.state.is_synchronized() {
            self.config.retries
        } else {
            self.config.syn_retries
        };
        let (next, bytes) = (row.send_next, row.data_bytes());
        let is_alive = self.is_closed_window_alive(id, now_us);
        let is_late = self.is_orphan_late(id, now_us);
        let Some(transfer) = self.transfer_of(id) else {
            return;
        };
        if is_late || transfer.backoff >= retries && !is_alive {
            return self.give_up(id, now_us, device);
        }
        let flight = next.wrapping_sub(
            transfer
                .scoreboard
                .first()
                .map_or(next, |first| first.start),
        );
        let is_first = transfer.backoff == 0;
        transfer.congestion.timed_out(flight, bytes, is_first);
        transfer.scoreboard.forget();
        transfer.loss_probe = None;
        transfer.rack.timeout_us = None;
        transfer.backoff = transfer.backoff.saturating_add(1);
        self.counters.timeouts += 1;
    }

    /// Sends a loss probe: new data if there is some, or the last segment again.
    fn probe_loss<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let row = &self.rows[id as usize];
        let bytes = row.data_bytes();
        let (next, state) = (row.send_next, row.state);
        let count = self.usable(id);
        let Some(transfer) = self.transfer_of(id) else {
            return;
        };
        let end = next;
        let last = transfer.scoreboard.probe(bytes);
        let is_retransmission = count == 0 || !state.may_send();
        let is_sent = if !is_retransmission {
            self.send_new(id, count, false, now_us, device)
        } else {
            last.is_some_and(|last| self.retransmit(id, &last, now_us, device))
        };
        if is_sent {
            self.counters.probes += 1;
        }
        let timeout_us = self.rows[id as usize].rtt.timeout_us(&self.config, 0);
        let end = if is_retransmission {
            end
        } else {
            end.wrapping_add(count)
        };
        if let Some(transfer) = self.transfer_of(id) {
            transfer.loss_probe = Some(LossProbe {
                end,
                is_retransmission,
            });
            (transfer.timer, transfer.timer_us) = (Timer::Timeout, now_us + timeout_us);
        }
    }

    /// The bytes of the next segment that the peer's window has room for.
    fn usable(&self, id: u32) -> u32 {
        let row = &self.rows[id as usize];
        let edge = row.unacknowledged.wrapping_add(row.send_window);
        let end = match self.transfers.get(row.transfer as usize) {
            Some(transfer) => earlier(transfer.send.end(), edge),
            None => return 0,
        };
        match is_after(end, row.send_next) {
            true => end.wrapping_sub(row.send_next).min(row.data_bytes()),
            false => 0,
        }
    }

    /// Asks the peer for its window, with a sequence number that it has acknowledged already, so that it must answer.
    fn probe_window<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let is_alive = self.is_closed_window_alive(id, now_us);
        let is_late = self.is_orphan_late(id, now_us);
        let retries = self.config.retries;
        let Some(transfer) = self.transfer_of(id) else {
            return;
        };
        if is_late || transfer.backoff >= retries && !is_alive {
            return self.give_up(id, now_us, device);
        }
        transfer.backoff = transfer.backoff.saturating_add(1);
        // If the peer's buffer has become small, segments that fill half of it are not to be had.
        transfer.largest_window = 0;
        match self.usable(id) {
            0 => self.send_probe(id, now_us, device),
            // Too little room for a segment of its own accord: now it is used all the same.
            bytes => {
                self.send_new(id, bytes, false, now_us, device);
            }
        }
        // The next probe.
        let row = &self.rows[id as usize];
        if let Some(transfer) = self.transfers.get_mut(row.transfer as usize) {
            transfer.timer_us = now_us + row.rtt.timeout_us(&self.config, transfer.backoff);
        }
    }

    /// Sends an empty segment whose sequence number the peer has acknowledged, so that it must answer.
    fn send_probe<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let sequence = self.rows[id as usize].unacknowledged.wrapping_sub(1);
        self.send_segment(id, flag::ACK, sequence, 0, now_us, device);
    }

    /// Whether a peer with a closed window has answered lately.
    fn is_closed_window_alive(&self, id: u32, now_us: u64) -> bool {
        let row = &self.rows[id as usize];
        let silence_ms = ((now_us / 1_000) as u32).wrapping_sub(row.heard_ms);
        row.send_window < row.data_bytes() && silence_ms < 2 * (self.config.rto_max_us / 1_000)
    }

    /// Whether the caller has closed a connection that has made no progress for too long.
    fn is_orphan_late(&self, id: u32, now_us: u64) -> bool {
        let row = &self.rows[id as usize];
        let limit_us = u64::from(self.config.orphan_ms) * 1_000;
        let transfer = self.transfers.get(row.transfer as usize);
        row.is(flags::ORPHAN)
            && transfer
                .is_some_and(|transfer| now_us.saturating_sub(transfer.progress_us) > limit_us)
    }

    /// Ends a connection that does not answer.
    fn give_up<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        self.counters.timed_out += 1;
        if self.rows[id as usize].state.is_synchronized() {
            self.send_reset(id, now_us, device);
        }
        self.end(id, Some(Failure::TimedOut));
    }

    /// Sends a reset.
    pub(crate) fn send_reset<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let sequence = self.rows[id as usize].send_next;
        self.counters.resets_sent += 1;
        self.send_segment(id, flag::RST | flag::ACK, sequence, 0, now_us, device);
    }

    /// Visits some rows, so that all are visited once in each interval.
    fn sweep_rows<D: Device>(&mut self, now_us: u64, device: &mut D) {
        let interval_ms = match &self.config.keep_alive {
            Some(keep) => keep.interval_ms,
            None => self.config.orphan_ms / 2,
        };
        let interval_us = (u64::from(interval_ms) * 1_000).max(1);
        let rows = self.rows.len() as u64;
        let (first, done_us) = self.sweep;
        let passed_us = now_us.saturating_sub(done_us).min(interval_us);
        let count = (rows * passed_us / interval_us).min(SWEEP_ROWS);
        if count == 0 {
            // An empty table has nothing to catch up with.
            if rows == 0 {
                self.sweep.1 = now_us;
            }
            return;
        }
        let mut id = first;
        for _ in 0..count {
            id = if id as usize >= self.rows.len() {
                0
            } else {
                id
            };
            self.sweep_row(id, now_us, device);
            id += 1;
        }
        // The time of the rows that were visited; the rest of a row's time is kept.
        let since_us = now_us - passed_us;
        self.sweep = (id, since_us + count * interval_us / rows);
    }

    fn sweep_row<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let row = &self.rows[id as usize];
        let silence_ms = ((now_us / 1_000) as u32).wrapping_sub(row.heard_ms);
        match row.state {
            State::FinWait2 if row.is(flags::ORPHAN) && silence_ms > self.config.orphan_ms => {
                return self.end(id, None);
            }
            // A connection that waits for the peer or for the caller. One with bytes to send has timers.
            State::Established | State::CloseWait | State::FinWait2
                if self
                    .transfers
                    .get(row.transfer as usize)
                    .is_none_or(|transfer| transfer.timer_us == NEVER) => {}
            _ => return,
        }
        let Some(keep) = &self.config.keep_alive else {
            return;
        };
        let probes_ms = keep.probes.saturating_mul(keep.interval_ms);
        let limit_ms = keep.idle_ms.saturating_add(probes_ms);
        if silence_ms >= limit_ms {
            self.give_up(id, now_us, device);
        } else if silence_ms >= keep.idle_ms {
            self.send_probe(id, now_us, device);
        }
    }
}
