//! The connections of a shard that do not pass through the kernel's TCP: those of a table of `crore-tcp`, whose packets the sockets of some
//! queues carry.
//!
//! Packets are handled when the shard waits ([`TcpEndpoint::receive`]). What the shard sends in a turn leaves at its end
//! ([`TcpEndpoint::end_turn`]), together with acknowledgements.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use crore_tcp::{Account, Checksums, Config, Conn, Device, End, Failure, Part, Secret, Table};

use super::interface::{Interface, Mac};
use super::next_hops::{NextHops, is_of_one_machine};
use super::program::QueueSockets;
use super::socket::{FrameSettings, Receiver, Transmitter, XdpSocket};
use crate::clock;
use crate::memory::random_u64;
use crate::sys::Fd;
use crate::transport::{AcceptResult, Event, Link, OwnTcpStats, Readiness, Received, Sent};

/// The maximum number of frames of a queue that one wait handles, so that a flood does not keep a turn from its events.
const FRAMES_PER_WAIT: usize = 512;
/// The maximum number of events of one wait.
const EVENTS_MAX: usize = 256;
/// How long a shard sleeps if the interface takes no more frames and there are some left.
const INTERFACE_FULL_MS: u32 = 1;
/// How long a shard sleeps at most while memory is short.
const MEMORY_SHORT_MS: u32 = 50;
/// The number of connections above the limit that can be accepted, only to answer and close them.
const REFUSED_CONNECTIONS: u32 = 1_024;
/// The share of the limit that may be connections which are closed and not over, since the client has not acknowledged all, and their smallest
/// number. Beyond it the one that was closed first is reset.
const LINGERING_DIVISOR: u32 = 8;
const LINGERING_MIN: u32 = 1_024;
/// The most bytes of a request that is refused which are read.
const REQUEST_BYTES: usize = 4_096;
/// The most bytes that are charged at once. Each shard's limit is larger.
const PIECE_BYTES: usize = 16 << 10;
/// Bytes of an Ethernet header, and where its parts are.
const ETHERNET: usize = 14;
const ETHERNET_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERNET_IPV6: [u8; 2] = [0x86, 0xdd];
/// Bytes of a received frame that the kernel keeps for itself.
const KERNEL_BYTES: u32 = 256;

/// The limits of a shard's connections over `AF_XDP`.
#[derive(Clone, Debug)]
pub struct EndpointLimits {
    /// The number of connections. One more gets an answer, and is closed.
    pub connections: u32,
    /// The number of connections that wait at each port to be accepted.
    pub backlog: usize,
    /// Bytes of all connections that are sent and not acknowledged, or received and not read.
    pub buffered_bytes: usize,
    /// Frames of each queue.
    pub frames: FrameSettings,
}

impl EndpointLimits {
    /// The number of connections that are closed and not over.
    fn lingering(&self) -> u32 {
        (self.connections / LINGERING_DIVISOR).max(LINGERING_MIN)
    }
}

/// How many bytes all connections hold.
struct Budget {
    used: usize,
    limit: usize,
    /// Bytes were refused, and not much was given back since.
    is_full: bool,
}

impl Account for Budget {
    fn charge(&mut self, _: Conn, bytes: usize) -> bool {
        let used = self.used + bytes;
        self.is_full |= used > self.limit;
        if used > self.limit {
            return false;
        }
        self.used = used;
        true
    }

    fn release(&mut self, _: Conn, bytes: usize) {
        self.used -= bytes;
        self.is_full &= self.used > self.limit / 8 * 7;
    }

    fn resize_entry(&mut self, conn: Conn, before: usize, after: usize) {
        self.release(conn, before);
        self.used += after;
        self.is_full |= self.used > self.limit;
    }

    fn is_short(&self) -> bool {
        self.is_full
    }
}

/// Writes packets of the table to frames.
struct EthernetDevice<'a> {
    transmitter: &'a mut Transmitter,
    next_hops: &'a NextHops,
    /// Our hardware address.
    mac: Mac,
    /// Where the frame came from that is being handled, if one is.
    sender: Option<Mac>,
}

