//! A single shard of a server, with clients that read everything that the shard sends. Messages to other shards (mail) are dropped.

use std::net::IpAddr;

use crore_broker::{CloseMode, ConnId, Input, Io, Mail, Now, OutputPart, Shard, ShardId, SocketId};

/// Turns (runs of the shard's event loop) within which a shard must become idle.
const TURNS_MAX: usize = 20_000;

/// The bytes that each client has received, by link.
struct Clients {
    conns: Vec<Option<ConnId>>,
    received: Vec<Vec<u8>>,
    me: ShardId,
    to_itself: Vec<Mail>,
}

impl Io for Clients {
    fn start_reading(&mut self, link: SocketId, conn: ConnId) {
        self.conns[link.0 as usize] = Some(conn);
    }

    fn send(&mut self, link: SocketId, parts: &[OutputPart<'_>]) -> usize {
        let received = &mut self.received[link.0 as usize];
        let before = received.len();
        parts
            .iter()
            .for_each(|part| received.extend_from_slice(part.as_ref()));
        received.len() - before
    }

    fn set_interest(&mut self, _: SocketId, _: ConnId, _: bool, _: bool) {}

    fn close(&mut self, _: SocketId, _: CloseMode) {}

    fn post(&mut self, to: ShardId, mail: Mail) {
        if to == self.me {
            self.to_itself.push(mail);
        }
    }
}

/// The shard, and its clients.
pub struct Node {
    pub shard: Shard,
    clients: Clients,
    now: Now,
}

impl Node {
    /// A node whose only shard is `shard`, with the number `me`.
    pub fn of(shard: Shard, me: ShardId, now: Now) -> Node {
        let clients = Clients {
            conns: Vec::new(),
            received: Vec::new(),
            me,
            to_itself: Vec::new(),
        };
        Node {
            shard,
            clients,
            now,
        }
    }

    /// Connects a client that sends these bytes. Returns its link.
    pub fn client(&mut self, bytes: &[u8]) -> usize {
        let link = self.clients.received.len();
        self.clients.received.push(Vec::new());
        self.clients.conns.push(None);
        let from = IpAddr::from([127, 0, 0, 1]);
        self.handle(Input::Accepted(SocketId(link as u32), from));
        if let Some(conn) = self.clients.conns[link] {
            self.handle(Input::Received(conn, &mut bytes.to_vec()));
        }
        self.settle();
        link
    }

    /// The bytes that a client has received.
    pub fn received(&self, link: usize) -> &[u8] {
        &self.clients.received[link]
    }

    pub fn handle(&mut self, input: Input<'_>) {
        self.shard.handle(input, self.now, &mut self.clients);
    }

    /// Runs turns until the shard is idle. The clock does not advance.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let moved = self.shard.flush(self.now, &mut self.clients);
            let mail = std::mem::take(&mut self.clients.to_itself);
            if !moved && mail.is_empty() {
                return;
            }
            mail.into_iter()
                .for_each(|mail| self.handle(Input::Mail(mail)));
        }
        panic!("no rest after {TURNS_MAX} turns");
    }
}
