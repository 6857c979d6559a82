//! The link between a worker's clients and the server: a TUN device or a queue of an interface, and simulated network faults.
//!
//! Every packet is counted, including packets that are lost on purpose and packets that the kernel did not accept.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::Duration;

use anyhow::Result;
use crore_tcp::Conn;

use super::namespace::ClientDevice;
use super::veth::VethLink;
use crate::measure::payload::Random;
use crate::sys::tun::{PREFIX, PREFIX_BYTES, Tun};

/// Size of a read, in bytes. It is larger than any packet.
pub const READ_BYTES: usize = 2048;

/// Simulated network faults, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// The share of packets that are lost.
    pub loss_share: f64,
    /// The maximum delay of a packet, in nanoseconds. Each delay is random, so packets overtake one another.
    pub delay_max_ns: u64,
}

/// A delayed packet: when it is due (ns), its number in the order of sending, whether it is for a client, and its bytes.
type DelayedPacket = Reverse<(u64, u64, bool, Vec<u8>)>;

/// Counts of packets.
#[derive(Clone, Copy, Debug, Default, derive_more::AddAssign)]
pub struct Traffic {
    /// Packets read from the device.
    pub received: u64,
    /// Packets written to the device.
    pub sent: u64,
    /// Packets lost on purpose.
    pub lost: u64,
    /// Packets that could not be written.
    pub write_failed: u64,
}

/// An open device. Packets have a prefix as those of a TUN device.
enum Device {
    Tun(Tun),
    Veth(Box<VethLink>),
}

/// A device with simulated faults.
pub struct Wire {
    device: Device,
    faults: NetworkFaults,
    is_faultless: bool,
    random: Random,
    delayed_packets: BinaryHeap<DelayedPacket>,
    sent_packets: u64,
    packet: Vec<u8>,
    /// The time of the present turn. Delays count from it.
    pub now_ns: u64,
    /// The counters since they were last taken.
    pub traffic: Traffic,
}

impl Wire {
    /// A link over this device. Must be called in the thread that uses it.
    ///
    /// # Errors
    /// If the kernel does not give the queue of an interface.
    pub fn open(device: ClientDevice, faults: NetworkFaults, seed: u64) -> Result<Wire> {
        let device = match device {
            ClientDevice::Tun(tun) => Device::Tun(tun),
            ClientDevice::Veth(queue) => Device::Veth(Box::new(queue.open()?)),
        };
        Ok(Wire {
            device,
            faults,
            is_faultless: faults == NetworkFaults::default(),
            random: Random::new(seed),
            delayed_packets: BinaryHeap::new(),
            sent_packets: 0,
            packet: Vec::with_capacity(READ_BYTES),
            now_ns: 0,
            traffic: Traffic::default(),
        })
    }

    /// Lets the written packets leave. Must be called at the end of each turn.
    pub fn flush(&mut self) {
        if let Device::Veth(link) = &mut self.device {
            link.flush();
        }
    }

    /// Whether the clients' checksums must be right: an interface carries them to the server.
    pub fn needs_checksums(&self) -> bool {
        matches!(self.device, Device::Veth(_))
    }

    fn read(&mut self, buffer: &mut [u8; READ_BYTES]) -> io::Result<Option<usize>> {
        match &mut self.device {
            Device::Tun(tun) => tun.receive(buffer),
            Device::Veth(link) => {
                let count = link.receive(&mut buffer[PREFIX_BYTES..]);
                Ok(count.map(|count| PREFIX_BYTES + count))
            }
        }
    }

    fn write(&mut self) {
        let is_sent = match &mut self.device {
            Device::Tun(tun) => tun.send(&self.packet).is_ok(),
            Device::Veth(link) => {
                let packet = &self.packet[PREFIX_BYTES..];
                link.transmit(packet.len(), |place| place.copy_from_slice(packet))
            }
        };
        if !is_sent {
            self.traffic.write_failed += 1;
        }
    }

    /// Reads the next packet; `None` if none is ready.
    pub fn receive(&mut self, buffer: &mut [u8; READ_BYTES]) -> io::Result<Option<usize>> {
        if self.is_faultless {
            let count = self.read(buffer)?;
            self.traffic.received += u64::from(count.is_some());
            return Ok(count);
        }
        while let Some(count) = self.read(buffer)? {
            self.traffic.received += 1;
            self.apply_faults(buffer[..count].to_vec(), true);
        }
        while let Some(Reverse((due_ns, ..))) = self.delayed_packets.peek()
            && *due_ns <= self.now_ns
            && let Some(Reverse((_, _, is_for_client, packet))) = self.delayed_packets.pop()
        {
            if is_for_client {
                buffer[..packet.len()].copy_from_slice(&packet);
                return Ok(Some(packet.len()));
            }
            self.packet = packet;
            self.write();
        }
        Ok(None)
    }

    /// Loses or delays a packet, at random. `is_for_client` tells whether the packet is for a client or for the server.
    fn apply_faults(&mut self, packet: Vec<u8>, is_for_client: bool) {
        /// Resolution of the random draws.
        const STEPS: u32 = 1 << 24;
        if f64::from(self.random.below(STEPS)) < self.faults.loss_share * f64::from(STEPS) {
            self.traffic.lost += 1;
            return;
        }
        let random_share = f64::from(self.random.below(STEPS)) / f64::from(STEPS);
        let due_ns = self.now_ns + (self.faults.delay_max_ns as f64 * random_share) as u64;
        self.sent_packets += 1;
        self.delayed_packets
            .push(Reverse((due_ns, self.sent_packets, is_for_client, packet)));
    }

    /// Waits for a packet, or until a delayed packet is due, at most `timeout_ns`.
    pub fn wait(&self, timeout_ns: u64) {
        let next_packet = self.delayed_packets.peek();
        let due_ns = next_packet.map_or(u64::MAX, |Reverse((due_ns, ..))| {
            due_ns.saturating_sub(self.now_ns)
        });
        let longest = Duration::from_nanos(timeout_ns.min(due_ns));
        match &self.device {
            Device::Tun(tun) => tun.wait(longest),
            Device::Veth(link) => link.wait(longest),
        }
    }
}

impl crore_tcp::Device for Wire {
    fn transmit(&mut self, _: Option<Conn>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.is_faultless
            && let Device::Veth(link) = &mut self.device
        {
            // Without room the connection sends it again in a later turn.
            let is_sent = link.transmit(bytes, fill);
            self.traffic.sent += u64::from(is_sent);
            return is_sent;
        }
        self.packet.clear();
        self.packet.extend_from_slice(&PREFIX);
        self.packet.resize(PREFIX_BYTES + bytes, 0);
        fill(&mut self.packet[PREFIX_BYTES..]);
        self.traffic.sent += 1;
        if self.is_faultless {
            self.write();
        } else {
            let packet = self.packet.clone();
            self.apply_faults(packet, false);
        }
        // A packet that the kernel does not take is counted as a fault, so the connection must not wait and send it again.
        true
    }
}
