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
const BUSY_TURN_INTERVAL: u32 = 4;

/// A queued connection.
#[derive(Clone, Copy)]
pub struct QueuedLink {
    pub link: u32,
    pub token: u64,
}

/// The handshakes that can continue, by address.
#[derive(Default)]
pub struct ReadyHandshakes {
    /// The queued handshakes of each address.
    by_address: HashMap<IpAddr, VecDeque<QueuedLink>>,
    /// The addresses whose handshakes come next, in order: those with few recent steps (`quiet_addresses`), and the others.
    quiet_addresses: VecDeque<IpAddr>,
    busy_addresses: VecDeque<IpAddr>,
    /// Number of steps of each address in the current interval, and in the previous one.
    current_steps: HashMap<IpAddr, u16>,
    previous_steps: HashMap<IpAddr, u16>,
    /// The sum of `current_steps`.
    interval_steps: u32,
    /// The connections queued since the last `take_newly_queued`.
    newly_queued: Vec<QueuedLink>,
    len: usize,
}

impl ReadyHandshakes {
    /// Adds a connection from the address `peer`.
    pub fn push(&mut self, peer: IpAddr, queued: QueuedLink) {
        let address = counted_address(peer);
        let queue = self.by_address.entry(address).or_default();
        queue.push_back(queued);
        if queue.len() == 1 {
            self.queue_address(address);
        }
        self.newly_queued.push(queued);
        self.len += 1;
    }

    /// Takes the next connection.
    pub fn pop(&mut self) -> Option<QueuedLink> {
        if self.interval_steps >= INTERVAL_STEPS {
            self.previous_steps = std::mem::take(&mut self.current_steps);
            self.interval_steps = 0;
        }
        self.interval_steps += 1;
        let address = match self.interval_steps % BUSY_TURN_INTERVAL {
            0 => self
                .busy_addresses
                .pop_front()
                .or_else(|| self.quiet_addresses.pop_front()),
            _ => self
                .quiet_addresses
                .pop_front()
                .or_else(|| self.busy_addresses.pop_front()),
        }?;
        *self.current_steps.entry(address).or_default() += 1;
        let queue = self.by_address.get_mut(&address)?;
        let next = queue.pop_front();
        match queue.is_empty() {
            true => drop(self.by_address.remove(&address)),
            false => self.queue_address(address),
        }
        self.len -= 1;
        if self.len == 0 {
            for addresses in [&mut self.quiet_addresses, &mut self.busy_addresses] {
                addresses.shrink_to(KEPT_ADDRESSES);
            }
            self.by_address.shrink_to(KEPT_ADDRESSES);
        }
        next
    }

    fn queue_address(&mut self, address: IpAddr) {
        let recent_steps =
            [&self.current_steps, &self.previous_steps].map(|steps| steps.get(&address).copied());
        match recent_steps.into_iter().flatten().sum::<u16>() < FEW_STEPS {
            true => self.quiet_addresses.push_back(address),
            false => self.busy_addresses.push_back(address),
        }
    }

    /// Removes the connections for which `is_alive` is false.
    pub fn retain(&mut self, is_alive: impl Fn(&QueuedLink) -> bool) {
        self.by_address.retain(|_, queue| {
            queue.retain(&is_alive);
            !queue.is_empty()
        });
        for addresses in [&mut self.quiet_addresses, &mut self.busy_addresses] {
            addresses.retain(|address| self.by_address.contains_key(address));
        }
        self.len = self.by_address.values().map(VecDeque::len).sum();
    }

