//! The queue of handshakes that can continue because bytes have arrived. The addresses of clients take turns, and the handshakes of one
//! address stay in order. An address with few recent steps comes before addresses with many, so a single client does not wait for a crowd.
//! All clients behind a proxy count as one address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// An empty queue keeps memory for this many addresses.
const KEPT_ADDRESSES: usize = 64;
/// An address has few recent steps if it has fewer than this: about three handshakes.
const FEW_STEPS: u16 = 8;
/// Steps are counted in intervals of this many steps. The current and the previous interval count as recent.
const INTERVAL_STEPS: u32 = 256;
/// One in this many steps goes to an address with many recent steps, even while addresses with few wait.
const BUSY_TURN: u32 = 4;

/// A queued connection: its link and its token.
pub type QueuedLink = (u32, u64);

/// The handshakes that can continue, by address.
#[derive(Default)]
pub struct ReadyHandshakes {
    /// The queued handshakes of each address.
    by_address: HashMap<IpAddr, VecDeque<QueuedLink>>,
    /// The addresses whose handshakes come next, in order: those with few recent steps (`quiet`), and the others (`busy`).
    quiet: VecDeque<IpAddr>,
    busy: VecDeque<IpAddr>,
    /// Number of steps of each address in the current interval, and in the previous one.
    steps_now: HashMap<IpAddr, u16>,
    steps_before: HashMap<IpAddr, u16>,
    /// The sum of `steps_now`.
    interval_steps: u32,
    /// The connections queued since the last `take_fresh`.
    fresh: Vec<QueuedLink>,
    len: usize,
}

impl ReadyHandshakes {
    /// Adds a connection from the address `peer`.
    pub fn push(&mut self, peer: IpAddr, queued: QueuedLink) {
        let peer = network(peer);
        let of_peer = self.by_address.entry(peer).or_default();
        of_peer.push_back(queued);
        if of_peer.len() == 1 {
            self.queue_address(peer);
        }
        self.fresh.push(queued);
        self.len += 1;
    }

    /// Takes the next connection.
    pub fn pop(&mut self) -> Option<QueuedLink> {
        if self.interval_steps >= INTERVAL_STEPS {
            self.steps_before = std::mem::take(&mut self.steps_now);
            self.interval_steps = 0;
        }
        self.interval_steps += 1;
        let peer = match self.interval_steps % BUSY_TURN {
            0 => self.busy.pop_front().or_else(|| self.quiet.pop_front()),
            _ => self.quiet.pop_front().or_else(|| self.busy.pop_front()),
        }?;
        *self.steps_now.entry(peer).or_default() += 1;
        let of_peer = self.by_address.get_mut(&peer)?;
        let next = of_peer.pop_front();
        match of_peer.is_empty() {
            true => drop(self.by_address.remove(&peer)),
            false => self.queue_address(peer),
        }
        self.len -= 1;
        if self.len == 0 {
            for turns in [&mut self.quiet, &mut self.busy] {
                turns.shrink_to(KEPT_ADDRESSES);
            }
            self.by_address.shrink_to(KEPT_ADDRESSES);
        }
        next
    }

    fn queue_address(&mut self, peer: IpAddr) {
        let done = [&self.steps_now, &self.steps_before].map(|done| done.get(&peer).copied());
        match done.into_iter().flatten().sum::<u16>() < FEW_STEPS {
            true => self.quiet.push_back(peer),
            false => self.busy.push_back(peer),
        }
    }

    /// Removes the connections for which `is_alive` is false.
    pub fn retain(&mut self, is_alive: impl Fn(&QueuedLink) -> bool) {
        self.by_address.retain(|_, of_peer| {
            of_peer.retain(&is_alive);
            !of_peer.is_empty()
        });
        for turns in [&mut self.quiet, &mut self.busy] {
            turns.retain(|peer| self.by_address.contains_key(peer));
        }
        self.len = self.by_address.values().map(VecDeque::len).sum();
    }

    /// Number of queued connections.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The connections added since the last call, even if they have been taken since.
    pub fn take_fresh(&mut self) -> Vec<QueuedLink> {
        std::mem::take(&mut self.fresh)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The approximate number of bytes that the queue occupies.
    pub fn bytes(&self) -> usize {
        self.by_address.capacity() * size_of::<(IpAddr, VecDeque<QueuedLink>)>()
            + (self.steps_now.capacity() + self.steps_before.capacity())
                * size_of::<(IpAddr, u16)>()
            + (self.quiet.capacity() + self.busy.capacity()) * size_of::<IpAddr>()
            + (self.len + self.fresh.capacity()) * size_of::<QueuedLink>()
    }
}

/// The address by which a client is counted. Of an IPv6 address only the first 64 bits count, because a client has all addresses of its
/// /64.
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

    fn order(due: &mut ReadyHandshakes) -> Vec<u32> {
        std::iter::from_fn(|| due.pop())
            .map(|(link, _)| link)
            .collect()
    }

    #[test]
    fn a_crowd_of_one_address_holds_up_no_other() {
        let mut due = ReadyHandshakes::default();
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
        let mut due = ReadyHandshakes::default();
        for link in 0..200 {
            due.push(peer("192.0.2.1"), (link, 0));
            due.push(peer("192.0.2.2"), (1_000 + link, 0));
        }
        for _ in 0..100 {
            due.pop();
        }
        for link in 0..3 {
            due.push(peer("198.51.100.7"), (2_000 + link, 0));
        }
        let order = order(&mut due);
        let first = order[..5].iter().filter(|link| **link >= 2_000);
        assert_eq!(first.count(), 3);
        assert_eq!(order.len(), 303);
    }

    #[test]
    fn a_proxy_with_many_handshakes_has_its_turns_among_countless_addresses_with_few() {
        let mut due = ReadyHandshakes::default();
        for link in 0..400 {
            due.push(peer("192.0.2.1"), (link, 0));
        }
        for _ in 0..10 {
            due.pop();
        }
        let mut of_proxy = 0;
        for number in 0..1_000_u32 {
            for each in 0..3 {
                let address = 0x0A00_0000 | (3 * number + each);
                due.push(IpAddr::from(address.to_be_bytes()), (1_000 + number, 0));
            }
            let (link, _) = due.pop().expect("some are queued");
            of_proxy += u32::from(link < 400);
        }
        assert!(of_proxy >= 240, "{of_proxy} of 1000");
    }

    #[test]
    fn connections_that_are_gone_are_dropped() {
        let mut due = ReadyHandshakes::default();
        for link in 0..1_000 {
            due.push(
                peer(if link % 2 == 0 {
                    "192.0.2.1"
                } else {
                    "192.0.2.2"
                }),
                (link, 0),
            );
        }
        due.retain(|(link, _)| *link % 100 == 0);
        assert_eq!(due.len(), 10);
        assert_eq!(
            order(&mut due),
            (0..10).map(|n| n * 100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn it_keeps_little_when_it_is_empty() {
        let mut due = ReadyHandshakes::default();
        for link in 0..10_000_u32 {
            due.push(IpAddr::from((link | 0x0A00_0000).to_be_bytes()), (link, 0));
        }
        assert_eq!(order(&mut due).len(), 10_000);
        assert_eq!(due.take_fresh().len(), 10_000);
        assert!(due.bytes() < 48 << 10, "{} bytes", due.bytes());
    }
}
