//! The side of ours: a table on a thread, and what its connections do.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use crore_tcp::{
    Account, Checksums, Config, Conn, Counters, Device, End, Failure, Part, Received, Secret, Sent,
    State, Table,
};

use crate::disturbance::Disturbance;
use crate::stream;
use crate::sys::tun::{PREFIX_BYTES, Tun};

/// The port that our side listens at.
pub const PORT: u16 = 8_800;
/// The longest time that a test may take.
pub const TOO_LONG: Duration = Duration::from_secs(300);

struct Free;

impl Account for Free {
    fn charge(&mut self, _: Conn, _: usize) -> bool {
        true
    }

    fn release(&mut self, _: Conn, _: usize) {}

    fn resize_entry(&mut self, _: Conn, _: usize, _: usize) {}
}

/// The device, with the packets of a turn.
struct Link {
    device: Tun,
    to_send: Vec<Vec<u8>>,
    /// What happens to packets from the kernel, and to packets to it.
    disturbances: Option<[Disturbance; 2]>,
}

impl Device for Link {
    fn transmit(&mut self, _: Option<Conn>, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        // The device's header is all zeroes: checksums are in the packets.
        let mut packet = vec![0; PREFIX_BYTES + bytes];
        fill(&mut packet[PREFIX_BYTES..]);
        self.to_send.push(packet);
        true
    }
}

impl Link {
    fn new(device: Tun, is_disturbed: bool) -> Link {
        // The kernel leaves out the checksum of a packet to a device that says so, as this one does: our side would not find corrupted ones.
        let disturbances = || [Disturbance::new(3, false), Disturbance::new(4, true)];
        Link {
            device,
            to_send: Vec::new(),
            disturbances: is_disturbed.then(disturbances),
        }
    }

    /// Some packets that the kernel has sent.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 65_536 + PREFIX_BYTES];
        let mut packets = Vec::new();
        while packets.len() < 64
            && let Ok(Some(count)) = self.device.receive(&mut buffer)
        {
            packets.push(buffer[..count].to_vec());
        }
        if let Some([incoming, _]) = &mut self.disturbances {
            incoming.disturb(&mut packets);
        }
        packets
    }

    /// Sends the packets of this turn. The kernel drops those that its queue has no room for.
    fn flush(&mut self) {
        if let Some([_, outgoing]) = &mut self.disturbances {
            outgoing.disturb(&mut self.to_send);
        }
        for packet in self.to_send.drain(..) {
            let _ = self.device.send(&packet);
        }
    }
}

type Endpoint = Table<Arc<[u8]>, Free>;

/// How the two sides meet.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    pub is_v6: bool,
    /// Whether packets are lost, doubled, corrupted, late, or change places.
    pub is_disturbed: bool,
    /// If this is n, the kernel drops one packet in n.
    pub drops_one_in: Option<u32>,
    /// The receive buffer of ours has `1 << receive_log2` bytes, if it has not the default size.
    pub receive_log2: Option<u8>,
}

/// What a connection of ours does.
#[derive(Clone)]
pub enum Role {
    /// It sends back what it receives, and closes when the peer does.
    Echo,
    /// It answers a request for `/n` with a body of `n` bytes.
    Http,
    /// It sends these bytes, closes its side, and reports all that it has received.
    Talk(Arc<[u8]>, Sender<Vec<u8>>),
    /// It is refused, and reports so.
    Refused(Sender<Vec<u8>>),
}

struct Talker {
    conn: Conn,
    role: Role,
    to_send: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    has_end: bool,
    is_over: bool,
}

/// An order to our side: connect to the listener at this address and port.
pub type Order = (SocketAddr, Role);

