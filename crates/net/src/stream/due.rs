//! The handshakes that can go on, because bytes have come for them. Addresses take turns, and those of one address go in the order in
//! which they were queued: a client's handshake waits for one of each other address, not for all those of a crowd. The clients of a
//! proxy have the proxy's address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// The queue keeps room for so many addresses when it is empty.
const KEPT: usize = 64;

/// A connection: its link and its token.
pub type Queued = (u32, u64);

/// The handshakes that can go on, by address.
#[derive(Default)]
pub struct Due {
    /// The handshakes of each address that has some.
    all: HashMap<IpAddr, VecDeque<Queued>>,
    /// These addresses in the order of their turns.
    turns: VecDeque<IpAddr>,
    /// Those queued since the last `take_fresh`.
    fresh: Vec<Queued>,
    len: usize,
}

impl Due {
    /// Adds a connection from this address.
    pub fn push(&mut self, peer: IpAddr, queued: Queued) {
        let peer = network(peer);
        let of_peer = self.all.entry(peer).or_default();
        if of_peer.is_empty() {
            self.turns.push_back(peer);
        }
        of_peer.push_back(queued);
        self.fresh.push(queued);
        self.len += 1;
    }

    /// Takes the next connection.
    pub fn pop(&mut self) -> Option<Queued> {
        let peer = self.turns.pop_front()?;
        let of_peer = self.all.get_mut(&peer)?;
        let next = of_peer.pop_front();
        match of_peer.is_empty() {
            true => drop(self.all.remove(&peer)),
            false => self.turns.push_back(peer),
        }
        self.len -= 1;
        if self.len == 0 && self.turns.capacity() > KEPT {
            *self = Due::default();
        }
        next
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
        self.all.capacity() * size_of::<(IpAddr, VecDeque<Queued>)>()
            + self.turns.capacity() * size_of::<IpAddr>()
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
    fn it_keeps_little_when_it_is_empty() {
        let mut due = Due::default();
        for link in 0..10_000_u32 {
            due.push(IpAddr::from((link | 0x0A00_0000).to_be_bytes()), (link, 0));
        }
        assert_eq!(order(&mut due).len(), 10_000);
        assert!(due.bytes() < 16 << 10, "{} bytes", due.bytes());
    }
}
