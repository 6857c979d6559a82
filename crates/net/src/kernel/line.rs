//! The line at the door: connections that were taken from the kernel's queues and are not let in yet. One of each address comes next, then
//! the second of each, and so on. So the crowd of one address holds up no other address, while the line has places.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::socket;
use crate::sys::Fd;

/// Addresses are told apart by so many buckets; two that share one share their turns.
const BUCKETS: usize = 256;

/// The round in which a connection is let in, its number among all, its descriptor, and where it comes from.
type Place = Reverse<(u64, u64, u32, IpAddr)>;

/// Connections that wait; those that are left are closed with it.
#[derive(Debug, Default)]
pub struct Line {
    places: BinaryHeap<Place>,
    /// The round of the next connection of each bucket, once somebody came.
    next: Vec<u64>,
    hasher: RandomState,
    /// The round of the connection that was let in last.
    round: u64,
    came: u64,
}

impl Line {
    /// A connection comes.
    pub fn push(&mut self, fd: Fd, peer: IpAddr) {
        self.next.resize(BUCKETS, 0);
        let next = &mut self.next[self.hasher.hash_one(peer) as usize % BUCKETS];
        let round = self.round.max(*next);
        *next = round + 1;
        self.came += 1;
        self.places.push(Reverse((round, self.came, fd.0, peer)));
    }

    /// Lets the next one in.
    pub fn pop(&mut self) -> Option<(Fd, IpAddr)> {
        let Reverse((round, _, fd, peer)) = self.places.pop()?;
        self.round = round;
        Some((Fd(fd), peer))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        while let Some((fd, _)) = self.pop() {
            socket::close(fd);
        }
    }
}
