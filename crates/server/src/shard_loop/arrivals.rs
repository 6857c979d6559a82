//! The arrival of connections in a shard, and the log's words about those that are refused.

use crore_broker::protocol::shed;
use crore_broker::{Input, Link, Now};
use crore_net::clock;
use crore_net::transport::{Arrival, Transport};

use super::ShardLoop;

/// Connections accepted from one listener in one turn, so that a storm of arrivals does not hold up
/// deliveries.
const ACCEPTS_PER_TURN: usize = 64;
/// How often it is said that connections are turned away, at most.
const TELL_EVERY_S: u32 = 60;

impl<T: Transport> ShardLoop<T> {
    /// Takes connections that wait, until then; the next wait tells of those that are left.
    pub(super) fn accept(&mut self, listener: usize, until_ns: u64, now: Now) {
        for n in 0..ACCEPTS_PER_TURN {
            if !self.accept_one(listener, n as u32, now) || clock::monotonic_ns() > until_ns {
                return;
            }
        }
    }

    /// Takes the connection that waits, as the `n`th of a turn; false when there is no other one now.
    fn accept_one(&mut self, listener: usize, n: u32, now: Now) -> bool {
        let now_ms = clock::monotonic_ms();
        let answer = |request: &[u8]| shed(request, now_ms as u32 ^ n << 16);
        match self.io.transport.accept(listener, now_ms, answer) {
            Arrival::Connection(link, peer) => {
                let arrived = Input::Accepted(Link(link.0), peer);
                let turned_away = self.shard.arrivals_turned_away();
                self.shard.handle(arrived, now, &mut self.io);
                if self.shard.arrivals_turned_away() > turned_away {
                    self.io.transport.was_turned_away();
                }
                self.tell_untrusted(now);
            }
            Arrival::Shed(_) => {
                self.io.meter.turns.shed += 1;
                self.tell("out of descriptors or memory", now);
            }
            Arrival::Stuck(_) => {
                self.tell("the machine is out of descriptors", now);
                return false;
            }
            Arrival::Nobody => return false,
            Arrival::Failed(errno) => {
                tracing::debug!(errno, "accept failed");
                return false;
            }
        }
        true
    }

    /// Closes the entrance: connections that stand in the queues are still let in, later ones are not.
    pub(super) fn close_entrance(&mut self, now: Now) {
        for listener in 0..self.io.transport.bar() {
            let mut n = 0;
            while self.accept_one(listener, n, now) {
                n += 1;
            }
        }
        self.io.transport.close_listeners();
    }

    /// Logs that an untrusted client came, as a shard without connections never ticks.
    fn tell_untrusted(&mut self, now: Now) {
        let untrusted = self.shard.stats().untrusted;
        if untrusted > self.untrusted {
            self.untrusted = untrusted;
            let peers = "not in http.trusted_proxies, while http.proxy_protocol is on";
            self.tell(
                &format!("{untrusted} came from peers that are {peers}"),
                now,
            );
        }
    }

    pub(super) fn tell_turned_away(&mut self, now: Now) {
        let turned_away = self.shard.stats().turned_away;
        if turned_away > self.turned_away {
            self.turned_away = turned_away;
            self.tell("a limit is reached", now);
        }
    }

    /// Says why connections are turned away, not for each of them.
    fn tell(&mut self, why: &str, now: Now) {
        if now.s < self.told_s {
            return;
        }
        self.told_s = now.s + TELL_EVERY_S;
        let connections = self.shard.connections();
        tracing::warn!(connections, "{why}: new connections are turned away");
    }
}
