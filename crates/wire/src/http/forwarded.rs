//! Finds in `X-Forwarded-For` the address of a client that connects through proxies.
//!
//! Invariant: an entry counts only if the peer and all entries to its right are trusted proxies. So a client gains nothing if it writes the
//! field itself. `Forwarded` (RFC 7239) is not read.

use core::net::{IpAddr, SocketAddr};

use super::list;

/// The rightmost address that is not a trusted proxy. This is the peer if the peer is not trusted.
///
/// `xff` contains the values of all `X-Forwarded-For` fields in order. `trusted` contains networks: address and prefix length in bits. If
/// all addresses are trusted, the result is the leftmost one. The search ends at an entry that is not an address, and the result is the
/// address to its right. IPv4 addresses mapped into IPv6 are read as IPv4.
pub fn client_address<'b>(
    xff: impl Iterator<Item = &'b [u8]>,
    peer: IpAddr,
    trusted: &[(IpAddr, u8)],
) -> IpAddr {
    let peer = peer.to_canonical();
    if !is_trusted(peer, trusted) {
        return peer;
    }
    client_behind(xff, trusted).unwrap_or(peer)
}

/// Like [`client_address`], for a peer that the caller has found to be trusted. `None` if no entry counts.
pub fn client_behind<'b>(
    xff: impl Iterator<Item = &'b [u8]>,
    trusted: &[(IpAddr, u8)],
) -> Option<IpAddr> {
    // The entries are read from the left, so that no list is needed. The result is the same as from the right: the last untrusted address.
    // If all addresses after the last non-address are trusted, it is the first of them.
    let mut client = None;
    for entry in xff.flat_map(list) {
        client = match parse_address(entry) {
            Some(ip) if !is_trusted(ip, trusted) => Some(ip),
            Some(ip) => client.or(Some(ip)),
            None => None,
        };
    }
    client
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn parse_address(entry: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(entry).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    let ip = bare
        .parse::<IpAddr>()
        .or_else(|_| text.parse::<SocketAddr>().map(|a| a.ip()))
        .ok()?;
    Some(ip.to_canonical())
}

/// Whether an address is in one of the networks. It may be an IPv4 address mapped into IPv6.
pub fn is_trusted(ip: IpAddr, trusted: &[(IpAddr, u8)]) -> bool {
    let ip = ip.to_canonical();
    trusted
        .iter()
        .any(|&(network, prefix)| network_contains(network, prefix, ip))
}

/// Whether the first `prefix` bits are equal. A prefix longer than the address means all bits.
fn network_contains(network: IpAddr, prefix: u8, ip: IpAddr) -> bool {
    match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            let different_bits = network.to_bits() ^ ip.to_bits();
            different_bits.leading_zeros() >= u32::from(prefix).min(32)
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => {
            let different_bits = network.to_bits() ^ ip.to_bits();
            different_bits.leading_zeros() >= u32::from(prefix).min(128)
        }
        _ => false,
    }
}
