//! Normalizes and compares the origins of web pages (RFC 6454): whether an origin equals the `Host` field, and whether a host is this
//! machine. The last check protects a server on loopback against DNS rebinding.

use alloc::string::String;
use core::fmt::Write as _;
use core::net::{Ipv4Addr, Ipv6Addr};

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

/// The maximum number of bytes of a host name, without a trailing dot (RFC 1035 section 2.3.4).
const HOST_BYTES_MAX: usize = 253;

/// The normal form of an origin, as browsers send it; two normal forms can be compared as text. Scheme and host are in lower case, names
/// are in ASCII form, and the default port is absent. `null` stays `null`. Other schemes than those of the web (`file://`, those of
/// extensions and applications) may have no host, and their hosts keep their case, as in the URL standard.
///
/// One `/` after the host is removed, because people copy it from the address bar and some clients other than browsers send it.
///
/// `None` if the text is not an origin: it has no scheme, or it has a path, a user, a bad port, or a host of more than 253 bytes.
pub fn normalize(origin: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(origin).ok()?;
    if text == "null" {
        return Some(text.into());
    }
    let (scheme, authority) = text.split_once("://")?;
    let is_scheme_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(is_scheme_byte)
    {
        return None;
    }
    let mut out = scheme.to_ascii_lowercase();
    out.push_str("://");
    let Some(default_port) = default_port(&out[..scheme.len()]) else {
        let is_opaque_byte = |b: u8| b.is_ascii_alphanumeric() || b"-._~:[]%+".contains(&b);
        out.push_str(authority);
        return authority.bytes().all(is_opaque_byte).then_some(out);
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = split_host_and_port(authority.as_bytes())?;
    write_host(core::str::from_utf8(host).ok()?, &mut out)?;
    if let Some(port) = port.filter(|port| *port != default_port) {
        let _ = write!(out, ":{port}");
    }
    Some(out)
}

/// Appends a host in the form that browsers use.
fn write_host(host: &str, out: &mut String) -> Option<()> {
    if let Some(inner) = host.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        let _ = write!(out, "[{address}]");
        return Some(());
    }
    // The time of IDNA grows with the square of a label's length: 8 KB of ideographs would take milliseconds. No browser sends such a host.
    if host.strip_suffix('.').unwrap_or(host).len() > HOST_BYTES_MAX {
        return None;
    }
    let is_name_char = |c: char| match c.is_ascii() {
        true => c.is_ascii_alphanumeric() || b"-_.".contains(&(c as u8)),
        false => !c.is_control() && !c.is_whitespace(),
    };
    if !host.chars().all(is_name_char) {
        return None;
    }
    let (deny, length) = (AsciiDenyList::URL, DnsLength::VerifyAllowRootDot);
    let ascii = Uts46::new().to_ascii(host.as_bytes(), deny, Hyphens::Allow, length);
    let ascii = ascii.ok()?;
    match is_ipv4(&ascii) {
        true => drop(write!(out, "{}", ipv4_address(&ascii)?)),
        false => out.push_str(&ascii),
    }
    Some(())
}

/// The labels of a host. A trailing dot adds no empty label.
fn labels(host: &str) -> core::str::Split<'_, char> {
    host.strip_suffix('.').unwrap_or(host).split('.')
}

/// The last label of a host.
fn last_label(host: &str) -> &str {
    let host = host.strip_suffix('.').unwrap_or(host);
    let point = host.bytes().rposition(|b| b == b'.');
    point.map_or(host, |at| &host[at + 1..])
}

/// Whether browsers read the host as an IPv4 address. Only the last label decides that (URL standard, "ends in a number").
fn is_ipv4(host: &str) -> bool {
    let last = last_label(host);
    // A hexadecimal number, too, begins with a digit: the 0 of `0x`.
    last.starts_with(|c: char| c.is_ascii_digit())
        && (last.bytes().all(|b| b.is_ascii_digit()) || ipv4_part(last).is_some())
}

/// The IPv4 address of a host such as `127.1`, `0x7f.1` or `010.0.0.1`. Each number may be decimal, hexadecimal or octal, and the last
/// number fills all remaining bytes (URL standard, "IPv4 parser").
fn ipv4_address(host: &str) -> Option<Ipv4Addr> {
    let mut address = 0_u32;
    let mut missing_bytes = 4_u32;
    let mut parts = labels(host).peekable();
    while let Some(text) = parts.next() {
        let part = ipv4_part(text)?;
        let bytes = if parts.peek().is_some() {
            1
        } else {
            missing_bytes
        };
        if missing_bytes == 0 || part >= 1 << (8 * bytes) {
            return None;
        }
        missing_bytes -= bytes;
        address |= u32::try_from(part << (8 * missing_bytes)).ok()?;
    }
    (missing_bytes == 0).then(|| Ipv4Addr::from(address))
}

