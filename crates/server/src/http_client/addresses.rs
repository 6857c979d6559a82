//! Tells addresses of the internet from those of this machine and of private networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the address is one of the internet: not of this machine, of a private network, or reserved (RFC 6890).
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && b & 0xC0 == 64;
    let is_protocol = a == 192 && b == 0 && c == 0;
    let is_benchmark = a == 198 && b & 0xFE == 18;
    !(a == 0
        || a >= 224
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_documentation()
        || is_shared
        || is_protocol
        || is_benchmark)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // These prefixes carry an IPv4 address: NAT64 (RFC 6052) and 6to4 (RFC 3056).
    let embedded = match segments {
        [0x64, 0xFF9B, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = embedded {
        return is_public_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    }
    // All other unicast addresses of the internet begin with 001 (RFC 4291). Teredo and documentation do too.
    segments[0] & 0xE000 == 0x2000
        && !(segments[0] == 0x2001 && (segments[1] == 0 || segments[1] == 0xDB8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_of_private_networks_are_not_public() {
        let is_public = |text: &str| is_public(text.parse().expect("an address"));
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(public), "{public}");
        }
        for other in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
        ] {
            assert!(!is_public(other), "{other}");
        }
    }
}
