//! Two endpoints and their applications, over a simulated network. The seed decides everything.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crore_rng::Rng;

use super::invariants;
use crate::sequence::is_after;
use crate::simulated::Network;
pub use crate::simulated::{CALM, Faults, Ledger, Packets, Shared, too_big};
use crate::{
    Checksums, Config, Conn, End, Packet, Part, Received, Secret, Sent, Table, flag, parse,
};

/// An endpoint.
pub type Endpoint = Table<Shared, Ledger>;

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
    pub network: Network,
    pub ends: [End; 2],
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
            network: Network::new(Rng::new(!seed), is_v6, faults),
            ends: [client, server],
            offered: [None; 2],
            violation: None,
        };
        world.apps[0].conn = world.sides[0].connect(client, server, 0, world.now_us);
        world
    }

    /// Passes a packet of this side to the network.
    pub fn post(&mut self, side: usize, packet: Vec<u8>) {
        self.check(side, &packet);
        self.network.send(self.now_us, side, packet);
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
        let mut device = Packets {
            room: self.network.device_room(),
            ..Packets::default()
        };
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
        let timer = |side: usize| self.sides[side].next_us();
        let mut next_us = self.network.next_us().unwrap_or(u64::MAX);
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
        match self.network.receive(self.now_us) {
            Some((side, packet)) => self.turn(side, Some(packet)),
            None => {
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
