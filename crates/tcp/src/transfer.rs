//! The entry of a busy connection in the side table: bytes on their way, and timers.

use crate::congestion::Congestion;
use crate::rack::Rack;
use crate::reassembly::ReceiveBuffer;
use crate::scoreboard::Scoreboard;
use crate::send_buffer::SendBuffer;
use crate::timers::NEVER;

/// What happens at the time `timer_us` if nothing is acknowledged before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// All that is in flight counts as lost (RFC 6298).
    Timeout,
    /// The last segment is sent again, so that its acknowledgement shows what is lost (RFC 8985 §7).
    LossProbe,
    /// The peer is asked for its window (RFC 9293 §3.8.6.1).
    WindowProbe,
}

/// A loss probe that was sent.
#[derive(Clone, Copy, Debug)]
pub struct LossProbe {
    /// It is over when this sequence number is acknowledged.
    pub end: u32,
    /// Whether it has sent a segment again, and not a new one.
    pub is_retransmission: bool,
}

/// The state of a connection that has bytes on their way, or a timer.
#[derive(Debug)]
pub struct Transfer<H> {
    /// The row, or [`NONE`](crate::row::NONE) if the entry is free.
    pub row: u32,
    /// The bytes to send.
    pub send: SendBuffer<H>,
    /// The received bytes.
    pub receive: ReceiveBuffer,
    /// Bytes of the entry itself and of its lists that are charged.
    pub charged: u32,
    /// The segments in flight.
    pub scoreboard: Scoreboard,
    pub congestion: Congestion,
    pub rack: Rack,
    pub loss_probe: Option<LossProbe>,
    /// What happens at `timer_us`.
    pub timer: Timer,
    pub timer_us: u64,
    /// When a delayed acknowledgement is due.
    pub delayed_ack_us: u64,
    /// When the earliest entry among the timers comes out.
    pub queued_us: u64,
    /// Timeouts in a row, or probes of a closed window in a row.
    pub backoff: u8,
    /// Acknowledgements in a row that acknowledge nothing new.
    pub duplicates: u8,
    /// When the peer last acknowledged something new, or the entry began.
    pub progress_us: u64,
    /// The peer must acknowledge all before `ack_deadline_end` by this time.
    pub ack_deadline_us: u64,
    pub ack_deadline_end: u32,
    /// When bytes out of order are dropped.
    pub gap_deadline_us: u64,
    /// The largest window that the peer has offered since the entry began.
    pub largest_window: u32,
    /// Bytes that have arrived twice, to report them (RFC 2883).
    pub repeated: Option<(u32, u32)>,
}

impl<H: AsRef<[u8]>> Transfer<H> {
    /// An entry for a row.
    pub fn new(row: u32, next: u32, congestion: Congestion, now_us: u64) -> Transfer<H> {
        Transfer {
            row,
            send: SendBuffer::new(next),
            receive: ReceiveBuffer::default(),
            charged: 0,
            scoreboard: Scoreboard::default(),
            congestion,
            rack: Rack::default(),
            loss_probe: None,
            timer: Timer::Timeout,
            timer_us: NEVER,
            delayed_ack_us: NEVER,
            queued_us: NEVER,
            backoff: 0,
            duplicates: 0,
            progress_us: now_us,
            ack_deadline_us: NEVER,
            ack_deadline_end: next,
            gap_deadline_us: NEVER,
            largest_window: 0,
            repeated: None,
        }
    }

    /// Bytes of the entry itself and of its lists: what it takes beside the data.
    pub fn own_bytes(&self) -> u32 {
        let lists =
            self.scoreboard.list_bytes() + self.receive.list_bytes() + self.send.list_bytes();
        (size_of::<Transfer<H>>() + lists) as u32
    }

    /// Whether nothing is under way, so that the entry can go.
    pub fn is_idle(&self) -> bool {
        self.scoreboard.is_empty()
            && self.send.len() == 0
            && self.receive.held() == 0
            && self.receive.fin.is_none()
            && self.delayed_ack_us == NEVER
    }

    /// Stops all timers.
    pub fn stop_timers(&mut self) {
        (self.timer_us, self.delayed_ack_us) = (NEVER, NEVER);
        (self.ack_deadline_us, self.gap_deadline_us) = (NEVER, NEVER);
        self.rack.timeout_us = None;
    }

    /// When the next of the timers is due.
    pub fn due_us(&self) -> u64 {
        self.timer_us
            .min(self.delayed_ack_us)
            .min(self.rack.timeout_us.unwrap_or(NEVER))
            .min(self.ack_deadline_us)
            .min(self.gap_deadline_us)
    }
}
