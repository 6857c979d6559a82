//! The client's address behind proxies: `X-Forwarded-For`, read from the right.
//!
//! Invariant: an entry is believed only when every hop to its right, the peer first, is trusted; so a client can write any
//! value into the field and gains nothing. RFC 7239's `Forwarded` is not read.

use core::net::{IpAddr, SocketAddr};

use super::list;

/// The rightmost address that is not a trusted proxy's; the peer's own when it is not trusted itself.
///
/// `xff` are the values of all `X-Forwarded-For` fields in order, `trusted` networks as address and prefix length in bits.
/// When all are trusted the leftmost counts. At an entry that is not an address trust ends: the hop right of it counts.
/// IPv4 addresses mapped into IPv6 are read as IPv4.
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

/// The same for a peer that is known to be trusted; `None` when no entry can be believed.
pub fn client_behind<'b>(
    xff: impl Iterator<Item = &'b [u8]>,
    trusted: &[(IpAddr, u8)],
) -> Option<IpAddr> {
    // Read from the left without a list: a walk from the right would stop at the last untrusted entry, else at the first
    // one after the last that is not an address.
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

/// Whether an address, which may be IPv4 mapped into IPv6, lies in one of the networks.
pub fn is_trusted(ip: IpAddr, trusted: &[(IpAddr, u8)]) -> bool {
    let ip = ip.to_canonical();
    trusted
        .iter()
        .any(|&(network, prefix)| contains(network, prefix, ip))
}

/// Whether the first `prefix` bits agree. A prefix longer than the address stands for the whole address.
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
