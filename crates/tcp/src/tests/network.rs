//! Two endpoints, and a network between them that loses, doubles, reorders, corrupts and delays packets and changes its MTU. The seed decides
//! everything.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crore_rng::Rng;

use super::invariants;
use crate::sequence::is_after;
use crate::{
    Account, Checksums, Config, Conn, Device, End, Packet, Part, Received, Secret, Sent, Table,
    flag, parse,
};

/// Bytes that are shared.
pub type Shared = Arc<[u8]>;
/// An endpoint.
pub type Endpoint = Table<Shared, Ledger>;

/// An account with a limit, which checks that nothing is given back twice.
#[derive(Debug)]
pub struct Ledger {
    /// Bytes by connection.
    pub held: BTreeMap<u32, usize>,
    pub total: usize,
    pub peak: usize,
    /// What is kept of all busy connections beside these bytes.
    pub entries: usize,
    pub limit: usize,
    /// What the table is told.
    pub is_short: bool,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            held: BTreeMap::new(),
            total: 0,
            peak: 0,
            entries: 0,
            limit: usize::MAX,
            is_short: false,
        }
    }
}

impl Account for Ledger {
    fn charge(&mut self, conn: Conn, bytes: usize) -> bool {
        if self.total + bytes > self.limit {
            return false;
        }
        *self.held.entry(conn.0).or_default() += bytes;
        self.total += bytes;
        self.peak = self.peak.max(self.total);
        true
    }

    fn release(&mut self, conn: Conn, bytes: usize) {
        let held = self
            .held
            .get_mut(&conn.0)
            .expect("a connection with a charge");
        *held = held.checked_sub(bytes).expect("no more than was charged");
        if *held == 0 {
            self.held.remove(&conn.0);
        }
        self.total -= bytes;
    }

    fn resize_entry(&mut self, _: Conn, before: usize, after: usize) {
        let others = self.entries.checked_sub(before);
        self.entries = others.expect("no more than was charged") + after;
    }

    fn is_short(&self) -> bool {
        self.is_short
    }
}

/// A device that keeps packets. It has room for so many.
pub struct Packets {
    pub list: Vec<Vec<u8>>,
    pub room: usize,
}

impl Default for Packets {
    fn default() -> Packets {
        Packets {
            list: Vec::new(),
            room: usize::MAX,
        }
    }
}

impl Device for Packets {
    fn transmit(&mut self, _: Option<Conn>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.list.len() >= self.room {
            return false;
        }
        let mut packet = vec![0xaa; bytes];
        fill(&mut packet);
        self.list.push(packet);
        true
    }
}

pub const CLIENT: u16 = 40_000;
pub const SERVER: u16 = 80;

/// The ends of a client and a server.
pub fn ends(is_v6: bool) -> (End, End) {
    let address = |last: u8| -> IpAddr {
        if is_v6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
        } else {
            Ipv4Addr::new(10, 0, 0, last).into()
        }
    };
    (End::new(address(1), CLIENT), End::new(address(2), SERVER))
}

/// An endpoint with this address.
pub fn endpoint(config: Config, end: End, secret: u64) -> Endpoint {
    let mut table = Table::new(config, Secret(secret, !secret), Ledger::default());
    table.add_address(end);
    table
}

/// What the network does, each in percent.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u32,
    pub double: u32,
    pub corrupt: u32,
    /// Packets that are late, and so overtaken by others.
    pub late: u32,
    /// The delay of each packet, in microseconds.
    pub delay_us: u64,
    /// The chance that the MTU changes when a packet passes.
    pub mtu: u32,
    /// The chance that the device has room for few packets in a turn.
    pub full: u32,
    /// How long the network sometimes carries nothing, in seconds.
    pub dark_s: u64,
}

/// A network without faults.
pub const CALM: Faults = Faults {
    loss: 0,
    double: 0,
    corrupt: 0,
    late: 0,
    delay_us: 1_000,
    mtu: 0,
    full: 0,
    dark_s: 0,
};

