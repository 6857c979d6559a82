//! What becomes due of sessions that are away: a will after its delay, and the end of the session.

use alloc::boxed::Box;

use super::{FOREVER_S, Sessions};
use crate::base::time::Now;
use crate::budget::admission::Admission;
use crate::mail::session::{SavedSession, Will};

/// A will that is published at the end of its delay, unless the client connects again before.
pub(super) struct Delayed {
    pub will: Box<Will>,
    pub due_s: u32,
}

impl Delayed {
    pub fn new(will: Box<Will>, now: Now) -> Box<Delayed> {
        let due_s = end_s(now, will.delay_s);
        Box::new(Delayed { will, due_s })
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        size_of::<Delayed>() + self.will.bytes()
    }
}

impl Sessions {
    /// The first second in which something is due, [`FOREVER_S`] if nothing is.
    pub fn next_due_s(&self) -> u32 {
        self.due.first().map_or(FOREVER_S, |(due_s, _)| *due_s)
    }

    /// The name of the session that has something due first.
    pub fn next_due_name(&self) -> Option<&[u8]> {
        let (_, id) = self.due.first()?;
        Some(self.clients.get(self.rows.get(*id).client))
    }

    /// Takes what is due first, which is due now: the will of a session, and its state if it has expired.
    pub fn next_due(
        &mut self,
        counts: &Admission,
        now: Now,
    ) -> Option<(Option<Box<Will>>, Option<SavedSession>)> {
        let (_, id) = self.due.pop_first()?;
        let holder = self.rows.get(id).holder;
        let (party, before) = self.charged(id, counts);
        let away = self.states.rows.get_mut(holder);
        self.states.will_bytes -= away.will_bytes();
        let will = away.will.take().map(|delayed| delayed.will);
        let (_, after) = self.charged(id, counts);
        counts.change_absent(party, before, after);
        let away = self.states.rows.get_mut(holder);
        if away.expires_s > now.unix_s {
            if away.expires_s != FOREVER_S {
                self.due.insert((away.expires_s, id));
            }
            return Some((will, None));
        }
        let (kept, _, owner) = self.take_away(id, counts, now);
        self.forget(id);
        counts.leave_session(owner);
        Some((will, Some(kept)))
    }
}

/// The second in which `seconds` have surely passed: the current second has already begun.
pub(super) fn end_s(now: Now, seconds: u32) -> u32 {
    now.unix_s.saturating_add(seconds).saturating_add(1)
}
