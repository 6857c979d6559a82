//! The virtual network: sockets with bounded buffers that may take only a part of a send, and the mail between shards: asks (requests to a
//! topic's home shard) and tells (its messages back). It implements the broker's [`Io`]. Some connections are over the product's own TCP.
//!
//! Invariants: a socket keeps the order of the bytes in each direction, and the mail from one shard to another keeps its order. Links are
//! never reused, so that the use of a closed link is detected.
//!
//! A *home* is a shard that owns topics.

use std::collections::VecDeque;
use std::ops::Range;

use crore_broker::{
    Batch, CloseMode, ConnId, Io, Mail, OutputPart, Report, ShardId, SocketId, Ticket,
};
use crore_rng::Rng;

use crate::close_frame::CloseCheck;
use crate::coverage::Coverage;
use crate::engine::{ClusterLog, Engine, EngineBehavior};
use crate::tcp_connection::TcpConnection;

/// The events of a socket that a poller reports.
#[derive(Clone, Copy, Default)]
pub struct Readiness {
    /// Bytes, the end of the client's half, or a reset can be read.
    pub is_readable: bool,
    /// Bytes can be written, or the connection was reset.
    pub is_writable: bool,
    /// The connection was reset, or both halves are closed.
    pub is_hung_up: bool,
}

/// A connection, as both ends see it.
#[derive(Default)]
pub struct Socket {
    /// The shard that has the connection.
    pub shard: ShardId,
    /// Whether the shard has accepted the connection.
    pub accepted: bool,
    /// The shard's id for the connection; `None` until the shard has opened the connection.
    pub conn: Option<ConnId>,
    /// Bytes that the server has not read yet. Empty if the connection is over TCP.
    to_server: VecDeque<u8>,
    /// Bytes that the client has not read yet. Empty if the connection is over TCP.
    to_client: VecDeque<u8>,
    /// The endpoints, and the network between them, if the connection is over TCP and not over.
    tcp: Option<Box<TcpConnection>>,
    /// Checks that no byte follows a Close frame.
    close_check: CloseCheck,
    /// The maximum number of bytes that the client has not read.
    pub window: usize,
    /// Whether the shard wants to know when it can read, and when it can write.
    wants_to_read: bool,
    wants_to_write: bool,
    /// Whether the client has closed its half.
    pub client_fin: bool,
    /// Whether the client has closed both halves. The server learns this when it sends: then the connection is reset.
    client_gone: bool,
    /// Whether the connection was reset.
    pub reset: bool,
    /// Whether the server has closed its half.
    pub server_fin: bool,
    /// Whether the server has closed the connection.
    pub server_closed: bool,
}

impl Socket {
    /// The events that a poller reports.
    pub fn readiness(&self) -> Readiness {
        if self.server_closed || self.conn.is_none() {
            return Readiness::default();
        }
        let has_end = self.has_client_end();
        let is_readable =
            self.wants_to_read && (self.sent_by_client() > 0 || has_end || self.reset);
        let is_writable = self.wants_to_write && (self.room() > 0 || self.reset);
        let is_hung_up = self.reset || (has_end && self.server_fin);
        Readiness {
            is_readable,
            is_writable,
            is_hung_up,
        }
    }

    fn room(&self) -> usize {
        match &self.tcp {
            Some(tcp) => tcp.server_room(self.window),
            None => self.window.saturating_sub(self.to_client.len()),
        }
    }

    /// Whether the shard can accept the connection. Over TCP the handshake must have ended.
    pub fn can_be_accepted(&self) -> bool {
        !self.accepted && self.tcp.as_ref().is_none_or(|tcp| tcp.is_accepted())
    }

    /// The number of bytes that the server can read.
    pub fn sent_by_client(&self) -> usize {
        let over_tcp = self.tcp.as_ref().map(|tcp| tcp.server_unread());
        over_tcp.unwrap_or(self.to_server.len())
    }

