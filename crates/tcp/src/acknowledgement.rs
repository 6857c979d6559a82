//! The acknowledgement, the window and the selective acknowledgements of a segment that is acceptable (RFC 9293 §3.10.7.4, fifth step).
//!
//! Invariants: the first number that is not acknowledged only grows, and never beyond what was sent. Bytes leave the send buffer, and the account,
//! only below it.

use crate::account::Account;
use crate::packet::{Head, Options};
use crate::planted::{self, Fault};
use crate::row::{Conn, NONE, Row, State, flags};
use crate::sequence::{is_after, is_from};
use crate::table::Table;
use crate::timers::NEVER;
use crate::transfer::Transfer;

/// Acknowledgements of nothing new after which a segment is lost, if the peer has no selective ones (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;

/// An acknowledgement, and what was known before it.
struct Acknowledgement {
    /// The sequence number up to which it acknowledges.
    number: u32,
    /// The first sequence number that was not acknowledged, and the next one to send.
    first_unacknowledged: u32,
    send_next: u32,
    /// The bytes of data of a full segment.
    segment_bytes: u32,
    /// Whether it repeats the acknowledgement before it, without data and with the same window.
    is_duplicate: bool,
    /// The bytes that were in the network.
    flight: u32,
    /// Whether segments were selectively acknowledged.
    had_sacked: bool,
}

impl Acknowledgement {
    /// Whether it acknowledges something for the first time.
    fn is_new(&self) -> bool {
        is_after(self.number, self.first_unacknowledged)
    }
}

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Handles the acknowledgement, the window and the selective acknowledgements of a segment. `false` if the segment goes no further.
    pub(crate) fn handle_ack(&mut self, id: u32, head: &Head, bytes: usize, now_us: u64) -> bool {
        let row = &self.rows[id as usize];
        let (first, next) = (row.unacknowledged, row.send_next);
        let ack = head.acknowledged;
        if is_after(ack, next) && !planted::is_planted(Fault::AckOfUnsent) {
            self.counters.unacceptable += 1;
            self.challenge(id, now_us);
            return false;
        }
        // One that is older than all that can have been in flight was guessed (RFC 5961 §5). The peer's window does not count: a large one would
        // make every fourth guess right.
        let oldest = first.wrapping_sub(self.config.send_bytes);
        if is_after(oldest, ack) {
            self.counters.unacceptable += 1;
            self.challenge(id, now_us);
            return false;
        }
        let is_new = is_after(ack, first);
        let window_before = row.send_window;
        if is_from(ack, first) {
            self.take_window(id, head, is_new);
        }
        let window = self.rows[id as usize].send_window;
        if self.rows[id as usize].transfer != NONE {
            let is_duplicate = ack == first && bytes == 0 && window == window_before;
            self.take_acks(id, head, is_duplicate, now_us);
        }
        if window > window_before && self.rows[id as usize].transfer != NONE {
            self.handle_reopened_window(id, window_before);
        }
        self.after_ack(id);
        self.rows[id as usize].state != State::Closed
    }

    /// The peer's window has grown. What was sent while it was closed has been dropped, so it is sent again without a wait for the timeout.
    fn handle_reopened_window(&mut self, id: u32, window_before: u32) {
        let bytes = self.rows[id as usize].data_bytes();
        if let Some(transfer) = self.transfer_of(id)
            && transfer.backoff > 0
            && !transfer.scoreboard.is_empty()
            && window_before < bytes
        {
            transfer.scoreboard.forget();
            (transfer.backoff, transfer.timer_us) = (0, NEVER);
        }
        self.queue_to_send(id);
    }

    /// Takes the peer's window from a segment that is not older than the one that set it (RFC 9293 §3.10.7.4).
    fn take_window(&mut self, id: u32, head: &Head, is_new: bool) {
        let row = &mut self.rows[id as usize];
        let window = u32::from(head.window) << row.peer_shift();
        // Of two segments with the same numbers the one with the larger window was sent later. After a timeout this is the answer to a
        // retransmission: a peer without memory takes back its window.
        let has_timed_out = self
            .transfers
            .get(row.transfer as usize)
            .is_some_and(|transfer| transfer.backoff > 0);
        let is_later = is_after(head.sequence, row.window_set_by)
            || head.sequence == row.window_set_by && (window > row.send_window || has_timed_out);
        if is_new || is_later {
            row.send_window = window;
            row.window_set_by = head.sequence;
        }
        if let Some(transfer) = self.transfer_of(id) {
            transfer.largest_window = transfer.largest_window.max(window);
        }
    }

    /// Takes from the scoreboard what has arrived, finds what is lost, and adjusts the congestion window.
    fn take_acks(&mut self, id: u32, head: &Head, is_duplicate: bool, now_us: u64) {
        let row = &mut self.rows[id as usize];
        let Some(transfer) = self.transfers.get_mut(row.transfer as usize) else {
            return;
        };
        if transfer.scoreboard.is_empty() {
            return;
        }
        let ack = Acknowledgement {
            number: head.acknowledged,
            first_unacknowledged: row.unacknowledged,
            send_next: row.send_next,
            segment_bytes: row.data_bytes(),
            is_duplicate,
            flight: transfer.scoreboard.in_flight(),
            had_sacked: transfer.scoreboard.sacked() > 0,
        };
        let is_repeat = take_arrivals(row, transfer, &head.options, &ack, now_us);
        if ack.is_new() {
            let freed = advance(row, transfer, &ack, now_us);
            if freed > 0 && !planted::is_planted(Fault::NeverReleased) {
                self.account.release(Conn(id), freed);
            }
        }
        end_loss_probe(transfer, &ack, is_repeat);
        if find_losses(row, transfer, &ack, now_us) {
            let segment_bytes = ack.segment_bytes;
            transfer
                .congestion
                .lost(ack.flight, ack.send_next, segment_bytes);
        }
        self.queue_to_send(id);
        if ack.is_new() {
            self.queue_event(id);
        }
    }

    /// Changes the state if our FIN is acknowledged.
    fn after_ack(&mut self, id: u32) {
        let row = &self.rows[id as usize];
        if !row.is(flags::FIN_SENT) || row.unacknowledged != row.send_next {
            return;
        }
        match row.state {
            State::FinWait1 => self.rows[id as usize].state = State::FinWait2,
            State::Closing => {
                self.change_state(id, State::TimeWait);
                self.queue_to_send(id);
            }
            State::LastAck => self.end(id, None),
            _ => {}
        }
    }
}

