//! The way between the clients and the kernel: the device, and the bad network that the tool plays itself.
//!
//! A packet that is lost here is lost for TCP, not for the count: every one is counted, and so is each that the kernel did not take.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::Duration;

use super::packet::Segment;
use crate::measure::payload::Random;
use crate::sys::tun::Tun;

/// Bytes of a read: more than a packet has.
pub const READ_BYTES: usize = 2048;

/// The faults of the network, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weather {
    /// The share of packets that are lost.
    pub loss: f64,
    /// The longest time that a packet waits. Each waits for a time of its own, so that packets overtake one another.
    pub delay_ns: u64,
}

/// A packet under way: when it arrives, in which order it was sent, whether it comes from the server, and its bytes.
type UnderWay = Reverse<(u64, u64, bool, Vec<u8>)>;

/// Counts of packets.
#[derive(Clone, Copy, Debug, Default, derive_more::AddAssign)]
pub struct Traffic {
    /// Packets read from the device.
    pub received: u64,
    /// Packets written to it.
    pub sent: u64,
    /// Packets that the weather lost.
    pub lost: u64,
    /// Packets that the device did not take.
    pub not_taken: u64,
}

/// A device and its weather.
pub struct Wire {
    device: Tun,
    weather: Weather,
    is_fair: bool,
    random: Random,
    under_way: BinaryHeap<UnderWay>,
    sent: u64,
    packet: Vec<u8>,
    /// Counted since the last look.
    pub traffic: Traffic,
}

impl Wire {
    /// A wire of this device.
    pub fn new(device: Tun, weather: Weather, seed: u64) -> Wire {
        Wire {
            device,
            weather,
            is_fair: weather == Weather::default(),
            random: Random::new(seed),
            under_way: BinaryHeap::new(),
            sent: 0,
            packet: Vec::with_capacity(READ_BYTES),
            traffic: Traffic::default(),
        }
    }

    /// Sends a segment.
    pub fn send(&mut self, segment: &Segment<'_>, now_ns: u64) {
        segment.write(&mut self.packet);
        self.traffic.sent += 1;
        if self.is_fair {
            self.write();
        } else {
            let packet = self.packet.clone();
            self.expose(packet, false, now_ns);
        }
    }

    fn write(&mut self) {
        if self.device.send(&self.packet).is_err() {
            self.traffic.not_taken += 1;
        }
    }

    /// Reads the next packet; `None` when there is none now.
    pub fn receive(
        &mut self,
        buffer: &mut [u8; READ_BYTES],
        now_ns: u64,
    ) -> io::Result<Option<usize>> {
        if self.is_fair {
            let count = self.device.receive(buffer)?;
            self.traffic.received += u64::from(count.is_some());
            return Ok(count);
        }
        while let Some(count) = self.device.receive(buffer)? {
            self.traffic.received += 1;
            self.expose(buffer[..count].to_vec(), true, now_ns);
        }
        while let Some(Reverse((due_ns, ..))) = self.under_way.peek()
            && *due_ns <= now_ns
            && let Some(Reverse((_, _, is_ours, packet))) = self.under_way.pop()
        {
            if is_ours {
                buffer[..packet.len()].copy_from_slice(&packet);
                return Ok(Some(packet.len()));
            }
            self.packet = packet;
            self.write();
        }
        Ok(None)
    }

    /// Leaves a packet to the weather.
    fn expose(&mut self, packet: Vec<u8>, is_ours: bool, now_ns: u64) {
        /// Steps in which chances are drawn.
        const STEPS: u32 = 1 << 24;
        if f64::from(self.random.below(STEPS)) < self.weather.loss * f64::from(STEPS) {
            self.traffic.lost += 1;
            return;
        }
        let share = f64::from(self.random.below(STEPS)) / f64::from(STEPS);
        let due_ns = now_ns + (self.weather.delay_ns as f64 * share) as u64;
        self.sent += 1;
        self.under_way
            .push(Reverse((due_ns, self.sent, is_ours, packet)));
    }

    /// Waits for a packet, at most `longest_ns`.
    pub fn wait(&self, longest_ns: u64, now_ns: u64) {
        let until = self.under_way.peek();
        let due_ns = until.map_or(u64::MAX, |Reverse((due_ns, ..))| {
            due_ns.saturating_sub(now_ns)
        });
        self.device
            .wait(Duration::from_nanos(longest_ns.min(due_ns)));
    }
}