/// The value of one number in an IPv4 address (URL standard, "IPv4 number parser").
fn ipv4_part(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (hex, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (text, 10),
    };
    match digits {
        "" => (!text.is_empty()).then_some(0),
        // `from_str_radix` would accept a sign.
        _ if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) => None,
        _ => u64::from_str_radix(digits, radix).ok(),
    }
}

/// The default port of a web scheme.
fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// Whether `origin` (`https://example.com:8443`) is the origin of the server that the request addresses as `host`.
///
/// The case of host names does not matter. One `/` after the origin's host is ignored, as in [`normalize`]. A missing port means the
/// default port of the origin's scheme. The result is false for `null` and for schemes other than `http` and `https`.
pub fn same_origin(origin: &[u8], host: &[u8]) -> bool {
    let Some(at) = memchr::memmem::find(origin, b"://") else {
        return false;
    };
    let default_port = match &origin[..at] {
        scheme if scheme.eq_ignore_ascii_case(b"http") => 80,
        scheme if scheme.eq_ignore_ascii_case(b"https") => 443,
        _ => return false,
    };
    let authority = &origin[at + 3..];
    let authority = authority.strip_suffix(b"/").unwrap_or(authority);
    let (Some((theirs, their_port)), Some((ours, our_port))) =
        (split_host_and_port(authority), split_host_and_port(host))
    else {
        return false;
    };
    theirs.eq_ignore_ascii_case(ours)
        && their_port.unwrap_or(default_port) == our_port.unwrap_or(default_port)
}

/// Whether two different origins in normal form differ only in the name of the loopback host, such as `http://localhost:3000` and
/// `http://127.0.0.1:3000`.
pub fn is_loopback_alias(one: &str, other: &str) -> bool {
    let parts = |origin: &'_ str| {
        let (scheme, authority) = origin.split_once("://")?;
        let (name, port) = split_host_and_port(authority.as_bytes())?;
        is_loopback_host(name).then_some((scheme.len(), name.len(), port))
    };
    let (Some(a), Some(b)) = (parts(one), parts(other)) else {
        return false;
    };
    one != other && one[..a.0] == other[..b.0] && a.2 == b.2
}

/// Whether a browser would run the response as code of its origin or apply it as a style. `destination` is the value of `Sec-Fetch-Dest`
/// (W3C Fetch Metadata, section 2.1). The Fetch standard calls such destinations script-like.
pub fn runs_as_code(destination: &[u8]) -> bool {
    const CODE_DESTINATIONS: [&str; 10] = [
        "audioworklet",
        "embed",
        "object",
        "paintworklet",
        "script",
        "serviceworker",
        "sharedworker",
        "style",
        "worker",
        "xslt",
    ];
    let value = destination.split(|b| *b == b';').next().unwrap_or_default();
    let value = value.trim_ascii();
    CODE_DESTINATIONS
        .iter()
        .any(|code| code.as_bytes().eq_ignore_ascii_case(value))
}

/// Whether `hosts` contains this value of a `Host` field. The value may have a port.
pub fn is_listed_host(hosts: &[String], host: &[u8]) -> bool {
    hosts
        .iter()
        .any(|listed| listed.as_bytes().eq_ignore_ascii_case(host))
}

/// Whether a page of another origin sent the request. `site` is the value of `Sec-Fetch-Site` (W3C Fetch Metadata, section 2.3).
/// `same-site` counts as another origin: another port, or another name of the same domain. False for unknown values.
pub fn is_cross_origin(site: &[u8]) -> bool {
    let value = site.split(|b| *b == b';').next().unwrap_or_default();
    matches!(value.trim_ascii(), b"cross-site" | b"same-site")
}

/// Whether `host`, with or without a port, can only be this machine: `localhost` and all names under it (RFC 6761 section 6.3),
/// and `127.0.0.0/8` and `[::1]` in any form.
pub fn is_loopback_host(host: &[u8]) -> bool {
    let Some((name, _)) = split_host_and_port(host) else {
        return false;
    };
    let Ok(name) = core::str::from_utf8(name) else {
        return false;
    };
    if let Some(inner) = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) {
        let address = inner.parse::<Ipv6Addr>();
        return address.is_ok_and(|address| address.to_canonical().is_loopback());
    }
    // This runs for each request, so there is a fast path for the usual form of an address.
    if let Ok(address) = name.parse::<Ipv4Addr>() {
        return address.is_loopback();
    }
    if is_ipv4(name) {
        return ipv4_address(name).is_some_and(|address| address.is_loopback());
    }
    last_label(name).eq_ignore_ascii_case("localhost") && !labels(name).any(str::is_empty)
}

/// Splits `host [":" port]`; `None` if the host is empty or the port is invalid.
fn split_host_and_port(authority: &[u8]) -> Option<(&[u8], Option<u16>)> {
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