/// Whether the first range of selective acknowledgements says that bytes have arrived twice (RFC 2883 §4).
fn is_repeat_report(options: &Options, ack: u32) -> bool {
    match options.sacks.list() {
        [first, second, ..] if is_from(first.0, second.0) && is_from(second.1, first.1) => true,
        [first, ..] => !is_after(first.1, ack),
        [] => false,
    }
}

/// Takes from the scoreboard what has arrived, with the samples of the round trip. Returns whether the peer says that bytes have arrived twice.
fn take_arrivals<H>(
    row: &mut Row,
    transfer: &mut Transfer<H>,
    options: &Options,
    ack: &Acknowledgement,
    now_us: u64,
) -> bool {
    let (mut sample, mut rack) = (None, transfer.rack);
    let mut arrived = |segment: &_| {
        if let Some(rtt_us) = rack.arrived(segment, now_us) {
            sample = Some(rtt_us);
        }
    };
    transfer.scoreboard.acknowledge(ack.number, &mut arrived);
    let mut is_repeat = false;
    if row.is(flags::SACK) {
        is_repeat = is_repeat_report(options, ack.number);
        // In their order, so that only what overtook others in the network counts as reordered. A report of a repetition changes nothing here:
        // it is before the others, or within one of them.
        for range in options.sacks.sorted(ack.number).list() {
            let is_ahead = is_from(range.0, ack.number) && is_from(ack.send_next, range.1);
            if is_after(range.1, range.0) && is_ahead {
                transfer.scoreboard.sack(*range, &mut arrived);
            }
        }
    }
    transfer.rack = rack;
    if let Some(rtt_us) = sample {
        row.rtt.sample(rtt_us);
    }
    if is_repeat {
        transfer.rack.was_needless();
    }
    is_repeat
}

/// Forgets the bytes that are acknowledged, and lets the congestion window grow. Returns the number of bytes.
fn advance<H: AsRef<[u8]>>(
    row: &mut Row,
    transfer: &mut Transfer<H>,
    ack: &Acknowledgement,
    now_us: u64,
) -> usize {
    row.unacknowledged = ack.number;
    (transfer.backoff, transfer.duplicates) = (0, 0);
    transfer.timer_us = NEVER;
    transfer.progress_us = now_us;
    // A window that is not used says nothing about the path.
    if ack.flight >= transfer.congestion.window / 2 {
        let bytes = ack.number.wrapping_sub(ack.first_unacknowledged);
        transfer.congestion.acknowledged(bytes, ack.segment_bytes);
    }
    let recovery = transfer.congestion.recovery;
    if recovery.is_some_and(|end| is_from(ack.number, end)) {
        transfer.congestion.recovery = None;
    }
    let until = match planted::is_planted(Fault::FreedTooMuch) {
        true => ack.number.wrapping_add(700),
        false => ack.number,
    };
    transfer.send.release(until)
}

/// Marks the segments that are lost. Returns whether there was one.
fn find_losses<H>(
    row: &Row,
    transfer: &mut Transfer<H>,
    ack: &Acknowledgement,
    now_us: u64,
) -> bool {
    let is_recovering = transfer.congestion.recovery.is_some();
    if row.is(flags::SACK) {
        let has_sacked = transfer.scoreboard.sacked() > 0 || ack.had_sacked;
        let is_waiting = transfer.rack.timeout_us.is_some();
        return (has_sacked || is_recovering || is_waiting)
            && transfer
                .rack
                .detect(&mut transfer.scoreboard, &row.rtt, is_recovering, now_us);
    }
    if ack.is_duplicate {
        transfer.duplicates = transfer.duplicates.saturating_add(1);
    }
    // The acknowledgement of a part in a recovery shows the next loss (RFC 6582).
    (transfer.duplicates == DUPLICATES && !is_recovering || ack.is_new() && is_recovering)
        && transfer
            .scoreboard
            .mark_lost(|segment| segment.start == ack.number)
}

/// Ends a loss probe that was acknowledged. If it repaired a loss, this loss counts as congestion (RFC 8985 §7.4).
fn end_loss_probe<H>(transfer: &mut Transfer<H>, ack: &Acknowledgement, is_repeat: bool) {
    let Some(probe) = transfer.loss_probe else {
        return;
    };
    if !is_from(ack.number, probe.end) {
        return;
    }
    if !probe.is_retransmission || is_repeat || ack.is_duplicate {
        transfer.loss_probe = None;
    } else if is_after(ack.number, probe.end) {
        transfer.loss_probe = None;
        let window = transfer.congestion.window;
        transfer
            .congestion
            .lost(window, ack.send_next, ack.segment_bytes);
    }
}
