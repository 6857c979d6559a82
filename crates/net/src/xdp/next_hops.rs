//! To which hardware address packets are sent: the one that the peer's packets came from.
//!
//! A peer in a network of the interface has an entry of its own. All others are behind a router, and packets to them go where the last packet of
//! any of them came from. So millions of clients behind a router need one entry, and nothing is asked of the network.

use std::collections::HashMap;
use std::net::IpAddr;

use super::interface::{Interface, Mac};

/// The number of neighbours that are remembered. Only machines of the same network can make more, by feigning addresses. Then all are
/// forgotten, and each is known again with its next packet.
const NEIGHBOURS_MAX: usize = 1 << 16;

/// Hardware addresses by peer.
pub(super) struct NextHops {
    interface: Interface,
    neighbours: HashMap<IpAddr, Mac>,
    /// The router of IPv4, and that of IPv6.
    routers: [Option<Mac>; 2],
}

impl NextHops {
    pub(super) fn new(interface: Interface) -> NextHops {
        NextHops {
            interface,
            neighbours: HashMap::new(),
            routers: [None; 2],
        }
    }

    /// Our interface.
    pub(super) fn interface(&self) -> &Interface {
        &self.interface
    }

    /// A packet of `peer` came from this hardware address.
    pub(super) fn learn(&mut self, peer: IpAddr, from: Mac) {
        if !self.interface.is_neighbour(peer) {
            self.routers[usize::from(peer.is_ipv6())] = Some(from);
            return;
        }
        if self.neighbours.len() >= NEIGHBOURS_MAX && !self.neighbours.contains_key(&peer) {
            self.neighbours.clear();
        }
        self.neighbours.insert(peer, from);
    }

    /// Where packets to this peer go; `None` if nothing of it has arrived.
    pub(super) fn to(&self, peer: IpAddr) -> Option<Mac> {
        if self.interface.is_neighbour(peer) {
            self.neighbours.get(&peer).copied()
        } else {
            self.routers[usize::from(peer.is_ipv6())]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops() -> NextHops {
        NextHops::new(Interface {
            index: 1,
            mac: [0; 6],
            mtu: 1_500,
            queues: 1,
            addresses: vec![("10.0.0.1".parse().unwrap(), 8)],
            is_local: false,
        })
    }

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn peers_behind_a_router_share_its_last_address_and_neighbours_do_not() {
        let mut hops = hops();
        assert_eq!(hops.to(peer("10.0.0.2")), None);
        hops.learn(peer("10.0.0.2"), [2; 6]);
        hops.learn(peer("10.0.0.3"), [3; 6]);
        assert_eq!(hops.to(peer("192.0.2.1")), None);
        hops.learn(peer("192.0.2.1"), [9; 6]);
        assert_eq!(hops.to(peer("10.0.0.2")), Some([2; 6]));
        assert_eq!(hops.to(peer("10.0.0.3")), Some([3; 6]));
        assert_eq!(hops.to(peer("198.51.100.1")), Some([9; 6]));
        assert_eq!(hops.to(peer("2001:db8::1")), None, "a router of IPv4");
        hops.learn(peer("10.0.0.2"), [4; 6]);
        assert_eq!(hops.to(peer("10.0.0.2")), Some([4; 6]));
    }

    #[test]
    fn number_of_neighbours_is_bounded() {
        let mut hops = hops();
        for number in 0..NEIGHBOURS_MAX as u32 + 2 {
            let bits = 10 << 24 | number;
            hops.learn(IpAddr::V4(bits.into()), [1; 6]);
        }
        assert_eq!(hops.neighbours.len(), 2);
        assert_eq!(hops.to(peer("10.1.0.1")), Some([1; 6]), "the last one");
    }
}
