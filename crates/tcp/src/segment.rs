//! Reads and writes packets: IPv4 or IPv6, TCP with its options, and the messages of ICMP that say that a packet was too big.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The flags of a segment (RFC 9293 §3.1).
pub mod flag {
    #![allow(missing_docs, reason = "the names are those of the RFC")]
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
/// Blocks of selective acknowledgements that fit into a header (RFC 2018 §3).
const SACKS: usize = 4;

/// One end of a connection. An IPv4 address is stored as an IPv6 address (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: Ipv6Addr,
    /// The port.
    pub port: u16,
}

impl End {
    /// An end with this address and port.
    pub fn new(address: impl Into<IpAddr>, port: u16) -> End {
        let address = match address.into() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        End { address, port }
    }

    /// The address as the peer uses it.
    pub fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }

    fn v4(&self) -> Option<Ipv4Addr> {
        self.address.to_ipv4_mapped()
    }

    /// Whether this can be the source of a segment: neither unspecified nor multicast nor broadcast.
    fn is_source(&self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
            IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
        }
    }
}

/// The options of a segment that this crate knows. Others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The maximum segment size (RFC 9293 §3.7.1).
    pub segment_bytes: Option<u16>,
    /// The shift of the windows that follow (RFC 7323 §2).
    pub window_shift: Option<u8>,
    /// Whether selective acknowledgements are understood (RFC 2018 §2).
    pub sack_permitted: bool,
    /// The sender's clock, and the clock that it echoes (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// Ranges of bytes that have arrived out of order.
    pub sacks: Sacks,
}

/// Ranges of bytes that have arrived out of order: the first byte of each, and the one after its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sacks {
    list: [(u32, u32); SACKS],
    count: u8,
}

impl Sacks {
    /// The ranges.
    pub fn list(&self) -> &[(u32, u32)] {
        &self.list[..usize::from(self.count)]
    }

    /// The ranges in the order of their distance from this number.
    pub fn sorted(mut self, from: u32) -> Sacks {
        let list = &mut self.list[..usize::from(self.count)];
        list.sort_unstable_by_key(|(start, _)| start.wrapping_sub(from));
        self
    }
}

impl Options {
    /// Adds a range if there is room for it. Returns whether there was.
    pub fn add_sack(&mut self, range: (u32, u32)) -> bool {
        let room = if self.timestamps.is_some() {
            SACKS - 1
        } else {
            SACKS
        };
        let place = usize::from(self.sacks.count);
        if place < room {
            self.sacks.list[place] = range;
            self.sacks.count += 1;
        }
        place < room
    }

    fn bytes(&self) -> usize {
        let sacks = usize::from(self.sacks.count);
        [
            (self.segment_bytes.is_some(), 4),
            (self.sack_permitted, 4),
            (self.timestamps.is_some(), 12),
            (self.window_shift.is_some(), 4),
            (sacks > 0, 4 + 8 * sacks),
        ]
        .into_iter()
        .map(|(is_there, bytes)| if is_there { bytes } else { 0 })
        .sum()
    }

