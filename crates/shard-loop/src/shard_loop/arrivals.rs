//! Accepting connections in a shard, and logging those that are refused.

use crore_broker::protocol::shed;
use crore_broker::{Input, Link, Now, Stats};
use crore_net::clock;
use crore_net::transport::{Arrival, Transport};

use super::ShardLoop;

/// Most connections admitted in one turn, so that a storm of arrivals does not delay deliveries.
const ACCEPTS_PER_TURN: usize = 64;
/// Connections that move from a listener's queue to the accept queue before one is admitted, so that the accept queue can choose among several addresses.
const LINE_UP: usize = 16;
/// Least time between two log lines about connections that are turned away.
const TELL_EVERY_S: u32 = 60;

impl<T: Transport> ShardLoop<T> {
    /// Admits connections until `until_ns`, those in the accept queue first. The next turn continues.
    pub(super) fn accept(&mut self, mut listener: Option<usize>, until_ns: u64, now: Now) {
        for n in 0..ACCEPTS_PER_TURN {
            if !self.accept_one(&mut listener, n as u32, now) || clock::monotonic_ns() > until_ns {
                return;
            }
        }
    }

    /// Moves connections from the listener's queue to the accept queue while it has room, then admits the next one, as the `n`th of a turn. The
    /// kernel's queue is first in, first out, so connections leave it also while the rate admits nobody. False when no other one waits now.
    fn accept_one(&mut self, listener: &mut Option<usize>, n: u32, now: Now) -> bool {
        let now_ms = clock::monotonic_ms();
        *listener = listener.filter(|listener| self.line_up(*listener, n, now_ms, now));
        if !self.accept_queue.may_admit(now_ms) {
            let has_room = self.accept_queue.has_room();
            if !has_room {
                self.io.transport.pause(self.accept_queue.paused_until_ms());
            }
            return has_room && listener.is_some();
        }
        let Some((link, peer)) = self.accept_queue.pop() else {
            return listener.is_some();
        };
        // Refused for lack of room, or because the peer is not a trusted proxy.
        let not_let_in = |stats: &Stats| stats.turned_away + stats.untrusted;
        let before = not_let_in(&self.shard.stats());
        self.shard
            .handle(Input::Accepted(link, peer), now, &mut self.io);
        let stats = self.shard.stats();
        if not_let_in(&stats) > before {
            self.accept_queue.refund_refused();
        }
        self.tell_untrusted(stats.untrusted, now);
        true
    }

    /// Moves some connections from a listener's queue to the accept queue, and returns whether more may wait in the former.
    fn line_up(&mut self, listener: usize, n: u32, now_ms: u64, now: Now) -> bool {
        for _ in 0..LINE_UP {
            if !self.accept_queue.has_room() {
                break;
            }
            let answer = |request: &[u8]| shed(request, now_ms as u32 ^ n << 16);
            match self.io.transport.accept(listener, now_ms, answer) {
                Arrival::Connection(link, peer) => self.accept_queue.push(Link(link.0), peer),
                Arrival::Shed(_) => {
                    self.accept_queue.charge();
                    self.io.meter.turns.shed += 1;
                    self.tell("out of descriptors or memory", now);
                    break;
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
        }
        true
    }

    /// Closes the listeners. Connections that wait in the queues are still admitted, later ones are not.
    pub(super) fn close_entrance(&mut self, now: Now) {
        self.accept_queue.lift_rate();
        for listener in 0..self.io.transport.bar() {
            let (mut listener, mut n) = (Some(listener), 0);
            while self.accept_one(&mut listener, n, now) {
                n += 1;
            }
        }
        self.io.transport.close_listeners();
    }

    /// Logs connections of untrusted peers at once: a shard without connections never ticks, so [`tell_turned_away`](Self::tell_turned_away) may never run.
    fn tell_untrusted(&mut self, untrusted: u64, now: Now) {
        if untrusted > self.told.untrusted {
            self.told.untrusted = untrusted;
            let peers = "not in http.trusted_proxies, while http.proxy_protocol is on";
            self.tell(
                &format!("{untrusted} came from peers that are {peers}"),
                now,
            );
        }
    }

    pub(super) fn tell_turned_away(&mut self, now: Now) {
        let turned_away = self.shard.stats().turned_away;
        if turned_away > self.told.turned_away {
            self.told.turned_away = turned_away;
            self.tell("a limit is reached", now);
        }
    }

    /// Logs why connections are turned away, at most once in [`TELL_EVERY_S`].
    fn tell(&mut self, why: &str, now: Now) {
        if now.s < self.told.quiet_until_s {
            return;
        }
        self.told.quiet_until_s = now.s + TELL_EVERY_S;
        let connections = self.shard.connections();
        tracing::warn!(connections, "{why}: new connections are turned away");
    }
}
