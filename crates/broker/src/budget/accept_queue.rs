//! The accept queue of a shard: connections that the transport has accepted and the shard has not yet admitted. The queue decides
//! which connection is next, and limits the rate of admissions.
//!
//! The queue is fair between addresses ([`FairQueue`]), so that a crowd from one address does not delay others. When the rate is used up, the queue admits
//! nobody for some milliseconds. A connection that is refused after it has left the queue uses only a quarter of what an admitted connection uses.
//!
//! Other modules decide how many connections the server has room for ([`admission`](super::admission)), and accept them (the
//! transport).

use core::net::IpAddr;

use crate::base::fair_queue::FairQueue;
use crate::base::ids::SocketId;
use crate::budget::admission::{Client, Party};

/// The maximum number of connections that wait in a queue.
const WAITING_MAX: usize = 512;
/// The number of connections that may wait is at most the shard's room for connections divided by this number.
const WAITING_DIVISOR: u32 = 16;
/// The pause when the rate is used up: the shortest time that a coarse clock can measure.
const PAUSE_MS: u64 = 10;
/// After a quiet time, the queue admits at once what the rate would admit in this many milliseconds.
const BURST_MS: u64 = 50;

/// Connections that wait to be admitted. The queue never closes a connection. The caller does that.
#[derive(Debug)]
pub struct AcceptQueue {
    waiting: FairQueue<(SocketId, IpAddr)>,
    waiting_max: usize,
    rate: AcceptRate,
    paused_until_ms: u64,
    seed: u64,
}

impl AcceptQueue {
    /// The queue of a shard with room for `room` connections. `per_s` is the rate of admissions; 0: no limit. `seed` keys the hash of addresses.
    pub fn new(per_s: u32, room: u32, seed: u64) -> AcceptQueue {
        AcceptQueue {
            waiting: FairQueue::default(),
            waiting_max: WAITING_MAX.min((room / WAITING_DIVISOR) as usize).max(1),
            rate: AcceptRate::new(per_s),
            paused_until_ms: 0,
            seed,
        }
    }

    /// Whether one more connection may wait.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < self.waiting_max
    }

    /// Queues a connection.
    pub fn push(&mut self, socket: SocketId, peer: IpAddr) {
        let party = Party::of_address(Client::from_address(peer, self.seed));
        self.waiting.push(party.number(), (socket, peer));
    }

    /// Whether the rate admits a connection now. If not, [`paused_until_ms`](Self::paused_until_ms) says when to ask again.
    pub fn may_admit(&mut self, now_ms: u64) -> bool {
        if now_ms < self.paused_until_ms {
            return false;
        }
        let may_admit = self.rate.refill_and_check(now_ms);
        if !may_admit {
            self.paused_until_ms = now_ms + PAUSE_MS;
        }
        may_admit
    }

    /// The end of the pause.
    pub fn paused_until_ms(&self) -> u64 {
        self.paused_until_ms
    }

    /// Removes and returns the next connection, and charges the rate for it.
    pub fn pop(&mut self) -> Option<(SocketId, IpAddr)> {
        let next = self.waiting.pop()?;
        self.charge();
        Some(next)
    }

    /// Charges the rate for a connection that was answered without being queued.
    pub fn charge(&mut self) {
        self.rate.take();
    }

    /// Gives back three quarters of the charge for the connection that was taken last. Called if that connection was refused.
    pub fn refund_refused(&mut self) {
        self.rate.give_back(UNITS_PER_CONNECTION / 4 * 3);
    }

    /// Removes the rate limit. Called when the shard stops accepting, so that it admits all waiting connections at once.
    pub fn lift_rate(&mut self) {
        self.rate = AcceptRate::new(0);
        self.paused_until_ms = 0;
    }

    /// The number of waiting connections.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no connection waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A token bucket in units of a thousandth of a connection.
#[derive(Debug)]
struct AcceptRate {
    per_s: u64,
    units: u64,
    refilled_ms: u64,
}

/// The units of the bucket that one connection costs.
const UNITS_PER_CONNECTION: u64 = 1_000;

impl AcceptRate {
    fn new(per_s: u32) -> AcceptRate {
        let per_s = u64::from(per_s);
        AcceptRate {
            per_s,
            units: AcceptRate::units_max(per_s),
            refilled_ms: 0,
        }
    }

    fn units_max(per_s: u64) -> u64 {
        UNITS_PER_CONNECTION + per_s * BURST_MS
    }

