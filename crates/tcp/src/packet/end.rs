//! The ends of connections.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One end of a connection. An IPv4 address is stored as an IPv6 address (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: Ipv6Addr,
    /// The port.
    pub port: u16,
}

impl End {
    /// An end with this address and port.
    pub fn new(address: impl Into<IpAddr>, port: u16) -> End {
        let address = match address.into() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        End { address, port }
    }

    /// The address as the peer uses it.
    pub fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }

    pub(super) fn v4(&self) -> Option<Ipv4Addr> {
        self.address.to_ipv4_mapped()
    }

    /// Whether this can be the source of a segment from a network: neither of this machine alone, nor unspecified, multicast or broadcast.
    pub(super) fn is_source(&self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => {
                let is_of_this_network = ip.octets()[0] == 0;
                !(is_of_this_network || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
            }
            IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast()),
        }
    }
}
