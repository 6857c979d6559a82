//! Idle connections that the caller keeps itself, in less room than a row.

use crate::account::Account;
use crate::packet::End;
use crate::row::{Conn, NONE, State, flags};
use crate::table::Table;

/// All that is kept of a parked connection. Its ends are not part of it: the caller knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The next sequence number to send. All before it is acknowledged.
    send_next: u32,
    /// The next sequence number that is expected. All before it is acknowledged and read.
    receive_next: u32,
    /// The peer's window, in its units.
    send_window: u16,
    /// See [`Row`](crate::row::Row).
    segment_bytes: u16,
    shifts: u8,
    receive_log2: u8,
    /// Whether selective acknowledgements are used.
    sack: bool,
}

/// The largest size of a parked connection.
pub const PARKED_BYTES: usize = 16;
const _: () = assert!(size_of::<Parked>() <= PARKED_BYTES);

/// A connection with one of these flags needs more than is kept of a parked one.
const NEEDS_ROW: u16 =
    flags::TIMESTAMPS | flags::ACK_NOW | flags::FIN | flags::QUEUED | flags::BY_COOKIE;

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Takes an open connection that is idle out of the table. Its number is free then. `None` if it is not idle, uses timestamps or was
    /// accepted from a listener, or if the table finds connections by itself ([`Config::finds_connections`](crate::Config::finds_connections)):
    /// it would answer segments of a parked one with resets.
    ///
    /// The estimate of the round trip and the congestion window are forgotten, as after a long pause. A parked connection is not probed.
    pub fn park(&mut self, conn: Conn) -> Option<Parked> {
        let row = &mut self.rows[conn.0 as usize];
        let is_idle = row.state == State::Established && row.transfer == NONE;
        if self.config.finds_connections || !is_idle || row.is(NEEDS_ROW) {
            return None;
        }
        let units = row.send_window >> row.peer_shift();
        let parked = Parked {
            send_next: row.send_next,
            receive_next: row.receive_next,
            send_window: units.min(u16::MAX.into()) as u16,
            segment_bytes: row.segment_bytes,
            shifts: row.shifts,
            receive_log2: row.receive_log2,
            sack: row.is(flags::SACK),
        };
        row.state = State::Closed;
        self.free(conn.0);
        Some(parked)
    }

    /// Takes a parked connection back. Its first interest is in reading. `None` if there is no room.
    pub fn unpark(
        &mut self,
        local: End,
        remote: End,
        parked: &Parked,
        token: u64,
        now_us: u64,
    ) -> Option<Conn> {
        let id = self.add(&local, &remote)?;
        let row = &mut self.rows[id as usize];
        row.token = token;
        row.state = State::Established;
        (row.shifts, row.receive_log2) = (parked.shifts, parked.receive_log2);
        row.unacknowledged = parked.send_next;
        row.send_next = parked.send_next;
        row.send_window = u32::from(parked.send_window) << row.peer_shift();
        // The next segment sets the window, whatever its window is.
        row.window_set_by = parked.receive_next.wrapping_sub(1);
        row.receive_next = parked.receive_next;
        row.acknowledged = parked.receive_next;
        // The whole buffer is free, and no more than that was promised before.
        let most = u32::from(u16::MAX) << row.own_shift();
        let window = (1u32 << parked.receive_log2).min(most);
        row.receive_edge = parked.receive_next.wrapping_add(window);
        row.segment_bytes = parked.segment_bytes;
        row.heard_ms = (now_us / 1_000) as u32;
        row.set(flags::OPEN | flags::READ);
        row.set(if parked.sack { flags::SACK } else { 0 });
        Some(Conn(id))
    }
}
