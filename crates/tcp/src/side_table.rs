//! The side table: its entries of busy connections come and go.
//!
//! Invariants: a row names its entry, and an entry names its row. A connection without an entry has nothing on its way: all that it has sent is
//! acknowledged, all that it has received is acknowledged and read.

use alloc::vec::Vec;

use crate::account::Account;
use crate::congestion::{Congestion, initial_window};
use crate::row::{Conn, NO_THRESHOLD, NONE};
use crate::send_buffer::SendBuffer;
use crate::table::Table;
use crate::timers::{NEVER, Timers};
use crate::transfer::Transfer;

/// Places of the side table that may be free, beyond as many as are in use.
const FREE_PLACES: usize = 1_024;

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// The side-table entry of a row, if it has one.
    pub(crate) fn transfer_of(&mut self, id: u32) -> Option<&mut Transfer<H>> {
        self.transfers
            .get_mut(self.rows[id as usize].transfer as usize)
    }

    /// The side-table entry of a row. Makes it if there is none.
    pub(crate) fn ensure_transfer(&mut self, id: u32, now_us: u64) -> u32 {
        let row = &self.rows[id as usize];
        if row.transfer != NONE {
            return row.transfer;
        }
        let bytes = row.data_bytes();
        let idle_ms = ((now_us / 1_000) as u32).wrapping_sub(row.heard_ms);
        let timeout_us = row.rtt.timeout_us(&self.config, 0);
        // After a pause the window begins anew (RFC 5681 §4.1).
        let window = match u32::from(row.window) * bytes {
            0 => initial_window(bytes),
            window if u64::from(idle_ms) * 1_000 > timeout_us => window.min(initial_window(bytes)),
            window => window,
        };
        let threshold = match row.threshold {
            NO_THRESHOLD => u32::MAX,
            segments => u32::from(segments) * bytes,
        };
        let congestion = Congestion::new(window, threshold);
        let (next, send_window) = (row.send_next, row.send_window);
        let place = match self.free_transfers.pop() {
            Some(place) => {
                let old = &mut self.transfers[place as usize];
                let mut send = core::mem::replace(&mut old.send, SendBuffer::new(next));
                send.begin(next);
                let fresh = Transfer::new(id, next, congestion, now_us);
                // The entries among the timers belong to the place. Empty buffers keep their memory.
                *old = Transfer {
                    queued_us: old.queued_us,
                    send,
                    receive: core::mem::take(&mut old.receive),
                    scoreboard: core::mem::take(&mut old.scoreboard),
                    ..fresh
                };
                place
            }
            None => {
                self.transfers
                    .push(Transfer::new(id, next, congestion, now_us));
                self.transfers.len() as u32 - 1
            }
        };
        self.transfers[place as usize].largest_window = send_window;
        self.rows[id as usize].transfer = place;
        self.charge_entry(id);
        place
    }

    /// Charges what the side-table entry of a row takes now, beside the data.
    pub(crate) fn charge_entry(&mut self, id: u32) {
        let Some(transfer) = self
            .transfers
            .get_mut(self.rows[id as usize].transfer as usize)
        else {
            return;
        };
        let bytes = transfer.own_bytes();
        let before = core::mem::replace(&mut transfer.charged, bytes);
        if bytes != before {
            self.account
                .resize_entry(Conn(id), before as usize, bytes as usize);
        }
    }

    /// Frees the side-table entry of a row if nothing is under way.
    pub(crate) fn release_if_idle(&mut self, id: u32) {
        let owes_fin = self.rows[id as usize].owes_fin();
        if self
            .transfer_of(id)
            .is_some_and(|transfer| transfer.is_idle() && !owes_fin)
        {
            self.release_transfer(id);
        }
    }

    /// Frees the side-table entry of a row, with all bytes in it.
    pub(crate) fn release_transfer(&mut self, id: u32) {
        let place = self.rows[id as usize].transfer;
        let Some(transfer) = self.transfers.get_mut(place as usize) else {
            return;
        };
        let charged = core::mem::take(&mut transfer.charged);
        let held = transfer.send.len() as usize + transfer.receive.held();
        let congestion = transfer.congestion;
        transfer.row = NONE;
        transfer.send.clear();
        transfer.receive.clear();
        transfer.scoreboard.clear();
        transfer.stop_timers();
        self.free_transfers.push(place);
        let row = &mut self.rows[id as usize];
        row.transfer = NONE;
        let segments = |bytes: u32| (bytes / row.data_bytes()).clamp(1, 1 << 15) as u16;
        (row.window, row.threshold) = match congestion.threshold {
            u32::MAX => (segments(congestion.window), NO_THRESHOLD),
            threshold => (segments(congestion.window), segments(threshold)),
        };
        self.account.resize_entry(Conn(id), charged as usize, 0);
        if held > 0 {
            self.account.release(Conn(id), held);
        }
    }

    /// Makes the side table smaller if most of its places are free, so that a burst does not leave its memory behind.
    pub(crate) fn trim(&mut self) {
        if self.free_transfers.len() <= self.transfer_count() + FREE_PLACES {
            return;
        }
        self.free_transfers = Vec::new();
        self.transfers.retain(|transfer| transfer.row != NONE);
        self.transfers.shrink_to_fit();
        self.timers = Timers::default();
        for (place, transfer) in (0..).zip(&mut self.transfers) {
            self.rows[transfer.row as usize].transfer = place;
            let queued_us = core::mem::replace(&mut transfer.queued_us, NEVER);
            self.timers.set(place, queued_us, &mut transfer.queued_us);
        }
    }

    /// Forgets the bytes that will not be sent any more.
    pub(crate) fn drop_unsent(&mut self, id: u32) {
        if let Some(transfer) = self.transfer_of(id) {
            let freed = transfer.send.len() as usize + transfer.receive.drop_ranges();
            transfer.send.clear();
            transfer.scoreboard.clear();
            transfer.receive.fin = None;
            transfer.stop_timers();
            if freed > 0 {
                self.account.release(Conn(id), freed);
            }
        }
    }
}
