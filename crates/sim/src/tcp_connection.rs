//! A connection over the product's own TCP: the endpoint of a client and that of the server, and a network between them that loses, doubles,
//! reorders, corrupts and delays packets and changes its MTU.
//!
//! Invariants, checked at each step: a connection fails only after an application has closed or reset its end, however bad the network is; and an
//! endpoint whose connection is over holds no bytes.
//!
//! The world's clock has only seconds. A connection has a clock of its own with microseconds. It runs ahead of the world's clock while packets
//! are in flight, and is never behind it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crore_rng::Rng;
use crore_tcp::simulated::{CALM, Faults, Ledger, Network, Packets, Shared};
use crore_tcp::{Config, Conn, End, Failure, Part, Received, Secret, Sent, State, Table};

const CLIENT: usize = 0;
const SERVER: usize = 1;
const SERVER_PORT: u16 = 80;
/// The maximum number of events until nothing is in flight. The worst network needs some thousands.
const EVENTS_MAX: usize = 200_000;
/// The maximum number of timeouts in a row. A network that loses 30 % of all packets does not end a connection.
const RETRIES: u8 = 60;
const US_PER_S: u64 = 1_000_000;

/// An application's end of the connection.
struct Side {
    table: Table<Shared, Ledger>,
    /// `None` before the connection is open, and after the application has closed it.
    conn: Option<Conn>,
    /// Bytes that the application has sent and the endpoint has not taken.
    unsent: VecDeque<u8>,
    /// Whether the application sends nothing more.
    has_shut_down: bool,
    /// Whether the application has left: it drops the received bytes, and closes the connection once the bytes that it has sent have arrived.
    is_leaving: bool,
    /// Whether the application has closed the connection.
    is_closed: bool,
}

impl Side {
    fn new(config: Config, end: End, secret: u64) -> Side {
        let mut table = Table::new(config, Secret(secret, !secret), Ledger::default());
        table.add_address(end);
        Side {
            table,
            conn: None,
            unsent: VecDeque::new(),
            has_shut_down: false,
            is_leaving: false,
            is_closed: false,
        }
    }

    fn unread(&self) -> usize {
        self.conn.map_or(0, |conn| self.table.readable(conn))
    }

