//! The virtual network: sockets with a bounded window that take bytes in part, and mail under way
//! between shards. It implements the broker's [`Io`].
//!
//! Invariants: bytes of one direction keep their order; mail of one pair of shards keeps its order; a link is never used
//! again, so that any use of a closed one by a shard is noticed.

use std::collections::VecDeque;
use std::ops::Range;

use crore_broker::{Batch, Close, ConnId, Io, Link, Mail, Part, Report, ShardId, Ticket};

use crate::closed::Watch;
use crate::engine::{Engine, Manner};
use crate::rng::Rng;

/// One connection as both ends see it.
#[derive(Default)]
pub struct Socket {
    /// The shard that it belongs to.
    pub shard: ShardId,
    /// The shard has accepted it.
    pub accepted: bool,
    /// The shard's id for it.
    pub conn: Option<ConnId>,
    /// Bytes on their way to the server.
    pub to_server: VecDeque<u8>,
    /// Bytes on their way to the client.
    pub to_client: VecDeque<u8>,
    /// Checks the bytes to the client.
    watch: Watch,
    /// The most bytes on their way to the client at once.
    pub window: usize,
    read: bool,
    write: bool,
    /// The client sends no more.
    pub client_fin: bool,
    /// The client is gone, and the server does not know yet.
    pub client_gone: bool,
    /// The connection was lost.
    pub reset: bool,
    /// The server sends no more.
    pub server_fin: bool,
    /// The server has closed it.
    pub server_closed: bool,
}

impl Socket {
    /// A poller's report: readable, writable, hung up.
    pub fn readiness(&self) -> (bool, bool, bool) {
        if self.server_closed || self.conn.is_none() {
            return (false, false, false);
        }
        let readable = self.read && (!self.to_server.is_empty() || self.client_fin || self.reset);
        let writable = self.write && (self.room() > 0 || self.reset);
        let hangup = self.reset || (self.client_fin && self.server_fin);
        (readable, writable, hangup)
    }

    fn room(&self) -> usize {
        self.window.saturating_sub(self.to_client.len())
    }
}

/// The mail under way: by the shard that sent it, and by the one that it goes to.
pub struct Transit(Vec<Vec<VecDeque<Mail>>>);

impl Transit {
    fn between(shards: usize) -> Transit {
        let of_shard = || (0..shards).map(|_| VecDeque::new()).collect();
        Transit((0..shards).map(|_| of_shard()).collect())
    }

    /// The mail from one shard to another.
    pub fn of(&mut self, from: usize, to: usize) -> &mut VecDeque<Mail> {
        &mut self.0[from][to]
    }

    /// Whether some is under way to this shard.
    pub fn is_for(&self, to: usize) -> bool {
        self.0.iter().any(|of_shard| !of_shard[to].is_empty())
    }

    /// The most bytes of asks that are under way from one shard to another.
    pub fn most_bytes(&self) -> usize {
        let bytes = |mails: &VecDeque<Mail>| mails.iter().map(|mail| mail.bytes.len()).sum();
        self.0.iter().flatten().map(bytes).max().unwrap_or(0)
    }

    /// The inputs that wait for this shard in its mail: asks, tells, and the mails themselves.
    pub fn inputs(&self, to: usize) -> usize {
        let inputs = |mail: &Mail| 1 + mail.asks.len() + mail.tells.len();
        let all = self.0.iter().flat_map(|of_shard| &of_shard[to]);
        all.map(inputs).sum()
    }
}

/// All sockets and all mail.
pub struct Net {
    /// By link.
    pub sockets: Vec<Socket>,
    /// The mail between the shards.
    pub mail: Transit,
    /// The shards of a node.
    shards: usize,
    /// The shard whose turn it is.
    pub turn_of: ShardId,
    /// The random numbers of this step.
    pub rng: Rng,
    /// How many of a hundred sends are cut although there is room.
    pub tear_percent: u32,
    /// Sends that took less than was offered.
    pub torn: u64,
    /// The engine of the partitions, and how it behaves, if there is one.
    pub engine: Option<(Engine, Manner)>,
    /// The first thing that a shard did wrong.
    pub wrong: Option<String>,
    /// The process ends after so many effects: later ones reach nobody.
    pub lives: usize,
    /// The last report of a shard.
    pub report: Option<Report>,
}

impl Net {
    /// A network of nodes of so many shards, with an engine of this manner if they have one.
    pub fn new(nodes: usize, shards: usize, tear_percent: u32, manner: Option<Manner>) -> Self {
        Net {
            sockets: Vec::new(),
            mail: Transit::between(nodes * shards),
            shards,
            turn_of: 0,
            rng: Rng::new(0),
            tear_percent,
            torn: 0,
            engine: manner.map(|manner| (Engine::default(), manner)),
            wrong: None,
            lives: usize::MAX,
            report: None,
        }
    }