    /// Whether the end of the client's half has arrived.
    fn has_client_end(&self) -> bool {
        let over_tcp = self.tcp.as_ref().map(|tcp| tcp.server_has_end());
        over_tcp.unwrap_or(self.client_fin)
    }

    /// Lets the server read at most `bytes_max` bytes.
    pub fn read_at_server(&mut self, bytes_max: usize) -> Vec<u8> {
        match &mut self.tcp {
            Some(tcp) => tcp.server_read(bytes_max),
            None => {
                let len = bytes_max.min(self.to_server.len());
                self.to_server.drain(..len).collect()
            }
        }
    }

    /// Sends a client's bytes. If the connection has ended, they are lost.
    pub fn send_from_client(&mut self, bytes: &[u8]) {
        if self.client_fin || self.server_closed || self.reset {
            return;
        }
        match &mut self.tcp {
            Some(tcp) => tcp.client_send(bytes),
            None => self.to_server.extend(bytes),
        }
    }

    /// Whether the client has bytes to read, or its connection has ended.
    pub fn has_unread(&self) -> bool {
        let (unread, is_ended) = match &self.tcp {
            Some(tcp) => (tcp.client_unread(), tcp.client_has_end()),
            None => (self.to_client.len(), self.server_fin),
        };
        unread > 0 || is_ended || self.reset
    }

    /// Takes at most `bytes_max` received bytes for a client. Also returns whether these are the last bytes of the connection.
    pub fn read_at_client(&mut self, bytes_max: usize) -> (Vec<u8>, bool) {
        if let Some(tcp) = &mut self.tcp {
            let bytes = tcp.client_read(bytes_max);
            return (bytes, tcp.client_has_end() && tcp.client_unread() == 0);
        }
        let len = bytes_max.min(self.to_client.len());
        let bytes = self.to_client.drain(..len).collect();
        let is_closed = self.server_fin || self.server_closed || self.reset;
        (bytes, is_closed && self.to_client.is_empty())
    }

    /// Closes the client's half.
    pub fn shut_down_client(&mut self) {
        self.client_fin = true;
        if let Some(tcp) = &mut self.tcp {
            tcp.client_shut_down();
        }
    }

    /// Closes the client's end. The bytes that it has sent still arrive.
    pub fn hang_up(&mut self) {
        (self.client_fin, self.client_gone) = (true, true);
        self.to_client.clear();
        if let Some(tcp) = &mut self.tcp {
            tcp.client_leave();
        }
    }

    /// Loses all but the first `kept` of the client's bytes that the server has not read. Over TCP it loses those that were not sent.
    pub fn lose_sent(&mut self, kept: usize) {
        self.to_server.truncate(kept);
        if let Some(tcp) = &mut self.tcp {
            tcp.lose_unsent();
        }
    }

    /// Resets the connection at both ends, and loses all bytes.
    pub fn reset_both(&mut self) {
        self.reset = true;
        self.to_server.clear();
        self.to_client.clear();
        self.tcp = None;
    }

    /// Ends a connection whose server is lost.
    fn lose_server(&mut self) {
        (self.server_fin, self.server_closed) = (true, true);
        self.reset_both();
    }

    /// Lets packets arrive, all of them or some.
    fn carry(&mut self, now_s: u32, carries_all: bool, coverage: &mut Coverage) -> Option<String> {
        let tcp = self.tcp.as_mut()?;
        match carries_all {
            true => tcp.finish(now_s),
            false => tcp.advance(now_s),
        }
        let violation = tcp.violation();
        let (is_over, is_failed) = (tcp.is_over(), tcp.has_failed());
        if is_over || is_failed {
            coverage.tcp_retransmissions += tcp.retransmitted();
            coverage.tcp_failures += u64::from(is_failed && !is_over);
            self.reset |= is_failed;
            self.tcp = None;
        }
        violation
    }
}

/// The mail in flight, by sender and receiver.
pub struct Transit(Vec<Vec<VecDeque<Mail>>>);

