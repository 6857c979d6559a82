//! The acknowledgement, the window and the selective acknowledgements of a segment that is acceptable (RFC 9293 §3.10.7.4, fifth step).
//!
//! Invariants: the first number that is not acknowledged only grows, and never beyond what was sent. Bytes leave the send buffer, and the account,
//! only below it.

use crate::account::Account;
use crate::busy::Busy;
use crate::packet::{Head, Options};
use crate::planted::{self, Fault};
use crate::row::{Conn, NONE, Row, State, flags};
use crate::sequence::{is_after, is_from};
use crate::table::Table;
use crate::timers::NEVER;

/// Acknowledgements of nothing new after which a segment is lost, if the peer has no selective ones (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;

/// What an acknowledgement says, and what was known before it.
struct News {
    /// What it acknowledges.
    ack: u32,
    /// The first number that was not acknowledged, and the next one to send.
    first: u32,
    next: u32,
    /// The bytes of data of a full segment.
    segment_bytes: u32,
    /// Whether it repeats the acknowledgement before it, without data and with the same window.
    is_duplicate: bool,
    /// The bytes that were in the network.
    flight: u32,
    /// Whether segments were selectively acknowledged.
    had_sacked: bool,
}

impl News {
    /// Whether it acknowledges something for the first time.
    fn is_new(&self) -> bool {
        is_after(self.ack, self.first)
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
        if self.rows[id as usize].busy != NONE {
            let is_duplicate = ack == first && bytes == 0 && window == window_before;
            self.take_acks(id, head, is_duplicate, now_us);
        }
        if window > window_before && self.rows[id as usize].busy != NONE {
            self.reopened(id, window_before);
        }
        self.after_ack(id);
        self.rows[id as usize].state != State::Closed
    }

    /// The peer's window has grown. What was sent while it was closed has been dropped, so it is sent again without a wait for the timeout.
    fn reopened(&mut self, id: u32, window_before: u32) {
        let bytes = self.rows[id as usize].data_bytes();
        if let Some(busy) = self.busy_of(id)
            && busy.backoff > 0
            && !busy.board.is_empty()
            && window_before < bytes
        {
            busy.board.forget();
            (busy.backoff, busy.wait_us) = (0, NEVER);
        }
        self.touch(id);
    }

    /// Takes the peer's window from a segment that is not older than the one that set it (RFC 9293 §3.10.7.4).
    fn take_window(&mut self, id: u32, head: &Head, is_new: bool) {
        let row = &mut self.rows[id as usize];
        let window = u32::from(head.window) << row.peer_shift();
        // Of two segments with the same numbers the one with the larger window was sent later. After a timeout this is the answer to a
        // retransmission: a peer without memory takes back its window.
        let has_timed_out = self
            .busy
            .get(row.busy as usize)
            .is_some_and(|busy| busy.backoff > 0);
        let is_later = is_after(head.sequence, row.window_set_by)
            || head.sequence == row.window_set_by && (window > row.send_window || has_timed_out);
        if is_new || is_later {
            row.send_window = window;
            row.window_set_by = head.sequence;
        }
        if let Some(busy) = self.busy_of(id) {
            busy.largest_window = busy.largest_window.max(window);
        }
    }