impl Device for EthernetDevice<'_> {
    fn transmit(&mut self, conn: Option<Conn>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let to = match conn {
            Some(conn) => self.next_hops.of(conn),
            None => self.sender,
        };
        // A packet to an unknown place is lost, like any other packet may be.
        let Some(to) = to else { return true };
        let from = self.mac;
        self.transmitter.transmit(ETHERNET + bytes, |frame| {
            let (header, packet) = frame.split_at_mut(ETHERNET);
            fill(packet);
            let kind = match packet.first().map(|first| first >> 4) {
                Some(6) => ETHERNET_IPV6,
                _ => ETHERNET_IPV4,
            };
            header[..6].copy_from_slice(&to);
            header[6..12].copy_from_slice(&from);
            header[12..].copy_from_slice(&kind);
        })
    }
}

/// A shard's connections over `AF_XDP`.
pub struct TcpEndpoint {
    table: Table<&'static [u8], Budget>,
    receivers: Vec<Receiver>,
    transmitter: Transmitter,
    next_hops: NextHops,
    /// The hardware address of the interface.
    mac: Mac,
    /// The time of the turn.
    now_us: u64,
    paused_until_ms: Option<u64>,
    events: Vec<Event>,
    listeners: usize,
    /// The number of connections that were accepted and are not closed.
    links: u32,
    limits: EndpointLimits,
}

impl TcpEndpoint {
    /// Opens the sockets of these queues of an interface, at least one, and listens at the ports of these addresses. Returns also the
    /// descriptors that tell when frames have arrived.
    ///
    /// # Errors
    /// If a socket cannot be opened: [`XdpSocket::bind`].
    ///
    /// # Panics
    /// If there is no queue.
    pub fn open(
        interface: Interface,
        addresses: &[SocketAddr],
        (sockets, queues): (QueueSockets, impl Iterator<Item = u32>),
        limits: EndpointLimits,
    ) -> io::Result<(TcpEndpoint, Vec<Fd>)> {
        let frame_room = limits.frames.frame_bytes - KERNEL_BYTES - ETHERNET as u32;
        let config = Config {
            packet_bytes: interface.mtu.min(frame_room as u16),
            checksums: match interface.is_local {
                true => Checksums::VerifiedUnlessPartial,
                false => Checksums::Verified,
            },
            connections: (limits.connections)
                .saturating_add(limits.lingering())
                .saturating_add(REFUSED_CONNECTIONS),
            backlog: limits.backlog,
            orphans: limits.lingering() as usize,
            ..Config::default()
        };
        let budget = Budget {
            used: 0,
            limit: limits.buffered_bytes,
            is_full: false,
        };
        let secret = Secret(random_u64(), random_u64());
        let mut table = Table::new(config, secret, budget);
        let mut ports: Vec<u16> = Vec::new();
        for address in addresses {
            table.add_address(End::new(address.ip(), address.port()));
            if !ports.contains(&address.port()) {
                ports.push(address.port());
                table.listen(address.port());
            }
        }
        let (mut receivers, mut transmitters, mut descriptors) =
            (Vec::new(), Vec::new(), Vec::new());
        for queue in queues {
            let socket = XdpSocket::bind(interface.index, queue, limits.frames)?;
            sockets.add(queue, &socket)?;
            descriptors.push(Fd(socket.as_fd().as_raw_fd() as u32));
            receivers.push(socket.receiver);
            transmitters.push(socket.transmitter);
        }
        // All frames leave through the first queue.
        let transmitter = transmitters.swap_remove(0);
        let endpoint = TcpEndpoint {
            table,
            receivers,
            transmitter,
            next_hops: NextHops::default(),
            mac: interface.mac,
            now_us: clock::monotonic_ns() / 1_000,
            paused_until_ms: None,
            events: Vec::new(),
            listeners: ports.len(),
            links: 0,
            limits,
        };
        Ok((endpoint, descriptors))
    }

    /// Counts and sizes.
    pub(super) fn stats(&self) -> OwnTcpStats {
        let counters = &self.table.counters;
        let mut dropped_frames = [0; 3];
        for statistics in self
            .receivers
            .iter()
            .filter_map(|it| it.drop_statistics().ok())
        {
            dropped_frames[0] += statistics.rx_dropped;
            dropped_frames[1] += statistics.rx_ring_full.unwrap_or_default();
            dropped_frames[2] += statistics.rx_fill_ring_empty_descs.unwrap_or_default();
        }
        OwnTcpStats {
            connections: self.links.into(),
            busy: self.table.transfer_count() as u64,
            buffered_bytes: self.table.account.used as u64,
            packets: [counters.received, counters.sent],
            refused: [counters.checksums, counters.malformed, counters.fragments],
            retransmitted: counters.retransmitted,
            timeouts: counters.timeouts,
            cookies: [counters.cookies_sent, counters.cookies_refused],
            overflows: counters.overflows,
            resets: [counters.resets_received, counters.resets_sent],
            dropped_frames,
        }
    }