/// What an endpoint's application does.
#[derive(Debug)]
pub struct App {
    pub conn: Option<Conn>,
    /// All that it sends, how much of that the connection has taken, and whether it has closed its side.
    pub sends: Vec<u8>,
    pub taken: usize,
    pub has_shut: bool,
    /// All that it has received, and whether the stream has ended.
    pub got: Vec<u8>,
    pub has_end: bool,
    /// The largest read, and the chance in percent that it reads at all in a turn.
    pub read_bytes: usize,
    pub read_chance: u32,
    /// The chance in percent that it shares what it sends.
    pub shares: u32,
    pub failure: Option<crate::Failure>,
}

impl App {
    pub fn new(sends: Vec<u8>) -> App {
        App {
            conn: None,
            sends,
            taken: 0,
            has_shut: false,
            got: Vec::new(),
            has_end: false,
            read_bytes: 100_000,
            read_chance: 100,
            shares: 0,
            failure: None,
        }
    }

    /// Whether it has sent and received everything.
    pub fn is_done(&self) -> bool {
        self.has_shut && self.has_end
    }

    pub fn turn(&mut self, table: &mut Endpoint, rng: &mut Rng, now_us: u64) {
        let Some(conn) = self.conn else { return };
        if !self.has_end && rng.chance(self.read_chance) {
            let unread = table.readable(conn).max(1);
            let mut buffer = vec![0; self.read_bytes.min(unread)];
            loop {
                match table.read(conn, &mut buffer) {
                    Received::Bytes(count) => self.got.extend_from_slice(&buffer[..count]),
                    Received::End => self.has_end = true,
                    Received::Again => {}
                    Received::Failed(failure) => self.failure = Some(failure),
                }
                if self.read_chance < 100 || table.readable(conn) == 0 {
                    break;
                }
            }
        }
        while self.taken < self.sends.len() {
            let rest = &self.sends[self.taken..];
            let part = &rest[..rest.len().min(rng.range(1, 20_000))];
            let shared = Shared::from(part);
            let sent = if rng.chance(self.shares) {
                table.send(conn, Part::Shared(&shared), now_us)
            } else {
                table.send(conn, Part::Copied(part), now_us)
            };
            match sent {
                Sent::Bytes(count) => self.taken += count,
                Sent::Again => return,
                Sent::Failed(failure) => {
                    self.failure = Some(failure);
                    return;
                }
            }
        }
        if !self.has_shut
            && !matches!(
                table.state(conn),
                crate::State::SynSent | crate::State::SynReceived
            )
        {
            table.shut_down(conn, now_us);
            self.has_shut = true;
        }
    }
}

/// Two endpoints and the network between them.
pub struct World {
    pub rng: Rng,
    pub now_us: u64,
    pub sides: [Endpoint; 2],
    pub apps: [App; 2],
    pub faults: Faults,
    pub mtu: usize,
    /// Until when the network carries nothing.
    dark_until_us: u64,
    pub ends: [End; 2],
    /// Packets under way: when they arrive, their number, and the side that they arrive at.
    under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
    /// The end of the largest window that each side has offered, in the peer's sequence numbers.
    offered: [Option<u32>; 2],
    /// What a packet must not do, if one has done it.
    pub violation: Option<&'static str>,
}

impl World {
    /// A client that connects to a server. `configs` are of client and server.
    pub fn new(
        seed: u64,
        is_v6: bool,
        configs: [Config; 2],
        apps: [App; 2],
        faults: Faults,
    ) -> World {
        let (client, server) = ends(is_v6);
        let [client_config, server_config] = configs;
        let mut sides = [
            endpoint(client_config, client, seed ^ 1),
            endpoint(server_config, server, seed ^ 2),
        ];
        sides[1].listen(SERVER);
        let mut world = World {
            rng: Rng::new(seed),
            now_us: 1_000_000,
            sides,
            apps,
            faults,
            mtu: 1_500,
            dark_until_us: 0,
            ends: [client, server],
            under_way: BTreeMap::new(),
            sent: 0,
            offered: [None; 2],
            violation: None,
        };
        world.apps[0].conn = world.sides[0].connect(client, server, 0, world.now_us);
        world
    }

