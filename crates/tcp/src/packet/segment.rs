//! Segments of TCP: the header (RFC 9293 §3.1), the options and the data.

use super::checksum::{u16_at, u32_at};
use super::end::End;
use super::ip::{self, Ip, Refusal};
use super::options::Options;
use crate::config::Checksums;

/// The flags of a segment (RFC 9293 §3.1).
pub mod flag {
    #![allow(missing_docs, reason = "the names are those of the RFC")]
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// The bytes of a header without options.
const TCP_BYTES: usize = 20;

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

/// The bytes of the headers of a segment to this end.
pub fn header_bytes(to: End, options: &Options) -> usize {
    ip::header_bytes(to) + TCP_BYTES + options.bytes()
}

/// Writes a packet. `out` has its exact size; `fill` writes the data.
pub fn write(head: &Head, checksums: bool, out: &mut [u8], fill: impl FnOnce(&mut [u8])) {
    let (ip, tcp) = out.split_at_mut(ip::header_bytes(head.to));
    let tcp_bytes = TCP_BYTES + head.options.bytes();
    let tcp_total = tcp.len() as u16;
    let pseudo = ip::write(head.from, head.to, tcp_total, ip);
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
        let sum = pseudo.with(tcp).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Parses the segment in a packet.
pub fn parse_tcp<'a>(ip: &Ip<'a>, checksums: Checksums) -> Result<Segment<'a>, Refusal> {
    let tcp = ip.body;
    if tcp.len() < TCP_BYTES {
        return Err(Refusal::Malformed);
    }
    let is_whole = || ip.pseudo().with(tcp).finish() == 0;
    let is_right = match checksums {
        Checksums::Ignored => true,
        Checksums::Verified => is_whole(),
        Checksums::VerifiedUnlessPartial => ip.pseudo().finish() == !u16_at(tcp, 16) || is_whole(),
    };
    if !is_right {
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
