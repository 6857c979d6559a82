//! What arrives: which connection a packet belongs to, and whether a segment is acceptable (RFC 9293 §3.10.7).
//!
//! Invariant: a segment changes a connection only if its number is in the window, its clock is not older than what has arrived, and it
//! acknowledges what can have been in flight.

use crate::account::Account;
use crate::packet::{Head, Packet, Refusal, Segment, flag, parse};
use crate::planted::{self, Fault};
use crate::row::{Conn, Failure, State, flags};
use crate::sequence::{is_after, is_from};
use crate::table::{Device, Table};

/// A peer's clock that was heard longer ago than this may have wrapped (RFC 7323 §5.5).
const CLOCK_GOOD_MS: u32 = 24 * 86_400_000;

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Handles a packet, which begins with its IP header. Returns the connection that it has begun, or whose sequence numbers, acknowledgement and
    /// clock it has right: only the peer, and who can read its packets, knows them.
    pub fn receive<D: Device>(
        &mut self,
        packet: &[u8],
        now_us: u64,
        device: &mut D,
    ) -> Option<Conn> {
        self.counters.received += 1;
        self.now_us = now_us;
        match parse(packet, self.config.checksums) {
            Ok(Packet::Segment(segment)) => {
                let id = self.find(&segment.head.to, &segment.head.from);
                return self.handle_or_refuse(id, &segment, now_us, device);
            }
            Ok(Packet::TooBig(message)) => self.too_big(&message),
            Err(Refusal::Foreign) => self.counters.foreign += 1,
            Err(Refusal::Fragment) => self.counters.fragments += 1,
            Err(Refusal::Checksum) => self.counters.checksums += 1,
            Err(Refusal::Malformed) => self.counters.malformed += 1,
        }
        None
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
    ) -> Option<Conn> {
        match id {
            Some(id) => self.handle(id, segment, now_us, device),
            None => self.no_connection(segment, now_us, device),
        }
    }

    /// Handles a segment of a connection. Returns as [`Table::receive`].
    pub(crate) fn handle<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) -> Option<Conn> {
        match self.rows[id as usize].state {
            State::SynSent => {
                self.answered(id, segment, now_us, device);
                return None;
            }
            State::Closed => return self.spent(id, segment, now_us, device),
            State::TimeWait if self.is_successor(id, &segment.head, now_us) => {
                return self.begin_anew(id, segment, now_us, device);
            }
            State::TimeWait if segment.head.flags & (flag::SYN | flag::ACK) == flag::SYN => {
                return self.spent(id, segment, now_us, device);
            }
            _ => {}
        }
        let (mut head, data) = (segment.head, segment.data);
        if self.rows[id as usize].state == State::SynReceived {
            self.drop_known_syn(id, &mut head);
        }
        if self.is_probe(id, &head, data.len()) && self.is_clock_good(id, &head, now_us) {
            self.acknowledge(id);
            return None;
        }
        if !self.is_clock_good(id, &head, now_us) || !self.is_in_window(id, &head, data.len()) {
            self.counters.unacceptable += 1;
            if !head.has(flag::RST) {
                self.refuse_old(id, &head, data.len(), now_us);
            }
            return None;
        }
        if head.has(flag::RST) {
            self.reset_by_peer(id, &head, now_us);
            return None;
        }
        if head.has(flag::SYN) {
            self.counters.unacceptable += 1;
            self.acknowledge(id);
            return None;
        }
        if !head.has(flag::ACK) {
            return None;
        }
        let row = &self.rows[id as usize];
        // A peer that only acknowledges does not keep a connection that waits for its FIN and that nobody uses.
        let counts_as_heard = !(row.state == State::FinWait2 && row.is(flags::ORPHAN));
        if row.state == State::SynReceived {
            let is_ours = head.acknowledged == row.send_next;
            if !is_ours {
                self.refuse(segment, device);
                return None;
            }
            self.established(id, &head, now_us);
            let row = &mut self.rows[id as usize];
            row.send_window = u32::from(head.window) << row.peer_shift();
        }
        if !self.handle_ack(id, &head, data.len(), now_us) {
            return None;
        }
        self.take_clock(id, &head);
        self.handle_data(id, segment, now_us, device);
        // At last, since the congestion window of the answer to this segment depends on the pause before it.
        if counts_as_heard {
            self.rows[id as usize].heard_ms = (now_us / 1_000) as u32;
        }
        Some(Conn(id))
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
    ///
    /// One with a SYN is answered without a limit: after a crash of the peer, or of many, only the reset that it sends in return ends the old
    /// connection. It has no answer that would have an answer again.
    fn refuse_old(&mut self, id: u32, head: &Head, bytes: usize, now_us: u64) {
        if head.has(flag::SYN) {
            return self.acknowledge(id);
        }
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

    /// Answers a segment that is not acceptable with an acknowledgement. The number of such answers in a second is limited, so that two ends
    /// which disagree do not answer each other for ever (RFC 5961 §7).
    pub(crate) fn challenge(&mut self, id: u32, now_us: u64) {
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
}
