//! The handshakes that can go on, because bytes have come for them. The next one is of the address for which the fewest steps were
//! done so far, and those of one address go in the order in which they were queued. So a client's handshake does not wait for those
//! of a crowd: an address with few handshakes is served before one with many. The clients of a proxy have the proxy's address.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Addresses that are remembered while they have nothing queued.
const KEPT: usize = 64;
/// An address that had few handshakes may have so many steps before it takes turns with the others: some ten handshakes.
const CREDIT: u64 = 32;

/// A connection: its link and its token.
pub type Queued = (u32, u64);

/// The handshakes that can go on, by address.
#[derive(Default)]
pub struct Due {
    peers: HashMap<IpAddr, Peer>,
    /// The addresses that have some: by their shares, and in the order in which they came.
    turns: BinaryHeap<Reverse<(u64, u64, IpAddr)>>,
    /// Counts the entries of `turns`.
    entries: u64,
    /// The share of the address that was served last.
    begun: u64,
    /// Those queued since the last `take_fresh`.
    fresh: Vec<Queued>,
    len: usize,
}

/// An address.
#[derive(Default)]
struct Peer {
    queue: VecDeque<Queued>,
    /// The steps done for it, counted from the beginning of the queue.
    share: u64,
}

impl Due {
    /// Adds a connection from this address.
    pub fn push(&mut self, peer: IpAddr, queued: Queued) {
        let address = network(peer);
        let peer = self.peers.entry(address).or_default();
        if peer.queue.is_empty() {
            peer.share = peer.share.max(self.begun.saturating_sub(CREDIT));
            self.entries += 1;
            self.turns
                .push(Reverse((peer.share, self.entries, address)));
        }
        peer.queue.push_back(queued);
        self.fresh.push(queued);
        self.len += 1;
    }

    /// Takes the next connection.
    pub fn pop(&mut self) -> Option<Queued> {
        let Reverse((share, _, address)) = self.turns.pop()?;
        let remembered = self.peers.len();
        let peer = self.peers.get_mut(&address)?;
        let next = peer.queue.pop_front()?;
        self.begun = self.begun.max(share);
        peer.share = share + 1;
        if !peer.queue.is_empty() {
            self.entries += 1;
            self.turns
                .push(Reverse((peer.share, self.entries, address)));
        } else if remembered > KEPT {
            self.peers.remove(&address);
        } else {
            peer.queue = VecDeque::new();
        }
        self.len -= 1;
        if self.len == 0 {
            self.peers.shrink_to(KEPT);
            self.turns.shrink_to(KEPT);
        }
        Some(next)
    }

    /// The connections added since the last call, taken since or not.
    pub fn take_fresh(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.fresh)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// About the bytes that it occupies.
    pub fn bytes(&self) -> usize {
        self.peers.capacity() * size_of::<(IpAddr, Peer)>()
            + self.turns.capacity() * size_of::<(u64, u64, IpAddr)>()
            + (self.len + self.fresh.capacity()) * size_of::<Queued>()
    }
}

/// An address, of IPv6 the first half: a client has all addresses of its /64.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let half = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(half))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn order(due: &mut Due) -> Vec<u32> {
        std::iter::from_fn(|| due.pop())
            .map(|(link, _)| link)
            .collect()
    }

    #[test]
    fn a_crowd_of_one_address_holds_up_no_other() {
        let mut due = Due::default();
        for link in 0..200 {
            due.push(peer("2001:db8::1:0:0:7"), (link, 0));
        }
        due.push(peer("2001:db8::2:0:0:7"), (200, 0));
        due.push(peer("192.0.2.1"), (300, 0));
        due.push(peer("::ffff:192.0.2.1"), (301, 0));
        let order = order(&mut due);
        assert_eq!(order[..4], [0, 300, 1, 301]);
        assert_eq!(order[4..], (2..=200).collect::<Vec<u32>>());
        assert!(due.is_empty());
    }

    #[test]
    fn an_address_with_few_handshakes_comes_before_those_with_many() {
        let mut due = Due::default();
        for link in 0..200 {
            due.push(peer("192.0.2.1"), (link, 0));
            due.push(peer("192.0.2.2"), (1_000 + link, 0));
        }
        for _ in 0..100 {
            due.pop();
        }
        for link in 0..5 {
            due.push(peer("198.51.100.7"), (2_000 + link, 0));
        }
        let order = order(&mut due);
        assert_eq!(order[..5], [2_000, 2_001, 2_002, 2_003, 2_004]);
        assert_eq!(order.len(), 305);
    }

    #[test]
    fn an_address_that_was_away_has_no_more_than_its_credit() {
        let mut due = Due::default();
        for link in 0..2_000 {
            due.push(peer("192.0.2.1"), (link, 0));
        }
        for _ in 0..1_000 {
            due.pop();
        }
        for link in 0..200 {
            due.push(peer("192.0.2.2"), (10_000 + link, 0));
        }
        let first = &order(&mut due)[..100];
        let of_second = first.iter().filter(|link| **link >= 10_000).count();
        assert!((60..=70).contains(&of_second), "{of_second}");
    }

    #[test]
    fn it_keeps_little_when_it_is_empty() {
        let mut due = Due::default();
        for link in 0..10_000_u32 {
            due.push(IpAddr::from((link | 0x0A00_0000).to_be_bytes()), (link, 0));
        }
        assert_eq!(order(&mut due).len(), 10_000);
        assert_eq!(due.take_fresh().len(), 10_000);
        assert!(due.bytes() < 20 << 10, "{} bytes", due.bytes());
    }
}