/// Runs our side, which has this address, until the orders end and all connections are over. Returns what it has counted.
pub fn run(
    device: Tun,
    own: IpAddr,
    setup: Setup,
    served: &Role,
    orders: &Receiver<Order>,
) -> Counters {
    let default = Config::default();
    let config = Config {
        checksums: Checksums::Ignored,
        time_wait_ms: 2_000,
        receive_log2: setup.receive_log2.unwrap_or(default.receive_log2),
        send_bytes: 1 << 20,
        ..default
    };
    let mut table: Endpoint = Table::new(config, Secret(11, 22), Free);
    let own = End::new(own, PORT);
    table.add_address(own);
    let listener = table.listen(PORT);
    let mut link = Link::new(device, setup.is_disturbed);
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1_000_000;
    let mut talkers: Vec<Talker> = Vec::new();
    let mut next_port = 20_000;
    let mut are_orders_over = false;
    while !are_orders_over || !talkers.is_empty() {
        assert!(
            start.elapsed() < TOO_LONG,
            "too long: {} connections, {:?}",
            talkers.len(),
            table.counters
        );
        loop {
            match orders.try_recv() {
                Ok((to, role)) => {
                    let local = End {
                        port: next_port,
                        ..own
                    };
                    next_port += 1;
                    let remote = End::new(to.ip(), to.port());
                    let conn = table.connect(local, remote, 0, now_us()).expect("room");
                    talkers.push(Talker::new(conn, role));
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    are_orders_over = true;
                    break;
                }
            }
        }
        for packet in link.receive() {
            table.receive(&packet[PREFIX_BYTES..], now_us(), &mut link);
        }
        while let Some(conn) = table.accept(listener, 0) {
            talkers.push(Talker::new(conn, served.clone()));
        }
        for talker in &mut talkers {
            talker.turn(&mut table, &mut link, now_us());
        }
        talkers.retain(|talker| !talker.is_over);
        table.poll(now_us(), &mut link);
        link.flush();
        let due_us = table
            .next_us()
            .map_or(5_000, |due_us| due_us.saturating_sub(now_us()));
        link.device.wait(Duration::from_micros(due_us.min(5_000)));
    }
    table.counters
}

impl Talker {
    fn new(conn: Conn, role: Role) -> Talker {
        let to_send = match &role {
            Role::Talk(bytes, _) => bytes.to_vec(),
            _ => Vec::new(),
        };
        Talker {
            conn,
            role,
            to_send,
            sent: 0,
            got: Vec::new(),
            has_end: false,
            is_over: false,
        }
    }

    fn turn(&mut self, table: &mut Endpoint, link: &mut Link, now_us: u64) {
        let mut buffer = [0; 16_384];
        loop {
            // An echo takes no more than it can send.
            if matches!(self.role, Role::Echo) && self.to_send.len() - self.sent > 1 << 20 {
                break;
            }
            match table.read(self.conn, &mut buffer) {
                Received::Bytes(count) => match self.role {
                    Role::Echo => self.to_send.extend_from_slice(&buffer[..count]),
                    _ => self.got.extend_from_slice(&buffer[..count]),
                },
                Received::End => {
                    self.has_end = true;
                    break;
                }
                Received::Again => break,
                Received::Failed(Failure::Refused) if let Role::Refused(report) = &self.role => {
                    let _ = report.send(Vec::new());
                    table.close(self.conn, now_us, link);
                    self.is_over = true;
                    return;
                }
                Received::Failed(failure) => panic!("a connection has failed: {failure:?}"),
            }
        }
        if matches!(self.role, Role::Http)
            && self.to_send.is_empty()
            && self.got.windows(4).any(|four| four == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&self.got).into_owned();
            let bytes: usize = head
                .split(' ')
                .nth(1)
                .and_then(|path| path.trim_start_matches('/').parse().ok())
                .expect("a number");
            self.to_send =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n")
                    .into();
            self.to_send.extend_from_slice(&stream(7, bytes));
        }
        while self.sent < self.to_send.len() {
            let part = &self.to_send[self.sent..];
            match table.send(self.conn, Part::Copied(part), now_us) {
                Sent::Bytes(count) => self.sent += count,
                Sent::Again => break,
                Sent::Failed(failure) => panic!("a connection has failed: {failure:?}"),
            }
        }
        if self.sent > 1 << 20 && matches!(self.role, Role::Echo) {
            self.to_send.drain(..self.sent);
            self.sent = 0;
        }
        let has_sent_all = self.sent == self.to_send.len();
        let may_close = match self.role {
            Role::Echo => self.has_end,
            Role::Http => !self.to_send.is_empty(),
            Role::Talk(..) => table.state(self.conn) != State::SynSent,
            Role::Refused(_) => false,
        };
        if has_sent_all && may_close {
            table.shut_down(self.conn, now_us);
        }
        // Closed once both directions are, and all bytes are acknowledged.
        if has_sent_all && may_close && self.has_end && table.unacknowledged(self.conn) == 0 {
            table.close(self.conn, now_us, link);
            self.is_over = true;
            if let Role::Talk(_, report) = &self.role {
                let _ = report.send(std::mem::take(&mut self.got));
            }
        }
    }
}
