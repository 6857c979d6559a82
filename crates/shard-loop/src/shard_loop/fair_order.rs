//! The order in which a turn (one round of the shard's loop) handles its events: the first event of each party (client address), then the
//! second event of each party, and so on. So many connections of one address do not delay other addresses.

/// Parties are hashed into this many buckets. Two parties in the same bucket count as one.
const BUCKETS: usize = 512;

/// An event. The fields are compared in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    /// The count of earlier events of its party.
    earlier_events: u16,
    /// Its distance from the first event.
    distance: u16,
    /// Its number.
    event: u16,
}

/// The order of a turn's events. Its memory is reused.
#[derive(Default)]
pub struct FairOrder {
    events: Vec<SortKey>,
    /// The count of events so far, by bucket.
    event_counts: Vec<u16>,
}

impl FairOrder {
    /// Sorts `events` events (a few hundred at most). The first is number `first`; after the last number comes number 0. `party` returns
    /// the party of an event.
    pub fn sort_fairly(
        &mut self,
        events: usize,
        first: usize,
        mut party: impl FnMut(usize) -> u64,
    ) {
        self.event_counts.clear();
        self.event_counts.resize(BUCKETS, 0);
        self.events.clear();
        for distance in 0..events {
            let event = (first + distance) % events;
            // Fibonacci hashing: the high bits of the product depend on all bits of the number.
            let hash = party(event).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let event_count = &mut self.event_counts[hash as usize % BUCKETS];
            self.events.push(SortKey {
                earlier_events: *event_count,
                distance: distance as u16,
                event: event as u16,
            });
            *event_count += 1;
        }
        self.events.sort_unstable();
    }

    /// The number of the event at this position in the order.
    pub fn event_at(&self, position: usize) -> usize {
        usize::from(self.events[position].event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_of_a_crowd_come_between_those_of_others() {
        let parties: Vec<u64> = (0..250).map(|n| if n < 240 { 7 } else { n }).collect();
        let mut order = FairOrder::default();
        order.sort_fairly(parties.len(), 0, |n| parties[n]);
        let first: Vec<u64> = (0..11)
            .map(|position| parties[order.event_at(position)])
            .collect();
        assert_eq!(first.iter().filter(|party| **party == 7).count(), 1);
        let mut all: Vec<usize> = (0..250).map(|position| order.event_at(position)).collect();
        assert_eq!(order.event_at(0), 0);
        let crowd: Vec<usize> = all.iter().copied().filter(|n| *n < 240).collect();
        assert!(crowd.is_sorted());
        all.sort_unstable();
        assert_eq!(all, (0..250).collect::<Vec<_>>());
    }

    #[test]
    fn order_begins_with_the_first_unhandled_event() {
        let mut order = FairOrder::default();
        order.sort_fairly(60, 20, |n| n as u64 / 2);
        let all: Vec<usize> = (0..60).map(|position| order.event_at(position)).collect();
        assert_eq!(all[..3], [20, 22, 24]);
        assert_eq!(all[30..33], [21, 23, 25]);
    }
}
