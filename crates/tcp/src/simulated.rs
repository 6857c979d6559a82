//! What a test of two endpoints needs: an account that checks itself, a device that keeps packets, and a network with faults. The simulator of the
//! broker uses them too, by the feature `simulated`.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crore_rng::Rng;

use crate::account::Account;
use crate::row::Conn;
use crate::table::Device;

/// Bytes that are shared.
pub type Shared = Arc<[u8]>;

/// An account with a limit, which checks that nothing is given back twice.
#[derive(Debug)]
pub struct Ledger {
    /// Bytes by connection.
    pub held: BTreeMap<u32, usize>,
    /// Bytes of all connections.
    pub total: usize,
    /// The most that `total` has been.
    pub peak: usize,
    /// What is kept of all busy connections beside these bytes.
    pub entries: usize,
    /// The most that `total` may be.
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

/// A device that keeps packets.
#[derive(Debug)]
pub struct Packets {
    /// The packets that were sent.
    pub list: Vec<Vec<u8>>,
    /// The number of packets that it has room for.
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

/// What the network does, each in percent.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Packets that are lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub double: u32,
    /// Packets of which a bit changes or the end is missing.
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

/// A network between two ends, 0 and 1, that loses, doubles, reorders, corrupts and delays packets and changes its MTU. The seed of its random
/// numbers decides everything.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    /// What it does to packets that are sent from now on.
    pub faults: Faults,
    mtu: usize,
    /// The smallest MTU.
    mtu_min: usize,
    /// Until when the network carries nothing.
    dark_until_us: u64,
    /// Packets in flight: when they arrive, their number, and the end that they arrive at.
    in_flight: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
}

impl Network {
    /// A network without packets.
    pub fn new(rng: Rng, is_v6: bool, faults: Faults) -> Network {
        Network {
            rng,
            faults,
            mtu: 1_500,
            mtu_min: if is_v6 { 1_280 } else { 576 },
            dark_until_us: 0,
            in_flight: BTreeMap::new(),
            sent: 0,
        }
    }

    /// How many packets the device of an end has room for in this turn.
    pub fn device_room(&mut self) -> usize {
        match self.rng.chance(self.faults.full) {
            true => self.rng.below(3),
            false => usize::MAX,
        }
    }

    /// Takes a packet of this end. The end gets a message in return if the packet is too big.
    pub fn send(&mut self, now_us: u64, from: usize, packet: Vec<u8>) {
        if self.rng.chance(self.faults.mtu) {
            let mtu = self.rng.pick(&[1_500, 1_492, 1_400, 1_280, 1_300, 576]);
            self.mtu = mtu.max(self.mtu_min);
        }
        if packet.len() > self.mtu {
            let message = too_big(&packet, self.mtu as u16);
            return self.put(now_us, from, message);
        }
        if self.rng.chance(self.faults.double) {
            self.put(now_us, 1 - from, packet.clone());
        }
        self.put(now_us, 1 - from, packet);
    }

    fn put(&mut self, now_us: u64, to: usize, mut packet: Vec<u8>) {
        // Once in some 1,000 packets.
        if self.faults.dark_s > 0 && self.rng.below(1_000) == 0 {
            self.dark_until_us = now_us + self.faults.dark_s * 1_000_000;
        }
        if now_us < self.dark_until_us || self.rng.chance(self.faults.loss) {
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
        self.in_flight
            .insert((now_us + delay_us, self.sent), (to, packet));
    }

    /// When the next packet arrives. `None` if no packet is in flight.
    pub fn next_us(&self) -> Option<u64> {
        self.in_flight
            .first_key_value()
            .map(|((due_us, _), _)| *due_us)
    }

    /// Takes the next packet that has arrived by this time, and the end that it arrives at.
    pub fn receive(&mut self, now_us: u64) -> Option<(usize, Vec<u8>)> {
        let first = self.in_flight.first_entry();
        let arrived = first.filter(|entry| entry.key().0 <= now_us);
        arrived.map(|entry| entry.remove())
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