    /// The process has ended, and another one begins: no connection is left, and no mail.
    pub fn begin_anew(&mut self) {
        for socket in &mut self.sockets {
            (socket.server_fin, socket.server_closed, socket.reset) = (true, true, true);
            socket.to_server.clear();
            socket.to_client.clear();
        }
        self.mail.0.iter_mut().flatten().for_each(VecDeque::clear);
        self.lives = usize::MAX;
    }

    /// The process of these shards has ended: none of their connections is left, and no mail.
    pub fn lose(&mut self, shards: Range<usize>) {
        for socket in &mut self.sockets {
            if shards.contains(&usize::from(socket.shard)) {
                (socket.server_fin, socket.server_closed, socket.reset) = (true, true, true);
                socket.to_server.clear();
                socket.to_client.clear();
            }
        }
        for from in shards {
            self.mail.0[from].iter_mut().for_each(VecDeque::clear);
        }
    }

    /// Whether both ends of this link are open.
    pub fn is_whole(&self, link: u32) -> bool {
        let socket = &self.sockets[link as usize];
        !(socket.client_fin || socket.server_fin || socket.reset)
    }

    /// Whether the process has ended.
    pub fn is_dead(&self) -> bool {
        self.lives == 0
    }

    /// The process has one effect more; false when it has ended before.
    fn live(&mut self) -> bool {
        let lives = self.lives > 0;
        if self.lives < usize::MAX {
            self.lives = self.lives.saturating_sub(1);
        }
        lives
    }

    /// A new connection to a shard.
    pub fn connect(&mut self, shard: ShardId, window: usize) -> u32 {
        self.sockets.push(Socket {
            shard,
            window,
            read: true,
            ..Socket::default()
        });
        self.sockets.len() as u32 - 1
    }

    fn socket(&mut self, link: Link, what: &str) -> Option<&mut Socket> {
        let socket = &mut self.sockets[link.0 as usize];
        if socket.server_closed || socket.shard != self.turn_of {
            self.wrong
                .get_or_insert(format!("{what} of link {} that it does not have", link.0));
            return None;
        }
        Some(socket)
    }
}

impl Io for Net {
    fn open(&mut self, link: Link, conn: ConnId) {
        if self.is_dead() {
            return;
        }
        if let Some(socket) = self.socket(link, "open") {
            socket.conn = Some(conn);
        }
    }

    fn send(&mut self, link: Link, parts: &[Part<'_>]) -> usize {
        let (tear, dice) = (self.rng.chance(self.tear_percent), self.rng.next());
        if !self.live() {
            return 0;
        }
        let Some(socket) = self.socket(link, "send") else {
            return 0;
        };
        if socket.server_fin {
            self.wrong
                .get_or_insert(format!("send on link {} after its end", link.0));
            return 0;
        }
        if socket.reset {
            return 0;
        }
        let offered: usize = parts.iter().map(|part| part.as_ref().len()).sum();
        if socket.client_gone {
            // The peer answers such bytes with a reset.
            socket.reset = offered > 0;
            return offered;
        }
        let mut taken = offered.min(socket.room());
        if tear && taken > 0 {
            taken = dice as usize % (taken + 1);
        }
        let bytes = parts.iter().flat_map(|part| part.as_ref().iter().copied());
        let in_order = socket.watch.takes(bytes.clone().take(taken));
        socket.to_client.extend(bytes.take(taken));
        if !in_order {
            self.wrong
                .get_or_insert(format!("bytes behind a Close frame on link {}", link.0));
        }
        self.torn += u64::from(taken < offered);
        taken
    }

    fn interest(&mut self, link: Link, conn: ConnId, read: bool, write: bool) {
        if self.is_dead() {
            return;
        }
        if let Some(socket) = self.socket(link, "interest") {
            assert_eq!(socket.conn, Some(conn), "a link has one connection");
            (socket.read, socket.write) = (read, write);
        }
    }

    fn close(&mut self, link: Link, how: Close) {
        let lost = self.rng.chance(30);
        if !self.live() {
            return;
        }
        let Some(socket) = self.socket(link, "close") else {
            return;
        };
        socket.server_fin = true;
        match how {
            Close::Drain => {}
            Close::Now | Close::Reset => {
                // Unread bytes of the client turn a close into a reset.
                let reset = how == Close::Reset || (lost && !socket.to_server.is_empty());
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
        if !self.live() {
            return;
        }
        let node = usize::from(self.turn_of) / self.shards;
        let taken = match &mut self.engine {
            Some((engine, manner)) => engine.append(node, batch, *manner, &mut self.rng),
            None => Err("records for no engine".into()),
        };
        if let Err(wrong) = taken {
            self.wrong.get_or_insert(wrong);
        }
    }

    fn post(&mut self, to: ShardId, mail: Mail) {
        let from = usize::from(self.turn_of);
        let local = from % self.shards;
        assert_eq!(usize::from(mail.from), local, "mail says who sends it");
        if self.live() {
            let to = from - local + usize::from(to);
            self.mail.of(from, to).push_back(mail);
        }
    }

    fn report(&mut self, _: Ticket, report: Report) {
        self.report = Some(report);
    }
}
