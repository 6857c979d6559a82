//! How connections end, those that only the caller has closed, and what is remembered of those that are over: TIME-WAIT, and cookies that must not be
//! accepted again.
//!
//! Invariant: a row is free once the connection is over, the caller has closed it, and nothing of it is remembered. Each of the three may be the
//! last.

use crate::account::Account;
use crate::cookie::COOKIE_GOOD_MS;
use crate::orphans::is_orphan;
use crate::planted::{self, Fault};
use crate::row::{Failure, NONE, State, flags};
use crate::table::{Device, Remembered, Table};

impl<H: AsRef<[u8]>, A: Account> Table<H, A> {
    /// Ends a connection. Its row is free at once if the caller has closed it, and otherwise when the caller closes it. Received bytes can
    /// still be read unless the connection has failed.
    pub(crate) fn end(&mut self, id: u32, failure: Option<Failure>) {
        let row = &self.rows[id as usize];
        let keeps_bytes = failure.is_none() && !row.is(flags::ORPHAN);
        if row.state == State::Closed {
            return;
        }
        let must_remember = row.is(flags::BY_COOKIE)
            && !row.is(flags::REMEMBERED)
            && !planted::is_planted(Fault::SpentCookie);
        let is_remembered = must_remember && self.remember(id);
        if !is_remembered {
            self.unlink(id);
        }
        self.change_state(id, State::Closed);
        let row = &mut self.rows[id as usize];
        row.failure = failure;
        row.clear(flags::ACK_NOW);
        if !is_remembered {
            row.clear(flags::REMEMBERED);
        }
        if keeps_bytes && row.transfer != NONE {
            self.drop_unsent(id);
            self.release_if_idle(id);
        } else {
            self.release_transfer(id);
        }
        if !self.rows[id as usize].is(flags::ORPHAN) {
            self.queue_event(id);
        } else if !is_remembered {
            self.free(id);
        }
    }

    /// Changes the state of a connection.
    pub(crate) fn change_state(&mut self, id: u32, state: State) {
        let row = &mut self.rows[id as usize];
        let was_orphan = is_orphan(row);
        row.state = state;
        if was_orphan && !is_orphan(row) {
            self.orphans.remove();
        }
    }

    /// Notes that the caller has closed a connection. If too many are closed and not over, the one that was closed first is reset.
    pub(crate) fn abandon<D: Device>(&mut self, id: u32, now_us: u64, device: &mut D) {
        let row = &mut self.rows[id as usize];
        row.set(flags::ORPHAN);
        if !is_orphan(row) {
            return;
        }
        self.orphans.add(id, &mut self.rows);
        if self.orphans.len() > self.config.orphans
            && let Some(oldest) = self.orphans.oldest(&self.rows)
        {
            self.send_reset(oldest, now_us, device);
            self.end(oldest, None);
        }
    }

    /// The number of connections that the caller has closed and that the peer has not.
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// A connection in TIME-WAIT has acknowledged the peer's FIN. It is over at once if nothing is to be remembered.
    pub(crate) fn enter_time_wait(&mut self, id: u32) {
        if !self.rows[id as usize].is(flags::REMEMBERED) && !self.remember(id) {
            self.end(id, None);
        }
    }

    /// Remembers a connection that is over for a while. `false` if the settings say that none is remembered.
    fn remember(&mut self, id: u32) -> bool {
        let mut remembered_ms = u64::from(self.config.time_wait_ms);
        if !self.listeners.is_empty() {
            // An old copy of the third packet would begin the connection once more.
            remembered_ms = remembered_ms.max(COOKIE_GOOD_MS);
        }
        if remembered_ms == 0 || self.config.time_waits == 0 {
            return false;
        }
        if self.time_waits.len() >= self.config.time_waits
            && let Some(oldest) = self.time_waits.pop_front()
        {
            self.forget_if_same(&oldest);
        }
        let row = &mut self.rows[id as usize];
        row.set(flags::REMEMBERED);
        let receive_next = row.receive_next;
        self.time_waits.push_back(Remembered {
            due_us: self.now_us + remembered_ms * 1_000,
            row: id,
            receive_next,
        });
        true
    }

    /// Forgets a connection that was remembered long enough.
    pub(crate) fn forget_if_same(&mut self, remembered: &Remembered) {
        let row = &self.rows[remembered.row as usize];
        if row.is(flags::REMEMBERED) && row.receive_next == remembered.receive_next {
            self.forget(remembered.row);
        }
    }

    /// Forgets a connection that is remembered.
    pub(crate) fn forget(&mut self, id: u32) {
        if self.rows[id as usize].state == State::TimeWait {
            self.rows[id as usize].set(flags::REMEMBERED);
            return self.end(id, None);
        }
        self.unlink(id);
        self.rows[id as usize].clear(flags::REMEMBERED);
        if self.rows[id as usize].is(flags::ORPHAN) {
            self.free(id);
        }
    }

    /// The caller has closed a connection that is over.
    pub(crate) fn discard(&mut self, id: u32) {
        let row = &mut self.rows[id as usize];
        row.set(flags::ORPHAN);
        if !row.is(flags::REMEMBERED) {
            self.free(id);
        } else {
            self.release_transfer(id);
        }
    }

    /// Forgets the row of a connection that is over and that the caller has closed.
    pub(crate) fn free(&mut self, id: u32) {
        self.release_transfer(id);
        let row = &mut self.rows[id as usize];
        // The lists may still name the row.
        row.flags &= flags::LISTED | flags::DIRTY | flags::BLOCKED;
        self.free_rows.push(id);
    }
}
