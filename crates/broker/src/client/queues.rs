//! Connections that wait for their turn, for a page or for credit. Each is named by its generation too: one that ends meanwhile is
//! passed over when its turn comes.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::base::fair_queue::FairQueue;
use crate::base::ids::ConnId;

/// The connections that wait for something of their shard.
#[derive(Default)]
pub(crate) struct Queues {
    /// Those whose pipelined requests or subscriptions may go on: addresses and users share the work.
    resumed: FairQueue<ConnId>,
    /// Followers that may have the next page of their snapshot.
    paging: Vec<ConnId>,
    /// Connections that wait for credit or for carriers.
    stalled: BTreeSet<ConnId>,
    /// The last of them that was looked at.
    looked_at: Option<ConnId>,
}

/// Connections that wait for credit or for carriers which are looked at in a turn, while only some may go on.
const STALLED_LOOKS: usize = 64;

impl Queues {
    /// Connections that wait for anything.
    pub(crate) fn len(&self) -> usize {
        self.resumed.len() + self.paging.len() + self.stalled.len()
    }

    /// Queues a connection of this party to go on; once, if it was the last one that the party queued.
    #[inline]
    pub(crate) fn resume(&mut self, party: u64, conn: ConnId) {
        self.resumed.push_once(party, conn);
    }

    /// The connection whose turn it is. [`Queues::did`] says what it did.
    pub(crate) fn next_resumed(&mut self) -> Option<ConnId> {
        self.resumed.pop()
    }

    /// Bytes of heap of the connections that wait for their turn.
    pub(crate) fn bytes(&self) -> usize {
        self.resumed.bytes()
    }

    /// The connection whose turn it was did so many steps.
    pub(crate) fn did(&mut self, steps: u64) {
        self.resumed.charge(steps);
    }

    /// Whether a connection waits for its turn.
    pub(crate) fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// The follower has room for a page.
    pub(crate) fn page(&mut self, conn: ConnId) {
        self.paging.push(conn);
    }

    /// Takes the followers that have room for a page.
    pub(crate) fn take_paging(&mut self) -> Vec<ConnId> {
        core::mem::take(&mut self.paging)
    }

    /// Whether a follower has room for a page.
    pub(crate) fn has_paging(&self) -> bool {
        !self.paging.is_empty()
    }

    /// The connection waits for credit or for carriers.
    pub(crate) fn add_stalled(&mut self, conn: ConnId) {
        self.stalled.insert(conn);
    }

    /// Whether this connection waits for credit or for carriers.
    pub(crate) fn is_stalled(&self, conn: ConnId) -> bool {
        self.stalled.contains(&conn)
    }

    /// Takes the next connections that wait for credit or for carriers, in a circle; all of them if `all` may go on.
    pub(crate) fn take_stalled(&mut self, all: bool) -> Vec<ConnId> {
        if all {
            return core::mem::take(&mut self.stalled).into_iter().collect();
        }
        let from = self.looked_at.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.stalled.range((from, Bound::Unbounded)).copied();
        let next: Vec<ConnId> = behind.take(STALLED_LOOKS).collect();
        self.looked_at = (next.last().copied()).filter(|_| next.len() == STALLED_LOOKS);
        for conn in &next {
            self.stalled.remove(conn);
        }
        next
    }

    /// Whether a connection waits for credit or for carriers.
    pub(crate) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }
}
