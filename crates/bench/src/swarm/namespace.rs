//! Makes the network namespace of a swarm, with the TUN devices of its clients. The namespace has no route to the outside.
//!
//! The server listens on [`SERVER`]. The clients of device `k` have addresses in 10.(64 + k).0.0/16.

use std::fs;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::veth::{self, VethQueue};
use crate::rig::Transport;
use crate::sys::tun::{self, Interface, Tun};

/// Where the server listens.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
/// The size of a packet that the devices carry, in bytes, as on most of the internet.
pub const PACKET_BYTES: u16 = 1500;
/// Length of a device's queue of packets to the tool. The fastest server sends fewer packets in a tenth of a second.
const QUEUE_PACKETS: u32 = 1 << 16;
/// The file that sets how many buckets the kernel's connection table has in namespaces that are created later.
const BUCKETS: &str = "/proc/sys/net/ipv4/tcp_child_ehash_entries";
/// The maximum number of buckets that the kernel allows.
const BUCKETS_MAX: u64 = 16 << 20;
/// With this many clients the system's connection table, which namespaces share, would be slow.
const CROWD: u32 = 250_000;

/// A namespace and its devices.
pub struct Namespace {
    devices: Vec<ClientDevice>,
    queue_packets: u32,
}

/// What a worker has of the network.
pub enum ClientDevice {
    Tun(Tun),
    Veth(VethQueue),
}

impl Namespace {
    /// Moves the calling thread into a new namespace and creates the devices there. Threads and processes that it starts
    /// later are in that namespace, too.
    pub fn make(transport: Transport, devices: u8, clients: u32) -> Result<Namespace> {
        if transport == Transport::Tun {
            return Namespace::with_queue(devices, clients, QUEUE_PACKETS);
        }
        enter(clients)?;
        let queues = veth::make(devices, SERVER, PACKET_BYTES)?;
        Ok(Namespace {
            devices: queues.into_iter().map(ClientDevice::Veth).collect(),
            queue_packets: veth::FRAMES,
        })
    }

    /// [`Namespace::make`] of TUN devices with queues of `queue_packets`.
    pub fn with_queue(devices: u8, clients: u32, queue_packets: u32) -> Result<Namespace> {
        enter(clients)?;
        let make = |device: u8| {
            let name = name(device);
            let tun = Tun::make(&name).context(
                "cannot make a TUN device: /dev/net/tun must be there, and this process may open it (root may)",
            )?;
            let interface = Interface {
                address: (
                    Ipv4Addr::from(net(device) + 1),
                    Ipv4Addr::new(255, 255, 0, 0),
                ),
                packet_bytes: PACKET_BYTES,
                queue_packets,
            };
            tun::set_up(&name, &interface).with_context(|| format!("cannot set up {name}"))?;
            Ok(ClientDevice::Tun(tun))
        };
        let devices = (0..devices).map(make).collect::<Result<_>>()?;
        Ok(Namespace {
            devices,
            queue_packets,
        })
    }

    /// The length of each device's queue.
    pub fn queue_packets(&self) -> u32 {
        self.queue_packets
    }

    /// Hands over the devices.
    pub fn devices(&mut self) -> Vec<ClientDevice> {
        std::mem::take(&mut self.devices)
    }
}

/// Moves the calling thread into a new namespace.
fn enter(clients: u32) -> Result<()> {
    const NEEDS: &str = "the swarm needs a network namespace of its own: run it as root";
    tun::unshare_network().context(NEEDS)?;
    if clients >= CROWD {
        // Without root this file cannot be written. Then the namespace shares the system's table.
        let buckets = u64::from(clients).next_power_of_two().min(BUCKETS_MAX);
        if fs::write(BUCKETS, buckets.to_string()).is_ok() {
            tun::unshare_network().context(NEEDS)?;
        }
    }
    tun::raise_loopback().context("the loopback interface")
}

/// Packets that the kernel dropped because the queue of a device in this namespace was full.
pub fn dropped_packets() -> Result<u64> {
    /// The column of `/proc/net/dev` that counts dropped packets of the sending side.
    const DROPPED: usize = 11;
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    let devices = text
        .lines()
        .filter_map(|line| line.trim_start().split_once(':'))
        .filter(|(name, _)| name.starts_with("tun") || name.starts_with("swarm"));
    let dropped = devices.map(|(_, values)| -> Result<u64> {
        let value = values.split_whitespace().nth(DROPPED);
        Ok(value
            .context("/proc/net/dev does not count dropped packets")?
            .parse()?)
    });
    dropped.sum()
}

/// Segments that the kernel has retransmitted in this namespace.
pub fn retransmitted_segments() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next(), lines.next());
    let mut pairs = names
        .unwrap_or_default()
        .split(' ')
        .zip(values.unwrap_or_default().split(' '));
    let found = pairs.find(|(name, _)| *name == "RetransSegs");
    let value = found
        .context("/proc/net/snmp does not count segments that are sent again")?
        .1;
    Ok(value.parse()?)
}

fn name(device: u8) -> String {
    format!("tun{device}")
}

/// The first address of a device's subnet.
fn net(device: u8) -> u32 {
    u32::from(SERVER) - 1 + (u32::from(device) << 16)
}

/// The first address of a device's clients.
pub fn clients(device: u8) -> u32 {
    net(device) + 256
}