    /// The limits.
    pub fn limits(&self) -> &EndpointLimits {
        &self.limits
    }

    /// The number of listeners that are not closed.
    pub fn listeners(&self) -> usize {
        self.listeners
    }

    /// The number of connections that were accepted and are not closed.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// Sends what the turn has left to send, and finds what is ready. Returns how long the shard may sleep, in milliseconds.
    pub(super) fn end_turn(&mut self, listeners_before: usize) -> Option<u32> {
        self.now_us = clock::monotonic_ns() / 1_000;
        let mut is_full = true;
        while is_full {
            let refused = self.table.counters.refused_by_device;
            let mut device = EthernetDevice {
                transmitter: &mut self.transmitter,
                next_hops: &self.next_hops,
                mac: self.mac,
                sender: None,
            };
            self.table.poll(self.now_us, &mut device);
            is_full = self.table.counters.refused_by_device > refused;
            self.transmitter.flush();
            if !self.transmitter.has_room() {
                break;
            }
        }
        self.find_events(listeners_before);
        if !self.events.is_empty() {
            return Some(0);
        }
        if is_full || self.transmitter.has_waiting() {
            return Some(INTERFACE_FULL_MS);
        }
        let next_us = self.table.next_us();
        let from_now_ms = |us: u64| us.saturating_sub(self.now_us).div_ceil(1_000);
        let next_ms = next_us.map(|us| u32::try_from(from_now_ms(us)).unwrap_or(u32::MAX));
        // Each turn looks for connections that must give way.
        let short_ms = self.table.account.is_full.then_some(MEMORY_SHORT_MS);
        next_ms.into_iter().chain(short_ms).min()
    }

    /// Handles packets that have arrived.
    pub(super) fn receive(&mut self, listeners_before: usize) {
        self.now_us = clock::monotonic_ns() / 1_000;
        let (mac, mut frames) = (self.mac, 0);
        let (table, next_hops, transmitter) =
            (&mut self.table, &mut self.next_hops, &mut self.transmitter);
        for receiver in &mut self.receivers {
            frames += receiver.receive(FRAMES_PER_WAIT, |frame| {
                let Some((header, packet)) = frame.split_first_chunk::<ETHERNET>() else {
                    return;
                };
                let [to @ .., f1, f2, f3, f4, f5, f6, _, _] = *header;
                let from: Mac = [f1, f2, f3, f4, f5, f6];
                // A frame for another machine is not ours, even if the interface receives it.
                if to != mac || !is_of_one_machine(from) {
                    return;
                }
                let mut device = EthernetDevice {
                    transmitter,
                    next_hops,
                    mac,
                    sender: Some(from),
                };
                if let Some(conn) = table.receive(packet, self.now_us, &mut device) {
                    next_hops.learn(conn, from);
                }
            });
        }
        // Those that the turn has found are not handled yet.
        if frames > 0 && self.events.is_empty() {
            self.find_events(listeners_before);
        }
    }

    /// Finds listeners and connections that are ready.
    fn find_events(&mut self, listeners_before: usize) {
        self.events.clear();
        if self.paused_until_ms.is_none() {
            for listener in 0..self.listeners {
                if self.table.waiting(listener) > 0 {
                    self.events
                        .push(Event::Listener(listeners_before + listener));
                }
            }
        }
        if !self.table.account.is_full {
            self.table.unblock();
        }
        let events = &mut self.events;
        self.table.events(EVENTS_MAX, |_, ready| {
            events.push(Event::Link(Readiness {
                token: ready.token,
                readable: ready.readable,
                writable: ready.writable,
                hangup: ready.hangup,
            }));
        });
    }

    /// The events that were found.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Begins a pause in accepting, or lengthens it.
    pub(super) fn pause(&mut self, until_ms: u64) {
        self.paused_until_ms = self.paused_until_ms.max(Some(until_ms));
    }