    /// The failure of the connection, if it has failed.
    fn failure(&mut self) -> Option<Failure> {
        let conn = self.conn?;
        if self.table.state(conn) != State::Closed || self.table.readable(conn) > 0 {
            return None;
        }
        match self.table.read(conn, &mut [0]) {
            Received::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the end of the peer's stream has arrived.
    fn has_ended(&self) -> bool {
        let ended = [
            State::CloseWait,
            State::Closing,
            State::LastAck,
            State::TimeWait,
            State::Closed,
        ];
        let state = self.conn.map(|conn| self.table.state(conn));
        state.is_some_and(|state| ended.contains(&state))
    }

    /// Whether the peer owes an acknowledgement.
    fn is_outstanding(&self) -> bool {
        let unacknowledged = [
            State::SynSent,
            State::SynReceived,
            State::FinWait1,
            State::Closing,
            State::LastAck,
        ];
        match self.conn {
            Some(conn) => {
                self.table.unacknowledged(conn) > 0
                    || unacknowledged.contains(&self.table.state(conn))
            }
            None => self.table.transfer_count() > 0,
        }
    }
}

/// The connection.
pub struct TcpConnection {
    sides: [Side; 2],
    network: Network,
    /// Whether the network has no faults any more.
    is_calm: bool,
    rng: Rng,
    now_us: u64,
    /// The number of bytes that an endpoint holds for the peer.
    send_bytes: usize,
    /// A broken invariant.
    violation: Option<String>,
}

impl TcpConnection {
    /// A client that connects to the server. The seed decides the settings of the endpoints and the faults of the network.
    pub fn new(seed: u64, now_s: u32, is_calm: bool) -> TcpConnection {
        let mut rng = Rng::new(seed);
        let is_v6 = rng.chance(30);
        let send_bytes = rng.pick(&[3_000, 20_000, 256 << 10]);
        let configs = [config(send_bytes, &mut rng), config(send_bytes, &mut rng)];
        let faults = faults(&mut rng);
        let [client, server] = ends(is_v6);
        let [of_client, of_server] = configs;
        let mut sides = [
            Side::new(of_client, client, rng.draw()),
            Side::new(of_server, server, rng.draw()),
        ];
        sides[SERVER].table.listen(SERVER_PORT);
        let now_us = u64::from(now_s) * US_PER_S;
        sides[CLIENT].conn = sides[CLIENT].table.connect(client, server, 0, now_us);
        let mut connection = TcpConnection {
            sides,
            network: Network::new(
                Rng::new(rng.draw()),
                is_v6,
                if is_calm { CALM } else { faults },
            ),
            is_calm,
            rng,
            now_us,
            send_bytes: send_bytes as usize,
            violation: None,
        };
        connection.turn(CLIENT, None);
        connection
    }

    /// Makes the network carry all packets from now on.
    pub fn calm(&mut self) {
        (self.network.faults, self.is_calm) = (CALM, true);
    }

    /// Whether the handshake has reached the server.
    pub fn is_accepted(&self) -> bool {
        self.sides[SERVER].conn.is_some()
    }

    /// The client sends bytes.
    pub fn client_send(&mut self, bytes: &[u8]) {
        self.sides[CLIENT].unsent.extend(bytes);
        self.turn(CLIENT, None);
    }

    /// Bytes that have arrived at the client.
    pub fn client_unread(&self) -> usize {
        self.sides[CLIENT].unread()
    }

    /// The client reads at most `bytes_max` bytes. Without a limit it also reads what arrives meanwhile, once the network has no faults.
    pub fn client_read(&mut self, bytes_max: usize) -> Vec<u8> {
        let mut bytes = self.read(CLIENT, bytes_max);
        while self.is_calm && bytes_max == usize::MAX {
            self.finish(0);
            let more = self.read(CLIENT, bytes_max);
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
        }
        bytes
    }

    /// Whether the end of the server's stream has arrived, perhaps with bytes before it that the client has not read.
    pub fn client_has_end(&self) -> bool {
        self.sides[CLIENT].has_ended()
    }

    /// The client sends nothing more.
    pub fn client_shut_down(&mut self) {
        self.sides[CLIENT].has_shut_down = true;
        self.turn(CLIENT, None);
    }

    /// The client leaves. The bytes that it has sent still arrive.
    pub fn client_leave(&mut self) {
        self.sides[CLIENT].is_leaving = true;
        self.turn(CLIENT, None);
    }

    /// Loses the client's bytes that its endpoint has not taken.
    pub fn lose_unsent(&mut self) {
        self.sides[CLIENT].unsent.clear();
    }

    /// How many more bytes the server may send while the client has at most `window` bytes to read and to come.
    pub fn server_room(&self, window: usize) -> usize {
        let side = &self.sides[SERVER];
        let held = side
            .conn
            .map_or(0, |conn| side.table.unacknowledged(conn) as usize);
        let room = window.saturating_sub(held + self.client_unread());
        room.min(self.send_bytes.saturating_sub(held))
    }

    /// The server sends bytes. Returns how many were taken.
    pub fn server_send(&mut self, bytes: &[u8]) -> usize {
        let taken = self.send(SERVER, bytes);
        self.turn(SERVER, None);
        taken
    }

    /// Bytes that have arrived at the server.
    pub fn server_unread(&self) -> usize {
        self.sides[SERVER].unread()
    }

    /// The server reads at most `bytes_max` bytes.
    pub fn server_read(&mut self, bytes_max: usize) -> Vec<u8> {
        self.read(SERVER, bytes_max)
    }

    /// Whether the end of the client's stream has arrived, perhaps with bytes before it that the server has not read.
    pub fn server_has_end(&self) -> bool {
        self.sides[SERVER].has_ended()
    }

    /// The server sends nothing more.
    pub fn server_shut_down(&mut self) {
        self.sides[SERVER].has_shut_down = true;
        self.turn(SERVER, None);
    }

    /// The server closes the connection.
    pub fn server_close(&mut self) {
        self.end(SERVER, false);
    }

    /// The server resets the connection.
    pub fn server_reset(&mut self) {
        self.end(SERVER, true);
    }

    /// Whether the connection has failed at an end that has not closed it.
    pub fn has_failed(&mut self) -> bool {
        let is_failed = self.sides.iter_mut().any(|side| side.failure().is_some());
        // A client that has left before the server knew of it is alone, too.
        let is_unknown = self.sides.iter().all(|side| side.conn.is_none());
        let is_alone = is_unknown && self.sides[CLIENT].is_closed;
        is_failed || (is_alone || self.is_half_open()) && self.is_still()
    }

    /// Whether one end has given up after its application had closed it, and the reset that told the other end was lost. Keep-alive would find
    /// that out.
    fn is_half_open(&self) -> bool {
        (0..2).any(|side| {
            let (gone, other) = (&self.sides[side], &self.sides[1 - side]);
            let state = other.conn.map(|conn| other.table.state(conn));
            let is_open = state.is_some_and(State::may_receive);
            gone.is_closed && gone.table.transfer_count() == 0 && is_open
        })
    }

    /// Whether both applications have closed the connection, and nothing is in flight.
    pub fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.is_closed) && self.is_still()
    }

