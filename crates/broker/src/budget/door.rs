//! The door of a shard: connections that the transport has accepted and that are not let in yet. It decides who is next, and how many come in a
//! second.
//!
//! The addresses take turns ([`Turns`]): the crowd of one address holds up no other address, while the door has places. Past the rate nobody is let
//! in for some milliseconds. A connection that is turned away counts a quarter, so that a crowd of them holds up the others less.
//!
//! Deliberately elsewhere: for which connections there is room ([`admission`](super::admission)), and how they are accepted (the transport).

use core::net::IpAddr;

use crate::base::ids::Link;
use crate::base::turns::Turns;
use crate::budget::admission::{Client, Party};

/// Connections that may wait, as far as there is room for them.
const WAITING_MAX: usize = 512;
/// The part of a shard's room that may wait.
const WAITING_PART: u32 = 16;
/// How long nobody is let in when the rate is used up: the smallest time that a coarse clock tells apart.
const PAUSE_MS: u64 = 10;
/// How large a burst the rate allows after a quiet time, in milliseconds of the rate. More would be a storm.
const BURST_MS: u64 = 50;

/// Connections that wait to be let in. The owner of the door closes them.
#[derive(Debug)]
pub struct Door {
    waiting: Turns<(Link, IpAddr)>,
    waiting_max: usize,
    rate: Rate,
    opens_ms: u64,
    seed: u64,
}

impl Door {
    /// The door of a shard with room for so many connections; 0 per second: without limit. `seed` is that of the hash of addresses.
    pub fn new(per_s: u32, room: u32, seed: u64) -> Door {
        Door {
            waiting: Turns::default(),
            waiting_max: WAITING_MAX.min((room / WAITING_PART) as usize).max(1),
            rate: Rate::new(per_s),
            opens_ms: 0,
            seed,
        }
    }

    /// Whether one more may wait.
    pub fn has_place(&self) -> bool {
        self.waiting.len() < self.waiting_max
    }

    /// A connection comes.
    pub fn push(&mut self, link: Link, peer: IpAddr) {
        let party = Party::of_address(Client::of(peer, self.seed));
        self.waiting.push(party.number(), (link, peer));
    }

    /// Whether the rate lets somebody in now; if not, [`opens_ms`](Door::opens_ms) says when to ask again.
    pub fn is_open(&mut self, now_ms: u64) -> bool {
        if now_ms < self.opens_ms {
            return false;
        }
        let is_open = self.rate.has(now_ms);
        if !is_open {
            self.opens_ms = now_ms + PAUSE_MS;
        }
        is_open
    }

    /// The time from which on somebody may be let in again.
    pub fn opens_ms(&self) -> u64 {
        self.opens_ms
    }

    /// Lets the next connection in.
    pub fn pop(&mut self) -> Option<(Link, IpAddr)> {
        let next = self.waiting.pop()?;
        self.charge();
        Some(next)
    }

    /// A connection was answered without being let in: it counts against the rate.
    pub fn charge(&mut self) {
        self.rate.take();
    }

    /// The connection that was let in last is turned away: it counts a quarter.
    pub fn was_turned_away(&mut self) {
        self.rate.give_back(TOKEN / 4 * 3);
    }

    /// From now on there is no rate: the door is about to close, and all who wait come in.
    pub fn open_wide(&mut self) {
        self.rate = Rate::new(0);
        self.opens_ms = 0;
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A bucket of thousandths of connections.
#[derive(Debug)]
struct Rate {
    per_s: u64,
    filled: u64,
    at_ms: u64,
}

/// The cost of one connection, in units of the bucket.
const TOKEN: u64 = 1_000;

impl Rate {
    fn new(per_s: u32) -> Rate {
        let per_s = u64::from(per_s);
        Rate {
            per_s,
            filled: Rate::room(per_s),
            at_ms: 0,
        }
    }

    fn room(per_s: u64) -> u64 {
        TOKEN + per_s * BURST_MS
    }

    fn has(&mut self, now_ms: u64) -> bool {
        if self.per_s == 0 {
            return true;
        }
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        self.at_ms = now_ms;
        let filled = self
            .filled
            .saturating_add(passed_ms.saturating_mul(self.per_s));
        self.filled = filled.min(Rate::room(self.per_s));
        self.filled >= TOKEN
    }

    fn take(&mut self) {
        self.filled = self.filled.saturating_sub(TOKEN);
    }

    fn give_back(&mut self, part: u64) {
        self.filled = (self.filled + part).min(Rate::room(self.per_s));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn rate_holds_over_time_and_a_quiet_time_saves_little() {
        for (per_s, step_ms) in [(1, 10), (7, 10), (1_000, 1), (30_000, 4), (30_000, 100)] {
            let mut rate = Rate::new(per_s);
            let mut taken = 0;
            for ms in (50_000..60_000).step_by(step_ms) {
                while rate.has(ms) {
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
        let mut free = Rate::new(0);
        assert!((0..1_000).all(|_| free.has(1)));
    }

    #[test]
    fn token_that_is_given_back_is_taken_again_and_no_more() {
        let mut rate = Rate::new(1_000);
        for _ in 0..1_000 {
            assert!(rate.has(1));
            rate.take();
            rate.give_back(TOKEN);
        }
        let mut taken = 0;
        while rate.has(1) {
            rate.take();
            taken += 1;
        }
        assert_eq!(taken, 1_000 * BURST_MS / 1_000 + 1);
    }

    fn at(host: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, host).into()
    }

    #[test]
    fn crowd_of_one_address_holds_up_no_other_address() {
        let mut door = Door::new(0, 1_000, 7);
        let hosts = [[2; 12].as_slice(), &[3, 3, 4]].concat();
        for (link, host) in (0..).zip(&hosts) {
            door.push(Link(link), at(*host));
        }
        let order: Vec<u32> = core::iter::from_fn(|| door.pop())
            .map(|(link, _)| link.0)
            .collect();
        assert_eq!(order[..6], [0, 12, 14, 1, 13, 2]);
        assert_eq!(order.len(), hosts.len());
        assert!(door.is_empty());
    }

    #[test]
    fn door_has_places_for_a_part_of_the_room_and_at_least_one() {
        for (room, places) in [(0, 1), (16, 1), (320, 20), (1_000_000, WAITING_MAX)] {
            let mut door = Door::new(0, room, 7);
            let pushed = (0..).take_while(|link| {
                let has_place = door.has_place();
                door.push(Link(*link), at(1));
                has_place
            });
            assert_eq!(pushed.count(), places, "{room}");
        }
    }

    #[test]
    fn past_the_rate_the_door_opens_again_after_a_pause() {
        let mut door = Door::new(100, 1_000, 7);
        for link in 0..30 {
            door.push(Link(link), at(1));
        }
        let (mut now_ms, mut pauses) = (1_000, 0);
        while !door.is_empty() {
            if door.is_open(now_ms) {
                door.pop();
            } else {
                let opens_ms = door.opens_ms();
                assert!(!door.is_open(opens_ms - 1) && door.opens_ms() == opens_ms);
                now_ms = opens_ms;
                pauses += 1;
            }
        }
        assert!((200..=350).contains(&(now_ms - 1_000)), "{now_ms}");
        assert!(pauses >= 20, "{pauses}");
        while door.is_open(now_ms) {
            door.charge();
        }
        door.open_wide();
        assert!(door.is_open(now_ms));
    }
}
