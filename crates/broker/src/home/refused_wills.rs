//! Wills of recorded sessions that a limit or a full disk has refused, on one machine. Such a will is published again some seconds later, and is lost
//! only if it is refused for ten minutes. A cluster has its own table (`retired_tokens.rs`).
//!
//! While the session exists and no connection holds it, a refused will waits with the session, and survives a planned restart. This table has the other
//! refused wills. Their bytes are charged to the client like those of a session without a connection.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};

use crate::base::time::Now;
use crate::budget::admission::{Admission, Party};
use crate::home::retired_tokens::{WILL_KEPT_S, WILL_RETRY_S};
use crate::home::session_terms::LeftSession;
use crate::mail::session::Will;

/// A will, and the session that it belongs to.
pub(crate) struct RefusedWill {
    /// The name of the session.
    pub name: Box<[u8]>,
    /// The session of the will; `None` if another connection holds the session now.
    pub session: Option<LeftSession>,
    pub will: Box<Will>,
}

impl RefusedWill {
    /// Bytes of a waiting will.
    pub fn bytes(&self) -> usize {
        size_of::<(u32, RefusedWill)>() + self.name.len() + self.will.bytes()
    }

    /// The party that is charged for the bytes.
    pub fn party(&self, counts: &Admission) -> Party {
        counts.party_of_session(&self.name, self.will.client)
    }
}

/// The wills of a home that were refused.
#[derive(Default)]
pub(crate) struct RefusedWills {
    /// By token of all refused wills: the second in which the will was refused first.
    since_s: BTreeMap<u64, u32>,
    /// The wills that do not wait with a session, each with the second in which it is published again.
    waiting: VecDeque<(u32, RefusedWill)>,
    waiting_bytes: usize,
}

impl RefusedWills {
    /// The second in which the will with this token, which was refused just now, is published again; `None` if it has been refused for too long.
    pub fn next_try_s(&mut self, token: u64, now: Now) -> Option<u32> {
        let since_s = *self.since_s.entry(token).or_insert(now.unix_s);
        let is_kept = since_s.saturating_add(WILL_KEPT_S) > now.unix_s;
        is_kept.then(|| now.unix_s.saturating_add(WILL_RETRY_S))
    }

    /// Forgets a will that was published or is given up.
    pub fn forget(&mut self, token: u64) {
        self.since_s.remove(&token);
    }

    pub fn add(&mut self, again_s: u32, refused: RefusedWill, counts: &Admission) {
        let bytes = refused.bytes();
        self.waiting_bytes += bytes;
        counts.change_absent(refused.party(counts), 0, bytes);
        self.waiting.push_back((again_s, refused));
    }

    /// Removes and returns a will that is to be published again now.
    pub fn next_due(&mut self, counts: &Admission, now: Now) -> Option<RefusedWill> {
        let is_due = |(again_s, _): &(u32, RefusedWill)| *again_s <= now.unix_s;
        self.waiting.front().filter(|first| is_due(first))?;
        let (_, refused) = self.waiting.pop_front()?;
        let bytes = refused.bytes();
        self.waiting_bytes -= bytes;
        counts.change_absent(refused.party(counts), bytes, 0);
        Some(refused)
    }

    pub fn bytes(&self) -> usize {
        self.waiting_bytes + self.since_s.len() * size_of::<(u64, u32)>()
    }
}