    /// Passes a packet of this side to the network.
    pub fn post(&mut self, side: usize, packet: Vec<u8>) {
        self.check(side, &packet);
        if self.rng.chance(self.faults.mtu) {
            self.mtu = self.rng.pick(&[1_500, 1_492, 1_400, 1_280, 1_300, 576]);
            if self.ends[0].ip().is_ipv6() {
                self.mtu = self.mtu.max(1_280);
            }
        }
        if packet.len() > self.mtu {
            let message = too_big(&packet, self.mtu as u16);
            return self.put(side, message);
        }
        if self.rng.chance(self.faults.double) {
            self.put(1 - side, packet.clone());
        }
        self.put(1 - side, packet);
    }

    fn put(&mut self, to: usize, mut packet: Vec<u8>) {
        // Once in some 1,000 packets.
        if self.faults.dark_s > 0 && self.rng.below(1_000) == 0 {
            self.dark_until_us = self.now_us + self.faults.dark_s * 1_000_000;
        }
        if self.now_us < self.dark_until_us || self.rng.chance(self.faults.loss) {
            return;
        }
        if self.rng.chance(self.faults.corrupt) {
            let at = self.rng.below(packet.len());
            match self.rng.chance(80) {
                true => packet[at] ^= 1 << self.rng.below(8),
                false => packet.truncate(at),
            }
        }
        let mut delay_us = self.faults.delay_us;
        if self.rng.chance(self.faults.late) {
            delay_us += self.rng.range(1, 20 * self.faults.delay_us as usize) as u64;
        }
        self.sent += 1;
        self.under_way
            .insert((self.now_us + delay_us, self.sent), (to, packet));
    }

    /// Checks a packet that this side sends: it parses, and its data is within the window that the peer has offered.
    fn check(&mut self, side: usize, packet: &[u8]) {
        let Ok(Packet::Segment(segment)) = parse(packet, Checksums::Verified) else {
            self.violation = Some("a packet does not parse");
            return;
        };
        let head = &segment.head;
        if head.has(flag::RST) {
            return;
        }
        if let Some(edge) = self.offered[1 - side]
            && is_after(head.sequence.wrapping_add(segment.data.len() as u32), edge)
        {
            self.violation = Some("bytes beyond the window");
        }
        if !head.has(flag::ACK) {
            return;
        }
        let edge = self.offered[side].unwrap_or(head.acknowledged);
        // Windows are always shifted here, but for those of a SYN.
        let table = &self.sides[side];
        let shift = match head.has(flag::SYN) {
            true => 0,
            false => table.own_shift(table.config.receive_log2),
        };
        let new = head
            .acknowledged
            .wrapping_add(u32::from(head.window) << shift);
        let edge = if is_after(new, edge) { new } else { edge };
        self.offered[side] = Some(edge);
    }

    /// One turn of one side: it receives what has arrived, its application runs, and it sends.
    fn turn(&mut self, side: usize, packet: Option<Vec<u8>>) {
        let mut device = Packets::default();
        if self.rng.chance(self.faults.full) {
            device.room = self.rng.below(3);
        }
        if let Some(packet) = packet {
            self.sides[side].receive(&packet, self.now_us, &mut device);
        }
        if side == 1 && self.apps[1].conn.is_none() {
            self.apps[1].conn = self.sides[1].accept(0, 1);
        }
        let (app, table) = (&mut self.apps[side], &mut self.sides[side]);
        app.turn(table, &mut self.rng, self.now_us);
        table.poll(self.now_us, &mut device);
        if let Err(violation) = invariants::check(table) {
            self.violation = Some(violation);
        }
        for packet in device.list {
            self.post(side, packet);
        }
    }

