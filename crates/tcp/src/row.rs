//! The row of a connection: all that is kept of an idle one.

use core::net::Ipv6Addr;

use crate::rtt::Rtt;
use crate::sequence::is_after;

/// The number of a connection. It is used again after the caller has closed the connection and the connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u32);

/// In place of an index: none.
pub const NONE: u32 = u32::MAX;
/// In place of a slow-start threshold: no limit.
pub const NO_THRESHOLD: u16 = u16::MAX;

/// The states of a connection (RFC 9293 §3.3.2). A listener keeps nothing of a connection before the third packet, so there is no LISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no connection. Its row is free, waits for the caller to close it, or keeps a cookie from being accepted again.
    Closed,
    /// A SYN was sent.
    SynSent,
    /// Both ends have sent a SYN at the same time, and ours is not acknowledged.
    SynReceived,
    /// Both directions are open.
    Established,
    /// Our FIN was sent and is not acknowledged, and the peer has not sent its own.
    FinWait1,
    /// Our FIN is acknowledged, and the peer has not sent its own.
    FinWait2,
    /// The peer has sent its FIN, and we have not.
    CloseWait,
    /// Both ends have sent a FIN at the same time, and ours is not acknowledged.
    Closing,
    /// Our FIN was sent after the peer's and is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged. Old packets may still arrive.
    TimeWait,
}

impl State {
    /// Whether the ends know each other's sequence numbers.
    pub fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::SynSent | State::SynReceived)
    }

    /// Whether the peer may still send data.
    pub fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether data that is not sent yet may be sent.
    pub fn may_send(self) -> bool {
        // In the states behind these a FIN is sent once all data is.
        matches!(
            self,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        )
    }
}

/// Why a connection has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer has reset it.
    Reset,
    /// The peer has refused it.
    Refused,
    /// Nothing answered.
    TimedOut,
}

/// Flags of a row.
pub mod flags {
    /// Timestamps are used.
    pub const TIMESTAMPS: u16 = 1;
    /// Selective acknowledgements are used.
    pub const SACK: u16 = 2;
    /// The caller wants to read.
    pub const READ: u16 = 4;
    /// The caller wants to write.
    pub const WRITE: u16 = 8;
    /// The row is in the list of those with an event for the caller.
    pub const LISTED: u16 = 16;
    /// The row is in the list of those with something to send.
    pub const DIRTY: u16 = 32;
    /// An acknowledgement is due at the end of the turn.
    pub const ACK_NOW: u16 = 64;
    /// The caller has closed its sending side: a FIN follows the data.
    pub const FIN: u16 = 128;
    /// The caller has closed the connection.
    pub const ORPHAN: u16 = 256;
    /// The caller has not accepted the connection yet.
    pub const QUEUED: u16 = 512;
    /// The peer's FIN has arrived, and all bytes before it.
    pub const PEER_FIN: u16 = 1_024;
    /// Events are reported.
    pub const OPEN: u16 = 2_048;
    /// The connection is in the queue of those that are over and remembered: in TIME-WAIT, or closed with a cookie that must not be accepted
    /// again.
    pub const REMEMBERED: u16 = 4_096;
    /// Our FIN was sent.
    pub const FIN_SENT: u16 = 8_192;
    /// A cookie has made the connection.
    pub const BY_COOKIE: u16 = 16_384;
    /// The account has refused bytes to send, and had no room since.
    pub const BLOCKED: u16 = 32_768;
}

