//! Reads and writes TCP segments as packets: IPv4 and TCP headers with data. The only option that is written is the maximum segment size in
//! a SYN.

use crate::sys::tun::{PREFIX, PREFIX_BYTES};

/// Bytes of an IPv4 header without options.
const IP_BYTES: usize = 20;
/// Bytes of a TCP header without options.
const TCP_BYTES: usize = 20;
/// The maximum size of a packet, in bytes, as on most of the internet.
pub const PACKET_BYTES: usize = 1500;
/// The maximum size of the data of a segment, in bytes.
pub const SEGMENT_BYTES: usize = PACKET_BYTES - IP_BYTES - TCP_BYTES;

/// The flags of a segment (RFC 9293 §3.1).
pub mod flag {
    #![allow(missing_docs, reason = "the names are those of the RFC")]
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// One end of a connection, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The IPv4 address.
    pub address: u32,
    /// The port.
    pub port: u16,
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The sender.
    pub from: End,
    /// The receiver.
    pub to: End,
    /// The sequence number of the segment's first byte.
    pub sequence: u32,
    /// The next sequence number that the sender expects, if [`flag::ACK`] is set.
    pub acknowledged: u32,
    /// The flags.
    pub flags: u8,
    /// The receive window of the sender, in bytes.
    pub window: u16,
    /// The data.
    pub data: &'a [u8],
}

impl Segment<'_> {
    /// Whether the segment has all of these flags.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Replaces the content of `out` with the packet, including the device's header.
    pub fn write(&self, out: &mut Vec<u8>) {
        let is_syn = self.has(flag::SYN);
        let tcp_bytes = TCP_BYTES + if is_syn { 4 } else { 0 };
        let total = (IP_BYTES + tcp_bytes + self.data.len()) as u16;
        out.clear();
        out.extend_from_slice(&PREFIX);
        // These fields are: version and header length; no fragments; 64 hops; TCP.
        out.extend_from_slice(&[0x45, 0]);
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
        out.extend_from_slice(&self.from.address.to_be_bytes());
        out.extend_from_slice(&self.to.address.to_be_bytes());
        let sum = checksum(&out[PREFIX_BYTES..]);
        out[PREFIX_BYTES + 10..PREFIX_BYTES + 12].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(&self.from.port.to_be_bytes());
        out.extend_from_slice(&self.to.port.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.acknowledged.to_be_bytes());
        out.extend_from_slice(&[(tcp_bytes as u8 / 4) << 4, self.flags]);
        out.extend_from_slice(&self.window.to_be_bytes());
        // There is no checksum, as the device's header says, and no urgent data.
        out.extend_from_slice(&[0; 4]);
        if is_syn {
            out.extend_from_slice(&[2, 4]);
            out.extend_from_slice(&(SEGMENT_BYTES as u16).to_be_bytes());
        }
        out.extend_from_slice(self.data);
    }
}

/// The checksum of an IPv4 header whose checksum field is zero (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

/// Parses a packet with the device's header; `None` if it is not IPv4 with TCP.
pub fn read(packet: &[u8]) -> Option<Segment<'_>> {
    let packet = packet.get(PREFIX_BYTES..)?;
    let head = packet.first_chunk::<IP_BYTES>()?;
    let (short, long) = (
        |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]),
        |bytes: &[u8], at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        },
    );
    if head[0] >> 4 != 4 || head[9] != 6 {
        return None;
    }
    let start = usize::from(head[0] & 15) * 4;
    let tcp = packet.get(start..usize::from(short(head, 2)))?;
    if tcp.len() < TCP_BYTES {
        return None;
    }
    let data = tcp.get(usize::from(tcp[12] >> 4) * 4..)?;
    Some(Segment {
        from: End {
            address: long(head, 12),
            port: short(tcp, 0),
        },
        to: End {
            address: long(head, 16),
            port: short(tcp, 2),
        },
        sequence: long(tcp, 4),
        acknowledged: long(tcp, 8),
        flags: tcp[13],
        window: short(tcp, 14),
        data,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_come_back(
            numbers: (u32, u16, u32, u16, u32, u32, u16),
            flags in 0u8..32,
            data in prop::collection::vec(any::<u8>(), 0..SEGMENT_BYTES),
        ) {
            let (address, port, to, to_port, sequence, acknowledged, window) = numbers;
            let segment = Segment {
                from: End { address, port },
                to: End { address: to, port: to_port },
                sequence,
                acknowledged,
                flags,
                window,
                data: &data,
            };
            let mut packet = Vec::new();
            segment.write(&mut packet);
            prop_assert_eq!(read(&packet), Some(segment));
            // The sum over a header with a correct checksum is zero.
            prop_assert_eq!(checksum(&packet[PREFIX_BYTES..PREFIX_BYTES + IP_BYTES]), 0);
        }

        #[test]
        fn any_packet_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = read(&bytes);
        }
    }
}
