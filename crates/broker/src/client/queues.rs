//! Connections that wait: for their turn to continue, for a page, or for credit (`credit.rs`). An entry has the connection's
//! generation, so the entry of an ended connection is skipped.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::base::fair_queue::FairQueue;
use crate::base::ids::ConnId;

/// The connections of a shard that wait.
#[derive(Default)]
pub(crate) struct Queues {
    /// Connections with pipelined requests or subscriptions to continue. The queue is fair to addresses and users.
    resumed: FairQueue<ConnId>,
    /// Followers of interest (which topics have subscribers) that can take the next page (bounded part) of their snapshot.
    waiting_for_page: Vec<ConnId>,
    /// Connections that wait for credit or for carriers (shards with subscribers; see `credit.rs`).
    stalled: BTreeSet<ConnId>,
    /// The last stalled connection that was examined.
    last_examined: Option<ConnId>,
}

/// The maximum number of waiting connections that one turn examines, unless all of them may continue.
const STALLED_EXAMINED_MAX: usize = 64;

impl Queues {
    /// The number of waiting connections.
    pub(crate) fn len(&self) -> usize {
        self.resumed.len() + self.waiting_for_page.len() + self.stalled.len()
    }

    /// Queues a connection of this party (address or user), so that it continues. Does nothing if the connection is already the party's last entry.
    #[inline]
    pub(crate) fn push_resumed(&mut self, party: u64, conn: ConnId) {
        self.resumed.push_once(party, conn);
    }

    /// Takes the next connection that may continue. The caller then reports its work with [`Queues::charge`].
    pub(crate) fn pop_resumed(&mut self) -> Option<ConnId> {
        self.resumed.pop()
    }

    /// The heap bytes of the connections that wait for their turn.
    pub(crate) fn bytes(&self) -> usize {
        self.resumed.bytes()
    }

    /// Charges the party of the connection that was taken last with `steps` steps.
    pub(crate) fn charge(&mut self, steps: u64) {
        self.resumed.charge(steps);
    }

    /// Whether a connection waits for its turn.
    pub(crate) fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// Queues a follower for the next page of its snapshot.
    pub(crate) fn queue_for_page(&mut self, conn: ConnId) {
        self.waiting_for_page.push(conn);
    }

    /// Takes the followers that can take a page.
    pub(crate) fn take_waiting_for_page(&mut self) -> Vec<ConnId> {
        core::mem::take(&mut self.waiting_for_page)
    }

    /// Whether a follower can take a page.
    pub(crate) fn has_waiting_for_page(&self) -> bool {
        !self.waiting_for_page.is_empty()
    }

    /// Adds a connection that waits for credit or for carriers.
    pub(crate) fn add_stalled(&mut self, conn: ConnId) {
        self.stalled.insert(conn);
    }

    /// Whether this connection waits for credit or for carriers.
    pub(crate) fn is_stalled(&self, conn: ConnId) -> bool {
        self.stalled.contains(&conn)
    }

    /// Takes the next connections that wait for credit or for carriers, going round the set. With `takes_all`, takes all of them: then all may
    /// continue.
    pub(crate) fn take_stalled(&mut self, takes_all: bool) -> Vec<ConnId> {
        if takes_all {
            return core::mem::take(&mut self.stalled).into_iter().collect();
        }
        let from = self.last_examined.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.stalled.range((from, Bound::Unbounded)).copied();
        let next: Vec<ConnId> = behind.take(STALLED_EXAMINED_MAX).collect();
        self.last_examined = (next.last().copied()).filter(|_| next.len() == STALLED_EXAMINED_MAX);
        for conn in &next {
            self.stalled.remove(conn);
        }
        next
    }

    /// Whether any connection waits for credit or for carriers.
    pub(crate) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }
}