    /// Every option begins at a multiple of four bytes; one-byte options fill the gaps.
    fn write(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(bytes) = self.segment_bytes {
            put(&[2, 4]);
            put(&bytes.to_be_bytes());
        }
        if self.sack_permitted {
            put(&[1, 1, 4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            put(&[1, 1, 8, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_shift {
            put(&[1, 3, 3, shift]);
        }
        if self.sacks.count > 0 {
            put(&[1, 1, 5, 2 + 8 * self.sacks.count]);
            for (from, to) in self.sacks.list() {
                put(&from.to_be_bytes());
                put(&to.to_be_bytes());
            }
        }
    }

    /// Parses the options of a header; `None` if one of them has an impossible length.
    fn parse(mut bytes: &[u8]) -> Option<Options> {
        let mut options = Options::default();
        while let Some(&kind) = bytes.first() {
            match kind {
                0 => break,
                1 => {
                    bytes = &bytes[1..];
                    continue;
                }
                _ => {}
            }
            let length = usize::from(*bytes.get(1)?);
            let value = bytes.get(2..length)?;
            match (kind, value.len()) {
                (2, 2) => options.segment_bytes = Some(u16_at(value, 0)),
                // A larger shift counts as 14 (RFC 7323 §2.3).
                (3, 1) => options.window_shift = Some(value[0].min(14)),
                (4, 0) => options.sack_permitted = true,
                (5, 8 | 16 | 24 | 32) => {
                    options.sacks.count = (value.len() / 8) as u8;
                    for (block, place) in value.chunks_exact(8).zip(&mut options.sacks.list) {
                        *place = (u32_at(block, 0), u32_at(block, 4));
                    }
                }
                (8, 8) => options.timestamps = Some((u32_at(value, 0), u32_at(value, 4))),
                (2 | 3 | 4 | 5 | 8, _) => return None,
                _ => {}
            }
            bytes = &bytes[length..];
        }
        Some(options)
    }
}

/// A segment without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
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
    /// The receive window of the sender, shifted.
    pub window: u16,
    /// The options.
    pub options: Options,
}

impl Head {
    /// Whether the segment has all of these flags.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The sequence numbers that SYN and FIN take.
    pub fn control(&self) -> u32 {
        u32::from(self.has(flag::SYN)) + u32::from(self.has(flag::FIN))
    }
}

/// A segment that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Everything but the data.
    pub head: Head,
    /// The data.
    pub data: &'a [u8],
}

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

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A segment.
    Segment(Segment<'a>),
    /// A packet of ours was too big.
    TooBig(TooBig),
}

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

/// The bytes of the headers of a segment between these ends.
pub fn header_bytes(to: End, options: &Options) -> usize {
    let ip = if to.v4().is_some() {
        V4_BYTES
    } else {
        V6_BYTES
    };
    ip + TCP_BYTES + options.bytes()
}

/// Writes a packet. `out` has its exact size; `fill` writes the data.
pub fn write(head: &Head, checksums: bool, out: &mut [u8], fill: impl FnOnce(&mut [u8])) {
    let start = header_bytes(head.to, &Options::default()) - TCP_BYTES;
    let tcp_bytes = TCP_BYTES + head.options.bytes();
    let total = out.len();
    let (ip, tcp) = out.split_at_mut(start);
    let tcp_total = (total - start) as u16;
    let mut pseudo = Sum::default();
    match (head.from.v4(), head.to.v4()) {
        (Some(from), Some(to)) => {
            // These fields are: version and header length; no fragments; 64 hops; TCP.
            ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
            let sum = Sum::default().with(ip).finish();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            pseudo = pseudo.with(&ip[12..20]);
        }
        _ => {
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, TCP, 64]);
            ip[4..6].copy_from_slice(&tcp_total.to_be_bytes());
            ip[8..24].copy_from_slice(&head.from.address.octets());
            ip[24..40].copy_from_slice(&head.to.address.octets());
            pseudo = pseudo.with(&ip[8..40]);
        }
    }
    tcp[..2].copy_from_slice(&head.from.port.to_be_bytes());
    tcp[2..4].copy_from_slice(&head.to.port.to_be_bytes());
    tcp[4..8].copy_from_slice(&head.sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&head.acknowledged.to_be_bytes());
    tcp[12] = (tcp_bytes as u8 / 4) << 4;
    tcp[13] = head.flags;
    tcp[14..16].copy_from_slice(&head.window.to_be_bytes());
    // The checksum, and no urgent data.
    tcp[16..20].fill(0);
    head.options.write(&mut tcp[TCP_BYTES..tcp_bytes]);
    fill(&mut tcp[tcp_bytes..]);
    if checksums {
        let sum = pseudo.with(&[0, TCP]).with(&tcp_total.to_be_bytes());
        let sum = sum.with(tcp).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Parses a packet.
///
/// # Errors
/// If the packet is of no use here.
pub fn parse(packet: &[u8], checksums: bool) -> Result<Packet<'_>, Refusal> {
    let ip = Ip::parse(packet)?;
    match (ip.protocol, ip.from.v4().is_some()) {
        (TCP, _) => parse_tcp(&ip, checksums).map(Packet::Segment),
        (ICMP, true) | (ICMP_V6, false) => parse_too_big(&ip).map(Packet::TooBig),
        _ => Err(Refusal::Foreign),
    }
}

/// The header of a packet that is no fragment.
struct Ip<'a> {
    /// The ends, without ports.
    from: End,
    to: End,
    protocol: u8,
    body: &'a [u8],
}

impl<'a> Ip<'a> {
    fn parse(packet: &'a [u8]) -> Result<Ip<'a>, Refusal> {
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
    fn quoted(packet: &'a [u8]) -> Result<Ip<'a>, Refusal> {
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

    /// The sum of the header that TCP and ICMPv6 add to theirs.
    fn pseudo(&self, protocol: u8) -> Sum {
        let sum = match (self.from.v4(), self.to.v4()) {
            (Some(from), Some(to)) => Sum::default().with(&from.octets()).with(&to.octets()),
            _ => Sum::default()
                .with(&self.from.address.octets())
                .with(&self.to.address.octets()),
        };
        sum.with(&[0, protocol])
            .with(&(self.body.len() as u16).to_be_bytes())
    }
}

fn parse_tcp<'a>(ip: &Ip<'a>, checksums: bool) -> Result<Segment<'a>, Refusal> {
    let tcp = ip.body;
    if tcp.len() < TCP_BYTES {
        return Err(Refusal::Malformed);
    }
    if checksums && ip.pseudo(TCP).with(tcp).finish() != 0 {
        return Err(Refusal::Checksum);
    }
    let bytes = usize::from(tcp[12] >> 4) * 4;
    let options = tcp.get(TCP_BYTES..bytes).and_then(Options::parse);
    let head = Head {
        from: End {
            port: u16_at(tcp, 0),
            ..ip.from
        },
        to: End {
            port: u16_at(tcp, 2),
            ..ip.to
        },
        sequence: u32_at(tcp, 4),
        acknowledged: u32_at(tcp, 8),
        flags: tcp[13],
        window: u16_at(tcp, 14),
        options: options.ok_or(Refusal::Malformed)?,
    };
    // The last one is the "land" attack: a connection of an end with itself.
    if head.from.port == 0 || head.to.port == 0 || !head.from.is_source() || head.from == head.to {
        return Err(Refusal::Malformed);
    }
    Ok(Segment {
        head,
        data: &tcp[bytes..],
    })
}

/// Parses a message that a packet of ours was too big (RFC 1191, RFC 8201), which quotes the packet's first bytes.
fn parse_too_big(ip: &Ip<'_>) -> Result<TooBig, Refusal> {
    let is_v4 = ip.protocol == ICMP;
    let (head, quoted) = ip.body.split_at_checked(8).ok_or(Refusal::Malformed)?;
    let sum = if is_v4 {
        Sum::default()
    } else {
        ip.pseudo(ICMP_V6)
    };
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

/// A checksum in progress (RFC 1071). Every part but the last has an even number of bytes.
#[derive(Clone, Copy, Default)]
struct Sum(u64);

impl Sum {
    fn with(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for word in words {
            sum += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Sum(sum + u64::from(u32::from_be_bytes(last)))
    }

    fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

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
            prop_assert_eq!(parse(&packet, true), Ok(Packet::Segment(Segment { head, data: &data })));
            // Bytes behind the packet, as short frames of Ethernet have them, are not part of it.
            packet.extend_from_slice(&[0; 6]);
            prop_assert_eq!(parse(&packet, true), Ok(Packet::Segment(Segment { head, data: &data })));
        }

        #[test]
        fn any_packet_is_parsed_or_refused(bytes: Vec<u8>, is_v6: bool) {
            let mut packet = vec![0; 60];
            packet[0] = if is_v6 { 0x60 } else { 0x45 };
            packet[if is_v6 { 6 } else { 9 }] = TCP;
            packet[if is_v6 { 5 } else { 3 }] = 20 + bytes.len() as u8;
            packet.splice(if is_v6 { 40 } else { 20 }.., bytes.iter().copied());
            let _ = parse(&packet, false);
            let _ = parse(&bytes, false);
        }
    }
}
