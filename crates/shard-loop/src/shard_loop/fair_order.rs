//! The order in which a turn (one round of the shard's loop) handles its events: the first event of each party (client address), then the
//! second event of each party, and so on. So many connections of one address do not delay other addresses.

/// Parties are hashed into this many buckets. Two parties in the same bucket count as one.
const BUCKETS: usize = 512;

/// The order of a turn's events. Its memory is reused.
#[derive(Default)]
pub struct FairOrder {
    /// The sort key of each event: the count of earlier events of its party, its distance from the first event, and its number.
    events: Vec<(u16, u16, u16)>,
    /// The count of events so far, by bucket.
    seen: Vec<u16>,
}

impl FairOrder {
    /// Sorts `events` events (a few hundred at most). The first is number `from`; after the last number comes number 0. `party` returns
    /// the party of an event.
    pub fn arrange(&mut self, events: usize, from: usize, mut party: impl FnMut(usize) -> u64) {
        self.seen.clear();
        self.seen.resize(BUCKETS, 0);
        self.events.clear();
        for place in 0..events {
            let n = (from + place) % events;
            // Fibonacci hashing: the high bits of the product depend on all bits of the number.
            let mixed = party(n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let seen = &mut self.seen[mixed as usize % BUCKETS];
            self.events.push((*seen, place as u16, n as u16));
            *seen += 1;
        }
        self.events.sort_unstable();
    }

    /// The number of the event at this place in the order.
    pub fn event_at(&self, place: usize) -> usize {
        usize::from(self.events[place].2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_of_a_crowd_come_between_those_of_others() {
        let parties: Vec<u64> = (0..250).map(|n| if n < 240 { 7 } else { n }).collect();
        let mut order = FairOrder::default();
        order.arrange(parties.len(), 0, |n| parties[n]);
        let first: Vec<u64> = (0..11)
            .map(|place| parties[order.event_at(place)])
            .collect();
        assert_eq!(first.iter().filter(|party| **party == 7).count(), 1);
        let mut all: Vec<usize> = (0..250).map(|place| order.event_at(place)).collect();
        assert_eq!(order.event_at(0), 0);
        let crowd: Vec<usize> = all.iter().copied().filter(|n| *n < 240).collect();
        assert!(crowd.is_sorted());
        all.sort_unstable();
        assert_eq!(all, (0..250).collect::<Vec<_>>());
    }

    #[test]
    fn it_begins_with_the_event_that_had_no_turn() {
        let mut order = FairOrder::default();
        order.arrange(60, 20, |n| n as u64 / 2);
        let all: Vec<usize> = (0..60).map(|place| order.event_at(place)).collect();
        assert_eq!(all[..3], [20, 22, 24]);
        assert_eq!(all[30..33], [21, 23, 25]);
    }
}