    fn refill_and_check(&mut self, now_ms: u64) -> bool {
        if self.per_s == 0 {
            return true;
        }
        let passed_ms = now_ms.saturating_sub(self.refilled_ms);
        self.refilled_ms = now_ms;
        let filled = self
            .units
            .saturating_add(passed_ms.saturating_mul(self.per_s));
        self.units = filled.min(AcceptRate::units_max(self.per_s));
        self.units >= UNITS_PER_CONNECTION
    }

    fn take(&mut self) {
        self.units = self.units.saturating_sub(UNITS_PER_CONNECTION);
    }

    fn give_back(&mut self, part: u64) {
        self.units = (self.units + part).min(AcceptRate::units_max(self.per_s));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn rate_holds_over_time_and_a_quiet_time_saves_only_a_small_burst() {
        for (per_s, step_ms) in [(1, 10), (7, 10), (1_000, 1), (30_000, 4), (30_000, 100)] {
            let mut rate = AcceptRate::new(per_s);
            let mut taken = 0;
            for ms in (50_000..60_000).step_by(step_ms) {
                while rate.refill_and_check(ms) {
                    rate.take();
                    taken += 1;
                }
            }
            let burst = per_s / 20 + 1;
            let most = u32::try_from(10_000 / step_ms).unwrap() * burst;
            let due = (per_s * 10).min(most);
            assert!(
                (due - due / 50..=due + burst + 1).contains(&taken),
                "{taken} at {per_s}/s by {step_ms} ms"
            );
        }
        let mut free = AcceptRate::new(0);
        assert!((0..1_000).all(|_| free.refill_and_check(1)));
    }

    #[test]
    fn token_that_is_given_back_can_be_taken_once() {
        let mut rate = AcceptRate::new(1_000);
        for _ in 0..1_000 {
            assert!(rate.refill_and_check(1));
            rate.take();
            rate.give_back(UNITS_PER_CONNECTION);
        }
        let mut taken = 0;
        while rate.refill_and_check(1) {
            rate.take();
            taken += 1;
        }
        assert_eq!(taken, 1_000 * BURST_MS / 1_000 + 1);
    }

    fn at(host: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, host).into()
    }

    #[test]
    fn crowd_of_one_address_does_not_delay_other_addresses() {
        let mut queue = AcceptQueue::new(0, 1_000, 7);
        let hosts = [[2; 12].as_slice(), &[3, 3, 4]].concat();
        for (socket, host) in (0..).zip(&hosts) {
            queue.push(SocketId(socket), at(*host));
        }
        let order: Vec<u32> = core::iter::from_fn(|| queue.pop())
            .map(|(socket, _)| socket.0)
            .collect();
        assert_eq!(order[..6], [0, 12, 14, 1, 13, 2]);
        assert_eq!(order.len(), hosts.len());
        assert!(queue.is_empty());
    }

    #[test]
    fn queue_holds_a_sixteenth_of_the_room_and_at_least_one() {
        for (room, places) in [(0, 1), (16, 1), (320, 20), (1_000_000, WAITING_MAX)] {
            let mut queue = AcceptQueue::new(0, room, 7);
            let pushed = (0..).take_while(|socket| {
                let has_room = queue.has_room();
                queue.push(SocketId(*socket), at(1));
                has_room
            });
            assert_eq!(pushed.count(), places, "{room}");
        }
    }

    #[test]
    fn past_the_rate_the_queue_admits_again_after_a_pause() {
        let mut queue = AcceptQueue::new(100, 1_000, 7);
        for socket in 0..30 {
            queue.push(SocketId(socket), at(1));
        }
        let (mut now_ms, mut pauses) = (1_000, 0);
        while !queue.is_empty() {
            if queue.may_admit(now_ms) {
                queue.pop();
            } else {
                let paused_until_ms = queue.paused_until_ms();
                assert!(
                    !queue.may_admit(paused_until_ms - 1)
                        && queue.paused_until_ms() == paused_until_ms
                );
                now_ms = paused_until_ms;
                pauses += 1;
            }
        }
        assert!((200..=350).contains(&(now_ms - 1_000)), "{now_ms}");
        assert!(pauses >= 20, "{pauses}");
        while queue.may_admit(now_ms) {
            queue.charge();
        }
        queue.lift_rate();
        assert!(queue.may_admit(now_ms));
    }
}