    /// Ends a pause whose time is over.
    pub(super) fn adjust_accepting(&mut self, now_ms: u64) {
        self.paused_until_ms = self.paused_until_ms.filter(|until_ms| now_ms < *until_ms);
    }

    /// Accepts a connection. Beyond the limit it is closed with the bytes that `answer` makes of its request.
    pub(super) fn accept(
        &mut self,
        listener: usize,
        answer: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> AcceptResult {
        if self.paused_until_ms.is_some() {
            return AcceptResult::NoConnection;
        }
        let Some(conn) = self.table.accept(listener, 0) else {
            return AcceptResult::NoConnection;
        };
        // Until it is opened. It may wait for long, and events that nobody wants would keep the others from being found.
        self.table.withhold_events(conn);
        self.links += 1;
        if self.links > self.limits.connections {
            self.refuse(conn, answer);
            return AcceptResult::OverLimit;
        }
        let (_, peer) = self.table.addresses(conn);
        AcceptResult::Connection(Link(conn.0), peer.ip())
    }

    fn refuse(&mut self, conn: Conn, answer: impl FnOnce(&[u8]) -> Vec<u8>) {
        let mut request = [0; REQUEST_BYTES];
        let count = match self.table.read(conn, &mut request) {
            crore_tcp::Received::Bytes(count) => count,
            _ => 0,
        };
        self.send(conn, &[answer(&request[..count])]);
        self.close(conn, false);
    }

    pub(super) fn block_new_connections(&mut self) {
        self.table.block_new();
        self.paused_until_ms = None;
    }

    pub(super) fn close_listeners(&mut self) {
        let mut device = EthernetDevice {
            transmitter: &mut self.transmitter,
            next_hops: &self.next_hops,
            mac: self.mac,
            sender: None,
        };
        self.table.close_listeners(self.now_us, &mut device);
        self.listeners = 0;
    }

    pub(super) fn set_interest(&mut self, conn: Conn, token: u64, read: bool, write: bool) {
        self.table.interest(conn, token, read, write);
    }

    pub(super) fn read(&mut self, conn: Conn, buffer: &mut [u8]) -> Received {
        assert!(!buffer.is_empty(), "an empty receive looks like an end");
        match self.table.read(conn, buffer) {
            crore_tcp::Received::Bytes(count) => Received::Bytes(count),
            crore_tcp::Received::End => Received::End,
            crore_tcp::Received::Again => Received::Again,
            crore_tcp::Received::Failed(failure) => Received::Failed(errno(failure)),
        }
    }

    pub(super) fn send<P: AsRef<[u8]>>(&mut self, conn: Conn, parts: &[P]) -> Sent {
        let mut taken = 0;
        // In pieces, since the account takes all of a piece or nothing.
        let pieces = parts
            .iter()
            .flat_map(|part| part.as_ref().chunks(PIECE_BYTES));
        for bytes in pieces {
            match self.table.send(conn, Part::Copied(bytes), self.now_us) {
                crore_tcp::Sent::Bytes(count) => {
                    taken += count;
                    if count < bytes.len() {
                        break;
                    }
                }
                crore_tcp::Sent::Again => break,
                crore_tcp::Sent::Failed(failure) => return Sent::Failed(errno(failure)),
            }
        }
        match taken {
            0 => Sent::Again,
            count => Sent::Bytes(count),
        }
    }

    pub(super) fn shut_down(&mut self, conn: Conn) {
        self.table.shut_down(conn, self.now_us);
    }

    /// Closes a connection, with a reset if `resets`.
    pub(super) fn close(&mut self, conn: Conn, resets: bool) {
        self.links -= 1;
        let mut device = EthernetDevice {
            transmitter: &mut self.transmitter,
            next_hops: &self.next_hops,
            mac: self.mac,
            sender: None,
        };
        if resets {
            self.table.reset(conn, self.now_us, &mut device);
        } else {
            self.table.close(conn, self.now_us, &mut device);
        }
    }

    pub(super) fn peer(&self, conn: Conn) -> IpAddr {
        self.table.addresses(conn).1.ip()
    }
}

fn errno(failure: Failure) -> i32 {
    match failure {
        Failure::Reset => libc::ECONNRESET,
        Failure::Refused => libc::ECONNREFUSED,
        Failure::TimedOut => libc::ETIMEDOUT,
    }
}
