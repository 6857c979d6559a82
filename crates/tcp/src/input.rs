//! Handles what arrives (RFC 9293 §3.10.7).

use crate::account::Account;
use crate::busy::Busy;
use crate::planted::{self, Fault};
use crate::row::{Conn, Failure, NONE, State, flags};
use crate::segment::{
    End, Head, Options, Packet, Refusal, Segment, TooBig, flag, header_bytes, parse,
};
use crate::sequence::{is_after, is_from};
use crate::table::{Device, Table};
use crate::timers::NEVER;

/// A peer's clock that was heard longer ago than this may have wrapped (RFC 7323 §5.5).
const CLOCK_GOOD_MS: u32 = 24 * 86_400_000;
/// Acknowledgements of nothing new after which a segment is lost, if the peer has no selective ones (RFC 5681 §3.2).
const DUPLICATES: u8 = 3;
/// The smallest packet that every link carries: what Linux assumes for IPv4, and RFC 8200 §5 for IPv6.
const PACKET_BYTES_MIN: (u32, u32) = (552, 1_280);

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Handles a packet, which begins with its IP header.
    pub fn receive<D: Device>(&mut self, packet: &[u8], now_us: u64, device: &mut D) {
        self.counters.received += 1;
        self.now_us = now_us;
        match parse(packet, self.config.verifies_checksums) {
            Ok(Packet::Segment(segment)) => {
                let id = self.find(&segment.head.to, &segment.head.from);
                self.handle_or_refuse(id, &segment, now_us, device);
            }
            Ok(Packet::TooBig(message)) => self.too_big(&message),
            Err(Refusal::Foreign) => self.counters.foreign += 1,
            Err(Refusal::Fragment) => self.counters.fragments += 1,
            Err(Refusal::Checksum) => self.counters.checksums += 1,
            Err(Refusal::Malformed) => self.counters.malformed += 1,
        }
    }

    /// Handles a segment that the caller has parsed, and whose connection it knows. It counts as a segment of no connection if this connection
    /// has other ends, as one does that is over and whose number was used again.
    pub fn receive_segment<D: Device>(
        &mut self,
        conn: Option<Conn>,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) {
        self.counters.received += 1;
        self.now_us = now_us;
        let ends = (segment.head.to, segment.head.from);
        let id = conn.map(|conn| conn.0).filter(|id| self.ends(*id) == ends);
        self.handle_or_refuse(id, segment, now_us, device);
    }

    fn handle_or_refuse<D: Device>(
        &mut self,
        id: Option<u32>,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) {
        match id {
            Some(id) => self.handle(id, segment, now_us, device),
            None => self.no_connection(segment, now_us, device),
        }
    }

    /// Handles a segment of a connection.
    pub(crate) fn handle<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) {
        match self.rows[id as usize].state {
            State::SynSent => return self.answered(id, segment, now_us, device),
            State::Closed => return self.spent(id, segment, now_us, device),
            State::TimeWait if self.is_successor(id, &segment.head, now_us) => {
                return self.begin_anew(id, segment, now_us, device);
            }
            _ => {}
        }
        let (mut head, data) = (segment.head, segment.data);
        if self.rows[id as usize].state == State::SynReceived {
            self.drop_known_syn(id, &mut head);
        }
        if self.is_probe(id, &head, data.len()) && self.is_clock_good(id, &head, now_us) {
            return self.acknowledge(id);
        }
        if !self.is_clock_good(id, &head, now_us) || !self.is_in_window(id, &head, data.len()) {
            self.counters.unacceptable += 1;
            if !head.has(flag::RST) {
                self.refuse_old(id, &head, data.len(), now_us);
            }
            return;
        }
        if head.has(flag::RST) {
            return self.reset_by_peer(id, &head, now_us);
        }
        if head.has(flag::SYN) {
            self.counters.unacceptable += 1;
            return self.challenge(id, now_us);
        }
        if !head.has(flag::ACK) {
            return;
        }
        let row = &mut self.rows[id as usize];
        // A peer that only acknowledges does not keep a connection that waits for its FIN and that nobody uses.
        if !(row.state == State::FinWait2 && row.is(flags::ORPHAN)) {
            row.heard_ms = (now_us / 1_000) as u32;
        }
        if row.state == State::SynReceived {
            let is_ours = head.acknowledged == row.send_next;
            if !is_ours {
                return self.refuse(segment, device);
            }
            self.established(id, &head, now_us);
            let row = &mut self.rows[id as usize];
            row.send_window = u32::from(head.window) << row.peer_shift();
        }
        if self.handle_ack(id, &head, data.len(), now_us) {
            self.take_clock(id, &head);
            self.handle_data(id, segment, now_us, device);
        }
    }

    /// Whether a segment only asks for an answer, as probes of silent connections and of closed windows do. Its answer is what the peer expects
    /// next, so two ends do not answer each other for ever, and no limit of answers is needed.
    fn is_probe(&self, id: u32, head: &Head, bytes: usize) -> bool {
        let row = &self.rows[id as usize];
        let others = flag::SYN | flag::FIN | flag::RST;
        bytes == 0
            && head.flags & (flag::ACK | others) == flag::ACK
            && row.state.is_synchronized()
            && head.sequence == row.receive_next.wrapping_sub(1)
            && head.acknowledged == row.send_next
    }

    /// Takes the peer's clock, to echo it. Only from a segment with a valid acknowledgement: with a clock of the future a forged one would
    /// make all that the peer sends old.
    fn take_clock(&mut self, id: u32, head: &Head) {
        let row = &mut self.rows[id as usize];
        if let Some((clock, _)) = head.options.timestamps
            && row.is(flags::TIMESTAMPS)
            && is_from(clock, row.peer_clock)
            && is_from(row.acknowledged, head.sequence)
        {
            row.peer_clock = clock;
        }
    }

    /// Removes the SYN from a segment that repeats it, as the peer of a simultaneous open does.
    fn drop_known_syn(&self, id: u32, head: &mut Head) {
        let next = head.sequence.wrapping_add(1);
        if head.has(flag::SYN | flag::ACK) && next == self.rows[id as usize].receive_next {
            head.sequence = next;
            head.flags &= !flag::SYN;
        }
    }

    /// Whether a segment is not older than what has arrived already (RFC 7323 §5.3).
    fn is_clock_good(&self, id: u32, head: &Head, now_us: u64) -> bool {
        let row = &self.rows[id as usize];
        if !row.is(flags::TIMESTAMPS) || head.has(flag::RST) {
            return true;
        }
        let silence_ms = ((now_us / 1_000) as u32).wrapping_sub(row.heard_ms);
        match head.options.timestamps {
            Some((clock, _)) => {
                is_from(clock, row.peer_clock)
                    || silence_ms > CLOCK_GOOD_MS
                    || planted::is_planted(Fault::OldClock)
            }
            None => false,
        }
    }

    /// Whether a segment has a sequence number within the window (RFC 9293 §3.4). A closed window lets pass what needs no room.
    fn is_in_window(&self, id: u32, head: &Head, bytes: usize) -> bool {
        let row = &self.rows[id as usize];
        let length = bytes as u32 + head.control();
        let (next, edge) = (row.receive_next, row.receive_edge);
        if head.sequence == next {
            return true;
        }
        let end = head.sequence.wrapping_add(length);
        if planted::is_planted(Fault::OldBytesAccepted)
            && bytes > 0
            && is_after(next, head.sequence)
        {
            return true;
        }
        let begins_inside = is_after(head.sequence, next) && is_after(edge, head.sequence);
        let reaches_in = length > 0 && !is_after(head.sequence, next) && is_after(end, next);
        begins_inside || reaches_in
    }

    /// Answers a segment outside the window, or an old one, with an acknowledgement. One with data or a FIN is a retransmission, whose sender
    /// waits for the acknowledgement.
    fn refuse_old(&mut self, id: u32, head: &Head, bytes: usize, now_us: u64) {
        if bytes == 0 && !head.has(flag::FIN) {
            return self.challenge(id, now_us);
        }
        self.counters.repeated += 1;
        let end = head.sequence.wrapping_add(bytes as u32);
        if bytes > 0 && is_from(self.rows[id as usize].receive_next, end) {
            self.note_repeat(id, (head.sequence, end));
        }
        self.acknowledge(id);
    }

    /// Answers a segment that is not acceptable with an acknowledgement. Only so many are answered in a second, so that two ends which disagree
    /// do not answer each other for ever (RFC 5961 §7).
    fn challenge(&mut self, id: u32, now_us: u64) {
        let second = now_us / 1_000_000;
        if self.challenges.0 != second {
            // Varied, so that the limit does not tell others how many were answered.
            let half = u64::from(self.config.challenges_per_s / 2);
            let varied = self.secret.hash(&second.to_be_bytes()) % (half + 1);
            self.challenges = (second, (half + varied) as u32);
        }
        if self.challenges.1 > 0 {
            self.challenges.1 -= 1;
            self.counters.challenges += 1;
            self.acknowledge(id);
        }
    }

    /// Handles a reset within the window. Only one with exactly the expected number ends the connection (RFC 5961 §3.2).
    fn reset_by_peer(&mut self, id: u32, head: &Head, now_us: u64) {
        let row = &self.rows[id as usize];
        if head.sequence != row.receive_next && !planted::is_planted(Fault::BlindReset) {
            self.counters.unacceptable += 1;
            return self.challenge(id, now_us);
        }
        // In TIME-WAIT a reset is ignored (RFC 1337).
        if row.state == State::TimeWait {
            return;
        }
        self.counters.resets_received += 1;
        let failure = match row.state {
            State::SynReceived => Failure::Refused,
            _ => Failure::Reset,
        };
        self.end(id, Some(failure));
    }

    /// Handles the acknowledgement, the window and the selective acknowledgements of a segment. `false` if the segment goes no further.
    fn handle_ack(&mut self, id: u32, head: &Head, bytes: usize, now_us: u64) -> bool {
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
        let has_sack = self.rows[id as usize].is(flags::SACK);
        let bytes = self.rows[id as usize].data_bytes();
        let ack = head.acknowledged;
        let row = &mut self.rows[id as usize];
        let (first, next) = (row.unacknowledged, row.send_next);
        let is_new = is_after(ack, first);
        let Some(busy) = self.busy.get_mut(row.busy as usize) else {
            return;
        };
        if busy.board.is_empty() {
            return;
        }
        let flight_before = busy.board.in_flight();
        let sacked_before = busy.board.sacked();
        let (mut sample, mut rack) = (None, busy.rack);
        let mut arrived = |segment: &_| {
            if let Some(rtt_us) = rack.arrived(segment, now_us) {
                sample = Some(rtt_us);
            }
        };
        busy.board.acknowledge(ack, &mut arrived);
        let mut is_repeat = false;
        if has_sack {
            is_repeat = is_repeat_report(&head.options, ack);
            // In their order, so that only what overtook others in the network counts as reordered. A report of a repetition changes nothing here:
            // it is before the others, or within one of them.
            for range in head.options.sacks.sorted(ack).list() {
                if is_after(range.1, range.0) && is_from(range.0, ack) && is_from(next, range.1) {
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
        if is_new {
            row.unacknowledged = ack;
            let until = if planted::is_planted(Fault::FreedTooMuch) {
                ack.wrapping_add(700)
            } else {
                ack
            };
            let freed = busy.send.release(until);
            if freed > 0 && !planted::is_planted(Fault::NeverReleased) {
                self.account.release(Conn(id), freed);
            }
            (busy.backoff, busy.duplicates) = (0, 0);
            busy.wait_us = NEVER;
            busy.progress_us = now_us;
            let is_limited = flight_before >= busy.congestion.window / 2;
            if is_limited {
                let acked = ack.wrapping_sub(first);
                busy.congestion.acknowledged(acked, bytes);
            }
            if busy
                .congestion
                .recovery
                .is_some_and(|end| is_from(ack, end))
            {
                busy.congestion.recovery = None;
            }
        }
        end_loss_probe(busy, ack, is_repeat, is_duplicate, next, bytes);
        let is_recovering = busy.congestion.recovery.is_some();
        let mut has_lost = false;
        if has_sack {
            if busy.board.sacked() > 0
                || sacked_before > 0
                || is_recovering
                || busy.rack.timeout_us.is_some()
            {
                let rtt = row.rtt;
                has_lost = busy
                    .rack
                    .detect(&mut busy.board, &rtt, is_recovering, now_us);
            }
        } else {
            if is_duplicate {
                busy.duplicates = busy.duplicates.saturating_add(1);
            }
            // The acknowledgement of a part in a recovery shows the next loss (RFC 6582).
            if busy.duplicates == DUPLICATES && !is_recovering || is_new && is_recovering {
                has_lost = busy.board.mark_lost(|segment| segment.start == ack);
            }
        }
        if has_lost {
            busy.congestion.lost(flight_before, next, bytes);
        }
        self.touch(id);
        if is_new {
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
                self.rows[id as usize].state = State::TimeWait;
                self.touch(id);
            }
            State::LastAck => self.end(id, None),
            _ => {}
        }
    }

    /// Handles the data and the FIN of a segment.
    fn handle_data<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) {
        let head = &segment.head;
        let (mut start, mut data) = (head.sequence, segment.data);
        if head.has(flag::SYN) {
            // A SYN that was removed above.
            start = start.wrapping_add(1);
        }
        let row = &self.rows[id as usize];
        let fin = head.has(flag::FIN);
        if data.is_empty() && !fin {
            return;
        }
        if !row.state.may_receive() {
            // Bytes behind the peer's FIN do not exist, and those before it came again.
            return self.acknowledge(id);
        }
        if row.is(flags::ORPHAN)
            && is_after(start.wrapping_add(data.len() as u32), row.receive_next)
        {
            // Nobody will read these bytes, so the peer must know that they are lost (RFC 9293 §3.6.1).
            self.refuse(segment, device);
            return self.end(id, Some(Failure::Reset));
        }
        let (next, edge) = (row.receive_next, row.receive_edge);
        let mut has_fin = fin;
        if is_after(next, start) && !planted::is_planted(Fault::OldBytesAccepted) {
            let known = next.wrapping_sub(start) as usize;
            if has_fin && known > data.len() || !has_fin && known >= data.len() {
                self.counters.repeated += 1;
                return self.acknowledge(id);
            }
            self.note_repeat(id, (start, next));
            data = data.get(known..).unwrap_or_default();
            start = next;
        }
        if planted::is_planted(Fault::OldBytesAccepted) && is_after(next, start) {
            start = next;
        }
        let room = if is_after(edge, start) {
            edge.wrapping_sub(start) as usize
        } else {
            0
        };
        if data.len() > room {
            self.counters.bytes_dropped += (data.len() - room) as u64;
            data = &data[..room];
            has_fin = false;
            self.acknowledge(id);
        }
        if start == next {
            self.take_in_order(id, data, now_us);
        } else {
            self.take_out_of_order(id, start, data, now_us);
        }
        if has_fin {
            let end = segment
                .head
                .sequence
                .wrapping_add(segment.data.len() as u32 + head.control() - 1);
            self.note_fin(id, end, now_us);
        }
        self.take_fin(id);
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
        let place = self.make_busy(id, now_us) as usize;
        let row = &mut self.rows[id as usize];
        let busy = &mut self.busy[place];
        let held = busy.receive.held() + data.len();
        let filled_gap = busy.receive.has_gaps();
        let count = busy.receive.append(row.receive_next, data);
        // The wait for what is missing begins again.
        busy.gap_us = NEVER;
        // Bytes that a range had already are not held twice.
        let twice = held - busy.receive.held();
        row.receive_next = row.receive_next.wrapping_add(count);
        let waiting = row.receive_next.wrapping_sub(row.acknowledged);
        let is_due = filled_gap
            || self.config.ack_delay_us == 0
            || waiting >= 2 * row.data_bytes()
            || busy.receive.unread() * 2 >= 1 << row.receive_log2;
        if !is_due && busy.ack_us == NEVER {
            busy.ack_us = now_us + u64::from(self.config.ack_delay_us);
        }
        if twice > 0 {
            self.account.release(Conn(id), twice);
        }
        if is_due {
            self.acknowledge(id);
        } else {
            self.touch(id);
        }
        self.list(id);
    }

    /// Charges bytes that are next. If there is no room for them, bytes out of order give way: the peer must keep what it has sent until all before
    /// it is acknowledged (RFC 2018 §8), and the stream does not go on without those that are next.
    fn charge_or_make_room(&mut self, id: u32, bytes: usize) -> bool {
        if self.account.charge(Conn(id), bytes) {
            return true;
        }
        let dropped = self
            .busy_of(id)
            .map_or(0, |busy| busy.receive.drop_ranges());
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
        let place = self.make_busy(id, now_us) as usize;
        let end = start.wrapping_add(data.len() as u32);
        let (new_start, new_end) = self.busy[place].receive.new_part(start, end);
        if !is_after(new_end, new_start) {
            self.counters.repeated += 1;
            return self.note_repeat(id, (start, end));
        }
        let from = new_start.wrapping_sub(start) as usize;
        let part = &data[from..from + new_end.wrapping_sub(new_start) as usize];
        let ranges = self.config.ranges;
        let is_kept = self.account.charge(Conn(id), part.len());
        if is_kept && !self.busy[place].receive.keep(new_start, part, ranges) {
            self.account.release(Conn(id), part.len());
            self.counters.bytes_dropped += part.len() as u64;
        } else if !is_kept {
            self.counters.bytes_dropped += part.len() as u64;
        }
    }

    /// Remembers bytes that came twice, to tell the peer (RFC 2883).
    fn note_repeat(&mut self, id: u32, range: (u32, u32)) {
        if let Some(busy) = self.busy_of(id) {
            busy.repeated = Some(range);
        }
    }

    fn note_fin(&mut self, id: u32, at: u32, now_us: u64) {
        let place = self.make_busy(id, now_us) as usize;
        self.busy[place].receive.fin = Some(at);
    }

    /// Takes the peer's FIN if all bytes before it have arrived.
    fn take_fin(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        let Some(busy) = self.busy.get_mut(row.busy as usize) else {
            return;
        };
        let is_next = busy.receive.fin == Some(row.receive_next)
            || busy.receive.fin.is_some() && planted::is_planted(Fault::EarlyEnd);
        if busy
            .receive
            .fin
            .is_some_and(|fin| is_after(row.receive_next, fin))
        {
            // Bytes behind it have arrived, so it was not the peer's.
            busy.receive.fin = None;
        }
        if !is_next {
            return;
        }
        busy.receive.fin = None;
        let dropped = busy.receive.drop_ranges();
        row.receive_next = row.receive_next.wrapping_add(1);
        row.set(flags::PEER_FIN);
        row.state = match row.state {
            State::Established => State::CloseWait,
            State::FinWait1 => State::Closing,
            State::FinWait2 => State::TimeWait,
            state => state,
        };
        if dropped > 0 {
            self.account.release(Conn(id), dropped);
        }
        self.acknowledge(id);
        self.list(id);
    }

    /// Handles a message that a packet of ours was too big. It must quote a sequence number that is in flight, so a stranger must guess one
    /// (RFC 5927 §4).
    fn too_big(&mut self, message: &TooBig) {
        let Some(id) = self.find(&message.from, &message.to) else {
            return;
        };
        let headers = header_bytes(message.to, &Options::default()) as u32;
        let least = match End::ip(&message.to) {
            core::net::IpAddr::V4(_) => PACKET_BYTES_MIN.0,
            core::net::IpAddr::V6(_) => PACKET_BYTES_MIN.1,
        };
        let bytes = message.packet_bytes.max(least) - headers;
        let row = &mut self.rows[id as usize];
        let is_in_flight = is_from(message.sequence, row.unacknowledged)
            && is_after(row.send_next, message.sequence);
        if !is_in_flight || bytes >= row.segment_bytes.into() {
            return;
        }
        row.segment_bytes = bytes as u16;
        let data_bytes = row.data_bytes();
        if let Some(busy) = self.busy_of(id) {
            // This is no sign of congestion.
            busy.board.mark_lost(|segment| segment.len() > data_bytes);
            self.touch(id);
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

/// Ends a loss probe that was acknowledged. If it repaired a loss, this loss counts as congestion (RFC 8985 §7.4).
fn end_loss_probe<H>(
    busy: &mut Busy<H>,
    ack: u32,
    is_repeat: bool,
    is_duplicate: bool,
    next: u32,
    bytes: u32,
) {
    let Some(probe) = busy.loss_probe else {
        return;
    };
    if !is_from(ack, probe.end) {
        return;
    }
    if !probe.is_again || is_repeat || is_duplicate {
        busy.loss_probe = None;
    } else if is_after(ack, probe.end) {
        busy.loss_probe = None;
        let in_flight = busy.congestion.window;
        busy.congestion.lost(in_flight, next, bytes);
    }
}