    /// Takes from the scoreboard what has arrived, finds what is lost, and adjusts the congestion window.
    fn take_acks(&mut self, id: u32, head: &Head, is_duplicate: bool, now_us: u64) {
        let row = &mut self.rows[id as usize];
        let Some(busy) = self.busy.get_mut(row.busy as usize) else {
            return;
        };
        if busy.board.is_empty() {
            return;
        }
        let news = News {
            ack: head.acknowledged,
            first: row.unacknowledged,
            next: row.send_next,
            segment_bytes: row.data_bytes(),
            is_duplicate,
            flight: busy.board.in_flight(),
            had_sacked: busy.board.sacked() > 0,
        };
        let is_repeat = take_arrivals(row, busy, &head.options, &news, now_us);
        if news.is_new() {
            let freed = advance(row, busy, &news, now_us);
            if freed > 0 && !planted::is_planted(Fault::NeverReleased) {
                self.account.release(Conn(id), freed);
            }
        }
        end_loss_probe(busy, &news, is_repeat);
        if find_losses(row, busy, &news, now_us) {
            let segment_bytes = news.segment_bytes;
            busy.congestion.lost(news.flight, news.next, segment_bytes);
        }
        self.touch(id);
        if news.is_new() {
            self.list(id);
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
                self.touch(id);
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
    busy: &mut Busy<H>,
    options: &Options,
    news: &News,
    now_us: u64,
) -> bool {
    let (mut sample, mut rack) = (None, busy.rack);
    let mut arrived = |segment: &_| {
        if let Some(rtt_us) = rack.arrived(segment, now_us) {
            sample = Some(rtt_us);
        }
    };
    busy.board.acknowledge(news.ack, &mut arrived);
    let mut is_repeat = false;
    if row.is(flags::SACK) {
        is_repeat = is_repeat_report(options, news.ack);
        // In their order, so that only what overtook others in the network counts as reordered. A report of a repetition changes nothing here:
        // it is before the others, or within one of them.
        for range in options.sacks.sorted(news.ack).list() {
            let is_ahead = is_from(range.0, news.ack) && is_from(news.next, range.1);
            if is_after(range.1, range.0) && is_ahead {
                busy.board.sack(*range, &mut arrived);
            }
        }
    }
    busy.rack = rack;
    if let Some(rtt_us) = sample {
        row.rtt.sample(rtt_us);
    }
    if is_repeat {
        busy.rack.was_needless();
    }
    is_repeat
}

/// Forgets the bytes that are acknowledged, and lets the congestion window grow. Returns the number of bytes.
fn advance<H: AsRef<[u8]>>(row: &mut Row, busy: &mut Busy<H>, news: &News, now_us: u64) -> usize {
    row.unacknowledged = news.ack;
    (busy.backoff, busy.duplicates) = (0, 0);
    busy.wait_us = NEVER;
    busy.progress_us = now_us;
    // A window that is not used says nothing about the path.
    if news.flight >= busy.congestion.window / 2 {
        let bytes = news.ack.wrapping_sub(news.first);
        busy.congestion.acknowledged(bytes, news.segment_bytes);
    }
    let recovery = busy.congestion.recovery;
    if recovery.is_some_and(|end| is_from(news.ack, end)) {
        busy.congestion.recovery = None;
    }
    let until = match planted::is_planted(Fault::FreedTooMuch) {
        true => news.ack.wrapping_add(700),
        false => news.ack,
    };
    busy.send.release(until)
}

/// Marks the segments that are lost. Returns whether there was one.
fn find_losses<H>(row: &Row, busy: &mut Busy<H>, news: &News, now_us: u64) -> bool {
    let is_recovering = busy.congestion.recovery.is_some();
    if row.is(flags::SACK) {
        let has_sacked = busy.board.sacked() > 0 || news.had_sacked;
        let is_waiting = busy.rack.timeout_us.is_some();
        return (has_sacked || is_recovering || is_waiting)
            && busy
                .rack
                .detect(&mut busy.board, &row.rtt, is_recovering, now_us);
    }
    if news.is_duplicate {
        busy.duplicates = busy.duplicates.saturating_add(1);
    }
    // The acknowledgement of a part in a recovery shows the next loss (RFC 6582).
    (busy.duplicates == DUPLICATES && !is_recovering || news.is_new() && is_recovering)
        && busy.board.mark_lost(|segment| segment.start == news.ack)
}

/// Ends a loss probe that was acknowledged. If it repaired a loss, this loss counts as congestion (RFC 8985 §7.4).
fn end_loss_probe<H>(busy: &mut Busy<H>, news: &News, is_repeat: bool) {
    let Some(probe) = busy.loss_probe else {
        return;
    };
    if !is_from(news.ack, probe.end) {
        return;
    }
    if !probe.is_again || is_repeat || news.is_duplicate {
        busy.loss_probe = None;
    } else if is_after(news.ack, probe.end) {
        busy.loss_probe = None;
        let window = busy.congestion.window;
        busy.congestion.lost(window, news.next, news.segment_bytes);
    }
}