impl Transit {
    fn new(shards: usize) -> Transit {
        let of_shard = || (0..shards).map(|_| VecDeque::new()).collect();
        Transit((0..shards).map(|_| of_shard()).collect())
    }

    /// The mail from one shard to another.
    pub fn queue(&mut self, from: usize, to: usize) -> &mut VecDeque<Mail> {
        &mut self.0[from][to]
    }

    /// Whether there is mail for this shard.
    pub fn has_mail_for(&self, to: usize) -> bool {
        self.0.iter().any(|of_shard| !of_shard[to].is_empty())
    }

    /// The maximum number of bytes of asks in flight between two shards.
    pub fn ask_bytes_max(&self) -> usize {
        let bytes = |mails: &VecDeque<Mail>| mails.iter().map(|mail| mail.bytes.len()).sum();
        self.0.iter().flatten().map(bytes).max().unwrap_or(0)
    }

    /// Number of inputs in the mail for this shard: asks, tells, and the mails themselves.
    pub fn inputs_for(&self, to: usize) -> usize {
        let inputs = |mail: &Mail| 1 + mail.asks.len() + mail.tells.len();
        let all = self.0.iter().flat_map(|of_shard| &of_shard[to]);
        all.map(inputs).sum()
    }
}

/// All sockets and all mail.
pub struct Net {
    /// All connections ever made, by link.
    pub sockets: Vec<Socket>,
    /// The mail between the shards.
    pub mail: Transit,
    /// The percentage of connections that are over TCP, and the seed of these.
    pub tcp_percent: u32,
    pub tcp_seed: u64,
    /// Whether the networks of new connections over TCP have no faults.
    tcp_is_calm: bool,
    /// The links of connections over TCP that are not over.
    tcp_links: Vec<u32>,
    /// Number of shards of a node.
    shards: usize,
    /// The shard that takes its turn (a round of its loop).
    pub current_shard: ShardId,
    /// Random choices of the current turn.
    pub rng: Rng,
    /// The percentage of sends of which a socket takes only a part although there is room.
    pub partial_send_percent: u32,
    /// The counts of the network's own events.
    pub coverage: Coverage,
    /// The engine (the log that commits batches), if there is one.
    pub engine: Option<Engine>,
    /// The first misuse of the network or the engine by a shard.
    pub violation: Option<String>,
    /// The number of effects (sends, closes, appends, mails) after which the process crashes. Later effects are dropped.
    pub effects_left: usize,
    /// The last report of a shard.
    pub report: Option<Report>,
}

impl Net {
    /// A network of `nodes` nodes with `shards` shards each, and perhaps an engine.
    pub fn new(
        nodes: usize,
        shards: usize,
        partial_send_percent: u32,
        behavior: Option<EngineBehavior>,
    ) -> Self {
        Net {
            sockets: Vec::new(),
            mail: Transit::new(nodes * shards),
            tcp_percent: 0,
            tcp_seed: 0,
            tcp_is_calm: false,
            tcp_links: Vec::new(),
            shards,
            current_shard: 0,
            rng: Rng::new(0),
            partial_send_percent,
            coverage: Coverage::default(),
            engine: behavior.map(Engine::new),
            violation: None,
            effects_left: usize::MAX,
            report: None,
        }
    }

    /// Resets all connections and drops all mail, because the process has ended and another one starts.
    pub fn restart_process(&mut self) {
        self.sockets.iter_mut().for_each(Socket::lose_server);
        self.mail.0.iter_mut().flatten().for_each(VecDeque::clear);
        self.effects_left = usize::MAX;
    }

    /// Resets the connections of these shards and drops their mail, because their process has ended.
    pub fn lose_process(&mut self, shards: Range<usize>) {
        for socket in &mut self.sockets {
            if shards.contains(&usize::from(socket.shard)) {
                socket.lose_server();
            }
        }
        for from in shards {
            self.mail.0[from].iter_mut().for_each(VecDeque::clear);
        }
    }