    /// Runs until both applications are done, or for this many seconds. Returns whether they are done.
    pub fn run(&mut self, seconds: u64) -> bool {
        let end_us = self.now_us + seconds * 1_000_000;
        self.turn(0, None);
        self.turn(1, None);
        while !(self.apps[0].is_done() && self.apps[1].is_done()) {
            if self.apps.iter().any(|app| app.failure.is_some()) || !self.step(end_us) {
                return false;
            }
        }
        true
    }

    /// Goes on to the next thing that happens. `false` if that is after `end_us`.
    pub fn step(&mut self, end_us: u64) -> bool {
        let arrival = self
            .under_way
            .first_key_value()
            .map(|((due_us, _), _)| *due_us);
        let timer = |side: usize| self.sides[side].next_us();
        let mut next_us = arrival.unwrap_or(u64::MAX);
        for due_us in [timer(0), timer(1)].into_iter().flatten() {
            next_us = next_us.min(due_us);
        }
        // An application that does not always read tries again.
        if self
            .apps
            .iter()
            .any(|app| app.conn.is_some() && !app.is_done())
        {
            next_us = next_us.min(self.now_us + 50_000);
        }
        if next_us > end_us {
            return false;
        }
        self.now_us = self.now_us.max(next_us);
        match self.under_way.first_key_value() {
            Some(((due_us, _), _)) if *due_us <= self.now_us => {
                if let Some((_, (side, packet))) = self.under_way.pop_first() {
                    self.turn(side, Some(packet));
                }
            }
            _ => {
                self.turn(0, None);
                self.turn(1, None);
            }
        }
        true
    }

    /// Lets time pass, with all that happens in it.
    pub fn pass(&mut self, seconds: u64) {
        let end_us = self.now_us + seconds * 1_000_000;
        while self.step(end_us) {}
        self.now_us = end_us;
        self.turn(0, None);
        self.turn(1, None);
    }

    /// Checks that each application has received what the other one has sent, and that no connection has failed.
    pub fn verdict(&self) -> Result<(), &'static str> {
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        for side in 0..2 {
            let (got, sends) = (&self.apps[side].got, &self.apps[1 - side].sends);
            if !sends.starts_with(got) {
                return Err("other bytes than were sent");
            }
            if self.apps[side].failure.is_some() {
                return Err("a connection has failed");
            }
            if got.len() < sends.len() {
                return Err("bytes have not arrived");
            }
        }
        Ok(())
    }
}

/// The message of a router that a packet was too big.
pub fn too_big(packet: &[u8], mtu: u16) -> Vec<u8> {
    let sum = |bytes: &[u8], start: u32| -> u16 {
        let mut sum = start;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    };
    let is_v4 = packet[0] >> 4 == 4;
    let quoted = &packet[..packet.len().min(if is_v4 { 28 } else { 1_200 })];
    let mut out = Vec::new();
    let mut icmp = if is_v4 {
        vec![3, 4, 0, 0, 0, 0, 0, 0]
    } else {
        vec![2, 0, 0, 0, 0, 0, 0, 0]
    };
    icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
    icmp.extend_from_slice(quoted);
    if is_v4 {
        let check = sum(&icmp, 0);
        icmp[2..4].copy_from_slice(&check.to_be_bytes());
        out.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 9, 9]);
        out.extend_from_slice(&packet[12..16]);
        let total = (20 + icmp.len()) as u16;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        let check = sum(&out, 0);
        out[10..12].copy_from_slice(&check.to_be_bytes());
    } else {
        out.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, 58, 64]);
        out[4..6].copy_from_slice(&(icmp.len() as u16).to_be_bytes());
        out.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        out.extend_from_slice(&packet[8..24]);
        let pseudo = out[8..40]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum::<u32>();
        let check = sum(&icmp, pseudo + 58 + icmp.len() as u32);
        icmp[2..4].copy_from_slice(&check.to_be_bytes());
    }
    out.extend_from_slice(&icmp);
    out
}
