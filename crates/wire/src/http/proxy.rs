//! Reads the header of the PROXY protocol, version 2, with which a load balancer sends the client's address (HAProxy's
//! `proxy-protocol.txt`, section 2.2).
//!
//! Invariant: without a valid header the connection ends; nothing is guessed. Type-length-value fields are ignored. Version 1, the text
//! form, has a separate error, so that the operator sees which setting to change.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes before the addresses: the signature, version and command, family and transport, and the length.
const FIXED_BYTES: usize = 16;
/// The maximum number of bytes after the fixed fields. Addresses take 36 bytes, and balancers add some hundreds for TLS details. The
/// specification allows 65,535 bytes, all of which would be buffered before the first request.
pub const MAX_REST_BYTES: usize = 4096;

/// Why a PROXY header was refused; the connection is closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.reason())]
pub enum ProxyError {
    /// The connection does not start with a PROXY header.
    Missing,
    /// The text form (version 1) or an unknown version.
    Version,
    /// The header has more than [`MAX_REST_BYTES`] after its fixed fields.
    TooLarge,
    /// An unknown command, family or transport, or truncated addresses.
    Malformed,
}

impl ProxyError {
    /// A message for the log.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "no PROXY protocol header",
            Self::Version => "PROXY protocol of another version than 2",
            Self::TooLarge => "PROXY protocol header too large",
            Self::Malformed => "malformed PROXY protocol header",
        }
    }
}

impl core::error::Error for ProxyError {}

/// Returns the client's address, if the header names one, and the length of the header; `None` while the header is incomplete.
///
/// The address is absent for the `LOCAL` command (health checks), for an unspecified family, and for Unix sockets. The caller then uses the
/// peer address of the socket.
///
/// # Errors
/// [`ProxyError`]. A wrong signature is an error at its first wrong byte.
pub fn parse_v2(buf: &[u8]) -> Result<Option<(Option<SocketAddr>, usize)>, ProxyError> {
    let compared = buf.len().min(SIGNATURE.len());
    if buf[..compared] != SIGNATURE[..compared] {
        let version_1 = b"PROXY ";
        let compared = buf.len().min(version_1.len());
        return if buf[..compared] != version_1[..compared] {
            Err(ProxyError::Missing)
        } else if compared == version_1.len() {
            Err(ProxyError::Version)
        } else {
            Ok(None)
        };
    }
    let Some(fixed) = buf.first_chunk::<FIXED_BYTES>() else {
        return Ok(None);
    };
    let rest_len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if fixed[12] >> 4 != 2 {
        return Err(ProxyError::Version);
    }
    if rest_len > MAX_REST_BYTES {
        return Err(ProxyError::TooLarge);
    }
    let len = FIXED_BYTES + rest_len;
    let Some(rest) = buf.get(FIXED_BYTES..len) else {
        return Ok(None);
    };
    let client = match fixed[12] & 0x0f {
        0 => None,
        1 => read_source(fixed[13], rest)?,
        _ => return Err(ProxyError::Malformed),
    };
    Ok(Some((client, len)))
}

/// Reads the source address of a `PROXY` command.
fn read_source(family: u8, rest: &[u8]) -> Result<Option<SocketAddr>, ProxyError> {
    match family {
        // Unspecified or Unix sockets: there is no address to which limits could apply.
        0x00 | 0x31 => Ok(None),
        // TCP over IPv4: source, destination, source port, destination port.
        0x11 => {
            let &[a, b, c, d, _, _, _, _, high, low, _, _] =
                rest.first_chunk::<12>().ok_or(ProxyError::Malformed)?;
            let port = u16::from_be_bytes([high, low]);
            Ok(Some(SocketAddr::from((Ipv4Addr::new(a, b, c, d), port))))
        }
        // TCP over IPv6.
        0x21 => {
            let block = rest.first_chunk::<36>().ok_or(ProxyError::Malformed)?;
            let mut octets = [0; 16];
            octets.copy_from_slice(&block[..16]);
            let port = u16::from_be_bytes([block[32], block[33]]);
            // A balancer that listens only on IPv6 sends the mapped addresses of IPv4 clients.
            let address = Ipv6Addr::from(octets).to_canonical();
            Ok(Some(SocketAddr::new(address, port)))
        }
        _ => Err(ProxyError::Malformed),
    }
}
