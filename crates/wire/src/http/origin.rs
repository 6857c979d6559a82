//! Same-origin checks: the `Origin` of a page against the `Host` that it reached (RFC 6454), and whether a host names this
//! machine, which defends a server on loopback against DNS rebinding.

use core::net::{Ipv4Addr, Ipv6Addr};

/// Whether a page of `origin` (`https://example.com:8443`) belongs to the server that was reached as `host`.
///
/// Host names are compared in any case; a port that is left out is the default of the origin's scheme.
/// `null` and schemes other than `http` and `https` are never the same.
pub fn same_origin(origin: &[u8], host: &[u8]) -> bool {
    let Some(at) = memchr::memmem::find(origin, b"://") else {
        return false;
    };
    let default_port = match &origin[..at] {
        scheme if scheme.eq_ignore_ascii_case(b"http") => 80,
        scheme if scheme.eq_ignore_ascii_case(b"https") => 443,
        _ => return false,
    };
    let (Some((theirs, their_port)), Some((ours, our_port))) =
        (split(&origin[at + 3..]), split(host))
    else {
        return false;
    };
    theirs.eq_ignore_ascii_case(ours)
        && their_port.unwrap_or(default_port) == our_port.unwrap_or(default_port)
}

/// Whether `host`, with or without a port, can only mean this machine: `localhost` and all names under it
/// (RFC 6761 section 6.3), `127.0.0.0/8`, `[::1]`.
pub fn is_loopback_host(host: &[u8]) -> bool {
    let Some((name, _)) = split(host) else {
        return false;
    };
    let Ok(name) = core::str::from_utf8(name) else {
        return false;
    };
    if let Some(inner) = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback());
    }
    if let Ok(ip) = name.parse::<Ipv4Addr>() {
        return ip.is_loopback();
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost") && !name.split('.').any(str::is_empty)
}

/// `host [":" port]`; `None` when the host is empty or the port is not a port number.
fn split(authority: &[u8]) -> Option<(&[u8], Option<u16>)> {
    let name_len = if authority.first() == Some(&b'[') {
        memchr::memchr(b']', authority)? + 1
    } else {
        memchr::memchr(b':', authority).unwrap_or(authority.len())
    };
    let (name, rest) = authority.split_at(name_len);
    if name.is_empty() {
        return None;
    }
    match rest {
        // An empty port is the default one (RFC 3986 section 3.2.3).
        [] | [b':'] => Some((name, None)),
        [b':', digits @ ..] => {
            if digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let port = digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0'));
            Some((name, Some(u16::try_from(port).ok()?)))
        }
        _ => None,
    }
}