    /// Number of queued connections.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The connections added since the last call, even if they have been taken since.
    pub fn take_newly_queued(&mut self) -> Vec<QueuedLink> {
        std::mem::take(&mut self.newly_queued)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The approximate number of bytes that the queue occupies.
    pub fn bytes(&self) -> usize {
        self.by_address.capacity() * size_of::<(IpAddr, VecDeque<QueuedLink>)>()
            + (self.current_steps.capacity() + self.previous_steps.capacity())
                * size_of::<(IpAddr, u16)>()
            + (self.quiet_addresses.capacity() + self.busy_addresses.capacity())
                * size_of::<IpAddr>()
            + (self.len + self.newly_queued.capacity()) * size_of::<QueuedLink>()
    }
}

/// The address by which a client is counted. Of an IPv6 address only the first 64 bits count, because a client has all addresses of its
/// /64.
fn counted_address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let prefix = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn queued(link: u32) -> QueuedLink {
        QueuedLink { link, token: 0 }
    }

    fn order(ready: &mut ReadyHandshakes) -> Vec<u32> {
        std::iter::from_fn(|| ready.pop())
            .map(|queued| queued.link)
            .collect()
    }

    #[test]
    fn handshakes_of_one_address_delay_no_other() {
        let mut ready = ReadyHandshakes::default();
        for link in 0..200 {
            ready.push(peer("2001:db8::1:0:0:7"), queued(link));
        }
        ready.push(peer("2001:db8::2:0:0:7"), queued(200));
        ready.push(peer("192.0.2.1"), queued(300));
        ready.push(peer("::ffff:192.0.2.1"), queued(301));
        let order = order(&mut ready);
        assert_eq!(order[..4], [0, 300, 1, 301]);
        assert_eq!(order[4..], (2..=200).collect::<Vec<u32>>());
        assert!(ready.is_empty());
    }

    #[test]
    fn an_address_with_few_handshakes_comes_before_those_with_many() {
        let mut ready = ReadyHandshakes::default();
        for link in 0..200 {
            ready.push(peer("192.0.2.1"), queued(link));
            ready.push(peer("192.0.2.2"), queued(1_000 + link));
        }
        for _ in 0..100 {
            ready.pop();
        }
        for link in 0..3 {
            ready.push(peer("198.51.100.7"), queued(2_000 + link));
        }
        let order = order(&mut ready);
        let first = order[..5].iter().filter(|link| **link >= 2_000);
        assert_eq!(first.count(), 3);
        assert_eq!(order.len(), 303);
    }

    #[test]
    fn proxy_with_many_handshakes_is_served_among_many_addresses_with_few() {
        let mut ready = ReadyHandshakes::default();
        for link in 0..400 {
            ready.push(peer("192.0.2.1"), queued(link));
        }
        for _ in 0..10 {
            ready.pop();
        }
        let mut proxy_turns = 0;
        for number in 0..1_000_u32 {
            for each in 0..3 {
                let address = 0x0A00_0000 | (3 * number + each);
                ready.push(IpAddr::from(address.to_be_bytes()), queued(1_000 + number));
            }
            let QueuedLink { link, .. } = ready.pop().expect("some are queued");
            proxy_turns += u32::from(link < 400);
        }
        assert!(proxy_turns >= 240, "{proxy_turns} of 1000");
    }

    #[test]
    fn connections_that_are_gone_are_dropped() {
        let mut ready = ReadyHandshakes::default();
        for link in 0..1_000 {
            ready.push(
                peer(if link % 2 == 0 {
                    "192.0.2.1"
                } else {
                    "192.0.2.2"
                }),
                queued(link),
            );
        }
        ready.retain(|queued| queued.link % 100 == 0);
        assert_eq!(ready.len(), 10);
        assert_eq!(
            order(&mut ready),
            (0..10).map(|n| n * 100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn empty_queue_keeps_little_memory() {
        let mut ready = ReadyHandshakes::default();
        for link in 0..10_000_u32 {
            ready.push(
                IpAddr::from((link | 0x0A00_0000).to_be_bytes()),
                queued(link),
            );
        }
        assert_eq!(order(&mut ready).len(), 10_000);
        assert_eq!(ready.take_newly_queued().len(), 10_000);
        assert!(ready.bytes() < 48 << 10, "{} bytes", ready.bytes());
    }
}