    /// Whether nothing more happens before an application reads, sends or closes.
    pub fn is_still(&self) -> bool {
        let waits_for_reader = |side: usize| self.sides[1 - side].unread() > 0;
        self.network.next_us().is_none()
            && (0..2).all(|side| !self.sides[side].is_outstanding() || waits_for_reader(side))
    }

    /// Lets some packets arrive.
    pub fn advance(&mut self, now_s: u32) {
        let events = self.rng.below(8);
        self.run(now_s, events);
    }

    /// Lets all packets arrive.
    pub fn finish(&mut self, now_s: u32) {
        self.run(now_s, EVENTS_MAX);
        if !self.is_still() {
            let states = self
                .sides
                .each_ref()
                .map(|side| side.conn.map(|conn| side.table.state(conn)));
            self.violate(format!("a connection over TCP never rests: {states:?}"));
        }
    }

    /// The first broken invariant.
    pub fn violation(&mut self) -> Option<String> {
        if self.is_over() {
            let sides = self.sides.iter();
            let held: usize = sides.map(|side| side.table.account.total).sum();
            if held > 0 {
                self.violate(format!(
                    "{held} bytes of a connection over TCP stay charged"
                ));
            }
        }
        self.violation.take()
    }

    /// The number of segments that were retransmitted.
    pub fn retransmitted(&self) -> u64 {
        let sides = self.sides.iter();
        sides.map(|side| side.table.counters.retransmitted).sum()
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn run(&mut self, now_s: u32, events: usize) {
        self.now_us = self.now_us.max(u64::from(now_s) * US_PER_S);
        self.turn(CLIENT, None);
        self.turn(SERVER, None);
        for _ in 0..events {
            if self.is_still() {
                return;
            }
            let timers = self.sides.iter().map(|side| side.table.next_us());
            let Some(next_us) = timers.chain([self.network.next_us()]).flatten().min() else {
                return;
            };
            self.now_us = self.now_us.max(next_us);
            match self.network.receive(self.now_us) {
                Some((side, packet)) => self.turn(side, Some(&packet)),
                None => {
                    self.turn(CLIENT, None);
                    self.turn(SERVER, None);
                }
            }
        }
    }

    /// One turn of one side: it receives a packet, its application does what is due, and it sends.
    fn turn(&mut self, side: usize, packet: Option<&[u8]>) {
        let mut device = Packets {
            room: self.network.device_room(),
            ..Packets::default()
        };
        if let Some(packet) = packet {
            self.sides[side]
                .table
                .receive(packet, self.now_us, &mut device);
        }
        if side == SERVER && self.sides[side].conn.is_none() && !self.sides[side].is_closed {
            self.sides[side].conn = self.sides[side].table.accept(0, 0);
        }
        self.check_failure(side);
        self.application(side, &mut device);
        self.sides[side].table.poll(self.now_us, &mut device);
        self.transmit(side, device);
    }

    fn transmit(&mut self, side: usize, device: Packets) {
        for packet in device.list {
            self.network.send(self.now_us, side, packet);
        }
    }

    /// A connection fails only because an application has closed or reset its end, or because the handshake took longer than a cookie is good.
    fn check_failure(&mut self, side: usize) {
        let peer_is_closed = self.sides[1 - side].is_closed;
        let is_known = self.is_accepted() || self.sides[SERVER].is_closed;
        if let Some(failure) = self.sides[side].failure()
            && is_known
            && !peer_is_closed
        {
            let end = ["client", "server"][side];
            self.violate(format!(
                "the {end}'s TCP has failed, {failure:?}, and nobody has closed the connection"
            ));
        }
    }

    /// Does what is due at the application's end.
    fn application(&mut self, side: usize, device: &mut Packets) {
        let Some(conn) = self.sides[side].conn else {
            return;
        };
        if self.sides[side].failure().is_some() {
            self.sides[side].unsent.clear();
        }
        let unsent: Vec<u8> = self.sides[side].unsent.iter().copied().collect();
        if !unsent.is_empty() {
            let taken = self.send(side, &unsent);
            self.sides[side].unsent.drain(..taken);
        }
        let this = &mut self.sides[side];
        let state = this.table.state(conn);
        let is_open = !matches!(state, State::SynSent | State::SynReceived);
        if this.has_shut_down && is_open && this.unsent.is_empty() {
            this.table.shut_down(conn, self.now_us);
        }
        if !this.is_leaving {
            return;
        }
        while this.table.readable(conn) > 0 {
            this.table.read(conn, &mut [0; 4096]);
        }
        let all_arrived = this.unsent.is_empty() && this.table.unacknowledged(conn) == 0;
        if state == State::Closed || is_open && all_arrived {
            this.table.close(conn, self.now_us, device);
            (this.conn, this.is_closed) = (None, true);
        }
    }

    fn send(&mut self, side: usize, bytes: &[u8]) -> usize {
        let is_shared = self.rng.chance(50);
        let this = &mut self.sides[side];
        let Some(conn) = this.conn else {
            return 0;
        };
        let shared = Shared::from(bytes);
        let part = match is_shared {
            true => Part::Shared(&shared),
            false => Part::Copied(bytes),
        };
        match this.table.send(conn, part, self.now_us) {
            Sent::Bytes(count) => count,
            Sent::Again | Sent::Failed(_) => 0,
        }
    }

    fn read(&mut self, side: usize, bytes_max: usize) -> Vec<u8> {
        let this = &mut self.sides[side];
        let mut bytes = vec![0; bytes_max.min(this.unread())];
        if bytes.is_empty() {
            return bytes;
        }
        if let Some(conn) = this.conn
            && let Received::Bytes(count) = this.table.read(conn, &mut bytes)
        {
            bytes.truncate(count);
        } else {
            bytes.clear();
        }
        // The peer may learn that there is room again.
        self.turn(side, None);
        bytes
    }

    fn end(&mut self, side: usize, is_reset: bool) {
        let mut device = Packets::default();
        let this = &mut self.sides[side];
        this.is_closed = true;
        if let Some(conn) = this.conn.take() {
            match is_reset {
                true => this.table.reset(conn, self.now_us, &mut device),
                false => this.table.close(conn, self.now_us, &mut device),
            }
        }
        this.table.poll(self.now_us, &mut device);
        self.transmit(side, device);
    }
}

/// The ends of a client and a server.
fn ends(is_v6: bool) -> [End; 2] {
    let address = |last: u8| -> IpAddr {
        match is_v6 {
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
            false => Ipv4Addr::new(10, 0, 0, last).into(),
        }
    };
    [
        End::new(address(1), 40_000),
        End::new(address(2), SERVER_PORT),
    ]
}

fn config(send_bytes: u32, rng: &mut Rng) -> Config {
    Config {
        connections: 4,
        receive_log2: rng.pick(&[10, 14, 16]),
        send_bytes,
        share_bytes: rng.pick(&[1, 200, 5_000]),
        ranges: rng.pick(&[1, 4, 32]),
        ack_delay_us: rng.pick(&[0, 10_000, 40_000]),
        packet_bytes: rng.pick(&[1_280, 1_500, 1_500, 9_000]),
        retries: RETRIES,
        syn_retries: RETRIES,
        rto_max_us: 8_000_000,
        // The world's clock jumps by hours while bytes are in flight.
        hold_ms: 0,
        ..Config::default()
    }
}

/// What the network does before the phase without faults.
fn faults(rng: &mut Rng) -> Faults {
    Faults {
        loss: rng.pick(&[0, 1, 5, 30]),
        double: rng.pick(&[0, 2, 20]),
        corrupt: rng.pick(&[0, 0, 2]),
        late: rng.pick(&[0, 5, 30]),
        delay_us: rng.pick(&[50, 1_000, 20_000]),
        mtu: rng.pick(&[0, 0, 3]),
        full: rng.pick(&[0, 0, 20]),
        dark_s: rng.pick(&[0, 0, 20]),
    }
}
