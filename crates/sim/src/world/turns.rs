//! The turns of a shard: what a poller and the mail bring, in any order, and what the loop does with it.

use std::net::IpAddr;

use crore_broker::{Input, Link, Now, ShardId};

use super::{RECEIVE_BYTES, World, now};
use crate::limits;
use crate::rng::Rng;
use crate::truth::Wrong;

impl World {
    /// Whether something waits for this shard that it would be woken for.
    pub fn has_work(&self, shard: usize) -> bool {
        self.busy[shard]
            || self.net.has_mail(shard)
            || self.shards[shard].tick_in_ms().is_some()
            || self.ticked_s[shard] != self.truth.now_s
            || self.live[shard].iter().any(|link| {
                let socket = &self.net.sockets[*link as usize];
                let (read, write, hangup) = socket.readiness();
                !socket.accepted || read || write || hangup
            })
    }

    /// One turn of a shard: `whole` takes all that waits, else some of it.
    pub fn turn(&mut self, shard: usize, whole: bool, rng: &mut Rng) -> Result<(), Wrong> {
        self.net.turn_of = shard as ShardId;
        self.net.rng = Rng::new(rng.next());
        let now = now(self.truth.now_s);
        self.tick(shard, now);
        let sockets = &self.net.sockets;
        self.live[shard].retain(|link| !sockets[*link as usize].server_closed);
        let mut links = self.live[shard].clone();
        rng.shuffle(&mut links);
        for link in links {
            if self.shards[shard].is_spent() {
                // What is left is reported again.
                self.met.spent += 1;
                break;
            }
            if whole || rng.chance(70) {
                self.event(shard, link, whole, now, rng);
            }
        }
        let mut from: Vec<usize> = (0..self.plan.shards).collect();
        rng.shuffle(&mut from);
        for from in from {
            while !self.net.mails(from, shard).is_empty()
                && (whole || rng.chance(self.plan.mail_percent))
            {
                let mail = self.net.mails(from, shard).pop_front();
                let mail = mail.expect("it was just seen");
                self.shards[shard].handle(Input::Mail(mail), now, &mut self.net);
            }
        }
        self.busy[shard] = self.shards[shard].flush(now, &mut self.net);
        self.met.cursors += u64::from(self.busy[shard]);
        limits::check(self, shard)
    }

    /// A sweep begins as a second does, and is over before the next; each turn is one step of it.
    fn tick(&mut self, shard: usize, now: Now) {
        let (state, begins) = (
            &mut self.shards[shard],
            self.ticked_s[shard] != self.truth.now_s,
        );
        while begins && state.tick_in_ms().is_some() {
            state.handle(Input::Tick, now, &mut self.net);
        }
        if begins || state.tick_in_ms().is_some() {
            self.ticked_s[shard] = self.truth.now_s;
            state.handle(Input::Tick, now, &mut self.net);
        }
    }

    /// What a poller says of one socket, and what the loop does then.
    fn event(&mut self, shard: usize, link: u32, whole: bool, now: Now, rng: &mut Rng) {
        let (net, shard) = (&mut self.net, &mut self.shards[shard]);
        let socket = &mut net.sockets[link as usize];
        if !socket.accepted {
            socket.accepted = true;
            let from = IpAddr::from([127, 0, 0, 1 + (link % 3) as u8]);
            shard.handle(Input::Accepted(Link(link), from), now, net);
            return;
        }
        let (readable, writable, hangup) = socket.readiness();
        let Some(conn) = socket.conn else { return };
        if writable {
            shard.handle(Input::Writable(conn), now, net);
        }
        if !(readable || hangup) || shard.link_of(conn).is_none() {
            return;
        }
        if !readable {
            shard.handle(Input::Closed(conn), now, net);
            return;
        }
        let socket = &mut net.sockets[link as usize];
        if socket.reset {
            shard.handle(Input::Closed(conn), now, net);
        } else if socket.to_server.is_empty() {
            shard.handle(Input::End(conn), now, net);
        } else {
            let waiting = socket.to_server.len();
            let most = if whole {
                RECEIVE_BYTES
            } else {
                rng.range(1, RECEIVE_BYTES)
            };
            let len = waiting.min(most);
            let mut bytes: Vec<u8> = socket.to_server.drain(..len).collect();
            shard.handle(Input::Received(conn, &mut bytes), now, net);
        }
    }
}
