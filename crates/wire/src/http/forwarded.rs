//! Finds the address of a client that connects through proxies, in `X-Forwarded-For`.
//!
//! Invariant: an entry counts only if the peer and all entries to its right are trusted proxies, so a client gains nothing by
//! writing the field itself. `Forwarded` (RFC 7239) is not read.

use core::net::{IpAddr, SocketAddr};

use super::list;

/// The rightmost address that is no trusted proxy: the peer itself if it is not trusted.
///
/// `xff` are the values of all `X-Forwarded-For` fields in order; `trusted` are networks as address and prefix length in bits. If
/// all addresses are trusted, the result is the leftmost one. An entry that is not an address ends the trust: the result is the
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

/// Like [`client_address`], for a peer that is known to be trusted. `None` if no entry counts.
pub fn client_behind<'b>(
    xff: impl Iterator<Item = &'b [u8]>,
    trusted: &[(IpAddr, u8)],
) -> Option<IpAddr> {
    // The entries are read from the left, so that no list is needed. The result is the same as from the right: the last untrusted address,
    // or, if all addresses after the last entry that is no address are trusted, the first of them.
    let mut found = None;
    for entry in xff.flat_map(list) {
        found = match address(entry) {
            Some(ip) if !is_trusted(ip, trusted) => Some(ip),
            Some(ip) => found.or(Some(ip)),
            None => None,
        };
    }
    found
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn address(entry: &[u8]) -> Option<IpAddr> {
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

/// Whether an address, which may be IPv4 mapped into IPv6, is in one of the networks.
pub fn is_trusted(ip: IpAddr, trusted: &[(IpAddr, u8)]) -> bool {
    let ip = ip.to_canonical();
    trusted
        .iter()
        .any(|&(network, prefix)| contains(network, prefix, ip))
}

/// Whether the first `prefix` bits are equal. A prefix longer than the address means the whole address.
fn contains(network: IpAddr, prefix: u8, ip: IpAddr) -> bool {
    match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            let differing = network.to_bits() ^ ip.to_bits();
            differing.leading_zeros() >= u32::from(prefix).min(32)
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => {
            let differing = network.to_bits() ^ ip.to_bits();
            differing.leading_zeros() >= u32::from(prefix).min(128)
        }
        _ => false,
    }
}
