//! A pair of virtual Ethernet interfaces: the server has one end, and the clients have the other one, by sockets of `AF_XDP`. So a packet of a
//! client costs no system call of its own, and the server's end can be served over `AF_XDP` too.
//!
//! Each worker has a queue of its own. A pair carries the frames of a queue to the same queue of the other end, and so a worker's clients to the
//! same shard. There is no ARP: the clients take all frames, whatever their hardware address.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crore_net::xdp::program::Redirect;
use crore_net::xdp::{FrameSettings, Interface, XdpSocket};

/// The names of the two ends.
pub const SERVER_END: &str = "swarm-server";
const CLIENTS_END: &str = "swarm-clients";
/// The clients' end needs an address of its own, which nobody uses.
const CLIENTS_ADDRESS: &str = "198.18.0.1/32";
/// The bits that the addresses of all clients and of the server have in common.
const PREFIX_BITS: u32 = 10;
/// The frames of a queue, which are the packets that it has room for.
pub const FRAMES: u32 = 8_192;

/// Bytes of an Ethernet header, which ends with the kind of the packet.
const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [0x08, 0x00];

/// A queue of the clients' end, which a worker opens in its thread.
pub struct VethQueue {
    /// The frames are the sockets' as long as one holder is left.
    redirect: Arc<Redirect>,
    interface: u32,
    queue: u32,
    /// What each frame to the server begins with.
    header: [u8; ETHERNET],
}

/// An open queue.
pub struct VethLink {
    socket: XdpSocket,
    header: [u8; ETHERNET],
    _redirect: Arc<Redirect>,
}

/// Makes the pair in the namespace of the calling thread, with this address of the server and this MTU, and returns the queues of the clients' end.
pub fn make(queues: u8, server: Ipv4Addr, packet_bytes: u16) -> Result<Vec<VethQueue>> {
    let ends = format!("numtxqueues {queues} numrxqueues {queues}");
    for line in [
        format!("link add {SERVER_END} {ends} type veth peer name {CLIENTS_END} {ends}"),
        format!("addr add {server}/{PREFIX_BITS} dev {SERVER_END}"),
        format!("addr add {CLIENTS_ADDRESS} dev {CLIENTS_END}"),
        format!("link set {SERVER_END} mtu {packet_bytes} arp off up"),
        format!("link set {CLIENTS_END} mtu {packet_bytes} arp off up"),
    ] {
        let status = Command::new("ip").args(line.split(' ')).status();
        let is_done = status
            .context("`ip` makes the pair of interfaces")?
            .success();
        ensure!(is_done, "ip {line}");
    }
    let (server, clients) = (Interface::find(SERVER_END)?, Interface::find(CLIENTS_END)?);
    let redirect = Redirect::attach_for_all(clients.index, queues.into());
    let redirect = Arc::new(redirect.context("cannot attach an XDP program: run as root")?);
    let mut header = [0; ETHERNET];
    header[..6].copy_from_slice(&server.mac);
    header[6..12].copy_from_slice(&clients.mac);
    header[12..].copy_from_slice(&IPV4);
    let queue = |queue| VethQueue {
        redirect: redirect.clone(),
        interface: clients.index,
        queue,
        header,
    };
    Ok((0..queues.into()).map(queue).collect())
}

impl VethQueue {
    /// Opens the socket of the queue, in the thread that uses it.
    pub fn open(self) -> Result<VethLink> {
        let settings = FrameSettings {
            frames: FRAMES,
            ..FrameSettings::default()
        };
        let socket = XdpSocket::bind(self.interface, self.queue, settings)?;
        self.redirect.queue_sockets().add(self.queue, &socket)?;
        Ok(VethLink {
            socket,
            header: self.header,
            _redirect: self.redirect,
        })
    }
}

impl VethLink {
    /// Reads one packet; `None` if none waits.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut count = None;
        self.socket.receiver.receive(1, |frame| {
            let packet = frame.get(ETHERNET..).unwrap_or_default();
            buffer[..packet.len()].copy_from_slice(packet);
            count = Some(packet.len());
        });
        count
    }

    /// Writes a packet, which leaves with [`VethLink::flush`]. `false` if there is no room.
    pub fn transmit(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if !self.socket.transmitter.has_room() {
            self.flush();
        }
        let header = &self.header;
        self.socket.transmitter.transmit(ETHERNET + bytes, |frame| {
            frame[..ETHERNET].copy_from_slice(header);
            fill(&mut frame[ETHERNET..]);
        })
    }

    /// Lets the packets leave that were written.
    pub fn flush(&mut self) {
        self.socket.transmitter.flush();
    }

    /// Waits for a packet, at most `longest`.
    pub fn wait(&self, longest: Duration) {
        self.socket.wait(longest);
    }
}
