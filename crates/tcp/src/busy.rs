//! What only a busy connection has: bytes on their way, or a timer.

use crate::congestion::Congestion;
use crate::rack::Rack;
use crate::reassembly::ReceiveBuffer;
use crate::scoreboard::Scoreboard;
use crate::send_buffer::SendBuffer;
use crate::timers::NEVER;

/// What happens when nothing is acknowledged in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
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
    pub is_again: bool,
}

/// The entry of a busy connection.
#[derive(Debug)]
pub struct Busy<H> {
    /// The row, or [`NONE`](crate::row::NONE) if the entry is free.
    pub row: u32,
    /// The bytes to send.
    pub send: SendBuffer<H>,
    /// The received bytes.
    pub receive: ReceiveBuffer,
    /// Bytes of the entry itself and of its lists that are charged.
    pub charged: u32,
    /// The segments in flight.
    pub board: Scoreboard,
    pub congestion: Congestion,
    pub rack: Rack,
    pub loss_probe: Option<LossProbe>,
    /// What happens at `wait_us`.
    pub wait: Wait,
    pub wait_us: u64,
    /// When a delayed acknowledgement is due.
    pub ack_us: u64,
    /// When the earliest entry among the timers comes out.
    pub entry_us: u64,
    /// Timeouts in a row, or probes of a closed window in a row.
    pub backoff: u8,
    /// Acknowledgements in a row that acknowledge nothing new.
    pub duplicates: u8,
    /// When the peer last acknowledged something new, or the entry began.
    pub progress_us: u64,
    /// The peer must acknowledge all before `hold_end` by this time.
    pub hold_us: u64,
    pub hold_end: u32,
    /// When bytes out of order are dropped.
    pub gap_us: u64,
    /// The largest window that the peer has offered since the entry began.
    pub largest_window: u32,
    /// Bytes that have arrived twice, to report them (RFC 2883).
    pub repeated: Option<(u32, u32)>,
}

impl<H: AsRef<[u8]>> Busy<H> {
    /// An entry for a row.
    pub fn new(row: u32, next: u32, congestion: Congestion, now_us: u64) -> Busy<H> {
        Busy {
            row,
            send: SendBuffer::new(next),
            receive: ReceiveBuffer::default(),
            charged: 0,
            board: Scoreboard::default(),
            congestion,
            rack: Rack::default(),
            loss_probe: None,
            wait: Wait::Timeout,
            wait_us: NEVER,
            ack_us: NEVER,
            entry_us: NEVER,
            backoff: 0,
            duplicates: 0,
            progress_us: now_us,
            hold_us: NEVER,
            hold_end: next,
            gap_us: NEVER,
            largest_window: 0,
            repeated: None,
        }
    }

    /// Bytes of the entry itself and of its lists: what it takes beside the data.
    pub fn own_bytes(&self) -> u32 {
        let lists = self.board.list_bytes() + self.receive.list_bytes() + self.send.list_bytes();
        (size_of::<Busy<H>>() + lists) as u32
    }

    /// Whether nothing is under way, so that the entry can go.
    pub fn is_idle(&self) -> bool {
        self.board.is_empty()
            && self.send.len() == 0
            && self.receive.held() == 0
            && self.receive.fin.is_none()
            && self.ack_us == NEVER
    }

    /// Stops all timers.
    pub fn stop_timers(&mut self) {
        (self.wait_us, self.ack_us) = (NEVER, NEVER);
        (self.hold_us, self.gap_us) = (NEVER, NEVER);
        self.rack.timeout_us = None;
    }

    /// When the next of the timers is due.
    pub fn due_us(&self) -> u64 {
        self.wait_us
            .min(self.ack_us)
            .min(self.rack.timeout_us.unwrap_or(NEVER))
            .min(self.hold_us)
            .min(self.gap_us)
    }
}
