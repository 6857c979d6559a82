//! Accepts the connections of a shard, and logs refusals.

use crore_broker::protocol::shed;
use crore_broker::{Input, Now, SocketId, Stats};
use crore_net::clock;
use crore_net::transport::{AcceptResult, Transport};

use super::ShardLoop;

/// The maximum number of connections admitted in one turn (round of the loop), so that a storm of arrivals does not delay deliveries.
const ACCEPTS_PER_TURN: usize = 64;
/// The maximum number of connections that move from a listener's queue to the accept queue before one is admitted. So the accept queue can
/// choose among several addresses.
const MOVES_PER_ACCEPT: usize = 16;
/// The least time between two log lines about connections that are turned away.
const LOG_EVERY_S: u32 = 60;

impl<T: Transport> ShardLoop<T> {
    /// Admits connections until `until_ns`. The next turn continues.
    pub(super) fn accept(&mut self, mut listener: Option<usize>, until_ns: u64, now: Now) {
        for accept_index in 0..ACCEPTS_PER_TURN {
            if !self.accept_one(&mut listener, accept_index as u32, now)
                || clock::monotonic_ns() > until_ns
            {
                return;
            }
        }
    }

    /// Moves connections from the listener's queue to the accept queue while that has room, and then admits one, as number `accept_index`
    /// of this turn. Connections are moved even while the rate limit admits none. Otherwise many connections of one address would delay
    /// those of others, since the kernel's queue is first in, first out. Returns whether the next call may find more connections.
    fn accept_one(&mut self, listener: &mut Option<usize>, accept_index: u32, now: Now) -> bool {
        let now_ms = clock::monotonic_ms();
        *listener = listener
            .filter(|listener| self.fill_accept_queue(*listener, accept_index, now_ms, now));
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
        // Connections refused for lack of room, or because the peer is not a trusted proxy.
        let refusals = |stats: &Stats| stats.turned_away + stats.untrusted;
        let refusals_before = refusals(self.shard.connection_stats());
        self.shard
            .handle(Input::Accepted(link, peer), now, &mut self.io);
        let stats = self.shard.connection_stats();
        let untrusted = stats.untrusted;
        if refusals(stats) > refusals_before {
            self.accept_queue.refund_refused();
        }
        self.log_untrusted(untrusted, now);
        true
    }

    /// Moves some connections from a listener's queue to the accept queue. Returns whether the listener may have more connections.
    fn fill_accept_queue(
        &mut self,
        listener: usize,
        accept_index: u32,
        now_ms: u64,
        now: Now,
    ) -> bool {
        for _ in 0..MOVES_PER_ACCEPT {
            if !self.accept_queue.has_room() {
                break;
            }
            let answer = |request: &[u8]| shed(request, now_ms as u32 ^ accept_index << 16);
            match self.io.transport.accept(listener, now_ms, answer) {
                AcceptResult::Connection(link, peer) => {
                    self.accept_queue.push(SocketId(link.0), peer)
                }
                shed @ (AcceptResult::Shed(_) | AcceptResult::OverLimit) => {
                    self.accept_queue.charge();
                    self.io.meter.loop_stats.shed += 1;
                    let why = match shed {
                        AcceptResult::OverLimit => "xdp.connections_max is reached",
                        _ => "out of descriptors or memory",
                    };
                    self.log_refusal(why, now);
                    break;
                }
                AcceptResult::CannotShed(_) => {
                    self.log_refusal("the machine is out of descriptors", now);
                    return false;
                }
                AcceptResult::NoConnection => return false,
                AcceptResult::Failed(errno) => {
                    tracing::debug!(errno, "accept failed");
                    return false;
                }
            }
        }
        true
    }

    /// Closes the listeners, after it has admitted the connections that already wait in the queues.
    pub(super) fn close_listeners(&mut self, now: Now) {
        self.accept_queue.lift_rate();
        for listener in 0..self.io.transport.block_new_connections() {
            let (mut listener, mut accept_index) = (Some(listener), 0);
            while self.accept_one(&mut listener, accept_index, now) {
                accept_index += 1;
            }
        }
        self.io.transport.close_listeners();
    }

    /// Logs connections from untrusted peers at once. [`log_turned_away`](Self::log_turned_away) would be too late: it runs in a tick, and a shard
    /// without connections has no ticks.
    fn log_untrusted(&mut self, untrusted: u64, now: Now) {
        if untrusted > self.refusal_log.logged_untrusted {
            self.refusal_log.logged_untrusted = untrusted;
            let peers = "not in http.trusted_proxies, while http.proxy_protocol is on";
            self.log_refusal(
                &format!("{untrusted} came from peers that are {peers}"),
                now,
            );
        }
    }

    /// Logs that connections were turned away for lack of room, if that has happened since the last call.
    pub(super) fn log_turned_away(&mut self, now: Now) {
        let turned_away = self.shard.connection_stats().turned_away;
        if turned_away > self.refusal_log.logged_turned_away {
            self.refusal_log.logged_turned_away = turned_away;
            self.log_refusal("a limit is reached", now);
        }
    }

    /// Logs why connections are turned away, at most once in [`LOG_EVERY_S`].
    fn log_refusal(&mut self, why: &str, now: Now) {
        if now.s < self.refusal_log.quiet_until_s {
            return;
        }
        self.refusal_log.quiet_until_s = now.s + LOG_EVERY_S;
        let connections = self.shard.connection_count();
        tracing::warn!(connections, "{why}: new connections are turned away");
    }
}
