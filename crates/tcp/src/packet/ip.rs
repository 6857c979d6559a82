//! The headers of IPv4 and IPv6.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::checksum::{Sum, u16_at, u32_at};
use super::end::End;

/// The protocols that are read.
pub const TCP: u8 = 6;
pub const ICMP: u8 = 1;
pub const ICMP_V6: u8 = 58;

/// The bytes of the headers, without options.
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;

/// Why a packet is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no segment of TCP and no message about one.
    Foreign,
    /// It is a fragment. TCP sends none to us, since it keeps to the size of the link.
    Fragment,
    /// A checksum is wrong.
    Checksum,
    /// It does not parse, or its addresses cannot be right.
    Malformed,
}

/// The bytes of the header of a packet to this end.
pub fn header_bytes(to: End) -> usize {
    match to.v4() {
        Some(_) => V4_BYTES,
        None => V6_BYTES,
    }
}

/// The header of a packet that is no fragment.
pub struct Ip<'a> {
    /// The ends, without ports.
    pub from: End,
    pub to: End,
    pub protocol: u8,
    /// What follows the header.
    pub body: &'a [u8],
}

impl<'a> Ip<'a> {
    /// Parses the header of a whole packet, and finds where the packet ends.
    pub fn parse(packet: &'a [u8]) -> Result<Ip<'a>, Refusal> {
        let ip = Ip::quoted(packet)?;
        let total = match packet[0] >> 4 {
            4 => {
                let header = &packet[..usize::from(packet[0] & 15) * 4];
                // The sum over a header with its correct checksum is zero.
                if Sum::default().with(header).finish() != 0 {
                    return Err(Refusal::Checksum);
                }
                usize::from(u16_at(packet, 2)).checked_sub(header.len())
            }
            _ => Some(usize::from(u16_at(packet, 4))),
        };
        let body = total.and_then(|total| ip.body.get(..total));
        Ok(Ip {
            body: body.ok_or(Refusal::Malformed)?,
            ..ip
        })
    }

    /// Parses a header whose packet may be cut short, as in a message of ICMP.
    pub fn quoted(packet: &'a [u8]) -> Result<Ip<'a>, Refusal> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => {
                let bytes = usize::from(packet[0] & 15) * 4;
                if bytes < V4_BYTES || packet.len() < bytes {
                    return Err(Refusal::Malformed);
                }
                // More fragments, or not the first one.
                if u16_at(packet, 6) & 0x3fff != 0 {
                    return Err(Refusal::Fragment);
                }
                let end = |at: usize| End::new(Ipv4Addr::from(u32_at(packet, at)), 0);
                Ok(Ip {
                    from: end(12),
                    to: end(16),
                    protocol: packet[9],
                    body: &packet[bytes..],
                })
            }
            Some(6) => {
                let header = packet.first_chunk::<V6_BYTES>().ok_or(Refusal::Malformed)?;
                // TCP comes without extension headers here; the header of fragments has the number 44.
                let protocol = match header[6] {
                    44 => return Err(Refusal::Fragment),
                    protocol => protocol,
                };
                let end = |at: usize| {
                    let octets: [u8; 16] = core::array::from_fn(|n| header[at + n]);
                    End::new(Ipv6Addr::from(octets), 0)
                };
                let (from, to) = (end(8), end(24));
                // Such an address would be taken for one of IPv4.
                if from.v4().is_some() || to.v4().is_some() {
                    return Err(Refusal::Malformed);
                }
                Ok(Ip {
                    from,
                    to,
                    protocol,
                    body: &packet[V6_BYTES..],
                })
            }
            _ => Err(Refusal::Foreign),
        }
    }

    /// The sum of the header's fields that TCP and ICMPv6 add to theirs.
    pub fn pseudo(&self) -> Sum {
        pseudo(self.from, self.to, self.protocol, self.body.len() as u16)
    }
}

/// Writes the header of a packet with this many bytes of TCP. Returns the sum that TCP adds to its own.
pub fn write(from: End, to: End, tcp_bytes: u16, ip: &mut [u8]) -> Sum {
    match (from.v4(), to.v4()) {
        (Some(from), Some(to)) => {
            // These fields are: version and header length; no fragments; 64 hops; TCP.
            ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            let total = V4_BYTES as u16 + tcp_bytes;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
            let sum = Sum::default().with(ip).finish();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, TCP, 64]);
            ip[4..6].copy_from_slice(&tcp_bytes.to_be_bytes());
            ip[8..24].copy_from_slice(&from.address.octets());
            ip[24..40].copy_from_slice(&to.address.octets());
        }
    }
    pseudo(from, to, TCP, tcp_bytes)
}

/// The sum of the fields of IP that TCP and ICMPv6 add to theirs.
fn pseudo(from: End, to: End, protocol: u8, bytes: u16) -> Sum {
    let sum = match (from.v4(), to.v4()) {
        (Some(from), Some(to)) => Sum::default().with(&from.octets()).with(&to.octets()),
        _ => Sum::default()
            .with(&from.address.octets())
            .with(&to.address.octets()),
    };
    sum.with(&[0, protocol]).with(&bytes.to_be_bytes())
}
