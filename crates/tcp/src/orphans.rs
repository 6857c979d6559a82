//! The connections that the caller has closed and that the peer has not.
//!
//! Invariant: the queue has each of them once, in the order in which they were closed.

use alloc::collections::VecDeque;

use crate::row::{Row, State, flags};

/// Connections that have ended since the caller closed them and that are still in the queue, beyond as many as have not.
const ENDED_MAX: usize = 1_024;

/// The connections that the caller has closed and that the peer has not.
#[derive(Debug, Default)]
pub struct Orphans {
    /// Their number.
    count: usize,
    /// Their rows. Some have ended since: the row is still of this connection if it has this number in place of the caller's token.
    queue: VecDeque<(u32, u64)>,
    /// The number of the next one.
    next_number: u64,
}

/// Whether the caller has closed a connection and the peer has not.
pub fn is_orphan(row: &Row) -> bool {
    row.is(flags::ORPHAN) && !matches!(row.state, State::Closed | State::TimeWait)
}

impl Orphans {
    /// Their number.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds a connection, which is one.
    pub fn add(&mut self, id: u32, rows: &mut [Row]) {
        rows[id as usize].token = self.next_number;
        self.queue.push_back((id, self.next_number));
        self.next_number += 1;
        self.count += 1;
        if self.queue.len() > 2 * self.count + ENDED_MAX {
            self.queue.retain(|entry| is_current(entry, rows));
        }
    }

    /// One of them is none any more.
    pub fn remove(&mut self) {
        self.count -= 1;
    }

    /// The row of the one that was closed first.
    pub fn oldest(&mut self, rows: &[Row]) -> Option<u32> {
        while let Some(entry) = self.queue.front() {
            if is_current(entry, rows) {
                return Some(entry.0);
            }
            self.queue.pop_front();
        }
        None
    }
}

fn is_current(&(id, number): &(u32, u64), rows: &[Row]) -> bool {
    let row = &rows[id as usize];
    is_orphan(row) && row.token == number
}