    /// The engine of a run that has one.
    pub fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("the world has an engine")
    }

    /// The log that the nodes of a cluster share.
    pub fn cluster_log(&self) -> Option<&ClusterLog> {
        self.engine.as_ref()?.cluster_log.as_ref()
    }

    /// Like [`Net::cluster_log`], but mutable.
    pub fn cluster_log_mut(&mut self) -> Option<&mut ClusterLog> {
        self.engine.as_mut()?.cluster_log.as_mut()
    }

    /// Whether both ends of this link are open.
    pub fn is_open(&self, link: u32) -> bool {
        let socket = &self.sockets[link as usize];
        !(socket.client_fin || socket.server_fin || socket.reset)
    }

    /// Whether the process has ended.
    pub fn is_dead(&self) -> bool {
        self.effects_left == 0
    }

    /// Counts an effect of the process. Returns false if the process has ended, so that the effect is dropped.
    fn count_effect(&mut self) -> bool {
        let is_alive = self.effects_left > 0;
        if self.effects_left < usize::MAX {
            self.effects_left = self.effects_left.saturating_sub(1);
        }
        is_alive
    }

    /// Opens a connection to a shard. Returns its link.
    pub fn connect(&mut self, shard: ShardId, window: usize, now_s: u32) -> u32 {
        let link = self.sockets.len() as u32;
        let mut rng = Rng::new(self.tcp_seed ^ u64::from(link) << 32);
        let is_over_tcp = rng.chance(self.tcp_percent);
        let tcp =
            is_over_tcp.then(|| Box::new(TcpConnection::new(rng.draw(), now_s, self.tcp_is_calm)));
        if is_over_tcp {
            self.coverage.tcp_connections += 1;
            self.tcp_links.push(link);
        }
        self.sockets.push(Socket {
            shard,
            window,
            wants_to_read: true,
            tcp,
            ..Socket::default()
        });
        link
    }

    /// Whether packets of this shard's connections are in flight, or will be.
    pub fn has_packets_of(&self, shard: usize) -> bool {
        let mut sockets = self.tcp_links.iter().map(|it| &self.sockets[*it as usize]);
        sockets.any(|socket| {
            let tcp = socket.tcp.as_ref();
            usize::from(socket.shard) == shard && tcp.is_some_and(|tcp| !tcp.is_still())
        })
    }

    /// Lets packets of this shard's connections arrive, all of them or some.
    pub fn carry_packets(&mut self, shard: usize, now_s: u32, carries_all: bool) {
        if self.is_dead() {
            return;
        }
        for link in &self.tcp_links {
            let socket = &mut self.sockets[*link as usize];
            if usize::from(socket.shard) == shard
                && let Some(violation) = socket.carry(now_s, carries_all, &mut self.coverage)
            {
                let what = format!("link {link}: {violation}");
                self.violation.get_or_insert(what);
            }
        }
        let sockets = &self.sockets;
        self.tcp_links
            .retain(|link| sockets[*link as usize].tcp.is_some());
    }

    /// Makes the networks of connections over TCP carry all packets from now on.
    pub fn calm_tcp(&mut self) {
        self.tcp_is_calm = true;
        let connections = self.sockets.iter_mut().filter_map(|it| it.tcp.as_mut());
        connections.for_each(|tcp| tcp.calm());
    }

    fn socket(&mut self, link: SocketId, action: &str) -> Option<&mut Socket> {
        let socket = &mut self.sockets[link.0 as usize];
        if socket.server_closed || socket.shard != self.current_shard {
            self.violation
                .get_or_insert(format!("{action} of link {} that it does not have", link.0));
            return None;
        }
        Some(socket)
    }
}

impl Io for Net {
    fn start_reading(&mut self, link: SocketId, conn: ConnId) {
        if self.is_dead() {
            return;
        }
        if let Some(socket) = self.socket(link, "open") {
            socket.conn = Some(conn);
        }
    }