/// The row.
#[derive(Clone, Debug)]
pub struct Row {
    /// What the caller knows the connection by.
    pub token: u64,
    /// The peer's address. That of our end is an index in the table's list.
    pub remote: Ipv6Addr,
    /// The first sequence number of ours that is not acknowledged (SND.UNA).
    pub unacknowledged: u32,
    /// The next sequence number to send (SND.NXT).
    pub send_next: u32,
    /// The peer's window in bytes (SND.WND), and the sequence number of the segment that set it (SND.WL1).
    pub send_window: u32,
    pub window_set_by: u32,
    /// The next sequence number that is expected (RCV.NXT).
    pub receive_next: u32,
    /// The end of the window that was promised to the peer (RCV.NXT + RCV.WND). It never goes back.
    pub receive_edge: u32,
    /// What was acknowledged last.
    pub acknowledged: u32,
    /// The peer's clock to echo (TS.Recent).
    pub peer_clock: u32,
    /// When a segment of the peer arrived last, in milliseconds.
    pub heard_ms: u32,
    /// The index of the connection's entry in the side table, or [`NONE`].
    pub transfer: u32,
    /// The next row of the same bucket, or [`NONE`].
    pub chain: u32,
    /// The estimate of the round trip.
    pub rtt: Rtt,
    /// The maximum segment size: bytes of TCP options and data together.
    pub segment_bytes: u16,
    /// The congestion window and the slow-start threshold when the connection was last busy, in segments.
    pub window: u16,
    pub threshold: u16,
    /// The ports, and the index of our address.
    pub remote_port: u16,
    pub local_port: u16,
    pub local: u16,
    /// The lowest bits of the peer's first sequence number, if a cookie has made the connection.
    pub first: u16,
    /// See [`flags`].
    pub flags: u16,
    /// The shift of the peer's windows in the upper four bits, and of ours in the lower four.
    pub shifts: u8,
    /// The receive buffer has `1 << receive_log2` bytes.
    pub receive_log2: u8,
    /// The state.
    pub state: State,
    /// Why the connection has failed, if it has.
    pub failure: Option<Failure>,
}

/// The largest size of a row. An idle connection costs this much, and one place in the index.
pub const ROW_BYTES: usize = 96;
const _: () = assert!(size_of::<Row>() <= ROW_BYTES);

impl Row {
    /// A row of no connection.
    pub fn free() -> Row {
        Row {
            token: 0,
            remote: Ipv6Addr::UNSPECIFIED,
            unacknowledged: 0,
            send_next: 0,
            send_window: 0,
            window_set_by: 0,
            receive_next: 0,
            receive_edge: 0,
            acknowledged: 0,
            peer_clock: 0,
            heard_ms: 0,
            transfer: NONE,
            chain: NONE,
            rtt: Rtt::default(),
            segment_bytes: 0,
            window: 0,
            threshold: NO_THRESHOLD,
            remote_port: 0,
            local_port: 0,
            local: 0,
            first: 0,
            flags: 0,
            shifts: 0,
            receive_log2: 0,
            state: State::Closed,
            failure: None,
        }
    }

    /// Whether one of these flags is set.
    pub fn is(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// Sets flags.
    pub fn set(&mut self, flags: u16) {
        self.flags |= flags;
    }

    /// Clears flags.
    pub fn clear(&mut self, flags: u16) {
        self.flags &= !flags;
    }

    /// Whether a FIN is still to be sent.
    pub fn owes_fin(&self) -> bool {
        self.is(flags::FIN) && !self.is(flags::FIN_SENT)
    }

    /// The shift of the peer's windows.
    pub fn peer_shift(&self) -> u8 {
        self.shifts >> 4
    }

    /// The shift of our windows.
    pub fn own_shift(&self) -> u8 {
        self.shifts & 15
    }

    /// The bytes of data of a full segment.
    pub fn data_bytes(&self) -> u32 {
        let options = if self.is(flags::TIMESTAMPS) { 12 } else { 0 };
        u32::from(self.segment_bytes) - options
    }

    /// The window that the peer may use.
    pub fn receive_window(&self) -> u32 {
        // A FIN needs no room: its number may be behind the window.
        match is_after(self.receive_edge, self.receive_next) {
            true => self.receive_edge.wrapping_sub(self.receive_next),
            false => 0,
        }
    }
}
