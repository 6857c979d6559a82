//! Fuzz target for segments that arrive at a table of connections. A peer without a mind of its own says any segment in any state.
//!
//! Each byte of the peer's stream follows from its position, whatever the segments overlap. Checked: the bytes that are read are those of the
//! stream; nothing is held beyond the limits; what a connection held is given back when it is reset.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crore_tcp::{
    Account, Checksums, Config, Conn, Device, End, Head, Options, Packet, Part, Received, Secret,
    Segment, Table, flag, header_bytes, parse, write,
};

use crate::Input;

/// Bytes of a step in the input.
const STEP: usize = 8;
/// The first sequence number of the peer.
const FIRST: u32 = 0xffff_f000;

/// What is held of each connection: its bytes, and its entry beside them. The peer can open another connection once the one under test has
/// failed.
#[derive(Default)]
struct Ledger {
    held: BTreeMap<Conn, (usize, usize)>,
}

impl Ledger {
    fn of(&self, conn: Conn) -> (usize, usize) {
        self.held.get(&conn).copied().unwrap_or_default()
    }
}

impl Account for Ledger {
    fn charge(&mut self, conn: Conn, bytes: usize) -> bool {
        self.held.entry(conn).or_default().0 += bytes;
        true
    }

    fn release(&mut self, conn: Conn, bytes: usize) {
        let held = &mut self.held.entry(conn).or_default().0;
        *held = held.checked_sub(bytes).expect("no more than was charged");
    }

    fn resize_entry(&mut self, conn: Conn, before: usize, after: usize) {
        let entry = &mut self.held.entry(conn).or_default().1;
        assert_eq!(*entry, before, "what was charged before");
        *entry = after;
    }
}

/// Keeps the last acknowledged and sequence numbers that the table has sent.
#[derive(Default)]
struct Link {
    next: u32,
}

impl Device for Link {
    fn transmit(&mut self, _: Option<Conn>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut packet = vec![0; bytes];
        fill(&mut packet);
        match parse(&packet, Checksums::Verified) {
            Ok(Packet::Segment(Segment { head, data })) => {
                let after = data.len() as u32 + head.control();
                self.next = head.sequence.wrapping_add(after);
            }
            other => panic!("the table has sent {other:?}"),
        }
        true
    }
}

/// The byte at this place of the peer's stream.
fn byte_at(place: u32) -> u8 {
    (place.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Runs steps of an input.
pub fn tcp(data: &[u8]) {
    let Some(input) = Input::of(data) else {
        return;
    };
    let config = Config {
        connections: 8,
        receive_log2: 12,
        ranges: 4,
        ack_delay_us: 0,
        ..Config::default()
    };
    let limit = (1 << config.receive_log2) + config.send_bytes as usize;
    let (own, peer) = (
        End::new(Ipv4Addr::new(10, 0, 0, 2), 80),
        End::new(Ipv4Addr::new(10, 0, 0, 1), 4_000),
    );
    let mut table: Table<Vec<u8>, Ledger> = Table::new(config, Secret(1, 2), Ledger::default());
    table.add_address(own);
    table.listen(own.port);
    let mut link = Link::default();
    let mut now_us = 50_000_000;
    let head = |flags: u8, sequence: u32, acknowledged: u32| Head {
        from: peer,
        to: own,
        sequence,
        acknowledged,
        flags,
        window: 1_000,
        options: Options::default(),
    };
    let packet = |head: &Head, bytes: usize| {
        let mut out = vec![0; header_bytes(head.to, &head.options) + bytes];
        let syn = u32::from(head.has(flag::SYN));
        let at = head.sequence.wrapping_add(syn).wrapping_sub(FIRST + 1);
        write(head, true, &mut out, |place| {
            for (n, byte) in place.iter_mut().enumerate() {
                *byte = byte_at(at.wrapping_add(n as u32));
            }
        });
        out
    };
    let conn = if input.options & 1 == 0 {
        let mut syn = head(flag::SYN, FIRST, 0);
        syn.options.sack_permitted = true;
        table.receive(&packet(&syn, 0), now_us, &mut link);
        let third = head(flag::ACK, FIRST + 1, link.next);
        table.receive(&packet(&third, 0), now_us, &mut link);
        table
            .accept(0, 0)
            .expect("the third packet opens the connection")
    } else {
        let conn = table.connect(own, peer, 0, now_us).expect("room");
        table.poll(now_us, &mut link);
        conn
    };
    let mut place = 0;
    let mut received = FIRST + 1;
    for step in input.bytes.chunks(STEP) {
        let part = |n: usize| step.get(n).copied().unwrap_or(0);
        let near = u32::from(u16::from_be_bytes([part(1), part(2)]));
        match part(0) >> 5 {
            0 => now_us += u64::from(near) * 1_000,
            1 => {
                table.send(
                    conn,
                    Part::Copied(&[7; 600][..usize::from(part(1)) * 2]),
                    now_us,
                );
            }
            2 => {
                let mut buffer = [0; 300];
                if let Received::Bytes(count) =
                    table.read(conn, &mut buffer[..1 + usize::from(part(1))])
                {
                    for byte in &buffer[..count] {
                        assert_eq!(*byte, byte_at(place), "byte {place} of the stream");
                        place += 1;
                    }
                }
            }
            3 if part(1) == 0 => table.shut_down(conn, now_us),
            3 => {
                table.receive(step, now_us, &mut link);
            }
            _ => {
                let sequence = received.wrapping_add(near).wrapping_sub(64);
                let ack = link.next.wrapping_add(u32::from(part(3))).wrapping_sub(8);
                let mut said = head(part(4) & 0x1f, sequence, ack);
                said.window = u16::from(part(5)) << 4;
                if said.flags & flag::SYN != 0 {
                    said.sequence = FIRST;
                }
                if part(6) & 1 != 0 {
                    said.options
                        .add_sack((ack.wrapping_add(part(6).into()), ack.wrapping_add(near)));
                }
                let bytes = if part(6) & 2 == 0 {
                    0
                } else {
                    usize::from(part(7)) * 4
                };
                table.receive(&packet(&said, bytes), now_us, &mut link);
                if part(6) & 4 != 0 {
                    received = sequence.wrapping_add(bytes as u32);
                }
            }
        }
        table.poll(now_us, &mut link);
        for (conn, (bytes, _)) in &table.account.held {
            assert!(*bytes <= limit, "{bytes} bytes are held of {conn:?}");
        }
    }
    table.reset(conn, now_us, &mut link);
    assert_eq!(
        table.account.of(conn),
        (0, 0),
        "a reset gives back all that the connection held"
    );
    // A connection that the peer has opened after it waits at the listener.
    table.close_listeners(now_us, &mut link);
    let mut held = table.account.held.values();
    assert!(
        held.all(|held| *held == (0, 0)),
        "a listener that closes gives back all that its connections held"
    );
}
