//! How connections begin: cookies for the peers of a listener, and SYNs of our own.

use crate::account::Account;
use crate::cookie::{self, Handshake, Verdict};
use crate::packet::{End, Head, Options, Segment, flag};
use crate::planted::{self, Fault};
use crate::row::{Conn, Failure, State, flags};
use crate::scoreboard::{SentSegment, mark};
use crate::sequence::{is_after, is_from};
use crate::table::{Device, Table};

/// The maximum segment size of a peer that names none (RFC 9293 §3.7.1).
const SEGMENT_BYTES_DEFAULT: u16 = 536;

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Begins a connection from a local end, whose address was added, to a peer. `None` if there is no room, or if these ends have a
    /// connection.
    pub fn connect(&mut self, local: End, remote: End, token: u64, now_us: u64) -> Option<Conn> {
        if let Some(old) = self.find(&local, &remote) {
            if !matches!(
                self.rows[old as usize].state,
                State::TimeWait | State::Closed
            ) {
                return None;
            }
            self.forget(old);
        }
        let id = self.add(&local, &remote)?;
        let number = self.first_number(&local, &remote, now_us);
        let own_bytes = self.own_segment_bytes(&remote);
        let row = &mut self.rows[id as usize];
        row.token = token;
        row.state = State::SynSent;
        row.unacknowledged = number;
        row.send_next = number.wrapping_add(1);
        row.segment_bytes = own_bytes;
        row.heard_ms = (now_us / 1_000) as u32;
        row.set(flags::OPEN | flags::READ);
        self.queue_syn(id, now_us);
        Some(Conn(id))
    }

    /// The first sequence number of a connection (RFC 6528): those of the same ends grow with time, and no stranger can guess them.
    fn first_number(&self, local: &End, remote: &End, now_us: u64) -> u32 {
        let mut bytes = [0; 37];
        bytes[..16].copy_from_slice(&local.address.octets());
        bytes[16..32].copy_from_slice(&remote.address.octets());
        bytes[32..34].copy_from_slice(&local.port.to_be_bytes());
        bytes[34..36].copy_from_slice(&remote.port.to_be_bytes());
        // Other hashes with this key have other lengths.
        let hash = self.secret.hash(&bytes) as u32;
        hash.wrapping_add((now_us / 4) as u32)
    }

    /// Puts our SYN among the segments to send.
    fn queue_syn(&mut self, id: u32, now_us: u64) {
        let place = self.ensure_transfer(id, now_us) as usize;
        let start = self.rows[id as usize].unacknowledged;
        self.transfers[place].scoreboard.push(SentSegment {
            start,
            end: start.wrapping_add(1),
            at_us: now_us,
            marks: mark::SYN | mark::UNSENT,
        });
        // It is sent as all segments that are still to be sent.
        self.transfers[place].scoreboard.mark_lost(|_| true);
        self.queue_to_send(id);
    }

    /// The largest segment that our link takes.
    fn own_segment_bytes(&self, peer: &End) -> u16 {
        let headers = crate::packet::header_bytes(*peer, &Options::default());
        self.config.packet_bytes - headers as u16
    }

    /// The shift of our windows: the smallest that lets the window name the whole buffer.
    pub(crate) fn own_shift(&self, receive_log2: u8) -> u8 {
        receive_log2.saturating_sub(16)
    }

    /// The options of our SYN.
    pub(crate) fn syn_options(&self, id: u32, now_us: u64) -> Options {
        let row = &self.rows[id as usize];
        let (_, remote) = self.ends(id);
        // In answer to a SYN only what the peer has offered.
        let answers = row.state == State::SynReceived;
        let has_clock = !answers || row.is(flags::TIMESTAMPS);
        let segment_bytes = Some(self.own_segment_bytes(&remote));
        if !self.config.uses_extensions {
            return Options {
                segment_bytes,
                ..Options::default()
            };
        }
        Options {
            segment_bytes,
            window_shift: Some(self.own_shift(row.receive_log2)),
            sack_permitted: !answers || row.is(flags::SACK),
            timestamps: has_clock.then(|| (self.clock(now_us), row.peer_clock)),
            ..Options::default()
        }
    }

    /// The options of a peer's SYN that this table makes use of.
    fn accepted(&self, options: &Options) -> Options {
        if self.config.uses_extensions {
            return *options;
        }
        Options {
            segment_bytes: options.segment_bytes,
            ..Options::default()
        }
    }

    /// Handles a segment that belongs to no connection. Returns the connection that it has begun.
    pub(crate) fn no_connection<D: Device>(
        &mut self,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) -> Option<Conn> {
        let head = &segment.head;
        let is_ours = |end: &End| self.local_index(end.address).is_some();
        // No other machine has an address of ours.
        if head.has(flag::RST) || !is_ours(&head.to) || is_ours(&head.from) {
            return None;
        }
        let listener = self
            .listeners
            .iter()
            .position(|listener| listener.port == head.to.port && listener.is_open);
        let Some(listener) = listener else {
            self.refuse(segment, device);
            return None;
        };
        match (head.has(flag::SYN), head.has(flag::ACK)) {
            (true, false) if !head.has(flag::FIN) => self.send_cookie(head, now_us, device),
            (false, true) => match cookie::check(self.secret, head, now_us) {
                Verdict::Good(handshake) => {
                    return self.third_packet(segment, listener, &handshake, now_us, device);
                }
                Verdict::Later if !planted::is_planted(Fault::AnyCookie) => {}
                _ if planted::is_planted(Fault::AnyCookie) => {
                    let any = Handshake {
                        segment_bytes: 1_400,
                        window_shift: None,
                        sack: false,
                        timestamp: None,
                    };
                    return self.third_packet(segment, listener, &any, now_us, device);
                }
                _ => {
                    self.counters.cookies_refused += 1;
                    self.refuse(segment, device);
                }
            },
            (true, true) => self.refuse(segment, device),
            _ => {}
        }
        None
    }

    /// Answers a segment with a reset (RFC 9293 §3.10.7.1).
    pub(crate) fn refuse<D: Device>(&mut self, segment: &Segment<'_>, device: &mut D) {
        let head = &segment.head;
        let length = segment.data.len() as u32 + head.control();
        let (sequence, acknowledged, flags) = if head.has(flag::ACK) {
            (head.acknowledged, 0, flag::RST)
        } else {
            (0, head.sequence.wrapping_add(length), flag::RST | flag::ACK)
        };
        self.counters.resets_sent += 1;
        let reset = Head {
            from: head.to,
            to: head.from,
            sequence,
            acknowledged,
            flags,
            window: 0,
            options: Options::default(),
        };
        self.transmit(device, None, &reset, 0, |_, _| {});
    }

    fn send_cookie<D: Device>(&mut self, syn: &Head, now_us: u64, device: &mut D) {
        let clock = self.clock(now_us);
        let syn = &Head {
            options: self.accepted(&syn.options),
            ..*syn
        };
        let (sequence, timestamp) = cookie::make(self.secret, syn, clock, now_us);
        let timestamps = syn.options.timestamps.map(|(value, _)| (timestamp, value));
        let log2 = self.config.receive_log2;
        // Without timestamps the cookie has no place for these two.
        let shift = timestamps.and(syn.options.window_shift);
        let answer = Head {
            from: syn.to,
            to: syn.from,
            sequence,
            acknowledged: syn.sequence.wrapping_add(1),
            flags: flag::SYN | flag::ACK,
            window: (1u32 << log2).min(u16::MAX.into()) as u16,
            options: Options {
                segment_bytes: Some(self.own_segment_bytes(&syn.from)),
                window_shift: shift.map(|_| self.own_shift(log2)),
                sack_permitted: timestamps.is_some() && syn.options.sack_permitted,
                timestamps,
                ..Options::default()
            },
        };
        self.counters.cookies_sent += 1;
        self.transmit(device, None, &answer, 0, |_, _| {});
    }

    /// Makes a connection from the third packet of a handshake, and returns it. If there is no room the packet is dropped, and the peer sends it
    /// again.
    fn third_packet<D: Device>(
        &mut self,
        segment: &Segment<'_>,
        listener: usize,
        handshake: &Handshake,
        now_us: u64,
        device: &mut D,
    ) -> Option<Conn> {
        let head = &segment.head;
        let is_full = self.listeners[listener].queue.len() >= self.config.backlog;
        let id = if is_full {
            None
        } else {
            self.add(&head.to, &head.from)
        };
        let Some(id) = id else {
            self.counters.overflows += 1;
            return None;
        };
        let own_bytes = self.own_segment_bytes(&head.from);
        let log2 = self.config.receive_log2;
        let own_shift = self.own_shift(log2);
        let least = self.config.segment_bytes_min;
        let row = &mut self.rows[id as usize];
        row.state = State::Established;
        row.unacknowledged = head.acknowledged;
        row.send_next = head.acknowledged;
        row.first = head.sequence.wrapping_sub(1) as u16;
        row.receive_next = head.sequence;
        row.acknowledged = head.sequence;
        row.receive_edge = head
            .sequence
            .wrapping_add((1u32 << log2).min(u16::MAX.into()));
        row.window_set_by = head.sequence;
        row.segment_bytes = handshake.segment_bytes.max(least).min(own_bytes);
        row.heard_ms = (now_us / 1_000) as u32;
        row.set(flags::QUEUED | flags::BY_COOKIE);
        if let Some(clock) = handshake.timestamp {
            row.peer_clock = clock;
            row.set(flags::TIMESTAMPS);
        }
        if handshake.sack {
            row.set(flags::SACK);
        }
        if let Some(shift) = handshake.window_shift {
            row.shifts = shift << 4 | own_shift;
        }
        row.send_window = u32::from(head.window) << row.peer_shift();
        self.listeners[listener].queue.push_back(id);
        self.counters.opened += 1;
        self.handle(id, segment, now_us, device);
        Some(Conn(id))
    }

    /// Handles a segment of a connection that is over, and whose cookie must not be accepted again: an old copy of the third packet would
    /// begin the connection once more, with the same data.
    pub(crate) fn spent<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) -> Option<Conn> {
        let head = &segment.head;
        if self.is_successor(id, head, now_us) {
            return self.begin_anew(id, segment, now_us, device);
        }
        // A SYN is an old copy, which the peer has no use for, or that of another machine behind the same address, whose numbers are smaller. The
        // latter learns at once that it needs another port: the cookie of the connection before must not become good again.
        if !head.has(flag::RST) {
            self.refuse(segment, device);
        }
        None
    }

    /// Handles a segment in the state SYN-SENT (RFC 9293 §3.10.7.3).
    pub(crate) fn answered<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) {
        let head = &segment.head;
        let row = &mut self.rows[id as usize];
        let has_ack = head.has(flag::ACK);
        if has_ack && head.acknowledged != row.send_next {
            if !head.has(flag::RST) {
                self.refuse(segment, device);
            }
            return;
        }
        if head.has(flag::RST) {
            if has_ack {
                self.counters.resets_received += 1;
                self.end(id, Some(Failure::Refused));
            }
            return;
        }
        if !head.has(flag::SYN) {
            return;
        }
        let own_shift = self.own_shift(self.rows[id as usize].receive_log2);
        let accepted = self.accepted(&head.options);
        let least = self.config.segment_bytes_min;
        let row = &mut self.rows[id as usize];
        let options = &accepted;
        row.receive_next = head.sequence.wrapping_add(1);
        row.receive_edge = row.receive_next;
        row.acknowledged = row.receive_next;
        row.heard_ms = (now_us / 1_000) as u32;
        let bytes = options.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT);
        row.segment_bytes = row.segment_bytes.min(bytes.max(least));
        if let Some((clock, _)) = options.timestamps {
            row.peer_clock = clock;
            row.set(flags::TIMESTAMPS);
        }
        if options.sack_permitted {
            row.set(flags::SACK);
        }
        if let Some(shift) = options.window_shift {
            row.shifts = shift << 4 | own_shift;
        }
        // The window of a SYN is never shifted.
        row.send_window = head.window.into();
        row.window_set_by = head.sequence;
        if has_ack {
            self.established(id, head, now_us);
            self.acknowledge(id);
        } else {
            // Both ends have sent a SYN at the same time. Ours is sent again, with an acknowledgement.
            row.state = State::SynReceived;
            if let Some(transfer) = self.transfer_of(id) {
                transfer.scoreboard.mark_lost(|_| true);
            }
            self.queue_to_send(id);
        }
    }

    /// Our SYN was acknowledged.
    pub(crate) fn established(&mut self, id: u32, head: &Head, now_us: u64) {
        let row = &mut self.rows[id as usize];
        row.state = if row.is(flags::FIN) {
            State::FinWait1
        } else {
            State::Established
        };
        row.unacknowledged = head.acknowledged;
        let bytes = row.data_bytes();
        let window = row.send_window;
        let mut rtt = row.rtt;
        if let Some(transfer) = self.transfer_of(id) {
            transfer
                .scoreboard
                .acknowledge(head.acknowledged, |segment| {
                    if !segment.is(mark::RETRANSMITTED) {
                        rtt.sample(now_us.saturating_sub(segment.at_us).min(1 << 30) as u32);
                    }
                });
            let was_lost = transfer.backoff > 0;
            // The window was computed for the largest segment that our link takes (RFC 6928 §2).
            transfer.congestion.window = match was_lost {
                true => bytes,
                false => crate::congestion::initial_window(bytes),
            };
            transfer.backoff = 0;
            transfer.timer_us = crate::timers::NEVER;
            transfer.largest_window = window;
        }
        self.rows[id as usize].rtt = rtt;
        self.counters.opened += 1;
        self.queue_to_send(id);
        self.queue_event(id);
    }

    /// Whether a segment begins a new connection between the ends of one that is over (RFC 6191): a SYN, or the third packet of its handshake.
    pub(crate) fn is_successor(&self, id: u32, head: &Head, now_us: u64) -> bool {
        let row = &self.rows[id as usize];
        let is_syn = head.has(flag::SYN);
        let first = head.sequence.wrapping_sub(u32::from(!is_syn));
        let is_newer = match (head.options.timestamps, row.is(flags::TIMESTAMPS)) {
            (Some((clock, _)), true) if clock != row.peer_clock => is_after(clock, row.peer_clock),
            _ => is_from(first, row.receive_next),
        };
        // A retransmission of the old third packet has a new clock.
        let is_old = row.is(flags::BY_COOKIE)
            && first as u16 == row.first
            && !is_from(first, row.receive_next);
        let is_good =
            || !is_old && matches!(cookie::check(self.secret, head, now_us), Verdict::Good(_));
        is_newer && !head.has(flag::RST) && is_syn != head.has(flag::ACK) && (is_syn || is_good())
    }

    /// Handles such a segment. The old connection is forgotten with the third packet and not with the SYN: anybody can send one, and after it the
    /// old cookie would be good again.
    pub(crate) fn begin_anew<D: Device>(
        &mut self,
        id: u32,
        segment: &Segment<'_>,
        now_us: u64,
        device: &mut D,
    ) -> Option<Conn> {
        if !segment.head.has(flag::SYN) {
            self.forget(id);
        }
        self.no_connection(segment, now_us, device)
    }
}
