//! Messages of ICMP that say that a packet was too big.

use super::checksum::{Sum, u16_at, u32_at};
use super::end::End;
use super::ip::{ICMP, Ip, Refusal, TCP};

/// A packet of ours was too big for a link on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// The end that sent the packet, which is ours.
    pub from: End,
    /// The peer.
    pub to: End,
    /// The sequence number of the segment in the packet.
    pub sequence: u32,
    /// The size of a packet that the link carries, in bytes.
    pub packet_bytes: u32,
}

/// Parses a message that a packet of ours was too big (RFC 1191, RFC 8201), which quotes the packet's first bytes.
pub fn parse_too_big(ip: &Ip<'_>) -> Result<TooBig, Refusal> {
    let is_v4 = ip.protocol == ICMP;
    let (head, quoted) = ip.body.split_at_checked(8).ok_or(Refusal::Malformed)?;
    let sum = if is_v4 { Sum::default() } else { ip.pseudo() };
    if sum.with(ip.body).finish() != 0 {
        return Err(Refusal::Checksum);
    }
    let packet_bytes = match (is_v4, head[0], head[1]) {
        (true, 3, 4) => u32::from(u16_at(head, 6)),
        (false, 2, 0) => u32_at(head, 4),
        _ => return Err(Refusal::Foreign),
    };
    let quoted = Ip::quoted(quoted)?;
    if quoted.protocol != TCP || quoted.body.len() < 8 {
        return Err(Refusal::Foreign);
    }
    Ok(TooBig {
        from: End {
            port: u16_at(quoted.body, 0),
            ..quoted.from
        },
        to: End {
            port: u16_at(quoted.body, 2),
            ..quoted.to
        },
        sequence: u32_at(quoted.body, 4),
        packet_bytes,
    })
}
