//! Reads and writes packets: IPv4 or IPv6, TCP with its options, and the messages of ICMP that say that a packet was too big.
//!
//! Invariant: what is parsed is a whole packet with right checksums and possible addresses. Nothing behind the packet's own length is looked at.

mod checksum;
mod end;
mod icmp;
mod ip;
mod options;
mod segment;

pub use end::End;
pub use icmp::TooBig;
pub use ip::Refusal;
pub use options::{Options, Sacks};
pub use segment::{Head, Segment, flag, header_bytes, write};

use icmp::parse_too_big;
use ip::{ICMP, ICMP_V6, Ip, TCP};
use segment::parse_tcp;

use crate::config::Checksums;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A segment.
    Segment(Segment<'a>),
    /// A packet of ours was too big.
    TooBig(TooBig),
}

/// Parses a packet.
///
/// # Errors
/// If the packet is of no use here.
pub fn parse(packet: &[u8], checksums: Checksums) -> Result<Packet<'_>, Refusal> {
    let ip = Ip::parse(packet)?;
    match (ip.protocol, ip.from.v4().is_some()) {
        (TCP, _) => parse_tcp(&ip, checksums).map(Packet::Segment),
        (ICMP, true) | (ICMP_V6, false) => parse_too_big(&ip).map(Packet::TooBig),
        _ => Err(Refusal::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;
    use core::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_come_back(
            numbers: (u32, u32, u32, u32, u16),
            ports in (1u16.., 1u16..),
            is_v6: bool,
            flags in 0u8..32,
            options: (Option<u16>, Option<u32>, bool),
            shift in prop::option::of(0u8..15),
            sacks in prop::collection::vec(any::<(u32, u32)>(), 0..4),
            data in prop::collection::vec(any::<u8>(), 0..1_400),
        ) {
            let (from, to, sequence, acknowledged, window) = numbers;
            let end = |number: u32, port| match is_v6 {
                false => End::new(Ipv4Addr::from(number), port),
                true => End::new(Ipv6Addr::from(u128::from(number) | 1 << 120), port),
            };
            let (segment_bytes, clock, sack_permitted) = options;
            let mut head = Head {
                from: end(from, ports.0),
                to: end(to, ports.1),
                sequence,
                acknowledged,
                flags,
                window,
                options: Options {
                    segment_bytes,
                    window_shift: shift,
                    sack_permitted,
                    timestamps: clock.map(|clock| (clock, !clock)),
                    ..Options::default()
                },
            };
            // A SYN has no ranges: all options together would be too long.
            if segment_bytes.is_none() && shift.is_none() && !sack_permitted {
                for range in sacks {
                    head.options.add_sack(range);
                }
            }
            prop_assume!(head.from.is_source() && head.from != head.to);
            let mut packet = vec![0xaa; header_bytes(head.to, &head.options) + data.len()];
            write(&head, true, &mut packet, |place| place.copy_from_slice(&data));
            prop_assert_eq!(parse(&packet, Checksums::Verified), Ok(Packet::Segment(Segment { head, data: &data })));
            // Bytes behind the packet, as short frames of Ethernet have them, are not part of it.
            packet.extend_from_slice(&[0; 6]);
            prop_assert_eq!(parse(&packet, Checksums::Verified), Ok(Packet::Segment(Segment { head, data: &data })));
        }

        #[test]
        fn any_packet_is_parsed_or_refused(bytes: Vec<u8>, is_v6: bool) {
            let mut packet = vec![0; 60];
            packet[0] = if is_v6 { 0x60 } else { 0x45 };
            packet[if is_v6 { 6 } else { 9 }] = TCP;
            packet[if is_v6 { 5 } else { 3 }] = 20 + bytes.len() as u8;
            packet.splice(if is_v6 { 40 } else { 20 }.., bytes.iter().copied());
            let _ = parse(&packet, Checksums::Ignored);
            let _ = parse(&bytes, Checksums::Ignored);
        }
    }
}