    fn send(&mut self, link: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let (is_partial, dice) = (self.rng.chance(self.partial_send_percent), self.rng.draw());
        if !self.count_effect() {
            return 0;
        }
        let Some(socket) = self.socket(link, "send") else {
            return 0;
        };
        if socket.server_fin {
            self.violation
                .get_or_insert(format!("send on link {} after its end", link.0));
            return 0;
        }
        if socket.reset {
            return 0;
        }
        let offered: usize = parts.iter().map(|part| part.as_ref().len()).sum();
        if socket.client_gone && socket.tcp.is_none() {
            // The client's kernel answers these bytes with a reset.
            socket.reset = offered > 0;
            return offered;
        }
        let mut taken = offered.min(socket.room());
        if is_partial && taken > 0 {
            taken = dice as usize % (taken + 1);
        }
        let bytes = parts.iter().flat_map(|part| part.as_ref().iter().copied());
        let mut bytes: Vec<u8> = bytes.take(taken).collect();
        if let Some(tcp) = &mut socket.tcp {
            taken = tcp.server_send(&bytes);
            bytes.truncate(taken);
        }
        let in_order = socket.close_check.accepts(bytes.iter().copied());
        if socket.tcp.is_none() {
            socket.to_client.extend(bytes);
        }
        if !in_order {
            self.violation
                .get_or_insert(format!("bytes behind a Close frame on link {}", link.0));
        }
        self.coverage.partial_sends += u64::from(taken < offered);
        taken
    }

    fn set_interest(&mut self, link: SocketId, conn: ConnId, read: bool, write: bool) {
        if self.is_dead() {
            return;
        }
        if let Some(socket) = self.socket(link, "interest") {
            assert_eq!(socket.conn, Some(conn), "a link has one connection");
            (socket.wants_to_read, socket.wants_to_write) = (read, write);
        }
    }

    fn close(&mut self, link: SocketId, mode: CloseMode) {
        let may_reset = self.rng.chance(30);
        if !self.count_effect() {
            return;
        }
        let Some(socket) = self.socket(link, "close") else {
            return;
        };
        socket.server_fin = true;
        if let Some(tcp) = &mut socket.tcp {
            match mode {
                CloseMode::Drain => tcp.server_shut_down(),
                CloseMode::Now => tcp.server_close(),
                CloseMode::Reset => tcp.server_reset(),
            }
            socket.server_closed = mode != CloseMode::Drain;
            return;
        }
        match mode {
            CloseMode::Drain => {}
            CloseMode::Now | CloseMode::Reset => {
                // The kernel may send a reset in place of a close if the server has not read all bytes.
                let reset = mode == CloseMode::Reset || (may_reset && !socket.to_server.is_empty());
                socket.server_closed = true;
                socket.to_server.clear();
                if reset {
                    socket.reset = true;
                    socket.to_client.clear();
                }
            }
        }
    }

    fn append(&mut self, batch: Batch) {
        if !self.count_effect() {
            return;
        }
        let node = usize::from(self.current_shard) / self.shards;
        let taken = match &mut self.engine {
            Some(engine) => engine.append(node, batch, &mut self.rng),
            None => Err("records for no engine".into()),
        };
        if let Err(violation) = taken {
            self.violation.get_or_insert(violation);
        }
    }

    fn post(&mut self, to: ShardId, mail: Mail) {
        let from = usize::from(self.current_shard);
        let shard_in_node = from % self.shards;
        assert_eq!(
            usize::from(mail.from),
            shard_in_node,
            "mail says who sends it"
        );
        if self.count_effect() {
            let to = from - shard_in_node + usize::from(to);
            self.mail.queue(from, to).push_back(mail);
        }
    }

    fn answer_order(&mut self, _: Ticket, report: Report) {
        self.report = Some(report);
    }
}
